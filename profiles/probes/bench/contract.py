"""What a probe is, what it is told, and what it measures with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rlplan.job import Job
    from rlplan.models import Precision
    from rlplan.probing import PassRunner
    from rlplan.profiles.probes.bench.clock import TorchBench

Keys = Mapping[str, "str | int"]
DeviceKind = Literal["cpu", "gpu"]
RewardRule = Callable[[str, str, dict[str, Any]], float]


@dataclass(frozen=True, slots=True)
class JobRules:
    """Hold a job's reward and cost functions by name, and rows of its prompts, each with a `prompt`.

    Attributes:
        judge: Judges responses as a job's worker does, by a function's name, and returns how many; None: functions are
            called one by one.
    """

    functions: Mapping[str, RewardRule]
    rows: Sequence[dict[str, Any]]
    judge: Callable[[str], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Say what to measure on, and how much of it.

    Attributes:
        kind: Whether a device is a GPU or a core of the host.
        devices: Devices of a node that are measured at once, and the largest group of a collective in it.
        precision: Number format of operators and passes.
        memory_bytes: What one device has; no point takes more than a part of it.
        quick: Whether a coarse grid will do.
        rules: Names of the reward and cost functions that were handed in.
        passes: Whether a pass runner was handed in.
        nodes: Between how many nodes collectives are measured; 1: inside one.
    """

    kind: DeviceKind
    devices: int
    precision: Precision
    memory_bytes: int
    quick: bool = False
    rules: tuple[str, ...] = ()
    passes: bool = False
    nodes: int = 1

    @property
    def step(self) -> int:
        """Return the factor between neighbouring sizes of a grid."""
        return 16 if self.quick else 4

    @property
    def largest_flops(self) -> float:
        """Return the floating point operations of the largest point: a fraction of a second's work.

        A core does some 5e10 a second in float32, a data-centre GPU 1e14 to 1e15 in bfloat16.
        """
        return 1e10 if self.kind == "cpu" else 1e14

    @property
    def largest_pass_flops(self) -> float:
        """Return the floating point operations of the largest pass of a model: seconds of work, five of a core."""
        return (25 if self.kind == "cpu" else 10) * self.largest_flops

    @property
    def largest_bytes(self) -> int:
        """Return the bytes of the largest buffer, so that a few copies of it fit.

        Beyond 64 MiB on a core (256 MiB on a GPU) caches play no part and seconds grow in line.
        """
        return min(self.memory_bytes // 16, 2**26 if self.kind == "cpu" else 2**28)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBench:
    """Hold what probes outside the device processes measure with.

    Attributes:
        runner: Runs passes of models; None when nobody handed one in.
        rules: The job's reward and cost functions; None when it has none.
    """

    job: Job | None
    settings: Settings
    runner: PassRunner | None = None
    rules: JobRules | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Hold what all probes have.

    Attributes:
        name: The name of its file.
        table: The table of the profile that it fills.
        points: Returns the keys to measure, for a job or, without one, for any.
    """

    name: str
    table: str
    points: Callable[[Job | None, Settings], Sequence[Keys]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProbe(Probe):
    """Hold a probe that runs in one process per device, all of them busy as in a job.

    Attributes:
        prepare: Makes the inputs of one point, and returns the operation that is timed.
        collective: Whether the processes work together, so that the slowest one counts.
        operations: How many of what the table counts one call does; its seconds are shared out.
    """

    prepare: Callable[[TorchBench, Keys], Callable[[], object]]
    collective: bool = False
    operations: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProbe(Probe):
    """Hold a probe that runs beside the devices, or has others run it.

    Attributes:
        measure: Returns the seconds of each repeat of one point, after a warm-up.
        rounds: How often to come back to every point, the others in between.
    """

    measure: Callable[[HostBench, Keys, int], tuple[float, ...]]
    rounds: int = 1
