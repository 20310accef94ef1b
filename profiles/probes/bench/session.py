"""A session: all probes on this machine, or links between nodes, into one profile.

Every point is kept as soon as it is measured; a session that was interrupted goes on with the rest.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from rlplan.errors import FileError, UserError
from rlplan.fingerprint import fingerprint_digest, matches, read_fingerprint
from rlplan.job import Job
from rlplan.models import WIDE
from rlplan.probing import GENERATION_PASSES, ModelPass, PassName, PassRunner
from rlplan.profiles.probes import load_probe, probe_names
from rlplan.profiles.probes.bench.clock import (
    fewest_of_round,
    measure_round,
    measure_within_budget,
    rounds_of,
)
from rlplan.profiles.probes.bench.contract import (
    DeviceKind,
    DeviceProbe,
    HostBench,
    HostProbe,
    JobRules,
    Keys,
    Probe,
    Settings,
)
from rlplan.profiles.probes.bench.processes import DeviceProcesses, counted
from rlplan.profiles.sheets import load_model, sheet_of
from rlplan.profiles.tables.table import HEADER_FILE, Profile, new_profile, read_profile
from rlplan.units import KIB, MIB


def open_profile(out: Path, name: str, device: str, devices: int) -> Profile:
    """Return the profile in `out` to go on with, or a new one.

    Raises:
        FileError: `out` holds a profile of another machine or device, or one that was measured
            under other conditions; it is left as it is.
    """
    fingerprint = read_fingerprint()
    machine = {
        "fingerprint": fingerprint_digest(fingerprint),
        **fingerprint,
        "devices": str(devices),
    }
    software = {"torch": torch_version(), "python": fingerprint["python"]}
    if out.exists() and not out.is_dir():
        raise FileError(str(out), "is a file; a profile is a folder")
    if not (out / HEADER_FILE).is_file():
        return new_profile(name, device, machine, software)
    profile = read_profile(out)
    _check_same(profile, out, machine, device=device, torch=software["torch"])
    return profile


def torch_version() -> str:
    """Return the version of torch, which is not imported for it.

    Raises:
        UserError: Torch is not installed.
    """
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "profiling measures with torch, which is not installed: "
            'install the extra `execute` (pip install "rlplan[execute]")'
        ) from None


def _check_same(
    profile: Profile, out: Path, machine: Mapping[str, str], *, device: str, torch: str
) -> None:
    """Refuse what would mix measurements of different things in one profile."""
    header = profile.header
    file = str(out / HEADER_FILE)
    elsewhere = "or give another folder to write to"
    if not matches(header.machine, machine):
        raise FileError(
            file,
            "is a profile of another machine, and is left as it is",
            field="machine.fingerprint",
            value=header.machine["fingerprint"],
            allowed=f"{machine['fingerprint']} ({machine['cpu']}, {machine['cores']} cores), "
            f"{elsewhere}",
        )
    conditions = (
        ("device", header.device, device),
        ("machine.devices", header.machine.get("devices", ""), machine["devices"]),
        ("software.torch", header.software.get("torch", ""), torch),
    )
    for field, found, wanted in conditions:
        if found != wanted:
            raise FileError(
                file,
                "is a profile that was measured under other conditions, and is left as it is",
                field=field,
                value=found,
                allowed=f"{wanted}, {elsewhere}",
            )


# Each loads code and lets libraries set up what they keep: models, attention, autograd, optimizer.
OF_ONE_RANK: tuple[PassName, ...] = ("infer", "train", "optimizer", *GENERATION_PASSES)
OF_TWO_RANKS: tuple[PassName, ...] = ("infer", "train")
# What calls hand over: through the controller's buffers, and through memory that workers share.
PAYLOADS: dict[PassName, int] = {"call": 4 * KIB, "fetch": MIB}
SMALLEST_MODEL = "tiny"
# As large as a small job's micro-batch: what the allocator keeps for its tensors is counted here and
# with the job's own, so that a forecast errs on the safe side, by the activations of next to nothing.
SEQUENCES, TOKENS = 8, 16


def context_bytes(runner: PassRunner, settings: Settings) -> int:
    """Return the bytes of a device that a worker takes with a model of next to none; 0 if unknown.

    The peak of a fresh worker on a core, after everything that a run does once, with a model of about
    1 MB: passes of one rank and of two, reductions of gradients, calls, payloads and syncs of weights.
    On a GPU, whose libraries do not count themselves, the device sheet's figure stays.
    """
    if settings.kind != "cpu":
        return 0
    for first in _first_passes(settings):
        runner.run(first, 1)
    return runner.held_bytes()


def _first_passes(settings: Settings) -> Iterator[ModelPass]:
    def of(name: PassName, **sizes: int) -> ModelPass:
        model = load_model(SMALLEST_MODEL)
        return ModelPass(name=name, model=model, head="lm", precision=settings.precision, **sizes)

    for name in OF_ONE_RANK:
        yield of(name, sequences=SEQUENCES, tokens=TOKENS)
    for name, num_bytes in PAYLOADS.items():
        yield of(name, tokens=num_bytes)
    if settings.devices > 1:
        yield of("weight_sync")
        yield of("gradient_reduction", dp=2)
        for name in OF_TWO_RANKS:
            yield of(name, tp=2, sequences=SEQUENCES, tokens=TOKENS)


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


LINKS: Final = "collective"
BACKENDS: Final = {"cpu": "gloo", "gpu": "nccl"}
INTERFACES: Final = {"cpu": "GLOO_SOCKET_IFNAME", "gpu": "NCCL_SOCKET_IFNAME"}
_BENCH: Final = "bench"

OnAll = Callable[..., list[Any]]
"""Called with a function and its arguments: answers with what the function returns on each rank, after what is held there."""


def open_bench(held: dict[str, Any], kind: DeviceKind, devices: int, nodes: int) -> str:
    """Make this rank's groups, where all ranks of all nodes have met; return the interface that they take.

    Args:
        held: What later calls find here.
        devices: Of each node, whose ranks follow one another.
    """
    import torch
    import torch.distributed as dist

    from rlplan.profiles.probes.bench.clock import TorchBench
    from rlplan.profiles.probes.bench.processes import groups_of

    rank = dist.get_rank()
    device = torch.device("cpu") if kind == "cpu" else torch.device("cuda", 0)
    held[_BENCH] = TorchBench(device=device, rank=rank, groups=groups_of(rank, devices, nodes))
    return os.environ.get(INTERFACES[kind], "")


def measure_link(held: dict[str, Any], name: str, keys: Keys, repeats: int) -> tuple[float, ...]:
    """Return the seconds of each repeat of one point on this rank."""
    probe, bench = load_probe(name), held[_BENCH]
    assert isinstance(probe, DeviceProbe), name
    seconds: tuple[float, ...] = bench.measure(probe.prepare(bench, keys), repeats)
    return seconds


def profile_links(
    profile: Profile, out: Path, settings: Settings, on_all: OnAll, progress: Progress
) -> None:
    """Measure what is missing of the links between nodes, and keep every point at once.

    Args:
        settings: Says how many nodes there are, and how many devices of each.
        on_all: Calls a function on every device.

    Raises:
        RlplanError: A probe fails, or a process is lost.
    """
    probes = [load_probe(name) for name in probe_names()]
    links = [each for each in probes if isinstance(each, DeviceProbe) and each.table == LINKS]
    work = [(probe, keys) for probe in links for keys in probe.points(None, settings)]
    pending = [(probe, keys) for probe, keys in work if not is_measured(profile, probe, keys)]
    session = Session(profile, out, progress, len(work) - len(pending), len(work))
    profile.header = replace(profile.header, complete=False)
    profile.write(out)
    for probe, keys in pending:
        session.keep(probe, keys, partial(_seconds, on_all, probe, keys))
    profile.finish()
    profile.write(out)
    progress(session.total, session.total, "done")


def _seconds(on_all: OnAll, probe: DeviceProbe, keys: Keys, repeats: int) -> tuple[float, ...]:
    return counted(probe, on_all(measure_link, probe.name, dict(keys), repeats))
