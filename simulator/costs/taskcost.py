"""The answer of every cost function, seconds by cause, each with source and spread; and what goes into all of them alike.

Factors of a site and of a framework act once, on the parts of a whole task or transition. Data that tasks hand on has its
bytes, calls that pass it, and transfers between pools; states of trainers theirs between GPUs and the host.
"""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from math import hypot
from typing import Literal

from rlplan.calibration import NO_CALIBRATION, Factor, WorkKind
from rlplan.dataflow import BYTES_PER_SAMPLE, BYTES_PER_TOKEN, TOP_LOG_PROBS
from rlplan.estimate import ZERO, Estimate, Source, total
from rlplan.framework import FrameworkSheet, HostTime
from rlplan.plan import HOST_DEVICE
from rlplan.probing import ModelPass
from rlplan.profiles.analytic.efficiencies import (
    copies_of_node,
    copy_at,
    host_sum,
    host_work,
    load_spreads,
    unpinned_copy,
)
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import CALL
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.sheets import DeviceSheet
from rlplan.simulator.placed import PlacedTask, Site
from rlplan.simulator.workload import statistics_of
from rlplan.trainers import TrainerOptions
from rlplan.workload import Workload

# The part of an update's cost that `driver_of` tells.
DRIVER = "host work of a step"


def data_bytes(keys: Iterable[str], workload: Workload, top_tokens: int = 0) -> int:
    """Return the bytes of a global batch's data under these keys, such as `sequences`.

    Args:
        top_tokens: Of a teacher's likeliest tokens, how many it tells of at each position.
    """
    statistics = statistics_of(workload)
    count = 0.0
    for key in keys:
        tokens = statistics.prompt_tokens if key == "prompts" else statistics.mean_tokens
        tokens *= top_tokens if key == TOP_LOG_PROBS else 1
        each = BYTES_PER_TOKEN.get(key, 0) * tokens + BYTES_PER_SAMPLE.get(key, 0)
        count += each * workload.sequences
    return round(count)


def call_of(placed: PlacedTask) -> Estimate:
    """Return seconds of the call that passes a task its inputs and collects what it returns."""
    framework = placed.framework
    if not framework.runs:
        return host_seconds(framework.call(placed.task.kind), placed)
    top = placed.job.top_tokens
    num_bytes = data_bytes(placed.task.inputs, placed.workload, top) // placed.layout.dp
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
    """Return the seconds of a framework's own work on the batch of a task.

    It is Python and copies in memory, not dispatching of kernels: a log of verl on GH200 has as much a sequence as those on
    x86 hosts (0.24 and 0.06 to 0.29 ms; `profiles/frameworks/verl/steps/`), where a device's `host_factor` is 2.6.
    """
    work = placed.workload
    each = (
        time.seconds_per_sequence
        + time.seconds_per_token * placed.statistics.mean_tokens
        + time.seconds_per_padded_token * work.longest_sequence_tokens
    )
    images = time.seconds_per_sent_image_token * _sent_image_tokens(placed)
    return Estimate(time.seconds + work.sequences * each + images, 0.0, Source.FITTED)


def _sent_image_tokens(placed: PlacedTask) -> float:
    """Return the tokens of images that all ranks of a pool get: of a prompt as often as ranks are expected to have a sample of it.

    Of n samples at R ranks by chance that is R (1 - (1 - 1/R)^n): a message holds a prompt's pixels once, however many of its
    samples are in it.
    """
    work, ranks = placed.workload, placed.site.gpus
    if work.images is None:
        return 0.0
    copies = ranks * (1 - (1 - 1 / ranks) ** work.samples_per_prompt)
    return work.prompts * copies * work.images.per_prompt * work.images.tokens


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


@dataclass(frozen=True, slots=True)
class TaskCost:
    """Hold what a task costs on its pool, by cause.

    Attributes:
        parts: Pairs of cause and seconds, in the order in which they occur; they sum to the total.
    """

    parts: tuple[tuple[str, Estimate], ...]

    @property
    def total(self) -> Estimate:
        """Return the sum of all parts in seconds."""
        return total(estimate for _, estimate in self.parts)

    def each(self, changed: Callable[[str, Estimate], Estimate]) -> "TaskCost":
        """Return the cost with every part changed, told its cause."""
        return TaskCost(tuple((name, changed(name, part)) for name, part in self.parts))

    def seconds_of(self, *causes: str) -> float:
        """Return the seconds that causes take together."""
        return sum(part.seconds for name, part in self.parts if name in causes)


def parts_on_host(options: TrainerOptions) -> tuple[str, ...]:
    """Return the parts of which hosts decide how well they are known, and not what an engine's forecasts were off."""
    return (*FROM_HOST, "optimizer") if options.host_states or options.host_optimizer else FROM_HOST


def cost_of(parts: dict[str, Estimate]) -> TaskCost:
    """Return the cost made of these parts, in seconds, without those that take no time."""
    return TaskCost(tuple((name, part) for name, part in parts.items() if part.seconds > 0))


def times(cost: TaskCost, factor: float) -> TaskCost:
    """Return what it costs to do the same `factor` times, in seconds by cause."""
    return cost.each(lambda _, part: part * factor)


def with_spread(cost: TaskCost, spread: float, keep: Collection[str] = ()) -> TaskCost:
    """Return a cost with the relative spread that an engine's forecasts showed, where it is known.

    Parts that a profile measured keep their own.

    Args:
        keep: Parts that have a spread of their own, as what hosts copy and step.
    """
    if not spread:
        return cost
    return cost.each(
        lambda name, part: (
            replace(part, spread_seconds=part.seconds * spread)
            if part.source >= Source.FITTED and name not in keep
            else part
        )
    )


# What goes between host memory and GPUs.
STATES_BACK = "optimizer states from host"
STATES_AWAY = "optimizer states to host"
WEIGHTS_BACK = "weights from host"
GRADIENTS_TO_HOST = "gradients to host"
FROM_HOST = (STATES_BACK, STATES_AWAY, WEIGHTS_BACK, GRADIENTS_TO_HOST)
# Waiting for environments, which are the job's own.
ENVIRONMENT = "environment"
# Waiting for caches of prompts that other replicas of the engine read.
HANDED = "prompts read elsewhere"
HOST_PARTS = (DRIVER, CALL, ENVIRONMENT)
KINDS: dict[str, WorkKind] = {
    "generate": "generation",
    "infer": "inference",
    "train": "training",
}


def task_at_site(cost: TaskCost, placed: PlacedTask) -> TaskCost:
    """Return what a task costs at the site of its facts, in seconds by cause; reward functions as they are."""
    kind = KINDS.get(placed.task.kind)
    if kind is None or is_plain(placed):
        return cost
    spread = uncalibrated_spread(placed.framework, kind, placed.device.sheet)
    return cost.each(
        lambda name, part: _times(part, factor_of(placed, name), spread) * own_times(placed, name)
    )


def transition_at_site(cost: TaskCost, facts: Facts, framework: FrameworkSheet) -> TaskCost:
    """Return what a framework's transition costs at the site of the facts, in seconds by cause."""
    factor = facts.calibration.factor("transition")
    spread = uncalibrated_spread(framework, "transition")
    return cost.each(lambda _, part: _times(part, factor, spread))


def uncalibrated_spread(framework: FrameworkSheet, kind: WorkKind, *devices: DeviceSheet) -> float:
    """Return the least relative spread of a framework's work at a site that was not calibrated, one sigma.

    Devices on which nobody has compared its stages with forecasts make it wider; transitions have no stage.
    What `rlplan execute` runs is as well known as its parts are: they are what its probes measure.
    """
    if framework.runs:
        return 0.0
    usual = load_spreads().uncalibrated(kind)
    if kind == "transition":
        return usual
    return max(usual, framework.stages_spread, *(each.stages_spread or 0.0 for each in devices))


def step_spread(
    seconds: float, stage_spreads: Iterable[float], framework: FrameworkSheet, facts: Facts
) -> float:
    """Return the spread of a step from those of its stages, all in seconds, one sigma.

    What `rlplan execute` runs is forecast from one device's tables, whose errors add up. Stages of another
    framework are off by themselves and make up for each other in part; a step is no better known than
    others' steps were.
    """
    if framework.runs:
        return sum(stage_spreads)
    spreads = load_spreads()
    calibrated = facts.calibration.label is not None
    least = spreads.within_site if calibrated else spreads.uncalibrated_step
    return max(hypot(*stage_spreads), least.value * seconds)


def is_plain(placed: PlacedTask) -> bool:
    """Tell whether a task costs what its parts say: this project's own step, at no site in particular."""
    framework = placed.framework
    own = framework.runs and not framework.stages
    return own and placed.facts.calibration is NO_CALIBRATION


def times_of(placed: PlacedTask, part: str = "") -> float:
    """Return how many times as long a part of a task takes at the site of its facts, under its framework."""
    factor = factor_of(placed, part)
    return (factor.value if factor else 1.0) * own_times(placed, part)


def own_times(placed: PlacedTask, part: str = "") -> float:
    """Return how many times as long a part of a task takes under its framework as its engine's sheet says."""
    if part in HOST_PARTS:
        return 1.0  # the framework's own work, whose times its sheet has
    return placed.framework.stages.get(KINDS.get(placed.task.kind, ""), 1.0)


def factor_of(placed: PlacedTask, part: str = "") -> Factor | None:
    """Return the site's factor of a part of a task; None where it has none."""
    calibration = placed.facts.calibration
    if part == DRIVER:
        return calibration.overhead
    if part == ENVIRONMENT:
        return None
    kind = KINDS.get(placed.task.kind)
    return calibration.factor(kind, placed.layout.engine) if kind else None


def _times(part: Estimate, factor: Factor | None, spread: float) -> Estimate:
    """Return a part's seconds with a site's factor; without one with a relative spread at least as large."""
    if factor is None:
        least = part.seconds * spread
        if least <= part.spread_seconds:
            return part
        return Estimate(part.seconds, least, part.source, part.outside_range)
    seconds = part.seconds * factor.value
    source = max(part.source, Source.FITTED)
    return replace(part, seconds=seconds, spread_seconds=seconds * factor.spread, source=source)


# What goes between host memory and GPUs: states that are off-loaded, layers and gradients that live there.


def stepped_parameters(placed: PlacedTask) -> int:
    """Return the parameters that a rank's optimizer steps."""
    ranks = stepping_ranks(placed)
    if placed.expert_copies(ranks) < ranks:
        return placed.kept_states(ranks)
    return -(-placed.trained_parameters // ranks)


def stepping_ranks(placed: PlacedTask) -> int:
    """Return the ranks that share the optimizer's states of one shard."""
    return placed.state_ranks if placed.layout.zero else 1


def gradients_to_host(placed: PlacedTask) -> Estimate:
    """Return seconds of copying a rank's gradients of what steps on the host there once."""
    share = 1.0 if placed.options.host_states else placed.options.host_optimizer
    local = stepped_parameters(placed) * share
    return placed.device.copy(local * placed.stored.gradient_bytes, "device_to_host")


def gradients_added_on_host(placed: PlacedTask) -> Estimate:
    """Return seconds of adding a rank's gradients once to those that lie in host memory, where all states are.

    They are copied to memory that is not pinned, and the host waits for each before it launches what comes next (PyTorch 2.11,
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce: non_blocking is off where it accumulates).
    """
    local = stepped_parameters(placed)
    return unpinned_copy(local * placed.stored.gradient_bytes, "device_to_host") + host_sum(local)


def layers_from_host(placed: PlacedTask) -> Estimate:
    """Return seconds of copying a rank's shard of weights that live in host memory to its GPU, layer by layer, once."""
    num_bytes = placed.kept_states(placed.state_ranks, placed.stored.weight_bytes)
    return placed.device.copy(num_bytes, "host_to_device")


def weights_from_host(placed: PlacedTask) -> Estimate:
    """Return seconds until weights that only infer are on their GPUs again, and have left them where the passes' framework says so.

    Those of a model that is trained may stay there. Of sharded ones a rank has its shard, of a model that is trained in the
    format in which it is stepped.
    """
    if placed.trains_role and "weights" not in placed.off_loadable:
        return ZERO
    sharded = placed.layout.zero >= FULLY_SHARDED
    if sharded and not placed.trains_role:
        return shard_from_host(placed)
    whole = placed.parameters * placed.shard.value_bytes
    num_bytes = _shard_bytes(placed) if sharded else whole
    collected = _collected(placed, optimizer=False)
    back = _weights_copy(placed, num_bytes, "host_to_device").at_least(collected)
    if placed.framework.leaves_after_passes:
        back = back + _weights_copy(placed, num_bytes, "device_to_host") + collected
    return back


def shard_from_host(placed: PlacedTask) -> Estimate:
    """Return seconds of copying a rank's shard of fully sharded weights to its GPU once, layer by layer between passes."""
    return placed.device.copy(_shard_bytes(placed), "host_to_device")


def _shard_bytes(placed: PlacedTask) -> int:
    """Return the bytes of a rank's shard of all weights, frozen ones included."""
    compared = placed.framework.gathers_stored and placed.task.role == "reference"
    stored = placed.trains_role or compared
    value = placed.stored.weight_bytes if stored else placed.shard.value_bytes
    return math.ceil((placed.parameters + placed.adapter_parameters) * value / placed.state_ranks)


def pinned_copy(
    placed: PlacedTask, num_bytes: float, direction: Literal["host_to_device", "device_to_host"]
) -> Estimate:
    """Return seconds of one copy to pinned host memory or back, while the other GPUs of a node copy as much."""
    alone = placed.device.copy(num_bytes, direction)
    together = num_bytes * placed.site.ranks_per_node(placed.layout.gpus)
    shared = copies_of_node(together, placed.device.sheet.host_bytes_per_second)
    # A limit that does not bind takes nothing from what was measured.
    return shared if shared.seconds > alone.seconds else alone


def _weights_copy(
    placed: PlacedTask, num_bytes: float, direction: Literal["host_to_device", "device_to_host"]
) -> Estimate:
    """Return seconds of a copy of weights, to host memory of the kind that their trainer uses or back."""
    if placed.trains_role and placed.options.unpinned_weights:
        return unpinned_copy(num_bytes, direction)
    return pinned_copy(placed, num_bytes, direction)


def _states_copy(
    placed: PlacedTask,
    states: int,
    weights: int,
    direction: Literal["host_to_device", "device_to_host"],
) -> Estimate:
    """Return seconds of one copy of a trainer's states and weights together, or of both where weights are not pinned, in bytes."""
    if not (weights and placed.options.unpinned_weights):
        return pinned_copy(placed, states + weights, direction)
    return pinned_copy(placed, states, direction) + _weights_copy(placed, weights, direction)


def _collected(placed: PlacedTask, *, optimizer: bool) -> Estimate:
    """Return seconds of the garbage collections that moving weights ends with, and an optimizer's states too if they move with them.

    Experts have an optimizer of their own where expert parallelism parts them: Megatron-Core has all others reduced with dense
    weights (`allreduce` of core/extensions/transformer_engine.py), and makes an optimizer of each kind (core/optimizer).
    """
    weights = "weights" in placed.off_loadable or not placed.trains_role
    optimizers = 2 if placed.layout.ep > 1 and placed.expert_parameters else 1
    moves = weights + (optimizers if optimizer and "optimizer" in placed.off_loadable else 0)
    return host_work(placed.framework.collects_seconds * moves)


def states_from_host(placed: PlacedTask) -> Estimate:
    """Return seconds until what a trainer had left in host memory is on its GPUs again."""
    states, weights = _states_bytes(placed)
    gradients = _gradients_bytes(placed)
    rate = placed.framework.from_host_bytes_per_second
    if rate is not None:
        return copy_at(states + weights + gradients, rate)
    back = _states_copy(placed, states + gradients, weights, "host_to_device")
    return back.at_least(_collected(placed, optimizer=True))


def states_to_host(placed: PlacedTask) -> Estimate:
    """Return seconds until what leaves a trainer's GPUs is in host memory."""
    states, weights = _states_bytes(placed)
    rate = placed.framework.to_host_bytes_per_second
    if rate is None:
        away = _states_copy(placed, states, weights, "device_to_host")
        return away + _collected(placed, optimizer=True)
    if "weights" in placed.framework.unpinned:
        states, weights = states + weights, 0
    written = copy_at(states + _gradients_bytes(placed), rate)
    return written + pinned_copy(placed, weights, "device_to_host")


def moments_from_host(placed: PlacedTask) -> Estimate:
    """Return seconds until an optimizer's moments, which a framework brings to the GPU for a step alone, are there."""
    num_bytes, rate = _moments_bytes(placed), placed.framework.from_host_bytes_per_second
    if rate is None:
        return pinned_copy(placed, num_bytes, "host_to_device")
    return copy_at(num_bytes, rate)


def moments_to_host(placed: PlacedTask) -> Estimate:
    """Return seconds until an optimizer's moments are in host memory again after a step."""
    num_bytes, rate = _moments_bytes(placed), placed.framework.to_host_bytes_per_second
    if rate is None:
        return pinned_copy(placed, num_bytes, "device_to_host")
    return copy_at(num_bytes, rate)


def _moments_bytes(placed: PlacedTask) -> int:
    """Return the bytes of a rank's optimizer states that leave the GPU, without master copies of weights."""
    stored = placed.stored
    return _away_bytes(placed, stored.optimizer_bytes - stored.master_bytes)


def _gradients_bytes(placed: PlacedTask) -> int:
    """Return the bytes of a rank's gradient buffers where a framework copies those too."""
    copied = "gradients" in placed.framework.unpinned and "gradients" in placed.off_loadable
    if not copied or not placed.engine.keeps_gradients:
        return 0
    return placed.trained_parameters * placed.stored.gradient_bytes


def _states_bytes(placed: PlacedTask) -> tuple[int, int]:
    """Return the bytes of a rank's optimizer states, and of the weights that leave the GPU with them."""
    stored = placed.stored
    staying = stored.master_bytes if placed.options.masters_stay else 0
    states = _away_bytes(placed, stored.optimizer_bytes - staying)
    if "weights" not in placed.off_loadable:
        return states, 0
    ranks = placed.state_ranks if placed.layout.zero == FULLY_SHARDED else 1
    return states, placed.kept_states(ranks, placed.stored.weight_bytes)


def _away_bytes(placed: PlacedTask, value_bytes: int) -> int:
    """Return the bytes of a rank's optimizer states of one size a parameter that leave the GPU.

    What steps in host memory is there already.
    """
    if "optimizer" not in placed.off_loadable:
        return 0
    states = placed.kept_states(stepping_ranks(placed), value_bytes)
    return round(states * (1 - placed.options.host_optimizer))
