"""A run that moves where it pays: what may follow what, ranges, decisions at their bounds, outcomes, and a search beside it."""

import os
import subprocess
import sys
from collections import deque
from dataclasses import replace

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.files.decoding import read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_yaml
from rlplan.job import NodeGroup
from rlplan.plan import Plan
from rlplan.planner.adapting.adapter import AdaptOptions, MoveAdapter
from rlplan.planner.adapting.background import NICENESS, AtOnce, Background
from rlplan.planner.adapting.proposing import (
    Proposal,
    Proposals,
    Request,
    in_layout_of,
    may_follow,
    most_staleness,
    plan_changes,
    proposals,
    same_layout,
)
from rlplan.planner.adapting.window import Window, changes_of, departures_of
from rlplan.planner.measured.ledger import read_ledger
from rlplan.profiles.facts import load_facts
from rlplan.profiles.jobs.resolve import load_job
from rlplan.results.advice import Decision, DoneIteration, Gain, NoSearch, Outcome
from rlplan.simulator.simulate import simulate
from rlplan.trace import IterationSpan
from tests.executor.plans import make_job, make_plan
from tests.house.tree import ROOT

ROLES = ("actor", "reference")
# An iteration by the plan before, and what a move costs.
SECONDS, START = 10.0, 30.0


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Return the resolved job of a tiny model on two cores, whose weights may be an update old."""
    file = tmp_path_factory.mktemp("job") / "job.yaml"
    given_job = make_job("grpo", samples_per_prompt=2)
    group = NodeGroup(gpu="cpu", gpus_per_node=2, cpu_cores=2)
    rewards = replace(given_job.rewards, function_seconds_per_sample=1e-4)
    specs = replace(given_job.specs, staleness=1)
    write_yaml(file, replace(given_job, cluster=(group,), rewards=rewards, specs=specs))
    return load_job(file)


def with_engines(plan):
    engines = {"actor.generate": "torch-static", "rule.compute_reward": "python"}
    tasks = {
        name: replace(layout, engine=engines.get(name, "torch-tp-dp"))
        for name, layout in plan.tasks.items()
    }
    return replace(plan, tasks=FrozenDict(tasks))


@pytest.fixture(scope="module")
def together(job):
    return with_engines(make_plan(job, {"p0": (2, ROLES)}))


@pytest.fixture(scope="module")
def apart(job):
    pools = {"p0": (1, ROLES), "generator": (1, ("actor",))}
    plan = with_engines(make_plan(job, pools, transition="two-copies"))
    return replace(plan, mode="one-step-off", staleness=1)


@pytest.fixture(scope="module")
def facts(job):
    return load_facts(job)


def done(plan, number, seconds=SECONDS, *, iterations=100, tokens=5.0, spans=(), **more):
    metrics = {"seconds": seconds, "response_tokens": tokens, "stage_seconds/training": seconds}
    return DoneIteration(
        plan=plan,
        iterations=iterations,
        span=IterationSpan(iteration=number, start_seconds=number, end_seconds=number + seconds),
        spans=spans,
        metrics=metrics,
        **more,
    )


class Found:
    """Answer each request with what is given, and remember what was asked."""

    def __init__(self, *proposed):
        self.asked, self._proposed, self._open = [], deque(proposed), None

    def ask(self, request):
        self.asked.append(request)
        plans = (self._proposed.popleft(),) if self._proposed else ()
        self._open = Proposals(request=request, forecast_seconds=SECONDS, plans=plans)

    def answer(self):
        found, self._open = self._open, None
        return found


def proposal(plan, low, *, width=1.0):
    gain = Gain(p10_seconds=low, p50_seconds=low + width, p90_seconds=low + 2 * width)
    return Proposal(plan=plan, seconds=SECONDS - low - width, gain=gain, gain_left=gain)


def adapter_of(facts, tmp_path, searching, refuses=lambda _: "", **options):
    return MoveAdapter(
        facts,
        tmp_path / "adapting.jsonl",
        AdaptOptions(**options),
        searching,
        refuses,
        lambda line: line.kind,
    )


def ledger_of(folder, *, held=False):
    """Return the lines of a ledger: those that say why nothing is searched, or the others."""
    lines = read_ledger(folder / "adapting.jsonl")
    return [each for each in lines if isinstance(each, NoSearch) == held]


def follow(adapter, plan, numbers, seconds=SECONDS, **more):
    """Let an adapter see iterations of a plan until one moves; return the number and the answer."""
    for number in numbers:
        answer = adapter.after(done(plan, number, seconds, **more))
        if answer.plan is not None:
            return number, answer
    return None


def test_only_plans_that_learn_the_same_from_every_prompt_once_may_follow(together, apart):
    endless = replace(apart, mode="async", staleness=1)
    streamed = replace(apart, mode="streaming", staleness=0)
    assert most_staleness(together) == 1
    assert may_follow(apart, together, 1)
    assert not may_follow(apart, together, 0)
    assert may_follow(endless, together, 1)
    assert not may_follow(together, endless, 1)
    assert may_follow(together, streamed, 0)
    dropping = replace(together.job, workload=replace(together.job.workload, over_sampling=1.5))
    short, streams = replace(together, job=dropping), replace(streamed, job=dropping)
    assert not may_follow(streams, short, 1)
    other = replace(apart, job=replace(apart.job, seed=apart.job.seed + 1))
    assert not may_follow(other, together, 1)


def test_a_layout_is_taken_and_the_job_stays(together, apart):
    longer = replace(apart.job, workload=replace(apart.job.workload, response_tokens=9))
    moved = in_layout_of(together, replace(apart, job=longer))
    assert same_layout(moved, apart)
    assert moved.job == together.job
    assert in_layout_of(moved, together) == replace(together, made_by=moved.made_by)
    changes = {each.key: (each.before, each.after) for each in plan_changes(together, apart)}
    assert changes["mode"] == ("sync", "one-step-off")
    assert changes["tasks.actor.update.dp"] == ("2", "1")
    assert changes["pools.generator"] == (None, "1 x cpu: generation")
    assert plan_changes(together, together) == ()


# What counts as a change in these tests.
LEAST = 0.06


def test_a_window_has_changed_where_lengths_grow_and_not_where_they_waver(together):
    steady, window = Window(20, 1), Window(20, 1)
    for number in range(30):
        steady.note(done(together, number, SECONDS * (1 + 0.01 * (-1) ** number)))
        window.note(done(together, number, 15.0 if number == 0 else SECONDS, tokens=5.0 + number))
        if number == 5:
            early, levels = window.levels(10), steady.levels(10)
    newest = window.levels(10)
    assert changes_of(levels, steady.levels(10), 0.0) == {}
    assert [*changes_of(early, newest, LEAST)] == ["response_tokens"]
    assert (
        departures_of(early, newest, LEAST) == ()
    )  # what grew are lengths, and no stage's seconds
    assert Window(20, 1).first_took_longer_seconds == 0
    assert window.first_took_longer_seconds == 5.0
    assert window.measured().warmup_iterations == 24  # those within the spread of the last three
    window.clear()
    assert not window.is_enough


def test_a_ledger_is_of_one_run_and_is_kept_until_its_next_one_begins(together, facts, tmp_path):
    ledger = tmp_path / "adapting.jsonl"
    ledger.write_text("{}\n")
    goes_on, anew = (adapter_of(facts, tmp_path, Found()) for _ in range(2))
    goes_on.begun(together, 7, 1.0)
    assert ledger.exists()
    anew.begun(together, 0, 1.0)
    assert not ledger.exists()
    ledger.write_text("{}\n")
    anew.begun(together, 0, 1.0)  # with new workers
    assert ledger.exists()


def test_a_run_goes_on_where_its_ledger_cannot_be_written(together, apart, facts, tmp_path):
    (tmp_path / "adapting.jsonl").write_text("no ledger\n")
    adapter = adapter_of(facts, tmp_path, Found(proposal(apart, 5.0)))
    adapter.begun(together, 1, 1.0)
    number, answer = follow(adapter, together, range(1, 12))
    assert same_layout(answer.plan, apart)
    assert any("not written to the ledger" in each for each in answer.said), number


# Iterations 0 to 3 are the warm-up and three that count: what is asked then is decided on behind the fifth, with 95 left.
DECIDED, LEFT = 4, 95


@pytest.mark.parametrize(
    ("low", "moves"),
    [(START / LEFT * 1.01, True), (START / LEFT * 0.99, False), (-0.1, False)],
)
def test_a_run_moves_where_the_low_end_over_what_is_left_repays_it(
    facts, together, apart, tmp_path, low, moves
):
    searching = Found(proposal(apart, low))
    adapter = adapter_of(facts, tmp_path, searching)
    adapter.begun(together, 0, START)
    found = follow(adapter, together, range(DECIDED + 1))
    (line,) = ledger_of(tmp_path)
    assert (line.restart_seconds, line.steps_left) == (START, LEFT)
    assert line.answer == ("change" if moves else "too late" if low > 0 else "keep")
    if not moves:
        assert found is None
        return
    number, answer = found
    assert (number, answer.plan, answer.said) == (DECIDED, apart, ("decision",))


def test_a_checkpoint_and_a_slow_first_iteration_are_part_of_the_cost(
    facts, together, apart, tmp_path
):
    adapter = adapter_of(facts, tmp_path, Found(proposal(apart, 0.1)))
    adapter.begun(together, 0, START)
    adapter.after(done(together, 0, SECONDS + 7.0, checkpoint_seconds=2.0))
    follow(adapter, together, range(1, DECIDED + 1))
    assert ledger_of(tmp_path)[0].restart_seconds == START + 7.0 + 2.0


def test_a_dry_run_says_what_it_would_do_once(facts, together, apart, tmp_path):
    searching = Found(proposal(apart, 5.0), proposal(apart, 5.0))
    adapter = adapter_of(facts, tmp_path, searching, dry_run=True)
    adapter.begun(together, 0, START)
    assert follow(adapter, together, range(50)) is None
    (line,) = ledger_of(tmp_path)
    assert (line.answer, line.notes[-1]) == ("change", "dry run: nothing is moved")


def test_where_nothing_pays_one_search_is_asked_for_and_none_where_too_little_is_left(
    facts, together, tmp_path
):
    steady, late = Found(), Found()
    adapter = adapter_of(facts, tmp_path, steady)
    adapter.begun(together, 0, START)
    assert follow(adapter, together, range(99)) is None
    assert len(steady.asked) == 1
    adapter = adapter_of(facts, tmp_path, late)
    adapter.begun(together, 0, START)
    assert follow(adapter, together, range(90), iterations=5) is None
    assert not late.asked


def test_a_run_searches_again_when_lengths_have_left_their_range(facts, together, tmp_path):
    searching = Found()
    adapter = adapter_of(facts, tmp_path, searching, every=10)
    adapter.begun(together, 0, START)
    for number in range(60):
        adapter.after(done(together, number, tokens=5.0 if number < 30 else 9.0))
    first, second = searching.asked
    assert first.measured.response_tokens == 5.0
    assert second.measured.response_tokens > 5.0


def test_a_decision_says_what_has_left_its_range(facts, together, tmp_path):
    adapter = adapter_of(facts, tmp_path, Found(), every=10)
    adapter.begun(together, 0, START)
    for number in range(40):
        adapter.after(done(together, number, SECONDS if number < 30 else 2 * SECONDS))
    first, second = ledger_of(tmp_path)
    assert first.departures == ()
    assert {each.name for each in second.departures} == {"step", "training"}


def test_a_plan_that_the_executor_refuses_is_named_and_the_next_is_taken(
    facts, together, apart, tmp_path
):
    searching = Found()
    searching.ask = lambda request: setattr(
        searching,
        "_open",
        Proposals(
            request=request,
            forecast_seconds=SECONDS,
            plans=(proposal(replace(apart, mode="streaming"), 6.0), proposal(apart, 5.0)),
        ),
    )
    refuses = {"streaming": "it streams"}
    adapter = adapter_of(facts, tmp_path, searching, lambda plan: refuses.get(plan.mode, ""))
    adapter.begun(together, 0, START)
    _, answer = follow(adapter, together, range(9))
    assert answer.plan == apart
    assert "not carried out here: it streams" in ledger_of(tmp_path)[0].notes


def moved(facts, together, apart, tmp_path, searching):
    """Return an adapter behind a move from `together` to `apart` that is to gain 5 s or more."""
    adapter = adapter_of(facts, tmp_path, searching)
    adapter.begun(together, 0, START)
    number, _ = follow(adapter, together, range(9))
    adapter.begun(apart, number + 1, 20.0)
    return adapter, number + 1


@pytest.mark.parametrize(
    ("after_seconds", "back", "said"),
    [
        (4.0, False, None),
        (8.0, False, "less than its low end, and kept: iterations are 2.00 s shorter"),
        (10.1, False, "less than its low end, and kept: the way back takes 20.00 s"),
        (15.0, True, "taken back: iterations are 5.00 s longer"),
    ],
)
def test_a_move_that_lengthens_iterations_is_taken_back_where_that_repays_the_way_back(
    facts, together, apart, tmp_path, after_seconds, back, said
):
    searching = Found(proposal(apart, 5.0))
    adapter, start = moved(facts, together, apart, tmp_path, searching)
    found = follow(adapter, apart, range(start, start + 8), after_seconds)
    decision, outcome, *barred = ledger_of(tmp_path)
    assert [(each.step, each.reason) for each in barred] == [
        (outcome.step, outcome.notes[-1]) for _ in range(back)
    ]
    assert isinstance(decision, Decision)
    assert isinstance(outcome, Outcome)
    assert (outcome.decision_step, outcome.restart_seconds) == (decision.step, 20.0)
    assert outcome.gained_seconds == pytest.approx(SECONDS - after_seconds)
    assert (found is not None) == back
    assert outcome.as_forecast == (said is None)
    if said is not None:
        assert outcome.notes[-1].startswith(said)
    if not back:
        return
    number, answer = found
    assert answer.plan == together
    assert answer.reason == outcome.notes[-1]
    # Back there, the plan is not tried again, and the way back is judged by nobody.
    adapter.begun(together, number + 1, 20.0)
    for step in range(number + 1, number + 40):
        grown = 5.0 if step < number + 20 else 9.0
        assert adapter.after(done(together, step, tokens=grown)).plan is None
    assert searching.asked[-1].barred == (apart,)
    kinds = [each.kind for each in ledger_of(tmp_path)]
    assert kinds.count("outcome") == 1


class Praises:
    """Propose, of two plans, always the one that does not run, for a gain."""

    def __init__(self, plans, gain_seconds):
        self._plans, self._gain_seconds, self._open = plans, gain_seconds, None

    def ask(self, request):
        (other,) = (each for each in self._plans if each != request.measured.plan)
        low = self._gain_seconds - 1.0
        self._open = Proposals(
            request=request, forecast_seconds=SECONDS, plans=(proposal(other, low),)
        )

    def answer(self):
        found, self._open = self._open, None
        return found


@settings(max_examples=10, deadline=None)
@given(
    taken=st.tuples(st.floats(8.0, 12.0), st.floats(8.0, 12.0)),
    gain_seconds=st.floats(2.0, 6.0),
)
def test_a_run_does_not_move_to_and_fro_whatever_is_forecast_of_plans_that_it_knows(
    facts, together, apart, tmp_path_factory, taken, gain_seconds
):
    """Each plan is forecast to be faster than the other; what they take is measured, and grows with lengths that change."""
    folder = tmp_path_factory.mktemp("praised")
    adapter = adapter_of(facts, folder, Praises((together, apart), gain_seconds))
    seconds = dict(zip((together, apart), taken, strict=True))
    plan, moves = together, []
    adapter.begun(plan, 0, START)
    for number in range(200):
        tokens = 5.0 if number < 100 else 9.0
        answer = adapter.after(done(plan, number, seconds[plan], iterations=1000, tokens=tokens))
        if answer.plan is not None:
            plan = answer.plan
            moves.append(number)
            adapter.begun(plan, number + 1, START)
    assert len(moves) <= 2
    if len(moves) == 2:  # back, to the faster one
        assert seconds[together] < seconds[apart]


def test_a_plan_that_failed_is_proposed_neither_again_nor_after_a_resume(
    facts, together, apart, tmp_path
):
    adapter = adapter_of(facts, tmp_path, Found(proposal(apart, 5.0), proposal(apart, 5.0)))
    adapter.begun(together, 0, START)
    number, answer = follow(adapter, together, range(9))
    assert answer.most_seconds == answer_limit(tmp_path)
    assert adapter.failed(apart, number + 1, "worker 1 ended") == ("barred",)
    _, barred = ledger_of(tmp_path)
    assert (barred.step, barred.reason) == (number, "it did no iteration: worker 1 ended")
    assert read_yaml(Plan, tmp_path / barred.plan) == apart
    adapter.begun(together, number + 1, START)
    assert follow(adapter, together, range(number + 1, 20)) is None
    # Whoever resumes the run knows it from the ledger.
    searching = Found(proposal(apart, 5.0))
    resumed = adapter_of(facts, tmp_path, searching)
    resumed.begun(together, 10, START)
    assert follow(resumed, together, range(10, 20)) is None
    assert searching.asked[0].barred == (apart,)
    # A new run in the same folder does not.
    anew = adapter_of(facts, tmp_path, Found(proposal(apart, 5.0)))
    anew.begun(together, 0, START)
    assert follow(anew, together, range(9))[1].plan == apart


def test_a_plan_that_lacked_nodes_is_proposed_again_after_a_resume(
    facts, together, apart, tmp_path
):
    adapter = adapter_of(facts, tmp_path, Found(proposal(apart, 5.0), proposal(apart, 5.0)))
    adapter.begun(together, 0, START)
    number, _ = follow(adapter, together, range(9))
    (words,) = adapter.failed(apart, number + 1, "1 node is missing", for_good=False)
    assert "not that plan's doing" in words
    adapter.begun(together, number + 1, START)
    assert follow(adapter, together, range(number + 1, 20)) is None
    assert not list(tmp_path.glob("plan-barred-*"))
    resumed = adapter_of(facts, tmp_path, Found(proposal(apart, 5.0)))
    resumed.begun(together, 10, START)
    assert follow(resumed, together, range(10, 20))[1].plan == apart


def answer_limit(folder):
    """Return the most that the decision of a ledger says its move may gain."""
    (decision,) = ledger_of(folder)
    return decision.gain.p90_seconds * decision.steps_left


def test_a_ledger_whose_plans_are_gone_is_said_and_does_not_end_the_run(
    facts, together, apart, tmp_path
):
    first = adapter_of(facts, tmp_path, Found())
    first.failed(apart, 4, "worker 1 ended")
    (tmp_path / "plan-barred-000001.yaml").unlink()
    resumed = adapter_of(facts, tmp_path, Found())
    resumed.begun(together, 10, START)
    said = [resumed.after(done(together, number)).said for number in range(10, 16)]
    assert any("is not known" in words for each in said for words in each)


def test_a_plan_that_cannot_be_read_does_not_take_others_nor_the_place_of_a_new_one(
    facts, together, apart, tmp_path
):
    first = adapter_of(facts, tmp_path, Found())
    first.failed(apart, 4, "worker 1 ended")
    first.failed(together, 4, "worker 1 ended")
    (tmp_path / "plan-barred-000001.yaml").write_text("pools: [")
    resumed = adapter_of(facts, tmp_path, Found())
    assert resumed.barred == [together]
    resumed.failed(apart, 5, "worker 1 ended")
    assert read_yaml(Plan, tmp_path / "plan-barred-000002.yaml") == together
    assert read_yaml(Plan, tmp_path / "plan-barred-000003.yaml") == apart
    adapter_of(facts, tmp_path, Found()).begun(together, 0, START)
    assert not list(tmp_path.glob("plan-barred-*"))


def test_a_move_is_judged_at_the_lengths_that_it_had(facts, together, apart, tmp_path):
    adapter, start = moved(facts, together, apart, tmp_path, Found(proposal(apart, 1.0)))
    follow(adapter, apart, range(start, start + 5), 12.0, tokens=10.0)
    outcome = ledger_of(tmp_path)[-1]
    longer = replace(together.job, workload=replace(together.job.workload, response_tokens=10))
    at_both = [
        simulate(plan, facts).iteration_seconds
        for plan in (together, replace(together, job=longer))
    ]
    assert outcome.before_seconds == pytest.approx(SECONDS * at_both[1] / at_both[0])
    assert outcome.response_tokens == (5.0, 10.0)


def test_a_move_that_was_lost_on_the_way_is_not_judged(facts, together, apart, tmp_path):
    adapter = adapter_of(facts, tmp_path, Found(proposal(apart, 5.0)))
    adapter.begun(together, 0, START)
    number, _ = follow(adapter, together, range(9))
    adapter.begun(together, number + 1, START)  # workers were lost: it goes on as it was
    assert follow(adapter, together, range(number + 1, 20)) is None
    assert {each.kind for each in ledger_of(tmp_path)} == {"decision"}


def test_a_resumed_run_says_which_move_it_cannot_judge(facts, together, apart, tmp_path):
    moved(facts, together, apart, tmp_path, Found(proposal(apart, 5.0)))
    resumed = adapter_of(facts, tmp_path, Found())
    resumed.begun(apart, 10, START)
    (said,) = resumed.after(done(apart, 10)).said
    assert "the move that was decided after step " in said
    assert "is not judged" in said


def test_a_resumed_run_says_nothing_of_moves_that_were_judged_or_not_made(
    facts, together, apart, tmp_path
):
    adapter, number = moved(facts, together, apart, tmp_path, Found(proposal(apart, 5.0)))
    follow(adapter, apart, range(number, number + 9), 4.0)
    resumed = adapter_of(facts, tmp_path, Found())
    resumed.begun(apart, 20, START)
    assert resumed.after(done(apart, 20)).said == ()
    dry = adapter_of(facts, tmp_path, Found(proposal(apart, 5.0)), dry_run=True)
    dry.begun(together, 0, START)
    assert follow(dry, together, range(9)) is None
    again = adapter_of(facts, tmp_path, Found(), dry_run=True)
    again.begun(together, 9, START)
    assert again.after(done(together, 9)).said == ()


def measured_run(plan, facts, times=2.0):
    """Return iterations that took so many times their forecast."""
    forecast, window = simulate(plan, facts), Window(20, 1)
    for number in range(5):
        spans = tuple(
            replace(
                each,
                iteration=number,
                start_seconds=times * each.start_seconds,
                end_seconds=times * each.end_seconds,
            )
            for each in forecast.trace.of_iteration(forecast.trace.iterations[-1].iteration)
        )
        seconds = times * forecast.iteration_seconds
        window.note(done(plan, number, seconds, spans=spans))
    return window


@pytest.fixture(scope="module")
def request_of(together, facts):
    window = measured_run(together, facts)
    return Request(
        measured=window.measured(),
        step_seconds=window.step_seconds,
        iterations=100,
        staleness=1,
        # A search that yields to all else is not to be cut short where much else runs.
        search_seconds=600,
    )


@pytest.fixture(scope="module")
def found(request_of, facts):
    return proposals(request_of, facts)


def test_a_search_beside_a_run_finds_what_is_shorter_at_its_own_pace(found, request_of, together):
    best = found.plans[0]
    assert best.plan.mode == "one-step-off"
    assert best.plan.job == together.job
    assert found.site.site == "this run"
    assert best.gain.p50_seconds == pytest.approx(
        (found.forecast_seconds - best.seconds) * request_of.step_seconds / found.forecast_seconds
    )
    lows = [each.gain.p10_seconds for each in found.plans]
    assert lows == sorted(lows, reverse=True)


def test_what_is_barred_and_what_runs_is_not_proposed(found, request_of, together, facts):
    best = found.plans[0].plan
    again = proposals(replace(request_of, barred=(best,), search_seconds=0.5), facts)
    for each in again.plans:
        assert not same_layout(each.plan, best)
        assert not same_layout(each.plan, together)


def test_a_run_that_may_not_learn_from_old_weights_stays_synchronous(request_of, facts):
    strict = proposals(replace(request_of, staleness=0), facts)
    assert {each.plan.mode for each in strict.plans} <= {"sync", "streaming"}
    job = request_of.measured.plan.job
    silent = replace(job, specs=replace(job.specs, staleness=None))
    plan = replace(request_of.measured.plan, job=silent)
    measured = replace(request_of.measured, plan=plan)
    assert most_staleness(plan) == 0
    said = proposals(replace(request_of, measured=measured, staleness=0), facts)
    assert {each.plan.mode for each in said.plans} <= {"sync"}


@pytest.mark.full
def test_the_process_beside_a_run_finds_what_is_found_here(found, request_of, facts):
    here = AtOnce(facts)
    here.ask(request_of)
    assert here.answer().plans == found.plans
    with Background() as there:
        assert there.answer() is None
        there.ask(request_of)
        while (answer := there.answer()) is None:
            pass
        assert answer.plans == found.plans
        there._process.kill()
        there._process.join()
        there.ask(request_of)
        assert there.answer().notes == ("the process that searches has ended",)


@given(
    low=st.floats(-5, 5), cost=st.floats(0, 100), left=st.integers(1, 200), width=st.floats(0, 5)
)
def test_no_run_moves_whose_low_end_does_not_repay_it(
    facts, tmp_path_factory, low, cost, left, width
):
    folder = tmp_path_factory.mktemp("ledger")
    plan = make_plan(make_job("grpo", samples_per_prompt=2), {"p0": (2, ROLES)})
    other = replace(plan, made_by="another", transition="two-copies")
    adapter = adapter_of(facts, folder, Found(proposal(other, low, width=width)))
    adapter.begun(plan, 0, cost)
    answers = follow(adapter, plan, range(DECIDED + 1), iterations=DECIDED + 1 + left)
    if answers is not None:
        assert low * left >= cost * (1 - 1e-9)


@pytest.mark.full
def test_the_process_beside_a_run_yields_and_ends_with_it(tmp_path):
    program = (
        "import os, sys\n"
        "from rlplan.planner.adapting.background import Background\n"
        "if __name__ == '__main__':\n"
        "    with Background() as there:\n"
        "        print(there._process.pid, flush=True)\n"
        "        sys.stdin.readline()\n"
        "        os._exit(1)\n"  # as if killed
    )
    file = tmp_path / "run.py"
    file.write_text(program, encoding="utf-8")
    run = subprocess.Popen(
        [sys.executable, str(file)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    search = psutil.Process(int(run.stdout.readline()))
    while search.nice() != NICENESS or os.getsid(search.pid) != search.pid:
        assert search.is_running()
    run.communicate("\n")
    search.wait(60)
