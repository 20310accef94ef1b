"""Fit what all-reduces between nodes take beside their bytes, and say how well it holds elsewhere.

    python benchmarks/fit_trees.py

`benchmarks/published_all_reduces.csv` holds in-place times of nccl-tests' all_reduce_perf on several nodes,
as their sources print them. Fitted are the constants of `rlplan.profiles.analytic.roofline` up to the largest size at
which filling a tree counts, every log with the same weight; held out: each machine from a fit on the others.
The values printed go into `profiles/fits/hopper.yaml` by hand.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from rlplan.profiles.analytic.efficiencies import Efficiencies, load_efficiencies
from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.sheets import load_device
from rlplan.units import bytes_per_second_from_gbps

Floats = npt.NDArray[np.float64]
Record = Mapping[str, str]

TABLE = Path(__file__).with_name("published_all_reduces.csv")
NAMES = ("collective_fixed_seconds", "tree_chunk_seconds", "tree_fill_seconds")
START = (20.0, 40.0, 80.0)  # microseconds
MOST_BYTES = 70e6
# Logs of one machine agree within some 3 %; beyond, a size counts less.
CLEAN = 0.03


def forecast_seconds(record: Record, microseconds: Sequence[float]) -> float:
    """Return what the roofline says of a record with these constants."""
    sheet = load_device(record["device"])
    shares = with_constants(load_efficiencies(sheet.architecture), microseconds)
    ranks = int(record["gpus_per_node"])
    rate = bytes_per_second_from_gbps(sheet.inter_node_gbps) / ranks
    each = Roofline(sheet, shares).collective(
        "all_reduce",
        float(record["num_bytes"]),
        ranks * int(record["nodes"]),
        ranks_per_node=ranks,
        inter_node_bytes_per_second=rate,
    )
    return each.seconds


def with_constants(shares: Efficiencies, microseconds: Sequence[float]) -> Efficiencies:
    """Return an architecture's constants with those of the trees replaced."""
    own = {
        name: replace(getattr(shares, name), value=each * 1e-6)
        for name, each in zip(NAMES, microseconds, strict=True)
    }
    return replace(shares, **own)


def log_errors(records: Sequence[Record], microseconds: Sequence[float]) -> Floats:
    """Return the logarithms of forecast over published seconds."""
    ratios = [forecast_seconds(each, microseconds) / float(each["seconds"]) for each in records]
    return np.log(np.array(ratios))


def fit(logs: Sequence[Sequence[Record]]) -> Floats:
    """Return the constants in microseconds that fit these logs, each with the same weight."""
    small = [[each for each in log if float(each["num_bytes"]) <= MOST_BYTES] for log in logs]

    def residuals(microseconds: Floats) -> Floats:
        parts = [log_errors(log, microseconds) / math.sqrt(len(log)) for log in small]
        return np.concatenate(parts)

    return least_squares(residuals, START, bounds=(0.0, 500.0), loss="soft_l1", f_scale=CLEAN).x


def main() -> None:
    """Print the constants, and each machine's errors by a fit on the others."""
    with TABLE.open(encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    machine = lambda record: (record["source"], record["nodes"])  # noqa: E731
    logs = [list(log) for _, log in groupby(records, machine)]
    found = fit(logs)
    for name, value in zip(NAMES, found, strict=True):
        print(f"{name}: {value * 1e-6:.2e}")
    for log in logs:
        source = log[0]["source"]
        others = fit([other for other in logs if other[0]["source"] != source])
        within, held = log_errors(log, found), log_errors(log, others)
        print(
            f"{log[0]['device']:>14} x {log[0]['nodes']} nodes: "
            f"median {np.median(np.abs(np.expm1(within))):.0%}, held out "
            f"{np.median(np.abs(np.expm1(held))):.0%}, bias {np.expm1(held.mean()):+.0%}  {source}"
        )


if __name__ == "__main__":
    main()
