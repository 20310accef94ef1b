"""`rlplan profile --address`: each type of device of a Ray cluster once, and the links between its nodes."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rlplan_cli
from rlplan.errors import FileError
from rlplan_cli.profiling.nodes import POOL, Measured, ProfileRequest, nodes_to_measure

if TYPE_CHECKING:
    from rlplan.executor.workers.cluster.nodes import Placed
    from rlplan.job import Job
    from rlplan.profiles.probes.bench.contract import JobRules
    from rlplan.profiles.probes.bench.session import Progress as SessionProgress
    from rlplan.profiles.tables.table import Profile

Progress = Callable[[int, int, str], None]

# Between two looks at the files: a session writes some of them many times a second.
FILES_SECONDS = 1.0


def measure_cluster(
    out: Path,
    address: str,
    wanted: ProfileRequest,
    *,
    folder: Path,
    quick: bool,
    progress: Progress,
) -> tuple[Profile, ...]:
    """Measure a cluster into the profile folder `out`, resuming what is there; leave the cluster as it was.

    Of several types of devices each has a folder of its own in `out`.

    Args:
        address: `auto`, or `HOST:PORT`.
        folder: What paths in the job are relative to.

    Raises:
        UserError: Nobody answers there; nodes are missing, in use or unlike each other; or `out` holds a
            profile of something else.
    """
    from rlplan.executor.workers.cluster.looking import carried_files
    from rlplan.executor.workers.cluster.nodes import ray_nodes
    from rlplan.executor.workers.processes.joined_ray import joined_ray
    from rlplan_cli.profiling.rules import rows_of_rules

    job = wanted.job
    rows = rows_of_rules(job, folder) if job is not None else None
    with ExitStack() as stack:
        package = stack.enter_context(carried_files(job, folder)) if job is not None else None
        commands = Path(str(rlplan_cli.__file__)).parent  # run on the nodes too
        modules = [commands] if package is None else [commands, package]
        stack.enter_context(joined_ray(address, modules))
        found = nodes_to_measure(wanted, ray_nodes())
        folders = {each.device: out / each.device if len(found) > 1 else out for each in found}
        for each in found:
            _check_same_nodes(folders[each.device], each)
        for each in found:
            one = _OneDevice(each, folders[each.device], out.name, progress)
            one.measure(partial(_asked, wanted, folder.resolve(), rows, quick=quick))
            one.measure_links(wanted, quick=quick)
    from rlplan.profiles.tables.table import read_profile

    return tuple(read_profile(folders[each.device]) for each in found)


def _check_same_nodes(folder: Path, measured: Measured) -> None:
    """Refuse a folder whose links are between other nodes: they would mix with these.

    Raises:
        FileError: Names both.
    """
    from rlplan.profiles.tables.table import HEADER_FILE, read_profile

    if not (folder / HEADER_FILE).is_file():
        return
    before, now = read_profile(folder).header.nodes, [each.address for each in measured.nodes]
    if before and list(before) != now:
        raise FileError(
            str(folder / HEADER_FILE),
            "is a profile of other nodes, and is left as it is",
            field="nodes",
            value=", ".join(before),
            allowed=f"{', '.join(now)}, or give another folder to write to",
        )


def _asked(
    wanted: ProfileRequest,
    folder: Path,
    rows: list[dict[str, Any]] | None,
    measured: Measured,
    placed: Placed,
    out: Path,
    name: str,
    *,
    quick: bool,
) -> NodeProfileRequest:
    from rlplan.profiles.sheets import sheet_of

    return NodeProfileRequest(
        name=name,
        device=measured.device,
        kind=sheet_of(wanted.job, measured.device).kind,
        job=wanted.job,
        folder=folder,
        rows=rows,
        places=placed.of_pool(POOL, measured.devices),
        quick=quick,
        files=files_of(out),
        shown=str(out),
    )


class _OneDevice:
    """Measure one type of device: a node of it whole, then what lies between its nodes."""

    def __init__(self, measured: Measured, out: Path, name: str, progress: Progress) -> None:
        self._measured, self._out, self._name, self._progress = measured, out, name, progress

    def _tell(self, where: str, done: int, total: int, label: str) -> None:
        self._progress(done, total, f"{self._measured.device} {where}: {label}")

    def measure(self, asked: Callable[..., NodeProfileRequest]) -> None:
        """Measure the first node, as `rlplan profile` measures a machine."""
        from rlplan.executor.workers.cluster.node_calls import run_on
        from rlplan.executor.workers.cluster.nodes import placed_on

        node = self._measured.nodes[0]

        def tell(told: SessionState) -> None:
            if told.files:
                _write(self._out, told.files)
            self._tell(f"on {node.address}", told.done, told.total, told.label)

        with placed_on(self._measured.plan_nodes[:1], self._measured.nodes[:1]) as placed:
            request = asked(self._measured, placed, self._out, self._name)
            _write(self._out, run_on(node, measure_here, [request], tell))
        self._note(self._out, {})

    def _note(self, out: Path, network: dict[str, str]) -> Profile:
        from rlplan.profiles.tables.table import read_profile

        profile = read_profile(out)
        addresses = [each.address for each in self._measured.nodes]
        profile.note_nodes(addresses, network or dict(profile.header.network))
        profile.write(out)
        return profile

    def measure_links(self, wanted: ProfileRequest, *, quick: bool) -> None:
        """Measure what devices of different nodes take for messages and collectives."""
        from rlplan.executor.control.start import device_type, join_all
        from rlplan.executor.workers.cluster.node_calls import apply_on_all, started_members
        from rlplan.executor.workers.cluster.nodes import placed_on
        from rlplan.profiles.probes.bench.session import (
            BACKENDS,
            open_bench,
            profile_links,
            settings_of,
        )

        measured = self._measured
        count, devices = len(measured.nodes), measured.devices
        if count == 1:
            return
        settings = settings_of(measured.device, wanted.job, devices, quick=quick, nodes=count)
        with placed_on(measured.plan_nodes, measured.nodes) as placed:
            options = placed.of_pool(POOL, count * devices)
            with started_members(options) as members:
                join_all({members: device_type(measured.device)})
                taken = apply_on_all(members, open_bench, settings.kind, devices, count)
                interfaces = {
                    node.address: taken[place * devices]
                    for place, node in enumerate(measured.nodes)
                    if taken[place * devices]
                }
                profile = self._note(self._out, {"backend": BACKENDS[settings.kind], **interfaces})
                on_all = partial(apply_on_all, members)
                tell = partial(self._tell, f"between {count} nodes")
                profile_links(profile, self._out, settings, on_all, tell)


def _write(out: Path, files: Mapping[str, str]) -> None:
    """Write a profile's files, the header last, which says that they are whole."""
    from rlplan.files.writing import write_text
    from rlplan.profiles.tables.table import HEADER_FILE

    names: Sequence[str] = sorted(files, key=lambda name: name == HEADER_FILE)
    for name in names:
        write_text(out / name, files[name])


# What runs on the node that is measured, in a process of Ray's: the same session as on one's own machine.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProfileRequest:
    """Say what to measure on a node.

    Attributes:
        name: Of the profile.
        folder: What paths in the job are relative to, where the command runs.
        rows: Prompts on which reward functions are timed; None times none.
        places: Options with which a process of each device starts.
        files: What an earlier session has left of the profile, by name.
        shown: Folder of the profile, as the user gave it.
    """

    name: str
    device: str
    kind: str
    job: Job | None
    folder: Path
    rows: Sequence[dict[str, Any]] | None
    places: Sequence[Mapping[str, Any]]
    quick: bool
    files: Mapping[str, str]
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """Hold how far a session is, and the files of its profile by name where they were looked at."""

    done: int
    total: int
    label: str
    files: Mapping[str, str] | None = None


def measure_here(
    tell: Callable[[SessionState], object], asked: NodeProfileRequest
) -> Mapping[str, str]:
    """Measure this node, and return the files of its profile by name.

    Raises:
        FileError: The earlier session's profile is of another machine, or other conditions.
    """
    with tempfile.TemporaryDirectory(prefix="rlplan-profile-") as made:
        out = Path(made, asked.name)
        if asked.files:
            out.mkdir()
        for name, text in asked.files.items():
            (out / name).write_text(text, encoding="utf-8")
        try:
            with _without_main_program():
                _measure(asked, out, _told(tell, out))
        except FileError as error:
            raise _of_users_folder(error, str(out), asked.shown) from None
        return files_of(out)


@contextmanager
def _without_main_program() -> Iterator[None]:
    """Keep processes of devices from running this process's main program first: it is Ray's, and takes a second."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    main.__file__ = None
    try:
        yield
    finally:
        main.__file__ = path


def _measure(asked: NodeProfileRequest, out: Path, progress: SessionProgress) -> None:
    from rlplan.executor.pass_runner import RayPassRunner
    from rlplan.executor.workers.cluster.looking import seen_job
    from rlplan.profiles.probes.bench.session import profile_machine
    from rlplan_cli.profiling.rules import rules_on

    job, rules = asked.job, None
    if job is not None:
        job, folder = seen_job(job, asked.folder)
        if asked.rows is not None:
            rules = _named_as_asked(rules_on(asked.rows, job, folder), job, asked.job)
    torch_name = "cpu" if asked.kind == "cpu" else "cuda"
    with RayPassRunner(len(asked.places), torch_name, job, asked.places) as runner:
        if asked.kind != "cpu":  # those that Ray has given to the runner's workers, and no others
            os.environ["CUDA_VISIBLE_DEVICES"] = runner.visible_gpus
        profile_machine(
            name=asked.name,
            device=asked.device,
            job=asked.job,
            runner=None if job is None else runner,
            out=out,
            devices=len(asked.places),
            quick=asked.quick,
            progress=progress,
            rules=rules,
        )


def _named_as_asked(rules: JobRules, seen: Job, asked: Job | None) -> JobRules:
    """Return rules under the names that the user's job has for them: files that went along lie elsewhere."""
    assert asked is not None, "a job has rules"
    pairs = [
        (getattr(asked.rewards, field, None), getattr(seen.rewards, field, None))
        for field in ("function", "cost_function")
    ]
    names = {own: there for own, there in pairs if own is not None and there is not None}
    functions = {own: rules.functions[there] for own, there in names.items()}
    judge = rules.judge
    if judge is None:
        return replace(rules, functions=functions)
    return replace(rules, functions=functions, judge=lambda name: judge(names[name]))


def _told(tell: Callable[[SessionState], object], out: Path) -> SessionProgress:
    looked = time.monotonic()

    def progress(done: int, total: int, label: str) -> None:
        nonlocal looked
        files = None
        if time.monotonic() - looked > FILES_SECONDS:
            files, looked = files_of(out), time.monotonic()
        tell(SessionState(done=done, total=total, label=label, files=files))

    return progress


def files_of(folder: Path) -> dict[str, str]:
    """Return the texts of a profile's files by name, its header last; nothing where there is none."""
    from rlplan.profiles.tables.table import HEADER_FILE

    header = folder / HEADER_FILE
    if not header.is_file():
        return {}
    paths = (*sorted(folder.glob("*.csv")), header)
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def _of_users_folder(error: FileError, here: str, shown: str) -> FileError:
    """Return an error about a profile's file under the name of the user's folder."""
    return FileError(
        error.file.replace(here, shown),
        error.problem,
        field=error.field,
        value=error.value,
        allowed=error.allowed,
        nearest=error.nearest,
    )
