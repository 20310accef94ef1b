from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.job import PrefillApart, Rewards, Teacher
from rlplan.plan import Lending, PlanDraft, ResourcePool, TaskDraft, TaskPlan
from rlplan.profiles.catalog import ENGINES, load_job
from rlplan.rules import RULES, check_plan, refusals
from rlplan.workload import Environment
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
    check_plan(plan, ENGINES)


def test_the_message_names_the_file(plan):
    with pytest.raises(FileError, match=r"^mine\.yaml: mode: hands responses to training while"):
        check_plan(replace(plan, mode="streaming"), ENGINES, "mine.yaml")


def with_models(plan, **changes):
    models = {role: replace(model, **changes) for role, model in plan.job.models.items()}
    return replace(plan, job=replace(plan.job, models=type(plan.job.models)(models)))


def with_cut_rule(plan):
    rule = {"rule.compute_reward": TaskPlan(pool="host", tp=4, engine="python")}
    return replace(
        plan,
        job=replace(plan.job, rewards=Rewards(function="digits")),
        pools=(*plan.pools, HOST),
        tasks=type(plan.tasks)({**plan.tasks, **rule}),
        order=plan.order.with_item("host", tuple(rule)),
    )


def piped(plan):
    """Return the plan with a critic in a pipeline of four stages."""
    cut = {"tp": 1, "pp": 4, "dp": 2, "engine": "megatron-core", "micro_batch": 1}
    return with_task(with_task(plan, "critic.compute_values", **cut), "critic.update", **cut)


EXPERTS = {"num_experts": 8, "experts_per_token": 2, "moe_ffn_size": 1024}
SIZES = {"tp": 8, "pp": 1, "dp": 1}
TOOL = Environment(name="tool", turns=1, step_seconds=1.0, cpu_cores=2.0, workers=4)


def with_tools(plan, *, cores, held=2.0):
    cluster = tuple(replace(group, cpu_cores=cores) for group in plan.job.cluster)
    work = replace(plan.job.workload, environments=(replace(TOOL, cpu_cores=held),))
    return replace(plan, job=replace(plan.job, cluster=cluster, workload=work))


TEACHER = "teacher.compute_log_prob"


def taught(plan, pool, **sizes):
    """Return the plan with a teacher on one of its pools, whose whole distributions are compared."""
    job = plan.job
    models = job.models.with_item("teacher", job.models["actor"])
    plan = replace(plan, job=replace(job, models=models, teacher=Teacher(top_tokens="all")))
    index = next(at for at, each in enumerate(plan.pools) if each.name == pool)
    plan = with_pool(plan, index, roles=(*plan.pools[index].roles, "teacher"))
    cut = {"tp": 1, "pp": 1, "dp": 8}
    for name in ("actor.update", "reference.compute_log_prob"):
        plan = with_task(plan, name, **cut)
    layout = TaskPlan(pool=pool, engine="fsdp2-hf-padded", **(cut | sizes))
    order = plan.order.with_item(pool, (*plan.order[pool][:-1], TEACHER, plan.order[pool][-1]))
    return replace(plan, tasks=plan.tasks.with_item(TEACHER, layout), order=order)


WRONG = {
    f"tasks.{TEACHER}.pool: is not the actor's, and job.teacher.top_tokens: all compares "
    "micro-batch by micro-batch there; found 'p1'; allowed: p0": lambda p: taught(p, "p1"),
    f"tasks.{TEACHER}.tp: cuts what job.teacher.top_tokens: all compares on one GPU; found 2; "
    "allowed: 1": lambda p: taught(p, "p0", tp=2, dp=4),
    "job.workload.environments.0.cpu_cores: is more than all nodes have together, 2; found 4.0; "
    "allowed: at most 2, or 0 where steps run outside of the cluster": lambda p: with_tools(
        p, cores=1, held=4.0
    ),
    "job.workload.environments.0.workers: hold 8 cores, and all nodes together have 6; found 4; "
    "allowed: at most 3, or none for as many as fit": lambda p: with_tools(p, cores=3),
    "tasks.actor.generate.dp: leaves no replica to write: 8 read prompts alone (prefill.replicas); found": lambda p: (
        replace(p, job=replace(p.job, prefill=PrefillApart(replicas=8)))
    ),
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
    "transport: means nothing where the actor generates on the pool that it trains on; found 'post'; "
    "allowed: object-store": lambda p: replace(p, transport="post"),
    "tasks.actor.generate.offload: means nothing for actor.generate, whose kind is generate; "
    "found True; allowed: False, or leave it out": lambda p: with_task(
        p, "actor.generate", offload=True
    ),
    "tasks.actor.update.max_running: means nothing for actor.update, whose kind is train": lambda p: (
        with_task(p, "actor.update", max_running=64)
    ),
    "tasks.reference.compute_log_prob.recompute: means nothing for reference": lambda p: with_task(
        p, "reference.compute_log_prob", recompute="full"
    ),
    "tasks.actor.update.pool: no such pool; found 'p2'; allowed: p0, p1": lambda p: with_task(
        p, "actor.update", pool="p2"
    ),
    "tasks.critic.update.pool: pool p0 does not hold the role critic; found 'p0'; "
    "allowed: p1": lambda p: with_task(p, "critic.update", pool="p0"),
    "tasks.reward.compute_reward.pool: models run on GPU pools, and tasks "
    "without one, such as rules, on host pools; "
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
    "tasks.actor.update.pp: does not divide the 32 layers of llama-2-7b, and stages of engine "
    "torch-3d are equal; found 3; allowed: 1, 2, 4, 8, 16, 32": lambda p: with_task(
        p, "actor.update", engine="torch-3d", pp=3
    ),
    "tasks.actor.update.pp: has more stages than the 32 layers of llama-2-7b; found 64; "
    "allowed: at most 32": lambda p: with_task(p, "actor.update", pp=64),
    "tasks.critic.update.first_stage_layers: leaves 2 of the 32 layers of llama-2-7b to 3 other "
    "stages; found 30": lambda p: with_task(piped(p), "critic.update", first_stage_layers=30),
    "tasks.critic.compute_values.first_stage_layers: differs from critic.update's, where the weights "
    "of critic live; allowed: 5": lambda p: with_task(
        piped(p), "critic.update", first_stage_layers=5
    ),
    "tasks.actor.generate.expert_tp: needs a model with experts; llama-2-7b has none; found 1": (
        lambda p: with_task(p, "actor.generate", expert_tp=1)
    ),
    "tasks.critic.compute_values.expert_tp: differs from critic.update's, where the weights of "
    "critic live; found 4; allowed: 2": lambda p: with_task(
        with_models(p, **EXPERTS), "critic.update", expert_tp=2
    ),
    "tasks.critic.update.expert_tp: engine real cuts experts as all else; found 2; allowed: 4": (
        lambda p: with_task(
            with_task(with_models(p, **EXPERTS), "critic.update", engine="real", expert_tp=2),
            "critic.compute_values",
            expert_tp=2,
        )
    ),
    "tasks.critic.update.shard_ranks: does not divide dp 2 x cp 1 = 2 ranks; found 4; allowed: 1, 2": (
        lambda p: with_task(p, "critic.update", shard_ranks=4)
    ),
    "tasks.critic.compute_values.cp: x tp 4 = 8 does not divide the 4 heads and 4 KV heads of "
    "llama-2-7b, which engine fsdp2 exchanges; found 2": lambda p: with_task(
        with_task(
            with_models(p, num_heads=4, num_kv_heads=4),
            "critic.compute_values",
            engine="fsdp2",
            cp=2,
            dp=1,
        ),
        "critic.update",
        engine="fsdp2",
        cp=2,
        dp=1,
    ),
    "tasks.actor.update.ep: x expert_tp 1 = 16 does not divide tp 4 x cp 1 x dp 2 = 8; found 16": (
        lambda p: with_task(
            with_models(p, **(EXPERTS | {"num_experts": 16})), "actor.update", ep=16, expert_tp=1
        )
    ),
    "tasks.actor.update.ep: needs a model with experts that it divides; llama-2-7b has 0; "
    "found 2": lambda p: with_task(p, "actor.update", ep=2),
    "tasks.reference.compute_log_prob.dp: has more ranks than the 4 sequences of an iteration; "
    "found 8; allowed: at most 4": lambda p: replace(
        with_task(p, "reference.compute_log_prob", tp=1, dp=8),
        job=replace(p.job, workload=replace(p.job.workload, prompts=4, updates=1)),
    ),
    "tasks.actor.update.dp: does not divide the 3 sequences of an update, and engine torch-3d does "
    "not pad; found 2; allowed: 1, 3": lambda p: replace(
        with_task(p, "actor.update", engine="torch-3d"),
        job=replace(p.job, workload=replace(p.job.workload, prompts=24)),
    ),
    "tasks.critic.update.tp: does not divide the 32 heads and 2 KV heads of llama-2-7b, and engine "
    "fsdp2 copies none; found 4; allowed: 1, 2": lambda p: with_task(
        with_models(p, num_kv_heads=2), "critic.update", engine="fsdp2"
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
    "tasks.actor.update.recompute: engine megatron-core does not offer it; found 'alternate'; "
    "allowed: none, full, attention, selective, experts": (
        lambda p: with_task(p, "actor.update", recompute="alternate")
    ),
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
    "found 'two-copies'; allowed: all-gather, hybridflow, hybridflow-v, none": (
        lambda p: replace(p, transition="two-copies")
    ),
    "transition: cannot bring tp 4, pp 1 to tp 2, pp 1 of generation; found 'none'; "
    "allowed: hybridflow": lambda p: replace(p, transition="none"),
    "transition: cannot bring tp 4, pp 1 to tp 8, pp 1 of generation; found 'hybridflow'; "
    "allowed: all-gather": lambda p: with_task(p, "actor.generate", **SIZES),
    "mode: hands responses to training while others are generated, but actor.generate shares pool p0 "
    "with actor.update; found 'streaming'; allowed: sync, or a pool of its own for actor.generate": (
        lambda p: replace(p, mode="streaming")
    ),
    "sync_every: is 1 in mode sync; found 4; allowed: 1, or mode async": (
        lambda p: replace(p, sync_every=4)
    ),
    "in_flight: mode sync has no response under way when new weights come; found 'keep'; allowed: "
    "drain, or mode async": lambda p: replace(p, in_flight="keep"),
    "lending: is not for mode sync; found 'sync'; allowed: modes streaming, async, or no lending": (
        lambda p: replace(p, lending=Lending())
    ),
    "lending.tp: cuts replicas of tp 3, pp 1, which do not fill the 8 GPUs of the training pool; "
    "found 3; allowed: a divisor of 8": lambda p: lending(p, tp=3),
    "lending.to: lends h100-80gb-sxm to training on a100-80gb-sxm; found 'training'; "
    "allowed: generation, or pools of one device": lambda p: lending(
        with_other_device(p), to=("training",)
    ),
    "mode: generates the next batch while this one trains, but actor.generate shares pool p0 with "
    "actor.update; found 'one-step-off'; allowed: sync, or a pool of its own for actor.generate": (
        lambda p: replace(p, mode="one-step-off", staleness=1)
    ),
    "staleness: must be 0 in mode sync; found 1; allowed: 0": lambda p: replace(p, staleness=1),
    "pools.0.roles: no such model; found 'cost'; allowed: ": lambda p: with_pool(
        p, 0, roles=("actor", "reference", "cost")
    ),
    "pools: the role reference is on 2 pools; allowed: one pool": lambda p: with_pool(
        p, 1, roles=("critic", "reward", "reference")
    ),
    "pools: the role actor is on 2 pools; allowed: one; on two, tasks.actor.generate.pool says": (
        lambda p: with_pool(p, 1, roles=("critic", "reward", "actor"))
    ),
    "tasks.critic.compute_values.tp: does not divide the MLP width 11010 of llama-2-7b; found 4; "
    "allowed: 1, 2": lambda p: with_models(p, ffn_size=11010),
    "tasks.actor.update.ep: does not divide the 2 data-parallel ranks; found 4; allowed: 1, 2": (
        lambda p: with_task(with_models(p, **EXPERTS), "actor.update", ep=4)
    ),
    "tasks.critic.compute_values.ep: differs from critic.update's, where the weights of critic "
    "live; found 1; allowed: 2": lambda p: with_task(
        with_models(p, **EXPERTS), "critic.update", ep=2
    ),
    "tasks.critic.compute_values.zero: differs from critic.update's stage 3, in which the weights "
    "of critic lie; found 0; allowed: 3": lambda p: with_task(
        with_task(p, "critic.update", engine="fsdp2", zero=3), "critic.compute_values"
    ),
    "tasks.rule.compute_reward.tp: cuts a model, and rule.compute_reward has none; found 4; "
    "allowed: 1": with_cut_rule,
    "job.workload.updates: does not divide the 1023 sequences of an iteration": lambda p: replace(
        p, job=replace(p.job, workload=replace(p.job.workload, prompts=1023))
    ),
    "tasks.actor.generate.zero: is for training and inference: what generates is not sharded; "
    "found 3; allowed: 0": lambda p: with_task(p, "actor.generate", zero=3),
    "tasks.critic.update.chunks: engine real does not interleave stages; found 2; allowed: 1": (
        lambda p: with_task(piped(p), "critic.update", engine="real", chunks=2)
    ),
    "tasks.critic.update.chunks: does not divide the 8 layers of a stage; found 3; "
    "allowed: 1, 2, 4, 8": lambda p: with_task(piped(p), "critic.update", chunks=3),
    "tasks.critic.update.chunks: needs micro-batches in rounds of all 4 stages, and a rank has 1; "
    "found 2; allowed: 1": lambda p: with_task(
        piped(p), "critic.update", chunks=2, micro_batch=128
    ),
    "tasks.critic.update.chunks: needs a training pipeline that interleaves; found 2; "
    "allowed: 1": lambda p: with_task(p, "critic.update", chunks=2),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_contradicts_itself_is_refused_in_one_line(plan, message):
    with pytest.raises(FileError) as refusal:
        check_plan(WRONG[message](plan), ENGINES)
    assert str(refusal.value).startswith(f"plan: {message}")


def apart(plan):
    """Return the plan with the actor's generation on the critic's pool."""
    return replace(
        plan,
        pools=(
            ResourcePool(name="p0", device=A100, gpus=8, roles=("actor", "reference")),
            ResourcePool(
                name="p1",
                device=plan.job.cluster[-1].gpu,
                gpus=8,
                roles=("actor", "critic", "reward"),
            ),
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


def lending(plan, **fields):
    """Return the plan streaming from a pool of its own, with idle GPUs lent."""
    streams = replace(apart(plan), transition="two-copies", mode="streaming")
    return replace(streams, lending=Lending(**fields))


def with_other_device(plan):
    """Return the plan with its second pool on H100."""
    other = replace(plan.job.cluster[0], gpu="h100-80gb-sxm", nodes=1)
    return replace(plan, job=replace(plan.job, cluster=(*plan.job.cluster, other)))


def test_an_actor_that_generates_elsewhere_needs_two_copies(plan):
    with pytest.raises(FileError, match=r"transition: two copies.*allowed: two-copies"):
        check_plan(apart(plan), ENGINES)
    check_plan(replace(apart(plan), transition="two-copies"), ENGINES)


def test_generation_on_a_pool_of_its_own_may_run_one_update_ahead_and_no_more(plan):
    ahead = replace(apart(plan), transition="two-copies", mode="one-step-off")
    check_plan(replace(ahead, staleness=1), ENGINES)
    for staleness in (0, 2):
        message = f"staleness: must be 1 in mode one-step-off; found {staleness}; allowed: 1"
        with pytest.raises(FileError, match=message):
            check_plan(replace(ahead, staleness=staleness), ENGINES)


def test_weights_that_training_shards_fully_may_be_inferred_sharded(plan):
    sharded = plan
    for name in ("critic.compute_values", "critic.update"):
        sharded = with_task(sharded, name, engine="fsdp2", zero=3)
    check_plan(sharded, ENGINES)


def test_chunks_of_layers_interleave_a_pipeline(plan):
    check_plan(with_task(piped(plan), "critic.update", chunks=2), ENGINES)


def test_what_is_fixed_is_refused_by_the_same_rules_and_what_is_open_is_not(plan):
    draft = PlanDraft(job="job.yaml", tasks=FrozenDict({"critic.update": TaskDraft(tp=4, pp=8)}))
    (refusal,) = refusals(draft, plan.job, ENGINES)
    assert refusal.problem.words == "tp 4 x pp 8 covers more than the cluster's 16 GPUs"
    assert not list(refusals(PlanDraft(job="job.yaml"), plan.job, ENGINES))


def test_every_rule_has_a_reason_and_a_plan_that_breaks_it(plan):
    broken = {
        refusal.rule
        for change in WRONG.values()
        for refusal in refusals(change(plan), change(plan).job, ENGINES)
    }
    assert {rule.name for rule in RULES if rule not in broken} == {"sizes fit the cluster"}
    assert all(rule.reason for rule in RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)
