"""`rlplan export PLAN --to FRAMEWORK`: a plan as a framework's launch script or file."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rlplan.planner.configs.frameworks import names_in_words
from rlplan_cli.config_options import complete_written, values_of
from rlplan_cli.configured import no_script
from rlplan_cli.terminal import JsonOption, echo_json, say, say_written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlplan.plan import Plan
    from rlplan.planner.configs.writing.exporting import Exported
    from rlplan.profiles.facts import Facts

EXAMPLE = "Example: rlplan export plan.yaml --to verl --out run.sh"
AS_IT_IS = "{} runs this plan as it is"
WRITTEN = names_in_words("keys", "writing")


def command(
    *,
    plan: Annotated[Path, typer.Argument(help="The plan's file (YAML), complete or in part.")],
    to: Annotated[str, typer.Option(help=f"{WRITTEN}.", autocompletion=complete_written)],
    out: Annotated[
        Path | None, typer.Option(help="Write it to this file, instead of the terminal.")
    ] = None,
    patch: Annotated[
        Path | None,
        typer.Option(
            help="Take this launch script and change only what the plan has otherwise; it is not written to."
        ),
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
    set_keys: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Beside --patch: what was said beside the script when the plan was found. May be given several times.",
        ),
    ] = None,
    framework_version: Annotated[
        str | None,
        typer.Option(
            help="Beside --patch: the script's version of its framework, such as 0.7.  [default: what it says, else the newest known]"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a plan by the keys of a framework; what that cannot run is refused."""
    from rlplan.errors import FileError
    from rlplan.files.writing import check_files, plain
    from rlplan.planner.answers.completion import load_plan
    from rlplan.planner.configs.writing.exporting import exported

    _check_beside(set_keys, framework_version, patch)
    check_files({"--out": out}, inputs=[plan, *([patch] if patch else [])])
    loaded, facts = load_plan(no_script(plan))
    beside = Beside(values_of(set_keys or ()), framework_version)
    try:
        found = exported(
            loaded,
            to,
            file=str(plan),
            facts=facts,
            version=version,
            defaults=defaults,
            into=None if patch is None else _start_of(patch, to, beside),
        )
    except FileError:
        kept = None if patch is None or version or defaults else _kept(patch, to, loaded, beside)
        if kept is None:
            raise
        found = kept
    else:
        found = (
            _reread(found, loaded, facts, out)
            if patch is None
            else _patched(patch, found, loaded, beside)
        )
    _write(out, found.text, patch)
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


def _start_of(script: Path, framework: str, beside: Beside) -> str:
    """Return what a script starts; nothing of one that cannot be read, which is told where it is changed."""
    from rlplan.errors import UserError
    from rlplan.files.frozen import FrozenDict
    from rlplan.planner.configs.importing import ImportOptions, settings_of
    from rlplan_cli.config_options import EXAMPLE_GPU

    options = ImportOptions(
        gpu=EXAMPLE_GPU, values=FrozenDict(beside.values), version=beside.version
    )
    with suppress(UserError):
        return settings_of(framework, [str(script)], options).start
    return ""


def _write(out: Path | None, text: str, script: Path | None) -> None:
    """Write a text to a file, if one is named, in the encoding of the script that it changes."""
    from rlplan.files.decoding import encoded_as
    from rlplan.files.writing import write_bytes, write_text

    if out is not None and script is not None:
        write_bytes(out, encoded_as(script, text))
    elif out is not None:
        write_text(out, text)


class Beside(NamedTuple):
    """Hold what was said beside a script when a plan for it was found: values of keys, and its version of the framework."""

    values: Mapping[str, str]
    version: str | None


def _check_beside(set_keys: list[str] | None, version: str | None, patch: Path | None) -> None:
    """Refuse what is said of a script where none is named.

    Raises:
        FileError: Names the first.
    """
    from rlplan.errors import FileError

    said = [("--set", each) for each in set_keys or ()]
    said += [] if version is None else [("--framework-version", version)]
    if said and patch is None:
        problem, allowed = "is of a script, and none is named", "with --patch"
        option, value = said[0]
        raise FileError(option, problem, value=value, allowed=allowed)


def _kept(script: Path, framework: str, plan: Plan, beside: Beside) -> Exported | None:
    """Return a script that runs a plan as it is: no export need know how to write that; None of others.

    Raises:
        UserError: The script cannot be read.
    """
    from rlplan.planner.configs.writing.exporting import Exported
    from rlplan.planner.configs.writing.patching import own_text, runs_already

    settings = runs_already(script, framework, plan, beside.values, version=beside.version)
    if settings is None:
        return None
    say(AS_IT_IS.format(script))
    return Exported(
        framework=framework,
        version=settings.sheet.version,
        text=own_text(script),
        values={key: each.value for key, each in settings.flat.items()},
        variables={},
        start=settings.start,
    )


def _reread(found: Exported, plan: Plan, facts: Facts, out: Path | None) -> Exported:
    """Return an export with a note where what is written takes another time than the plan: its framework's version is a newer one, or samples otherwise."""
    from rlplan.planner.configs.writing.patching import AS_LONG, seconds_as_written
    from rlplan.profiles.sheets import load_framework
    from rlplan.simulator.simulate import simulate
    from rlplan.units import show_seconds

    name = "run.sh" if out is None else out.name
    written = seconds_as_written(found.framework, name, found.text, plan)
    planned = simulate(plan, facts).iteration_seconds
    if written is None or planned / AS_LONG <= written <= planned * AS_LONG:
        return found
    note = (
        f"as written for version {found.version} a step is forecast at {show_seconds(written)}; the plan's {show_seconds(planned)} are of "
        f"{load_framework(plan.job.framework).title}"
    )
    return replace(found, notes=(*found.notes, note))


def _patched(script: Path, found: Exported, plan: Plan, beside: Beside) -> Exported:
    """Return an export whose text is the user's own script with the plan's keys; what has changed is said.

    Raises:
        UserError: The script cannot be read or changed.
    """
    from rlplan.planner.configs.writing.exporting import NOT_WRITTEN
    from rlplan.planner.configs.writing.patching import patched

    given, version = beside
    kept = None if given else _kept(script, found.framework, plan, beside)
    if kept is not None:  # keys that say what is so without them stay unsaid
        return kept
    new = patched(script, found.framework, plan, found.decided, given, found.start, version=version)
    for each in new.changes:
        before = "was not said" if each.before is None else f"was {each.before}"
        said = (
            f"changed: {each.key}={each.after}"
            if each.after is not None
            else f"left out: {each.key}"
        )
        say(f"{said} ({before})")
    for taker, words in new.front.items():
        say(f"to be given to {taker}: {' '.join(words)}")
    if not new.changes and not new.front:
        say(AS_IT_IS.format(script))
    notes = tuple(f"as written, {each}; a step is as long" for each in new.notes)
    # What is not written stays as the script has it.
    own = (each for each in found.notes if not each.startswith(NOT_WRITTEN))
    return replace(found, text=new.text, variables={}, notes=(*own, *notes))
