"""Plots of a profile: measured seconds against the work of an operation, one picture per table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from rlplan.files.writing import write_text
from rlplan.reports.pictures.picture import (
    PAGE_WIDTH,
    SERIES_COLOURS,
    FillStyle,
    LegendEntry,
    drawing,
    dress_axes,
    panel_axes,
    picture,
    scale_by_decades,
    titled_canvas,
)
from rlplan.units import show_seconds

# pandas ships no types.
Frame = Any
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _View:
    """Say how a table is drawn.

    Attributes:
        axis: What the work is counted in.
        work: Work of one row.
        series: Key columns that make a series of their own.
    """

    axis: str
    work: Callable[[Row], float]
    series: tuple[str, ...]


def _attention_flops(row: Row) -> float:
    """Return floating point operations of scores and values: 4 * batch * heads * dim * q * k."""
    keys = row["cached_tokens"] + row["query_tokens"]
    pairs = row["batch"] * row["q_heads"] * row["query_tokens"] * keys
    return float(4 * pairs * row["head_dim"])


_VIEWS: Mapping[str, _View] = {
    "gemm": _View(
        "floating point operations (2 m k n)",
        lambda row: 2.0 * row["m"] * row["k"] * row["n"],
        ("precision",),
    ),
    "attention": _View("floating point operations", _attention_flops, ("direction", "precision")),
    "norm": _View(
        "elements", lambda row: float(row["tokens"] * row["hidden"]), ("direction", "precision")
    ),
    "embedding": _View(
        "elements", lambda row: float(row["tokens"] * row["hidden"]), ("direction", "precision")
    ),
    "optimizer": _View("parameters", lambda row: float(row["parameters"]), ("precision",)),
    "collective": _View(
        "bytes of the full tensor", lambda row: float(row["num_bytes"]), ("kind", "ranks")
    ),
    "copy": _View("bytes", lambda row: float(row["num_bytes"]), ("direction",)),
    "call": _View("bytes passed", lambda row: float(row["num_bytes"]), ("kind",)),
    "model_pass": _View(
        "tokens of the batch, times layers",
        lambda row: float(row["sequences"] * row["tokens"] * row["num_layers"]),
        ("name", "tp", "dp"),
    ),
}
# Series whose every row has the same value need not say it.
_NUMBERS_WITH_NAMES = frozenset({"ranks", "tp", "dp"})

_HEIGHT, _GUTTER, _RIGHT = 250.0, 70.0, 14.0


def plot_profile(tables: Mapping[str, Frame], out: Path) -> list[Path]:
    """Draw seconds against work for every table that has points; return the SVG files.

    Args:
        tables: Data frames by table, with the key columns and `seconds_median`, `seconds_p10` and
            `seconds_p90` of the profile format.
        out: Folder, made if it is missing.
    """
    paths = []
    for name, view in _VIEWS.items():
        if name not in tables or not len(tables[name]):
            continue
        drawn = picture(
            _figure(name, view, tables[name]),
            name=f"profile-{name}",
            title=f"Profile, {name}: seconds against {view.axis}",
        )
        path = out / f"{name}.svg"
        write_text(path, drawn.file_text)
        paths.append(path)
    return paths


def series_of(table: str, frame: Frame) -> dict[str, list[Row]]:
    """Return a table's rows by the name of their series, smallest work first."""
    view = _VIEWS[table]
    rows: list[Row] = frame.to_dict("records")
    telling = [key for key in view.series if len({row[key] for row in rows}) > 1]
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=view.work):
        words = [
            f"{key} {row[key]}" if key in _NUMBERS_WITH_NAMES else str(row[key])
            for key in telling or view.series[:1]
        ]
        found.setdefault(", ".join(words), []).append(row)
    return dict(sorted(found.items()))


def _figure(name: str, view: _View, frame: Frame) -> Figure:
    series = series_of(name, frame)
    found = {key: _mark(number) for number, key in enumerate(series)}
    # Shapes are told only where the colours begin again.
    tells_shape = len(found) > len(SERIES_COLOURS)
    entries = [
        LegendEntry(f"{mark.sign} {key}" if tells_shape else key, FillStyle(mark.colour))
        for key, mark in found.items()
    ]
    with drawing():
        points = sum(len(rows) for rows in series.values())
        figure, bottom = titled_canvas(f"{name}: {points:,} points", entries, _HEIGHT)
        axes = panel_axes(figure, _GUTTER, bottom, PAGE_WIDTH - _GUTTER - _RIGHT, _HEIGHT, name)
        for key, rows in series.items():
            _draw_series(axes, view, rows, found[key])
        scale_by_decades(axes)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show_seconds(value)))
        dress_axes(axes, view.axis)
    return figure


@dataclass(frozen=True, slots=True)
class _Mark:
    """Hold how a series is drawn: a colour, and a shape with its sign for the legend."""

    colour: str
    shape: str
    sign: str


_SHAPES = (("o", "\u25cf"), ("s", "\u25a0"), ("^", "\u25b2"), ("D", "\u25c6"))


def _mark(number: int) -> _Mark:
    rounds, index = divmod(number, len(SERIES_COLOURS))
    shape, sign = _SHAPES[rounds % len(_SHAPES)]
    return _Mark(SERIES_COLOURS[index], shape, sign)


def _draw_series(axes: Axes, view: _View, rows: list[Row], mark: _Mark) -> None:
    # A call that passes nothing has no place on a logarithmic axis; it stands at one byte.
    work = [max(view.work(row), 1.0) for row in rows]
    median = [row["seconds_median"] for row in rows]
    low = [row["seconds_p10"] for row in rows]
    high = [row["seconds_p90"] for row in rows]
    axes.vlines(work, low, high, color=mark.colour, linewidth=1, alpha=0.5)
    axes.plot(work, median, linestyle="none", marker=mark.shape, markersize=3.4, color=mark.colour)


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(value: float) -> str:
    """Return a round number by its power of ten, such as `10⁶` or `2·10⁶`."""
    mantissa, _, exponent = f"{value:.0e}".partition("e")
    factor = "" if mantissa == "1" else f"{mantissa}·"
    return f"{factor}10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
