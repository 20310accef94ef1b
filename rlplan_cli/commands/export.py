"""`rlplan export PLAN --to FRAMEWORK`: a plan as a framework's launch script or file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlplan.planner.configs.frameworks import names_in_words
from rlplan_cli.config_options import complete_written
from rlplan_cli.terminal import JsonOption, echo_json, say, say_written

EXAMPLE = "Example: rlplan export plan.yaml --to verl --out run.sh"
WRITTEN = names_in_words("keys", "writing")


def command(
    plan: Annotated[Path, typer.Argument(help="The plan's file (YAML), complete or in part.")],
    to: Annotated[str, typer.Option(help=f"{WRITTEN}.", autocompletion=complete_written)],
    out: Annotated[
        Path | None, typer.Option(help="Write it to this file, instead of the terminal.")
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            help="Refuse any other version of the framework than this.  [default: the one whose keys are known]"
        ),
    ] = None,
    defaults: Annotated[
        str | None,
        typer.Option(
            help="Where a file is written, as for NeMo-RL: the one whose values count for all keys that no plan decides, such as "
            "examples/configs/grpo_math_1B.yaml; as the exported file is to name it."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a plan by the keys of a framework; what that cannot run is refused."""
    from rlplan.files.writing import check_files, plain, write_text
    from rlplan.planner.answers.completion import load_plan
    from rlplan.planner.configs.writing.exporting import exported

    check_files({"--out": out}, inputs=[plan])
    loaded, facts = load_plan(plan)
    found = exported(loaded, to, file=str(plan), facts=facts, version=version, defaults=defaults)
    if out is not None:
        write_text(out, found.text)
    if as_json:
        echo_json(plain(found))
    elif out is None:
        typer.echo(found.text, nl=False)
    for note in found.notes:
        say(f"note: {note}")
    for name, default in found.variables.items():
        if default is None:
            say(f"to be set: {name}")
    say_written(out)
