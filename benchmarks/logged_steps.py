"""Lay steps that users published beside their forecasts, stage by stage.

    python benchmarks/logged_steps.py [WORD ...]

Reads `logged_steps.csv`, whose rows name a framework, a script, keys that are set otherwise than in it and what `check-step` would be told; only rows whose name has
one of the words, if any is given. Prints forecast over measured, with `!` where the measured seconds lie outside of p10 to p90, and
of all rows the share that lies inside, within 25 % and within 30 %, and how far off the median and the ninth of ten rows are; stages
that a constant was fitted on are left out of these, and the steps that hold them. Nothing is fitted on rows of the groups `later`, `newest`, `table`, `last`, `blind`, `collected`,
`gathered`, `surveyed`, `polled` and `asked`, nor on those of slime, miles and EasyR1: those of `newest`, `last`, `unseen`, `blind`, `collected`, `gathered`, `surveyed`, `polled` and `asked` were laid beside forecasts before anything was changed with them in view; those of
`table` are further rows of tables that others are from.
"""

import csv
import json
import sys
import tempfile
from collections import defaultdict
from math import hypot
from pathlib import Path
from statistics import mean, median

import numpy as np

from rlplan.calibration import STAGE_TASKS
from rlplan.files.frozen import FrozenDict
from rlplan.planner.configs.importing import ImportOptions
from rlplan.planner.measured.checking import check_steps
from rlplan.planner.measured.logs import read_log
from rlplan.planner.measured.watching import Watch
from rlplan.profiles.sheets import load_log_sheet
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import StageCheck
from rlplan.simulator.simulate import simulate

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "logged_steps.csv"
STAGES = ("generation", "old_log_prob", "reference", "update_actor", "step")
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
        errors = [abs(ratio - 1) for ratio, _ in each]
        near = ", ".join(
            f"{mean(off <= error for off in errors):.0%} within {error:.0%}" for error in WITHIN
        )
        print(
            f"{group or 'first'} {name}: {len(each)} rows, median {median(ratio for ratio, _ in each):.2f}, "
            f"{mean(inside for _, inside in each):.0%} in p10 to p90, {near}; "
            f"off by {median(errors):.0%} in the median, by {np.quantile(errors, 0.9):.0%} at p90"
        )


def stages_of(record: dict[str, str]) -> list[tuple[str, float, bool]]:
    """Return forecast over measured by stage, and whether what was measured lies in p10 to p90."""
    framework = record["framework"] or "verl"
    measured = {name: record[f"{name}_s"] for name in STAGES if record[f"{name}_s"]}
    options = ImportOptions(
        gpu=record["gpu"],
        mean_prompt=float(record["mean_prompt"]),
        mean_response=float(record["mean_response"]),
        version=record["version"],
        values=FrozenDict(word.split("=", 1) for word in record["set"].split()),
    )
    watch = Watch.of_configuration(framework, [str(ROOT / record["script"])], options)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / f"{framework}.log"
        log.write_text(f"{framework}\n{json.dumps(logged(record, framework))}\n", encoding="utf-8")
        ran = watch.ran_at(read_log(log, warmup=0, updates=watch.updates))
        checked = check_steps(log, ran, warmup=0)
    forecast = simulate(ran.plan, ran.facts)
    every = (*checked.stages, *([checked.step] if checked.step else []))
    return [
        (one.name, one.forecast_seconds / one.measured_seconds, is_inside(one, forecast))
        for one in every
        if one.name in measured
    ]


def logged(record: dict[str, str], framework: str) -> dict[str, float]:
    """Return a row as one line of a log, by the keys that its framework's has."""
    sheet = load_log_sheet(framework)
    keys = {stage: key for key, stage in reversed(sheet.stages.items())} | {"step": sheet.step}
    figures = {keys[name]: float(record[f"{name}_s"]) for name in STAGES if record[f"{name}_s"]}
    prompt, response = float(record["mean_prompt"]), float(record["mean_response"])
    figures[sheet.response_tokens] = response
    if sheet.prompt_tokens:
        figures[sheet.prompt_tokens] = prompt
    else:
        figures[sheet.total_tokens] = prompt + response
    if longest := record["longest_response"]:
        figures[sheet.longest_response] = float(longest)
        figures[sheet.clip_ratio] = float(record["clipped"] or 0)
    if batches := record["generated_batches"]:
        figures[sheet.generated_batches] = float(batches)
    # Without them a line is no whole step; what was not published is not compared.
    return dict.fromkeys((sheet.step, *sheet.tells), 1.0) | figures


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
