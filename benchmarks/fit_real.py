"""Fit ReaL's engine constants to whole PPO iterations, and write them into profiles/engines/.

    python benchmarks/fit_real.py realhf_iteration.csv

Three constants: what the host takes to launch a layer of a decode step, its work on a micro-batch,
and the rate of collectives inside a node. A chessboard of rows is fitted on (see
`evals/tables/realhf_iteration.py`), the others are printed as held back.
"""

import csv
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from rlplan.evals.settings.pretraining import TrialFacts
from rlplan.evals.tables.realhf_iteration import (
    DEVICE,
    HEURISTIC,
    facts_of,
    is_fitted,
    plan_of,
)
from rlplan.files.writing import write_text
from rlplan.profiles.catalog import load_engine
from rlplan.sheets import EngineSheet
from rlplan.simulator.simulate import simulate

FOLDER = Path(__file__).parent.parent / "profiles" / "engines"
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Constant:
    """Name a constant of an engine's file with a plausible start and range."""

    engine: str
    key: str
    start: float
    low: float
    high: float


CONSTANTS = (
    Constant("real-static", "layer_launch_seconds", 1.3e-3, 1e-4, 3e-3),
    Constant("real", "step_seconds", 2e-2, 0.0, 2e-1),
    Constant("real", "link_rate", 0.8, 0.3, 2.0),
)


def engines(values: Floats) -> dict[str, EngineSheet]:
    """Return both engines with the constants on trial."""
    launch, step, link = (float(value) for value in values)
    train, generate = load_engine("real"), load_engine("real-static")
    kernels = replace(train.kernels, link_rate=link)
    return {
        "real": replace(train, step_seconds=step, kernels=kernels),
        "real-static": replace(generate, layer_launch_seconds=launch),
    }


def main(path: Path) -> None:
    """Fit, print both sides of the split, and write the constants."""
    with path.open(encoding="utf-8") as stream:
        records = [row for row in csv.DictReader(stream) if row["system"] == HEURISTIC]
    plans = [plan_of(record) for record in records]
    measured = np.array([float(record["iter_s"]) for record in records])
    fitted = np.array([is_fitted(record) for record in records])
    scale = np.array([constant.start for constant in CONSTANTS])

    def log_errors(scaled: Floats) -> Floats:
        facts = TrialFacts(facts_of(), DEVICE, engines(scaled * scale))
        seconds = [simulate(plan, facts).iteration_seconds for plan in plans]
        return np.asarray(np.log(np.array(seconds) / measured))

    bounds = ([each.low for each in CONSTANTS] / scale, [each.high for each in CONSTANTS] / scale)
    found = least_squares(
        lambda scaled: log_errors(scaled)[fitted],
        np.ones(len(scale)),
        bounds=bounds,
        diff_step=1e-3,
        max_nfev=40,
        loss="soft_l1",  # one odd size among four does not bend the others
        f_scale=0.01,
    )
    errors = log_errors(found.x)
    free = max(1, int(fitted.sum()) - len(CONSTANTS))
    spread = float(np.sqrt(np.sum(errors[fitted] ** 2) / free))
    for record, error, is_used in zip(records, np.expm1(errors), fitted, strict=True):
        side = "fitted" if is_used else "held"
        sys.stdout.write(
            f"{record['actor_B']:>3}B {record['gen_len']:>4} tokens {side:7} "
            f"{record['iter_s']:>7} s {error:+.1%}\n"
        )
    for constant, value in zip(CONSTANTS, found.x * scale, strict=True):
        write_constant(constant.engine, constant.key, value)
    for engine in ("real", "real-static"):
        write_constant(engine, "forecast_spread", spread)


def write_constant(engine: str, key: str, value: float) -> None:
    """Replace one number in an engine's file; everything else in it stays."""
    path = FOLDER / f"{engine}.yaml"
    text = path.read_text(encoding="utf-8")
    changed, count = re.subn(
        rf"^(\s*){key}: [-+.\de]+$", rf"\g<1>{key}: {value:.3e}", text, flags=re.MULTILINE
    )
    assert count == 1, f"{path} has one line for {key}"
    write_text(path, changed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
