"""Transitions and generation of HybridFlow (Sheng et al. 2025, EuroSys), Figures 14 to 16.

DP takes the GPUs that the published sizes of training and generation leave. Figure 15 gives generation and
transition of one training layout, 1-8-2.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rlplan.algorithms import load_algorithm
from rlplan.estimate import Estimate
from rlplan.evals.settings.hybridflow_jobs import (
    DEVICE,
    MODELS,
    NETWORK_GBPS,
    NODE_GPUS,
    colocated,
    facts_of,
    job_of,
)
from rlplan.evals.settings.pretraining import TrialFacts
from rlplan.models import PRECISIONS
from rlplan.parts import num_parameters
from rlplan.plan import TaskPlan
from rlplan.planner.measured.rows import Record, TableReader, forecast_row, skipped_row
from rlplan.profiles.catalog import load_model
from rlplan.results.accuracy import Row
from rlplan.sheets import EngineSheet
from rlplan.simulator.costs.syncs import transition_cost, volume_of
from rlplan.simulator.placed import PlacedPlan, PlacedTask, PlacedTransition, Site
from rlplan.simulator.stages import task_cost
from rlplan.simulator.timeline.pool_memory import kv_bytes_left
from rlplan.transfers import TransitionName

# Sizes of the actor's training and generation.
SIZES = ("tp", "pp", "generate_tp", "generate_pp")
# The prompts are those of Dahoas/full-hh-rlhf, which is Anthropic/hh-rlhf: its reformatted copy gives
# 651 bytes a prompt (3 x + 2 y = 3187 bytes a row with prompt and answers apart, 2 x + y = 1919 in the
# original), at about 4 bytes a token. They are padded to 1,024 tokens; vLLM is given them without.
PROMPT_TOKENS = 163
COLOCATED = (
    "all four models share the GPUs, vLLM 0.3 has the memory that they leave; prompts without "
    f"their padding, which is {PROMPT_TOKENS} tokens on average in the data set used"
)
MICRO_BATCH = 8
# Generation rows that the engine's launch time is fitted on.
FITTED_TP = (2, 8)
HALVES = "two copies: half of the GPUs are taken to train, half to generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionRow:
    """Hold a row about a transition, with what its software's constants are multiplied with.

    Attributes:
        model_bytes: Bytes of the whole model.
        received_bytes: What each GPU receives.
        nodes: Nodes of the job.
        groups: Groups of ranks that gather at once.
        fitted: Whether the constants are fitted on it.
    """

    label: str
    model: str
    gpus: int
    transition: TransitionName
    train: TaskPlan
    generate: TaskPlan
    seconds: float
    model_bytes: float
    received_bytes: float
    nodes: int
    groups: int
    fitted: bool


def rows_of(record: Record) -> Iterator[Row]:
    """Yield the forecast of a transition or a generation."""
    row = transition_row(record)
    if row is not None:
        yield forecast_row(
            row.label, row.seconds, transition_seconds(row),
            kind=f"transition {row.transition}", fitted=row.fitted,
            note=HALVES if row.transition == "two-copies" else "",
        )  # fmt: skip
        return
    label = f"{record['model']}, {record['gpus']} GPUs, {record['config']}"
    measured = float(record["seconds"])
    if record["series"] == "generation":
        estimate = generation_seconds(record)
        fitted = generation_tp(record) in FITTED_TP
        yield forecast_row(
            label, measured, estimate,
            kind="generation", fitted=fitted, note=COLOCATED,
        )  # fmt: skip
        return
    if measured == 0:
        reason = "nothing was measured: both layouts are the same"
    else:
        reason = "the run time of another planner's search is not forecast"
    yield skipped_row(label, reason, kind=record["series"], measured_seconds=measured)


def transition_row(record: Record) -> TransitionRow | None:
    """Return a row about a transition that took time; None for other rows."""
    transition = record["transition"]
    if not transition or float(record["seconds"]) == 0:
        return None
    train, generate = _layouts(record, transition)
    model = load_model(MODELS[record["model"]])
    model_bytes = num_parameters(model) * PRECISIONS["bf16"].weight_bytes
    gpus = int(record["gpus"])
    placed = _placed(transition, record["model"], gpus, train, generate)
    volume = volume_of(placed)
    return TransitionRow(
        label=f"{record['model']}, {gpus} GPUs, {record['config']}",
        model=record["model"],
        gpus=gpus,
        transition=transition,
        train=train,
        generate=generate,
        seconds=float(record["seconds"]),
        model_bytes=model_bytes,
        received_bytes=volume.received_bytes,
        nodes=-(-gpus // NODE_GPUS),
        groups=max(1, placed.train.site.gpus // volume.group_ranks),
        fitted=_is_fitted(gpus, generate),
    )


def _is_fitted(gpus: int, generate: TaskPlan) -> bool:
    """Tell whether constants are fitted on a row: the generation groups are an even power of two.

    So both sides of the split cover all sizes of clusters, which a hash of so few rows does not.
    """
    return round(math.log2(gpus / (generate.tp * generate.pp))) % 2 == 0


def _layouts(record: Record, transition: TransitionName) -> tuple[TaskPlan, TaskPlan]:
    """Return the train and the generate layout; DP takes the GPUs that TP and PP leave."""
    gpus = int(record["gpus"])
    tp, pp, tp_gen, pp_gen = (int(record[size]) for size in SIZES)
    if transition == "two-copies":
        gpus = max(1, gpus // 2)
    train = TaskPlan(pool="p0", tp=tp, pp=pp, dp=max(1, gpus // (tp * pp)), engine="megatron-core")
    dp_gen = max(1, gpus // (tp_gen * pp_gen))
    generate = TaskPlan(pool="p0", tp=tp_gen, pp=pp_gen, dp=dp_gen, engine="vllm-0.3")
    return train, generate


def transition_seconds(row: TransitionRow) -> Estimate:
    """Return the forecast of a transition."""
    return transition_cost(
        _placed(row.transition, row.model, row.gpus, row.train, row.generate)
    ).total


def _placed(
    transition: TransitionName, model: str, gpus: int, train: TaskPlan, generate: TaskPlan
) -> PlacedTransition:
    """Return a transition on as many GPUs; two copies have half of them each."""
    job, facts, same_pool = job_of(model, gpus), facts_of(model, gpus), transition != "two-copies"
    pool_gpus = gpus if same_pool else max(1, gpus // 2)
    site = Site(DEVICE, pool_gpus, NODE_GPUS, NETWORK_GBPS * 1e9 / 8 / NODE_GPUS)
    tasks = {task.name: task for task in load_algorithm("ppo").tasks}
    return PlacedTransition(
        transition,
        PlacedTask(tasks["actor.update"], train, site, job, facts),
        PlacedTask(tasks["actor.generate"], generate, site, job, facts),
        same_pool,
    )


def generation_tp(record: Record) -> int:
    """Return the tensor-parallel size of a row's generation."""
    return _layouts(record, "hybridflow")[1].tp


def generation_seconds(record: Record, engine: EngineSheet | None = None) -> Estimate:
    """Return the forecast of a row's generation, with the KV cache in what memory is left.

    Args:
        engine: A sheet that takes the place of the catalog's, while its constants are fitted.
    """
    train, generate = _layouts(record, "hybridflow")
    model, gpus = record["model"], int(record["gpus"])
    plan = colocated(model, gpus, (train.tp, train.pp), (generate.tp, generate.pp), MICRO_BATCH)
    facts = facts_of(model, gpus)
    if engine is not None:
        facts = TrialFacts(facts, DEVICE, {engine.name: engine})
    workload = replace(plan.job.workload, prompt_tokens=PROMPT_TOKENS)
    job = replace(plan.job, workload=workload)
    placed = PlacedPlan(plan, facts)
    kv_bytes = max(0.0, kv_bytes_left(placed))
    return task_cost(replace(placed.tasks["actor.generate"], job=job), kv_bytes).total


READER = TableReader(
    about=(
        "Transition seconds by engine, and generation seconds by generation TP, on A100-80GB nodes "
        "of 8. Given: model, GPUs, both layouts, the engine."
    ),
    columns=frozenset(
        {"figure", "model", "gpus", "series", "config", "transition", *SIZES, "seconds"}
    ),
    rows_of=rows_of,
)
