"""The picture of a Pareto front: its points, joined, each named by the pools of its plan."""

from collections.abc import Mapping, Sequence

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from rlplan.reports.pictures.picture import (
    MUTED,
    PAGE_WIDTH,
    SERIES_COLOURS,
    SMALL_SIZE,
    FillStyle,
    LegendEntry,
    Picture,
    drawing,
    dress_axes,
    panel_axes,
    picture,
    titled_canvas,
)
from rlplan.reports.tables.searches import pools_words
from rlplan.results.forecast import Frontier, FrontierPoint
from rlplan.units import ShownAs

_SIDE, _LEFT, _RIGHT = 300.0, 60.0, 14.0
_MARGIN_FRACTION = 0.08
# Of the colour scale: its ends are too dark or too bright beside text on dark and light pages.
_SCALE_FROM, _SCALE_TO = 0.15, 0.85


def frontier_picture(frontier: Frontier, shown_as: Mapping[str, ShownAs]) -> Picture:
    """Return a panel for every pair of the front's objectives, its points numbered as in the table.

    Args:
        shown_as: By objective, how its values are shown.
    """
    title = f"Plans that no other beats in {' and '.join(frontier.objectives)}"
    return picture(_figure(frontier, shown_as, title), name="frontier", title=title)


def _figure(frontier: Frontier, shown_as: Mapping[str, ShownAs], title: str) -> Figure:
    first, *others = frontier.objectives
    points = len(frontier.points)
    entries = [
        _entry(number, point, shown_as, points) for number, point in enumerate(frontier.points, 1)
    ]
    with drawing():
        figure, bottom = titled_canvas(title, entries, _SIDE)
        width = PAGE_WIDTH / len(others)
        for index, other in enumerate(others):
            left = index * width + _LEFT
            room = width - _LEFT - _RIGHT
            axes = panel_axes(figure, left, bottom, room, _SIDE, f"{first} {other}")
            across, up = (
                [shown_as[name].number(point.values[name]) for point in frontier.points]
                for name in (first, other)
            )
            _draw(axes, across, up, joined=len(others) == 1)
            dress_axes(axes, shown_as[first].heading, shown_as[other].heading)
    return figure


def _entry(
    number: int, point: FrontierPoint, shown_as: Mapping[str, ShownAs], points: int
) -> LegendEntry:
    worth = ", ".join(
        f"{each.words(point.values[name])} {each.unit}" for name, each in shown_as.items()
    )
    name = f"{number}  {pools_words(point.candidate.plan)}"
    return LegendEntry(name, FillStyle(_colour(number, points)), worth)


def _colour(number: int, points: int) -> str:
    """Return the colour of a point: of a few, those that are told apart best; of many, steps of one scale."""
    if points <= len(SERIES_COLOURS):
        return SERIES_COLOURS[number - 1]
    share = (number - 1) / (points - 1)
    return to_hex(colormaps["viridis"](_SCALE_FROM + (_SCALE_TO - _SCALE_FROM) * share))


def _draw(axes: Axes, across: Sequence[float], up: Sequence[float], *, joined: bool) -> None:
    if joined:
        axes.plot(across, up, color=MUTED, linewidth=0.8)
    for number, (x, y) in enumerate(zip(across, up, strict=True), 1):
        axes.plot(
            [x], [y], linestyle="none", marker="o", markersize=5, color=_colour(number, len(across))
        )
        axes.annotate(
            str(number), (x, y), xytext=(4, 4), textcoords="offset points", size=SMALL_SIZE
        )
    axes.margins(_MARGIN_FRACTION)
