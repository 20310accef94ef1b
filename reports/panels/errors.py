"""How right the forecast was, task by task."""

from rlplan.reports.panels import Part, Section, Subject
from rlplan.reports.tables.plans import error_table, replica_table
from rlplan.reports.tables.wording import as_run_words, compared_iterations, other_lengths
from rlplan.reports.widgets import ranges_of_run

ORDER = 30


def section(subject: Subject) -> Section | None:
    """Return the errors of the forecast; None without a run to compare it with."""
    comparison = subject.comparison
    if comparison is None:
        return None
    return Section(
        key="errors",
        title="How right the forecast was",
        short="Errors",
        words=(
            compared_iterations(comparison),
            "The error is (forecast \N{MINUS SIGN} measured) / measured.",
            *(words for words in (other_lengths(comparison), as_run_words(comparison)) if words),
        ),
        widgets=(ranges_of_run(comparison),),
        parts=(
            Part(table=error_table(comparison)),
            *([Part(table=replica_table(comparison))] if comparison.replicas else []),
        ),
    )
