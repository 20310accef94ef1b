"""Where the time goes: the parts of every task's seconds."""

from matplotlib.figure import Figure

from reports.pictures.picture import Picture, picture
from reports.pictures.stacked_bars import Bar, Scale, stacked_figure
from rlplan.results.forecast import Forecast
from rlplan.units import seconds_scale, show_seconds


def parts_figure(forecast: Forecast) -> Figure:
    """Draw every task's forecast seconds by cause, on one scale."""
    bars = [
        Bar(name=task.name, pieces=task.parts, remark=show_seconds(task.seconds))
        for task in forecast.costs
    ]
    end = max(bar.length for bar in bars) * 1.02 or 1.0
    word, each_seconds = seconds_scale(end)
    return stacked_figure(bars, Scale(end=end, unit=each_seconds, word=word))


def parts_picture(forecast: Forecast) -> Picture:
    """Return the parts of every task's seconds."""
    told = "; ".join(f"{task.name}: {show_seconds(task.seconds)}" for task in forecast.costs)
    return picture(
        parts_figure(forecast),
        name="parts",
        title="Where the time of every task goes",
        description=f"{told}.",
    )
