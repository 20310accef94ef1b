"""Fit the software constants of transitions to published seconds, and write profiles/transitions/.

    python benchmarks/fit_transitions.py evals/held/hybridflow_transition_generation_search.csv

Rows whose generation groups are an even power of two are fitted on, the others are printed as held
back.
"""

import csv
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from rlplan.evals.tables.hybridflow_transition_generation_search import (
    TransitionRow,
    transition_row,
)
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import to_yaml, write_text
from rlplan.weight_syncs import TransitionSheet

FOLDER = Path(__file__).parent.parent / "profiles" / "transitions"
PAPER = "HybridFlow (Sheng et al. 2025, EuroSys), Figures 14 and 15 and section 8.4, A100-80GB"
# The terms that each engine's software has; the others are zero by what it does.
TERMS = {
    "hybridflow": ("node_seconds", "written_bytes_per_second", "walked_bytes_per_second"),
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
    "node_seconds": "all ranks of a node meet the others",
    "received_bytes_per_second": "tensors are gathered and copied one by one",
    "written_bytes_per_second": "what is received and the rank's own part are put in place one by one",
    "walked_bytes_per_second": "every rank walks through the whole model's tensors",
    "pair_bytes_per_second": "groups that gather at once wait for each other",
    "crossing_bytes_per_second": "one stream of weights to the other nodes",
}


def feature(term: str, row: TransitionRow) -> float:
    """Return what a term is multiplied with: seconds, or bytes over its rate."""
    apart = min(row.groups, row.nodes) if row.groups > 1 else row.nodes
    return {
        "fixed_seconds": 1.0,
        "pair_bytes_per_second": row.model_bytes * apart * (apart - 1),
        "node_seconds": row.nodes - 1,
        "received_bytes_per_second": row.received_bytes,
        "written_bytes_per_second": written_bytes(row),
        "walked_bytes_per_second": row.model_bytes,
        "crossing_bytes_per_second": row.model_bytes * (1 - 1 / row.nodes),
    }[term]


def written_bytes(row: TransitionRow) -> float:
    """Return the bytes that a rank generates with."""
    return row.model_bytes / (row.generate.tp * row.generate.pp)


def stated() -> Iterator[TransitionRow]:
    """Yield what the paper says of 70B in words, on the largest cluster of its figure; all of it is fitted on.

    "up to 89.1 % (78.2 s) with the 70B model" (section 8.4): 87.8 s of OpenRLHF, 9.6 s of HybridFlow.
    """
    for transition, seconds in (("two-copies", 87.8), ("hybridflow", 9.6)):
        row = transition_row(
            {"model": "70B", "gpus": "128", "seconds": str(seconds), "config": "Tg8 Pg1 T8 P4",
             "transition": transition, "tp": "8", "pp": "4", "generate_tp": "8", "generate_pp": "1"}
        )  # fmt: skip
        assert row is not None, "it takes time"
        yield replace(row, fitted=True)


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
    rows += stated()
    for name in TERMS:
        own = [row for row in rows if row.transition == name]
        sheet = fit(name, own)
        write_text(FOLDER / f"{name}.yaml", to_yaml(sheet))
        for row in own:
            seconds = sheet.software_seconds(
                row.model_bytes, row.received_bytes, written_bytes(row), row.nodes, row.groups
            )
            side = "fitted" if row.fitted else "held"
            error = seconds / row.seconds - 1
            sys.stdout.write(
                f"{name:14} {row.label:28} {side:7} {row.seconds:6.2f} s {error:+.1%}\n"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
