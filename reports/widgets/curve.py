"""Responses that are still under way during generation: the batch at first, then the long tail."""

from dataclasses import dataclass
from typing import ClassVar

from reports.widgets import even_ticks, share, short_scale
from rlplan.results.plan_details import ResponsesUnderWay

# The picture's own coordinates; it is stretched to the page's width.
WIDTH, HEIGHT = 1000.0, 260.0
MOST_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Hold a step curve.

    Attributes:
        path: Of an SVG, `WIDTH` wide and `HEIGHT` high.
        limit: Where the most that run at a time lie, from the top; empty where all of them do.
        x_ticks: (share from the left, words).
        y_ticks: (share from the top, words).
    """

    title: str
    path: str
    limit: str
    limit_words: str
    x_ticks: tuple[tuple[str, str], ...]
    y_ticks: tuple[tuple[str, str], ...]
    width: float = WIDTH
    height: float = HEIGHT
    template: ClassVar[str] = "curve.html.j2"


def under_way_curve(found: ResponsesUnderWay) -> Curve:
    """Return how many responses are under way over time."""
    end, most = found.seconds[-1] or 1.0, found.responses[0]
    word, unit = short_scale(end)
    steps = [f"M0 {_y(most, most)}"]
    for seconds, left in zip(found.seconds[1:], found.responses[1:], strict=True):
        steps.append(f"H{WIDTH * seconds / end:.2f}V{_y(left, most)}")
    return Curve(
        title=f"{most:,} responses, the last one ends after {end / unit:.3g} {word}",
        path="".join(steps),
        limit=share(most - found.most_running, most) if found.most_running < most else "",
        limit_words=f"at most {found.most_running:,} run at a time",
        x_ticks=tuple(
            (share(tick, end), f"{tick / unit:g} {word}")
            for tick in even_ticks(end, unit, MOST_TICKS)
        ),
        y_ticks=tuple(
            (share(most - tick, most), f"{tick:,.0f}")
            for tick in even_ticks(float(most), 1.0, MOST_TICKS)
            if tick == round(tick)
        ),
    )


def _y(left: int, most: int) -> str:
    return f"{HEIGHT * (1 - left / most):.2f}"
