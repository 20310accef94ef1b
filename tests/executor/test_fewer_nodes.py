"""A run whose node is lost for good goes on with another plan for the nodes that are left."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.executor.control.checkpoints import find_checkpoint
from rlplan.executor.control.evaluations import read_evaluations
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.summary import NOT_IN_EVERY_ITERATION
from rlplan.executor.workers.cluster.nodes import RayNode, groups_there
from rlplan.files.decoding import read_yaml
from rlplan.job import NodeGroup
from rlplan.plan import Plan
from rlplan.results.stored import read_run, write_plan
from rlplan.workload import Evaluation
from tests.executor.test_checkpoints import assert_same, stored_weights
from tests.executor.test_joined_cluster import (
    COMMAND,
    SECOND,
    SEED,
    WAITING_RULE,
    answer,
    program,
    two_nodes,
    wait_for,
)

on_raylets = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="takes addresses of Linux"),
]
ITERATIONS, STOPPED = 9, 5
# Eight responses of five tokens an iteration, were none to end before.
STOP_TOKENS = 8 * 5 * (STOPPED - 1) + 1
OPTIONS = ("--warmup", 0, "--seed", SEED, "--iterations", ITERATIONS)
# A tracking service that keeps what it is handed in a file.
SERVICE = """
import json


class Settings:
    def __init__(self, **_):
        pass


class Run:
    id, dir, offline = "first", "here", True

    def define_metric(self, *_, **__):
        pass

    def log(self, row):
        with open("tracked.jsonl", "a") as file:
            file.write(json.dumps(row) + "\\n")

    def finish(self, exit_code):
        pass


def init(**_):
    return Run()
"""


def spread(nodes=(1, 1), marks=(None, None)):
    return tuple(
        NodeGroup(gpu="cpu", gpus_per_node=2, nodes=count, ray_resource=mark)
        for count, mark in zip(nodes, marks, strict=True)
    )


def there(address, *, cores=2.0, free=2.0, marks=()):
    given = dict.fromkeys(marks, 1.0)
    return RayNode(
        id=address, address=address, total={"CPU": cores} | given, free={"CPU": free} | given
    )


def test_of_a_jobs_nodes_those_are_left_that_have_all_their_devices_free():
    marked = spread((2, 1), (None, "big"))
    first, second, big = there("1"), there("2"), there("3", marks=("big",))
    few = there("4", cores=1.0, free=1.0)
    assert groups_there(marked, (first, second, big)) == marked
    assert groups_there(marked, (big, few)) == spread((1,), (None,))  # any node will do for it
    assert groups_there(marked[::-1], (big, few)) == marked[1:]
    assert groups_there(marked, (first, second, few)) == marked[:1]
    assert groups_there(marked, (few,)) == ()
    used = there("1", free=1.0)
    assert groups_there(marked, (used, second)) == spread((1,), (None,))


def evaluated(folder):
    """Write a plan on two nodes of a core each, whose job evaluates, and whose 22nd response waits for a loss."""
    plan = two_nodes(folder, cores=1)
    held_out = Evaluation(prompts_file="held-out.jsonl", every=2, correct_from=0.1)
    write_plan(folder / "plan.yaml", replace(plan, job=replace(plan.job, evaluation=held_out)))
    lines = (json.dumps({"prompt": f"{number}+1"}) for number in range(2))
    (folder / "held-out.jsonl").write_text("\n".join(lines))
    (folder / "rule.py").write_text(WAITING_RULE)
    (folder / "wandb.py").write_text(SERVICE)


def lose_a_node(raylets, folder, *options):
    """Run a plan on the cluster, end its second node on the way, and return the exit code and what was said."""
    given = ("execute", folder / "plan.yaml", "--out", folder / "out", "--checkpoint-every", 1)
    ways = ("--address", raylets.address, "--node-wait", 1)
    lost = program(COMMAND, *given, *OPTIONS, *ways, *options, cwd=folder)
    wait_for(folder / "waits", lost)
    raylets.kill(SECOND)
    (folder / "killed").write_text("")
    try:
        _, said = lost.communicate(timeout=500)
    finally:
        lost.kill()
        raylets.add(SECOND, 2, "big")
    return lost.returncode, said


class TestOnACluster:
    pytestmark = on_raylets

    @pytest.mark.full
    def test_a_run_whose_node_is_gone_goes_on_with_a_plan_for_the_others(self, raylets, tmp_path):
        evaluated(tmp_path)
        more = ("--keep", ITERATIONS, "--stop-tokens", STOP_TOKENS, "--log-to", "wandb")
        code, said = lose_a_node(raylets, tmp_path, *more)
        assert code == 0, said[-3000:]
        assert re.search(r"missing: 1 node with 1 CPU; .*; searches a plan for the nodes", said)
        assert re.search(r"a plan for 1 node \(.*\); goes on after [1-4] iterations", said), said
        assert re.search(r"from iteration [1-4] on with another plan", said), said
        out = tmp_path / "out"
        run = read_run(out)
        (changed,) = run.replanned
        assert 0 < changed.iteration < STOPPED
        assert "missing: 1 node with 1 CPU" in changed.reason
        assert run.stopped.endswith(f"(--stop-tokens {STOP_TOKENS})")
        before, after = read_yaml(Plan, out / changed.before), read_yaml(Plan, out / "plan.yaml")
        assert [len(plan.job.cluster) for plan in (before, after)] == [2, 1]
        assert after == run.plan
        assert {span.pool for span in run.trace.spans} <= {pool.name for pool in after.pools}
        assert [each.iteration for each in run.trace.iterations] == list(
            range(changed.iteration, STOPPED)
        )
        as_one_run(out, tmp_path / "tracked.jsonl")
        as_from_its_checkpoint(out, changed.iteration, tmp_path)

    @pytest.mark.full
    def test_a_run_of_whose_nodes_none_is_left_ends_as_it_did(self, raylets, tmp_path):
        two_nodes(tmp_path, marks=("big",), cores=1, nodes=1)
        (tmp_path / "rule.py").write_text(WAITING_RULE)
        code, said = lose_a_node(raylets, tmp_path)
        assert code == 1, said[-3000:]
        last = said.strip().splitlines()[-1]
        words = r"missing: 1 node with 1 CPU \(big\); there: .* \(--node-wait 1\); no plan for the nodes that"
        assert re.search(words, last), said[-3000:]
        assert last.endswith("no node of the job's cluster is left")
        assert find_checkpoint(tmp_path / "out").state.iteration >= 1


def as_one_run(out, tracked):
    """Check that metrics and evaluations go on under their names, whatever the plan, and so for a service."""
    rows = read_metrics(out)
    assert [row["iteration"] for row in rows] == list(range(STOPPED))
    names = {frozenset(row.keys() - set(NOT_IN_EVERY_ITERATION)) for row in rows}
    assert len(names) == 1
    assert [row["iteration"] for row in read_evaluations(out)] == [0, 2, 4, STOPPED]
    sent = [json.loads(line) for line in tracked.read_text().splitlines()]
    trained = [row for row in sent if "mean_reward" in row]
    assert {row["iteration"]: row for row in trained} == {row["iteration"]: row for row in rows}
    assert {row["iteration"] for row in sent if "evaluation/accuracy" in row} >= {2, 4, STOPPED}


def as_from_its_checkpoint(out, iteration, folder):
    """Compare with a run of the second plan that begins with the checkpoint from which the first one went on."""
    start = folder / "checkpoints" / f"iteration-{iteration:06d}"
    shutil.copytree(out / "checkpoints" / start.name, start)
    shutil.copyfile(out / "plan.yaml", folder / "second.yaml")
    given = ("execute", folder / "second.yaml", "--out", folder / "calm", "--resume", start)
    options = ("--warmup", 0, "--seed", SEED, "--iterations", STOPPED, "--address", "local")
    code, _, said = answer(COMMAND, *given, *options, "--checkpoint-every", STOPPED, cwd=folder)
    assert code == 0, said[-3000:]
    last, calm = find_checkpoint(out), find_checkpoint(folder / "calm")
    assert last.state == calm.state
    for role in ("actor", "critic"):
        assert_same(stored_weights(last, role), stored_weights(calm, role))
