"""Workers that are killed: a run with checkpoints goes on, and one that loses them again and again ends."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import WorkerLostError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.checkpoints import CheckpointFolder, CheckpointState, find_checkpoint
from rlplan.executor.control.controller import Controller
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.run import Saving
from rlplan.executor.control.start import prepare_groups
from rlplan.executor.data.workload import PromptBatches
from rlplan.executor.execute import execute
from rlplan.files.frozen import FrozenDict
from rlplan.job import Rewards
from tests.executor.plans import ALL_ROLES, make_job, make_plan
from tests.executor.test_checkpoints import SEED, assert_same, stored_weights
from tests.house.tree import ROOT

KILLER = """
import os, signal
from pathlib import Path

MARK = Path(__file__).with_name("killed")


def workers():
    # Of this run's device pools: children of the same parent, by the name that Ray gives.
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            name = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == os.getppid() and name.startswith(b"ray::Worker"):
            yield int(folder.name)


def kill_one():
    # None is left where this judges on, in the moment before the run hears of the loss.
    for worker in sorted(workers())[-1:]:
        MARK.write_text(MARK.read_text() + "." if MARK.exists() else ".")
        os.kill(worker, signal.SIGKILL)


# Once while workers start: who imports this beside them is the worker that judges.
if {starting} and not MARK.exists() and list(workers()):
    kill_one()


def judge(prompt, response, row):
    calls = Path(__file__).with_name("calls")
    count = len(calls.read_bytes()) + 1 if calls.exists() else 1
    calls.write_bytes(b"." * count)
    if count == {at} or {always}:
        kill_one()
    return float(len(response) % 3)
"""


def killed_plan(folder, *, at, always=False, devices=2, overlaps=False, starting=False):
    """Return a plan on some processes of which a rule kills one in the midst of an iteration."""
    (folder / "rule.py").write_text(KILLER.format(at=at, always=always, starting=starting))
    job = replace(make_job(), rewards=Rewards(function="rule.py:judge"))
    if not overlaps:
        return make_plan(job, {"p0": (devices, ALL_ROLES)})
    pools = {"p0": (1, ALL_ROLES), "generator": (1, ("actor",))}
    plan = make_plan(job, pools, transition="two-copies")
    return replace(plan, mode="one-step-off", staleness=1)


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("overlaps", [False, True], ids=["sync", "one-step-off"])
def test_a_run_whose_worker_is_killed_goes_on_and_ends_as_the_undisturbed_one(
    ray_slots, worker_pool, tmp_path, overlaps
):
    # The rule judges 8 responses an iteration: the 20th is in the third one.
    # Nothing is done yet where the other is lost at the start.
    told, plan = [], killed_plan(tmp_path, at=20, overlaps=overlaps, starting=True)
    run = execute(
        plan,
        tmp_path / "out",
        iterations=4,
        seed=SEED,
        folder=tmp_path,
        progress=lambda *message: told.append(message),
        saving=Saving(every=2, export=tmp_path / "actor"),
    )
    assert (tmp_path / "killed").read_text() == ".."
    for retry, done in ((1, 0), (2, 2)):
        words = f"goes on after {done} iterations (retry {retry} of 3)"
        assert [text for _, _, text in told if words in text and "pool " in text]
    assert [row["iteration"] for row in read_metrics(tmp_path / "out")] == [0, 1, 2, 3]
    assert [each.iteration for each in run.trace.iterations] == [0, 1, 2, 3]
    assert (tmp_path / "actor" / "config.json").exists()
    # The 20th response is behind: this time the rule kills nobody.
    calm = undisturbed_run(worker_pool, plan, tmp_path)
    last = find_checkpoint(tmp_path / "out")
    assert last.state.iteration == 4
    for role in ("actor", "critic"):
        assert_same(stored_weights(last, role), stored_weights(calm, role))


def undisturbed_run(worker_pool, plan, folder):
    """Run four iterations with the shared workers, the rule's file in `folder`."""
    tasks, groups = check_runnable(plan), worker_pool.groups_of(plan)
    prompts = PromptBatches(plan.job, folder)
    prepare_groups(plan, tasks, prompts, SEED, groups)
    controller = Controller(plan, tasks, groups, prompts.columns)
    for iteration in range(4):
        controller.finish(controller.send(iteration))
    state = CheckpointState(iteration=4, next_prompt=32, seed=SEED, algorithm_state=FrozenDict())
    return CheckpointFolder(folder / "calm", 1).save(plan, groups, state)


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_run_that_loses_workers_again_and_again_ends(ray_slots, tmp_path):
    told, plan = [], killed_plan(tmp_path, at=0, always=True, devices=1)
    with pytest.raises(WorkerLostError, match="pool p0: worker"):
        execute(
            plan,
            tmp_path / "out",
            iterations=2,
            seed=SEED,
            folder=tmp_path,
            progress=lambda *message: told.append(message),
            saving=Saving(every=1, retries=1),
        )
    assert [done for done, _, text in told if "retry 1 of 1" in text] == [0]
    assert not (tmp_path / "out" / "measured.json").exists()


HANGS_AT_FIRST = """
import time
from pathlib import Path

MARK = Path(__file__).with_name("hung")
# Who imports this is the worker that judges.
if not MARK.exists():
    MARK.write_text("")
    time.sleep(3600)


def judge(prompt, response, row):
    return float(len(response) % 3)
"""

# In a process of its own: workers of others would be ended with those that hang.
HANGING_RUN = """
import sys
from dataclasses import replace
from pathlib import Path
from rlplan.executor.control.run import Saving
from rlplan.executor.execute import execute
from rlplan.job import Rewards
from tests.executor.plans import ALL_ROLES, make_job, make_plan

folder = Path(sys.argv[1])
plan = make_plan(replace(make_job(), rewards=Rewards(function="rule.py:judge")), {"p0": (1, ALL_ROLES)})
saving = Saving(start_seconds=45.0)
told = lambda done, of, text: print(done, of, text)
execute(plan, folder / "out", iterations=1, seed=1, warmup=0, folder=folder, progress=told, saving=saving)
"""


@pytest.mark.full
@pytest.mark.slow
def test_a_worker_that_hangs_at_the_start_is_ended_and_the_run_starts_anew(tmp_path):
    (tmp_path / "rule.py").write_text(HANGS_AT_FIRST)
    ended = subprocess.run(
        [sys.executable, "-c", HANGING_RUN, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    words = "the start of workers and their models took longer than 45 s (--start-limit)"
    assert f"{words}: a worker hangs; goes on after 0 iterations (retry 1 of 3)" in ended.stdout
    assert [row["iteration"] for row in read_metrics(tmp_path / "out")] == [0]
