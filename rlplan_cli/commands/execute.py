"""`rlplan execute PLAN`: carry a plan out on Ray, and compare it with its forecast."""

from pathlib import Path
from typing import Annotated

import typer

from rlplan_cli.terminal import JsonOption, ProfileOption, echo_json, say

EXAMPLE = (
    "Example: rlplan execute plan.yaml --profile profiles/mine --out runs/first --iterations 20"
    " --checkpoint-every 5; after an interruption the same with --resume runs/first"
)


def command(  # noqa: PLR0917 -- one parameter an option
    plan: Annotated[Path, typer.Argument(help="The plan's file.", show_default=False)],
    profile: ProfileOption = None,
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder of the run; must not hold another one than --resume."),
    ] = Path("runs/latest"),
    iterations: Annotated[
        int, typer.Option(min=1, help="Iterations to run, those before --resume counted.")
    ] = 12,
    warmup: Annotated[
        int, typer.Option(min=0, help="First iterations that the comparison leaves out.")
    ] = 2,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed; without it the job's.", show_default=False),
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Iterations between checkpoints; with them a run survives killed workers.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="Checkpoints to keep, the last ones.")] = 2,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Go on from a checkpoint, or from a run's last one; any layout.",
            show_default=False,
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write the trained actor here as a Hugging Face folder.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a plan end to end, measure every task, and print forecast against measurement."""
    from planner.answers.completion import load_plan
    from rlplan_cli.outputs import check_folder
    from rlplan_cli.steps import (
        check_executable,
        check_new_run,
        check_rule_name,
        check_warmup,
        compare_run,
        print_errors,
        require_execution,
        run_plan,
    )
    from simulator.simulate import simulate

    check_warmup(warmup, iterations)
    check_folder("--out", out)
    check_folder("--export", export)
    check_new_run(out, resume)
    complete, facts = load_plan(plan, profile)
    require_execution()
    check_rule_name(complete.job, plan)
    check_executable(complete, plan)
    from executor.control.run import Saving

    saving = Saving(every=checkpoint_every, keep=keep, resume=resume, export=export)
    forecast = simulate(complete, facts)
    run = run_plan(
        complete,
        out,
        iterations=iterations,
        warmup=warmup,
        seed=complete.job.seed if seed is None else seed,
        folder=plan.parent,
        saving=saving,
    )
    comparison = compare_run(out, forecast, run)
    if as_json:
        echo_json(comparison)
        return
    print_errors(comparison)
    say(f"run written to {out}")
