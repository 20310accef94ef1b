"""Every plan of a small job, one by one, and small jobs whose plans are few enough for that."""

import itertools
from dataclasses import fields, replace
from typing import Any

from hypothesis import strategies as st

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.files.frozen import FrozenDict
from rlplan.job import TIME_TO_SCORE, Engines, Job, NodeGroup, Rewards
from rlplan.plan import TaskDraft
from rlplan.planner.layouts.settings import PoolCuts, generate_layouts, infer_layouts, train_layouts
from rlplan.planner.placements.allocations import devices_of, gpus_of, shares_of, sites_for
from rlplan.planner.placements.partitions import GENERATION, all_placements
from rlplan.planner.plans.assembly import Choice, plan_of, with_largest_share
from rlplan.planner.requests.schedules import ONE_STEP_OFF, SYNC
from rlplan.profiles.catalog import load_device, load_model
from rlplan.profiles.facts import DeviceFacts, Facts
from rlplan.rules.flow import transitions
from rlplan.simulator.memory.task_memory import KV_CACHE, least_kv_bytes
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.pool_memory import memory_moments
from rlplan.transfers import TWO_COPIES
from rlplan.workload import Uniform, Workload
from tests.strategies import architectures

PLENTY_BYTES = 2**40
RULE_SECONDS = 0.01
NO_DRAFT = TaskDraft()

# Large models are where layouts trade memory and time against each other.
models = st.one_of(
    architectures(max_layers=4),
    st.sampled_from(["qwen2.5-1.5b", "llama-2-7b"]).map(load_model),
)


def allocations(job, sets):
    """Yield every way to give each of `sets` colocated sets a share, within each device's GPUs."""
    limits = dict(zip(devices_of(job), gpus_of(job), strict=True))
    choices = shares_of(job)

    def extended(chosen):
        if len(chosen) == sets:
            yield chosen
            return
        for share in choices:
            device = job.cluster[share.group].gpu
            if share.gpus <= limits[device]:
                limits[device] -= share.gpus
                yield from extended((*chosen, share))
                limits[device] += share.gpus

    return extended(())


def with_every_figure(plan):
    """Return a plan whose forecast has what every objective looks at."""
    return replace(plan, job=replace(plan.job, objective=TIME_TO_SCORE))


def every_plan(job, facts, drafts=FrozenDict()):
    """Yield every plan, nothing left out and nothing judged.

    Args:
        drafts: Fields of tasks' layouts that all of them have.
    """
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    for placement in all_placements(job):
        apart = any(GENERATION in members for members in placement)
        for allocation in allocations(job, len(placement)):
            sites = sites_for(job, allocation)
            if sites is None:
                continue
            choices = [
                list(_set_layouts(members, apart, tasks, site, job, facts, drafts))
                for members, site in zip(placement, sites, strict=True)
            ]
            for layouts in itertools.product(*choices):
                known = {name: each for some in layouts for name, each in some.items()}
                train, generate = known["actor.update"], known["actor.generate"]
                copied = job.weight_sync.between_pools or TWO_COPIES
                for transition in (copied,) if apart else transitions(train, generate):
                    for schedule in (
                        (SYNC, ONE_STEP_OFF) if apart and job.specs.staleness else (SYNC,)
                    ):
                        choice = Choice(placement, allocation, layouts, transition, schedule)
                        yield plan_of(choice, job, "brute force")


def every_order(plan):
    """Yield a plan with every order in which tasks of a stage can get their pool."""
    tasks = tasks_of(load_algorithm(plan.job.algorithm), plan.job)
    stages = list(dict.fromkeys(task.stage for task in tasks))
    choices = [
        itertools.permutations(task.name for task in tasks if task.stage == stage)
        for stage in stages
    ]
    seen = set()
    for chosen in itertools.product(*choices):
        ranked = [name for names in chosen for name in names]
        order = FrozenDict(
            {
                pool: tuple(name for name in ranked if name in there)
                for pool, there in plan.order.items()
            }
        )
        if order not in seen:
            seen.add(order)
            yield replace(plan, order=order)


def _set_layouts(members, apart, tasks, site, job, facts, drafts):
    """Yield layouts of all tasks of a set, by name."""
    choices = []
    for unit in members:
        own = [task for task in tasks if task.role == ("actor" if unit == GENERATION else unit)]
        if unit == GENERATION:
            own = [task for task in own if task.kind == "generate"]
        elif apart:
            own = [task for task in own if task.kind != "generate"]
        choices.append(list(_unit_layouts(own, site, job, facts, drafts)))
    for chosen in itertools.product(*choices):
        yield {name: layout for some in chosen for name, layout in some.items()}


def _keeps(layout, draft):
    names = (each.name for each in fields(draft))
    given = {name: getattr(draft, name) for name in names if getattr(draft, name) is not None}
    return all(getattr(layout, name) == value for name, value in given.items())


def _unit_layouts(own, site, job, facts, drafts):
    model = job.architecture(own[0].role)
    train, generate = facts.engine(job.engines.train), facts.engine(job.engines.generate)
    place = (site.gpus, site.gpus_per_node)
    cuts, kinds = PoolCuts(model, train, job, *place), {task.kind for task in own}
    if kinds == {"generate"}:
        sizes: list[Any] = [None]
    elif "train" in kinds:
        sizes = cuts.train()
    else:
        sizes = cuts.infer()
    for size in sizes:
        if "infer" in kinds and not cuts.lists_copies(size.dp, trains=False):
            continue
        of_task = {
            "train": lambda size=size: train_layouts(size, train, job, model),
            "infer": lambda size=size: infer_layouts(size, train, job, trains="train" in kinds),
            "generate": lambda: generate_layouts(PoolCuts(model, generate, job, *place)),
        }
        kept = (
            [each for each in of_task[task.kind]() if _keeps(each, drafts.get(task.name, NO_DRAFT))]
            for task in own
        )
        for layouts in itertools.product(*kept):
            yield {task.name: layout for task, layout in zip(own, layouts, strict=True)}


def placed(plan):
    """Return which tasks share a pool, as a set of sets."""
    pools = {}
    for name, layout in plan.tasks.items():
        if not plan.pool(layout.pool).is_host:
            pools.setdefault(layout.pool, set()).add(name)
    return frozenset(map(frozenset, pools.values()))


def sets_of(plan):
    """Return a plan's placement as a set of sets of roles."""
    return frozenset(frozenset(pool.roles) for pool in plan.pools if not pool.is_host)


def facts_with(job, memory_bytes):
    """Return the facts of a job's devices as if each had so much memory."""
    sheets = {group.gpu: load_device(group.gpu) for group in job.cluster}
    devices = {
        name: DeviceFacts(
            replace(sheet, memory_bytes=memory_bytes, reserved_bytes=0), rule_seconds=RULE_SECONDS
        )
        for name, sheet in sheets.items()
    }
    return Facts(devices, "datasheet")


def least_bytes(plan, facts):
    """Return what a plan needs of its fullest GPU, with a cache of one sequence."""
    placed_plan = PlacedPlan(plan, facts)
    generating = placed_plan.generate
    return max(
        sum(terms.values())
        - (terms[KV_CACHE] - least_kv_bytes(generating) if KV_CACHE in terms else 0)
        for pool in plan.pools
        if not pool.is_host
        for terms in memory_moments(placed_plan, pool).values()
    )


def tight_facts(job, plans, share):
    """Return facts of devices on which the share of a sample of the plans with least memory fits."""
    roomy = facts_with(job, PLENTY_BYTES)
    peaks = sorted(least_bytes(plan, roomy) for plan in plans[:: max(1, len(plans) // 20)])
    # An engine's share is of whole hundredths.
    return facts_with(job, round(peaks[round(share * (len(peaks) - 1))] / 0.985))


# So slow that calls are waiting when the last response ends.
STREAMED = Rewards(function="digits", function_seconds_per_sample=0.5, streamed=True)


@st.composite
def small_jobs(draw):
    """Draw a job on one to four devices."""
    algorithm = draw(st.sampled_from(["grpo", "ppo"]))
    roles = ("actor", "critic", "reference") if algorithm == "ppo" else ("actor", "reference")
    gpu = draw(st.sampled_from(["cpu", "a100-80gb-sxm"]))
    per_node, nodes = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 3)]))
    updates = draw(st.sampled_from([1, 2]))
    low, spread = draw(st.integers(1, 900)), draw(st.sampled_from([0, 100, 900]))
    return Job(
        algorithm=algorithm,
        models=FrozenDict({role: draw(models) for role in roles}),
        workload=Workload(
            prompts=updates * draw(st.sampled_from([1, 2, 3, 4])),
            samples_per_prompt=2 if algorithm == "grpo" else draw(st.sampled_from([1, 2])),
            prompt_tokens=draw(st.integers(1, 400)),
            response_tokens=Uniform(low=low, high=low + spread) if spread else low,
            updates=updates,
        ),
        cluster=(
            NodeGroup(
                gpu=gpu, gpus_per_node=per_node, nodes=nodes, cpu_cores=2, inter_node_gbps=200.0
            ),
        ),
        engines=Engines(
            train=draw(st.sampled_from(["torch-tp-dp", "megatron-core", "fsdp2"])),
            generate=draw(st.sampled_from(["vllm", "vllm-0.3", "torch-static"])),
        ),
        precision="fp32" if gpu == "cpu" else "bf16",
        rewards=draw(st.sampled_from([None, Rewards(function="digits"), STREAMED])),
    )


def random_space(generator, most_plans, drafts=FrozenDict(), engine_share=None, **changes):
    """Draw a job of few plans, all of them, and facts by which not all of them may fit.

    Args:
        drafts: Fields of tasks' layouts that all plans have.
        engine_share: Of memory, that the engine of all plans has; None gives each the largest that fits.
        changes: Fields that every job gets.
    """
    for _ in range(1000):
        job = replace(small_job(generator), **changes)
        share = generator.choice([0.0, 0.1, 0.3, 0.5, 0.7, 1.0])
        roomy = facts_with(job, PLENTY_BYTES)
        plans = list(itertools.islice(every_plan(job, roomy, drafts), most_plans + 1))
        if 0 < len(plans) <= most_plans:
            facts = tight_facts(job, plans, share)
            if engine_share is None:
                return job, [with_largest_share(plan, facts) for plan in plans], facts
            # A share that is given may want more than the cache of one sequence.
            times = generator.choice([1.2, 1.5, 2.0, 3.0])
            memory_bytes = facts.device(job.cluster[0].gpu).sheet.memory_bytes
            facts = facts_with(job, round(times * memory_bytes))
            return job, [_with_share(plan, engine_share) for plan in plans], facts
    raise AssertionError(f"no job of at most {most_plans} plans")


def _with_share(plan, fraction):
    name = "actor.generate"
    layout = replace(plan.tasks[name], memory_fraction=fraction)
    return replace(plan, tasks=plan.tasks.with_item(name, layout))


def small_job(generator):
    algorithm = generator.choice(["grpo", "ppo", "remax", "rloo"])
    roles = ("actor", "critic", "reference") if algorithm == "ppo" else ("actor", "reference")
    gpu = generator.choice(["cpu", "a100-80gb-sxm"])
    per_node, nodes = generator.choice([(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 3)])
    updates = generator.choice([1, 2])
    low, spread = generator.randint(1, 900), generator.choice([0, 100, 900])
    names = ["tiny", "qwen2.5-0.5b", "qwen2.5-1.5b", "llama-2-7b"]
    return Job(
        algorithm=algorithm,
        models=FrozenDict({role: load_model(generator.choice(names)) for role in roles}),
        workload=Workload(
            prompts=updates * generator.choice([1, 2, 3, 4]),
            samples_per_prompt=2 if algorithm == "grpo" else 1,
            prompt_tokens=generator.randint(1, 400),
            response_tokens=Uniform(low=low, high=low + spread) if spread else low,
            updates=updates,
        ),
        cluster=(
            NodeGroup(
                gpu=gpu, gpus_per_node=per_node, nodes=nodes, cpu_cores=2, inter_node_gbps=200.0
            ),
        ),
        engines=Engines(
            train=generator.choice(["torch-tp-dp", "megatron-core", "fsdp2"]),
            generate=generator.choice(["vllm", "vllm-0.3", "torch-static"]),
        ),
        precision="fp32" if gpu == "cpu" else "bf16",
        rewards=Rewards(function="digits") if generator.random() < 0.5 else None,
    )
