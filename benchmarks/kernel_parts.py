"""Name the constants of kernels that are fitted together, with their bounds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernel_cases import Case, attention_cases, layer_cases, link_cases

from rlplan.files.frozen import FrozenDict
from rlplan.profiles.catalog import load_device
from rlplan.profiles.kernels.kernel_time import (
    ROW_SHAPES,
    Kernels,
    LinkProtocol,
    RowKind,
    load_kernels,
)

Values = Sequence[float]
Build = Callable[[Kernels, Values], Kernels]

TILES = ("256x128", "256x64", "128x128", "128x64", "64x64")
PROTOCOLS = 3  # LL, LL128, Simple
START = "start_seconds"
NEAREST = {"hopper": "ampere"}
ROWS: tuple[RowKind, ...] = ("norm", "rope", "activation", "residual", "embedding")
GEMM_BOUNDS = {
    **dict.fromkeys(TILES, (0.3, 1.0)),
    "epilogue_seconds": (0.0, 1e-5),
    "tail_fraction": (0.0, 1.0),
    "slowdown": (0.0, 0.5),
    "slowdown_seconds": (5e-6, 2e-3),
    "memory_efficiency": (0.5, 1.0),
    "overlap_exponent": (1.0, 12.0),
    "split_traffic": (0.0, 4.0),
    "split_seconds": (0.0, 3e-6),
    "fixed_seconds": (0.0, 6e-6),
}
ROW_BOUNDS = {
    "fixed_seconds": (0.0, 5e-6),
    START: (0.0, 2e-6),
    "step_seconds": (0.0, 3e-6),
    "seconds_per_value": (0.0, 3e-9),
    "tail_fraction": (0.0, 1.0),
    "cached_bytes": (2e6, 6e7),
    "memory_efficiency": (0.05, 3.0),
    "overlap_exponent": (1.0, 12.0),
}
REDUCE_BOUNDS = {
    **{
        f"{name}_{index}": bound
        for index in range(PROTOCOLS)
        for name, bound in (("start", (0.0, 1e-4)), ("step", (0.0, 1e-5)), ("rate", (0.1, 1.0)))
    },
    "own_share": (0.0, 1.0),
}
SEND_BOUNDS = {
    "start_seconds": (0.0, 3e-5),
    "link_efficiency": (0.3, 1.2),
    "send_cached_bytes": (1e6, 1e8),
    "send_memory_efficiency": (0.3, 1.2),
}
DECODE_BOUNDS = {
    "alone_efficiency": (0.3, 2.0),
    "paired_efficiency": (0.3, 4.0),
    "alone_start_seconds": (0.0, 1e-5),
    "paired_start_seconds": (0.0, 2e-5),
    "cached_bytes": (5e6, 6e7),
    "memory_efficiency": (0.4, 1.0),
    "overlap_exponent": (1.0, 12.0),
    "decode_fixed_seconds": (0.0, 2e-5),
    "combine_seconds": (0.0, 1e-5),
    "combine_part_seconds": (0.0, 1e-6),
}
PREFILL_BOUNDS = {
    "prefill_efficiency": (0.1, 1.0),
    "append_efficiency": (0.2, 4.0),
    "alone_fraction": (0.3, 1.0),
    "tail_fraction": (0.0, 1.0),
    "prefill_fixed_seconds": (0.0, 4e-5),
}


@dataclass(frozen=True)
class Part:
    """Hold constants that are fitted together.

    Attributes:
        bounds: Lowest and highest value by name.
        build: Puts values, in the order of the bounds, into the kernels.
    """

    name: str
    bounds: Mapping[str, tuple[float, float]]
    build: Build
    cases: Sequence[Case]


def build_gemm(kernels: Kernels, values: Values) -> Kernels:
    """Put the constants of matrix products into the kernels; a tile and its transpose are alike."""
    tiles: dict[str, float] = {}
    for name, value in zip(TILES, values, strict=False):
        rows, columns = name.split("x")
        tiles |= {name: value, f"{columns}x{rows}": value}
    names = list(GEMM_BOUNDS)[len(TILES) :]
    changes: dict[str, Any] = dict(zip(names, values[len(TILES) :], strict=True))
    return replace(kernels, gemm=replace(kernels.gemm, tiles=FrozenDict(tiles), **changes))


def build_rows(kind: RowKind, start_steps: float | None = None) -> Build:
    """Return what puts the constants of one kind of row kernels into the kernels.

    Args:
        start_steps: How many steps a block's start takes, where it is not fitted.
    """

    def build(kernels: Kernels, values: Values) -> Kernels:
        names = [name for name in ROW_BOUNDS if start_steps is None or name != START]
        changes: dict[str, Any] = dict(zip(names, values, strict=True))
        if start_steps is not None:
            changes[START] = float(f"{start_steps * changes['step_seconds']:.4g}")
        changed = replace(kernels.rows[kind], **changes)
        return replace(kernels, rows=kernels.rows.with_item(kind, changed))

    return build


def rows_part(kind: RowKind, cases: Sequence[Case], architecture: str) -> Part:
    """Return the part of one kind of row kernels.

    Rows of one width do not tell a block's start from its steps: their ratio is then that of the
    nearest architecture.
    """
    widths = {case.width for case in cases if case.fitted}
    if not ROW_SHAPES[kind].whole_rows or len(widths) > 1:
        return Part(kind, ROW_BOUNDS, build_rows(kind), cases)
    near = load_kernels(NEAREST[architecture]).rows[kind]
    bounds = {name: bound for name, bound in ROW_BOUNDS.items() if name != START}
    return Part(kind, bounds, build_rows(kind, near.start_seconds / near.step_seconds), cases)


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
    return replace(kernels, links=replace(kernels.links, reduce=protocols, own_share=values[-1]))


def build_send(kernels: Kernels, values: Values) -> Kernels:
    """Put the constants of sends into the kernels."""
    start, efficiency, cached, beyond = values
    send = LinkProtocol(start_seconds=start, step_seconds=0.0, link_efficiency=efficiency)
    links = replace(
        kernels.links, send=send, send_cached_bytes=cached, send_memory_efficiency=beyond
    )
    return replace(kernels, links=links)


def build_attention(names: Sequence[str]) -> Build:
    """Return what puts constants of paged attention into the kernels."""

    def build(kernels: Kernels, values: Values) -> Kernels:
        assert kernels.attention is not None
        changes: dict[str, Any] = dict(zip(names, values, strict=True))
        changed = replace(kernels.attention, **changes)
        return replace(kernels, attention=changed)

    return build


def parts_of(folder: Path, device: str) -> list[Part]:
    """Return the parts that the tables of a folder can fit."""
    layer = layer_cases(folder, device)
    architecture = load_device(device).architecture
    reduce, send = (link_cases(folder, device, kind) for kind in ("all_reduce", "send_recv"))
    parts = [
        Part("gemm", GEMM_BOUNDS, build_gemm, layer["gemm"]),
        *(rows_part(kind, layer[kind], architecture) for kind in ROWS),
        Part("all_reduce", REDUCE_BOUNDS, build_reduce, reduce),
        Part("send_recv", SEND_BOUNDS, build_send, send),
    ]
    for kind, bounds in (("decode", DECODE_BOUNDS), ("prefill", PREFILL_BOUNDS)):
        cases = attention_cases(folder, device, kind)
        if cases:
            parts.append(Part(kind, bounds, build_attention(list(bounds)), cases))
    return parts
