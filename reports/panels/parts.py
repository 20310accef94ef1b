"""Where the time goes: the parts of every task's seconds."""

from matplotlib.figure import Figure

from rlplan.reports.panels import Part, Section, Subject
from rlplan.reports.pictures.picture import Picture, picture
from rlplan.reports.pictures.stacked_bars import Bar, seconds_figure
from rlplan.reports.tables.plans import parts_table, stage_table
from rlplan.results.forecast import Forecast
from rlplan.units import show_seconds

ORDER = 60


def section(subject: Subject) -> Section | None:
    """Return what the seconds of every task are made of; None where the forecast has no parts."""
    forecast = subject.forecast
    if not forecast.costs:
        return None
    return Section(
        key="parts",
        title="Where the time goes",
        short="Time",
        words=("What the forecast seconds of every task are made of.",),
        picture=parts_picture(forecast),
        parts=(
            Part(table=stage_table(forecast), heading="By stage"),
            Part(table=parts_table(forecast), heading="All parts", is_folded=True),
        ),
    )


def parts_figure(forecast: Forecast) -> Figure:
    """Draw every task's forecast seconds by cause, on one scale."""
    bars = [
        Bar(name=task.name, pieces=task.parts, remark=show_seconds(task.seconds))
        for task in forecast.costs
    ]
    return seconds_figure(bars)


def parts_picture(forecast: Forecast) -> Picture:
    """Return the parts of every task's seconds."""
    told = "; ".join(f"{task.name}: {show_seconds(task.seconds)}" for task in forecast.costs)
    return picture(
        parts_figure(forecast),
        name="parts",
        title="Where the time of every task goes",
        description=f"{told}.",
    )
