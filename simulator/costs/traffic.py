"""Data that tasks hand on: its bytes, calls that pass it, and transfers between pools."""

from collections.abc import Iterable

from rlplan.dataflow import BYTES_PER_SAMPLE, BYTES_PER_TOKEN
from rlplan.estimate import ZERO, Estimate, Source
from rlplan.framework import HostTime
from rlplan.plan import HOST_DEVICE
from rlplan.probing import ModelPass
from rlplan.profiles.facts import Facts
from rlplan.simulator.placed import PlacedTask, Site
from rlplan.simulator.workload import statistics_of
from rlplan.workload import Workload

# The part of an update's cost that `driver_of` tells.
DRIVER = "host work of a step"


def data_bytes(keys: Iterable[str], workload: Workload) -> int:
    """Return the bytes of a global batch's data under these keys, such as `sequences`."""
    statistics = statistics_of(workload)
    count = 0.0
    for key in keys:
        tokens = statistics.prompt_tokens if key == "prompts" else statistics.mean_tokens
        each = BYTES_PER_TOKEN.get(key, 0) * tokens + BYTES_PER_SAMPLE.get(key, 0)
        count += each * workload.sequences
    return round(count)


def call_of(placed: PlacedTask) -> Estimate:
    """Return seconds of the call that passes a task its inputs and collects what it returns."""
    framework = placed.framework
    if not framework.runs:
        return host_seconds(framework.call(placed.task.kind), placed)
    num_bytes = data_bytes(placed.task.inputs, placed.workload) // placed.layout.dp
    bare = ModelPass(
        name="call",
        model=placed.model,
        head="lm",
        precision=placed.precision,
        tokens=max(1, num_bytes),
    )
    return placed.device.model_pass(bare) or placed.device.call(num_bytes)


def driver_of(placed: PlacedTask) -> Estimate:
    """Return seconds of a step's host work that belongs to no stage: it follows the actor's update."""
    if placed.task.role != "actor":
        return ZERO
    return host_seconds(placed.framework.driver, placed)


def host_seconds(time: HostTime, placed: PlacedTask) -> Estimate:
    """Return the seconds of a framework's own work on the batch of a task, by the processor of its nodes."""
    work = placed.workload
    each = (
        time.seconds_per_sequence
        + time.seconds_per_token * placed.statistics.mean_tokens
        + time.seconds_per_padded_token * work.longest_sequence_tokens
    )
    seconds = work.sequences * each
    return Estimate(seconds * placed.device.sheet.host_times, 0.0, Source.FITTED)


def transfer_cost(num_bytes: float, source: Site, target: Site, facts: Facts) -> Estimate:
    """Return seconds until data of one pool is on another: an object fetch over the network.

    Within a pool the data comes with the call (see `call_of`).
    """
    if num_bytes == 0:
        return ZERO
    near = source if source.device != HOST_DEVICE else target
    if near.device == HOST_DEVICE:
        return ZERO
    fetched = facts.device(near.device).call(num_bytes, kind="object_fetch")
    if not (source.spans_nodes or target.spans_nodes):
        return fetched
    # All workers fetch their shares at once, each over its own part of the network cards.
    streams = min(source.gpus, target.gpus)
    rate = min(source.inter_node_bytes_per_second, target.inter_node_bytes_per_second)
    wire = Estimate(num_bytes / streams / rate, 0.0, Source.DATASHEET)
    return fetched.at_least(wire)
