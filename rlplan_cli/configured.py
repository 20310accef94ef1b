"""A framework's script or recipe where a command takes a job or a plan: read as `rlplan import` reads it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rlplan.errors import FileError
from rlplan.files.decoding import OF_SCRIPTS, is_own_file
from rlplan.plan import USUAL_MODE
from rlplan_cli.amounts import tokens_of
from rlplan_cli.config_options import (
    EXAMPLE_GPU,
    READ,
    GivenOptions,
    complete_read,
    framework_of,
    import_options,
    refuse_given,
)

if TYPE_CHECKING:
    from rlplan.job import Job
    from rlplan.plan import Mode, Plan
    from rlplan.planner.configs.importing import Imported
    from rlplan.planner.measured.checking import RunContext
    from rlplan.planner.requests.pinned import Pinned
    from rlplan.profiles.facts import Facts

# Tokens of a response that an example says.
EXAMPLE_RESPONSE = 600
SCRIPT = "A script or recipe in place of the file"

ScriptGpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu", help="Type of its GPUs: a device sheet's name or file.", rich_help_panel=SCRIPT
    ),
]


class ScriptOptions(NamedTuple):
    """Hold what is said beside a script or recipe, but for its GPUs."""

    framework: Annotated[
        str | None,
        typer.Option(
            metavar="FRAMEWORK",
            autocompletion=complete_read,
            help=f"Whose it is, where its words do not tell: {READ}.",
            rich_help_panel=SCRIPT,
        ),
    ] = None
    mean_response: Annotated[
        float | None,
        typer.Option(
            metavar="TOKENS",
            parser=tokens_of,
            help="Its mean response in tokens: 600, or 2k.",
            rich_help_panel=SCRIPT,
        ),
    ] = None
    mean_prompt: Annotated[
        float | None,
        typer.Option(
            metavar="TOKENS",
            parser=tokens_of,
            help="Its mean prompt in tokens, 256 unless they are limited to less.",
            rich_help_panel=SCRIPT,
        ),
    ] = None
    set_keys: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Take this value of a key of its framework. May be given several times.",
            rich_help_panel=SCRIPT,
        ),
    ] = None

    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[ROLE=]MODEL",
            help="Its actor's model, or another role's (reward=llama-3-8b), where that is left open or not known.",
            rich_help_panel=SCRIPT,
        ),
    ] = None
    version: Annotated[
        str | None,
        typer.Option(
            "--framework-version",
            help="Version of its framework, such as 0.7.  [default: what it says, else the newest known]",
            rich_help_panel=SCRIPT,
        ),
    ] = None

    def given(self, gpu: str | None) -> GivenOptions:
        """Return it as said beside a configuration, with the type of its GPUs."""
        own = GivenOptions(gpu, self.mean_response, self.mean_prompt, values=self.set_keys)
        return own._replace(model=self.model, version=self.version)


class Configured(NamedTuple):
    """Hold what a framework's script or recipe says, as a job and a plan."""

    found: Imported

    @property
    def file(self) -> str:
        """Return what messages call it."""
        return self.found.settings.file

    @property
    def job(self) -> Job:
        """Return the resolved job; paths in it are relative to where the process runs."""
        return self.found.resolved

    @property
    def pinned(self) -> Pinned:
        """Return what a search for other plans keeps of it: its framework's version, in which these are to run, and the buckets of its weight sync."""
        from rlplan.planner.configs.reading.versions import runs_as
        from rlplan.planner.requests.pinned import NOTHING_PINNED

        return replace(
            NOTHING_PINNED,
            framework_version=runs_as(self.found.settings),
            bucket_bytes=self.found.draft.bucket_bytes,
        )

    def plan(self, profile: Path | None = None, site: Path | None = None) -> tuple[Plan, Facts]:
        """Return its plan, whole and checked, and the facts for its devices.

        Raises:
            UserError: Its layouts break a rule (named by its key), or nothing that keeps them fits.
        """
        from rlplan.planner.answers.completion import complete
        from rlplan.planner.configs.importing import in_keys
        from rlplan.profiles.facts import load_facts

        found = self.found
        facts = load_facts(found.resolved, profile, site)
        try:
            plan = complete(found.draft, found.resolved, facts, self.file, misfits=True)
        except FileError as error:
            raise in_keys(error, found.settings, found.run) from None
        return plan, facts

    def candidate(
        self, profile: Path | None = None, site: Path | None = None
    ) -> tuple[Plan | None, str]:
        """Return its plan as one of a search's candidates, or None and why it is none.

        Raises:
            UserError: Its layouts break a rule (named by its key).
        """
        from rlplan.errors import InfeasibleError

        try:
            return self.plan(profile, site)[0], ""
        except InfeasibleError as error:
            return None, f"its own plan is no candidate: {error}"

    def doubts(self) -> list[str]:
        """Return in lines what makes answers doubtful, what was assumed of the work, and which keys are not understood."""
        found = self.found
        return [
            *(f"doubtful: {each}" for each in found.doubts()),
            *(f"assumed: {each}" for each in found.guesses),
            *(f"not understood, and not counted: {each}" for each in found.unknown()),
        ]


def configured(
    path: Path, given: GivenOptions, framework: str | None = None, *, says_gpu: bool = True
) -> Configured | None:
    """Return what a framework's script or recipe says; None where the file is a job's or a plan's, or there is none.

    Args:
        given: What is said beside it; of a job or a plan nothing may be.
        framework: Whose it is, as somebody says; None is told by its words.
        says_gpu: Whether `given.gpu` is of scripts alone, and so refused of a job.

    Raises:
        UserError: It cannot be read or imported, an option is missing, or of no use.
    """
    if framework is not None:
        from rlplan.planner.configs.frameworks import check_parts

        check_parts(framework, "keys", "reading")
    if not path.is_file():
        return None  # whoever reads it says what is wrong
    name, words = None, [str(path)]
    if not is_own_file(path):
        named = words if framework is None else [framework, *words]
        name, words = framework_of(named, given.taken_as)
    if name is None:
        refuse_given(given if says_gpu else given._replace(gpu=None), str(path))
        if framework is not None:
            problem = f"is said of frameworks' configurations, and {path} is a job or a plan"
            allowed = f"without it; --for {framework} searches what a framework runs"
            raise FileError("--framework", problem, value=framework, allowed=allowed)
        return None
    from rlplan.planner.configs.importing import imported

    return Configured(imported(name, words, import_options(name, words, given)))


def no_script(path: Path) -> Path:
    """Return the path of a plan's file, which a script becomes by an import.

    Raises:
        FileError: The file is a program's, a shell's or a notebook's.
    """
    if path.suffix.lower() in OF_SCRIPTS and path.is_file():
        allowed = (
            f"its plan, by rlplan import {shlex.quote(str(path))} --gpu {EXAMPLE_GPU} --mean-response {EXAMPLE_RESPONSE} --plan plan.yaml, or a faster "
            "one, by rlplan search with the same options and --out plan.yaml"
        )
        raise FileError(str(path), "is a script, and no plan", allowed=allowed)
    return path


def own_mode(plan: Plan | None) -> Mode | None:
    """Return the mode in which a script's own plan runs, in which others may run too; None where that is the usual one."""
    return None if plan is None or plan.mode == USUAL_MODE else plan.mode


def requested(
    path: Path, given: GivenOptions, framework: str | None = None
) -> tuple[Job, Pinned, Configured | None]:
    """Return the resolved job of a file to search, what its file pins, and the script that it is of, if it is of one.

    Raises:
        UserError: The file is wrong.
    """
    from rlplan.planner.requests.drafts import load_request

    script = configured(path, given, framework)
    if script is None:
        return (*load_request(path), None)
    return script.job, script.pinned, script


def ran_by_script(
    log: Path,
    path: Path,
    given: GivenOptions,
    warmup: int,
    known: tuple[Path | None, Path | None],
) -> RunContext | None:
    """Return what ran where a framework's own script or recipe says it, at the mean lengths of its log; None for a plan.

    Args:
        known: Files: a profile, a site's factors.

    Raises:
        UserError: The configuration or the log cannot be read.
    """
    from rlplan.planner.measured.logs import read_log
    from rlplan.planner.measured.watching import Watch

    framework, words = framework_of([str(path)], given.taken_as)
    if framework is None:
        refuse_given(given, str(path))
        return None
    options = import_options(framework, words, given, logged=True)
    profile, site = known
    watch = Watch.of_configuration(framework, words, options, profile=profile, site=site)
    return watch.ran_at(read_log(log, warmup=warmup, updates=watch.updates))
