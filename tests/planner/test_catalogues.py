"""Plans on a part of a cluster count the host cores of the nodes on which they stand."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.job import NodeGroup, Specs
from rlplan.planner.placements.allocations import rented_cores
from rlplan.planner.plans.assembly import HOST_POOL
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import load_facts

JOB = load_job(Path(__file__).resolve().parents[2] / "examples" / "grpo-qwen2.5-7b-8xh100.yaml")


def test_cores_are_those_of_the_nodes_that_gpus_stand_on():
    first = NodeGroup(gpu="h100", gpus_per_node=8, nodes=2, cpu_cores=100)
    other = NodeGroup(gpu="h100", gpus_per_node=4, nodes=2, cpu_cores=30)
    job = replace(JOB, cluster=(first, replace(first, gpu="l40s", cpu_cores=7), other))
    cores = [rented_cores(job, {"h100": gpus}) for gpus in (0, 1, 8, 9, 16, 17, 24)]
    assert cores == [0, 100, 100, 200, 200, 230, 260]
    assert rented_cores(job, {"h100": 8, "l40s": 9}) == 114


@pytest.mark.full
@pytest.mark.parametrize("objective", ["energy", "cost", "throughput"])
def test_a_plan_on_one_node_of_many_is_the_plan_of_that_node(objective):
    node = JOB.cluster[0]
    many = replace(JOB, cluster=(replace(node, nodes=28),))
    found = [
        search(job, load_facts(job), objective=objective, specs=Specs(gpus=8)).plans[0]
        for job in (JOB, many)
    ]
    one, of_many = (each.forecast for each in found)
    assert of_many.energy_joules == pytest.approx(one.energy_joules, rel=1e-6)
    assert of_many.iteration_seconds == pytest.approx(one.iteration_seconds, rel=1e-6)
    hosts = [each.plan.pool(HOST_POOL).gpus for each in found]
    assert hosts[0] == hosts[1] <= node.cpu_cores
