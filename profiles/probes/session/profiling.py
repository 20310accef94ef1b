"""Run all probes, and keep every point as soon as it is measured."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from profiles.probes import load_probe, probe_names
from profiles.probes.bench.contract import (
    DeviceProbe,
    HostBench,
    HostProbe,
    JobRules,
    Keys,
    Probe,
    Settings,
)
from profiles.probes.bench.processes import DeviceProcesses
from profiles.probes.bench.repeats import (
    fewest_of_round,
    measure_round,
    measure_within_budget,
    rounds_of,
)
from profiles.probes.session.context import context_bytes
from profiles.probes.session.opening import open_profile
from profiles.sheets import sheet_of
from profiles.tables.table import Profile
from rlplan.errors import UserError
from rlplan.job import Job
from rlplan.models.precision import WIDE
from rlplan.probing import PassRunner

# Called with the points that are done, all points, and what is measured now.
Progress = Callable[[int, int, str], None]


def profile_machine(  # noqa: PLR0913, the options of one command
    *,
    name: str,
    device: str,
    job: Job | None,
    runner: PassRunner | None,
    out: Path,
    devices: int,
    quick: bool = False,
    progress: Progress | None = None,
    rules: JobRules | None = None,
) -> Profile:
    """Measure this machine, and return its profile, which stands in the folder `out` as well.

    Points that `out` holds already are kept and not measured again, so that an interrupted session
    goes on where it stopped.

    Args:
        device: Name of the device sheet that one device of this machine is.
        job: A resolved job, whose shapes and passes are measured; None measures general shapes.
        runner: Runs passes of the job's models; None leaves them out.
        devices: Devices that work at the same time.
        quick: A coarse grid, in a fraction of the time.
        rules: The job's reward and cost functions; None leaves them out.

    Raises:
        FileError: `out` holds a profile of another machine or device, or is no folder.
        UserError: The device or the number of devices does not exist here, or torch is missing.
        ProbeError: A probe fails.
    """
    if devices < 1:
        raise UserError(f"a profile needs at least one device, not {devices}")
    settings = settings_of(device, job, devices, quick=quick, runner=runner, rules=rules)
    profile = open_profile(out, name, sheet_of(job, device).name, devices)
    session = Session(profile, out, progress or _say_nothing)
    probes = [load_probe(name) for name in probe_names()]
    work = [(probe, keys) for probe in probes for keys in probe.points(job, settings)]
    pending = [each for each in work if not is_measured(profile, *each)]
    session.done, session.total = len(work) - len(pending), len(work)
    if pending or not profile.complete:
        profile.header = replace(profile.header, complete=False)
        if runner is not None and not profile.header.context_bytes:
            profile.note_context(context_bytes(runner, settings))
        if runner is not None:
            profile.note_loop(runner.loop_flops_per_second())
        profile.write(out)
        session.run(pending, HostBench(job=job, settings=settings, runner=runner, rules=rules))
        if runner is not None:
            profile.note_loop(runner.loop_flops_per_second())
        profile.finish()
        profile.write(out)
    session.progress(session.total, session.total, "done")
    return profile


def settings_of(
    device: str,
    job: Job | None,
    devices: int,
    *,
    quick: bool = False,
    runner: PassRunner | None = None,
    rules: JobRules | None = None,
    nodes: int = 1,
) -> Settings:
    """Return what to measure on a device, with the job's number format or the device's usual one.

    Args:
        nodes: Between how many nodes collectives are measured; 1: inside one.

    Raises:
        UnknownNameError: No device sheet has that name.
    """
    sheet = sheet_of(job, device)
    return Settings(
        kind=sheet.kind,
        devices=devices,
        precision=WIDE[(job.precision if job else None) or sheet.default_precision],
        memory_bytes=sheet.memory_bytes - sheet.reserved_bytes,
        quick=quick,
        rules=tuple(rules.functions) if rules is not None else (),
        passes=runner is not None,
        nodes=nodes,
    )


def is_measured(profile: Profile, probe: Probe, keys: Keys) -> bool:
    """Tell whether a profile holds a point with at least the fewest repeats of all its rounds."""
    point = profile.get(probe.table, keys)
    if point is None:
        return False
    rounds = probe.rounds if isinstance(probe, HostProbe) else 1
    if rounds == 1:
        return True
    typical_seconds = point.seconds_mean
    wanted = rounds_of(rounds, typical_seconds) * fewest_of_round(typical_seconds)
    return point.repeats >= wanted


@dataclass
class Session:
    """Measure points into a profile that stands in a folder, and say how far that is."""

    profile: Profile
    out: Path
    progress: Progress
    done: int = 0
    total: int = 0

    def run(self, pending: list[tuple[Probe, Keys]], bench: HostBench) -> None:
        """Measure the points of device processes first, then, when those are gone, all others."""
        on_devices = [(probe, keys) for probe, keys in pending if isinstance(probe, DeviceProbe)]
        on_host = [(probe, keys) for probe, keys in pending if isinstance(probe, HostProbe)]
        if on_devices:
            self.progress(self.done, self.total, "starting device processes")
            with DeviceProcesses(bench.settings.kind, bench.settings.devices) as processes:
                for probe, keys in on_devices:
                    self.keep(probe, keys, partial(processes.measure, probe, keys))
        once = [(probe, keys) for probe, keys in on_host if probe.rounds == 1]
        for other, keys in once:
            self.keep(other, keys, partial(other.measure, bench, keys))
        self._in_rounds([each for each in on_host if each not in once], bench)

    def _in_rounds(self, pending: list[tuple[HostProbe, Keys]], bench: HostBench) -> None:
        """Measure points a little at a time; what has been seen of each is written down at once."""
        seen: list[tuple[float, ...]] = [()] * len(pending)
        rounds = max((probe.rounds for probe, _ in pending), default=0)
        for done in range(rounds):
            for index, (probe, keys) in enumerate(pending):
                share = (done * len(pending) + index) // rounds
                label = f"{probe.name}, round {done + 1} of {rounds}"
                self.progress(self.done + share, self.total, label)
                if seen[index] and done >= rounds_of(rounds, median(seen[index])):
                    continue
                seen[index] = measure_round(partial(probe.measure, bench, keys), seen[index])
                self.profile.add(probe.table, keys, seen[index])
                self.profile.write(self.out)

    def keep(self, probe: Probe, keys: Keys, measure: Callable[[int], tuple[float, ...]]) -> None:
        """Measure a point, and write it down."""
        self.progress(self.done, self.total, probe.name)
        self.profile.add(probe.table, keys, measure_within_budget(measure))
        self.profile.write(self.out)
        self.done += 1


def _say_nothing(done: int, total: int, label: str) -> None:
    """Take progress that nobody asked for."""
