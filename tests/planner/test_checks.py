from dataclasses import replace
from pathlib import Path

import pytest

from planner.requests.checks import check_plan
from profiles.catalog import load_job
from rlplan.errors import FileError
from rlplan.plan import ResourcePool, TaskPlan
from tests.planner.sound_plans import A100, split_ppo

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ppo-7b-16xa100.yaml"
HOST = ResourcePool(name="host", device="host", gpus=4, roles=("rule",))


@pytest.fixture(scope="module")
def plan():
    """Return a sound plan on two pools of eight GPUs."""
    return split_ppo(load_job(EXAMPLE))


def with_task(plan, name, **changes):
    return replace(plan, tasks=plan.tasks.with_item(name, replace(plan.tasks[name], **changes)))


def with_pool(plan, index, **changes):
    pools = list(plan.pools)
    pools[index] = replace(pools[index], **changes)
    return replace(plan, pools=tuple(pools))


def without(mapping, key):
    return type(mapping)({name: value for name, value in mapping.items() if name != key})


def test_a_sound_plan_passes(plan):
    check_plan(plan)


def test_the_message_names_the_file(plan):
    with pytest.raises(FileError, match=r"^mine\.yaml: mode: is not simulated or executed yet"):
        check_plan(replace(plan, mode="streaming"), "mine.yaml")


SIZES = {"tp": 8, "pp": 1, "dp": 1}
WRONG = {
    "pools: is empty: every model needs a pool": lambda p: replace(p, pools=()),
    "pools.0.name: is used by two pools; found 'p1'": lambda p: with_pool(p, 0, name="p1"),
    "pools.0.device: is not a device of the job's cluster; found 'a100-40gb-sxm'; "
    "allowed: a100-80gb-sxm; did you mean 'a100-80gb-sxm'?": lambda p: with_pool(
        p, 0, device="a100-40gb-sxm"
    ),
    "pools.1.gpus: the pools want 24 GPUs of a100-80gb-sxm, the cluster has fewer; found 16; "
    "allowed: at most 16 over all pools": lambda p: with_pool(p, 1, gpus=16),
    "tasks.cost.compute_cost: is no task of ppo with these models": lambda p: replace(
        p, tasks=p.tasks.with_item("cost.compute_cost", TaskPlan(pool="p0"))
    ),
    "tasks.critic.update: is missing": lambda p: replace(
        p, tasks=without(p.tasks, "critic.update")
    ),
    "tasks.actor.update.pool: no such pool; found 'p2'; allowed: p0, p1": lambda p: with_task(
        p, "actor.update", pool="p2"
    ),
    "tasks.critic.update.pool: pool p0 does not hold the role critic; found 'p0'; "
    "allowed: a pool whose roles contain critic": lambda p: with_task(
        p, "critic.update", pool="p0"
    ),
    "tasks.reward.compute_reward.pool: models run on GPU pools, and rules on host pools; "
    "found 'host'": lambda p: with_task(
        replace(p, pools=(*p.pools, replace(HOST, roles=("reward",)))),
        "reward.compute_reward",
        pool="host",
    ),
    "tasks.actor.update: tp 4 x pp 1 x dp 1 x cp 1 covers 4 GPUs, but pool p0 has 8": (
        lambda p: with_task(p, "actor.update", dp=1)
    ),
    "tasks.actor.update.tp: does not divide the 32 heads and 32 KV heads of llama-2-7b; found 3; "
    "allowed: 1, 2, 4, 8, 16, 32": lambda p: with_task(p, "actor.update", tp=3),
    "tasks.actor.update.tp: leaves the node; found 16; allowed: at most 8 (GPUs per node)": (
        lambda p: with_task(p, "actor.update", tp=16)
    ),
    "tasks.actor.update.pp: does not divide the 32 layers of llama-2-7b; found 3; "
    "allowed: 1, 2, 4, 8, 16, 32": lambda p: with_task(p, "actor.update", pp=3),
    "tasks.actor.update.ep: needs a model with experts that it divides; llama-2-7b has 0; "
    "found 2": lambda p: with_task(p, "actor.update", ep=2),
    "tasks.reference.compute_log_prob.dp: does not divide the 4 prompts of an iteration; found 8; "
    "allowed: 1, 2, 4": lambda p: replace(
        with_task(p, "reference.compute_log_prob", tp=1, dp=8),
        job=replace(p.job, workload=replace(p.job.workload, prompts=4, updates=1)),
    ),
    "tasks.actor.update.dp: does not divide the 1 sequences of an update; found 2; "
    "allowed: 1": lambda p: replace(
        p, job=replace(p.job, workload=replace(p.job.workload, prompts=8))
    ),
    "tasks.actor.update.engine: no such engine; found 'megatron'; allowed: ": (
        lambda p: with_task(p, "actor.update", engine="megatron")
    ),
    "tasks.actor.generate.engine: no such engine; found 'megatron-core'; allowed: ": (
        lambda p: with_task(p, "actor.generate", engine="megatron-core")
    ),
    "tasks.actor.update.pp: engine fsdp2 does not run it; found 2; allowed: at most 1": (
        lambda p: with_task(p, "actor.update", engine="fsdp2", pp=2, dp=1)
    ),
    "tasks.actor.update.zero: engine megatron-core does not offer it; found 3; allowed: 0, 1": (
        lambda p: with_task(p, "actor.update", zero=3)
    ),
    "tasks.reward.compute_reward.zero: engine megatron-core does not offer it; found 1; "
    "allowed: 0": lambda p: with_task(p, "reward.compute_reward", zero=1),
    "tasks.actor.update.recompute: engine torch-tp-dp does not offer it; found 'full'; "
    "allowed: none": lambda p: with_task(p, "actor.update", engine="torch-tp-dp", zero=0),
    "tasks.critic.compute_values.tp: differs from critic.update's, where the weights of critic "
    "live; found 8; allowed: 4": lambda p: with_task(p, "critic.compute_values", **SIZES),
    "order.p1: is missing; allowed: its tasks: critic.compute_values, critic.update, "
    "reward.compute_reward": lambda p: replace(p, order=without(p.order, "p1")),
    "order.p0: must name each task of the pool once; found 'actor.generate'; allowed: "
    "actor.generate, actor.update, reference.compute_log_prob": lambda p: replace(
        p, order=p.order.with_item("p0", ("actor.generate",))
    ),
    "order.p2: no such pool": lambda p: replace(p, order=p.order.with_item("p2", ())),
    "transition: two copies are for an actor that generates on another pool than it trains on; "
    "found 'two-copies'; allowed: hybridflow, hybridflow-v, all-gather, none": (
        lambda p: replace(p, transition="two-copies")
    ),
    "transition: cannot bring tp 4, pp 1 to tp 2, pp 1 of generation; found 'none'; "
    "allowed: hybridflow": lambda p: replace(p, transition="none"),
    "transition: cannot bring tp 4, pp 1 to tp 8, pp 1 of generation; found 'hybridflow'; "
    "allowed: all-gather": lambda p: with_task(p, "actor.generate", **SIZES),
    "mode: is not simulated or executed yet; found 'streaming'; allowed: sync, one-step-off": (
        lambda p: replace(p, mode="streaming")
    ),
    "mode: generates the next batch while this one trains, but actor.generate shares pool p0 with "
    "actor.update; found 'one-step-off'; allowed: sync, or a pool of its own for actor.generate": (
        lambda p: replace(p, mode="one-step-off", staleness=1)
    ),
    "staleness: must be 0 in mode sync; found 1; allowed: 0": lambda p: replace(p, staleness=1),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_contradicts_itself_is_refused_in_one_line(plan, message):
    with pytest.raises(FileError) as refusal:
        check_plan(WRONG[message](plan))
    assert str(refusal.value).startswith(f"plan: {message}")


def apart(plan):
    """Return the plan with the actor's generation on the critic's pool."""
    return replace(
        plan,
        pools=(
            ResourcePool(name="p0", device=A100, gpus=8, roles=("actor", "reference")),
            ResourcePool(name="p1", device=A100, gpus=8, roles=("actor", "critic", "reward")),
        ),
        tasks=plan.tasks.with_item(
            "actor.generate", replace(plan.tasks["actor.generate"], pool="p1")
        ),
        order=type(plan.order)(
            {
                "p0": ("reference.compute_log_prob", "actor.update"),
                "p1": ("actor.generate", *plan.order["p1"]),
            }
        ),
    )


def test_an_actor_that_generates_elsewhere_needs_two_copies(plan):
    with pytest.raises(FileError, match=r"transition: two copies.*allowed: two-copies"):
        check_plan(apart(plan))
    check_plan(replace(apart(plan), transition="two-copies"))


def test_generation_on_a_pool_of_its_own_may_run_one_update_ahead_and_no_more(plan):
    ahead = replace(apart(plan), transition="two-copies", mode="one-step-off")
    check_plan(replace(ahead, staleness=1))
    for staleness in (0, 2):
        message = f"staleness: must be 1 in mode one-step-off; found {staleness}; allowed: 1"
        with pytest.raises(FileError, match=message):
            check_plan(replace(ahead, staleness=staleness))


def test_weights_that_training_shards_fully_may_be_inferred_sharded(plan):
    sharded = plan
    for name in ("critic.compute_values", "critic.update"):
        sharded = with_task(sharded, name, engine="fsdp2", zero=3)
    check_plan(sharded)


def test_chunks_of_layers_need_a_pipeline_and_sizes_that_they_divide(plan):
    cut = {"tp": 1, "pp": 4, "dp": 2, "engine": "megatron-core"}
    piped = with_task(plan, "critic.compute_values", **cut, micro_batch=1)
    piped = with_task(piped, "critic.update", **cut, micro_batch=1, chunks=2)
    check_plan(piped)
    with pytest.raises(FileError, match="does not divide the 8 layers of a stage; found 3"):
        check_plan(with_task(piped, "critic.update", chunks=3))
    with pytest.raises(FileError, match="needs micro-batches in rounds of all 4 stages"):
        check_plan(with_task(piped, "critic.update", micro_batch=32))
    with pytest.raises(FileError, match="needs a training pipeline that interleaves"):
        check_plan(with_task(plan, "critic.update", chunks=2))
