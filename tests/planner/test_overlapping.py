"""Searches of jobs whose iterations may overlap or that have two devices, held to all their plans."""

import math
import random
from dataclasses import replace

import pytest

from rlplan.errors import InfeasibleError
from rlplan.job import NodeGroup, Specs
from rlplan.planner.exact.best_first import PlacementSearch, SearchBudget
from rlplan.planner.exact.space import Space
from rlplan.planner.objectives import load_objective, objective_names
from rlplan.planner.placements.partitions import GENERATION, all_placements
from rlplan.planner.requests.schedules import ONE_STEP_OFF
from rlplan.planner.search import search
from rlplan.simulator.simulate import simulate
from tests.cases import draws, first, only
from tests.planner.brute_force import every_order, random_space, with_every_figure

ROUNDING = 1e-9
# Of overlapping iterations: what the way of weights between pools takes beyond the least of any two.
LARGEST_GAP = 0.1
# Jobs of one seed.
JOBS = draws(2, 6)
A100, L40S = "a100-80gb-sxm", "l40s"

two_devices = (
    NodeGroup(gpu=A100, gpus_per_node=1, cpu_cores=2, usd_per_gpu_hour=3.0, inter_node_gbps=200.0),
    NodeGroup(gpu=L40S, gpus_per_node=1, cpu_cores=2, usd_per_gpu_hour=1.0, inter_node_gbps=200.0),
)
pair = (
    NodeGroup(gpu=A100, gpus_per_node=2, cpu_cores=2, usd_per_gpu_hour=3.0, inter_node_gbps=200.0),
)
ahead = Specs(staleness=1)


def check(value, bound, optimum):
    """Hold a found value and the bound to the least value of all plans."""
    assert bound <= optimum * (1 + ROUNDING)
    assert optimum * (1 - ROUNDING) <= value
    return value / optimum - 1


def ordered(plans):
    """Return plans with every order of tasks on their pools."""
    return [with_every_figure(each) for plan in plans for each in every_order(plan)]


def overlapping_searches(job, facts, name):
    """Return finished searches of all placements whose iterations can overlap."""
    space = Space(replace(job, objective=name), facts, {}, name, job.specs)
    found = []
    for placement in all_placements(job):
        if any(GENERATION in members for members in placement):
            found.append(PlacementSearch(space, placement, ONE_STEP_OFF))
            found[-1].quick()
            found[-1].exact(math.inf, SearchBudget())
    return [each.found for each in found]


@pytest.mark.parametrize("cluster", [pair, two_devices], ids=["one device", "two devices"])
@pytest.mark.parametrize("seed", first(1, range(5)))
def test_bounds_of_overlapping_iterations_are_below_all_plans_and_the_best_is_found(seed, cluster):
    generator = random.Random(seed)
    held = 0
    while held < JOBS:
        job, plans, facts = random_space(
            generator, 24, precision="bf16", cluster=cluster, specs=ahead
        )
        ahead_plans = ordered([plan for plan in plans if plan.mode == "one-step-off"])
        forecasts = [each for each in (simulate(p, facts) for p in ahead_plans) if each.feasible]
        if not forecasts:
            continue
        held += 1
        for name in objective_names():
            found = overlapping_searches(job, facts, name)
            optimum = min(map(load_objective(name).figure, forecasts))
            value = min(each.value for each in found)
            excess = check(value, min(min(each.bound, each.value) for each in found), optimum)
            assert excess <= ROUNDING
            assert all(each.bound >= (1 - LARGEST_GAP) * each.value for each in found if each.plan)


@pytest.mark.parametrize("seed", only([], range(5, 15)))
def test_on_two_devices_the_bound_is_below_all_plans_and_the_best_is_found(seed):
    generator = random.Random(seed)
    for _ in range(JOBS):
        job, plans, facts = random_space(generator, 24, precision="bf16", cluster=two_devices)
        forecasts = [each for each in (simulate(p, facts) for p in ordered(plans)) if each.feasible]
        for name in objective_names():
            try:
                result = search(job, facts, objective=name)
            except InfeasibleError:
                assert not forecasts
                continue
            objective = load_objective(name)
            optimum, value = (
                min(map(objective.figure, forecasts)),
                objective.figure(result.plans[0].forecast),
            )
            assert check(value, value * (1 - result.gap), optimum) <= ROUNDING
