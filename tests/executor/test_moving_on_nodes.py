"""A run on the nodes of a cluster whose replicas come and go moves to another plan, with those that are there."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.executor.control.checkpoints import find_checkpoint
from rlplan.executor.control.cluster import Cluster
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.run import Saving
from rlplan.executor.execute import execute
from rlplan.files.decoding import read_yaml
from rlplan.plan import Plan
from rlplan.replicas import devices_of, read_schedule
from tests.executor.test_checkpoints import assert_same, stored_weights
from tests.executor.test_joined_cluster import SECOND, SEED, WAITING_RULE, answer, program, wait_for
from tests.executor.test_moving import Forced
from tests.executor.test_replicas_on_nodes import on_nodes

ITERATIONS, MOVES_AFTER = 6, 4
MOVER = """
import sys
from pathlib import Path
from tests.executor.test_moving_on_nodes import carried_out

carried_out(Path(sys.argv[1]), sys.argv[2])
"""


def plans():
    """Return a plan with a trainer and a replica on the first node and another replica on the second, and one that follows."""
    before = on_nodes((2, 1), (1, 1))
    job = replace(before.job, specs=replace(before.job.specs, staleness=2))
    before = replace(before, job=job)
    update = before.tasks["actor.update"]
    return before, before.with_layout("actor.update", replace(update, micro_batch=4))


def tell(_, __, said):
    sys.stderr.write(f"{said}\n")


def carried_out(out, address=""):
    """Run the first plan on a cluster, or on this machine alone, and move after some iterations."""
    before, after = plans()
    execute(
        before,
        out,
        iterations=ITERATIONS,
        seed=SEED,
        warmup=0,
        folder=out.parent,
        saving=Saving(every=1),
        cluster=Cluster(address=address) if address else None,
        simulate_nodes=not address,
        adapter=Forced({MOVES_AFTER: after}),
        schedule=devices_of(read_schedule("2"), before),
        progress=tell,
    )


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="takes addresses of Linux")
def test_a_run_that_has_lost_a_replica_with_its_node_moves_with_the_other_one(raylets, tmp_path):
    (tmp_path / "rule.py").write_text(WAITING_RULE)
    out, calm = tmp_path / "out", tmp_path / "calm"
    run = program(MOVER, out, raylets.address, cwd=tmp_path)
    wait_for(tmp_path / "waits", run)
    raylets.kill(SECOND)
    (tmp_path / "killed").write_text("")
    try:
        _, said = run.communicate(timeout=500)
    finally:
        run.kill()
        raylets.add(SECOND, 2, "big")
    assert run.returncode == 0, said[-3000:]
    assert "retry" not in said
    assert f"after {MOVES_AFTER} iterations goes on with another plan" in said
    assert read_yaml(Plan, out / "plan.yaml") == plans()[1]
    rows = read_metrics(out)
    assert [row["iteration"] for row in rows] == list(range(ITERATIONS))
    assert (rows[0]["replicas"], rows[-1]["replicas"]) == (2, 1)
    code, _, words = answer(MOVER, calm, "", cwd=tmp_path)
    assert code == 0, words[-3000:]
    assert_same(*(stored_weights(find_checkpoint(each)) for each in (out, calm)))
