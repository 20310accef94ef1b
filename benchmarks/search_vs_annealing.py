"""Hold the exact search against simulated annealing: `python benchmarks/search_vs_annealing.py`.

Each seed of annealing gets its seconds of the processor's time, on every job and objective: first one
seed on all of them, then the next. `--out` writes `search_vs_annealing.md` and `.json` into a folder
after every walk, and goes on from the walks of as many seconds that are there. Ends with 1 if annealing
found a better plan anywhere.
"""

import argparse
import json
import os
import platform
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rlplan.errors import InfeasibleError
from rlplan.evals import annealing
from rlplan.files.writing import write_json, write_text
from rlplan.job import Job
from rlplan.planner.objectives import load_objective, objective_names
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import load_facts
from rlplan.simulator.timeline.assemble import batch_tokens

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
class Walked:
    """Hold what one walk found: the objective's value, None if nothing fits, and its steps."""

    seed: int
    seconds: float
    value: float | None
    steps: int


@dataclass(slots=True, kw_only=True)
class Row:
    """Hold a job by an objective: the search's best value, its gap and seconds, and the walks."""

    job: str
    objective: str
    value: float
    unit: str
    gap: float
    seconds: float
    walks: list[Walked]

    @property
    def values(self) -> list[float]:
        """Return what the walks found."""
        return [walk.value for walk in self.walks if walk.value is not None]

    @property
    def behind(self) -> float:
        """Return by which share the best walk is behind the search; infinite where none found any."""
        return min(self.values, default=float("inf")) / self.value - 1

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        values = self.values
        steps = statistics.median(walk.steps for walk in self.walks) if self.walks else 0
        return (
            self.job,
            self.objective,
            f"{self.value:.6g} {self.unit}",
            f"{self.gap:.2%}",
            f"{self.seconds:.1f} s",
            f"{min(values):.6g}" if values else "none",
            f"{statistics.median(values):.6g}" if values else "none",
            f"{self.behind:.2%}" if values else "none",
            f"{len(self.walks)} of {steps:.0f} steps",
        )


def walked(job: Job, objective: str, seed: int, seconds: float) -> Walked:
    """Return what a walk from a seed found."""
    try:
        found = annealing.search(
            job, load_facts(job), objective=objective, seconds=seconds, seed=seed
        )
    except InfeasibleError:
        return Walked(seed=seed, seconds=seconds, value=None, steps=0)
    value = load_objective(objective).value(found.plans[0].forecast, batch_tokens(job))
    return Walked(seed=seed, seconds=seconds, value=value, steps=found.considered["steps"])


def row_of(job: Job, objective: str, walks: list[Walked]) -> Row:
    """Search a job by an objective and return what was found beside walks."""
    judged = load_objective(objective)
    found = search(job, load_facts(job), objective=objective)
    return Row(
        job=job.name,
        objective=objective,
        value=judged.value(found.plans[0].forecast, batch_tokens(job)),
        unit=judged.unit,
        gap=found.gap,
        seconds=found.search_seconds,
        walks=walks,
    )


def page(rows: list[Row]) -> str:
    """Return the published page."""
    won = [row for row in rows if row.behind < -ROUNDING]
    lengths = sorted({f"{walk.seconds:g}" for row in rows for walk in row.walks})
    verdict = (
        "No walk found a better plan than the search."
        if not won
        else f"Walks found better plans than the search in {len(won)} rows: a bound or the space is wrong."
    )
    about = (
        f"{verdict} {sum(len(row.walks) for row in rows)} walks against {len(rows)} searches. A walk"
        " changes layouts, shares, placements, modes and orders of a plan at random, judged by the same"
        f" simulator, for {' or '.join(lengths)} seconds of one processor's time; `took` is what the search"
        " took."
    )
    made = (
        f"{platform.machine()}, {os.cpu_count()} cores. Written by"
        f" `python benchmarks/{NAME}.py --out reports/published`."
    )
    table = [
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(row.cells()) + " |" for row in rows),
    ]
    title = "# The search against simulated annealing"
    return "\n".join((title, "", about, "", made, "", *table, ""))


def earlier_walks(folder: Path | None, seconds: float) -> dict[tuple[str, str], list[Walked]]:
    """Return walks of a folder that were as long, by job and objective."""
    file = folder / f"{NAME}.json" if folder else None
    if file is None or not file.exists():
        return {}
    found = {}
    for row in json.loads(file.read_text()):
        walks = [Walked(**{"value": None, **each}) for each in row["walks"]]
        kept = [each for each in walks if each.seconds == seconds]
        found[row["job"], row["objective"]] = kept
    return found


def main() -> int:
    """Search each job by each objective both ways and print what was found; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each seed's annealing")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--objective", choices=objective_names(), action="append")
    parser.add_argument("--out", type=Path, help="folder for the page and its figures")
    given = parser.parse_args()
    files = [path for path in EXAMPLES.glob("*.yaml") if not path.name.endswith(".plan.yaml")]
    jobs = {job.name: job for job in map(load_job, given.jobs or sorted(files))}
    known = earlier_walks(given.out, given.seconds)
    rows = [
        row_of(job, objective, known.get((job.name, objective), []))
        for job in jobs.values()
        for objective in given.objective or objective_names()
    ]
    for seed in range(given.seeds):
        for row in rows:
            if seed not in {walk.seed for walk in row.walks}:
                row.walks.append(walked(jobs[row.job], row.objective, seed, given.seconds))
                _write(given.out, rows)
    _write(given.out, rows)
    print("  ".join(COLUMNS))
    for row in rows:
        print("  ".join(row.cells()))
    return 1 if any(row.behind < -ROUNDING for row in rows) else 0


def _write(out: Path | None, rows: list[Row]) -> None:
    if out is not None:
        write_json(out / f"{NAME}.json", [asdict(row) for row in rows])
        write_text(out / f"{NAME}.md", page(rows))


if __name__ == "__main__":
    sys.exit(main())
