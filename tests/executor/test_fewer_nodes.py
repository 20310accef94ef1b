"""A run whose node is lost for good goes on with another plan for the nodes that are left."""

import re
import shutil
from pathlib import Path

import pytest

from executor.control.checkpoints import find_checkpoint
from executor.control.metrics import read_metrics
from rlplan.files.decoding import read_yaml
from rlplan.plan import Plan
from rlplan.results.stored import read_run
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

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="takes addresses of Linux"),
]

ITERATIONS = 5


def test_a_run_whose_node_is_gone_goes_on_with_a_plan_for_the_others(raylets, tmp_path):
    two_nodes(tmp_path, cores=1)
    (tmp_path / "rule.py").write_text(WAITING_RULE)
    options = ("--warmup", 0, "--seed", SEED, "--iterations", ITERATIONS, "--keep", ITERATIONS)
    given = ("execute", tmp_path / "plan.yaml", "--out", tmp_path / "out", "--checkpoint-every", 1)
    ways = ("--address", raylets.address, "--node-wait", 1, "--fewer-nodes")
    lost = program(COMMAND, *given, *options, *ways, cwd=tmp_path)
    wait_for(tmp_path / "waits", lost)
    raylets.kill(SECOND)
    (tmp_path / "killed").write_text("")
    _, said = lost.communicate(timeout=500)
    raylets.add(SECOND, 2, "big")
    assert lost.returncode == 0, said[-3000:]
    words = r"missing: 1 node with 1 CPU; .*; a plan for 1 node \(.*\); goes on after [1-4] iter"
    assert re.search(words, said), said
    out = tmp_path / "out"
    run = read_run(out)
    (changed,) = run.replanned
    assert "missing: 1 node with 1 CPU" in changed.reason
    before, after = read_yaml(Plan, out / changed.before), read_yaml(Plan, out / "plan.yaml")
    assert [sum(group.nodes for group in plan.job.cluster) for plan in (before, after)] == [2, 1]
    assert after == run.plan
    assert {span.pool for span in run.trace.spans} <= {pool.name for pool in after.pools}
    assert [each.iteration for each in run.trace.iterations] == list(
        range(changed.iteration, ITERATIONS)
    )
    assert [row["iteration"] for row in read_metrics(out)] == list(range(ITERATIONS))
    as_from_its_checkpoint(out, changed.iteration, options, tmp_path)


def as_from_its_checkpoint(out, iteration, options, folder):
    """Compare with a run of the second plan that begins with the checkpoint from which the first one went on."""
    start = folder / "checkpoints" / f"iteration-{iteration:06d}"
    shutil.copytree(out / "checkpoints" / start.name, start)
    shutil.copyfile(out / "plan.yaml", folder / "second.yaml")
    given = ("execute", folder / "second.yaml", "--out", folder / "calm", "--resume", start)
    more = ("--checkpoint-every", ITERATIONS, *options, "--address", "local")
    code, _, said = answer(COMMAND, *given, *more, cwd=folder)
    assert code == 0, said[-3000:]
    last, calm = find_checkpoint(out), find_checkpoint(folder / "calm")
    assert last.state == calm.state
    for role in ("actor", "critic"):
        assert_same(stored_weights(last, role), stored_weights(calm, role))


@pytest.mark.full
def test_a_run_for_whose_nodes_there_is_no_plan_ends_with_the_reason(raylets, tmp_path):
    plan = two_nodes(tmp_path, cores=1)
    text = (tmp_path / "plan.yaml").read_text()
    assert plan.job.specs.iteration_seconds is None
    assert text.count("job:\n") == 1
    specs = "job:\n  specs: {usd_per_hour: 1000000, iteration_seconds: 10000}\n"
    (tmp_path / "plan.yaml").write_text(text.replace("job:\n", specs))
    (tmp_path / "rule.py").write_text(WAITING_RULE)
    given = ("execute", tmp_path / "plan.yaml", "--out", tmp_path / "out", "--checkpoint-every", 1)
    ways = ("--address", raylets.address, "--node-wait", 1, "--fewer-nodes", "--warmup", 0)
    lost = program(COMMAND, *given, *ways, "--iterations", ITERATIONS, cwd=tmp_path)
    wait_for(tmp_path / "waits", lost)
    (tmp_path / "killed").write_text("")
    lost.communicate(timeout=500)
