"""`rlplan compare`: our plan beside those of systems of the field, or one job's steps by several frameworks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rlplan.planner.configs.frameworks import names_in_words, steps_in_words
from rlplan_cli.config_options import (
    READ,
    GivenOptions,
    framework_of,
    import_options,
    refuse_given,
    said_beside,
)
from rlplan_cli.terminal import (
    JsonOption,
    ProfileOption,
    SiteOption,
    echo_json,
    print_table,
    progress_bar,
    say,
    say_written,
)

if TYPE_CHECKING:
    from rlplan.job import Job
    from rlplan.plan import Mode, Plan
    from rlplan.results.accuracy import SystemsComparison
    from rlplan.results.differences import FrameworksComparison

EXAMPLE = (
    "Example: rlplan compare examples/ppo-7b-16xa100.yaml --systems deepspeed-chat,openrlhf-0.2; "
    "rlplan compare run.sh --gpu h100-80gb-sxm --mean-response 2500 --with verl,slime,nemo-rl"
)
FORECAST = steps_in_words()
# What is said of a framework's configuration, for `--with`.
CONFIGURATION = "A framework's configuration (with --with)"


def command(
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB | [FRAMEWORK] FILE|ARGS...",
            help=f"The file (YAML) of a job; with --with also a plan's, or {READ} and a script, YAML file or command "
            "line (after --).",
        ),
    ],
    systems: Annotated[
        str,
        typer.Option(
            help="Systems, with commas between them: deepspeed-chat, openrlhf-0.2, "
            "nemo-aligner-0.2, verl, openrlhf, megatron-heuristic (all of them by default), or frameworks "
            f"whose steps are forecast: {FORECAST}."
        ),
    ] = "",
    frameworks: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="A,B,...",
            help="Frameworks whose steps of the same job are set side by side, with your layout and with the best that "
            f"each can run ({names_in_words('keys', 'writing')}): {names_in_words('steps')}, or one trainer of them "
            "(verl-megatron).",
        ),
    ] = "",
    framework: Annotated[
        str | None,
        typer.Option(help="The framework of the configuration.", rich_help_panel=CONFIGURATION),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="A mode in which the best plans may run too, as `rlplan search --mode` has it (with --with)."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.0, help="Stop each search after so long (with --with)."),
    ] = None,
    said: GivenOptions,
    profile: ProfileOption = None,
    site: SiteOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write a page with a plot, and every plan, into this folder."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare our best plan with other systems'; or (--with) one job's step as several frameworks run it."""
    if frameworks:
        _check_alone("--systems", systems or None, "without --with")
        _check_alone("--out", out, "without --with")
        asked = _FrameworkRequest(frameworks, framework, mode, seconds, profile, site)
        compared = _by_framework(words, said, asked)
        if as_json:
            echo_json(_document(compared))
        else:
            _print_frameworks(compared)
        return
    own = {"--framework": framework, "--mode": mode, "--seconds": seconds}
    for option, value in (*own.items(), *said_beside(said).items()):
        _check_alone(option, value, "with --with")
    _check_alone("compare", " ".join(words[1:]) or None, "one job's file, or --with")
    _compare_systems(Path(words[0]), systems, (profile, site), out, as_json=as_json)


def _check_alone(option: str, value: object, allowed: str) -> None:
    """Refuse an option that says nothing here.

    Raises:
        FileError: It is given.
    """
    from rlplan.errors import FileError

    if value is not None:
        raise FileError(option, "has no effect here", value=str(value), allowed=allowed)


def _compare_systems(
    job: Path,
    systems: str,
    facts_from: tuple[Path | None, Path | None],
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print our best plan beside those of systems of the field."""
    from rlplan.executor.learning.rules import check_rule_names
    from rlplan.files.writing import check_folder
    from rlplan.planner.systems.comparing import compare_systems
    from rlplan.profiles.catalog import load_job
    from rlplan.profiles.facts import load_facts
    from rlplan.reports.pages.systems import comparison_document, write_systems_page

    names = _wanted(systems)
    resolved = load_job(job)
    check_rule_names(resolved, job)
    check_folder("--out", out)
    facts = load_facts(resolved, *facts_from)
    with progress_bar("compare") as progress:
        found = compare_systems(resolved, facts, names, progress=progress, file=str(job))
    page = write_systems_page(out, found, resolved) if out is not None else None
    if as_json:
        echo_json(comparison_document(found))
    else:
        _print(found)
    say_written(page)


class _FrameworkRequest(NamedTuple):
    """Hold the options of a comparison by frameworks (`--with`)."""

    frameworks: str
    framework: str | None
    mode: str | None
    seconds: float | None
    profile: Path | None
    site: Path | None


def _by_framework(
    words: list[str], said: GivenOptions, asked: _FrameworkRequest
) -> FrameworksComparison:
    """Return one job's steps by framework."""
    from dataclasses import replace

    from rlplan.errors import UserError
    from rlplan.planner.configs.proposing.comparing import (
        ComparisonRequest,
        compare_frameworks,
        known_framework,
    )
    from rlplan.planner.requests.schedules import AskedSchedules
    from rlplan.profiles.facts import load_facts

    names = [name.strip() for name in asked.frameworks.split(",") if name.strip()]
    if not names:
        raise UserError(f"--with: names no framework; found {asked.frameworks!r}")
    frameworks = [known_framework(name) for name in names]
    modes = _modes(asked.mode)
    job, plan, notes = _given(words, said, asked)
    facts_of = partial(load_facts, profile=asked.profile, site=asked.site)
    with progress_bar("compare") as progress:
        request = ComparisonRequest(
            job=job,
            plan=plan,
            facts_of=facts_of,
            asked=AskedSchedules(modes=modes),
            seconds=asked.seconds,
            progress=progress,
        )
        return replace(compare_frameworks(request, frameworks), notes=notes)


def _modes(mode: str | None) -> tuple[Mode, ...]:
    """Return the modes in which the best plans may run; none leaves that to the job.

    Raises:
        UnknownNameError: There is none of that name.
    """
    from rlplan.errors import UnknownNameError
    from rlplan.plan import FLOWS, USUAL_MODE

    if mode is None:
        return ()
    known = next((each for each in FLOWS if each == mode), None)
    if known is None:
        raise UnknownNameError("mode", mode, tuple(FLOWS))
    return tuple(dict.fromkeys((USUAL_MODE, known)))


def _given(
    words: list[str], said: GivenOptions, asked: _FrameworkRequest
) -> tuple[Job, Plan | None, tuple[str, ...]]:
    """Return the job, the user's own plan where there is one, and what was assumed of them."""
    from rlplan.planner.answers.completion import complete, load_plan
    from rlplan.planner.configs.importing import imported
    from rlplan.planner.requests.drafts import load_request
    from rlplan.planner.requests.pinned import NOTHING_PINNED
    from rlplan.profiles.facts import load_facts

    meant = words if asked.framework is None else [asked.framework, *words]
    framework, rest = framework_of(meant, said.taken_as)
    if framework is None:
        refuse_given(said, rest[0])
        job, pinned = load_request(Path(rest[0]))
        if pinned == NOTHING_PINNED:
            return job, None, ()
        plan, _ = load_plan(Path(rest[0]), asked.profile, site=asked.site, misfits=True)
        return plan.job, plan, ()
    found = imported(framework, rest, import_options(framework, rest, said))
    facts = load_facts(found.resolved, asked.profile, asked.site)
    plan = complete(found.draft, found.resolved, facts, found.settings.file)
    return found.resolved, plan, (*found.doubts(), *found.guesses)


def _print_frameworks(found: FrameworksComparison) -> None:
    from rlplan.reports.tables.comparisons import (
        difference_table,
        difference_words,
        refused_table,
        steps_table,
    )

    for note in found.notes:
        say(f"assumed: {note}")
    print_table(f"Steps of {found.job}", steps_table(found), spare=("Tokens/s", "Gap"))
    if refused_table(found).rows:
        print_table("Not so", refused_table(found))
    for step in found.steps:
        if step.difference is not None:
            title = f"{step.title}, {step.kind}, against {step.difference.against}"
            print_table(title, difference_table(step.difference), spare=("Mainly in",))
    for step in found.steps:
        for note in step.notes:
            say(f"{step.title}, {step.kind}: {note}")
    for step in found.steps:
        if step.difference is not None:
            say(difference_words(step))


def _document(found: FrameworksComparison) -> dict[str, Any]:
    """Return a comparison as plain values: without the spans of its forecasts, which `simulate` gives of each plan."""
    from dataclasses import replace

    from rlplan.files.writing import plain

    steps = []
    for step in found.steps:
        forecast = step.forecast and replace(step.forecast, tasks=(), iterations=())
        each = plain(replace(step, forecast=forecast))
        if step.plan is not None:
            each["plan"] = plain(step.plan, drop_defaults=True)
        steps.append(each)
    return {**plain(replace(found, steps=())), "steps": steps}


def _print(found: SystemsComparison) -> None:
    from rlplan.reports.pages.systems import verdict
    from rlplan.reports.tables.comparisons import (
        misfits_table,
        stages_table,
        systems_memory_table,
        throughput_table,
    )

    print_table("Systems", throughput_table(found))
    if misfits_table(found).rows:
        print_table("Systems that cannot run the job", misfits_table(found))
    print_table("Iteration by stage", stages_table(found))
    print_table("Memory", systems_memory_table(found), spare=("Largest term", "Peak during"))
    say(verdict(found))


def _wanted(text: str) -> list[str] | None:
    """Return the systems named in an option, in order; None for all.

    Raises:
        UnknownNameError: There is no system of a name.
        UserError: The option names nothing.
    """
    from rlplan.errors import UserError
    from rlplan.planner.systems.comparing import known_system

    if not text:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(f"--systems: names no system; found {text!r}; see: rlplan compare --help")
    return [known_system(name) for name in names]
