"""The timeline of an iteration, forecast and measured."""

from reports.panels import Section, Subject
from reports.pictures.timelines import median_iteration, timelines_picture
from reports.tables.wording import counted

ORDER = 20


def section(subject: Subject) -> Section:
    """Return the timelines on one scale."""
    run = subject.run
    words = "Pools are rows, tasks are bars; the dashed line is the iteration's end. "
    if run and median_iteration(run):
        left_out = counted(run.warmup_iterations, "warm-up iteration")
        words += (
            "Both timelines have the same scale. The legend tells each task's seconds, forecast / "
            f"measured. The measured iteration is the one of median length, {left_out} left out."
        )
    else:
        words += "The legend tells each task's forecast seconds."
    return Section(
        key="timelines",
        title="Timeline: forecast and measured" if run else "Timeline: forecast",
        short="Timeline",
        words=(words,),
        picture=timelines_picture(subject.plan, subject.forecast, run),
    )
