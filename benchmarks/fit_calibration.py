"""Fit how far sites are from their sheets, and rows of one site from each other.

    python benchmarks/fit_calibration.py PATH_TO_RL_STEPS

Reads the published steps and stages of `rl_steps.csv` beside their forecasts. Between two rows of one
framework and GPU, log(measured / forecast) differs by what calibration on the one leaves of the other:
the root mean square over the pairs of a group, over the square root of two, is its error. `within_site`
is the median of these errors over groups, of steps: one group that is not forecast well moves it little.
Errors of stages are printed beside it; they are of few groups, and those of one pair of rows go together.
`between_sites` is, by kind of work, the root of the mean square of the
logarithm less that of `within_site`: what there is to calibrate. Groups weigh alike, however many rows
they have, so that reruns of one setting say no more than one row.

`uncalibrated_step` comes from steps that nothing was fitted on: an interval of as many deviations as p10 and
p90 lie away from the forecast holds four of five. With n of them that is the quantile 0.8 (n + 1) / n of the
logarithm's size, so that one more step lies inside as often (conformal prediction: Lei et al. 2018,
arXiv:1604.04173, section 2.2); the share of steps inside is printed for each group left out in turn.
`between_sites of a stage` is what that says of stages whose own rows were nearly all fitted on: stages that are
off by themselves make up for each other in part, so that a step of shares s is off by |s| times as much as each.
The values printed go into `profiles/fits/calibration.yaml` by hand.
"""

import sys
from itertools import combinations
from math import log, sqrt
from pathlib import Path
from statistics import mean, median

import numpy as np

from rlplan.calibration import STEP_STAGES, WORK_KINDS, WorkKind
from rlplan.estimate import P90_DEVIATIONS
from rlplan.evals.reading import read_table
from rlplan.results.accuracy import Row

COVERED = 0.8  # between p10 and p90
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


def step_logs(rows: list[Row]) -> list[tuple[str, float]]:
    """Return log(measured / forecast) of every step, with the row's group."""
    return [
        (row.group, log(row.measured / row.predicted))
        for row in rows
        if row.group and row.measured and row.predicted
    ]


def errors_within(logs: list[tuple[str, float]]) -> list[float]:
    """Return the error of one row after calibration on another, for each group of several."""
    return [
        sqrt(mean((one - other) ** 2 for one, other in combinations(group, 2)) / 2)
        for group in by_group(logs).values()
        if len(group) > 1
    ]


def covering(logs: list[tuple[str, float]]) -> float:
    """Return the spread whose p10 to p90 holds a further step as often as it should."""
    sizes, level = [abs(one) for _, one in logs], COVERED * (1 + 1 / len(logs))
    return float(np.quantile(sizes, min(1.0, level))) / P90_DEVIATIONS


def coverage(logs: list[tuple[str, float]]) -> float:
    """Return the share of steps inside the interval that all other groups' steps give."""
    return mean(
        abs(one) <= P90_DEVIATIONS * covering([other for other in logs if other[0] != group])
        for group, one in logs
    )


def norm_of_shares(rows: list[Row]) -> float:
    """Return how far a step is off where each kind of work is off by 1 by itself."""
    found = []
    for row in rows:
        if row.predicted and not row.path_seconds:
            seconds = dict.fromkeys(WORK_KINDS, 0.0)
            for name, stage in row.stages.items():
                seconds[STEP_STAGES[name]] += stage.forecast_seconds
            found.append(float(np.linalg.norm(list(seconds.values()))) / row.predicted)
    return median(found)


def main() -> None:
    """Print the spreads."""
    rows = read_table(Path(sys.argv[1]))
    stages, steps = stage_logs(rows), step_logs(rows)
    within = median(errors_within(steps))
    for name, logs in {"of steps": steps, **stages}.items():
        errors = errors_within(logs)
        every = ", ".join(f"{error:.2f}" for error in errors)
        print(f"within_site {name}: {median(errors):.3f} ({len(errors)} groups: {every})")
    unfitted = [row for row in rows if not row.fitted]
    held = step_logs(unfitted)
    step = covering(held)
    print(
        f"uncalibrated_step: {step:.3f} ({len(held)} steps that nothing was fitted on, "
        f"{coverage(held):.0%} inside without their group)"
    )
    stage = step / norm_of_shares(unfitted)
    print(f"between_sites of a stage: {sqrt(max(0.0, stage**2 - within**2)):.3f}")
    for kind, each in stages.items():
        groups = by_group(each)
        square = mean(mean(one**2 for one in group) for group in groups.values())
        between = sqrt(max(0.0, square - within**2))
        print(f"between_sites {kind}: {between:.3f} ({len(groups)} groups, {len(each)} rows)")


if __name__ == "__main__":
    main()
