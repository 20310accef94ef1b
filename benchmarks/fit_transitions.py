"""Fit the software constants of transitions to published seconds, and write profiles/transitions/.

    python benchmarks/fit_transitions.py hybridflow_transition_generation_search.csv

Rows whose generation groups are an even power of two are fitted on, the others are printed as held
back.
"""

import csv
import math
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from planner.evaluation.tables.hybridflow_transition_generation_search import (
    TransitionRow,
    transition_row,
)
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import to_yaml, write_text
from rlplan.hardware import TransitionSheet

FOLDER = Path(__file__).parent.parent / "profiles" / "transitions"
PAPER = "HybridFlow (Sheng et al. 2025, EuroSys), Figures 14 and 15, A100-80GB"
# The terms that each engine's software has; the others are zero by what it does.
TERMS = {
    "hybridflow": ("doubling_seconds", "received_bytes_per_second", "walked_bytes_per_second"),
    "hybridflow-v": ("fixed_seconds", "received_bytes_per_second", "pair_bytes_per_second"),
    "all-gather": ("fixed_seconds", "received_bytes_per_second", "pair_bytes_per_second"),
    "two-copies": ("fixed_seconds", "crossing_bytes_per_second"),
}
# A term that never makes up this share of a row is left out.
NEGLIGIBLE = 1e-3
TINY = 1e-12  # keeps the logarithm finite
Floats = npt.NDArray[np.float64]
REASONS = {
    "fixed_seconds": "calls, buffers, meeting of all ranks",
    "doubling_seconds": "a tree of ever more ranks meets",
    "received_bytes_per_second": "tensors are gathered and copied one by one",
    "walked_bytes_per_second": "every rank walks through the whole model's tensors",
    "pair_bytes_per_second": "gathers of all nodes share the fabric",
    "crossing_bytes_per_second": "one stream of weights to the other nodes",
}


def feature(term: str, row: TransitionRow) -> float:
    """Return what a term is multiplied with: seconds, or bytes over its rate."""
    pairs = row.nodes * (row.nodes - 1)
    return {
        "fixed_seconds": 1.0,
        "doubling_seconds": math.log2(row.nodes),
        "received_bytes_per_second": row.received_bytes,
        "walked_bytes_per_second": row.model_bytes,
        "pair_bytes_per_second": row.model_bytes * pairs,
        "crossing_bytes_per_second": row.model_bytes * (1 - 1 / row.nodes),
    }[term]


def fit(name: str, rows: list[TransitionRow]) -> TransitionSheet:
    """Return the constants with the least squared error of logarithms on the rows to fit on."""
    terms, chosen = TERMS[name], [row for row in rows if row.fitted]
    matrix = np.array([[feature(term, row) / row.seconds for term in terms] for row in chosen])
    scale = matrix.max(axis=0)

    def log_errors(scaled: Floats) -> Floats:
        return np.asarray(np.log((matrix / scale) @ scaled + TINY))

    start = np.full(len(terms), 1 / len(terms))
    weights = least_squares(log_errors, start, bounds=(0, np.inf)).x / scale
    values = {}
    for term, weight in zip(terms, weights, strict=True):
        weight = 0.0 if weight * scale[terms.index(term)] < NEGLIGIBLE else weight
        value = weight if term.endswith("_seconds") else (1 / weight if weight > 0 else 0.0)
        values[term] = float(f"{value:.3g}")
    errors = np.log(matrix @ weights)
    spread = float(np.sqrt(np.sum(errors**2) / max(1, len(chosen) - len(terms))))
    source = f"fitted by benchmarks/fit_transitions.py to {len(chosen)} rows of {PAPER}"
    sources = {term: f"{source}; {REASONS[term]}" for term in terms}
    sources["spread_fraction"] = "standard deviation of the relative errors of the fitted rows"
    return TransitionSheet(
        name=name, **values, spread_fraction=round(spread, 3), sources=FrozenDict(sources)
    )


def main(path: Path) -> None:
    """Fit every engine and write its sheet."""
    with path.open(encoding="utf-8") as stream:
        rows = [row for each in csv.DictReader(stream) if (row := transition_row(each))]
    for name in TERMS:
        own = [row for row in rows if row.transition == name]
        sheet = fit(name, own)
        write_text(FOLDER / f"{name}.yaml", to_yaml(sheet))
        for row in own:
            seconds = sheet.software_seconds(row.model_bytes, row.received_bytes, row.nodes)
            side = "fitted" if row.fitted else "held"
            error = seconds / row.seconds - 1
            sys.stdout.write(
                f"{name:14} {row.label:28} {side:7} {row.seconds:6.2f} s {error:+.1%}\n"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
