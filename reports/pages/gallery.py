"""The gallery of published recipes with their forecasts: a page with a search in the browser, Markdown, and a picture."""

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from math import log, log10
from pathlib import Path
from statistics import median
from typing import Literal

from markupsafe import Markup

from rlplan.files.writing import write_text
from rlplan.reports.pages.report import page_environment
from rlplan.reports.tables.plans import Table, columns, markdown_lines
from rlplan.reports.tables.wording import TIMES, interval, percent, signed_percent
from rlplan.units import show_seconds, show_usd

GALLERY_VERSION: Literal[1] = 1

# Whether a recipe's run is known to have fit in memory, to have run out of memory, or neither.
Outcome = Literal["ran", "ran out", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Hold one recipe: its settings in words, its forecast, what was published of its run.

    Attributes:
        name: What its table or case calls it.
        framework: As its users write it.
        version: Empty where the source names none.
        gpu: The device sheet's name, or the source's word where no sheet is of it.
        mode: How iterations follow each other.
        work: Prompts, samples and lengths, in words.
        layout: Parallel sizes of training and generation, in words.
        forecast_seconds: Of a step, uncalibrated; None where the recipe is refused.
        interval_seconds: (p10, p90) of it.
        measured_seconds: Of a step; None where none was published.
        is_fitted: Whether a constant rests on the measurement.
        cost_usd: Of a step at list prices; None where it is not known.
        said: What is said of its memory; empty where nothing is.
        filled_fraction: Of the fullest GPU; None where nothing is said.
        outcome: What happened to its memory; empty where that was not published.
        refused: Why there is no forecast; empty where there is one.
        source: Where the recipe stands: an address, or a file of the framework's repository.
    """

    name: str
    framework: str
    version: str
    algorithm: str
    model: str
    gpu: str
    gpus: int
    mode: str
    work: str
    layout: str
    forecast_seconds: float | None = None
    interval_seconds: tuple[float, float] | None = None
    measured_seconds: float | None = None
    is_fitted: bool = False
    cost_usd: float | None = None
    said: str = ""
    filled_fraction: float | None = None
    outcome: Outcome = ""
    refused: str = ""
    source: str

    @property
    def error_fraction(self) -> float | None:
        """Return (forecast - measured) / measured; None where one of both is not known."""
        if self.forecast_seconds is None or not self.measured_seconds:
            return None
        return (self.forecast_seconds - self.measured_seconds) / self.measured_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """Hold all recipes. The file `reports/published/gallery.json`."""

    version: Literal[1] = GALLERY_VERSION
    recipes: tuple[Recipe, ...]


Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")

_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_WIDTH, _HEIGHT = 860.0, 420.0
_LEFT, _TOP, _RIGHT, _BOTTOM = 62.0, 56.0, 220.0, 48.0
# Seconds of both axes; steps outside are drawn at the edge.
_LOW, _HIGH = 25.0, 1250.0
_TICKS = (30, 60, 120, 300, 600, 1200)
_BAND = 0.25


@dataclass(frozen=True, slots=True)
class Colours:
    """Hold a scheme's colours; those of series are told apart by the colour-blind (Okabe and Ito 2008)."""

    ink: str
    muted: str
    line: str
    band: str
    series: tuple[str, ...]


COLOURS: dict[Scheme, Colours] = {
    "light": Colours("#1f2430", "#5b6472", "#d9dde3", "#2f6db31a", ("#0072b2", "#d55e00", "#aa4499", "#009e73")),
    "dark": Colours("#e6e9ef", "#a3abb8", "#3a414d", "#7fb2f026", ("#56b4e9", "#e69f00", "#e08cc8", "#2fc08f")),
}  # fmt: skip


PAGE, SCRIPT_FILE = "gallery", "gallery.js"
PAGE_FILE = "index.html"
PICTURE = "gallery-steps"
# Of the strip that shows a forecast beside its measurement: from a third of what was measured to three times as much.
_STRIP_TIMES = 3.0
KINDS = ("measured", "reported", "refused")
# Words of the modes in which generation is ahead of training.
MODES = {"one-step-off": "one step off", "async": "asynchronous"}


def write_gallery_pages(folder: Path, gallery: Gallery) -> Path:
    """Write `gallery/index.html`, `gallery.md` and the picture of measured steps, light and dark, into a folder; return the page's path."""
    for scheme in SCHEMES:
        svg = steps_svg(measured(gallery), scheme)
        write_text(folder / PAGE / f"{PICTURE}-{scheme}.svg", svg)
    write_text(folder / f"{PAGE}.md", gallery_markdown(gallery))
    path = folder / PAGE / PAGE_FILE
    write_text(path, gallery_html(gallery))
    return path


def measured(gallery: Gallery) -> tuple[Recipe, ...]:
    """Return the recipes whose steps were measured and forecast, those left out on whose steps a constant rests."""
    return tuple(
        recipe
        for recipe in gallery.recipes
        if recipe.error_fraction is not None and not recipe.is_fitted
    )


def gallery_html(gallery: Gallery) -> str:
    """Return the page; nothing of it comes from a network, and no other script runs in it than its own."""
    script = files("rlplan.reports").joinpath("templates", SCRIPT_FILE).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    recipes = sorted(gallery.recipes, key=lambda recipe: KINDS.index(_kind(recipe)))
    return (
        page_environment()
        .get_template("gallery.html.j2")
        .render(
            rows=[_cells(recipe) for recipe in recipes],
            frameworks=_counted(recipe.framework for recipe in recipes),
            gpus=_counted(recipe.gpu for recipe in recipes if recipe.gpu),
            number=len(recipes),
            words=summary_words(gallery),
            script=Markup(script),  # noqa: S704  our own
            script_hash=f"sha256-{digest}",
        )
    )


def _counted(names: object) -> list[tuple[str, int]]:
    return sorted(Counter(names).items())  # type: ignore[call-overload]


def summary_words(gallery: Gallery) -> str:
    """Return in two sentences how many recipes there are, and how far the forecasts of measured steps are off."""
    recipes, held = gallery.recipes, measured(gallery)
    errors = sorted(abs(recipe.error_fraction or 0.0) for recipe in held)
    within = sum(error <= WITHIN for error in errors)
    refused = sum(bool(recipe.refused) for recipe in recipes)
    words = (
        f"{len(recipes)} published recipes; {refused} of them are refused, each with the reason."
    )
    if not errors:
        return words
    return (
        f"{words} Of {len(held)} steps that "
        f"were measured and that no constant rests on, {within} are forecast within {percent(WITHIN)}, from data sheets alone "
        f"and without calibration (median error {percent(median(errors))}, worst {percent(errors[-1])})."
    )


WITHIN = 0.25


def _cells(recipe: Recipe) -> dict[str, object]:
    """Return what one row of the page shows, and the numbers that it is sorted by."""
    error = recipe.error_fraction
    return {
        "recipe": recipe,
        "words": _search_words(recipe),
        "version": recipe.version,
        "mode": MODES.get(recipe.mode, recipe.mode),
        "forecast": _forecast_words(recipe),
        "interval": interval(recipe.interval_seconds) if recipe.interval_seconds else "",
        "measured": show_seconds(recipe.measured_seconds) if recipe.measured_seconds else "",
        "error": "" if error is None else signed_percent(error),
        "is_off": error is not None and abs(error) > WITHIN,
        "cost": "" if not recipe.cost_usd else f"{show_usd(recipe.cost_usd)} a step",
        "memory": memory_words(recipe),
        "is_wrong": _is_wrong(recipe),
        "strip": _strip(recipe),
        "address": _address(recipe),
        "error_key": "" if error is None else f"{abs(error):.4f}",
        "kind": _kind(recipe),
    }


def _address(recipe: Recipe) -> str:
    """Return the address that a recipe's source begins with; empty where it names files."""
    first = recipe.source.split(maxsplit=1)[0] if recipe.source else ""
    return first if first.startswith("https://") else ""


def _kind(recipe: Recipe) -> str:
    if recipe.refused:
        return "refused"
    return "measured" if recipe.error_fraction is not None else "reported"


def _search_words(recipe: Recipe) -> str:
    words = (
        recipe.name,
        recipe.framework,
        recipe.version,
        recipe.algorithm,
        recipe.model,
        recipe.gpu,
        f"{recipe.gpus} gpus",
        recipe.mode,
        recipe.layout,
    )
    return " ".join(words).lower()


def _forecast_words(recipe: Recipe) -> str:
    return "" if recipe.forecast_seconds is None else show_seconds(recipe.forecast_seconds)


def memory_words(recipe: Recipe) -> str:
    """Return what is said of a recipe's memory, and what happened."""
    words = [recipe.said]
    if recipe.filled_fraction is not None and recipe.said:
        words.append(f"({percent(recipe.filled_fraction)})")
    told = " ".join(word for word in words if word)
    happened = {"ran": "it ran", "ran out": "it ran out", "": ""}[recipe.outcome]
    return "; ".join(word for word in (told, happened) if word)


def _is_wrong(recipe: Recipe) -> bool:
    pairs = (("fits", "ran out"), ("does not fit", "ran"))
    return (recipe.said, recipe.outcome) in pairs


def _strip(recipe: Recipe) -> dict[str, str] | None:
    """Return where forecast and interval stand beside the measurement, in percent of the strip's width (logarithmic)."""
    real, low_high = recipe.measured_seconds, recipe.interval_seconds
    if recipe.error_fraction is None or not real or low_high is None:
        return None
    assert recipe.forecast_seconds is not None, "an error has a forecast"
    left, right = (_place(each / real) for each in low_high)
    return {
        "left": f"{left:.1f}",
        "width": f"{max(right - left, 1.0):.1f}",
        "dot": f"{_place(recipe.forecast_seconds / real):.1f}",
    }


def _place(ratio: float) -> float:
    share = log(max(ratio, 1e-9)) / log(_STRIP_TIMES)
    return 50.0 + 50.0 * min(1.0, max(-1.0, share))


def gallery_markdown(gallery: Gallery) -> str:
    """Return the recipes as Markdown: measured steps first, then reported runs, then what is refused."""
    lines = [
        "# Published recipes, and what is forecast of them",
        "",
        "Made by `make gallery`. [The same as a page that can be searched](gallery/index.html).",
        "",
        summary_words(gallery),
        "",
        f"![Forecast against measured seconds of {len(measured(gallery))} steps]({PAGE}/{PICTURE}-light.svg)",
        "",
    ]
    for title, note, table in _sections(gallery.recipes):
        lines += [f"## {title}", "", note, "", *markdown_lines(table), ""]
    return "\n".join(lines).rstrip() + "\n"


def _sections(recipes: Sequence[Recipe]) -> list[tuple[str, str, Table]]:
    by_kind = {kind: [recipe for recipe in recipes if _kind(recipe) == kind] for kind in KINDS}
    return [
        (
            "Steps that were measured",
            "Settings and lengths are the published ones; nothing is calibrated. A row that is marked † had a part in a fit.",
            Table(
                columns=columns("Recipe", "On", "Work", "Layout", "#Forecast", "#p10 to p90", "#Measured", "#Error"),
                rows=tuple(map(_measured_row, by_kind["measured"])),
            ),
        ),
        (
            "Reported runs",
            (
                "Configurations of public reports: whether they ran is known, their seconds are not. Lengths that a report leaves "
                "out were filled in as its framework's example of that time has them, so these seconds hold for those lengths."
            ),
            Table(
                columns=columns("Recipe", "On", "Work", "Layout", "#Forecast", "#p10 to p90", "Memory, and what happened"),
                rows=tuple(map(_reported_row, by_kind["reported"])),
            ),
        ),
        (
            "Refused",
            "What stands here has no forecast: something that it depends on was not published, or is not modelled.",
            Table(
                columns=columns("Recipe", "On", "Why", "Source"),
                rows=tuple(
                    (_title(each), _where(each), each.refused, each.source) for each in by_kind["refused"]
                ),
            ),
        ),
    ]  # fmt: skip


def _title(recipe: Recipe) -> str:
    words = [recipe.framework, recipe.version, recipe.model, recipe.algorithm]
    mode = MODES.get(recipe.mode, recipe.mode)
    words.append("" if mode == "sync" else f"({mode})")
    title = " ".join(word for word in words if word)
    return title if recipe.model else f"{title} {recipe.name}"


def _where(recipe: Recipe) -> str:
    return f"{recipe.gpus} {TIMES} {recipe.gpu}" if recipe.gpus else ""


def _measured_row(recipe: Recipe) -> tuple[str, ...]:
    error = recipe.error_fraction
    assert error is not None, "these rows have one"
    return (
        _title(recipe) + (" †" if recipe.is_fitted else ""),
        _where(recipe),
        recipe.work,
        recipe.layout,
        _forecast_words(recipe),
        interval(recipe.interval_seconds) if recipe.interval_seconds else "",
        show_seconds(recipe.measured_seconds or 0.0),
        signed_percent(error),
    )


def _reported_row(recipe: Recipe) -> tuple[str, ...]:
    return (
        f"{_title(recipe)}, [{recipe.name}]({_address(recipe)})"
        if _address(recipe)
        else f"{_title(recipe)}, {recipe.name}",
        _where(recipe),
        recipe.work,
        recipe.layout,
        _forecast_words(recipe) or "-",
        interval(recipe.interval_seconds) if recipe.interval_seconds else "-",
        memory_words(recipe),
    )


# The picture of measured steps, written as SVG by hand, in few bytes: READMEs show it in place of an own page.


def steps_svg(recipes: Sequence[Recipe], scheme: Scheme) -> str:
    """Return an SVG of recipes that all have a forecast and a measurement: a dot each, with its p10 to p90."""
    colours = COLOURS[scheme]
    names = sorted({_series(recipe) for recipe in recipes})
    errors = [abs(recipe.error_fraction or 0.0) for recipe in recipes]
    within = sum(error <= _BAND for error in errors)
    title = f"{within} of {len(recipes)} measured steps are forecast within {percent(_BAND)}, without calibration"
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" width="{_WIDTH:g}" height="{_HEIGHT:g}" '
            f'role="img" font-family="{_FONTS}" font-size="13" fill="{colours.ink}">'
        ),
        f"<title>{escape(title)}</title>",
        f'<text x="{_LEFT:g}" y="22" font-size="17" font-weight="600">{escape(title)}</text>',
        (
            f'<text x="{_LEFT:g}" y="42" fill="{colours.muted}">Published steps that no constant was fitted on; '
            "bars are the forecast's p10 to p90</text>"
        ),
        *_axes(colours),
        *(
            _dot(recipe, colours.series[names.index(_series(recipe)) % len(colours.series)])
            for recipe in recipes
        ),
        *_legend(names, recipes, colours),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _series(recipe: Recipe) -> str:
    return f"{recipe.framework}, {'asynchronous' if recipe.mode in MODES else 'synchronous'}"


def _across(seconds: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * _share(seconds)


def _up(seconds: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * _share(seconds)


def _share(seconds: float) -> float:
    kept = min(_HIGH, max(_LOW, seconds))
    return log10(kept / _LOW) / log10(_HIGH / _LOW)


def _tick_words(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"  # noqa: PLR2004 -- two minutes


def _axes(colours: Colours) -> list[str]:
    left, right, bottom, top = _across(_LOW), _across(_HIGH), _up(_LOW), _up(_HIGH)
    parts = []
    for tick in _TICKS:
        x, y = _across(tick), _up(tick)
        parts += [
            f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}M{left:.1f} {y:.1f}H{right:.1f}" stroke="{colours.line}" fill="none"/>',
            f'<text x="{x:.1f}" y="{bottom + 18:.1f}" text-anchor="middle" fill="{colours.muted}">{_tick_words(tick)}</text>',
            f'<text x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end" fill="{colours.muted}">{_tick_words(tick)}</text>',
        ]
    more, less = 1 + _BAND, 1 - _BAND
    band = (
        f"M{_across(_LOW):.1f} {_up(_LOW * more):.1f}L{_across(_HIGH / more):.1f} {_up(_HIGH):.1f}H{right:.1f}"
        f"V{_up(_HIGH * less):.1f}L{_across(_LOW / less):.1f} {_up(_LOW):.1f}H{left:.1f}Z"
    )
    middle = (left + right) / 2
    return [
        f'<path d="{band}" fill="{colours.band}"/>',
        *parts,
        f'<path d="M{left:.1f} {bottom:.1f}L{right:.1f} {top:.1f}" stroke="{colours.muted}" stroke-dasharray="4 4" fill="none"/>',
        f'<text x="{middle:.1f}" y="{_HEIGHT - 8:.1f}" text-anchor="middle" fill="{colours.muted}">measured</text>',
        (
            f'<text transform="translate(14 {(top + bottom) / 2:.1f}) rotate(-90)" text-anchor="middle" '
            f'fill="{colours.muted}">forecast</text>'
        ),
    ]


def _dot(recipe: Recipe, colour: str) -> str:
    assert recipe.forecast_seconds is not None
    assert recipe.measured_seconds is not None
    x, y = _across(recipe.measured_seconds), _up(recipe.forecast_seconds)
    low, high = recipe.interval_seconds or (recipe.forecast_seconds,) * 2
    words = escape(
        f"{recipe.framework} {recipe.version} {recipe.model} on {recipe.gpus} {recipe.gpu}, {recipe.mode}: "
        f"forecast {recipe.forecast_seconds:.0f} s, measured {recipe.measured_seconds:.0f} s"
    )
    return (
        f'<g><title>{words}</title><path d="M{x:.1f} {_up(low):.1f}V{_up(high):.1f}" stroke="{colour}" stroke-opacity=".45" '
        f'stroke-width="1.5"/><circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/></g>'
    )


def _legend(names: Sequence[str], recipes: Sequence[Recipe], colours: Colours) -> list[str]:
    left, parts = _WIDTH - _RIGHT + 18, []
    for index, name in enumerate(names):
        y = _TOP + 18 + 24 * index
        number = sum(_series(recipe) == name for recipe in recipes)
        colour = colours.series[index % len(colours.series)]
        parts += [
            f'<circle cx="{left:.1f}" cy="{y - 4:.1f}" r="4.5" fill="{colour}"/>',
            f'<text x="{left + 12:.1f}" y="{y:.1f}">{escape(name)} ({number})</text>',
        ]
    y = _TOP + 18 + 24 * len(names)
    parts += [
        f'<rect x="{left - 5:.1f}" y="{y - 11:.1f}" width="11" height="11" fill="{colours.band}" stroke="{colours.line}"/>',
        f'<text x="{left + 12:.1f}" y="{y:.1f}">within {percent(_BAND)}</text>',
    ]
    return parts
