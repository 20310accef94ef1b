"""Read the cases that kernels' constants are fitted to from operator tables of microsoft/vidur."""

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rlplan.evals.tables import ops_attention, ops_collectives, ops_mlp
from rlplan.planner.measured.rows import Record
from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.facts import DeviceFacts
from rlplan.units import seconds_from_ms

SMALLEST_MESSAGE_BYTES = 4096  # below it the tables jump between 10 and 60 us without a pattern
LEFT_OUT_MODEL = (8192, 22016)  # CodeLlama-34B, by hidden size and MLP width
LEFT_OUT_RANKS = 4


@dataclass(frozen=True)
class Case:
    """Hold one measurement.

    Attributes:
        forecast: What a roofline says of it, in seconds.
        seconds: What was measured.
        fitted: Whether the constants that are written down are fitted to it.
        left_out: Whether the fit that is only tried leaves it out.
        width: Values of a row, of row kernels.
    """

    forecast: Callable[[Roofline], float]
    seconds: float
    fitted: bool
    left_out: bool = False
    width: int = 0


def records(folder: Path, pattern: str, device: str) -> Iterable[Record]:
    """Yield the records of all tables whose names match."""
    for path in sorted(folder.glob(pattern)):
        with path.open(encoding="utf-8", newline="") as stream:
            for record in csv.DictReader(stream):
                yield {**record, "device": device}


def forecaster(work: ops_mlp.Product | ops_mlp.RowWork) -> Callable[[Roofline], float]:
    """Return what asks a roofline for an operator's seconds."""
    if isinstance(work, ops_mlp.Product):
        return lambda line: line.gemm(work.m, work.k, work.n, ops_mlp.PRECISION).seconds
    return lambda line: (
        line.rowwise(work.kind, work.rows, work.width, ops_mlp.PRECISION, work.second_width).seconds
    )


def layer_cases(folder: Path, device: str) -> dict[str, list[Case]]:
    """Return the cases of products (`gemm`) and of row kernels by kind."""
    cases: dict[str, list[Case]] = {}
    for record in records(folder, "*_mlp.csv", device):
        fitted = ops_mlp.is_fitted_on(record)
        left_out = (int(record["n_embd"]), int(record["n_expanded_embd"])) == LEFT_OUT_MODEL
        for operator, work in ops_mlp.operators_of(record).items():
            seconds = ops_mlp.measured_seconds(record, operator)
            if seconds is None:
                continue
            kind = "gemm" if isinstance(work, ops_mlp.Product) else work.kind
            width = 0 if isinstance(work, ops_mlp.Product) else work.width
            case = Case(forecaster(work), seconds, fitted, left_out, width)
            cases.setdefault(kind, []).append(case)
    return cases


def link_cases(folder: Path, device: str, collective: str) -> list[Case]:
    """Return the cases of a collective inside a node."""
    kind = ops_collectives.KINDS[collective]
    cases = []
    for record in records(folder, f"{collective}_*.csv", device):
        ranks, size = int(record["num_workers"]), int(record["size"])
        seconds = seconds_from_ms(float(record[f"time_stats.{collective}.median"]))
        if ranks > int(record["devices_per_node"]) or size < SMALLEST_MESSAGE_BYTES or seconds <= 0:
            continue

        def forecast(line: Roofline, ranks: int = ranks, size: int = size) -> float:
            return line.collective(
                kind, size, ranks, ranks_per_node=ranks, inter_node_bytes_per_second=1.0
            ).seconds

        left_out = collective == "all_reduce" and ranks == LEFT_OUT_RANKS
        fitted = ops_collectives.is_fitted_on(record)
        cases.append(Case(forecast, seconds, fitted, left_out))
    return cases


def attention_cases(folder: Path, device: str, kind: str) -> list[Case]:
    """Return the cases of `prefill` or `decode` attention over a paged cache."""
    cases = []
    for record in records(folder, "attention_*.csv", device):
        if ops_attention.is_prefill(record) != (kind == "prefill"):
            continue

        def forecast(line: Roofline, record: Record = record) -> float:
            facts = DeviceFacts(line.sheet, roofline=line)  # with the constants on trial
            return ops_attention.forecast_of(facts, record).seconds

        seconds = seconds_from_ms(float(record[f"time_stats.attn_{kind}.median"]))
        cases.append(Case(forecast, seconds, ops_attention.is_fitted_on(record)))
    return cases
