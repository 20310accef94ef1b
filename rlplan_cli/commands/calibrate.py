"""`rlplan calibrate RUN|ROWS|LOG...`: what a site takes beside what its sheets say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlplan.planner.configs.frameworks import names_in_words
from rlplan_cli.terminal import JsonOption, ProfileOption, echo_json, print_table, say, say_written

EXAMPLE = "Example: rlplan calibrate runs/first --out site.yaml; then: rlplan search job.yaml --site site.yaml"

LOGGED = names_in_words("log")


def command(  # noqa: PLR0917 -- one parameter an option
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs (`rlplan execute`), tables (CSV) of steps as `rlplan accuracy` reads "
            f"them, and logs of {LOGGED} (docs/calibration.md), all of one site."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Write the site's factors to this file.")] = Path(
        "site.yaml"
    ),
    profile: ProfileOption = None,
    plan: Annotated[
        Path | None, typer.Option(help="The plan of what ran, with its job; for logs.")
    ] = None,
    group: Annotated[
        str,
        typer.Option(
            help="Framework and GPU whose rows of tables are taken; needed where there are several."
        ),
    ] = "",
    factor: Annotated[
        list[str] | None,
        typer.Option(
            help="Refuse unless this factor is told apart from all others (`generation`, `training`, "
            "...); may be given several times."
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of the site, for reports; the file's by default.")
    ] = "",
    device: Annotated[str, typer.Option(help="Device of tables that do not name theirs.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Fit the factors of a site on its own steps, drawn to what its sheets say.

    What the steps cannot tell apart gets one factor. Judge the factors on other steps than these.
    """
    from rlplan.files.writing import check_files, write_yaml
    from rlplan.planner.measured.calibrating import CalibrationInputs, measured_at
    from rlplan.reports.tables.accuracy import factors_table
    from rlplan.simulator.calibration import calibrate
    from rlplan_cli.checkout import known_tables

    check_files({"--out": out}, inputs=(*sources, plan))
    given = CalibrationInputs(
        profile=profile, plan=plan, device=device, group=group, tables=known_tables
    )
    measured = measured_at(sources, given)
    fitted = calibrate(
        measured.observations,
        site=name or out.stem,
        rests_on=measured.rests_on,
        framework=measured.framework,
        sources=[path.name for path in sources],
        wanted=factor or (),
    )
    write_yaml(out, fitted.calibration)
    if as_json:
        echo_json(fitted.calibration)
    else:
        print_table("Factors of the site", factors_table(fitted.calibration))
        for note in fitted.notes:
            say(note)
    say_written(out)
