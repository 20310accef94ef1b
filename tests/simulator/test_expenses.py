from dataclasses import replace

import pytest

from rlplan.job import NodeGroup
from rlplan.plan import ResourcePool
from rlplan.profiles.facts import load_facts
from rlplan.simulator.timeline.expenses import (
    PoolLoad,
    PoolRates,
    iteration_joules,
    iteration_usd,
    pool_rates,
    rates_of,
)
from tests.simulator.plans import split_plan

A100, H100 = "a100-80gb-sxm", "h100-80gb-sxm"


def job_on(*groups):
    return replace(split_plan().job, cluster=groups)


def rates(job, device, gpus, first=None):
    return pool_rates(job, load_facts(job, None), device, gpus, first)


def test_a_gpu_costs_the_list_price_of_its_sheet():
    job = job_on(NodeGroup(gpu=A100, gpus_per_node=8, inter_node_gbps=200.0))
    assert rates(job, A100, 4).usd_per_second == pytest.approx(4 * 3.43 / 3600)


def test_a_node_groups_price_comes_before_the_sheets_and_may_be_nothing():
    job = job_on(
        NodeGroup(gpu=A100, gpus_per_node=8, usd_per_gpu_hour=1.8, inter_node_gbps=200.0),
        NodeGroup(gpu=H100, gpus_per_node=8, usd_per_gpu_hour=0.0, inter_node_gbps=200.0),
    )
    assert rates(job, A100, 8).usd_per_second == pytest.approx(8 * 1.8 / 3600)
    assert rates(job, H100, 8).usd_per_second == 0


def test_a_pool_that_straddles_two_groups_pays_each_ones_price():
    job = job_on(
        NodeGroup(gpu=A100, gpus_per_node=4, usd_per_gpu_hour=3.0, inter_node_gbps=200.0),
        NodeGroup(gpu=A100, gpus_per_node=4, usd_per_gpu_hour=1.0, inter_node_gbps=200.0),
    )
    assert rates(job, A100, 4, 2).usd_per_second == pytest.approx((2 * 3.0 + 2 * 1.0) / 3600)
    assert rates(job, A100, 6).usd_per_second == pytest.approx((4 * 1.0 + 2 * 3.0) / 3600)


def test_pools_of_a_plan_take_the_groups_gpus_in_turn():
    job = job_on(
        NodeGroup(gpu=A100, gpus_per_node=2, usd_per_gpu_hour=3.6, inter_node_gbps=200.0),
        NodeGroup(gpu=A100, gpus_per_node=2, usd_per_gpu_hour=7.2, inter_node_gbps=200.0),
    )
    plan = split_plan(job=job)
    found = rates_of(plan, load_facts(job, None))
    assert {name: each.usd_per_second for name, each in found.items()} == pytest.approx(
        {"p0": 2 * 0.001, "p1": 2 * 0.002}
    )


def test_reward_workers_cost_no_money_of_their_own_and_a_cores_power():
    plan = split_plan()
    host = ResourcePool(name="host", device="host", gpus=6, roles=("rule",))
    found = rates_of(replace(plan, pools=(*plan.pools, host)), load_facts(plan.job, None))["host"]
    assert found == PoolRates(
        usd_per_second=0.0, idle_watts=6 * 2.0, computing_watts=6 * 8.0, moving_watts=6 * 8.0
    )


def test_generation_draws_half_of_the_rated_power_and_training_three_quarters():
    found = rates(job_on(NodeGroup(gpu=H100, gpus_per_node=8, inter_node_gbps=200.0)), H100, 8)
    assert found.idle_watts + found.moving_watts == pytest.approx(8 * 0.5 * 700)
    assert found.idle_watts + found.computing_watts == pytest.approx(8 * 0.76 * 700)


def test_money_runs_for_the_whole_iteration_and_energy_for_the_work_done():
    pool = PoolRates(usd_per_second=0.5, idle_watts=10.0, computing_watts=100.0, moving_watts=30.0)
    load = PoolLoad(pool, computing_seconds=2.0, moving_seconds=3.0)
    assert iteration_usd([pool, pool], 8.0) == 8.0
    assert iteration_joules([load], 8.0) == 10 * 8 + 100 * 2 + 30 * 3
