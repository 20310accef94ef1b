"""What a page draws itself, of HTML that fits any width and reacts: what each shows, as shares of its width.

A widget names its template in `reports/templates/`; the Markdown version has a picture in its place.
"""

from typing import Protocol

from rlplan.units import seconds_scale


class Widget(Protocol):
    """Be one drawing of a page."""

    @property
    def template(self) -> str:
        """Return the name of its template."""
        ...


def share(value: float, whole: float) -> str:
    """Return a value as a share of a whole for style sheets: `12.3457%`."""
    return f"{100 * value / whole:.4f}".rstrip("0").rstrip(".") + "%" if whole else "0%"


def even_ticks(end: float, unit: float, most: int) -> list[float]:
    """Return round values from 0 to an end, at most so many, in steps of 1, 2 or 5 times a power of ten of a unit."""
    if end <= 0:
        return [0.0]
    step = unit * 10.0**-MOST_DIGITS
    while end / step >= most:
        for factor in (2.0, 2.5, 2.0):
            step *= factor
            if end / step < most:
                break
    return [index * step for index in range(int(end / step + NEARLY) + 1)]


def short_scale(largest_seconds: float) -> tuple[str, float]:
    """Return the unit of an axis of seconds: its symbol and its length in seconds."""
    word, unit = seconds_scale(largest_seconds)
    return _SYMBOLS.get(word, word), unit


_SYMBOLS = {
    "hours": "h", "minutes": "min", "seconds": "s", "milliseconds": "ms", "microseconds": "µs",
}  # fmt: skip
MOST_DIGITS, NEARLY = 6, 1e-9
