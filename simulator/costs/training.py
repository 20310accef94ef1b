"""Train tasks: per update, micro-batches forward and backward, gradient reduction, optimizer step."""

from dataclasses import replace

from profiles.facts import Facts
from rlplan.dataflow import Task
from rlplan.estimate import ZERO, Estimate, total
from rlplan.job import Job
from rlplan.plan import TaskPlan
from rlplan.precision import PRECISIONS
from simulator.costs.forward import (
    Slots,
    host_work,
    pipeline_parts,
    slots_of,
    uneven_lengths,
)
from simulator.costs.pricing import Setting, precision_of, setting_of
from simulator.costs.sharding import FULLY_SHARDED, exposed, gradient_seconds
from simulator.costs.taskcost import TaskCost, cost_of
from simulator.costs.traffic import call_seconds, data_bytes
from simulator.model.operators import FP32_BYTES
from simulator.model.weights import largest_shard
from simulator.site import Site
from simulator.workload.sequences import local_sequences


def train_cost(task: Task, layout: TaskPlan, site: Site, job: Job, facts: Facts) -> TaskCost:
    """Return what a train task costs on operators' times: all its updates and epochs."""
    setting = setting_of(layout, site, precision_of(job), facts)
    model, workload = job.architecture(task.role), job.workload
    updates = workload.updates * workload.epochs
    parts = update_cost(task, layout, site, job, facts).parts
    whole = {name: part * updates for name, part in parts}
    if layout.offload:
        parameters = largest_shard(model, task.head, layout.tp, layout.pp, layout.ep)
        whole["optimizer states from and to host"] = _offload(setting, layout, parameters)
    num_bytes = data_bytes(task.inputs, workload) // layout.dp
    whole["call overhead"] = call_seconds(setting.device, model, setting.precision, num_bytes)
    return cost_of(whole)


def update_cost(task: Task, layout: TaskPlan, site: Site, job: Job, facts: Facts) -> TaskCost:
    """Return what one update costs: its micro-batches, what they exchange, the optimizer's step.

    It is an iteration of pre-training too, when the job's global batch is one update.
    """
    setting, engine = (
        setting_of(layout, site, precision_of(job), facts),
        facts.engine(layout.engine),
    )
    model, workload = job.architecture(task.role), job.workload
    local = local_sequences(job, layout.dp, updates=workload.updates)
    slots = slots_of(
        setting, model, task.head, job, engine, local, layout.micro_batch, layout.recompute
    )
    parameters = largest_shard(model, task.head, layout.tp, layout.pp, layout.ep)
    parts = pipeline_parts(slots, layout.pp, layout.chunks)
    parts["uneven lengths"] = uneven_lengths(parts, job, layout, engine, local)
    parts["host work"] = host_work(engine, sum(count for _, count in slots))
    communication = gradient_seconds(setting, layout, parameters, sum(count for _, count in slots))
    parts |= exposed(communication, engine.overlap_fraction, _hideable(slots, layout.zero))
    parts["optimizer"] = optimizer_seconds(setting, layout, parameters)
    return cost_of(_with_spread(parts, engine.forecast_spread))


def _with_spread(parts: dict[str, Estimate], spread: float) -> dict[str, Estimate]:
    """Return the parts with the spread that the engine's forecasts showed, where it is known."""
    if not spread:
        return parts
    return {
        name: replace(part, spread_seconds=part.seconds * spread) for name, part in parts.items()
    }


def _hideable(slots: Slots, zero: int) -> Estimate:
    """Return the compute seconds behind which communication can hide.

    Reductions of whole gradients start in the last micro-batch's backward pass; sharded ones run
    behind every micro-batch's, and gathers of sharded weights behind the forward pass too.
    """
    if zero <= 1:
        return slots[-1][0].backward.compute
    if zero == FULLY_SHARDED:
        return total(slot.passes.compute * count for slot, count in slots)
    return total(slot.backward.compute * count for slot, count in slots)


def optimizer_seconds(setting: Setting, layout: TaskPlan, parameters: int) -> Estimate:
    """Return seconds of one optimizer step on the local shard, with the gradients' norm before it."""
    ranks = layout.dp * layout.cp if layout.zero else 1
    local = -(-parameters // ranks)
    sizes = PRECISIONS[setting.precision]
    norm = setting.device.memory_bound(local * sizes.gradient_bytes)
    summed = _norm_sum(setting, layout)
    step = setting.device.optimizer_step(local, setting.precision) + norm
    return step * (1 / setting.kernels.optimizer_rate) + summed


def _norm_sum(setting: Setting, layout: TaskPlan) -> Estimate:
    """Return seconds of adding up the squared norms of all ranks that hold different gradients."""
    ranks = layout.tp * layout.pp * (layout.dp * layout.cp if layout.zero else 1)
    return setting.collective("all_reduce", FP32_BYTES, ranks, 1) if ranks > 1 else ZERO


def _offload(setting: Setting, layout: TaskPlan, parameters: int) -> Estimate:
    ranks = layout.dp * layout.cp if layout.zero else 1
    num_bytes = parameters * PRECISIONS[setting.precision].optimizer_bytes // ranks
    device = setting.device
    return device.copy(num_bytes, "host_to_device") + device.copy(num_bytes, "device_to_host")
