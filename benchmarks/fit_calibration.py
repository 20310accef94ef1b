"""Fit how far sites are from their sheets, and rows of one site from each other.

    python benchmarks/fit_calibration.py PATH_TO_RL_STEPS

Reads the published stages of `rl_steps.csv` beside their forecasts. `within_site` is the root mean square
of log(measured / forecast) between two rows of one framework and GPU, over the square root of two: what
calibration on the one leaves of the other. `between_sites` is, by kind of work, the root of the mean
square of that logarithm less that of `within_site`: what there is to calibrate. Groups weigh alike,
however many rows they have, so that reruns of one setting say no more than one row. The values
printed go into `profiles/fits/calibration.yaml` by hand.
"""

import sys
from itertools import combinations
from math import log, sqrt
from pathlib import Path
from statistics import mean

from planner.evaluation.reading import read_table
from rlplan.calibration import STEP_STAGES, WORK_KINDS, WorkKind
from rlplan.results.accuracy import Row

Logs = dict[WorkKind, list[tuple[str, float]]]


def stage_logs(rows: list[Row]) -> Logs:
    """Return log(measured / forecast) of every kind of work that a row published, with the row's group."""
    found: Logs = {kind: [] for kind in WORK_KINDS}
    for row in rows:
        for kind in WORK_KINDS:
            stages = [
                each
                for name, each in row.stages.items()
                if STEP_STAGES[name] == kind and each.measured_seconds and each.forecast_seconds
            ]
            measured = sum(each.measured_seconds or 0.0 for each in stages)
            if measured:
                ratio = measured / sum(each.forecast_seconds for each in stages)
                found[kind].append((row.group, log(ratio)))
    return found


def by_group(logs: list[tuple[str, float]]) -> dict[str, list[float]]:
    """Return the logarithms of each group."""
    groups: dict[str, list[float]] = {}
    for group, each in logs:
        groups.setdefault(group, []).append(each)
    return groups


def within_square(logs: Logs) -> float:
    """Return half of the mean square between rows of one group, kinds of work and groups alike."""
    squares = [
        mean((one - other) ** 2 for one, other in combinations(group, 2)) / 2
        for each in logs.values()
        for group in by_group(each).values()
        if len(group) > 1
    ]
    return mean(squares)


def main() -> None:
    """Print the spreads."""
    logs = stage_logs(read_table(Path(sys.argv[1])))
    within = within_square(logs)
    print(f"within_site: {sqrt(within):.3f}")
    for kind, each in logs.items():
        groups = by_group(each)
        square = mean(mean(one**2 for one in group) for group in groups.values())
        between = sqrt(max(0.0, square - within))
        print(f"between_sites {kind}: {between:.3f} ({len(groups)} groups, {len(each)} rows)")


if __name__ == "__main__":
    main()
