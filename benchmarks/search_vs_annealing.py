"""Hold the exact search against simulated annealing: `python benchmarks/search_vs_annealing.py`.

Prints a line for every job and objective: what the search found, the best and the median of what the
seeds of annealing found in their seconds, and by how much the best is behind. Ends with 1 if annealing
found a better plan anywhere.
"""

import argparse
import statistics
import sys
from pathlib import Path

from planner.objectives import load_objective, objective_names
from planner.search import search
from planner.searchers import annealing
from profiles.catalog import load_job
from profiles.facts import load_facts
from rlplan.errors import InfeasibleError
from rlplan.job import Job

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# What two sums of the same seconds may differ by.
ROUNDING = 1e-9


def annealed_values(job: Job, name: str, seeds: int, seconds: float) -> list[float]:
    """Return the objective's value of what every seed found; those that found nothing are left out."""
    objective, values = load_objective(name, job), []
    for seed in range(seeds):
        try:
            found = annealing.search(
                job, load_facts(job), objective=name, seconds=seconds, seed=seed
            )
        except InfeasibleError:
            continue
        values.append(objective.value(found.plans[0].forecast))
    return values


def main() -> int:
    """Search each job by each objective both ways and print what was found; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each seed's annealing")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--objective", choices=objective_names(), action="append")
    given = parser.parse_args()
    paths = given.jobs or sorted(
        path for path in EXAMPLES.glob("*.yaml") if not path.name.endswith(".plan.yaml")
    )
    is_worse = False
    print(
        f"{'job':<28}{'objective':<12}{'exact':>13}{'took':>8}{'best':>13}{'median':>13}{'behind':>9}"
    )
    for path in paths:
        job = load_job(path)
        for name in given.objective or objective_names():
            found = search(job, load_facts(job), objective=name)
            exact = load_objective(name, job).value(found.plans[0].forecast)
            values = annealed_values(job, name, given.seeds, given.seconds)
            best = min(values, default=float("inf"))
            is_worse |= best < exact * (1 - ROUNDING)
            median = statistics.median(values) if values else float("inf")
            print(
                f"{job.name:<28}{name:<12}{exact:>13.6g}{found.search_seconds:>7.1f}s"
                f"{best:>13.6g}{median:>13.6g}{best / exact - 1:>9.2%}",
                flush=True,
            )
    return 1 if is_worse else 0


if __name__ == "__main__":
    sys.exit(main())
