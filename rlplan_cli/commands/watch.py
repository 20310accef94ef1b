"""`rlplan watch LOG CONFIG`: each step of a run that goes on, beside its forecast."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rlplan_cli.config_options import READ, GivenOptions, framework_of, import_options, refuse_given
from rlplan_cli.terminal import JsonOption, ProfileOption, SiteOption, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlplan.planner.measured.following import FollowedRun
    from rlplan.planner.measured.watching import Watch
    from rlplan.results.measurement import WatchedStep

EXAMPLE = "Example: rlplan watch train.log verl run.sh --gpu h100 --prometheus rlplan.prom"

SHOWN = "Where it is shown"


def command(
    *,
    log: Annotated[
        Path,
        typer.Argument(
            help="The log, as rlplan check-step reads it: console, JSON lines, TensorBoard's folder, W&B's folder of runs."
        ),
    ],
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[FRAMEWORK] FILE|ARGS...",
            help=f"What runs: {READ} and a script, YAML file or command line (after --); or a job's or plan's file.",
        ),
    ],
    given: GivenOptions,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Steps of the training, with which it ends.  [default: the configuration's]"
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show what the log has, and end.")] = False,
    last: Annotated[
        int, typer.Option(min=1, help="Steps that are there already: show the newest, at most.")
    ] = 20,
    poll_seconds: Annotated[
        float, typer.Option(min=0.01, help="Time between two looks at the log.")
    ] = 5.0,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            help="Write curves of measured and forecast steps and stages into this folder.",
            rich_help_panel=SHOWN,
        ),
    ] = None,
    prometheus: Annotated[
        Path | None,
        typer.Option(
            help="Keep the newest step in this file (.prom), for node_exporter's textfile collector.",
            rich_help_panel=SHOWN,
        ),
    ] = None,
    profile: ProfileOption = None,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print each step of a run beside its forecast at the step's own lengths, with p10 and p90, as the log grows.

    It ends with the training's last step, or Ctrl-C.
    """
    shown = StepOutputs(tensorboard, prometheus, as_json)
    shown.check((log, *(Path(word) for word in words[:2])))
    watch = _watch(log, words, given, profile, site)
    watch.all_steps = steps or watch.all_steps
    found = _at_once(watch, log, last) if once else _followed(watch, log, last, poll_seconds)
    shown.tell(found, log)


class StepOutputs(NamedTuple):
    """Hold where steps are shown."""

    tensorboard: Path | None
    prometheus: Path | None
    as_json: bool

    def check(self, inputs: tuple[Path, ...]) -> None:
        """Refuse what cannot be written.

        Args:
            inputs: What is read, the log first.

        Raises:
            UserError: Names the option.
        """
        from rlplan.errors import FileError
        from rlplan.files.writing import check_files, check_folder
        from rlplan_cli.curves import require_tensorboard

        check_files({"--prometheus": self.prometheus}, inputs=inputs)
        check_folder("--tensorboard", self.tensorboard)
        if self.tensorboard is not None:
            place, log = self.tensorboard.resolve(), inputs[0].resolve()
            if log in (
                place,
                *place.parents,
            ):  # all events below a log's folder are read as the log's
                problem, allowed = "lies in the folder of the log", "a folder beside it"
                shown = str(self.tensorboard)
                raise FileError("--tensorboard", problem, value=shown, allowed=allowed)
            require_tensorboard()
        if self.prometheus is not None and self.prometheus.suffix != ".prom":
            problem, allowed = "is of another name than is collected", "a name ending in .prom"
            raise FileError("--prometheus", problem, value=str(self.prometheus), allowed=allowed)

    def tell(self, found: Iterator[WatchedStep], log: Path) -> None:
        """Show steps as they come; Ctrl-C ends it."""
        from rlplan.files.writing import write_text
        from rlplan.reports.tables.advice import prometheus_text
        from rlplan_cli.curves import Curves

        curves = None if self.tensorboard is None else Curves(self.tensorboard)
        try:
            for each in found:
                self._print(each)
                if curves is not None:
                    curves.show(each)
                if self.prometheus is not None:
                    write_text(self.prometheus, prometheus_text(each, str(log)))
        except KeyboardInterrupt as interruption:
            if interruption.args:  # a signal to end, and not Ctrl-C
                raise
        finally:
            if curves is not None:
                curves.close()

    def _print(self, found: WatchedStep) -> None:
        from rlplan.errors import printable
        from rlplan.files.writing import plain
        from rlplan.reports.tables.advice import watched_words

        if self.as_json:
            line = json.dumps({**plain(found), "place": found.place}, allow_nan=False)
        else:
            line = printable(watched_words(found))
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _watch(
    log: Path, words: list[str], given: GivenOptions, profile: Path | None, site: Path | None
) -> Watch:
    """Return the watch of a configuration, a job's best plan, or a plan."""
    from rlplan.files.decoding import load_yaml
    from rlplan.planner.measured.checking import what_ran
    from rlplan.planner.measured.watching import Watch

    framework, rest = framework_of(words, given.taken_as)
    if framework is not None:
        options = import_options(framework, rest, given, logged=True)
        return Watch.of_configuration(framework, rest, options, profile=profile, site=site)
    path = Path(rest[0])
    refuse_given(given, rest[0])
    data = load_yaml(path)
    is_plan = isinstance(data, dict) and "job" in data
    job, plan = (None, path) if is_plan else (path, None)
    ran = what_ran(log, job, plan, profile=profile, site=site)
    if not ran.is_given:
        say(f"{path} is a job: steps are compared with those of its best plan")
    return Watch.of_plan(ran)


def _at_once(watch: Watch, log: Path, last: int) -> Iterator[WatchedStep]:
    """Yield the newest steps that a log has.

    Raises:
        FileError: It has none.
    """
    from rlplan.planner.measured.following import followed
    from rlplan.planner.measured.logs import no_steps_error

    found = followed(log, updates=watch.updates)
    if found is None:
        raise no_steps_error(log)
    if doubt := watch.doubt(found):
        say(doubt)
    yield from watch.steps(found, max(0, len(found.steps) - last))


def _followed(watch: Watch, log: Path, last: int, poll_seconds: float) -> Iterator[WatchedStep]:
    """Yield a log's steps as they are written, until the last one is there."""
    from rlplan.planner.measured.following import Silence, followed, states_of

    seen: FollowedRun | None = None
    say(f"watching {log}; Ctrl-C ends it")
    for state in states_of(log, lambda: sleep(poll_seconds), Silence(say), updates=watch.updates):
        found = state
        if seen is None and (doubt := watch.doubt(found)):
            say(doubt)
        end = watch.ends_at(found)
        is_over = end is not None and found.numbers[-1] + found.held_back >= end
        if is_over and found.held_back:
            sleep(poll_seconds)  # the last step has no other behind it, and is whole by then
            found = followed(log, updates=watch.updates) or found
        yield from watch.steps(found, _first_new(seen, found, last))
        seen = found
        if is_over:
            return


def _first_new(seen: FollowedRun | None, now: FollowedRun, last: int) -> int:
    """Return the place of the first step that was not shown: of a new start, and of a log at first, the newest at most."""
    if seen is not None and now.goes_on(seen):
        return len(seen.steps)
    return max(0, len(now.steps) - last)
