"""Advice on a running job: laws of when a restart pays, logs that are followed, and decisions on a small recorded log."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.planner.configs.environments import GivenEnvironments
from rlplan.planner.configs.importing import ImportOptions
from rlplan.planner.measured.advising import (
    IN_PLACE,
    Advisor,
    FollowOptions,
    engine_alone,
    keeps_work,
)
from rlplan.planner.measured.following import (
    changes_of,
    followed,
    newest_apart,
    spread_of,
    unlike_before,
)
from rlplan.planner.measured.gains import answer_of, deadline_step, difference_spread_seconds
from rlplan.planner.measured.ledger import open_decisions, read_ledger, text_of, write_line
from rlplan.planner.measured.watching import Watch
from rlplan.reports.tables.advice import advice_lines, answer_words
from rlplan.results.advice import Decision, Departure, Gain, KeyChange, Outcome
from rlplan.workload import mean_length

RUNNING = "actor_rollout_ref.rollout.max_num_seqs"
# One sequence at a time where there is room for hundreds: a setting that surely costs something.
VERL = (
    "-m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.n_gpus_per_node=1 trainer.nnodes=1 "
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=2 "
    "data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8 data.max_prompt_length=128 "
    "data.max_response_length=256 actor_rollout_ref.actor.use_dynamic_bsz=True trainer.total_training_steps=100 "
    f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 {RUNNING}=1"
).split()
ROOT = Path(__file__).parents[3]
OPTIONS = ImportOptions(gpu="h100-80gb-sxm", environment={})
# Seconds of a step's stages as the log below has them, in which nothing but noise differs.
SECONDS = {"gen": 4.5, "old_log_prob": 0.05, "update_actor": 0.15, "update_weights": 0.6}
STEP = 5.3
NOISE = (1.0, 1.01, 0.99, 1.005, 0.995, 1.0, 1.01, 0.99, 1.0, 1.0, 0.99, 1.01)


def line_of(number, times=1.0, response=128.0, **more):
    """Return a line of verl's console."""
    seconds = {name: times * each + more.get(name, 0.0) for name, each in SECONDS.items()}
    figures = {f"timing_s/{name}": each for name, each in seconds.items()}
    figures |= {"timing_s/step": sum(seconds.values()), "response_length/mean": response}
    figures["prompt_length/mean"] = 64.0
    told = " - ".join(f"{key}:{value:.4f}" for key, value in figures.items())
    return f"(TaskRunner pid=7) step:{number} - {told}\n"


def log_of(first=1, count=12, **more):
    return "".join(line_of(first + at, NOISE[at % len(NOISE)], **more) for at in range(count))


@pytest.fixture
def log(tmp_path):
    return tmp_path / "train.log"


gains = st.floats(-50, 50).flatmap(
    lambda middle: st.floats(0, 60).map(
        lambda width: Gain(
            p10_seconds=middle - width, p50_seconds=middle, p90_seconds=middle + width
        )
    )
)
restarts = st.floats(0, 1e6)
steps = st.integers(0, 10_000)


@given(gains | st.none(), restarts | st.none(), steps)
def test_nothing_is_proposed_where_no_steps_are_left(gain, restart_seconds, step):
    assert answer_of(gain, restart_seconds, step, 0)[0] not in {"change", "restart unknown"}


@given(gains, restarts, restarts, steps)
def test_a_dearer_restart_never_pays_longer(gain, one, other, last):
    cheap, dear = (deadline_step(gain, each, last) for each in (min(one, other), max(one, other)))
    assert dear is None or (cheap is not None and dear <= cheap)


@given(gains, restarts, steps, steps)
def test_a_proposed_change_repays_its_restart_by_the_low_end_of_its_gain(gain, cost, step, left):
    answer, deadline = answer_of(gain, cost, step, left)
    if answer == "change":
        assert step <= deadline <= step + left
        assert gain.p10_seconds * left >= cost * (1 - 1e-9)
    elif gain.p10_seconds > 0 and left > 0:
        assert gain.p10_seconds * left <= cost * (1 + 1e-9)


def test_deadlines_in_figures():
    gain = Gain(p10_seconds=2.0, p50_seconds=5.0, p90_seconds=8.0)
    assert deadline_step(gain, 60.0, 100) == 70
    assert deadline_step(gain, 61.0, 100) == 69
    assert deadline_step(gain, 0.0, 100) == 99
    assert deadline_step(gain, 201.0, 100) is None
    assert answer_of(gain, 60.0, 70, 30) == ("change", 70)
    assert answer_of(gain, 60.0, 71, 29) == ("too late", 70)
    assert answer_of(gain, None, 71, 29) == ("restart unknown", None)
    assert answer_of(None, 60.0, 1, 99) == ("keep", None)


def test_differences_share_what_both_forecasts_are_off_by():
    # Both 25 % off, of which 20 % are common: 0.2 x (100 - 60), and 15 % of each by itself.
    spread = difference_spread_seconds(100.0, 0.25, 60.0, 0.25, 0.15)
    assert spread == pytest.approx((8**2 + 15**2 + 9**2) ** 0.5)
    assert difference_spread_seconds(40.0, 0.25, 0.0, 0.25, 0.0) == pytest.approx(10.0)
    assert difference_spread_seconds(0.0, 0.0, 60.0, 0.2, 0.1) == pytest.approx(12.0)


@given(st.floats(0, 1e3), st.floats(0, 1), st.floats(0, 1e3), st.floats(0, 1), st.floats(0, 0.3))
def test_a_shared_error_never_makes_a_difference_less_certain(one, spread, other, more, within):
    paired = difference_spread_seconds(one, spread, other, more, within)
    apart = ((max(spread, within) * one) ** 2 + (max(more, within) * other) ** 2) ** 0.5
    assert paired <= apart * (1 + 1e-9) + 1e-9


texts = st.text(max_size=8)
positive = st.floats(0.01, 1e6)
optional_positive = positive | st.none()
changes = st.builds(KeyChange, key=texts, before=texts | st.none(), after=texts)
departures = st.builds(
    Departure,
    name=texts,
    measured_seconds=positive,
    normal_seconds=st.tuples(positive, positive),
    beside=st.sampled_from(["forecast", "steps before"]),
)
decisions = st.builds(
    Decision,
    step=steps,
    time_seconds=positive,
    log=texts,
    framework=texts,
    steps=steps,
    response_tokens=optional_positive,
    measured_seconds=positive,
    forecast_seconds=positive,
    answer=st.sampled_from(["change", "keep", "too late", "restart unknown"]),
    changes=st.lists(changes, max_size=2).map(tuple),
    arguments=st.lists(texts, max_size=2).map(tuple),
    changed_seconds=optional_positive,
    gain=gains | st.none(),
    steps_left=steps,
    restart_seconds=positive | st.none(),
    deadline_step=steps | st.none(),
    departures=st.lists(departures, max_size=1).map(tuple),
    notes=st.lists(texts, max_size=1).map(tuple),
)
outcomes = st.builds(
    Outcome,
    step=steps,
    time_seconds=positive,
    decision_step=steps,
    steps=steps,
    before_seconds=positive,
    after_seconds=positive,
    gain=gains,
    response_tokens=st.tuples(optional_positive, optional_positive),
)


@given(st.lists(decisions | outcomes, max_size=3), st.integers(0, 60))
def test_a_ledger_read_back_is_what_was_written_a_torn_last_line_left_out(
    tmp_path_factory, lines, cut
):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    for each in lines:
        write_line(path, each)
    wanted = tuple(dict.fromkeys(lines))
    assert read_ledger(path) == wanted
    if wanted:
        torn = text_of(wanted[0])[: cut + 1]
        path.write_text(path.read_text() + torn)
        assert read_ledger(path) == wanted
        write_line(path, wanted[0])
        write_line(path, wanted[-1])
        assert read_ledger(path) == wanted


def test_a_line_of_another_release_or_kind_is_named(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for text, words in (
        ('{"version": 2, "kind": "decision"}\n', "version"),
        ('{"version": 1, "kind": "wish"}\n', "kind"),
        ("step 4\n", "no JSON"),
    ):
        path.write_text(text)
        with pytest.raises(FileError, match=words):
            read_ledger(path)


def test_steps_are_those_since_the_run_last_started(log):
    assert followed_text(log, "nothing yet\n") is None
    found = followed_text(log, log_of(count=5) + line_of(4, 2.0) + line_of(5) + line_of(6))
    assert found.numbers == (4, 5, 6)
    assert found.begins
    assert found.before_seconds == pytest.approx(sum(NOISE[:5]) * STEP)
    assert found.start_up_seconds() is None  # too few steps to tell it from the others
    assert found.after(4).numbers == (5, 6)
    assert found.after(4).time_seconds == found.time_seconds


def followed_text(log, text, **options):
    log.write_text(text)
    return followed(log, **options)


def test_a_line_that_is_still_written_is_no_step(log):
    whole, torn = log_of(count=3), line_of(4)[:-20]
    assert followed_text(log, whole + torn, grows=True).numbers == (1, 2, 3)
    assert followed_text(log, whole + line_of(4), grows=True).numbers == (1, 2, 3, 4)
    row = {"timing_s/step": 4.0, "timing_s/gen": 3.0}
    lines = "\n".join(json.dumps({"step": at, "data": row}) for at in (1, 2, 3))
    assert followed_text(log, lines + "}", grows=True).numbers == (1, 2)


def test_a_step_of_several_lines_counts_once_another_follows(log):
    row = "perf {0}: {{'perf/step_time': 9.0, 'perf/actor_train_time': 4.0}}\n"
    text = "".join(row.format(at) for at in (0, 1, 2))
    found = followed_text(log, text, grows=True)
    assert (found.numbers, found.held_back) == ((0, 1), 1)
    assert followed_text(log, text).numbers == (0, 1, 2)


def test_the_first_step_of_a_start_says_what_a_start_costs_at_least(log):
    first = line_of(1, gen=30.0)
    assert followed_text(log, first + log_of(2, 5)).start_up_seconds() == pytest.approx(30.0)
    later = line_of(41, gen=30.0)
    assert followed_text(log, later + log_of(42, 5)).start_up_seconds() is None
    assert followed_text(log, log_of(count=6, gen=1.0)).start_up_seconds() is None


def test_medians_are_robust_and_of_the_newest_steps(log):
    text = log_of(count=4, gen=8.0) + line_of(5, 9.0) + log_of(6, 5)
    found = followed_text(log, text)
    assert found.medians(6, 1).stage_seconds["generation"] == pytest.approx(4.5, rel=0.02)
    assert found.medians(20, 1).steps == 9
    assert found.medians(20, 8) is None
    assert spread_of([10.0, 10.0, 10.0]) == pytest.approx((9.4, 10.6))
    assert spread_of([9.0, 10.0, 11.0, 10.0]) == pytest.approx((7.7761, 12.2239))


def test_a_stage_that_leaves_the_spread_of_the_steps_before_is_named(log):
    steady = followed_text(log, log_of())
    assert unlike_before(*newest_apart(steady, 20, 1)) == ()
    slower = followed_text(log, log_of(count=9) + log_of(10, 3, update_actor=1.5))
    found = unlike_before(*newest_apart(slower, 20, 1))
    assert [each.name for each in found] == ["update_actor", "step"]
    assert found[0].measured_seconds == pytest.approx(1.65, rel=0.02)
    assert newest_apart(followed_text(log, log_of(count=6)), 20, 1) is None


def test_a_log_is_looked_at_only_when_it_has_changed(log):
    waits = []

    def wait():
        waits.append(1)
        if len(waits) == 2:
            log.write_text("a\n")
        if len(waits) == 5:
            log.write_text("a\nb\n")

    looks = changes_of(log, wait)
    next(looks)
    assert len(waits) == 2
    next(looks)
    assert len(waits) == 5


@pytest.fixture(scope="module")
def advisor():
    return Advisor.of("verl", VERL, OPTIONS, FollowOptions(restart_seconds=60.0))


@pytest.fixture(scope="module")
def decided(advisor, tmp_path_factory):
    """Return a decision on a small recorded log, whose generation runs one sequence at a time."""
    path = tmp_path_factory.mktemp("log") / "train.log"
    path.write_text(log_of(count=6))
    return advisor.decide(followed(path), "train.log")


def test_agents_are_advised_and_watched_at_the_lengths_that_the_model_wrote(log):
    # Three turns with two observations of 20 tokens between them: of 128 tokens that the log counts the model wrote 88.
    agents = replace(
        OPTIONS,
        environments=GivenEnvironments(turns=3.0, observation_tokens=20.0, tool_seconds=0.1),
    )
    log.write_text(log_of(count=6))
    advisor = Advisor.of("verl", VERL, agents, FollowOptions(restart_seconds=60.0))
    now = advisor.current(followed(log).medians(20, 1), "train.log")
    watched = Watch.of_configuration("verl", VERL, agents).ran_at(followed(log).medians(20, 1))
    for plan in (now.plan, watched.plan):
        work = plan.job.workload
        assert work.mean_observations_tokens == 40
        assert mean_length(work.response_tokens) == pytest.approx(88, rel=0.005)


def test_the_key_that_holds_generation_back_is_named_with_its_gain_and_deadline(decided):
    assert decided.answer == "change"
    named = {each.key: each for each in decided.changes}
    assert named[RUNNING].before == "1"
    assert int(named[RUNNING].after) > 1
    assert f"{RUNNING}={named[RUNNING].after}" in decided.arguments
    assert 0 < decided.gain.p10_seconds < decided.gain.p50_seconds < decided.measured_seconds
    assert (decided.step, decided.steps_left, decided.steps) == (6, 94, 5)
    assert decided.measured_seconds == pytest.approx(STEP)
    assert decided.deadline_step == deadline_step(decided.gain, 60.0, 100)
    assert decided.departures == ()
    assert not any("figures in seconds" in note or "reads as" in note for note in decided.notes)
    assert decided.time_seconds == pytest.approx(sum(NOISE[:6]) * STEP)
    first, second, *_ = advice_lines(decided)
    assert first.startswith("step 6, 94 left: change: it would gain ")
    assert second.startswith("the last 5 steps took 5.30 s each, 128 response tokens on average")


def test_what_came_of_a_change_is_told_once_the_run_has_it(decided, log, tmp_path):
    changed = Advisor.of("verl", (*VERL, *decided.arguments), OPTIONS, FollowOptions())
    assert changed.has_changed(decided)
    text = log_of(count=6) + "".join(line_of(at, gen=-3.0) for at in range(7, 12))
    found = changed.outcome(decided, followed_text(log, text), "train.log")
    assert (found.decision_step, found.step, found.steps) == (6, 11, 4)
    assert found.gained_seconds == pytest.approx(3.0)
    assert changed.outcome(decided, followed_text(log, log_of()), "other.log").steps == 11
    ledger = tmp_path / "ledger.jsonl"
    write_line(ledger, decided)
    assert open_decisions(read_ledger(ledger)) == (decided,)
    write_line(ledger, found)
    assert open_decisions(read_ledger(ledger)) == ()
    words = advice_lines(found)[0]
    assert words.startswith(
        "outcome of the change after step 6: steps take 2.30 s in place of 5.30 s"
    )


def test_without_the_change_there_is_no_outcome(advisor, decided, log):
    assert not advisor.has_changed(decided)
    assert advisor.outcome(decided, followed_text(log, log_of(count=20)), "train.log") is None


def test_what_lacks_is_asked_for(log, advisor):
    bare = [word for word in VERL if "total_training_steps" not in word]
    with pytest.raises(FileError, match="--steps: is missing"):
        Advisor.of("verl", bare, OPTIONS, FollowOptions())
    with pytest.raises(FileError, match="holds 3 steps since the run started"):
        advisor.decide(followed_text(log, log_of(count=3)), "train.log")


def test_no_advice_is_of_other_weights_or_limits(log):
    """A search knows weights of one shape by one name, and lengths as a log has them: both are written by an export."""
    words = [each.replace("Qwen2.5-0.5B", "Qwen2.5-0.5B-Instruct") for each in VERL]
    advisor = Advisor.of("verl", words, OPTIONS, FollowOptions(restart_seconds=60.0))
    decision = advisor.decide(followed_text(log, log_of(count=6)), "train.log")
    assert decision.answer == "change"
    keys = {each.key for each in decision.changes}
    assert RUNNING in keys
    assert not keys & {
        "actor_rollout_ref.model.path", "data.max_prompt_length", "data.max_response_length"
    }  # fmt: skip
    now = advisor.current(followed(log).medians(20, 1), "train.log")
    assert keeps_work(((RUNNING, 64),), now.typed)
    for other in (
        ("actor_rollout_ref.model.path", "Qwen/Qwen2.5-0.5B"),
        ("data.max_response_length", 200),
        ("data.max_prompt_length", 100),
        ("actor_rollout_ref.rollout.n", 4),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", 4),
        ("trainer.total_training_steps", 7),
    ):
        assert not keeps_work(((RUNNING, 64), other), now.typed)


def test_the_engine_of_a_plan_that_was_found_is_tried_alone_where_its_pools_are_as_they_are(
    log, advisor
):
    steps = followed_text(log, log_of(count=6)).medians(20, 1)
    now = advisor.current(steps, "train.log").plan
    generate = now.tasks["actor.generate"]
    other = replace(now, pools=tuple(replace(each, name="other") for each in now.pools))
    layouts = {name: replace(each, pool="other") for name, each in now.tasks.items()}
    layouts["actor.generate"] = replace(generate, pool="other", max_running=7)
    found = replace(other, tasks=FrozenDict(layouts))
    (tried,) = engine_alone(now, found)
    assert tried == now.with_layout("actor.generate", replace(generate, max_running=7))
    more = tuple(replace(each, gpus=2 * each.gpus) for each in found.pools)
    assert not list(engine_alone(now, replace(found, pools=more)))


@pytest.mark.full
def test_a_search_keeps_what_a_script_says_of_its_frameworks_own_layers(tmp_path):
    """Layers that compute all of a gated delta net on each rank (`--spec`), which no key of an export says."""
    script = ROOT / "benchmarks" / "logged" / "slime-27b-eagle.sh"
    log = tmp_path / "train.log"
    steps = (
        f"perf {step}: {{'perf/rollout_time': 390.0, 'perf/actor_train_time': 498.0, 'perf/step_time': 943.0}}\n"
        for step in range(6)
    )
    log.write_text("".join(steps))
    options = ImportOptions(gpu="h20", mean_prompt=1330, mean_response=10205, environment={})
    follow = FollowOptions(restart_seconds=60.0, all_steps=300, search_seconds=5.0)
    decision = Advisor.of("slime", [str(script)], options, follow).decide(
        followed(log), "train.log"
    )
    assert not [each for each in decision.notes if "no plan" in each]


@pytest.mark.parametrize(("behind", "told"), [("", True), (' "$@"', False)])
def test_a_script_that_hands_no_words_on_has_its_keys_changed_in_it(log, tmp_path, behind, told):
    script = tmp_path / "run.sh"
    script.write_text(f"python3 {' '.join(VERL)}{behind}\n")
    advisor = Advisor.of("verl", [str(script)], OPTIONS, FollowOptions(restart_seconds=60.0))
    decision = advisor.decide(followed_text(log, log_of(count=6)), "train.log")
    assert decision.answer == "change"
    assert (IN_PLACE in decision.notes) == told


@pytest.mark.parametrize("lengths", [{"response": 300.0}, {"prompt": 200.0}])
def test_a_log_of_longer_lengths_than_its_configuration_allows_is_refused_as_one_of_another_run(
    log, advisor, lengths
):
    """The configuration has prompts up to 128 tokens and responses up to 256; nobody gave an option that could be wrong."""
    text = log_of(count=6, response=lengths.get("response", 128.0))
    if "prompt" in lengths:
        text = text.replace("prompt_length/mean:64", f"prompt_length/mean:{lengths['prompt']:.0f}")
    with pytest.raises(FileError, match=r"the log.*longer .* is it the log of this configuration"):
        advisor.decide(followed_text(log, text), "train.log")


def test_a_log_whose_seconds_no_site_has_is_doubted(log, advisor):
    """Milliseconds for seconds."""
    log.write_text("".join(line_of(at, 1000.0) for at in range(1, 7)))
    found = advisor.decide(followed(log), "train.log")
    assert any("are its figures in seconds?" in note for note in found.notes)


def test_a_log_of_another_framework_is_doubted(log, advisor):
    rows = (
        {"timing/train/total_step_time": 5.3, "train/mean_gen_tokens_per_sample": 128.0}
        for _ in range(6)
    )
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = advisor.decide(followed(log), "train.log")
    words = "the log reads as one of nemo-rl, and the configuration is of verl"
    assert any(words in note for note in found.notes)
    watch = Watch.of_configuration("verl", VERL, OPTIONS)
    assert words in watch.doubt(followed(log))


def test_behind_the_last_step_nothing_is_left_to_gain(log, advisor):
    decision = advisor.decide(followed_text(log, log_of(first=97, count=4)), "train.log")
    assert (decision.answer, decision.steps_left) == ("too late", 0)
    assert answer_words(decision).startswith("too late: no step is left; a change would gain")


def test_a_run_that_was_started_again_between_two_looks_does_not_go_on(log):
    """However many steps the new start has by then, in the same file or in a new one."""
    first = followed_text(log, log_of(count=6))
    assert followed_text(log, log_of(count=9)).goes_on(first)
    assert not followed_text(log, log_of(count=6) + log_of(first=5, count=9)).goes_on(first)
    assert not followed_text(log, log_of(first=7, count=9)).goes_on(first)
    assert not followed_text(log, log_of(count=5)).goes_on(first)


def test_decisions_are_due_at_once_and_then_at_steady_numbers_of_steps(log, advisor):
    found = followed_text(log, log_of())
    assert advisor.due(found, None, 5) == 12
    assert advisor.due(found, 12, 5) is None
    assert advisor.due(found, 9, 5) is None
    assert advisor.due(found, 2, 5) == 12
    assert advisor.due(found, 4, 5) == 9
    assert advisor.due(found.until(3), None, 5) is None
    assert Path(advisor.words[0]).name == "-m"


def test_steps_are_left_as_the_log_counts_them(log):
    advisors = [Advisor.of("verl", VERL, OPTIONS, FollowOptions(**each)) for each in (
        {"all_steps": 40}, {"all_steps": 40}, {"steps_left": 7})]  # fmt: skip
    firsts = (1, 0, 30)
    ends = [
        advisor.ends_at(followed_text(log, log_of(first, 4)))
        for advisor, first in zip(advisors, firsts, strict=True)
    ]
    assert ends == [40, 39, 40]


@pytest.mark.full
def test_a_step_beyond_its_forecast_is_named_with_its_stage(log, advisor):
    text = log_of(count=9) + log_of(10, 3, gen=20.0)
    found = list(advisor.departures(followed_text(log, text), "train.log"))
    assert [(each.name, each.beside) for each in found[-2:]] == [
        ("step", "steps before"),
        ("step", "forecast"),
    ]
    assert found[-1].stage == "generation"
    longer = log_of(count=9) + log_of(10, 3, gen=4.5, response=256.0)
    beside = [each.beside for each in advisor.departures(followed_text(log, longer), "train.log")]
    assert beside == ["steps before", "steps before"]
