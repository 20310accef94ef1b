"""Learning curves of a run."""

from rlplan.reports.panels import Section, Subject
from rlplan.reports.pictures.curves import curves_picture

ORDER = 70


def section(subject: Subject) -> Section | None:
    """Return the curves of a run's metrics; None without any that can be drawn."""
    picture = curves_picture(subject.metrics) if subject.metrics else None
    if picture is None:
        return None
    return Section(
        key="learning",
        title="Learning curves",
        short="Learning",
        words=("Each legend tells the first and the last value.",),
        picture=picture,
    )
