"""Infer tasks: forward passes of a global batch, micro-batched through the pipeline."""

from profiles.facts import Facts
from rlplan.dataflow import Task
from rlplan.estimate import ZERO, Estimate, Source
from rlplan.hardware import EngineSheet
from rlplan.job import Job
from rlplan.model import Head, ModelArchitecture
from rlplan.plan import TaskPlan
from simulator.costs.pipeline import Slot, slot_of
from simulator.costs.pricing import Direction, Setting, precision_of, setting_of
from simulator.costs.sharding import exposed, weight_gather_seconds
from simulator.costs.taskcost import TaskCost, cost_of
from simulator.costs.traffic import call_seconds, data_bytes
from simulator.model.weights import largest_shard
from simulator.site import Site
from simulator.workload.sequences import (
    local_sequences,
    micro_batches,
    statistics_of,
)
from simulator.workload.shared_prompts import computed_batch, waiting_fraction

Slots = tuple[tuple[Slot, int], ...]


def infer_cost(task: Task, layout: TaskPlan, site: Site, job: Job, facts: Facts) -> TaskCost:
    """Return what an infer task costs on operators' times."""
    setting, engine = (
        setting_of(layout, site, precision_of(job), facts),
        facts.engine(layout.engine),
    )
    model = job.architecture(task.role)
    local = local_sequences(job, layout.dp)
    slots = slots_of(setting, model, task.head, job, engine, local, layout.micro_batch, None)
    parts = pipeline_parts(slots, layout.pp)
    parts["uneven lengths"] = uneven_lengths(parts, job, layout, engine, local)
    num_passes = sum(count for _, count in slots)
    parts["host work"] = host_work(engine, num_passes)
    parameters = largest_shard(model, task.head, layout.tp, layout.pp, layout.ep)
    gathers = weight_gather_seconds(setting, layout, parameters, num_passes)
    parts |= exposed(gathers, engine.overlap_fraction, parts["forward"])
    if layout.offload:
        num_bytes = parameters * setting.shard.value_bytes
        parts["weights from host"] = setting.device.copy(num_bytes, "host_to_device")
    num_bytes = data_bytes(task.inputs, job.workload) // layout.dp
    parts["call overhead"] = call_seconds(setting.device, model, setting.precision, num_bytes)
    return cost_of(parts)


def slots_of(
    setting: Setting,
    model: ModelArchitecture,
    head: Head,
    job: Job,
    engine: EngineSheet,
    local: int,
    micro_batch: int,
    recompute: Direction | None,
) -> Slots:
    """Return pairs of (micro-batch's cost, how many) for a rank's `local` sequences."""
    statistics = statistics_of(job.workload)
    return tuple(
        (
            slot_of(
                setting,
                model,
                computed_batch(engine, statistics, size),
                head,
                recompute,
            ),
            count,
        )
        for size, count in micro_batches(local, micro_batch)
    )


def pipeline_parts(slots: Slots, stages: int, chunks: int = 1) -> dict[str, Estimate]:
    """Return seconds by cause of passing all micro-batches through the pipeline once.

    With m micro-batches, 1F1B (Narayanan et al. 2021, arXiv:2104.04473, section 2.2) lasts as the
    slowest stage's m slots, and one slot of every other stage to fill and drain: with equal stages
    (m + p - 1) slots, a bubble of (p - 1) / m. Stages of several chunks of layers fill and drain
    by chunks, and hand activations on once per chunk (section 2.2.2).
    """
    parts: dict[str, Estimate] = {}
    collectives = ZERO
    for name in ("forward", "backward", "recompute"):
        compute = ZERO
        for slot, count in slots:
            each = getattr(slot, name)
            compute = compute + each.compute * count
            collectives = collectives + each.collectives * count
        parts[name] = compute
    parts["tensor-parallel collectives"] = collectives
    parts["pipeline bubble"] = slots[0][0].others * (1 / chunks)
    if stages > 1:
        ways = 2 if parts["backward"].seconds else 1
        each, once = send_counts(stages, chunks, ways)
        sent = slots[0][0].send * once
        for slot, count in slots:
            sent = sent + slot.send * (each * count)
        parts["pipeline sends"] = sent
    return parts


def send_counts(stages: int, chunks: int, ways: int) -> tuple[int, int]:
    """Return how often a stage sends per micro-batch, and what filling and draining adds.

    A stage between others sends in every way (activations on, gradients back), one of two stages
    in one way only, unless several chunks of layers make it both the first and a later one.

    Args:
        ways: 2 where a backward pass follows, else 1.
    """
    if stages == 1:
        return 0, 0
    each = ways if chunks > 1 or stages > 2 else 1  # noqa: PLR2004 -- a first and a last stage
    return each * chunks, ways * (stages - 1) - each


def uneven_lengths(
    parts: dict[str, Estimate], job: Job, layout: TaskPlan, engine: EngineSheet, local: int
) -> Estimate:
    """Return seconds that the data-parallel ranks wait for the one with the longest sequences."""
    fraction = waiting_fraction(
        engine, statistics_of(job.workload), local, layout.micro_batch, layout.dp
    )
    if fraction == 0:
        return ZERO
    names = ("forward", "backward", "recompute", "tensor-parallel collectives")
    work = sum((parts[name] for name in names), ZERO)
    return work * fraction


def host_work(engine: EngineSheet, num_micro_batches: int) -> Estimate:
    """Return seconds of the host's own work on so many micro-batches."""
    return Estimate(engine.step_seconds * num_micro_batches, 0.0, Source.DATASHEET)
