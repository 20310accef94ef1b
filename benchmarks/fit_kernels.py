"""Fit what kernels take to operator tables, write them down, and say how well they hold elsewhere.

    python benchmarks/fit_kernels.py PATH_TO_OPS [PART...]

The tables are those of microsoft/vidur (MIT): folders `a100` and `h100` of `*_mlp.csv`,
`attention_*.csv`, `all_reduce_*.csv` and `send_recv_*.csv`. The readers in `simulator/accuracy/`
say which rows are fitted on: Llama-2-7B at TP 1, 2 and 8, all-reduces of 2 and 8 ranks, half of the
sends and attentions. All others are held out, and give the spread. With names of parts (`gemm`,
`norm`, ..., `decode`) only their constants are fitted again; errors are counted of all. Files
written: `profiles/kernels/<architecture>.yaml`.
"""

import csv
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from profiles.catalog import load_device
from profiles.facts import DeviceFacts
from profiles.kernels import KERNELS_FOLDER, Kernels, LinkProtocol, RowKind, load_kernels
from profiles.roofline import Roofline
from rlplan.frozen import FrozenDict
from rlplan.units import seconds_from_ms
from rlplan.writing import plain, write_yaml
from simulator.accuracy import ops_attention, ops_collectives, ops_mlp
from simulator.accuracy.rows import Record

Floats = npt.NDArray[np.float64]
Values = Sequence[float]

DEVICES = {"a100": "a100-80gb-sxm", "h100": "h100-80gb-sxm"}
NEAREST_ATTENTION = {"hopper": "ampere"}  # no table of the other was at hand
MOST_CASES = 1000  # enough for a dozen constants; more only takes longer
SMALLEST_MESSAGE_BYTES = 4096  # below it the tables jump between 10 and 60 us without a pattern
TILES = ("256x128", "256x64", "128x128", "128x64", "64x64")
PROTOCOLS = 3  # LL, LL128, Simple
STARTS = (0.5, 0.3, 0.7)  # where in their bounds the constants start
SIGMA = 0.68  # the share of a normal distribution within one standard deviation


@dataclass(frozen=True)
class Case:
    """Hold one measurement: what the roofline says of it, the seconds, and its side."""

    forecast: Callable[[Roofline], float]
    seconds: float
    fitted: bool


@dataclass(frozen=True)
class Part:
    """Hold constants that are fitted together.

    Attributes:
        bounds: Lowest and highest value by name.
        build: Puts values, in the order of the bounds, into the kernels.
    """

    name: str
    bounds: Mapping[str, tuple[float, float]]
    build: Callable[[Kernels, Values], Kernels]
    cases: Sequence[Case]


def records(folder: Path, pattern: str) -> Iterable[Record]:
    """Yield the records of all tables whose names match."""
    for path in sorted(folder.glob(pattern)):
        with path.open(encoding="utf-8", newline="") as stream:
            yield from csv.DictReader(stream)


def forecaster(work: ops_mlp.Product | ops_mlp.RowWork) -> Callable[[Roofline], float]:
    """Return what asks a roofline for an operator's seconds."""
    if isinstance(work, ops_mlp.Product):
        return lambda line: line.gemm(work.m, work.k, work.n, ops_mlp.PRECISION).seconds
    return lambda line: line.rowwise(work.kind, work.rows, work.width, ops_mlp.PRECISION).seconds


def layer_cases(folder: Path) -> dict[str, list[Case]]:
    """Return the cases of products (`gemm`) and of row kernels by kind."""
    cases: dict[str, list[Case]] = {}
    for record in records(folder, "*_mlp.csv"):
        fitted = ops_mlp.is_fitted_on(record)
        for operator, work in ops_mlp.operators_of(record).items():
            seconds = ops_mlp.measured_seconds(record, operator)
            if seconds is None:
                continue
            kind = "gemm" if isinstance(work, ops_mlp.Product) else work.kind
            cases.setdefault(kind, []).append(Case(forecaster(work), seconds, fitted))
    return cases


def link_cases(folder: Path, collective: str) -> list[Case]:
    """Return the cases of a collective inside a node."""
    kind = ops_collectives.KINDS[collective]
    cases = []
    for record in records(folder, f"{collective}_*.csv"):
        ranks, size = int(record["num_workers"]), int(record["size"])
        seconds = seconds_from_ms(float(record[f"time_stats.{collective}.median"]))
        if ranks > int(record["devices_per_node"]) or size < SMALLEST_MESSAGE_BYTES or seconds <= 0:
            continue

        def forecast(line: Roofline, ranks: int = ranks, size: int = size) -> float:
            return line.collective(
                kind, size, ranks, ranks_per_node=ranks, inter_node_bytes_per_second=1.0
            ).seconds

        cases.append(Case(forecast, seconds, ops_collectives.is_fitted_on(record)))
    return cases


def attention_cases(folder: Path, kind: str) -> list[Case]:
    """Return the cases of `prefill` or `decode` attention over a paged cache."""
    cases = []
    for record in records(folder, "attention_*.csv"):
        if ops_attention.is_prefill(record) != (kind == "prefill"):
            continue

        def forecast(line: Roofline, record: Record = record) -> float:
            facts = DeviceFacts(line.sheet)
            facts._roofline = line  # noqa: SLF001 -- the constants on trial
            return ops_attention.forecast_of(facts, record).seconds

        seconds = seconds_from_ms(float(record[f"time_stats.attn_{kind}.median"]))
        cases.append(Case(forecast, seconds, ops_attention.is_fitted_on(record)))
    return cases


def build_gemm(kernels: Kernels, values: Values) -> Kernels:
    """Put the constants of matrix products into the kernels; a tile and its transpose are alike."""
    tiles: dict[str, float] = {}
    for name, value in zip(TILES, values, strict=False):
        rows, columns = name.split("x")
        tiles |= {name: value, f"{columns}x{rows}": value}
    names = list(GEMM_BOUNDS)[len(TILES) :]
    changes: dict[str, Any] = dict(zip(names, values[len(TILES) :], strict=True))
    return replace(kernels, gemm=replace(kernels.gemm, tiles=FrozenDict(tiles), **changes))


GEMM_BOUNDS = {
    **dict.fromkeys(TILES, (0.3, 1.0)),
    "epilogue_seconds": (0.0, 1e-5),
    "tail_fraction": (0.0, 1.0),
    "slowdown": (0.0, 0.5),
    "slowdown_waves": (0.5, 30.0),
    "memory_efficiency": (0.3, 0.95),
    "overlap_exponent": (1.0, 12.0),
    "split_traffic": (0.0, 4.0),
    "fixed_seconds": (0.0, 6e-6),
}
ROW_BOUNDS = {
    "fixed_seconds": (5e-7, 1e-5),
    "seconds_per_value": (0.0, 2e-9),
    "cached_bytes": (2e6, 6e7),
    "cached_efficiency": (0.02, 3.0),
    "memory_efficiency": (0.02, 1.0),
    "overlap_exponent": (1.0, 12.0),
}
REDUCE_BOUNDS = {
    f"{name}_{index}": bound
    for index in range(PROTOCOLS)
    for name, bound in (
        ("start", ((0.0, 6e-5), (2e-5, 1e-4), (5e-5, 1.5e-4))[index]),
        ("step", (0.0, 1e-5)),
        ("efficiency", ((0.05, 0.6), (0.2, 0.8), (0.5, 1.0))[index]),
    )
}
SEND_BOUNDS = {
    "start_seconds": (0.0, 3e-5),
    "link_efficiency": (0.3, 1.2),
    "send_cached_bytes": (1e6, 1e8),
    "send_memory_efficiency": (0.3, 1.2),
}
DECODE_BOUNDS = {
    "alone_efficiency": (0.2, 1.2),
    "paired_efficiency": (0.2, 1.0),
    "block_start_seconds": (0.0, 2e-5),
    "decode_fixed_seconds": (0.0, 2e-5),
    "combine_seconds": (0.0, 2e-5),
}
PREFILL_BOUNDS = {
    "prefill_efficiency": (0.1, 1.0),
    "append_efficiency": (0.2, 4.0),
    "alone_fraction": (0.3, 1.0),
    "tail_fraction": (0.0, 1.0),
    "prefill_fixed_seconds": (0.0, 4e-5),
}


def build_rows(kind: RowKind) -> Callable[[Kernels, Values], Kernels]:
    """Return what puts the constants of one kind of row kernels into the kernels."""

    def build(kernels: Kernels, values: Values) -> Kernels:
        changes: dict[str, Any] = dict(zip(ROW_BOUNDS, values, strict=True))
        changed = replace(kernels.rows[kind], **changes)
        return replace(kernels, rows=kernels.rows.with_item(kind, changed))

    return build


def build_reduce(kernels: Kernels, values: Values) -> Kernels:
    """Put the protocols of rings into the kernels."""
    protocols = tuple(
        LinkProtocol(
            start_seconds=values[3 * index],
            step_seconds=values[3 * index + 1],
            link_efficiency=values[3 * index + 2],
        )
        for index in range(PROTOCOLS)
    )
    return replace(kernels, links=replace(kernels.links, reduce=protocols))


def build_send(kernels: Kernels, values: Values) -> Kernels:
    """Put the constants of sends into the kernels."""
    start, efficiency, cached, beyond = values
    send = LinkProtocol(start_seconds=start, step_seconds=0.0, link_efficiency=efficiency)
    links = replace(
        kernels.links, send=send, send_cached_bytes=cached, send_memory_efficiency=beyond
    )
    return replace(kernels, links=links)


def build_attention(names: Iterable[str]) -> Callable[[Kernels, Values], Kernels]:
    """Return what puts constants of paged attention into the kernels."""
    names = tuple(names)

    def build(kernels: Kernels, values: Values) -> Kernels:
        assert kernels.attention is not None
        changes: dict[str, Any] = dict(zip(names, values, strict=True))
        changed = replace(kernels.attention, **changes)
        return replace(kernels, attention=changed)

    return build


def fit(device: str, start: Kernels, part: Part) -> tuple[Kernels, FrozenDict[str, float]]:
    """Return kernels with the part's constants fitted to relative errors, and standard errors."""
    sheet = load_device(device)
    low, high = np.array(list(part.bounds.values())).T
    cases = [case for case in part.cases if case.fitted]
    cases = cases[:: max(1, len(cases) // MOST_CASES)]

    def residuals(shares: Floats) -> Floats:
        line = Roofline(
            sheet, kernels=part.build(start, [*map(float, low + shares * (high - low))])
        )
        return np.log([case.forecast(line) / case.seconds for case in cases])

    answers = [
        least_squares(
            residuals, np.full(len(low), at), bounds=(0, 1), loss="soft_l1", f_scale=0.05,
            diff_step=1e-3, max_nfev=60,
        )
        for at in STARTS
    ]  # fmt: skip
    best = min(answers, key=lambda answer: answer.cost)
    values = [float(f"{value:.4g}") for value in low + best.x * (high - low)]
    variance = 2 * best.cost / max(1, len(cases) - len(low))
    errors = np.sqrt(np.diag(np.linalg.pinv(best.jac.T @ best.jac)) * variance) * (high - low)
    named = {name: float(f"{each:.2g}") for name, each in zip(part.bounds, errors, strict=True)}
    return part.build(start, values), FrozenDict(named)


def held_errors(device: str, kernels: Kernels, part: Part) -> Floats:
    """Return the relative errors of the cases held out."""
    line = Roofline(load_device(device), kernels=kernels)
    return np.array(
        [case.forecast(line) / case.seconds - 1 for case in part.cases if not case.fitted]
    )


def parts_of(folder: Path) -> list[Part]:
    """Return the parts that the tables of a folder can fit."""
    layer = layer_cases(folder)
    rows: tuple[RowKind, ...] = ("norm", "rope", "activation", "residual", "embedding")
    parts = [
        Part("gemm", GEMM_BOUNDS, build_gemm, layer["gemm"]),
        *(Part(kind, ROW_BOUNDS, build_rows(kind), layer[kind]) for kind in rows),
        Part("all_reduce", REDUCE_BOUNDS, build_reduce, link_cases(folder, "all_reduce")),
        Part("send_recv", SEND_BOUNDS, build_send, link_cases(folder, "send_recv")),
    ]
    for kind, bounds in (("decode", DECODE_BOUNDS), ("prefill", PREFILL_BOUNDS)):
        cases = attention_cases(folder, kind)
        if cases:
            parts.append(Part(kind, bounds, build_attention(bounds), cases))
    return parts


def with_spread(
    kernels: Kernels, part: str, spread: float, errors: FrozenDict[str, float]
) -> Kernels:
    """Return kernels that know the spread of a part and the standard errors of its constants."""
    spread = float(f"{spread:.2g}")
    if part == "gemm":
        return replace(kernels, gemm=replace(kernels.gemm, spread=spread, standard_errors=errors))
    if part in kernels.rows:
        row = replace(kernels.rows[part], spread=spread, standard_errors=errors)  # type: ignore[index]
        return replace(kernels, rows=kernels.rows.with_item(part, row))  # type: ignore[arg-type]
    if part in ("all_reduce", "send_recv"):
        side = "reduce" if part == "all_reduce" else "send"
        known = FrozenDict({**kernels.links.standard_errors, **errors})
        changes: dict[str, Any] = {f"{side}_spread": spread, "standard_errors": known}
        return replace(kernels, links=replace(kernels.links, **changes))
    assert kernels.attention is not None
    known = FrozenDict({**kernels.attention.standard_errors, **errors})
    changes = {f"{part}_spread": spread, "standard_errors": known}
    return replace(kernels, attention=replace(kernels.attention, **changes))


def known_errors(kernels: Kernels, part: str) -> FrozenDict[str, float]:
    """Return the standard errors of a part's constants that an earlier fit found."""
    if part == "gemm":
        return kernels.gemm.standard_errors
    if part in kernels.rows:
        return kernels.rows[part].standard_errors  # type: ignore[index]
    return FrozenDict()


def main(ops: Path, chosen: Sequence[str]) -> None:
    """Fit every architecture's kernels, write them, and print the errors held out."""
    for folder, device in DEVICES.items():
        architecture = load_device(device).architecture
        kernels = load_kernels(architecture)
        notes = []
        for part in parts_of(ops / folder):
            errors = known_errors(kernels, part.name)
            if not chosen or part.name in chosen:
                kernels, errors = fit(device, kernels, part)
            held = held_errors(device, kernels, part)
            size = np.abs(held)
            kernels = with_spread(kernels, part.name, float(np.quantile(size, SIGMA)), errors)
            notes.append(
                f"{part.name} {np.median(size):.1%} median, {np.quantile(size, 0.95):.1%} p95 of "
                f"{len(size)}"
            )
            print(f"{device}: {notes[-1]}, bias {np.median(held):+.1%}", flush=True)
        kernels = replace(kernels, held_out="errors held out: " + "; ".join(notes))
        write_yaml(KERNELS_FOLDER / f"{architecture}.yaml", plain(kernels))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
