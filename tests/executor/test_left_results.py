"""A run that is ended behind its last checkpoint, before its results are written: resumed, it writes them and does nothing again."""

import json
from dataclasses import replace

import pytest

from rlplan.errors import FileError
from rlplan.executor.control.checkpoints import find_checkpoint
from rlplan.executor.control.evaluating import Evaluator
from rlplan.executor.control.evaluations import (
    EVALUATIONS_FILE,
    SAMPLES_FILE,
    drop_evaluations,
    read_evaluations,
    read_samples,
)
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.run import Run, Saving
from rlplan.executor.control.stopping import stopping_of
from rlplan.executor.execute import ENDING_FILE, execute
from rlplan.results.stored import MEASURED_FILE, read_run
from rlplan.workload import Evaluation
from tests.cases import first
from tests.executor.evaluated import write_held_out
from tests.executor.plans import make_job, make_plan

ITERATIONS = 3
EVALUATED = Evaluation(prompts_file="held-out.jsonl", before_first=False, correct_from=0.1)
ROLES = ("actor", "reference")


class KilledError(Exception):
    """Stand for a signal that ends the process."""


def kill(*_, **__):
    raise KilledError


def plan_of(mode="sync", evaluation=None):
    job = replace(make_job("grpo", samples_per_prompt=2), evaluation=evaluation)
    if mode == "sync":
        return make_plan(job, {"p0": (1, ROLES)})
    pools = {"p0": (1, ROLES), "generator": (1, ("actor",))}
    plan = make_plan(job, pools, transition="two-copies")
    return replace(plan, mode=mode, staleness=1)


def carried_out(plan, folder, name="out", *, resume=None, stopping=None, **saving):
    return execute(
        plan,
        folder / name,
        iterations=ITERATIONS,
        seed=1,
        warmup=0,
        folder=folder,
        saving=Saving(every=1, resume=resume, **saving),
        stopping=stopping,
    )


@pytest.mark.ray
@pytest.mark.parametrize("stops", first(1, [False, True]))
def test_a_run_that_is_ended_before_its_results_writes_them_when_it_is_resumed(
    shared_workers, ray_slots, tmp_path, monkeypatch, stops
):
    plan, out = plan_of(), tmp_path / "out"
    # Eight prompts with two samples of five tokens: the second iteration brings it beyond the bound.
    stopping = stopping_of(tokens=81.0) if stops else None
    monkeypatch.setattr("rlplan.executor.execute._export", kill)
    with pytest.raises(KilledError):
        carried_out(plan, tmp_path, stopping=stopping)
    assert not (out / MEASURED_FILE).exists()
    monkeypatch.undo()
    rows, state = read_metrics(out), find_checkpoint(out).state
    done = state.iteration
    assert (done < ITERATIONS) == stops
    monkeypatch.setattr(Run, "_attempt", kill)  # no worker starts
    actor = tmp_path / "actor"
    run = carried_out(plan, tmp_path, resume=out, stopping=stopping, export=actor)
    assert run == read_run(out)
    assert [each.iteration for each in run.trace.iterations] == list(range(done))
    assert {span.name for span in run.trace.spans} >= {"actor.generate", "actor.update"}
    assert set(run.memory_peak_bytes) == {pool.name for pool in plan.pools}
    assert len(run.loop_flops_per_second) == 2
    assert bool(run.stopped) == stops
    assert (read_metrics(out), find_checkpoint(out).state) == (rows, state)
    assert (actor / "config.json").exists()
    assert not (out / ENDING_FILE).exists()
    with pytest.raises(FileError, match=r"is done|stops at once"):
        carried_out(plan, tmp_path, resume=out, stopping=stopping)


@pytest.mark.ray
@pytest.mark.parametrize("mode", first(1, ["one-step-off", "sync", "async"]))
def test_an_evaluation_that_was_due_at_the_end_is_made_when_it_is_resumed(
    shared_workers, ray_slots, tmp_path, monkeypatch, mode
):
    plan, out = plan_of(mode, EVALUATED), write_held_out(tmp_path) / "out"
    monkeypatch.setattr(Evaluator, "evaluate", kill)
    with pytest.raises(KilledError):
        carried_out(plan, tmp_path)
    monkeypatch.undo()
    rows = read_metrics(out)
    assert not read_evaluations(out)
    monkeypatch.setattr(Run, "_carry_out_iteration", kill)  # none is done again
    run = carried_out(plan, tmp_path, resume=out)
    monkeypatch.undo()
    assert read_metrics(out) == rows
    assert [each.iteration for each in run.trace.iterations] == list(range(ITERATIONS))
    (found,) = read_evaluations(out)
    assert found["iteration"] == ITERATIONS
    assert len(run.evaluation_seconds) == 1
    if mode != "async":  # whose iterations learn from what has ended first
        carried_out(plan, tmp_path, "undisturbed")
        (expected,) = read_evaluations(tmp_path / "undisturbed")
        assert {**found, "seconds": 0} == {**expected, "seconds": 0}


@pytest.mark.ray
def test_what_another_plan_has_measured_is_not_taken_for_a_runs_results(
    shared_workers, ray_slots, tmp_path, monkeypatch
):
    plan = plan_of()
    monkeypatch.setattr("rlplan.executor.execute._export", kill)
    with pytest.raises(KilledError):
        carried_out(plan, tmp_path)
    monkeypatch.undo()
    update = plan.tasks["actor.update"]
    other = plan.with_layout("actor.update", replace(update, micro_batch=2))
    with pytest.raises(FileError, match="is done"):
        carried_out(other, tmp_path, resume=tmp_path / "out")


@pytest.mark.ray
@pytest.mark.parametrize("score", first(1, [2.0, 0.0]))
def test_an_evaluation_between_is_made_when_it_is_resumed_though_a_batch_is_ahead(
    shared_workers, ray_slots, tmp_path, monkeypatch, score
):
    """It goes on as if nothing had happened, or ends there."""
    plan = plan_of("one-step-off", replace(EVALUATED, every=2, after_last=False))
    out, stopping = write_held_out(tmp_path) / "out", stopping_of([f"evaluation/accuracy>={score}"])
    monkeypatch.setattr(Evaluator, "evaluate", kill)
    with pytest.raises(KilledError):
        carried_out(plan, tmp_path, stopping=stopping)
    monkeypatch.undo()
    assert find_checkpoint(out).state.iteration == 2
    run = carried_out(plan, tmp_path, resume=out, stopping=stopping)
    carried_out(plan, tmp_path, "undisturbed", stopping=stopping)
    assert bool(run.stopped) == (score == 0)
    ways = (out, tmp_path / "undisturbed")
    found, expected = ([{**row, "seconds": 0} for row in read_evaluations(way)] for way in ways)
    assert found == expected
    names = ("mean_reward", "policy_loss", "actor_gradient_norm", "staleness_max")
    learnt, as_usual = (
        [[row[name] for name in names] for row in read_metrics(way)] for way in ways
    )
    assert learnt == as_usual


@pytest.mark.ray
@pytest.mark.parametrize("killed", first(1, ["export", "evaluation"]))
def test_a_run_that_an_evaluation_ended_stays_ended_when_it_is_resumed(
    shared_workers, ray_slots, tmp_path, monkeypatch, killed
):
    plan, out = plan_of(evaluation=replace(EVALUATED, every=2)), write_held_out(tmp_path) / "out"
    stopping = stopping_of(["evaluation/accuracy>=0"])
    if killed == "export":
        monkeypatch.setattr("rlplan.executor.execute._export", kill)
    else:
        monkeypatch.setattr(Evaluator, "evaluate", kill)
    with pytest.raises(KilledError):
        carried_out(plan, tmp_path, stopping=stopping)
    monkeypatch.undo()
    assert len(read_metrics(out)) == find_checkpoint(out).state.iteration == 2
    monkeypatch.setattr(Run, "_carry_out_iteration", kill)  # none is done again
    run = carried_out(plan, tmp_path, resume=out, stopping=stopping)
    assert run.stopped.startswith("evaluation/accuracy is ")
    assert [row["iteration"] for row in read_evaluations(out)] == [2]
    assert run == read_run(out)
    assert [each.iteration for each in run.trace.iterations] == [0, 1]
    with pytest.raises(FileError, match="stops at once"):
        carried_out(plan, tmp_path, resume=out, stopping=stopping)


def test_samples_of_an_evaluation_that_was_not_finished_are_dropped(tmp_path):
    def lines(file, iterations):
        rows = ({"iteration": each, "score": 1.0} for each in iterations)
        (tmp_path / file).write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    lines(EVALUATIONS_FILE, [1])
    lines(SAMPLES_FILE, [1, 1, 2])
    drop_evaluations(tmp_path, 2)
    assert [row["iteration"] for row in read_samples(tmp_path)] == [1, 1]
    lines(SAMPLES_FILE, [1, 1, 2])
    lines(EVALUATIONS_FILE, [1, 2])
    drop_evaluations(tmp_path, 2)
    assert [row["iteration"] for row in read_samples(tmp_path)] == [1, 1, 2]
