"""Hold the exact search against simulated annealing: `python benchmarks/search_vs_annealing.py`.

Each seed of annealing gets its seconds of the processor's time, on every job and objective. `--out`
writes `search_vs_annealing.md` and `.json` into a folder; `--walks` takes walks from such a JSON file
instead of walking again, so that only the search is made anew. Ends with 1 if annealing found a better
plan anywhere.
"""

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from planner.objectives import load_objective, objective_names
from planner.search import search
from planner.searchers import annealing
from profiles.catalog import load_job
from profiles.facts import load_facts
from rlplan.errors import InfeasibleError
from rlplan.job import Job
from rlplan.writing import write_json, write_text

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAME = "search_vs_annealing"
# What two sums of the same seconds may differ by.
ROUNDING = 1e-9
COLUMNS = (
    "job",
    "objective",
    "search",
    "gap",
    "took",
    "best walk",
    "median walk",
    "best is behind by",
    "walks",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walks:
    """Hold what walks found: the objective's value of each, in its unit, and their steps."""

    job: str
    objective: str
    seconds: float
    seeds: int
    values: list[float]
    steps: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Hold a job by an objective: the search's best value, its gap and seconds, and the walks."""

    value: float
    unit: str
    gap: float
    seconds: float
    walks: Walks

    @property
    def behind(self) -> float:
        """Return by which share the best walk is behind the search; infinite where none found any."""
        return min(self.walks.values, default=float("inf")) / self.value - 1

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        walks = self.walks
        found = bool(walks.values)
        return (
            walks.job,
            walks.objective,
            f"{self.value:.6g} {self.unit}",
            f"{self.gap:.2%}",
            f"{self.seconds:.1f} s",
            f"{min(walks.values):.6g}" if found else "none",
            f"{statistics.median(walks.values):.6g}" if found else "none",
            f"{self.behind:.2%}" if found else "none",
            f"{walks.seeds} of {walks.seconds:g} s, {statistics.median(walks.steps):.0f} steps"
            if found
            else f"{walks.seeds} of {walks.seconds:g} s, none fits",
        )


def walked(job: Job, objective: str, seeds: int, seconds: float) -> Walks:
    """Return what every seed found; those that found nothing are left out."""
    judged = load_objective(objective, job)
    values, steps = [], []
    for seed in range(seeds):
        try:
            found = annealing.search(
                job, load_facts(job), objective=objective, seconds=seconds, seed=seed
            )
        except InfeasibleError:
            continue
        values.append(judged.value(found.plans[0].forecast))
        steps.append(found.considered["steps"])
    return Walks(
        job=job.name, objective=objective, seconds=seconds, seeds=seeds, values=values, steps=steps
    )


def row_of(job: Job, walks: Walks) -> Row:
    """Search a job by an objective and return what was found beside its walks."""
    judged = load_objective(walks.objective, job)
    found = search(job, load_facts(job), objective=walks.objective)
    value = judged.value(found.plans[0].forecast)
    return Row(
        value=value, unit=judged.unit, gap=found.gap, seconds=found.search_seconds, walks=walks
    )


def page(rows: list[Row]) -> str:
    """Return the published page."""
    won = [row for row in rows if row.behind < -ROUNDING]
    verdict = (
        "No walk found a better plan than the search."
        if not won
        else f"Walks found better plans than the search in {len(won)} rows: a bound or the space is wrong."
    )
    about = (
        f"{verdict} {sum(row.walks.seeds for row in rows)} walks against {len(rows)} searches. A walk"
        " changes layouts, shares, placements, modes and orders of a plan at random, judged by the same"
        " simulator, for so many seconds of one processor's time; `took` is what the search took, with"
        " nothing kept from earlier ones."
    )
    made = (
        f"{platform.machine()}, {os.cpu_count()} cores. Written by"
        f" `RLPLAN_CACHE=off python benchmarks/{NAME}.py --out reports/published`."
    )
    table = [
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(row.cells()) + " |" for row in rows),
    ]
    title = "# The search against simulated annealing"
    return "\n".join((title, "", about, "", made, "", *table, ""))


def all_walks(given: argparse.Namespace) -> Iterator[tuple[Job, Walks]]:
    """Yield jobs with the walks on them: those of the file given, else made now."""
    paths = given.jobs or [
        path for path in sorted(EXAMPLES.glob("*.yaml")) if not path.name.endswith(".plan.yaml")
    ]
    jobs = {job.name: job for job in map(load_job, paths)}
    if given.walks:
        for file in given.walks:
            for entry in json.loads(file.read_text()):
                if entry["walks"]["job"] in jobs:
                    yield jobs[entry["walks"]["job"]], Walks(**entry["walks"])
        return
    for job in jobs.values():
        for name in given.objective or objective_names():
            yield job, walked(job, name, given.seeds, given.seconds)


def main() -> int:
    """Search each job by each objective both ways and print what was found; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each seed's annealing")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--objective", choices=objective_names(), action="append")
    parser.add_argument("--walks", type=Path, nargs="+", help="JSON files with walks made before")
    parser.add_argument("--out", type=Path, help="folder for the page and its figures")
    given = parser.parse_args()
    rows: list[Row] = []
    print("  ".join(COLUMNS))
    for job, walks in all_walks(given):
        rows.append(row_of(job, walks))
        print("  ".join(rows[-1].cells()), flush=True)
        if given.out:
            write_json(given.out / f"{NAME}.json", [asdict(row) for row in rows])
            write_text(given.out / f"{NAME}.md", page(rows))
    return 1 if any(row.behind < -ROUNDING for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
