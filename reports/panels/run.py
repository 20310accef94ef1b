"""A whole run of the plan: hours and money, and how they come about."""

from rlplan.reports.panels import Part, Section, Subject
from rlplan.reports.pictures.runs import run_picture
from rlplan.reports.tables.run import parts_table, run_lines, run_table

ORDER = 15


def section(subject: Subject) -> Section | None:
    """Return what a whole run takes; None where nobody asked."""
    run = subject.forecast.run
    if run is None:
        return None
    return Section(
        key="run",
        title="The whole run",
        short="Run",
        words=(
            (
                "Errors of a forecast are the same at every step, so they add up over a run; money is what the GPUs of the "
                "plan's pools cost at the prices of the job. Queueing, storage and traffic out of the cluster are not counted."
            ),
        ),
        points=tuple(line.strip().removeprefix("run:").strip() for line in run_lines(run)),
        picture=run_picture(run),
        parts=(
            Part(table=parts_table(run), heading="What time and money go into"),
            Part(table=run_table(run), heading="Steps that were simulated", is_folded=True),
        ),
    )
