"""Run and measure the best plan of every feasible placement of a job, beside its forecast.

    python benchmarks/placements.py [--job rlplan_cli/demo_job/job.yaml] [--out reports/published]

Writes `placements.md` and `placements.json`: forecast and measured iteration of each placement, and
how far the plan that the search chose is from the best measured one. The placements are run in
rounds, so that a machine that slows down for a while slows all of them. The models hardly learn, so
that responses keep the lengths that the forecast is of.
"""

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from rlplan.executor.execute import execute
from rlplan.files.writing import write_json, write_text
from rlplan.job import Job
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import load_facts
from rlplan.results.forecast import Candidate
from rlplan.units import show_seconds
from rlplan_cli.measuring import measure_machine

LEARNING_RATE = 1e-12
DEMO = Path(__file__).parents[1] / "rlplan_cli" / "demo_job" / "job.yaml"


def main() -> None:
    """Profile, search, run every placement, and publish the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", type=Path, default=DEMO)
    parser.add_argument("--profile", type=Path, help="a profile to use; measured anew without it")
    parser.add_argument("--out", type=Path, default=Path("reports/published"))
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlplan-placements-") as folder:
        profile = options.profile or Path(folder) / "profile"
        plans = planned(options.job, profile)
        measured: list[list[float]] = [[] for _ in plans]
        for turn in range(options.rounds):
            for index, candidate in enumerate(plans):
                run = Path(folder) / f"run-{turn}-{index}"
                measured[index] += run_one(candidate, run, options, options.job.parent)
    publish(plans, measured, options.out)


def planned(job_file: Path, profile: Path) -> tuple[Candidate, ...]:
    """Return the best plan of every feasible placement, best forecast first."""
    job = unlearning(load_job(job_file))
    group = job.cluster[0]
    if not profile.exists():
        measure_machine(
            profile,
            job=job,
            folder=job_file.parent,
            device=group.gpu,
            devices=group.gpus,
            quick=True,
        )
    return search(job, load_facts(job, profile)).plans


def unlearning(job: Job) -> Job:
    """Return a job whose models stay as they are, however long it runs."""
    rates = {"learning_rate": LEARNING_RATE, "critic_learning_rate": LEARNING_RATE}
    return replace(job, hyperparameters=replace(job.hyperparameters, **rates))


def run_one(
    candidate: Candidate, out: Path, options: argparse.Namespace, folder: Path
) -> list[float]:
    """Run a plan and return the seconds of its iterations after the warm-up."""
    run = execute(
        candidate.plan,
        out,
        iterations=options.iterations,
        warmup=options.warmup,
        seed=candidate.plan.job.seed,
        folder=folder,
    )
    seconds = [span.seconds for span in run.trace.iterations[options.warmup :]]
    print(f"{candidate.plan.placement}: {show_seconds(statistics.median(seconds))}", flush=True)
    return seconds


def publish(plans: tuple[Candidate, ...], measured: list[list[float]], out: Path) -> None:
    """Write the table, and print how far the chosen plan is from the best measured one."""
    medians = [statistics.median(seconds) for seconds in measured]
    rows = [
        {
            "placement": candidate.plan.placement,
            "forecast_seconds": candidate.forecast.iteration_seconds,
            "measured_median_seconds": median,
            "error_fraction": candidate.forecast.iteration_seconds / median - 1,
        }
        for candidate, median in zip(plans, medians, strict=True)
    ]
    chosen, best = medians[0], min(medians)
    lines = [
        "# Every placement of the demo job, measured",
        "",
        (
            "Made by `python benchmarks/placements.py`: the best plan of every feasible placement, run on "
            "this project's executor, on two cores of a shared virtual machine. The first row is the plan "
            "that the search chose. Forecasts are of responses of full length; the models hardly learn here, "
            "so that responses stay about as long."
        ),
        "",
        "| placement | forecast | measured median | error |",
        "|---|---:|---:|---:|",
        *(
            f"| {row['placement']} | {show_seconds(row['forecast_seconds'])} | "
            f"{show_seconds(row['measured_median_seconds'])} | {row['error_fraction']:+.1%} |"
            for row in rows
        ),
        "",
        f"The chosen plan took {chosen / best - 1:.1%} longer than the best measured one.",
        "",
    ]
    write_json(out / "placements.json", rows)
    write_text(out / "placements.md", "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
