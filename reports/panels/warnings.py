"""What a reader should know before trusting the numbers."""

from reports.panels import Section, Subject

ORDER = 80


def section(subject: Subject) -> Section:
    """Return the forecast's warnings."""
    warnings = subject.forecast.warnings
    return Section(
        key="warnings",
        title="Warnings",
        short="Warnings",
        words=() if warnings else ("None.",),
        points=warnings,
    )
