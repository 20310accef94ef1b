"""Stopping a run before its last iteration: what is typed, when it holds, and runs that stop and go on."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.executor.control.checkpoints import find_checkpoint
from rlplan.executor.control.evaluating import found_numbers
from rlplan.executor.control.evaluations import EVALUATIONS_FILE
from rlplan.executor.control.metrics import MetricsWriter, read_metrics
from rlplan.executor.control.run import Saving
from rlplan.executor.control.stopping import (
    COMPARATORS,
    Condition,
    StopCheck,
    Stopping,
    check_goes_on,
    condition_of,
    duration_seconds,
    rows_before,
    stopping_of,
    stops_at_once,
)
from rlplan.executor.execute import execute
from rlplan.files.decoding import read_json
from rlplan.results.measurement import MeasuredRun
from tests.executor.evaluated import APART, HELD_OUT, evaluations, learnt, plan_of, write_held_out
from tests.executor.plans import ALL_ROLES
from tests.executor.test_checkpoints import assert_same, stored_weights

ROWS = [
    {"iteration": 0, "seconds": 2.0, "learnt_tokens": 40.0, "mean_reward": 0.1},
    {"iteration": 1, "seconds": 3.0, "learnt_tokens": 40.0, "mean_reward": 0.5},
    {"iteration": 2, "seconds": 1.0, "learnt_tokens": 20.0, "mean_reward": 0.3},
]


@pytest.fixture
def folder(tmp_path):
    return write_held_out(tmp_path)


finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.from_regex(r"[a-z][a-z0-9_./@-]{0,20}", fullmatch=True)


@given(names, st.sampled_from(list(COMPARATORS)), finite, st.sampled_from(["", " "]))
def test_a_condition_that_is_typed_is_read_as_it_stands(metric, comparator, bound, space):
    found = condition_of(f"{metric}{space}{comparator}{space}{bound!r}")
    assert found == Condition(metric=metric, comparator=comparator, bound=bound)


@given(finite, finite)
def test_of_a_condition_and_its_opposite_one_holds(value, bound):
    def holds(comparator):
        return Condition(metric="m", comparator=comparator, bound=bound).holds({"m": value})

    assert holds(">=") != holds("<")
    assert holds("<=") != holds(">")


@pytest.mark.parametrize("comparator", COMPARATORS)
def test_no_condition_holds_of_what_is_no_number(comparator):
    condition = Condition(metric="kl", comparator=comparator, bound=0.0)
    assert not condition.holds({"kl": math.nan})
    assert not condition.holds({})


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))
def test_the_units_of_a_duration_add_up(hours, minutes, seconds):
    total = 3600 * hours + 60 * minutes + seconds
    text = f"{hours}h{minutes}m{seconds}s"
    if total:
        assert duration_seconds(text) == total
    else:
        with pytest.raises(FileError, match="--stop-after: is no duration"):
            duration_seconds(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("45m", 2700), ("1.5h", 5400), (" .5m ", 30), ("1h30m", 5400)],
)
def test_durations(text, seconds):
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "1d", "m", "5s3m", "-3s", "1e999h", "h1"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(FileError, match=r"--stop-after: is no duration.*1h30m"):
        duration_seconds(text)


@pytest.mark.parametrize(
    "text", ["mean_reward", "mean_reward=0.9", "mean_reward>=", ">=1", "a>=b", "a>=nan", "a>=inf"]
)
def test_what_is_no_condition_is_refused(text):
    with pytest.raises(FileError, match=r"--stop-when: is no condition.*mean_reward>=0\.9"):
        condition_of(text)


@pytest.mark.parametrize("tokens", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_number_of_tokens_is_refused(tokens):
    with pytest.raises(FileError, match="--stop-tokens: is no number of tokens"):
        stopping_of(tokens=tokens)


def stops_after(stopping, rows=ROWS):
    """Return after how many of some iterations a run stops, and why."""
    check = StopCheck(stopping)
    for done, row in enumerate(rows, 1):
        check.note(row)
        if check.reason:
            return done, check.reason
    return None


def test_the_iteration_at_whose_end_it_holds_is_the_last_one():
    assert stops_after(stopping_of(["mean_reward>=0.5"])) == (
        2,
        "mean_reward is 0.5 (--stop-when 'mean_reward>=0.5')",
    )
    assert stops_after(stopping_of(after="5s")) == (2, "5.00 s of iterations (--stop-after 5.00 s)")
    assert stops_after(stopping_of(tokens=81)) == (
        3,
        "100 tokens learnt from (--stop-tokens 81)",
    )
    assert stops_after(stopping_of(["mean_reward>1"], "1h", 1e6)) is None


@given(
    st.lists(st.tuples(st.floats(0.1, 9), st.integers(1, 99)), min_size=1, max_size=8),
    st.floats(0.1, 40),
    st.floats(1, 400),
)
def test_another_reason_to_stop_never_lets_a_run_go_on_longer(found, seconds, tokens):
    rows = [{"seconds": each, "learnt_tokens": count, "mean_reward": 0.0} for each, count in found]

    def last(stopping):
        stop = stops_after(stopping, rows)
        return len(rows) if stop is None else stop[0]

    by_time, by_tokens = Stopping(after_seconds=seconds), Stopping(tokens=tokens)
    both = replace(by_time, tokens=tokens)
    assert last(both) == min(last(by_time), last(by_tokens))


@given(st.integers(0, 3), st.floats(0.5, 7), st.floats(1, 120))
def test_a_run_that_goes_on_counts_what_is_behind_it(before, seconds, tokens):
    stopping = Stopping(after_seconds=seconds, tokens=tokens)
    whole = stops_after(stopping)
    check = StopCheck(stopping, ROWS[:before])
    stopped = None if not check.reason else (before, check.reason)
    for done, row in enumerate(ROWS[before:], before + 1):
        if stopped is None:
            check.note(row)
            stopped = (done, check.reason) if check.reason else None
    if whole is not None and whole[0] >= before:
        assert stopped == whole


def test_a_metric_that_the_run_does_not_have_is_refused_with_the_nearest_one():
    stopping = stopping_of(["reward_mean>=0.9"])
    with pytest.raises(FileError, match=r"no metric of this run.*'reward_mean'.*'mean_reward'"):
        stopping.check_names({"mean_reward", "kl"})
    check = StopCheck(stopping_of(["rounds>2"]), later=("rounds",))
    check.note(ROWS[0])  # sampled once, so it is not there
    assert not check.reason


def write_rows(folder, rows):
    with MetricsWriter(folder) as writer:
        for row in rows:
            values = {name: value for name, value in row.items() if name != "iteration"}
            writer.write(int(row["iteration"]), values)


def test_metrics_of_the_runs_that_it_went_through_are_joined(tmp_path):
    write_rows(tmp_path / "first", ROWS)
    write_rows(tmp_path / "second", [{**ROWS[1], "seconds": 9.0}])
    stopping = Stopping(after_seconds=100.0)
    found = rows_before([tmp_path / "first", tmp_path / "second"], 2, stopping)
    assert [row["seconds"] for row in found] == [2.0, 9.0]
    assert rows_before([tmp_path / "none"], 3, Stopping()) == []


def test_what_an_evaluation_found_behind_the_last_iteration_stops_a_run_too(tmp_path):
    write_rows(tmp_path, ROWS)
    row = {"iteration": 2, "accuracy": 0.9}
    (tmp_path / EVALUATIONS_FILE).write_text(f"{json.dumps(row)}\n")
    met = stopping_of(["evaluation/accuracy>=0.9"])
    assert stops_at_once(tmp_path, 2, met).startswith("evaluation/accuracy is 0.9")
    assert stops_at_once(tmp_path, 3, met) == stops_at_once(tmp_path, 1, met) == ""


def test_an_evaluation_of_an_iteration_that_was_done_again_stops_nothing(tmp_path):
    """It goes with the metrics beside it, unless another run went on behind them."""
    met, row = stopping_of(["evaluation/accuracy>=0.9"]), {"iteration": 2, "accuracy": 0.9}
    earlier, again, behind = folders = [tmp_path / name for name in ("earlier", "again", "behind")]
    for folder, rows in zip(folders, (ROWS, ROWS, ROWS[2:]), strict=True):
        write_rows(folder, rows)
    (earlier / EVALUATIONS_FILE).write_text(f"{json.dumps(row)}\n")
    assert not StopCheck(met, rows_before([earlier, again], 2, met)).reason
    assert StopCheck(met, rows_before([earlier, behind], 2, met)).reason


def test_what_is_counted_and_not_known_is_said(tmp_path):
    write_rows(tmp_path / "run", ROWS[1:])
    with pytest.raises(FileError, match=r"--stop-tokens.*learnt_tokens of iteration 0"):
        rows_before([tmp_path / "run"], 3, Stopping(tokens=10.0))


def test_a_run_that_would_stop_at_once_does_not_begin(tmp_path):
    write_rows(tmp_path, ROWS)
    met = stopping_of(["mean_reward<0.4"])
    with pytest.raises(FileError, match=r"stops at once, after 3 iterations: mean_reward is 0\.3"):
        check_goes_on(tmp_path / "checkpoints", tmp_path, 3, met)
    check_goes_on(tmp_path / "checkpoints", tmp_path, 2, met)


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("mode", ["sync", "one-step-off", "streaming"])
def test_a_run_that_stops_ends_as_one_that_was_as_long(shared_workers, folder, mode):
    pools = {"p0": (1, ALL_ROLES)} if mode == "sync" else APART
    plan = plan_of(pools, None, mode)
    saving = Saving(every=10, export=folder / "whole-actor")
    execute(plan, folder / "whole", iterations=3, seed=1, folder=folder, saving=saving)
    tokens = sum(row["learnt_tokens"] for row in read_metrics(folder / "whole")[:3])

    saving = replace(saving, export=folder / "actor")
    stopping = stopping_of(tokens=tokens)
    told = []
    run = execute(
        plan, folder / "run", iterations=9, warmup=5, seed=1, folder=folder, saving=saving,
        stopping=stopping, progress=lambda *each: told.append(each),
    )  # fmt: skip
    reason = f"{tokens:,.0f} tokens learnt from (--stop-tokens {tokens:,.0f})"
    assert run.stopped == reason
    assert told[-1] == (3, 9, f"stopped after 3 of 9 iterations: {reason}")
    assert read_json(MeasuredRun, folder / "run" / "measured.json") == run
    # Of iterations that are all warm-up the last one is measured.
    assert run.warmup_iterations == 2
    assert learnt(folder / "run") == learnt(folder / "whole")
    last = (find_checkpoint(folder / name) for name in ("whole", "run"))
    assert_same(*(stored_weights(each) for each in last))
    exported = [
        (folder / name / "model.safetensors").read_bytes() for name in ("whole-actor", "actor")
    ]
    assert exported[0] == exported[1]


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("mode", ["sync", "one-step-off"])
def test_a_run_that_stopped_goes_on_with_other_conditions(shared_workers, folder, mode):
    pools = {"p0": (1, ALL_ROLES)} if mode == "sync" else APART
    plan, saving = plan_of(pools, None, mode), Saving(every=10)
    execute(plan, folder / "whole", iterations=4, seed=1, folder=folder, saving=saving)
    by_time = stopping_of(["response_tokens>0"])
    run = execute(
        plan, folder / "run", iterations=4, seed=1, folder=folder, saving=saving, stopping=by_time
    )
    assert "response_tokens is" in run.stopped
    assert len(read_metrics(folder / "run")) == 1

    again = replace(saving, resume=folder / "run")
    with pytest.raises(FileError, match="stops at once, after 1 iterations"):
        execute(
            plan,
            folder / "run",
            iterations=4,
            seed=1,
            folder=folder,
            saving=again,
            stopping=by_time,
        )
    run = execute(plan, folder / "run", iterations=4, seed=1, folder=folder, saving=again)
    assert not run.stopped
    assert learnt(folder / "run") == learnt(folder / "whole")
    last = (find_checkpoint(folder / name) for name in ("whole", "run"))
    assert_same(*(stored_weights(each) for each in last))


@pytest.mark.ray
def test_an_evaluation_ends_a_run_and_its_actor_is_the_exported_one(
    shared_workers, folder, monkeypatch
):
    accuracies = iter([0.1, 0.2, 0.9])

    def drawn(*arguments):
        return {**found_numbers(*arguments), "accuracy": next(accuracies)}

    monkeypatch.setattr("rlplan.executor.control.evaluating.found_numbers", drawn)
    plan = plan_of({"p0": (1, ALL_ROLES)}, HELD_OUT)
    saving = Saving(export=folder / "actor")
    stopping = stopping_of(["evaluation/accuracy>=0.9"])
    run = execute(
        plan, folder / "run", iterations=9, seed=1, folder=folder, saving=saving, stopping=stopping
    )
    assert run.stopped == "evaluation/accuracy is 0.9 (--stop-when 'evaluation/accuracy>=0.9')"
    assert [row["iteration"] for row in evaluations(folder / "run")] == [0, 2, 4]
    assert len(read_metrics(folder / "run")) == 4
    assert (folder / "actor" / "model.safetensors").exists()


@pytest.mark.ray
def test_the_end_of_a_run_that_stops_is_evaluated(shared_workers, folder):
    plan = plan_of({"p0": (1, ALL_ROLES)}, HELD_OUT)
    stopping = stopping_of(["response_tokens>0"])
    execute(plan, folder / "run", iterations=9, seed=1, folder=folder, stopping=stopping)
    assert [row["iteration"] for row in evaluations(folder / "run")] == [0, 1]


def test_a_condition_on_what_no_run_of_the_plan_has_is_refused_before_it_begins(folder):
    plan = plan_of({"p0": (1, ALL_ROLES)}, None)
    for name in ("evaluation/accuracy", "reward"):
        with pytest.raises(FileError, match=f"no metric of this run has that name.*'{name}'"):
            execute(plan, folder / "run", iterations=2, seed=1, stopping=stopping_of([f"{name}>1"]))
    assert not (folder / "run").exists()
