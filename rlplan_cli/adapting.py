"""`rlplan execute --adapt`: what decides on a run's moves, and the plan with which an adapted run goes on."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rlplan_cli.terminal import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlplan.plan import Plan
    from rlplan.planner.adapting.adapter import MoveAdapter
    from rlplan.profiles.facts import Facts
    from rlplan.replicas import ReplicaChoice, ReplicaDevices, Replicas

MOVES, DRY_RUN = "moves", "dry-run"


def check_word(adapt: str | None) -> None:
    """Refuse a word behind `--adapt` that says nothing.

    Raises:
        FileError: Says which there are.
    """
    from rlplan.errors import FileError, nearest_name

    if adapt not in {None, MOVES, DRY_RUN}:
        nearest = nearest_name(str(adapt), (DRY_RUN,))
        allowed = f"nothing behind it, or {DRY_RUN}"
        raise FileError("--adapt", "says nothing", value=adapt, allowed=allowed, nearest=nearest)


def in_force(plan: Plan, out: Path, resume: Path | str | None) -> Plan:
    """Return a plan in the layout with which a run goes on in its folder: that of the plan last in force.

    Raises:
        FileError: The plan in the folder cannot be read.
    """
    from rlplan.files.decoding import read_yaml
    from rlplan.plan import Plan
    from rlplan.planner.adapting.proposing import in_layout_of, same_layout
    from rlplan.results.stored import PLAN_FILE

    start = resume.resolve() if isinstance(resume, Path) else None
    file = out.resolve() / PLAN_FILE
    if start is None or out.resolve() not in (start, *start.parents) or not file.exists():
        return plan
    last = read_yaml(Plan, file)
    if same_layout(plan, last):
        return plan
    say(f"goes on with the plan last in force ({last.placement}, mode {last.mode}): {file}")
    return in_layout_of(plan, last)


class Where(NamedTuple):
    """Say where a run is.

    Attributes:
        joins: Whether on a cluster that was joined, and not on this machine alone.
        simulates_nodes: Whether devices of this machine stand for those of several nodes.
    """

    joins: bool = False
    simulates_nodes: bool = False


HERE = Where()


def refusal(
    plan: Plan, where: Where = HERE, devices: ReplicaDevices | ReplicaChoice | None = None
) -> str:
    """Return why the executor does not carry a plan out where a run is; empty where it does.

    Args:
        devices: Of replicas that come and go, or between which numbers of them forecasts choose; None: all stay.
    """
    from rlplan.errors import UserError
    from rlplan.executor.control.capabilities import check_coming, check_runnable
    from rlplan.executor.control.start import check_machine
    from rlplan.executor.workers.cluster.nodes import plan_nodes

    try:
        check_runnable(plan)
        if devices is not None:
            check_coming(devices, plan)
        if not where.joins:
            check_machine(plan)
    except UserError as error:
        return str(error)
    nodes = len(plan_nodes(plan))
    is_here = any(where) or nodes == 1
    return "" if is_here else f"{nodes} nodes, and one machine"


@contextmanager
def adapter_of(
    adapt: str | None,
    facts: Facts,
    profile: Path | None,
    plan: Plan,
    out: Path,
    where: Where = HERE,
    schedule: Replicas | None = None,
) -> Iterator[MoveAdapter | None]:
    """Yield what decides on a run's moves, with a search in a process of its own; None where nothing does.

    Args:
        profile: Of which the facts are; None: of data sheets.
        plan: With which the run begins.
        where: The run is.
        schedule: Of replicas that come and go, in devices, or how many forecasts choose; None: all stay.
    """
    if adapt is None:
        yield None
        return
    from rlplan.planner.adapting.adapter import LEDGER_FILE, AdaptOptions, MoveAdapter
    from rlplan.planner.adapting.background import Background
    from rlplan.planner.adapting.coming import expected_devices
    from rlplan.replicas import ReplicaChoice, ReplicaDevices
    from rlplan.reports.tables.advice import advice_lines

    devices = schedule if isinstance(schedule, ReplicaDevices | ReplicaChoice) else None
    expected = None if isinstance(devices, ReplicaChoice) else devices
    if isinstance(devices, ReplicaChoice):
        table = devices.table_of(plan)
        first = table.row_of(table.begins).replicas
        expected = expected_devices(devices, plan, first, 0, plan.job.iterations or 1)
    with Background(profile, plan, expected) as searching:
        yield MoveAdapter(
            facts,
            out / LEDGER_FILE,
            AdaptOptions(dry_run=adapt == DRY_RUN),
            searching,
            partial(refusal, where=where, devices=devices),
            lambda line: "; ".join(advice_lines(line)),
            devices,
        )
