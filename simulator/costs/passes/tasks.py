"""Infer and train tasks: passes of micro-batches, what ranks exchange, the optimizer, the call."""

from collections.abc import Callable

import numpy as np

from rlplan.estimate import ZERO, Estimate, Source
from rlplan.models.operators import FP32_BYTES
from rlplan.models.precision import WIDE
from rlplan.results.forecast import CALL
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.simulator.costs.passes.estimates import Estimates, constant, either, estimates_by
from rlplan.simulator.costs.passes.pipeline import (
    MicroBatches,
    Parts,
    micro_batches_of,
    pipeline_parts,
)
from rlplan.simulator.costs.passes.sharding import (
    STATE_COLUMNS,
    exposed,
    gradient_exchanges,
    weight_gathers,
)
from rlplan.simulator.costs.pricing import Setting, setting_of
from rlplan.simulator.costs.traffic import call_of, driver_of
from rlplan.simulator.placed.task import PlacedTask, PlacedTasks

DRIVER = "host work of a step"
STATES_BACK = "optimizer states from host"
STATES_AWAY = "optimizer states to host"


def infer_parts(table: PlacedTasks) -> Parts:
    """Return what an infer task costs on operators' times: forward passes of a global batch."""
    engine, batches = table.any.engine, micro_batches_of(table)
    parts = pipeline_parts(table, batches)
    parts["host work"] = _host_work(table, batches)
    gathers = weight_gathers(table, batches)
    parts |= exposed(gathers, engine.overlap_fraction, parts["forward"])
    parts["weights from host"] = _copied(table, _weights_from_host)
    return parts | {CALL: estimates_by(table, ("dp",), call_of)}


def train_parts(table: PlacedTasks) -> Parts:
    """Return what a train task costs on operators' times: all its updates and epochs."""
    workload = table.any.workload
    updates = workload.updates * workload.epochs
    whole = {name: part * updates for name, part in update_parts(table).items()}
    if np.any(table.columns.offload):
        whole[STATES_BACK] = _copied(table, _states_from_host)
        whole[STATES_AWAY] = _copied(table, _states_to_host)
    whole[CALL] = estimates_by(table, ("dp",), call_of)
    return whole | {DRIVER: estimates_by(table, (), driver_of)}


def update_parts(table: PlacedTasks) -> Parts:
    """Return what one update costs: its micro-batches, what they exchange, the optimizer's step.

    It is an iteration of pre-training too, when the job's global batch is one update.
    """
    engine, batches = table.any.engine, micro_batches_of(table)
    parts = pipeline_parts(table, batches)
    parts["host work"] = _host_work(table, batches)
    exchanges = gradient_exchanges(table, batches)
    parts |= exposed(exchanges, engine.overlap_fraction, _hideable(table, batches))
    # A step asks whether optimizer states are sharded, not what else is.
    sharded = table.columns.changed(zero=np.minimum(table.columns.zero, 1))
    states = table.with_columns(sharded)
    parts["optimizer"] = estimates_by(states, STATE_COLUMNS, _optimizer_step)
    if not engine.forecast_spread:
        return parts
    return {
        name: part.with_spread(engine.forecast_spread, least_source=Source.MEASURED)
        for name, part in parts.items()
    }


def _host_work(table: PlacedTasks, batches: MicroBatches) -> Estimates:
    return constant(table.any.engine.step_seconds * batches.total_count, Source.DATASHEET)


def _hideable(table: PlacedTasks, batches: MicroBatches) -> Estimates:
    """Return the compute seconds behind which communication can hide.

    Reductions of whole gradients start in the last micro-batch's backward pass; sharded ones run
    behind every micro-batch's, and gathers of sharded weights behind the forward pass too.
    """
    zero = table.columns.zero
    everything = batches.summed(lambda slots: slots.compute.summed())
    backward = batches.summed(lambda slots: slots.compute[1])
    behind = either(zero == FULLY_SHARDED, everything, backward)
    return either(zero <= 1, batches.last_backward, behind)


def _optimizer_step(placed: PlacedTask) -> Estimate:
    """Return seconds of one optimizer step on the local shard, with the gradients' norm before it."""
    setting = setting_of(placed)
    ranks = _stepping_ranks(placed)
    local = -(-placed.trained_parameters // ranks)
    if placed.expert_copies(ranks) < ranks:
        local = placed.kept_states(ranks)
    norm = setting.device.memory_bound(local * placed.formats.gradient_bytes)
    step = setting.device.optimizer_step(local, WIDE[placed.precision]) + norm
    return step * (1 / setting.kernels.optimizer_rate) + _norm_sum(placed, setting)


def _norm_sum(placed: PlacedTask, setting: Setting) -> Estimate:
    """Return seconds of adding up the squared norms of all ranks that hold different gradients."""
    ranks = placed.layout.tp * placed.layout.pp * _stepping_ranks(placed)
    return setting.collective("all_reduce", FP32_BYTES, ranks, 1) if ranks > 1 else ZERO


def _stepping_ranks(placed: PlacedTask) -> int:
    """Return the ranks that share the optimizer's states of one shard."""
    return placed.state_ranks if placed.layout.zero else 1


def _copied(table: PlacedTasks, seconds: Callable[[PlacedTask], Estimate]) -> Estimates:
    """Return seconds of what lives in host memory between uses, where it does."""
    away = table.columns.offload > 0
    if not np.any(away):
        return constant(np.zeros(len(table)), Source.MEASURED)
    return estimates_by(table, STATE_COLUMNS, seconds).where(away)


def _weights_from_host(placed: PlacedTask) -> Estimate:
    return placed.device.copy(placed.parameters * placed.shard.value_bytes, "host_to_device")


def _states_from_host(placed: PlacedTask) -> Estimate:
    return placed.device.copy(sum(_states_bytes(placed)), "host_to_device")


def _states_to_host(placed: PlacedTask) -> Estimate:
    states, weights = _states_bytes(placed)
    rate = placed.framework.to_host_bytes_per_second
    if rate is None:
        return placed.device.copy(states + weights, "device_to_host")
    if "weights" in placed.framework.unpinned:
        states, weights = states + weights, 0
    written = Estimate(states / rate, 0.0, Source.FITTED)
    return written + placed.device.copy(weights, "device_to_host")


def _states_bytes(placed: PlacedTask) -> tuple[int, int]:
    """Return the bytes of a rank's optimizer states, and of the weights that leave the GPU with them."""
    states = placed.kept_states(_stepping_ranks(placed), placed.stored.optimizer_bytes)
    if "weights" not in placed.off_loadable:
        return states, 0
    ranks = placed.state_ranks if placed.layout.zero == FULLY_SHARDED else 1
    return states, placed.kept_states(ranks, placed.stored.weight_bytes)
