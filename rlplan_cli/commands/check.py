"""`rlplan check [FRAMEWORK] FILE|ARGS...`: will it run, does it fit, how long is a step, what would be faster?"""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rlplan_cli.config_options import (
    READ,
    GivenOptions,
    framework_of,
    import_options,
    refuse_given,
    said_beside,
)
from rlplan_cli.run_options import RunOptions, asked_run, keeps_run
from rlplan_cli.terminal import JsonOption, WhyOption, echo_json, print_table, say, say_written

if TYPE_CHECKING:
    from collections.abc import Sized

    from rlplan.planner.answers.run_limits import AskedRun
    from rlplan.planner.configs.checking import Checked
    from rlplan.planner.configs.importing import Imported
    from rlplan.results.forecast import Forecast

EXAMPLE = "Example: rlplan check verl run.sh --gpu h100-80gb-sxm --mean-response 300"

WILL_NOT_RUN = 1


class Format(StrEnum):
    """Name how the answer is printed."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


def command(
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[FRAMEWORK] FILE|ARGS...",
            help=f"{READ} and a script, YAML file or command line (after --); or a job's or "
            "plan's file.",
        ),
    ],
    given: GivenOptions,
    whole_run: RunOptions,
    out: Annotated[Path | None, typer.Option(help="Write the job here, for rlplan search.")] = None,
    each: Annotated[
        bool,
        typer.Option("--each", help="Take each word for a file of its own, as pre-commit does."),
    ] = False,
    shown_as: Annotated[
        Format,
        typer.Option(
            "--format",
            help="github prints annotations at the script's lines, for a workflow's log.",
        ),
    ] = Format.TEXT,
    why: WhyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check a configuration, job or plan before it is started: rules, memory, time, cost, better settings.

    The exit code is 1 where it will not run, or its whole run breaks --budget-usd or --max-days.
    """
    from rlplan.collecting import resting_collector
    from rlplan.files.writing import check_files

    check_files({"--out": out}, inputs=[Path(word) for word in words[:2]])
    shown_as = _format(shown_as, out, each=each, as_json=as_json)
    with resting_collector():  # imports, and an answer that the process ends with
        asked = CheckRequest(given, whole_run, shown_as, out, why, each)
        will_run = _each(words, asked) if each else _told(words, asked)
    if not will_run:
        raise typer.Exit(WILL_NOT_RUN)


class CheckRequest(NamedTuple):
    """Hold what is said beside a configuration, and what is asked of it."""

    given: GivenOptions
    whole_run: RunOptions
    shown_as: Format
    out: Path | None = None
    why: bool = False
    each: bool = False

    def run_of(self, checked: Checked) -> AskedRun | None:
        """Return what is asked of the whole run of a configuration; None where nothing is, or it has no forecast.

        Raises:
            FileError: A limit has no steps, or is none.
        """
        known = checked.steps
        if known is None and checked.plan is not None:
            known = checked.plan.job.iterations
        asked = asked_run(self.whole_run, known)
        return None if checked.forecast is None else asked


def _format(shown_as: Format, out: Path | None, *, each: bool, as_json: bool) -> Format:
    """Return how the answer is printed.

    Raises:
        FileError: Options contradict each other.
    """
    from rlplan.errors import FileError

    if as_json and shown_as is not Format.TEXT:
        allowed = "one of them"
        raise FileError("--format", "says another format than --json", allowed=allowed)
    if each and out is not None:
        raise FileError("--out", "is the job of one file", value=str(out), allowed="without --each")
    shown_as = Format.JSON if as_json else shown_as
    if each and shown_as is Format.JSON:
        raise FileError("--each", "has answers of several files", allowed="--format text or github")
    return shown_as


def _each(files: list[str], asked: CheckRequest) -> bool:
    """Check files one by one and return whether all will run.

    Raises:
        UserError: Something is wrong with some of them; the others are checked first.
    """
    from rlplan.errors import UserError, refuse

    will_run, errors = list[bool](), list[UserError]()
    for file in files:
        try:
            will_run.append(_told([file], asked))
        except UserError as error:
            errors.append(error)
    refuse(errors)
    return all(will_run)


def _told(words: list[str], asked: CheckRequest) -> bool:
    """Check what words name, write its job, print the answer, and return whether it will run as is asked.

    Raises:
        UserError: They are wrong; in GitHub's format that is an annotation as well.
    """
    from rlplan.errors import UserError
    from rlplan_cli.annotations import annotations_of, annotations_of_error

    shown_as, out = asked.shown_as, asked.out
    try:
        checked = _checked(words, asked.given, each=asked.each)
    except UserError as error:
        if shown_as is Format.GITHUB:
            sys.stdout.write("".join(f"{each}\n" for each in annotations_of_error(error)))
        raise
    run = asked.run_of(checked)
    if run is not None:
        checked = _with_run(checked, run)
    if out is not None:
        _write_job(checked, out)
    if shown_as is Format.GITHUB:
        sys.stdout.write("".join(f"{each}\n" for each in annotations_of(checked)))
    elif shown_as is Format.JSON:
        echo_json(checked.document())
    else:
        _print(checked, run, why=asked.why)
    if checked.imported is not None:
        say_written(out)
    elif out is not None:
        say(f"not written: {out}: {checked.file} is no framework's configuration that is a job")
    return checked.will_run and keeps_run(run, checked.run)


def _with_run(checked: Checked, asked: AskedRun) -> Checked:
    """Return what was checked with the forecast of its whole run."""
    from rlplan.simulator.whole_run import run_forecast

    assert checked.plan is not None, "it has a forecast"
    assert checked.facts is not None, "it has a forecast"
    assert checked.forecast is not None, "a run is asked of forecasts alone"
    run = run_forecast(checked.plan, checked.facts, asked.steps)
    return replace(checked, run=run, forecast=replace(checked.forecast, run=run))


def _write_job(checked: Checked, out: Path) -> None:
    """Write the job of a framework's configuration, as far as it could be read as one."""
    from rlplan.files.writing import plain, write_yaml

    if checked.imported is not None:
        write_yaml(out, plain(checked.imported.job, drop_defaults=True))


def _are(words: Sized) -> str:
    return "is" if len(words) == 1 else "are"


def _checked(words: list[str], given: GivenOptions, *, each: bool) -> Checked:
    """Return what is to be said of what words name.

    Args:
        each: Whether the options are of several files, some of which may be jobs or plans.

    Raises:
        UserError: They are wrong, or an option is of no use.
    """
    from rlplan.planner.configs.checking import check_config
    from rlplan_cli.interface import check_file

    framework, rest = framework_of(words, given.taken_as)
    if framework is None:
        if not each:
            refuse_given(given, rest[0])
        elif said := said_beside(given):
            say(f"{rest[0]} is a job or a plan: {', '.join(said)} {_are(said)} not used")
        return check_file(Path(rest[0]))
    return check_config(framework, rest, import_options(framework, rest, given))


def _print_work(checked: Checked) -> None:
    """Print which keys make the answer doubtful, what was assumed of the work, and which keys are not understood."""
    if checked.imported is None:
        return
    found = checked.imported
    lines = (
        *(f"doubtful: {each}" for each in found.doubts()),
        *(f"assumed: {each}" for each in found.guesses),
        *(f"not understood, and not counted: {each}" for each in found.unknown()),
    )
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _print(checked: Checked, run: AskedRun | None, *, why: bool) -> None:
    from rlplan.reports.tables.plans import host_terms_table, memory_terms_table
    from rlplan.units import show_seconds, whole_usd
    from rlplan_cli.terminal import print_answer, print_remarks

    answer = "runs" if checked.will_run else "will not run"
    sys.stdout.write(f"{checked.file}: {answer}; memory: {checked.verdict}\n")
    _print_work(checked)
    for words in checked.unchecked:
        sys.stdout.write(f"not checked: {words}\n")
    for finding in checked.findings:
        sys.stdout.write(f"{'stops' if finding.stops else 'look at'}: {finding} [{finding.rule}]\n")
    for remark in checked.remarks:
        sys.stdout.write(f"memory: {remark}\n")
    if checked.plan is not None and checked.forecast is not None and checked.facts is not None:
        sys.stdout.write("\n")
        print_answer(checked.plan, checked.forecast, checked.facts, checked.verdict, run)
        if not checked.forecast.feasible:
            print_table("Memory of the fullest GPU", memory_terms_table(checked.forecast))
        if not all(memory.fits_host for memory in checked.forecast.memory):
            print_table("Host memory for each GPU", host_terms_table(checked.forecast))
        for what, steps in (("training", checked.steps), ("epoch", checked.epoch_steps)):
            beside = checked.forecast.beside if what == "training" else None
            told = what == "training" and run is not None
            if steps is not None and not told and (beside is None or beside.run_seconds is None):
                whole = show_seconds(steps * checked.forecast.iteration_seconds)
                cost = steps * checked.forecast.cost_usd
                sys.stdout.write(f"{what}: {whole} and {whole_usd(cost)} in {steps:,} steps\n")
        _print_better(checked, checked.forecast)
        print_remarks(checked.forecast, checked.verdict, _notes(checked), why=why)
    if checked.imported is not None:
        _print_keys(checked.imported)


def _print_keys(found: Imported) -> None:
    """Print on stderr what became of a configuration's keys."""
    keys = found.keys
    say(
        f"keys: {len(keys.mapped)} mapped, {len(keys.without_influence)} without influence, "
        f"{len(keys.not_modelled)} not counted, {len(keys.changes_work)} doubtful, "
        f"{len(keys.unknown)} not understood; `rlplan import` lists them"
    )


def _notes(checked: Checked) -> list[str]:
    """Return what was assumed of a configuration beside its work."""
    found = checked.imported
    return [] if found is None else [note for note in found.notes if note not in found.guesses]


def _print_better(checked: Checked, forecast: Forecast) -> None:
    """Print what would be faster, or fit."""
    from rlplan.reports.tables.plans import Table, columns
    from rlplan.reports.tables.wording import percent
    from rlplan.units import show_seconds

    if checked.better:
        rows = tuple(
            (
                each.words,
                show_seconds(each.seconds),
                f"{-each.gain:+.0%}".replace("-", "\u2212"),
                percent(each.memory_fraction),
            )
            for each in checked.better
        )
        title = "What would be faster" if forecast.feasible else "What would fit"
        table = Table(columns=columns("Setting", "#Step", "#Change", "#Memory"), rows=rows)
        # Settings are there to be pasted: a key that is broken in two is none.
        print_table(title, table, spare=("Change", "Memory"))
    elif checked.imported is not None and not forecast.feasible:
        say(
            "no change of up to three settings that was tried makes it fit; `rlplan search` looks at all plans"
        )
