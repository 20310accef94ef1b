"""Fit the host times of frameworks' sheets to published steps: what a step takes beyond its stages.

    python benchmarks/fit_frameworks.py PATH_TO_TRUTH

Prints, for each framework, the median over rows of (step - stages) / sequences, and where a row's notes give the
engine's own time, of (generation - that - weight sync) / sequences; a token too, by which rows of unlike lengths differ
more. Rows need all stages, and mean lengths.
"""

import csv
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from rlplan.calibration import STEP_STAGES
from rlplan.evals.tables.rl_steps import FITTED
from rlplan.planner.measured.tables import rl_steps
from rlplan.profiles.sheets import load_framework

STAGES = ("gen_s", "old_log_prob_s", "ref_s", "values_s", "update_critic_s", "update_actor_s")
ALWAYS = ("step_s", "gen_s", "update_actor_s", "mean_response", "prompts", "samples_per_prompt")
# Frameworks that time the weight sync apart from generation.
SYNC_APART = ("NeMo-RL",)
ENGINE = re.compile(r"generate_sequences ([\d.]+)")
USUAL_PROMPT = 128.0


def main(truth: Path) -> None:
    """Print the medians by framework."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    with (truth / "rl" / "rl_steps.csv").open(encoding="utf-8") as file:
        for record in csv.DictReader(file):
            if record["mode"] == "sync" and all(record[column] for column in ALWAYS):
                for what, seconds, tokens in _per_sequence(record):
                    found[record["framework"], what].append(seconds)
                    print(
                        f"{record['id']}: {what} {seconds * 1e3:.2f} ms a sequence, "
                        f"{seconds / tokens * 1e6:.2f} us a token"
                    )
    for (framework, what), each in found.items():
        print(
            f"{framework}: {what}: median {median(each) * 1e3:.2f} ms a sequence of {len(each)} rows"
        )
    for (sheet, kind), ratios in _stage_ratios(truth).items():
        every = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{sheet}: {kind}: median {median(ratios):.2f} of {every}")


def _stage_ratios(truth: Path) -> dict[tuple[str, str], list[float]]:
    """Return measured over forecast seconds of stages, the sheet's own factor taken off."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    with (truth / "rl" / "rl_steps.csv").open(encoding="utf-8") as file:
        fitted = [record for record in csv.DictReader(file) if record["id"] in FITTED]
    for record in fitted:
        sheet = load_framework(rl_steps.run_of(record).framework)
        (row,) = rl_steps.rows_of(record)
        for name, stage in row.stages.items():
            if stage.measured_seconds:
                kind = STEP_STAGES[name]
                bare = stage.forecast_seconds / sheet.stages.get(kind, 1.0)
                found[sheet.name, kind].append(stage.measured_seconds / bare)
    return found


def _per_sequence(record: dict[str, str]) -> Iterator[tuple[str, float, float]]:
    """Yield what takes how long a sequence, and the tokens of one."""
    tokens = float(record["mean_prompt"] or USUAL_PROMPT) + float(record["mean_response"])
    sequences = int(record["prompts"]) * int(record["samples_per_prompt"])
    sync = float(record["weight_sync_s"] or 0)
    stages = sum(float(record[column] or 0) for column in STAGES)
    if record["framework"] in SYNC_APART:
        stages += sync
    yield "driver", (float(record["step_s"]) - stages) / sequences, tokens
    engine = ENGINE.search(record["notes"])
    if engine is not None:
        rest = float(record["gen_s"]) - float(engine[1]) - sync
        yield "call of generation", rest / sequences, tokens


if __name__ == "__main__":
    main(Path(sys.argv[1]))
