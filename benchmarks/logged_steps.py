"""Lay steps that users published beside their forecasts, stage by stage.

    python benchmarks/logged_steps.py [WORD ...]

Reads `logged_steps.csv`, whose rows name a script, keys that are set otherwise than in it and what `check-step` would be told; only rows whose name has one of the
words, if any is given. Prints forecast over measured, with `!` where the measured seconds lie outside of p10 to p90, and
of all rows the share that lies inside, within 25 % and within 30 %; stages that a constant was fitted on are left out of these, and
the steps that hold them. Nothing is fitted on rows of the groups `later`, `newest` and `table`: those of `newest` are of sources
that no constant is from, and were laid beside forecasts before anything was changed with them in view; those of `table` are
further rows of tables that others are from.
"""

import csv
import sys
import tempfile
from collections import defaultdict
from math import hypot
from pathlib import Path
from statistics import mean, median

from rlplan.calibration import STAGE_TASKS
from rlplan.files.frozen import FrozenDict
from rlplan.planner.configs.importing import ImportOptions
from rlplan.planner.measured.checking import RunContext, check_steps
from rlplan.planner.measured.logs import read_log
from rlplan.planner.measured.watching import Watch
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import StageCheck
from rlplan.simulator.simulate import simulate

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "logged_steps.csv"
STAGES = {
    "generation": "timing_s/gen",
    "old_log_prob": "timing_s/old_log_prob",
    "reference": "timing_s/ref",
    "update_actor": "timing_s/update_actor",
    "step": "timing_s/step",
}
SYNC = "transition"  # inside of verl's timer of generation
WITHIN = (0.25, 0.3)


def main(words: list[str]) -> None:
    """Print the table, and what its rows say together."""
    found: dict[tuple[str, str], list[tuple[float, bool]]] = defaultdict(list)
    with TABLE.open(encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    for record in records:
        if words and not any(word in record["case"] for word in words):
            continue
        told = []
        for name, ratio, inside in stages_of(record):
            told.append(f"{name} {ratio:.2f}{' ' if inside else '!'}")
            if name not in ((record["fitted"], "step") if record["fitted"] else ()):
                found[record["group"], name].append((ratio, inside))
        print(f"{record['case']:45s} {'  '.join(told)}", flush=True)
    for (group, name), each in found.items():
        near = ", ".join(
            f"{mean(abs(ratio - 1) <= error for ratio, _ in each):.0%} within {error:.0%}"
            for error in WITHIN
        )
        print(
            f"{group or 'first'} {name}: {len(each)} rows, median {median(ratio for ratio, _ in each):.2f}, "
            f"{mean(inside for _, inside in each):.0%} in p10 to p90, {near}"
        )


def stages_of(record: dict[str, str]) -> list[tuple[str, float, bool]]:
    """Return forecast over measured by stage, and whether what was measured lies in p10 to p90."""
    measured = {name: record[f"{name}_s"] for name in STAGES if record[f"{name}_s"]}
    line = " - ".join(f"{STAGES[name]}:{seconds}" for name, seconds in measured.items())
    lengths = f"prompt_length/mean:{record['mean_prompt']} - response_length/mean:{record['mean_response']}"
    if longest := record["longest_response"]:
        lengths += f" - response_length/max:{longest} - response_length/clip_ratio:0"
    options = ImportOptions(
        gpu=record["gpu"],
        mean_prompt=float(record["mean_prompt"]),
        mean_response=float(record["mean_response"]),
        version=record["version"],
        values=FrozenDict(word.split("=", 1) for word in record["set"].split()),
    )
    watch = Watch.of_configuration("verl", [str(ROOT / record["script"])], options)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "train.log"
        log.write_text(f"step:1 - {lengths} - {line}\n", encoding="utf-8")
        plan, facts = watch.plan_at(read_log(log, warmup=0, updates=watch.updates))
        checked = check_steps(log, RunContext(plan=plan, facts=facts), warmup=0)
    forecast = simulate(plan, facts)
    every = (*checked.stages, *([checked.step] if checked.step else []))
    return [
        (one.name, one.forecast_seconds / one.measured_seconds, is_inside(one, forecast))
        for one in every
        if one.name in measured
    ]


def is_inside(stage: StageCheck, forecast: Forecast) -> bool:
    """Tell whether the measured seconds of a stage lie between p10 and p90 of its forecast."""
    if stage.name == "step":
        low, high = forecast.iteration_seconds_interval
        return low <= stage.measured_seconds <= high
    tasks = {*STAGE_TASKS[stage.name], *([SYNC] if stage.name == "generation" else [])}
    margins = [
        cost.interval_seconds[1] - cost.seconds for cost in forecast.costs if cost.name in tasks
    ]
    return abs(stage.measured_seconds - stage.forecast_seconds) <= hypot(*margins)


if __name__ == "__main__":
    main(sys.argv[1:])
