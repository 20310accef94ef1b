"""The share of a datasheet's rates that real operations reach, per device architecture.

`profiles/fits/<architecture>.yaml` holds them, each with its source and reason; costs that belong
to the host and not to the device stand in `profiles/fits/host.yaml`, the spread of lengths of prompts and
responses in `profiles/fits/lengths.yaml`.
"""

from dataclasses import dataclass
from functools import cache, partial
from math import hypot
from pathlib import Path
from typing import Final, Literal

from rlplan.calibration import WorkKind
from rlplan.errors import MissingFactError, UnknownNameError
from rlplan.estimate import ZERO, Estimate, Source
from rlplan.files.frozen import FrozenDict
from rlplan.files.kept_sheets import read_sheet
from rlplan.files.limits import NonNegative

FITS_FOLDER: Final = Path(__file__).parents[1] / "fits"
HOST_FILE: Final = "host"
LENGTHS_FILE: Final = "lengths"
CALIBRATION_FILE: Final = "calibration"
LENDING_FILE: Final = "lending"
AGES_FILE: Final = "sample_ages"
OTHER_FILES: Final = (HOST_FILE, LENGTHS_FILE, CALIBRATION_FILE, LENDING_FILE, AGES_FILE)
RULE_PREFIX: Final = "rule:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Hold one number of a cost formula, with its origin.

    Attributes:
        fitted: Whether it was fitted to measurements; False is a published or a starting value.
    """

    value: NonNegative
    source: str
    reason: str = ""
    fitted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """Hold the constants of the roofline of one architecture. Spreads are relative, one sigma.

    Attributes:
        kernels: Architecture whose kernels stand for this one's (`profiles/kernels/constants/`).
        memory_efficiency: Share of the memory's rate that elementwise kernels reach.
        kernel_seconds: Time of an empty kernel on the device, beside the host's launch.
        attention_efficiency: Share of the peak rate of the forward pass, causal half counted.
        attention_backward_efficiency: The same for the backward pass.
        attention_memory_efficiency: Share of the memory's rate at which a decode step reads its
            keys and values.
        attention_fixed_seconds: Time of an attention kernel with next to no work.
        optimizer_traffic_factor: Bytes moved by an optimizer step over the least possible.
        link_efficiency: Share of the intra-node link's rate that collectives across nodes reach.
        nic_efficiency: Share of the network's rate that collectives reach across nodes.
        host_link_efficiency: Share of the host link's rate that copies reach.
        collective_fixed_seconds: Time of a collective across nodes with next to no bytes, beside
            link latency.
        tree_chunk_seconds: What a chunk of an all-reduce takes at each level of nodes, up and down,
            beside its bytes.
        tree_fill_seconds: What all levels' first chunks take at most, each level, however large the
            tensor: chunks have a largest size.
        borrowed_spread: Least spread of what another architecture's kernels say, where this one has no
            kernels of its own.
        borrowed_rate: Share of the peak rate that products reach here, over the share that those
            kernels reach on their own architecture; None is the same.
    """

    architecture: str
    kernels: str
    memory_efficiency: Constant
    kernel_seconds: Constant
    attention_efficiency: Constant
    attention_backward_efficiency: Constant
    attention_memory_efficiency: Constant
    attention_fixed_seconds: Constant
    optimizer_traffic_factor: Constant
    link_efficiency: Constant
    nic_efficiency: Constant
    host_link_efficiency: Constant
    collective_fixed_seconds: Constant
    tree_chunk_seconds: Constant
    tree_fill_seconds: Constant
    memory_spread: Constant
    attention_spread: Constant
    collective_spread: Constant
    copy_spread: Constant
    borrowed_spread: Constant | None = None
    borrowed_rate: Constant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Hold what the controller's processes cost, where no profile measured them.

    Attributes:
        actor_call_seconds: Round trip of a call to a worker process that does nothing.
        object_fetch_seconds: Round trip of fetching a small object from another process.
        object_bytes_per_second: Rate at which large objects pass between processes.
        process_start_seconds: Start of a worker process that imports the training library.
        adam_parameters_per_second: Parameters that a rank's process steps with Adam in host memory.
        unpinned_to_host_bytes_per_second: Rate of copies from a GPU to memory that is neither pinned nor kept, of each rank.
        unpinned_from_host_bytes_per_second: Rate of copies back from there.
        node_copies_bytes_per_second: Rate of copies between a node's host and its GPUs, all of them together.
        added_parameters_per_second: Gradients that a rank's process adds to others in host memory.
        rule_call_seconds: A call of a reward rule of which nobody said what it takes.
        spread: Relative, one sigma.
    """

    actor_call_seconds: Constant
    object_fetch_seconds: Constant
    object_bytes_per_second: Constant
    process_start_seconds: Constant
    rule_call_seconds: Constant
    adam_parameters_per_second: Constant
    unpinned_to_host_bytes_per_second: Constant
    unpinned_from_host_bytes_per_second: Constant
    node_copies_bytes_per_second: Constant
    added_parameters_per_second: Constant
    spread: Constant


@cache
def architecture_names() -> tuple[str, ...]:
    """Return the architectures that have a file in `profiles/fits/`, sorted."""
    names = (path.stem for path in FITS_FOLDER.glob("*.yaml"))
    return tuple(sorted(name for name in names if name not in OTHER_FILES))


@cache
def load_efficiencies(architecture: str) -> Efficiencies:
    """Return the constants of an architecture, such as `ampere`.

    Raises:
        UnknownNameError: There is no file of that name in `profiles/fits/`.
    """
    if architecture not in architecture_names():
        raise UnknownNameError("architecture", architecture, architecture_names())
    return read_sheet(Efficiencies, FITS_FOLDER / f"{architecture}.yaml")


# Returns what the controller's processes cost where no profile measured them.
load_host_costs = cache(partial(read_sheet, HostCosts, FITS_FOLDER / f"{HOST_FILE}.yaml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchCosts:
    """Hold what it takes to take a generation engine off its GPUs, in seconds; the spread is relative, one sigma."""

    sleep_seconds: Constant
    spread: Constant


# Returns what it takes to take a generation engine off its GPUs.
load_switch_costs = cache(partial(read_sheet, SwitchCosts, FITS_FOLDER / f"{LENDING_FILE}.yaml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeSlopes:
    """Hold how many iterations more are needed for each that samples are old.

    Attributes:
        median: Of pairs of runs.
        most: The largest of a run that learnt at all, taken as p90; p10 is 0.
    """

    median: Constant
    most: Constant


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeCosts:
    """Hold what the age of samples costs, by what corrects for it.

    Attributes:
        none: Where nothing does but the ratio's clipping.
        decoupled: Where the ratio is clipped around the policy that learns, and tokens are weighed by importance.
        oldest: Age in iterations of the oldest samples in any of the runs.
    """

    none: AgeSlopes
    decoupled: AgeSlopes
    oldest: Constant


# Returns what the age of samples costs.
load_age_costs = cache(partial(read_sheet, AgeCosts, FITS_FOLDER / f"{AGES_FILE}.yaml"))


def unmeasured_call(num_bytes: float, kind: str, rule_seconds: float | None) -> Estimate:
    """Return the seconds of a call that passes `num_bytes`, or of one call of a reward rule.

    Args:
        rule_seconds: What a job gives for its reward rule; None takes a usual rule's, which
            forecasts say among their assumptions.

    Raises:
        MissingFactError: The kind is not known.
    """
    host = load_host_costs()
    if kind.startswith(RULE_PREFIX):
        if rule_seconds is None:
            rule_seconds = host.rule_call_seconds.value
        return Estimate(rule_seconds, rule_seconds * host.spread.value, Source.DATASHEET)
    fixed = {
        "actor_call": host.actor_call_seconds,
        "object_fetch": host.object_fetch_seconds,
        "process_start": host.process_start_seconds,
    }
    if kind not in fixed:
        raise MissingFactError(
            f"no cost is known for a call of kind {kind!r}; known: {', '.join(fixed)}, "
            f"{RULE_PREFIX}<name>"
        )
    seconds = fixed[kind].value + num_bytes / host.object_bytes_per_second.value
    return Estimate(seconds, seconds * host.spread.value, Source.DATASHEET)


def host_step(parameters: float) -> Estimate:
    """Return the seconds in which a rank's process steps so many parameters in host memory."""
    return _at_rate(parameters, load_host_costs().adam_parameters_per_second)


def host_sum(parameters: float) -> Estimate:
    """Return the seconds in which a rank's process adds so many gradients to those in host memory."""
    return _at_rate(parameters, load_host_costs().added_parameters_per_second)


def unpinned_copy(
    num_bytes: float, direction: Literal["host_to_device", "device_to_host"]
) -> Estimate:
    """Return the seconds of a rank's copy to host memory that is neither pinned nor kept, or back from there."""
    host = load_host_costs()
    if direction == "host_to_device":
        return _at_rate(num_bytes, host.unpinned_from_host_bytes_per_second)
    return _at_rate(num_bytes, host.unpinned_to_host_bytes_per_second)


def copies_of_node(num_bytes: float, link_bytes_per_second: float) -> Estimate:
    """Return the seconds in which a node's GPUs copy so much, all of them together, to pinned host memory or from there.

    Zero where one GPU's link is faster than that: a Grace's memory is its own GPUs' alone.
    """
    rate = load_host_costs().node_copies_bytes_per_second
    return ZERO if link_bytes_per_second > rate.value else _at_rate(num_bytes, rate)


def host_work(seconds: float) -> Estimate:
    """Return seconds that a process works on its host, known as any host's work is; zero of none leaves what was measured so."""
    if not seconds:
        return ZERO
    return Estimate(seconds, seconds * load_host_costs().spread.value, Source.DATASHEET)


def copy_at(num_bytes: float, bytes_per_second: float) -> Estimate:
    """Return the seconds of a rank's copy to or from its host at the rate that was seen under a framework.

    Another host is known no better than one that copies to memory which is not pinned.
    """
    seconds = num_bytes / bytes_per_second
    return Estimate(seconds, seconds * load_host_costs().spread.value, Source.FITTED)


def _at_rate(amount: float, rate: Constant) -> Estimate:
    seconds = amount / rate.value
    return Estimate(seconds, seconds * load_host_costs().spread.value, Source.DATASHEET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreads:
    """Hold standard deviations of logarithms: relative, one sigma.

    Attributes:
        between_sites: Of what a site takes over what its sheets say, by kind of work.
        links_between_sites: Of collectives on a kind of link over what is forecast.
        within_site: Of stages of one site around the forecasts with its factors.
        within_machine: Of whole iterations of this project's executor by several plans on one machine, around forecasts by a
            profile of it.
        of_step: The same as a share of the whole step, beside that of the stage: timers of small stages
            hold what belongs to others; published seconds are printed to few digits.
        overhead_between_sites: Of the host's own seconds in a step over what is forecast.
        uncalibrated_step: Of steps around their forecasts at sites that were not calibrated: less than of their
            stages, whose errors make up for each other in part.
        outlier: Residuals of more such deviations count as outliers, whose weight is cut.
    """

    between_sites: FrozenDict[WorkKind, Constant]
    links_between_sites: Constant
    within_site: Constant
    within_machine: Constant
    of_step: Constant
    overhead_between_sites: Constant
    uncalibrated_step: Constant
    outlier: Constant

    def uncalibrated(self, kind: WorkKind) -> float:
        """Return the spread of one kind of work around its forecast at a site that was not calibrated."""
        return hypot(self.between_sites[kind].value, self.within_site.value)


# Returns the spreads between and within sites.
load_spreads = cache(partial(read_sheet, Spreads, FITS_FOLDER / f"{CALIBRATION_FILE}.yaml"))
