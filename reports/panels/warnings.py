"""What a reader should know before trusting the numbers."""

from rlplan.reports.panels import Section, Subject

ORDER = 80


def section(subject: Subject) -> Section:
    """Return the forecast's warnings, and what it takes from sheets."""
    assumed = (f"assumed: {each}" for each in subject.forecast.assumptions)
    warnings = (*subject.forecast.warnings, *assumed)
    return Section(
        key="warnings",
        title="Warnings",
        short="Warnings",
        words=() if warnings else ("None.",),
        points=warnings,
    )
