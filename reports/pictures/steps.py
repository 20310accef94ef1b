"""The picture of measured steps: what was forecast against what was measured, light or dark, for pages that cannot choose colours.

It is written as SVG by hand, in few bytes: READMEs show it in place of an own page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log10
from typing import Literal

from rlplan.reports.tables.wording import percent
from rlplan.results.gallery import Recipe

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
    asynchronous = recipe.mode in ("async", "one-step-off")
    return f"{recipe.framework}, {'asynchronous' if asynchronous else 'synchronous'}"


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
