"""Where the numbers come from."""

from rlplan.reports.panels import Part, Section, Subject
from rlplan.reports.tables.plans import machine_table, sources_table, task_table

ORDER = 90


def section(subject: Subject) -> Section:
    """Return every forecast with its source, and the machine of a run."""
    parts = [
        Part(table=task_table(subject.forecast), heading="Every forecast with its source"),
        Part(
            table=sources_table(subject.plan, subject.forecast),
            heading="Profile, models and sources",
        ),
    ]
    if subject.run and subject.run.machine:
        parts.append(Part(table=machine_table(subject.run), heading="Where it ran"))
    return Section(
        key="sources",
        title="Where the numbers come from",
        short="Sources",
        words=("A forecast's source is that of its weakest part, the last of these:",),
        points=(
            "measured: a point of the profile",
            "interpolated: between points of the profile",
            "fitted: a coefficient that was fitted to measurements",
            "datasheet: rates of the device's sheet",
        ),
        parts=tuple(parts),
    )
