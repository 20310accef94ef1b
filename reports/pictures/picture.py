"""Pictures as SVG: the same text goes inline into the HTML page and into a file beside it."""

from __future__ import annotations

import io
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.ticker import LogLocator, NullFormatter

from rlplan.files.writing import write_bytes, write_text

# What a reader's system has; inline, the page's own font wins.
_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_BODY = re.compile(r"<svg\b[^>]*>(.*)</svg>", re.DOTALL)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_STYLE = re.compile(r"\s*<defs>\s*<style[^>]*>.*?</style>\s*</defs>", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FONT_FAMILY = re.compile(r"(font: [^;\"]*?px) [^;\"]*")
_ID = re.compile(r'\bid="([^"]+)"')
_REFERENCE = re.compile(r'(url\(|href=")#([^)"]+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Hold a picture that stands alone.

    Attributes:
        name: Of its file, without the ending.
        title: What it shows, for people who cannot see it and for Markdown.
        svg: One `<svg>` element without anything before it.
    """

    name: str
    title: str
    svg: str

    @property
    def file_name(self) -> str:
        """Return the name of the file beside the page."""
        return f"{self.name}.svg"

    @property
    def file_text(self) -> str:
        """Return the content of an SVG file."""
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{self.svg}\n'


def picture(figure: Figure, *, name: str, title: str, description: str = "") -> Picture:
    """Return a figure as a picture; the same figure gives the same bytes every time."""
    stream = io.StringIO()
    no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with drawing(), mpl.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        # The browser has the letters that the measuring font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(stream, format="svg", metadata=no_metadata)
    found = _BODY.search(stream.getvalue())
    assert found, "matplotlib wrote an svg element"
    width, height = (inches * POINTS_PER_INCH for inches in figure.get_size_inches())
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}pt" height="{height:g}pt" role="img" '
        f'aria-labelledby="{name}-title {name}-description" '
        f'style="stroke-linejoin: round; stroke-linecap: butt">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-description">{escape(description or title)}</desc>'
    )
    body = _stand_alone(found.group(1), name)
    return Picture(name=name, title=title, svg=f"{head}{body}</svg>")


def write_figure(figure: Figure, path: Path, *, title: str) -> None:
    """Write a figure as SVG or PNG, by the file's ending, whole or not at all."""
    if path.suffix == ".svg":
        name = re.sub(r"[^a-zA-Z0-9]+", "-", path.stem)
        write_text(path, picture(figure, name=name, title=title).file_text)
        return
    assert path.suffix == ".png", f"pictures are SVG or PNG, not {path.suffix}"
    stream = io.BytesIO()
    with drawing():
        figure.savefig(stream, format="png", dpi=2 * POINTS_PER_INCH, metadata={"Software": None})
    write_bytes(path, stream.getvalue())


def _stand_alone(body: str, name: str) -> str:
    """Return an SVG's content with ids of its own, the reader's fonts and no outside addresses."""
    for unwanted in (_METADATA, _STYLE, _COMMENT):
        body = unwanted.sub("", body)
    body = _FONT_FAMILY.sub(rf"\1 {_FONTS}", body)
    body = _REFERENCE.sub(rf"\1#{name}-\2", body)
    return _ID.sub(rf'id="{name}-\1"', body)


# How pictures look: colours that the colour-blind tell apart, text that is measured before it is set.
#
# All pictures are laid out in points (1/72 inch), on a canvas as wide as the page.

PAGE_WIDTH = 792.0
POINTS_PER_INCH = 72.0
TEXT_SIZE = 9.0
SMALL_SIZE = 8.0
TITLE_SIZE = 10.5

INK = "#1f2430"
DARK = "#0b0d12"  # on colours of middle brightness, where ink is not dark enough
MUTED = "#5b6472"
LINE = "#c9ced6"
FAINT = "#eef0f4"
WARNING = "#a3261b"

# Paul Tol's schemes "muted", "light" and "bright" (Tol 2021, Colour Schemes, SRON/EPS/TN/09-002).
TASK_COLOURS = (
    "#332288", "#44aa99", "#ddcc77", "#88ccee", "#cc6677", "#882255", "#117733", "#999933", "#aa4499",
)  # fmt: skip
# Of bars with more parts than that: of the other two schemes what is not near one of these.
MORE_COLOURS = ("#ee8866", "#4477aa", "#bbcc33", "#ffaabb", "#555555")
POOL_COLOURS = ("#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#99ddff", "#44bb99", "#bbcc33")
SERIES_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#555555")
REST_COLOUR = "#b6bcc6"
ACTIVITY_COLOURS = {"transition": "#4d5563", "transfer": "#8d95a3", "offload": "#c2c7d0"}

_LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",
    # Names are the user's: a dollar sign in one must not start a formula.
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": TEXT_SIZE,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.unicode_minus": True,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "text.color": INK,
}


@contextmanager
def drawing() -> Iterator[None]:
    """Set the look of everything drawn inside; the process's own settings come back after it."""
    with mpl.rc_context(_LOOK):
        yield


def new_canvas(height: float) -> tuple[Figure, Axes]:
    """Return an empty figure as wide as the page, and invisible axes over all of it.

    The axes' coordinates are points from the lower left, as `height` is.
    """
    size = (PAGE_WIDTH / POINTS_PER_INCH, height / POINTS_PER_INCH)
    figure = Figure(figsize=size, dpi=POINTS_PER_INCH, facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0), label="canvas")
    axes.set_xlim(0, PAGE_WIDTH)
    axes.set_ylim(0, height)
    axes.axis("off")
    return figure, axes


# Of a picture's title, and of ticks and label below a panel.
HEAD, FOOT = 26.0, 36.0


def titled_canvas(
    title: str, entries: Sequence[LegendEntry], panel_height: float
) -> tuple[Figure, float]:
    """Return a figure with a title above panels of a height and a legend below, and where panels begin."""
    legend = legend_height(entries, PAGE_WIDTH)
    height = HEAD + panel_height + FOOT + legend
    figure, canvas = new_canvas(height)
    draw_title(canvas, title, height - HEAD / 2)
    draw_legend(canvas, entries, 0, legend, PAGE_WIDTH)
    return figure, legend + FOOT


def draw_title(canvas: Axes, title: str, middle: float, left: float = 0.0) -> None:
    """Write a title on a canvas, at points from the lower left."""
    canvas.text(left, middle, title, size=TITLE_SIZE, va="center")


def panel_axes(
    figure: Figure, left: float, bottom: float, width: float, height: float, label: str
) -> Axes:
    """Return axes at a place given in points."""
    all_width, all_height = (inches * POINTS_PER_INCH for inches in figure.get_size_inches())
    box = (left / all_width, bottom / all_height, width / all_width, height / all_height)
    return figure.add_axes(box, label=label)


def dress_axes(
    axes: Axes, across: str, up: str = "", *, grid: Literal["both", "y"] = "both"
) -> None:
    """Give a panel its grid, small tick labels without ticks, and words for both axes."""
    axes.grid(which="major", axis=grid)
    axes.tick_params(axis="both", which="both", length=0, labelsize=SMALL_SIZE)
    axes.set_xlabel(across, size=SMALL_SIZE, labelpad=2)
    axes.set_ylabel(up, size=SMALL_SIZE, labelpad=2)


# Few decades need ticks inside each of them.
_MANY = 100.0


def scale_by_decades(axes: Axes) -> None:
    """Make both axes of a drawn panel logarithmic, with ticks at round numbers."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    for each in (axes.xaxis, axes.yaxis):
        low, high = each.get_view_interval()
        inside = (1.0,) if high / low >= _MANY else (1.0, 2.0, 5.0)
        each.set_major_locator(LogLocator(subs=inside, numticks=12))
        each.set_minor_formatter(NullFormatter())


@lru_cache(maxsize=4096)
def text_width(text: str, size: float = TEXT_SIZE, *, bold: bool = False) -> float:
    """Return the width of text in points.

    The widest line counts. It is measured in DejaVu Sans, which is wider than the usual system fonts, so what fits here
    fits in the reader's browser.
    """
    if "\n" in text:
        return max(text_width(line, size, bold=bold) for line in text.split("\n"))
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    narrow = "".join(letter if ord(letter) < _KNOWN_LETTERS else "m" for letter in text)
    font = FontProperties(family="DejaVu Sans", size=size, weight="bold" if bold else "normal")
    width, _, _ = text_to_path.get_text_width_height_descent(narrow, font, ismath=False)
    return float(width) + wide * size * 0.1


# Below it DejaVu Sans has nearly every letter; above, a letter counts as an `m`.
_KNOWN_LETTERS = 0x2300


def elided(text: str, room: float, size: float = TEXT_SIZE) -> str:
    """Return text cut with an ellipsis to what fits into `room` points."""
    if text_width(text, size) <= room:
        return text
    kept = text
    while kept and text_width(kept + "…", size) > room:
        kept = kept[:-1]
    return kept + "…"


def readable_on(colour: str) -> str:
    """Return the text colour, dark or white, that reads better on a background (WCAG luminance)."""
    luminance = relative_luminance(colour)
    on_white = 1.05 / (luminance + 0.05)
    on_dark = (luminance + 0.05) / (relative_luminance(DARK) + 0.05)
    return "#ffffff" if on_white > on_dark else DARK


_LINEAR_BELOW = 0.04045  # where sRGB leaves its straight piece


def relative_luminance(colour: str) -> float:
    """Return the luminance of an `#rrggbb` colour between 0 and 1 (WCAG 2.2, relative luminance)."""
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        value / 12.92 if value <= _LINEAR_BELOW else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@dataclass(frozen=True, slots=True)
class FillStyle:
    """Hold how one thing is filled; a hatch tells things apart when colours repeat."""

    colour: str
    hatch: str = ""


def looks(names: Iterable[str], colours: Sequence[str]) -> dict[str, FillStyle]:
    """Return a look for each name, in their order; after one round of colours hatches begin."""
    hatches = ("", "////", "....", "xxxx")
    found: dict[str, FillStyle] = {}
    for index, (name, colour) in enumerate(zip(dict.fromkeys(names), cycle(colours), strict=False)):
        found[name] = FillStyle(colour, hatches[index // len(colours) % len(hatches)])
    return found


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """Name one look, with a remark in a quieter colour."""

    name: str
    look: FillStyle
    remark: str = ""


_SWATCH, _GAP, _ENTRY_GAP, _ROW = 10.0, 5.0, 18.0, 16.0
_MOST_OF_A_ROW = 0.7  # a longer name is cut, so that its remark still shows


def legend_rows(entries: Sequence[LegendEntry], width: float) -> list[list[LegendEntry]]:
    """Return legend entries broken into rows that fit a width in points."""
    rows: list[list[LegendEntry]] = []
    room = 0.0
    for entry in entries:
        needed = _entry_width(entry)
        if not rows or needed > room:
            rows.append([])
            room = width
        rows[-1].append(entry)
        room -= needed
    return rows


def legend_height(entries: Sequence[LegendEntry], width: float) -> float:
    """Return the points that `draw_legend` needs."""
    return len(legend_rows(entries, width)) * _ROW


def draw_legend(
    canvas: Axes, entries: Sequence[LegendEntry], left: float, top: float, width: float
) -> None:
    """Draw legend entries from a left top corner in points, in as many rows as they need."""
    for number, row in enumerate(legend_rows(entries, width)):
        at, middle = left, top - (number + 0.5) * _ROW
        for entry in row:
            canvas.add_patch(swatch(at, middle - _SWATCH / 2, entry.look))
            at += _SWATCH + _GAP
            name = elided(entry.name, width * _MOST_OF_A_ROW)
            canvas.text(at, middle, name, va="center_baseline")
            at += text_width(name)
            if entry.remark:
                at += _GAP
                remark = elided(entry.remark, left + width - at)
                canvas.text(at, middle, remark, va="center_baseline", color=MUTED)
                at += text_width(remark)
            at += _ENTRY_GAP


def swatch(left: float, bottom: float, look: FillStyle) -> Rectangle:
    """Return a small square of a look."""
    return Rectangle(
        (left, bottom), _SWATCH, _SWATCH,
        facecolor=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0,
    )  # fmt: skip


def _entry_width(entry: LegendEntry) -> float:
    remark = _GAP + text_width(entry.remark) if entry.remark else 0.0
    return _SWATCH + _GAP + text_width(entry.name) + remark + _ENTRY_GAP
