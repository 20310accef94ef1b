"""Fit the constants of frameworks' weight sync to published seconds, and write their sheets.

    python benchmarks/fit_weight_sync.py evals/held/weight_sync.csv

What a method does (who sends, what is staged, what overlaps) stands in its sheet and is not fitted. Rows that
`evals/tables/weight_sync.py` calls fitted are fitted on; the others are printed as held back.
Methods of one software share their terms.
"""

import csv
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from rlplan.errors import RlplanError
from rlplan.evals.tables.weight_sync import METADATA_ONLY, SyncRow, sync_row
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import to_yaml, write_text
from rlplan.profiles.sheets import load_transition, sheet_files
from rlplan.simulator.costs.syncs import METADATA, method_seconds, sync_case
from rlplan.weight_syncs import SyncMethod

# The terms that are fitted of methods that share their software, each with what it is taken to be about:
# seconds a call, a bucket, a tensor; rates of copies in Python (a few GB/s), on the device or by the host.
TERMS: tuple[tuple[tuple[str, ...], dict[str, float]], ...] = (
    (
        ("checkpoint-engine", "checkpoint-engine-p2p"),
        {"fixed_seconds": 1.0, "bucket_seconds": 5e-3, "hop_seconds": 3e-4, "metadata_seconds": 1e-5,
         "load_bytes_per_second": 9e10, "staging_fraction": 0.8},
    ),
    (
        ("checkpoint-engine-0.1", "checkpoint-engine-p2p-0.1"),
        {"fixed_seconds": 1.0, "bucket_seconds": 5e-3, "hop_seconds": 3e-4, "metadata_seconds": 1e-5,
         "load_bytes_per_second": 9e10, "staging_fraction": 0.8},
    ),
    (
        ("slime-nccl",),
        {"bucket_seconds": 1e-2, "gather_seconds": 5e-5, "gather_bytes_per_second": 1e11,
         "hop_seconds": 1e-5},
    ),
    (
        ("miles-p2p",), {"bucket_seconds": 5e-3, "gather_bytes_per_second": 1e11, "load_seconds": 1e-4},
    ),
    (
        ("verl-nccl",),
        {"gather_bytes_per_second": 1e10, "restore_bytes_per_second": 3e9},
    ),
    (
        ("verl-delta",),
        {"fixed_seconds": 1.5, "gather_bytes_per_second": 2e9, "load_bytes_per_second": 1e9,
         "load_seconds": 1e-4},
    ),
    (("slime-ipc",), {"bucket_seconds": 5e-3, "load_seconds": 2e-4}),
    (("skyrl-nccl",), {"gather_seconds": 1e-3}),
    (("vllm-rdt",), {"fixed_seconds": 1.0}),
    (("nemo-rl-nccl-reshard",), {"metadata_seconds": 2e-5, "gather_bytes_per_second": 1e10}),
    (("verl-megatron-broadcast",), {"gather_seconds": 3e-4, "hop_seconds": 1e-4}),
    (("verl-kimi",), {"gather_seconds": 1e-4, "gather_bytes_per_second": 4e10}),
)  # fmt: skip
# How hard a term is pulled to what it is taken to be about, where rows do not tell it apart from others.
PULL = 0.05
Floats = npt.NDArray[np.float64]


def rows_of(path: Path) -> Iterator[SyncRow]:
    """Yield the rows of a table that can be forecast."""
    with path.open(encoding="utf-8") as stream:
        for record in csv.DictReader(stream):
            try:
                row = sync_row(record)
            except RlplanError:
                continue
            if isinstance(row, SyncRow):
                yield row


def log_error(row: SyncRow, method: SyncMethod) -> float:
    """Return the logarithm of the ratio of the forecast to the measurement."""
    parts = dict(
        method_seconds(method, replace(sync_case(row.placed), bucket_bytes=row.bucket_bytes))
    )
    metadata = parts.pop(METADATA)
    if row.component == METADATA_ONLY:
        seconds = metadata
    else:
        seconds = sum(parts.values()) + (0 if row.parted else metadata)
    return math.log(max(seconds, 1e-9) / row.seconds)


def fitted(
    names: tuple[str, ...], terms: Mapping[str, float], rows: list[SyncRow]
) -> Mapping[str, float]:
    """Return the terms of the least squared errors of logarithms, on the rows to fit on."""
    methods = {name: _method(name) for name in names}
    chosen = [row for row in rows if row.fitted]
    start = np.array(list(terms.values()))

    def with_terms(scales: Floats, name: str) -> SyncMethod:
        values = dict(zip(terms, (start * np.exp(scales)).tolist(), strict=True))
        return replace(methods[name], **values)

    def errors(scales: Floats) -> Floats:
        found = [log_error(row, with_terms(scales, row.method)) for row in chosen]
        return np.array([*found, *(PULL * scales)])

    found = least_squares(errors, np.zeros(len(terms))).x
    values = (start * np.exp(found)).tolist()
    return {term: float(f"{value:.2g}") for term, value in zip(terms, values, strict=True)}


def _method(name: str) -> SyncMethod:
    method = load_transition(name).method
    assert method is not None, f"{name} has no method"
    return method


def main(path: Path) -> None:
    """Fit every software and write its sheets."""
    rows = list(rows_of(path))
    for names, terms in TERMS:
        own = [row for row in rows if row.method in names]
        values = fitted(names, terms, own)
        for name in names:
            method = replace(_method(name), **values)
            mine = [row for row in own if row.method == name]
            on = [log_error(row, method) for row in mine if row.fitted]
            sheet = load_transition(name)
            count = sum(row.fitted for row in own)
            source = f"fitted by benchmarks/fit_weight_sync.py to {count} rows of {path.name}"
            spread = max(0.1, float(np.sqrt(np.mean(np.square(on)))) if on else 0.2)
            sources = dict(sheet.sources) | dict.fromkeys(terms, source)
            sources["spread_fraction"] = (
                "root mean square of the relative errors of the fitted rows, a tenth at least"
            )
            changed = replace(
                sheet, method=method, spread_fraction=round(spread, 2), sources=FrozenDict(sources)
            )
            write_text(sheet_files("transitions")[name], to_yaml(changed))
            for row in mine:
                side = "fitted" if row.fitted else "held"
                error = math.exp(log_error(row, method))
                sys.stdout.write(
                    f"{name:24} {side:7} {row.seconds:8.2f} s x {error:.2f}  {row.label[:90]}\n"
                )
        sys.stdout.write(f"{names[0]:24} {dict(values)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
