"""What is off-loaded lies in host memory, which is a limit like the GPU's."""

from dataclasses import replace

from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.results.forecast import MemoryForecast
from simulator.placed.plan import PlacedPlan
from simulator.timeline.assemble import memory_shortage
from simulator.timeline.pool_memory import pool_memory
from tests.simulator.test_memory import FACTS, JOB, colocated, memory_of

GPUS = JOB.cluster[0].gpus_per_node


def off_loading(host_memory_bytes: int) -> Plan:
    """Return a plan whose optimizer states lie in host memory between updates."""
    plan = colocated()
    tasks = {
        name: replace(layout, offload=name.endswith("update"))
        for name, layout in plan.tasks.items()
    }
    cluster = tuple(replace(g, host_memory_bytes=host_memory_bytes) for g in plan.job.cluster)
    return replace(plan, job=replace(plan.job, cluster=cluster), tasks=FrozenDict(tasks))


def memory_forecast(plan: Plan) -> MemoryForecast:
    return pool_memory(PlacedPlan(plan, FACTS), plan.pools[0])


def test_off_loaded_states_take_host_memory():
    plan = off_loading(2**41)
    found = memory_forecast(plan)
    states = memory_of("actor.update", replace(plan.tasks["actor.update"])).transient
    assert found.host_terms["actor optimizer states"] == states["actor optimizer states"] > 0
    assert found.host_peak_bytes == sum(found.host_terms.values())
    assert found.host_capacity_bytes == 2**41 // GPUS
    assert found.fits_host


def test_a_host_that_is_too_small_is_said_with_both_numbers():
    plan = off_loading(2**33)
    found = memory_forecast(plan)
    assert found.fits_device
    assert not found.fits
    said = memory_shortage(plan.pools[0], found)
    assert "of the 1.0 GiB of host memory that a GPU's share of its node is" in said
    assert "optimizer states" in said


def test_a_plan_that_off_loads_nothing_asks_nothing_of_the_host():
    assert not memory_forecast(colocated()).host_terms
