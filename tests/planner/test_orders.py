"""Orders of tasks on a pool: which are looked at, and that the best of them is found."""

import math

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup
from rlplan.planner.exact.best_first import PlacementSearch, SearchBudget
from rlplan.planner.exact.space import Space
from rlplan.planner.placements.orders import other_orders
from rlplan.planner.placements.partitions import Placement
from rlplan.planner.requests.schedules import ONE_STEP_OFF
from rlplan.profiles.catalog import load_model
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from rlplan.workload import Workload
from tests.planner.brute_force import every_order

SMALL = load_model("qwen2.5-0.5b")
TOGETHER = ("actor", "critic", "reference", "reward")


def job(algorithm="ppo", roles=TOGETHER, **models):
    return Job(
        algorithm=algorithm,
        models=FrozenDict(dict.fromkeys(roles, SMALL) | models),
        workload=Workload(prompts=512, prompt_tokens=512, response_tokens=32),
        cluster=(NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=1, nodes=3, inter_node_gbps=200),),
        engines=Engines(train="megatron-core", generate="vllm"),
        precision="bf16",
    )


def orders(placement, mode="sync", chosen=None, **options):
    chosen = chosen or job()
    tasks = tasks_of(load_algorithm(chosen.algorithm), chosen)
    return list(other_orders(placement, tasks, mode, **options))


def test_a_pool_that_nobody_waits_for_has_one_order():
    assert orders((TOGETHER,)) == []


def test_tasks_on_pools_of_their_own_have_one_order():
    assert orders(tuple((role,) for role in TOGETHER)) == []


def test_tasks_whose_data_others_want_are_looked_at_in_every_order():
    found = orders((("actor", "critic"), ("reference", "reward")))
    home = ("actor.generate", "critic.compute_values", "actor.update", "critic.update")
    assert found == [(home, ("reward.compute_reward", "reference.compute_log_prob"))]


def test_overlapping_iterations_may_send_weights_before_or_after_the_critic_trains():
    found = orders(
        (("actor.generate",), ("actor", "critic"), ("reference", "reward")), "one-step-off"
    )
    trained = {names[1][-2:] for names in found}
    assert trained == {("actor.update", "critic.update"), ("critic.update", "actor.update")}


def test_an_order_that_the_user_fixed_stays():
    placement = (("actor", "critic"), ("reference", "reward"))
    assert orders(placement, pinned=frozenset({0, 1})) == []


def test_of_many_tasks_each_is_looked_at_as_the_last():
    roles = (*TOGETHER, "cost", "cost_critic")
    chosen = job("safe-rlhf", roles)
    found = orders((("actor",), roles[1:]), chosen=chosen)
    assert {names[1][4] for names in found} == {
        "critic.compute_values",
        "cost_critic.compute_values",
        "reference.compute_log_prob",
        "reward.compute_reward",
    }


AHEAD: Placement = (("actor.generate",), ("actor", "critic"), ("reference", "reward"))


def test_the_search_finds_the_order_in_which_pools_wait_least_for_each_other():
    """Weights that go over before the critic trains would keep the critic's pool from it too long."""
    chosen = job()
    facts = load_facts(chosen)
    space = Space(chosen, facts, {}, "throughput", chosen.specs)
    search = PlacementSearch(space, AHEAD, ONE_STEP_OFF)
    search.quick()
    search.exact(math.inf, SearchBudget())
    found = search.found
    home = next(pool.name for pool in found.plan.pools if "critic" in pool.roles)
    assert found.plan.order[home][-2:] == ("critic.update", "actor.update")
    seconds = [simulate(plan, facts).iteration_seconds for plan in every_order(found.plan)]
    assert found.forecast.iteration_seconds == min(seconds)
    assert max(seconds) > 1.1 * min(seconds)
