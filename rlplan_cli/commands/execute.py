"""`rlplan execute PLAN`: carry a plan out on Ray, and compare it with its forecast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from rlplan_cli.adapting import DRY_RUN, MOVES
from rlplan_cli.configured import no_script
from rlplan_cli.terminal import (
    AddressOption,
    JsonOption,
    ProfileOption,
    SiteOption,
    say,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlplan.job import Job
    from rlplan.plan import Plan
    from rlplan.profiles.facts import Facts
    from rlplan.replicas import Replicas
    from rlplan.results.forecast import Forecast

EXAMPLE = (
    "Example: rlplan execute plan.yaml --profile profiles/mine --out runs/first --iterations 20"
    " --checkpoint-every 5; after an interruption the same with --resume runs/first"
)

ADAPT = "--adapt"


class ExecuteCommand(TyperCommand):
    """Let `--adapt` stand alone."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Read the command line."""
        return super().parse_args(ctx, adapt_given(args))


def adapt_given(words: Sequence[str]) -> list[str]:
    """Return a command line whose `--adapt` says what is meant where nothing stands behind it."""
    last = [*words[1:], ""]
    ends = words.index("--") if "--" in words else len(words)
    return [
        f"{ADAPT}={MOVES}"
        if word == ADAPT and at < ends and after not in (DRY_RUN, MOVES)
        else word
        for at, (word, after) in enumerate(zip(words, last, strict=True))
    ]


COMMAND_CLASS = ExecuteCommand


def command(  # noqa: PLR0917 -- one parameter an option
    plan: Annotated[Path, typer.Argument(help="The plan's file.")],
    profile: ProfileOption = None,
    site: SiteOption = None,
    out: Annotated[
        Path, typer.Option(help="Folder of the run; must not hold another one than --resume.")
    ] = Path("runs/latest"),
    iterations: Annotated[
        int, typer.Option(min=1, help="Iterations to run, those before --resume counted.")
    ] = 12,
    warmup: Annotated[
        int, typer.Option(min=0, help="First iterations that the comparison leaves out.")
    ] = 2,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed; without it the job's.")] = None,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(
            min=1, help="Iterations between checkpoints; with them a run survives killed workers."
        ),
    ] = None,
    iteration_limit: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Seconds after which an iteration's workers are taken for hung, and lost; none without it.",
        ),
    ] = None,
    start_limit: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Seconds after which workers that have not started, with their models, are taken for hung.",
        ),
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="Checkpoints to keep, the last ones.")] = 2,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send what checkpoints hold here and not into --out: s3://bucket/run, gs://..., by fsspec.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Go on from a checkpoint, or from a run's last one; any layout. A folder or a URL.",
        ),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Write the trained actor here as a Hugging Face folder: a folder's path or a URL.",
        ),
    ] = None,
    export_best: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Write the actor that the job's evaluations found best here, likewise.",
        ),
    ] = None,
    download: Annotated[
        bool,
        typer.Option("--download", help="Download weights that are not in the local cache."),
    ] = False,
    address: AddressOption = None,
    node_wait: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="With --address: seconds to wait for nodes that are missing or were lost; with checkpoints a "
            "run then goes on with a plan for fewer nodes.",
        ),
    ] = None,
    simulate_nodes: Annotated[
        bool,
        typer.Option(
            "--simulate-nodes",
            help="Let devices of this machine stand for those of a plan's several nodes.",
        ),
    ] = False,
    log_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERVICE",
            help="Send metrics to a tracking service as well: wandb or mlflow; may be repeated.",
        ),
    ] = None,
    stop_when: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Stop after an iteration with a metric at a bound: 'mean_reward>=0.9'; may be repeated.",
        ),
    ] = None,
    stop_after: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Stop once iterations took so long, those before --resume counted: 90s, 45m, 2h.",
        ),
    ] = None,
    stop_tokens: Annotated[
        float | None,
        typer.Option(
            help="Stop once so many response tokens were learnt from, those before --resume counted.",
        ),
    ] = None,
    adapt: Annotated[
        str | None,
        typer.Option(
            metavar="[dry-run]",
            help="Search anew as lengths and times change, and go on with another plan where that surely pays; "
            "dry-run only says so.",
        ),
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEDULE",
            help="Let replicas that generate come and go, and go on where one is lost: 2, from which iteration on how "
            "many (0:1,40:3, or a file of such lines), or as many as pay by forecasts at the lengths of responses (1..4).",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a plan end to end, measure every task, and print forecast against measurement."""
    from rlplan.executor.control.services import check_services
    from rlplan.planner.answers.completion import load_plan
    from rlplan_cli import adapting, running

    _check_start(warmup, iterations, adapt)
    cluster = running.cluster_of(address, node_wait, simulate_nodes=simulate_nodes)
    stopping = running.stopping_of(stop_when, stop_after, stop_tokens)
    check_services(log_to or ())
    start, exported, best = (running.place_of(each) for each in (resume, export, export_best))
    _check_places(out, start, {"--export": exported, "--export-best": best}, checkpoints)
    of_file, facts = load_plan(no_script(plan), profile, site=site)
    complete = of_file if adapt is None else adapting.in_force(of_file, out, start)
    _check_job(complete.job, plan, best)
    from rlplan.executor.control.capabilities import check_runnable
    from rlplan.executor.control.run import Saving
    from rlplan.executor.control.weights import with_weights

    tasks = check_runnable(complete, str(plan))
    where = adapting.Where(cluster is not None, simulate_nodes)
    schedule = _schedule(replicas, complete, facts, plan, of_file if adapt else None)
    located = with_weights(complete, tasks, downloads=download, file=str(plan))
    saving = Saving(
        every=checkpoint_every,
        keep=keep,
        iteration_seconds=iteration_limit,
        start_seconds=start_limit,
        checkpoints=checkpoints,
        resume=start,
        export=exported,
        export_best=best,
    )
    forecast = _forecast(complete, facts, plan)
    with adapting.adapter_of(adapt, facts, profile, complete, out, where, schedule) as adapter:
        run = running.run_plan(
            located,
            out,
            iterations=iterations,
            warmup=warmup,
            seed=complete.job.seed if seed is None else seed,
            folder=plan.parent,
            saving=saving,
            cluster=running.replanning(cluster, facts, saving),
            simulate_nodes=simulate_nodes,
            stopping=stopping,
            log_to=log_to,
            adapter=adapter,
            schedule=schedule,
        )
    comparison = running.compare_run(out, forecast, run, facts)
    running.print_run(out, run, comparison, as_json=as_json)


def _check_start(warmup: int, iterations: int, adapt: str | None) -> None:
    """Refuse options that contradict themselves, and say what to install where execution lacks it.

    Raises:
        UserError: Names the option, or what is missing.
    """
    from rlplan_cli import adapting, running

    running.check_warmup(warmup, iterations)
    adapting.check_word(adapt)
    running.require_execution()


def _forecast(plan: Plan, facts: Facts, file: Path) -> Forecast:
    """Return the forecast of a plan that keeps its job's limits.

    Raises:
        UserError: It is not played, or breaks a limit.
    """
    from rlplan.planner.requests.specs import check_limits
    from rlplan.simulator.simulate import check_played, simulate

    check_played(plan, str(file))
    forecast = simulate(plan, facts)
    check_limits(plan, forecast, str(file))
    return forecast


def _schedule(
    given: str | None, plan: Plan, facts: Facts, file: Path, of_file: Plan | None
) -> Replicas | None:
    """Return how many replicas there are when, or at which lengths, as an option says; None where all of them stay.

    Args:
        of_file: The file's plan, whose replicas are counted, where the run may go on with another one; else None.

    Raises:
        UserError: It is no schedule, or the plan or this executor has no such replicas.
    """
    from rlplan.executor.control.capabilities import check_coming
    from rlplan.planner.adapting.replicas import replica_table
    from rlplan.replicas import ReplicaChoice, ReplicaRange, devices_of, read_replicas

    if given is None:
        return None
    asked = read_replicas(given)
    check_coming(asked, plan if of_file is None else of_file, str(file))
    if not isinstance(asked, ReplicaRange):
        if of_file is None:
            return asked
        devices = devices_of(asked, of_file)
        check_coming(devices, plan, str(file))
        return devices
    choice = ReplicaChoice(asked, of_file or plan, lambda *of: replica_table(of[0], facts, of[1]))
    found = choice.table_of(plan)
    say(found.words)
    if of_file is None:
        return found
    check_coming(choice, plan, str(file))
    return choice


def _check_places(
    out: Path,
    resume: Path | str | None,
    exports: Mapping[str, Path | str | None],
    checkpoints: str | None,
) -> None:
    """Refuse folders that cannot be written, or that hold another run, and what is no URL.

    Args:
        exports: By option, a folder for weights; a URL is written into before the start.
        checkpoints: URL for what checkpoints hold.

    Raises:
        FileError: Names the option, or the folder.
    """
    from rlplan.files.writing import check_folder

    check_folder("--out", out)
    for option, folder in exports.items():
        if not isinstance(folder, str):
            check_folder(option, folder)
    _check_new_run(out, resume)
    if checkpoints is not None:
        from rlplan.executor.data.remote_folders import check_url

        check_url(checkpoints, "--checkpoints")


def _check_job(job: Job, file: Path, export_best: Path | str | None) -> None:
    """Refuse a job with functions that cannot be loaded, or to write the best actor of one that evaluates none.

    Raises:
        UserError: Names the function or the job's field.
    """
    from rlplan.errors import FileError
    from rlplan.executor.learning.rules import check_rule_names, check_rules

    check_rule_names(job, file)
    check_rules(job, file.parent)
    if export_best is not None and job.evaluation is None:
        problem = "is not given, so that no actor is found best (--export-best)"
        raise FileError(str(file), problem, field="job.evaluation", allowed="held-out prompts")


def _check_new_run(out: Path, resume: Path | str | None = None) -> None:
    """Refuse a folder that holds a finished run, so that no measurement is replaced.

    Args:
        resume: What the run begins with; one that goes on in its own folder ends later, and is
            measured anew.

    Raises:
        FileError: Names the folder.
    """
    from rlplan.errors import FileError
    from rlplan.results.stored import MEASURED_FILE

    start = resume.resolve() if isinstance(resume, Path) else None
    goes_on = start is not None and out.resolve() in (start, *start.parents)
    if (out / MEASURED_FILE).exists() and not goes_on:
        raise FileError(str(out), "holds a run already", allowed="a folder without one (--out)")
