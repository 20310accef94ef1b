"""A plan for 16 GPUs with its forecast and search, and no run, written by hand."""

from dataclasses import replace

from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup, Role
from rlplan.models import ModelArchitecture
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.results.forecast import (
    Candidate,
    Forecast,
    InfeasiblePlacement,
    MemoryForecast,
    MemoryMoment,
    PlanDetails,
    ResponsesUnderWay,
    SearchResult,
    TaskForecast,
    WhatIf,
)
from rlplan.trace import IterationSpan, Span, sorted_spans
from rlplan.workload import Workload

GIB = 1024**3
MIB = 1024**2

LLAMA_7B = ModelArchitecture(
    name="llama-2-7b", family="llama", hidden_size=4096, num_layers=32, num_heads=32,
    num_kv_heads=32, head_dim=128, ffn_size=11008, vocab_size=32000,
    source="Touvron et al. 2023, arXiv:2307.09288",
)  # fmt: skip
TINY = ModelArchitecture(
    name="tiny", family="llama", hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=4,
    head_dim=16, ffn_size=128, vocab_size=258, source="made for the demo",
)  # fmt: skip

ROLES: tuple[Role, ...] = ("actor", "critic", "reference", "reward")
STAGES = {
    "actor.generate": "generation",
    "critic.compute_values": "preparation",
    "reference.compute_log_prob": "preparation",
    "reward.compute_reward": "preparation",
    "rule.compute_reward": "preparation",
    "actor.update": "training",
    "critic.update": "training",
    "transition": "transition",
}


def gpu_plan(name="ppo-7b-16xa100"):
    job = Job(
        name=name,
        algorithm="ppo",
        models=FrozenDict(dict.fromkeys(ROLES, LLAMA_7B)),
        workload=Workload(prompts=1024, prompt_tokens=1024, response_tokens=1024, updates=8),
        cluster=(NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=8, nodes=2, inter_node_gbps=200.0),),
    )
    first = TaskPlan(pool="p0", tp=4, dp=3, engine="megatron", micro_batch=2)
    second = TaskPlan(pool="p1", tp=2, dp=2, engine="megatron", micro_batch=4)
    return Plan(
        job=job,
        pools=(
            ResourcePool(name="p0", device="a100-80gb-sxm", gpus=12, roles=("actor", "reference")),
            ResourcePool(name="p1", device="a100-80gb-sxm", gpus=4, roles=("critic", "reward")),
        ),
        tasks=FrozenDict(
            {
                "actor.generate": TaskPlan(pool="p0", tp=2, dp=6, engine="vllm"),
                "critic.compute_values": second,
                "reference.compute_log_prob": first,
                "reward.compute_reward": second,
                "actor.update": replace(first, recompute="selective", zero=1),
                "critic.update": replace(second, recompute="full", zero=3, offload=True),
            }
        ),
        order=FrozenDict(
            {
                "p0": ("actor.generate", "reference.compute_log_prob", "actor.update"),
                "p1": ("critic.compute_values", "reward.compute_reward", "critic.update"),
            }
        ),
        made_by="exhaustive search",
    )


def spans_of(steps, iteration=0, origin=0.0):
    """Return spans from (name, pool, start, end[, activity])."""
    return [
        Span(
            name=name, pool=pool, iteration=iteration, start_seconds=origin + start,
            end_seconds=origin + end, activity=activity[0] if activity else "task",
        )
        for name, pool, start, end, *activity in steps
    ]  # fmt: skip


def task_forecast(name, pool, seconds, parts, activity="task", source="datasheet", outside=False):
    return TaskForecast(
        name=name, pool=pool, activity=activity, stage=STAGES[name], seconds=seconds,
        interval_seconds=(seconds * 0.9, seconds * 1.15), source=source, outside_range=outside,
        parts=FrozenDict({part: share * seconds for part, share in parts.items()}),
    )  # fmt: skip


TRAIN_PARTS = {
    "forward": 0.2, "backward": 0.41, "recomputation": 0.08, "tensor-parallel collectives": 0.16,
    "gradient reduction": 0.06, "optimizer": 0.05, "pipeline bubble": 0.03, "call overhead": 0.01,
}  # fmt: skip
INFER_PARTS = {"forward": 0.85, "tensor-parallel collectives": 0.14, "call overhead": 0.01}
GENERATE_PARTS = {"prefill": 0.07, "decode": 0.83, "waiting for the longest": 0.1}

GPU_STEPS = (
    ("transition", "p0", 0.0, 0.4, "transition"),
    ("actor.generate", "p0", 0.4, 61.2),
    ("transfer:sequences", "p1", 61.2, 61.21, "transfer"),
    ("reference.compute_log_prob", "p0", 61.2, 66.9),
    ("critic.compute_values", "p1", 61.21, 77.1),
    ("reward.compute_reward", "p1", 77.1, 93.0),
    ("actor.update", "p0", 93.02, 121.0),
    ("critic.update", "p1", 93.0, 143.7),
)


def gpu_forecast(*, feasible=True):
    peak = 72 * GIB if feasible else 91 * GIB
    terms = {
        "actor weights": 6 * GIB, "actor gradients": 9 * GIB, "actor optimizer states": 27 * GIB,
        "reference weights": 4 * GIB, "KV cache": 14 * GIB, "activations": 7 * GIB,
        "logits": 2 * GIB, "CUDA context": 1 * GIB, "communication buffers": 1 * GIB,
    }  # fmt: skip
    terms["fragmentation margin"] = peak - sum(terms.values())
    return Forecast(
        iteration_seconds=143.7,
        iteration_seconds_interval=(131.0, 159.2),
        tokens_per_second=2097152 / 143.7,
        stage_seconds=FrozenDict(
            {"generation": 60.8, "preparation": 31.8, "training": 50.7, "transition": 0.4}
        ),
        costs=(
            task_forecast("transition", "p0", 0.4, {"all-gather": 0.6, "call overhead": 0.4}, "transition"),
            task_forecast("actor.generate", "p0", 60.8, GENERATE_PARTS, outside=True),
            task_forecast("critic.compute_values", "p1", 15.89, INFER_PARTS),
            task_forecast("reference.compute_log_prob", "p0", 5.7, INFER_PARTS, source="fitted"),
            task_forecast("reward.compute_reward", "p1", 15.9, INFER_PARTS),
            task_forecast("actor.update", "p0", 27.98, TRAIN_PARTS),
            task_forecast("critic.update", "p1", 50.7, TRAIN_PARTS),
        ),
        tasks=sorted_spans(spans_of(GPU_STEPS)),
        iterations=(IterationSpan(iteration=0, start_seconds=0.0, end_seconds=143.7),),
        memory=(
            MemoryForecast(
                pool="p0", gpu_peak_bytes=peak, capacity_bytes=80 * GIB,
                terms=FrozenDict(terms), peak_task="actor.update",
            ),
            MemoryForecast(
                pool="p1", gpu_peak_bytes=61 * GIB, capacity_bytes=80 * GIB,
                terms=FrozenDict(
                    {"critic weights": 7 * GIB, "critic gradients": 13 * GIB, "reward weights": 7 * GIB,
                     "activations": 33 * GIB, "CUDA context": 1 * GIB}
                ), peak_task="critic.update",
            ),
        ),
        feasible=feasible,
        infeasible_reasons=() if feasible else ("pool p0 lacks 11 GiB; ZeRO stage 2 would fit",),
        idle_seconds=FrozenDict({"waiting for another pool": 49.1, "waiting for inputs": 0.02}),
        cost_usd=1.27,
        energy_joules=905_000.0,
        warnings=(
            "actor.generate: no profile; rates of the datasheet with fitted efficiencies",
            "actor.generate: cached length 2,048 lies outside the measured range",
        ),
        profile="datasheets (no profile of a100-80gb-sxm)",
    )  # fmt: skip


def gpu_details():
    """Return eight responses of which four run at a time, memory in two tasks, and two other jobs."""
    halved = replace(gpu_forecast(), iteration_seconds=80.0, cost_usd=0.7)
    return PlanDetails(
        under_way=ResponsesUnderWay(
            seconds=(0.0, 10.0, 20.0, 60.0), responses=(8, 4, 1, 0), most_running=4
        ),
        memory=tuple(
            MemoryMoment(
                pool=each.pool, during=each.peak_task, terms=each.terms, capacity_bytes=each.capacity_bytes
            )
            for each in gpu_forecast().memory
        ),
        what_ifs=(
            WhatIf(change="half the batch", plan=gpu_plan(), forecast=halved),
            WhatIf(change="2 more nodes", is_same_plan=False, reason="no placement fits"),
        ),
    )  # fmt: skip


def gpu_search():
    best = gpu_plan()
    together = replace(
        best,
        pools=(ResourcePool(name="p0", device="a100-80gb-sxm", gpus=16, roles=ROLES),),
        tasks=FrozenDict({name: replace(task, pool="p0") for name, task in best.tasks.items()}),
        order=FrozenDict(),
    )
    forecast = gpu_forecast()
    slower = replace(forecast, iteration_seconds=166.4)
    return SearchResult(
        plans=(
            Candidate(plan=best, forecast=forecast, loses_seconds=0.0, loses_to=FrozenDict()),
            Candidate(
                plan=replace(best, transition="all-gather"),
                forecast=replace(forecast, iteration_seconds=144.9),
                loses_seconds=1.2,
                loses_to=FrozenDict({"transition": 1.2}),
            ),
            Candidate(
                plan=together,
                forecast=slower,
                loses_seconds=22.7,
                loses_to=FrozenDict({"generation": -4.1, "preparation": 9.3, "training": 17.5}),
            ),
        ),
        infeasible=(
            InfeasiblePlacement(
                placement="{actor} {critic} {reference} {reward}",
                reason="pool of critic: 4 GPUs lack 12.4 GiB for critic optimizer states; "
                "fits from 6 GPUs on",
            ),
        ),
        considered=FrozenDict({"layouts of tasks": 1830, "placements": 15, "plans simulated": 64}),
        pruned=FrozenDict({"does not fit": 911, "critical path above the best": 1204}),
        bound_seconds=139.2,
        gap=(143.7 - 139.2) / 143.7,
        search_seconds=3.1,
        profile="datasheets",
    )


def gpu_report():
    return {"plan": gpu_plan(), "forecast": gpu_forecast(), "search": gpu_search()}
