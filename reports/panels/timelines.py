"""The timeline of an iteration, forecast and measured."""

from reports.panels import Part, Section, Subject
from reports.pictures.timelines import median_iteration, timelines_picture
from reports.tables.wording import counted
from reports.widgets.timeline import timeline_of, timeline_table

ORDER = 20


def section(subject: Subject) -> Section:
    """Return the timelines on one scale."""
    run, forecast = subject.run, subject.as_run or subject.forecast
    words = (
        "Pools are rows, tasks are bars that begin where workers do; calls that hand work over lie between "
        "them. The dashed line is the iteration's end. "
    )
    if run and median_iteration(run):
        left_out = counted(run.warmup_iterations, "warm-up iteration")
        words += (
            "Both timelines have the same scale. The measured iteration is the one of median length, "
            f"{left_out} left out."
        )
    if subject.as_run is not None:
        words += " The forecast is the one at the lengths that the run had."
    timeline = timeline_of(subject.plan, forecast, run)
    return Section(
        key="timelines",
        title="Timeline: forecast and measured" if run else "Timeline: forecast",
        short="Timeline",
        words=(words,),
        picture=timelines_picture(subject.plan, forecast, run),
        widgets=(timeline,),
        parts=(
            Part(table=timeline_table(timeline), heading="All bars as a table", is_folded=True),
        ),
    )
