"""Lay steps that TRL, SkyRL, prime-rl and AReaL or their users published beside their forecasts, by framework.

    python benchmarks/framework_steps.py [WORD ...]

Reads `framework_steps.csv`, whose rows name a configuration, keys that are set otherwise than in it, and the mean lengths of its steps; only
rows whose name has one of the words, if any is given. Prints forecast over measured of each stage that was published, and
by framework the median and the ninth decile of the errors: of steps, and of the stages of rows that have no step. Nothing is fitted on a row.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median, quantiles

from rlplan.calibration import STAGE_TASKS
from rlplan.files.frozen import FrozenDict
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import (
    ImportOptions,
    imported_run,
    run_of,
    settings_of,
)
from rlplan.profiles.facts import load_facts
from rlplan.results.forecast import Forecast
from rlplan.simulator.simulate import simulate

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "framework_steps.csv"
# The stages of each column; `log_probs` are all passes that infer in one timer.
STAGES = {
    "generation_s": ("generation",),
    "log_probs_s": ("old_log_prob", "reference", "values"),
    "update_actor_s": ("update_actor",),
    "weight_sync_s": ("weight_sync",),
}
STEP = "step_s"


def main(words: list[str]) -> None:
    """Print the rows, and what those of a framework say together."""
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    with TABLE.open(encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    for record in records:
        if words and not any(word in record["case"] for word in words):
            continue
        ratios = ratios_of(record)
        told = "  ".join(f"{name.removesuffix('_s')} {ratio:.2f}" for name, ratio in ratios.items())
        print(f"{record['case']:55s} {told}", flush=True)
        kind = STEP if STEP in ratios else "stages"
        own = [ratios[STEP]] if STEP in ratios else ratios.values()
        errors[record["framework"], kind].extend(abs(ratio - 1) for ratio in own)
    for (framework, kind), found in errors.items():
        tenths = quantiles(found, n=10, method="inclusive") if len(found) > 1 else found
        print(f"{framework} {kind}: {len(found)}, median {median(found):.0%}, p90 {tenths[-1]:.0%}")


def ratios_of(record: dict[str, str]) -> dict[str, float]:
    """Return forecast over measured of each column that a row has."""
    options = ImportOptions(
        gpu=record["gpu"],
        mean_prompt=float(record["mean_prompt"]),
        mean_response=float(record["mean_response"]),
        version=record["version"] or None,
        values=FrozenDict(word.split("=", 1) for word in record["set"].split()),
    )
    settings = settings_of(record["framework"], [str(ROOT / record["configuration"])], options)
    found = imported_run(settings, run_of(settings), options)
    facts = load_facts(found.resolved, None, None)
    forecast = simulate(
        complete(found.draft, found.resolved, facts, settings.file, misfits=True), facts
    )
    return {
        name: seconds_of(forecast, name) / float(record[name])
        for name in (*STAGES, STEP)
        if record[name]
    }


def seconds_of(forecast: Forecast, column: str) -> float:
    """Return the forecast seconds of a column."""
    if column == STEP:
        return forecast.iteration_seconds
    tasks = {task for stage in STAGES[column] for task in STAGE_TASKS[stage]}
    return sum(cost.seconds for cost in forecast.costs if cost.name in tasks)


if __name__ == "__main__":
    main(sys.argv[1:])
