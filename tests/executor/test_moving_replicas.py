"""A run whose replicas come and go moves to another plan: it ends as one that is resumed under it, whoever is there or is killed."""

from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial

import pytest
import ray

from rlplan.errors import FileError, WorkerLostError
from rlplan.executor.control.capabilities import check_coming
from rlplan.executor.control.checkpoints import CheckpointFolder, find_checkpoint
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.run import Saving
from rlplan.executor.control.start import started_groups
from rlplan.executor.execute import execute
from rlplan.executor.workers import pools
from rlplan.files.decoding import read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.job import Rewards
from rlplan.plan import Plan
from rlplan.replicas import (
    LengthRow,
    ReplicaChoice,
    ReplicaRange,
    ReplicaSchedule,
    ReplicaTable,
    devices_of,
    read_replicas,
    read_schedule,
)
from tests.executor.plans import make_job, make_plan
from tests.executor.test_checkpoints import assert_same, stored_weights
from tests.executor.test_moving import (
    POINTS,
    Forced,
    KilledAfter,
    KilledError,
    killed_at,
    learnt,
)

SEED, ITERATIONS = 1, 4
START_GROUP = pools.start_group


def streams(devices=2, *, tp_gen=1, micro_batch=2, mode="streaming", prompts=4):
    """Return a plan of a device that trains and some that generate, one response at a time: numbers hang on no others."""
    job = make_job("grpo", samples_per_prompt=2, prompts=prompts, updates=2)
    job = replace(job, rewards=Rewards(function="digits"), specs=replace(job.specs, staleness=2))
    pools = {"p0": (1, ("actor", "reference")), "generator": (devices, ("actor",))}
    sizes = {"tp_gen": tp_gen, "micro_batch": micro_batch, "max_running": 1}
    plan = make_plan(job, pools, transition="two-copies", **sizes)
    plan = plan.with_layout(
        "actor.generate", replace(plan.tasks["actor.generate"], dp=devices // tp_gen)
    )
    return replace(plan, mode=mode, staleness=2 if mode == "async" else 0)


BEFORE, AFTER = streams(), streams(tp_gen=2, micro_batch=4)
SCHEDULE = read_schedule("2")


def carried_out(plan, out, iterations=ITERATIONS, *, schedule=SCHEDULE, adapter=None, resume=None):
    saving, told = Saving(every=1, resume=resume), []
    if plan != BEFORE and isinstance(schedule, ReplicaSchedule):
        schedule = devices_of(schedule, BEFORE)
    run = execute(
        plan,
        out,
        iterations=iterations,
        seed=SEED,
        warmup=0,
        saving=saving,
        adapter=adapter,
        schedule=schedule,
        progress=lambda *said: told.append(said[-1]),
    )
    return run, told


def without_replicas(out):
    names = {"replicas", "lost_replicas", "staleness", "staleness_max", "staleness_mean"}
    return [{name: each for name, each in row.items() if name not in names} for row in learnt(out)]


def ends_alike(out, other):
    found, expected = find_checkpoint(out), find_checkpoint(other)
    assert found.state == expected.state
    assert_same(stored_weights(found), stored_weights(expected))
    assert without_replicas(out) == without_replicas(other)
    assert [row["iteration"] for row in read_metrics(out)] == list(range(ITERATIONS))


@pytest.fixture(scope="module")
def lent(shared_workers, ray_slots):
    """Let replicas be shared workers; those that go from plan to plan a run kills where it fails, and are its own."""


@pytest.fixture(scope="module")
def undisturbed(lent, tmp_path_factory):
    """Return a run that was stopped after two iterations and resumed under another plan, or went on by its own."""

    @cache
    def found(moves):
        out = tmp_path_factory.mktemp("undisturbed")
        carried_out(BEFORE, out, 2)
        carried_out(AFTER if moves else BEFORE, out, resume=out)
        return out

    return found


@pytest.mark.full
@pytest.mark.ray
def test_a_run_whose_replicas_come_and_go_moves_as_one_that_is_resumed_under_the_other_plan(
    undisturbed, tmp_path
):
    run, _ = carried_out(BEFORE, tmp_path / "moved", adapter=Forced({2: AFTER}))
    ends_alike(tmp_path / "moved", undisturbed(True))
    assert run.plan == read_yaml(Plan, tmp_path / "moved" / "plan.yaml") == AFTER
    assert [row["replicas"] for row in read_metrics(tmp_path / "moved")] == [2, 2, 1, 1]


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("point", POINTS)
def test_a_run_whose_replicas_come_and_go_resumes_where_it_is_killed_in_a_move(
    undisturbed, tmp_path, monkeypatch, point
):
    done, is_named = POINTS[point]
    out = tmp_path / "out"
    carried_out(BEFORE, out, 1)
    adapter = KilledAfter({2: AFTER}, lambda: killed_at(point, monkeypatch))
    with pytest.raises((KilledError, FileError)):
        carried_out(BEFORE, out, adapter=adapter, resume=out)
    monkeypatch.undo()
    assert find_checkpoint(out).state.iteration == done
    named = read_yaml(Plan, out / "plan.yaml")
    assert named == (AFTER if is_named else BEFORE)
    carried_out(named, out, adapter=Forced({} if is_named else {2: AFTER}), resume=out)
    ends_alike(out, undisturbed(is_named or done < 2))


def kill_one(group):
    """Kill the last replica of a pool that is there, with all that it has under way."""
    ray.kill(group.members[max(group.members)].actors[0])


def killed_in_the_checkpoint(patch):
    save = CheckpointFolder.save

    def saved(folder, plan, groups, state):
        if state.iteration == 2:
            kill_one(groups["generator"])
        return save(folder, plan, groups, state)

    patch.setattr(CheckpointFolder, "save", saved)
    patch.setattr("rlplan.executor.control.start.start_group", START_GROUP)  # none that others get


MOMENTS = {
    "a replica is lost in the move's checkpoint": ("2", killed_in_the_checkpoint),
    "a replica starts that is to join": ("0:1,2:2", lambda _: None),
    "a replica is to leave": ("0:2,2:1,3:2", lambda _: None),
}


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("moment", MOMENTS)
def test_whatever_comes_or_goes_in_a_move_changes_nothing_that_is_learnt(
    undisturbed, tmp_path, monkeypatch, moment
):
    words, prepare = MOMENTS[moment]
    prepare(monkeypatch)
    out = tmp_path / "out"
    other = streams(micro_batch=4)  # replicas of the same size
    _, told = carried_out(BEFORE, out, schedule=read_schedule(words), adapter=Forced({2: other}))
    monkeypatch.undo()
    whole = tmp_path / "whole"
    carried_out(BEFORE, whole, 2)
    carried_out(other, whole, resume=whole)
    ends_alike(out, whole)
    assert not any("retry" in each for each in told)


@pytest.mark.full
@pytest.mark.ray
def test_a_run_whose_replicas_come_and_go_goes_back_from_a_plan_that_does_not_start(
    undisturbed, tmp_path, monkeypatch
):
    def failing(plan, *given):
        if plan == AFTER:
            raise WorkerLostError("pool p0: worker 0 ended: killed, out of memory or crashed")
        return started_groups(plan, *given)

    monkeypatch.setattr("rlplan.executor.control.run.started_groups", failing)
    adapter = Forced({2: AFTER})
    run, told = carried_out(BEFORE, tmp_path / "out", adapter=adapter)
    ends_alike(tmp_path / "out", undisturbed(False))
    assert run.plan == BEFORE
    assert any("goes back to the plan before" in each for each in told)


@pytest.mark.full
@pytest.mark.ray
def test_an_endless_stream_moves_with_its_replicas_and_learns_from_every_prompt_once(
    lent, tmp_path
):
    plan, other = streams(mode="async"), streams(mode="async", micro_batch=4)
    schedule = read_schedule("0:2,1:1,3:2")
    execute(
        plan,
        tmp_path / "out",
        iterations=5,
        seed=SEED,
        warmup=0,
        saving=Saving(every=1),
        adapter=Forced({2: other}),
        schedule=schedule,
    )
    rows, state = read_metrics(tmp_path / "out"), find_checkpoint(tmp_path / "out").state
    assert [row["iteration"] for row in rows] == list(range(5))
    assert len(state.left_prompts) == state.next_prompt - 5 * plan.job.workload.prompts
    assert len(set(state.left_prompts)) == len(state.left_prompts)


LONGER = FrozenDict({1: 2.0, 2: 1.0})
TABLE = ReplicaTable(
    rows=(LengthRow(above_tokens=0.0, tokens=5.0, replicas=2, seconds=LONGER),), begins=5.0
)
FEWER = replace(TABLE, rows=(replace(TABLE.rows[0], replicas=1),))


def choice():
    """Return a choice by which both replicas pay by the plan of the start, and one by any other."""
    return ReplicaChoice(
        ReplicaRange(least=1, most=2), BEFORE, lambda plan, _: TABLE if plan == BEFORE else FEWER
    )


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_run_whose_replicas_forecasts_choose_moves_and_wants_what_pays_by_the_other_plan(
    undisturbed, tmp_path, monkeypatch, is_killed
):
    out, other, moves = tmp_path / "out", streams(micro_batch=4), Forced
    if is_killed:
        point = next(each for each, (done, named) in POINTS.items() if done == 2 and named)
        moves = partial(KilledAfter, prepare=lambda: killed_at(point, monkeypatch))
    given = {"schedule": choice(), "adapter": moves({2: other})}
    with pytest.raises(KilledError) if is_killed else nullcontext():
        carried_out(BEFORE, out, **given)
    if is_killed:
        monkeypatch.undo()
        carried_out(other, out, schedule=choice(), adapter=Forced({}), resume=out)
    whole = tmp_path / "whole"
    carried_out(BEFORE, whole, 2)
    carried_out(other, whole, resume=whole)
    ends_alike(out, whole)
    assert [row["replicas"] for row in read_metrics(out)] == [2, 2, 1, 1]


def test_a_run_that_may_move_has_numbers_of_replicas_or_a_range():
    with pytest.raises(FileError, match="at most 2"):
        check_coming(read_replicas("3"), BEFORE)
    with pytest.raises(FileError, match="at most 2"):
        check_coming(read_replicas("1..3"), BEFORE)
    check_coming(read_schedule("0:1,2:2"), BEFORE)
    check_coming(choice(), AFTER)
    of_one = ReplicaChoice(ReplicaRange(least=1, most=1), BEFORE, lambda *_: TABLE)
    with pytest.raises(FileError, match="1 devices at most, and a replica of the plan takes"):
        check_coming(of_one, AFTER)
