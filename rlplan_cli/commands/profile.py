"""`rlplan profile`: measure this machine; `rlplan profile show`: look at what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan_cli.terminal import AddressOption, JsonOption, echo_json, print_table, say

if TYPE_CHECKING:
    from rlplan.profiles.tables.summary import TableSummary
    from rlplan.profiles.tables.table import Header, Profile
    from rlplan.reports.tables.plans import Table

EXAMPLE = "Example: rlplan profile --job job.yaml --out profiles/mine --quick"

app = typer.Typer(
    help="Measure what operations cost on this machine.",
    epilog=EXAMPLE,
    invoke_without_command=True,
    no_args_is_help=False,
)


@app.callback()
def measure(  # noqa: PLR0917 -- one parameter an option
    context: typer.Context,
    job: Annotated[
        Path | None,
        typer.Option(
            help="Measure what plans of this job can ask for; without it, operators alone."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of the profile; an interrupted one is resumed.")
    ] = Path("profile"),
    device: Annotated[
        str | None, typer.Option(help="Device sheet that this machine has; the job's by default.")
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Devices to keep busy at once, of a cluster on each node; the job's by default.",
        ),
    ] = None,
    address: AddressOption = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --address: most nodes of a device between which links are measured; "
            "the job's, or all, by default.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer shapes and repeats.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure GEMM, attention, collectives, copies, calls and whole passes of the job's models."""
    if context.invoked_subcommand is not None:
        return
    from rlplan.files.writing import check_folder
    from rlplan.profiles.catalog import load_job
    from rlplan_cli.measuring import measure_joined, measure_machine
    from rlplan_cli.profiling.nodes import ProfileRequest
    from rlplan_cli.running import joined_address, require_execution

    resolved = load_job(job) if job else None
    check_folder("--out", out)
    require_execution()
    folder = job.parent if job else Path()
    joined = joined_address(address)
    if joined is not None:
        wanted = ProfileRequest(job=resolved, device=device, devices=devices, nodes=nodes)
        found = measure_joined(out, joined, wanted, folder=folder, quick=quick)
        _tell(found, out, as_json=as_json)
        return
    _check_here(nodes)
    group = resolved.cluster[0] if resolved else None
    profile = measure_machine(
        out,
        job=resolved,
        folder=folder,
        device=device or (group.gpu if group else "cpu"),
        devices=devices or (group.gpus if group else 1),
        quick=quick,
    )
    _tell((profile,), out, as_json=as_json)


def _check_here(nodes: int | None) -> None:
    """Refuse an option that is for clusters where this machine is measured.

    Raises:
        FileError: Names it.
    """
    from rlplan.errors import FileError

    if nodes is not None:
        problem, allowed = "is of a cluster that is joined", "together with --address"
        raise FileError("--nodes", problem, value=nodes, allowed=allowed)


@app.command(epilog="Example: rlplan profile show profiles/mine --plots plots")
def show(
    profile: Annotated[Path, typer.Argument(help="A profile's folder.")],
    plots: Annotated[Path | None, typer.Option(help="Draw every table into this folder.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a profile holds, table by table, and plot it."""
    from rlplan.files.writing import check_folder
    from rlplan.profiles.tables.summary import frames, summarize
    from rlplan.profiles.tables.table import read_profiles

    check_folder("--plots", plots)
    found = read_profiles(profile)
    if plots is not None:
        from rlplan.reports.pictures.profile_plots import plot_profile

        for each in found:
            folder = plots / each.header.device if len(found) > 1 else plots
            for drawn in plot_profile(frames(each), folder):
                say(f"plot: {drawn}")
    if as_json:
        _tell(found, profile, as_json=True)
        return
    for each in found:
        print_table(_title(each.header), _table(summarize(each)), spare=("Keys",))


@app.command(
    name="import",
    epilog="Example: rlplan profile import --format vidur data/a100 --device a100-80gb-sxm "
    "--out profiles/a100",
)
def import_(
    path: Annotated[
        Path | None,
        typer.Argument(help="Table or folder of tables; none: what the installed package holds."),
    ] = None,
    *,
    format_name: Annotated[str, typer.Option("--format", help="vidur, aiconfigurator or csv.")],
    device: Annotated[str, typer.Option(help="Device sheet that the measurements are of.")],
    out: Annotated[Path, typer.Option(help="Folder of the profile.")] = Path("profile"),
    column_map: Annotated[
        Path | None, typer.Option("--map", help="For csv: which column is what (YAML).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn tables that others measured into a profile."""
    from rlplan.profiles.imports import Source, import_profile

    source = Source(path=path, device=device, column_map=column_map)
    profile, found = import_profile(format_name, source)
    profile.write(out)
    for reason, rows in sorted(found.left_out.items()):
        say(f"left out {rows} rows: {reason}")
    _tell((profile,), out, as_json=as_json)


def _tell(found: tuple[Profile, ...], out: Path, *, as_json: bool) -> None:
    """Say where a profile was written and how to look at it, or print its summary as JSON; a list of several devices'."""
    if as_json:
        shown = [_document(profile) for profile in found]
        echo_json(shown if len(shown) > 1 else shown[0])
        return
    points = f"{sum(map(len, found))} points; look at it with: rlplan profile show {out}"
    say(f"profile written to {out}: {points}")


def _title(header: Header) -> str:
    title = f"Profile {header.name} of {header.device}"
    if len(header.nodes) > 1:
        title = f"{title}, links between {', '.join(header.nodes)}"
    return title if header.complete else f"{title} (interrupted)"


def _document(profile: Profile) -> dict[str, object]:
    from rlplan.profiles.tables.summary import summarize

    return {"header": profile.header, "tables": summarize(profile)}


def _table(rows: Iterable[TableSummary]) -> Table:
    from rlplan.reports.tables.plans import Table, columns
    from rlplan.units import show_seconds

    return Table(
        columns=columns("Table", "#Points", "Keys", "#Shortest", "#Longest", "#Median spread"),
        rows=tuple(
            (
                row.table,
                str(row.points),
                "; ".join(f"{key} {values}" for key, values in row.ranges.items()),
                show_seconds(row.seconds_low),
                show_seconds(row.seconds_high),
                f"{row.spread_fraction:.1%}",
            )
            for row in rows
        ),
    )
