"""Every plan of a small job, one by one, and small jobs whose plans are few enough for that."""

import itertools
from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from planner.allocations import allocations
from planner.generations import transition_for
from planner.layouts import (
    generate_layouts,
    infer_layouts,
    infer_sizes,
    train_layouts,
    train_sizes,
)
from planner.mappings import host_pool, packing_order, sites_for
from planner.placements import placed_roles, placements
from profiles.catalog import load_device, load_model
from profiles.facts import DeviceFacts, Facts
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Rewards, Workload
from rlplan.lengths import Uniform
from rlplan.plan import Plan, ResourcePool, TaskPlan
from simulator.memory import pool_memory
from simulator.simulate import simulate
from tests.strategies import architectures

PLENTY_BYTES = 2**40
RULE_SECONDS = 0.01

# Large models are where layouts trade memory and time against each other.
models = st.one_of(
    architectures(max_layers=4),
    st.sampled_from(["qwen2.5-1.5b", "llama-2-7b"]).map(load_model),
)


def every_plan(job, facts):
    """Yield every plan, nothing left out and nothing judged."""
    algorithm = load_algorithm(job.algorithm)
    tasks = tasks_of(algorithm, job)
    for placement in placements(placed_roles(job)):
        for allocation in allocations(job, len(placement)):
            sites = sites_for(job, allocation)
            if sites is None:
                continue
            choices = [
                [(role, layouts) for layouts in _layouts_of_role(role, tasks, site, job, facts)]
                for members, site in zip(placement, sites, strict=True)
                for role in members
            ]
            for chosen in itertools.product(*choices):
                yield _plan(placement, allocation, sites, dict(chosen), tasks, job)


def _layouts_of_role(role, tasks, site, job, facts):
    own = [task for task in tasks if task.role == role]
    model, algorithm = job.architecture(role), load_algorithm(job.algorithm)
    train, generate = facts.engine(job.engines.train), facts.engine(job.engines.generate)
    place = (site.gpus, site.gpus_per_node)
    if any(task.kind == "train" for task in own):
        sizes = train_sizes(model, train, job, algorithm, *place)
    else:
        sizes = infer_sizes(model, train, job, *place)
    for size in sizes:
        if any(task.kind == "infer" for task in own) and job.workload.prompts % size.dp:
            continue
        of_task = {
            "train": lambda size=size: train_layouts(size, train, job),
            "infer": lambda size=size: infer_layouts(size, train, job),
            "generate": lambda: generate_layouts(model, generate, job, *place),
        }
        for layouts in itertools.product(*[of_task[task.kind]() for task in own]):
            yield {task.name: layout for task, layout in zip(own, layouts, strict=True)}


def _plan(placement, allocation, sites, chosen, tasks, job):
    pools, layouts = [], {}
    for index in packing_order(allocation):
        name, members = f"p{index}", placement[index]
        site = sites[index]
        pools.append(ResourcePool(name=name, device=site.device, gpus=site.gpus, roles=members))
        for role in members:
            layouts |= {task: replace(each, pool=name) for task, each in chosen[role].items()}
    if job.rewards:
        pools.append(host_pool(job))
        layouts["rule.compute_reward"] = TaskPlan(pool="host", dp=pools[-1].gpus, engine="python")
    names = tuple(task.name for task in tasks)
    order = {pool.name: tuple(n for n in names if layouts[n].pool == pool.name) for pool in pools}
    return Plan(
        job=job,
        pools=tuple(pools),
        tasks=FrozenDict(layouts),
        order=FrozenDict(order),
        transition=transition_for(layouts["actor.update"], layouts["actor.generate"]),
    )


def best_by_placement(plans, facts):
    """Return the least iteration seconds of every placement that has a feasible plan."""
    best = {}
    for plan in plans:
        placement = sets_of(plan)
        forecast = simulate(plan, facts)
        if forecast.feasible:
            seconds = forecast.iteration_seconds
            best[placement] = min(seconds, best.get(placement, seconds))
    return best


def sets_of(plan):
    """Return a plan's placement as a set of sets."""
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


def tight_facts(job, plans, share):
    """Return facts of devices on which the share of a sample of the plans with least memory fits."""
    roomy = facts_with(job, PLENTY_BYTES)
    peaks = sorted(
        max(pool_memory(plan, pool, roomy).gpu_peak_bytes for pool in plan.pools)
        for plan in plans[:: max(1, len(plans) // 20)]
    )
    return facts_with(job, peaks[round(share * (len(peaks) - 1))])


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
        cluster=(NodeGroup(gpu=gpu, gpus_per_node=per_node, nodes=nodes, cpu_cores=2),),
        engines=Engines(
            train=draw(st.sampled_from(["torch-tp-dp", "megatron-core", "fsdp2"])),
            generate=draw(st.sampled_from(["vllm", "vllm-0.3", "torch-static"])),
        ),
        precision="fp32" if gpu == "cpu" else "bf16",
        rewards=Rewards(function="digits") if draw(st.booleans()) else None,
    )


@st.composite
def small_spaces(draw, most_plans):
    """Draw a job of few plans, all of them, and facts by which not all of them may fit."""
    job = draw(small_jobs())
    roomy = facts_with(job, PLENTY_BYTES)
    plans = list(itertools.islice(every_plan(job, roomy), most_plans + 1))
    assume(0 < len(plans) <= most_plans)
    share = draw(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7, 1.0]))
    return job, plans, tight_facts(job, plans, share)
