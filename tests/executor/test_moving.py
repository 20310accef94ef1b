"""A run that goes on with another plan after an iteration: as one that was resumed under it, whatever is killed on the way."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from rlplan.errors import (
    CapabilityError,
    FileError,
    InfeasibleError,
    NodesMissingError,
    PlanError,
    RlplanError,
    SeveralMistakesError,
    UserError,
    WorkerLostError,
)
from rlplan.executor.control.checkpoints import CheckpointFolder, find_checkpoint
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.moving import PLAN_BEFORE, TRIAL_START, Moving, Trial
from rlplan.executor.control.run import Run, Saving
from rlplan.executor.control.start import START, started_groups
from rlplan.executor.data.workload import response_lengths
from rlplan.executor.execute import execute
from rlplan.files.decoding import read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_yaml
from rlplan.plan import Plan
from rlplan.planner.adapting.adapter import LEDGER_FILE, MoveAdapter
from rlplan.planner.adapting.proposing import Proposal, Proposals, in_layout_of, same_layout
from rlplan.planner.measured.ledger import read_ledger
from rlplan.results.advice import AS_IT_IS, Adaptation, Gain
from rlplan.results.stored import write_plan
from rlplan.workload import Lognormal
from rlplan_cli.main import run as run_cli
from tests.cases import first
from tests.executor.plans import make_job, make_plan
from tests.executor.test_checkpoints import assert_same, stored_weights
from tests.house.tree import ROOT

ROLES = ("actor", "reference")
SEED, ITERATIONS = 1, 3
# What metrics have of time alone, and of weights on their way: a run that is resumed has brought them before its iteration.
TIMES = ("seconds", "tokens_per_second")
MOVED = ("timing_s", "transition_")


# Responses that grow threefold over a run, and are as long as they are drawn.
GROWING = Lognormal(mean=3.0, std=0.5, max=9, training_means=(2.0, 6.0))


def grpo():
    job = make_job(
        "grpo", samples_per_prompt=2, prompts=4, response_tokens=GROWING, ignore_eos=True
    )
    return replace(job, specs=replace(job.specs, staleness=1), iterations=ITERATIONS)


def together(devices, **sizes):
    return make_plan(grpo(), {"p0": (devices, ROLES)}, micro_batch=2, **sizes)


def apart(mode):
    pools = {"p0": (1, ROLES), "generator": (1, ("actor",))}
    plan = make_plan(grpo(), pools, transition="two-copies", micro_batch=2)
    return replace(plan, mode=mode, staleness=int(mode == "one-step-off"))


WAYS = {
    "a device, then two sharded": (together(1), together(2, zero=3)),
    "together, then a batch ahead": (together(2), apart("one-step-off")),
    "a batch ahead, then together": (apart("one-step-off"), together(2, tp=2)),
    "together, then streamed": (together(1), apart("streaming")),
    "streamed, then together": (apart("streaming"), together(2, pp=2)),
}


@dataclass
class Forced:
    """Move after iterations that are given, to the plans that are."""

    moves: dict
    begun_plans: list = field(default_factory=list)
    iterations: list = field(default_factory=list)
    failures: list = field(default_factory=list)
    for_good: list = field(default_factory=list)
    most_seconds: float | None = None

    def begun(self, plan, done, seconds):
        assert seconds > 0
        self.begun_plans.append((done, plan))

    def after(self, iteration):
        self.iterations.append(iteration)
        plan = self.moves.get(iteration.span.iteration + 1)
        if plan is None:
            return AS_IT_IS
        return Adaptation(
            plan=plan, reason="it was said", most_seconds=self.most_seconds, said=("moves",)
        )

    def in_layout_of(self, plan, other):
        return in_layout_of(plan, other)

    def failed(self, plan, done, reason, *, for_good):
        self.failures.append((plan, done, reason))
        self.for_good.append(for_good)
        self.moves = {}
        return ("is not tried again",)


def carried_out(plan, out, iterations=ITERATIONS, *, adapter=None, resume=None, progress=None):
    return execute(
        plan,
        out,
        iterations=iterations,
        seed=SEED,
        warmup=0,
        saving=Saving(every=1, resume=resume),
        adapter=adapter,
        progress=progress,
    )


def learnt(out):
    """Return what iterations learnt, by number, without what they took."""
    return [
        {
            name: value
            for name, value in row.items()
            if name not in TIMES and "seconds" not in name and not name.startswith(MOVED)
        }
        for row in read_metrics(out)
    ]


def ends_alike(out, other):
    found, expected = find_checkpoint(out), find_checkpoint(other)
    assert found.state == expected.state
    assert_same(stored_weights(found), stored_weights(expected))
    assert learnt(out) == learnt(other)
    assert [row["iteration"] for row in read_metrics(out)] == list(range(ITERATIONS))


def lengths_drawn(job):
    return [response_lengths(job, number).mean() for number in range(ITERATIONS)]


@pytest.mark.ray
@pytest.mark.parametrize("way", first(1, WAYS))
def test_a_run_that_moves_ends_bit_for_bit_as_one_that_is_resumed_under_the_other_plan(
    shared_workers, ray_slots, tmp_path, way
):
    before, after = WAYS[way]
    told = []
    adapter = Forced({1: after})
    run = carried_out(
        before, tmp_path / "moved", adapter=adapter, progress=lambda *said: told.append(said[-1])
    )
    carried_out(before, tmp_path / "stopped", 1)
    carried_out(after, tmp_path / "stopped", resume=tmp_path / "stopped")
    ends_alike(tmp_path / "moved", tmp_path / "stopped")
    found = [row["response_tokens"] for row in learnt(tmp_path / "moved")]
    assert found == lengths_drawn(before.job)
    assert [done for done, _ in adapter.begun_plans] == [0, 1]
    assert [each.left for each in adapter.iterations] == [2, 1]
    assert adapter.iterations[1].checkpoint_seconds > 0
    (moved,) = run.replanned
    assert (moved.iteration, moved.reason) == (1, "it was said")
    assert read_yaml(Plan, tmp_path / "moved" / "plan.yaml") == run.plan == after
    assert read_yaml(Plan, tmp_path / "moved" / moved.before) == before
    assert [each.iteration for each in run.trace.iterations] == [1, 2]
    assert "moves" in told
    assert any("goes on with another plan" in words for words in told)


class KilledError(Exception):
    """Stand for a signal that ends the process."""


def killed_at(point, patch):
    """Let a run end at a point of the move that it has decided on."""

    def kill(*_, **__):
        raise KilledError

    if point == "before the checkpoint":
        patch.setattr(CheckpointFolder, "save", kill)
    elif point == "within the checkpoint":
        patch.setattr("rlplan.executor.control.checkpoints.write_json", kill)
    elif point == "before the plan is named":
        patch.setattr(Run, "_take_plan", kill)
    elif point == "while the plan is named":
        patch.setattr("rlplan.executor.control.run.write_plan", kill)
    else:
        patch.setattr(Run, "_carry_out_plan", kill)


# By point, how many iterations are left done, and whether the other plan is named. Where neither it is nor an iteration is
# left to do again, the run goes on by the plan before.
POINTS = {
    "after the plan is named": (2, True),
    "before the plan is named": (2, False),
    "before the checkpoint": (1, False),
    "within the checkpoint": (1, False),
    "while the plan is named": (2, False),
}


@pytest.fixture(scope="module")
def undisturbed(shared_workers, ray_slots, tmp_path_factory):
    """Run three iterations in which nothing happens: by whether the run moved after the second."""
    before, after = WAYS["a device, then two sharded"]
    found = {}
    for moves in (True, False):
        found[moves] = tmp_path_factory.mktemp("undisturbed")
        carried_out(before, found[moves], adapter=Forced({2: after} if moves else {}))
    return found


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_is_killed_in_a_move_resumes_by_the_plan_that_is_named(
    undisturbed, tmp_path, monkeypatch, point
):
    before, after = WAYS["a device, then two sharded"]
    done, is_named = POINTS[point]
    out = tmp_path / "out"
    carried_out(before, out, 1)
    adapter = KilledAfter({2: after}, lambda: killed_at(point, monkeypatch))
    with pytest.raises((KilledError, UserError)):
        carried_out(before, out, adapter=adapter, resume=out)
    monkeypatch.undo()
    assert find_checkpoint(out).state.iteration == done
    named = read_yaml(Plan, out / "plan.yaml")
    assert named == (after if is_named else before)
    carried_out(named, out, adapter=Forced({} if is_named else {2: after}), resume=out)
    ends_alike(out, undisturbed[is_named or done < 2])


DEAD = WorkerLostError("pool p0: worker 1 ended: killed, out of memory or crashed")


def dying(plan, error=DEAD):
    """Return what starts workers, and loses one of those of a plan."""

    @contextmanager
    def started(now, *given):
        with started_groups(now, *given) as groups:
            if now == plan:
                raise error
            yield groups

    return started


def out_of_memory(plan):
    """Return an iteration that has no memory for a plan."""
    carry_out = Run._carry_out_iteration

    def carried(run, *given):
        if run.plan == plan:
            raise RlplanError("a worker failed: OutOfMemoryError")
        return carry_out(run, *given)

    return carried


def on_hosts(plan, workers):
    """Return a plan whose rule runs on so many workers."""
    pools = tuple(replace(pool, gpus=workers) if pool.is_host else pool for pool in plan.pools)
    tasks = {
        name: replace(layout, dp=workers) if layout.pool == "host" else layout
        for name, layout in plan.tasks.items()
    }
    return replace(plan, pools=pools, tasks=FrozenDict(tasks))


TOO_MANY = on_hosts(together(1), 8)
LACKS_NODES = "nodes are missing"
FAILURES = {
    LACKS_NODES: (None, "1 node of 2 is missing"),
    "a worker dies at the start": (None, "worker 1 ended"),
    "no place for its workers": (TOO_MANY, "pools want 8 workers of kind rlplan_host"),
    "no memory in its first iteration": (None, "OutOfMemoryError"),
}


def let_fail(way, plan, patch):
    if way == LACKS_NODES:
        error = NodesMissingError("1 node of 2 is missing")
        patch.setattr("rlplan.executor.control.run.started_groups", dying(plan, error))
    elif way == "a worker dies at the start":
        patch.setattr("rlplan.executor.control.run.started_groups", dying(plan))
    elif way == "no memory in its first iteration":
        patch.setattr(Run, "_carry_out_iteration", out_of_memory(plan))


@pytest.mark.ray
@pytest.mark.parametrize("way", first(0, FAILURES))
def test_a_run_goes_back_where_the_plan_that_it_moves_to_does_no_iteration(
    undisturbed, tmp_path, monkeypatch, way
):
    before, after = WAYS["a device, then two sharded"]
    plan, words = FAILURES[way]
    after = plan or after
    out, told = tmp_path / "out", []
    let_fail(way, after, monkeypatch)
    adapter = Forced({2: after})
    run = carried_out(before, out, adapter=adapter, progress=lambda *said: told.append(said[-1]))
    ends_alike(out, undisturbed[False])
    ((failed, done, reason),) = adapter.failures
    assert (failed, done) == (after, 2)
    assert re.search(words, reason)
    assert adapter.for_good == [way != LACKS_NODES]
    assert [done for done, _ in adapter.begun_plans][-1] == 2
    assert run.plan == read_yaml(Plan, out / "plan.yaml") == before
    assert run.replanned == ()
    assert [each.iteration for each in run.trace.iterations] == [0, 1, 2]
    assert not list(out.glob("plan-before-*"))
    assert any("goes back to the plan before" in each for each in told)
    assert "is not tried again" in told


def failing(out, trial):
    """Return a run of a cluster that has lost a node and searches plans for those that are left."""
    before = together(1)
    return SimpleNamespace(
        _moving=SimpleNamespace(trial=trial, failed=lambda *_, **__: ()),
        _joined=SimpleNamespace(replans=True, take=lambda _: None),
        _has_lost_nodes=True,
        _go_back=lambda: 0,
        _choose_replicas=lambda: None,
        _tell=lambda _: None,
        _out=out,
        plan=before,
        done=2,
        finished=[],
    )


@pytest.mark.parametrize(
    ("error", "goes_back"),
    [(DEAD, False), (NodesMissingError("1 node"), False), (RlplanError("OutOfMemoryError"), True)],
)
def test_of_lost_workers_alone_a_run_says_that_their_nodes_were_lost(tmp_path, error, goes_back):
    """For others no plan is searched: the run would end, where it can go back."""
    run = failing(tmp_path, Trial(plan=together(1), tasks=()))
    assert Run._gone_back(run, error) == goes_back
    assert not Run._gone_back(failing(tmp_path, None), error)


@pytest.mark.parametrize(
    ("error", "for_good"),
    [
        (DEAD, True),
        (PlanError("pools want 8 workers"), True),
        (CapabilityError("engine", "no such engine here"), True),
        (InfeasibleError("the cache has no room for a sequence"), True),
        (UserError("environment own.py:Game: step fails: OSError"), False),
        (FileError("runs/first/metrics.jsonl", "cannot be written: the disk is full"), False),
        (SeveralMistakesError([UserError("a row"), PlanError("a size")]), True),
        (SeveralMistakesError([UserError("a row"), UserError("a rule")]), False),
    ],
)
def test_what_is_wrong_under_any_plan_bars_none_for_good(tmp_path, error, for_good):
    said, run = [], failing(tmp_path, Trial(plan=together(1), tasks=()))
    run._has_lost_nodes = False
    run._moving.failed = lambda *_, for_good: said.append(for_good) or ()
    assert Run._gone_back(run, error)
    assert said == [for_good]


@pytest.mark.full
@pytest.mark.ray
def test_a_run_that_is_resumed_in_a_move_goes_back_too(undisturbed, tmp_path, monkeypatch):
    before, after = WAYS["a device, then two sharded"]
    out = tmp_path / "out"
    adapter = KilledAfter({2: after}, lambda: killed_at("after the plan is named", monkeypatch))
    with pytest.raises(KilledError):
        carried_out(before, out, adapter=adapter)
    monkeypatch.undo()
    let_fail("a worker dies at the start", after, monkeypatch)
    resumed = Forced({})
    carried_out(after, out, adapter=resumed, resume=out)
    ends_alike(out, undisturbed[False])
    assert [(plan, done) for plan, done, _ in resumed.failures] == [(after, 2)]
    assert read_yaml(Plan, out / "plan.yaml") == before


def test_a_plan_on_trial_may_start_no_longer_than_it_may_gain():
    plan = together(1)
    moving = Moving(Forced({}))
    assert moving.start_limit(None) == (None, START)
    moving.trial = Trial(plan=plan, tasks=(), most_seconds=30.0)
    assert moving.start_limit(None) == (30.0, TRIAL_START)
    assert moving.start_limit(60.0) == (30.0, TRIAL_START)
    assert moving.start_limit(20.0) == (20.0, START)


@pytest.mark.parametrize("before", ["for more devices than are left", "unreadable"])
def test_a_run_whose_plan_before_cannot_be_carried_out_resumes_without_a_way_back(tmp_path, before):
    plan = together(1)
    file = tmp_path / PLAN_BEFORE.format(2)
    if before == "unreadable":
        file.write_text("pools: [")
    else:
        pools = tuple(replace(pool, gpus=64) for pool in plan.pools)
        write_plan(file, replace(plan, pools=pools))
    moving = Moving(Forced({}))
    assert "no way back to the plan before" in moving.resume(plan, tmp_path, 2)
    assert moving.trial is None
    assert moving.resume(plan, tmp_path, 1) == ""


class KilledAfter(Forced):
    """Prepare the end of the process when the move is decided."""

    def __init__(self, moves, prepare):
        super().__init__(moves)
        self._prepare = prepare

    def after(self, iteration):
        answer = super().after(iteration)
        if answer.plan is not None:
            self._prepare()
        return answer


class Proposing:
    """Propose a plan at the first request, as one that gains much."""

    def __init__(self, plan):
        self._plan, self._found = plan, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, request):
        gain = Gain(p10_seconds=1e3, p50_seconds=1e3, p90_seconds=1e3)
        plan = in_layout_of(request.measured.plan, self._plan)
        plans = (Proposal(plan=plan, seconds=0.01, gain=gain, gain_left=gain),)
        self._found = Proposals(request=request, forecast_seconds=1.0, plans=plans)

    def answer(self):
        found, self._found = self._found, None
        return found


def written(plan):
    """Return a plan whose rule has a price and whose tasks name engines, as a forecast wants it."""
    rewards = replace(plan.job.rewards, function_seconds_per_sample=1e-4)
    engines = {"actor.generate": "torch-static", "rule.compute_reward": "python"}
    tasks = {
        name: replace(layout, engine=engines.get(name, "torch-tp-dp"))
        for name, layout in plan.tasks.items()
    }
    return replace(plan, job=replace(plan.job, rewards=rewards), tasks=FrozenDict(tasks))


@pytest.mark.ray
def test_execute_with_adapt_moves_writes_its_ledger_and_resumes_by_the_last_plan(
    shared_workers, ray_slots, tmp_path, monkeypatch, capsys
):
    before, after = map(written, (together(1), together(2)))
    write_yaml(tmp_path / "plan.yaml", before)
    where = "rlplan.planner.adapting.background.Background"
    monkeypatch.setattr(where, lambda *_: Proposing(after))
    # Of so short a run no search is worth it.
    monkeypatch.setattr("rlplan.planner.adapting.pacing.FIRST_CPU_SECONDS", 0.0)
    # The first move costs nothing, the way back everything.
    cost = property(lambda adapter: 1e9 if adapter._has_moved else 0.0)
    monkeypatch.setattr(MoveAdapter, "move_seconds", cost)
    out = tmp_path / "run"
    command = ["execute", str(tmp_path / "plan.yaml"), "--out", str(out), "--warmup", "0"]
    command += ["--adapt", "--iterations"]
    assert run_cli([*command, "10"]) == 0
    assert "from iteration 5 on with another plan, which is compared" in capsys.readouterr().err
    decision, outcome, *_ = read_ledger(out / LEDGER_FILE)
    assert (decision.answer, decision.step, decision.framework) == ("change", 4, "rlplan")
    assert {each.key for each in decision.changes} >= {"tasks.actor.update.dp", "pools.p0"}
    assert (outcome.decision_step, outcome.step) == (4, 8)
    assert [row["iteration"] for row in read_metrics(out)] == list(range(10))
    # The checkpoint of the move: five iterations are done.
    monkeypatch.setattr(where, lambda *_: Proposing(before))
    assert run_cli([*command, "7", "--resume", str(out)]) == 0
    assert "goes on with the plan last in force" in capsys.readouterr().err
    assert same_layout(read_yaml(Plan, out / "plan.yaml"), after)
    assert [row["iteration"] for row in read_metrics(out)] == list(range(7))
    kinds = [each.kind for each in read_ledger(out / LEDGER_FILE)]
    assert (kinds.count("decision"), kinds.count("outcome")) == (1, 1)


@pytest.mark.parametrize(
    ("error", "ends"), [(None, 1), (RlplanError("failed"), 1), (KeyboardInterrupt(), 0)]
)
def test_workers_are_ended_but_where_an_interruption_ends_ray(monkeypatch, error, ends):
    ended = []
    kept = SimpleNamespace(end=lambda: ended.append(1))
    where = "rlplan.executor.control.run"
    monkeypatch.setattr(f"{where}.running_ray", lambda *_: nullcontext())
    monkeypatch.setattr(f"{where}.KeptWorkers", lambda *_: kept)
    run: Any = SimpleNamespace(_joined=None, _moving=Moving(Forced({})), plan=together(2))
    with pytest.raises(type(error)) if error else nullcontext(), Run._session(run) as given:
        assert given is kept
        if error:
            raise error
    assert len(ended) == ends


SERVER_LOST = """
import sys
from pathlib import Path
import psutil
from tests.executor.test_moving import Forced, carried_out, together


def told(done, _, words):
    print(words, flush=True)
    if done == 2 and not lost:
        lost.extend(each for each in psutil.Process().children(recursive=True) if each.name() == "gcs_server")
        lost[0].kill()


lost = []
carried_out(together(2), Path(sys.argv[1]), adapter=Forced({}), progress=told)
"""


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.ray
def test_a_run_that_may_move_goes_on_where_a_server_of_ray_ends(tmp_path):
    command = [sys.executable, "-c", SERVER_LOST, str(tmp_path / "out")]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    assert "Ray's gcs_server ended" in found.stdout
    assert re.search(r"goes on after [23] iterations \(retry 1 of 3\)", found.stdout)
    assert [row["iteration"] for row in read_metrics(tmp_path / "out")] == list(range(ITERATIONS))


KILLER = """
import os, signal, sys
from pathlib import Path
from tests.executor.test_moving import WAYS, KilledAfter, carried_out, killed_at
from tests.executor import test_moving
import pytest


class KilledError(Exception):
    def __init__(self):
        os.kill(os.getpid(), signal.SIGKILL)


test_moving.KilledError = KilledError
before, after = WAYS["a device, then two sharded"]
out, point = Path(sys.argv[1]), sys.argv[2]
adapter = KilledAfter({2: after}, lambda: killed_at(point, pytest.MonkeyPatch()))
carried_out(before, out, adapter=adapter)
"""


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_is_killed_in_a_move_resumes(undisturbed, tmp_path, point):
    out, after = tmp_path / "out", WAYS["a device, then two sharded"][1]
    found = subprocess.run(
        [sys.executable, "-c", KILLER, str(out), point], cwd=ROOT, capture_output=True, check=False
    )
    assert found.returncode == -9, found.stderr[-2000:]
    named = read_yaml(Plan, out / "plan.yaml")
    assert (named == after) == POINTS[point][1]
    rest = Forced({} if named == after else {2: after})
    carried_out(named, out, adapter=rest, resume=out)
    done, is_named = POINTS[point]
    ends_alike(out, undisturbed[is_named or done < 2])


# Audit events of Python that tell of a file that is opened, moved or removed.
FILE_EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
# Of files in the run's folder, from the decision to the new plan's first iteration; and within which time a move is killed
# where that does not count them: new workers take longer to start.
MOST_EVENTS, MOST_SECONDS = 24, 2.0
# Ray does not start on a machine that has too much to do.
ATTEMPTS = 3


def end_at_once():
    os.kill(os.getpid(), signal.SIGKILL)


def killed_soon(seed, out):
    """Let this process end at a moment that a seed draws: at a file of the run, or at some time."""
    draw = random.Random(seed)
    if seed % 2:
        threading.Timer(draw.uniform(0, MOST_SECONDS), end_at_once).start()
        return
    left = draw.randint(1, MOST_EVENTS)

    def look(event, arguments):
        nonlocal left
        if event in FILE_EVENTS and str(out) in str(arguments[0]):
            left -= 1
            if left == 0:
                end_at_once()

    sys.addaudithook(look)


KILLED_SOON = """
import sys
from pathlib import Path
from tests.executor.test_moving import WAYS, KilledAfter, carried_out, killed_soon

out, way, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
before, after = WAYS[way]
carried_out(before, out, adapter=KilledAfter({2: after}, lambda: killed_soon(seed, out)))
"""


@pytest.fixture(scope="module")
def undisturbed_by_way(shared_workers, ray_slots, tmp_path_factory):
    """Return what runs a way's plans with nothing in between, once: whether it moves after the second iteration."""

    @cache
    def found(way, moves):
        before, after = WAYS[way]
        out = tmp_path_factory.mktemp("undisturbed")
        carried_out(before, out, adapter=Forced({2: after} if moves else {}))
        return out

    return found


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("seed", range(20))
def test_a_process_that_is_killed_at_any_moment_of_a_move_resumes(
    undisturbed_by_way, tmp_path, seed
):
    way = list(WAYS)[seed // 2 % len(WAYS)]
    out, (before, after) = tmp_path / "out", WAYS[way]
    for _ in range(ATTEMPTS):
        found = subprocess.run(
            [sys.executable, "-c", KILLED_SOON, str(out), way, str(seed)],
            cwd=ROOT,
            capture_output=True,
            check=False,
        )
        if b"Ray did not start" not in found.stderr:
            break
    assert found.returncode == -signal.SIGKILL, found.stderr[-2000:]
    named = read_yaml(Plan, out / "plan.yaml")
    assert named in (before, after)
    done = find_checkpoint(out).state.iteration
    moves = named == before and done < 2
    if done < ITERATIONS:  # else it was killed when all was done, and nothing is to be resumed
        carried_out(named, out, adapter=Forced({2: after} if moves else {}), resume=out)
    ends_alike(out, undisturbed_by_way(way, moves or named == after))
