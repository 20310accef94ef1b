"""`rlplan profile --address`: each type of device of a Ray cluster once, and the links between its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rlplan_cli
from rlplan.errors import FileError
from rlplan_cli.profiling.nodes import POOL, Measured, ProfileRequest, nodes_to_measure
from rlplan_cli.profiling.there import Measured as Told
from rlplan_cli.profiling.there import NodeProfileRequest, files_of, measure_here

if TYPE_CHECKING:
    from rlplan.executor.workers.cluster.nodes import Placed
    from rlplan.profiles.tables.table import Profile

Progress = Callable[[int, int, str], None]


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

        def tell(told: Told) -> None:
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
        from rlplan.profiles.probes.session import BACKENDS, open_bench, profile_links, settings_of

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
