"""`rlplan advise CONFIG --log LOG`: whether a change of a running job pays, and until when."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan_cli.config_options import READ, GivenOptions, framework_of, import_options
from rlplan_cli.terminal import JsonOption, print_table, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlplan.planner.measured.advising import Advisor, FollowOptions
    from rlplan.planner.measured.following import FollowedRun
    from rlplan.results.advice import AdviceLine

EXAMPLE = "Example: rlplan advise verl run.sh --log train.log --follow --gpu h100 --steps 500 --restart-seconds 300"

FOLLOWING = "Following"


def command(
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[FRAMEWORK] FILE|ARGS...",
            help=f"{READ} and a script, YAML file or command line (after --): what runs.",
        ),
    ],
    log: Annotated[Path, typer.Option(help="Its log, as rlplan check-step reads it.")],
    given: GivenOptions,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps of the training.  [default: the configuration's]"),
    ] = None,
    steps_left: Annotated[
        int | None,
        typer.Option(min=0, help="Steps behind the last one of the log, in place of --steps."),
    ] = None,
    restart_seconds: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="What a restart costs, with the steps since the last checkpoint.  [default: what the log's first step took longer]",
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="Keep decisions and what came of them in this file (JSON lines)."),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Go on as the log grows, to the last step or Ctrl-C.",
            rich_help_panel=FOLLOWING,
        ),
    ] = False,
    every: Annotated[
        int, typer.Option(min=1, help="Steps between two decisions.", rich_help_panel=FOLLOWING)
    ] = 10,
    poll_seconds: Annotated[
        float,
        typer.Option(
            min=0.01, help="Time between two looks at the log.", rich_help_panel=FOLLOWING
        ),
    ] = 5.0,
    window: Annotated[
        int, typer.Option(min=3, help="Newest steps that medians are over, at most.")
    ] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="First steps that are left out.")] = 1,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.0, help="Stop a search after so long, with the best plan so far."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say when a change of a running job pays: which keys, what it gains, until which step.

    A change is advised where the low end of its gain repays the restart.
    """
    from rlplan.files.writing import check_files
    from rlplan.planner.measured.advising import FollowOptions

    check_files({"--ledger": ledger}, inputs=(log, *(Path(word) for word in words[:2])))
    asked = FollowOptions(
        window=window,
        warmup=warmup,
        all_steps=steps,
        steps_left=steps_left,
        restart_seconds=restart_seconds,
        search_seconds=seconds,
    )
    advisor = _advisor(words, given, asked)
    found = _followed(advisor, log, every, poll_seconds) if follow else _at_once(advisor, log)
    _tell(advisor, log, found, ledger, as_json=as_json)


def _advisor(words: list[str], given: GivenOptions, asked: FollowOptions) -> Advisor:
    """Return who advises a configuration.

    Raises:
        FileError: The words are a job's or plan's file, or both options say how long the training is.
    """
    from rlplan.errors import FileError
    from rlplan.planner.measured.advising import Advisor

    if asked.all_steps is not None and asked.steps_left is not None:
        raise FileError("--steps-left", "says the same as --steps", allowed="one of them")
    framework, rest = framework_of(words, given.taken_as)
    if framework is None:
        problem = "is a job or plan: advice names keys of a framework's configuration"
        raise FileError(words[0], problem, allowed=READ)
    return Advisor.of(framework, rest, import_options(framework, rest, given, logged=True), asked)


def _at_once(advisor: Advisor, log: Path) -> Iterator[FollowedRun]:
    """Yield what a log has.

    Raises:
        FileError: It has no steps.
    """
    from rlplan.planner.measured.following import followed
    from rlplan.planner.measured.logs import no_steps_error

    found = followed(log, updates=advisor.updates)
    if found is None:
        raise no_steps_error(log)
    yield found


def _followed(
    advisor: Advisor, log: Path, every: int, poll_seconds: float
) -> Iterator[FollowedRun]:
    """Yield a log's steps whenever a decision is due, until the last one is there."""
    from rlplan.planner.measured.following import Silence, states_of

    decided: int | None = None
    seen: FollowedRun | None = None
    for found in states_of(log, lambda: sleep(poll_seconds), Silence(say), updates=advisor.updates):
        end = advisor.ends_at(found)
        if seen is not None and not found.goes_on(seen):
            decided = None  # the run was started again
        seen = found
        count = advisor.due(found, decided, every)
        if count is not None:
            decided = count
            yield found.until(count)
        if found.numbers[-1] + found.held_back >= end:
            return


def _tell(
    advisor: Advisor,
    log: Path,
    found: Iterator[FollowedRun],
    ledger: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print a decision for each state of a log, and what came of one that the ledger has."""
    from rlplan.planner.measured.ledger import open_decisions, read_ledger, write_line

    known = open_decisions(read_ledger(ledger)) if ledger is not None else ()
    advised = next(filter(advisor.has_changed, known), None)
    try:
        for state in found:
            outcome = None if advised is None else advisor.outcome(advised, state, log.name)
            lines: list[AdviceLine] = [] if outcome is None else [outcome]
            advised = advised if outcome is None else None
            for line in (*lines, advisor.decide(state, log.name)):
                if ledger is not None:
                    write_line(ledger, line)
                _print(line, as_json=as_json)
    except KeyboardInterrupt as interruption:
        if interruption.args:  # a signal to end, and not Ctrl-C
            raise


def _print(line: AdviceLine, *, as_json: bool) -> None:
    from rlplan.files.writing import plain
    from rlplan.planner.measured.advising import IN_PLACE
    from rlplan.reports.tables.advice import advice_lines, changes_table

    if as_json:
        sys.stdout.write(json.dumps(plain(line), allow_nan=False) + "\n")
        sys.stdout.flush()
        return
    sys.stdout.write("".join(f"{words}\n" for words in advice_lines(line)))
    if line.kind == "decision":
        if line.changes:
            title = "What would change" if line.answer == "change" else "The best that was tried"
            print_table(title, changes_table(line))
            place = "in" if IN_PLACE in line.notes else "behind"
            sys.stdout.write(f"{place} the configuration: {' '.join(line.arguments)}\n")
        for note in line.notes:
            say(note)
    sys.stdout.flush()
