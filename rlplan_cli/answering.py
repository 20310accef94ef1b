"""What `search` and `simulate` print of a plan: the verdict, its tasks, and what the answer rests on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rlplan_cli.terminal import print_table, say

if TYPE_CHECKING:
    from rlplan.plan import Plan
    from rlplan.profiles.facts import Facts
    from rlplan.results.forecast import Forecast


def print_answer(plan: Plan, forecast: Forecast, facts: Facts, verdict: str | None = None) -> None:
    """Print on stdout whether a plan fits, what a step takes, and a row for each of its tasks.

    Args:
        verdict: Whether it fits, where more is known than the forecast.
    """
    from rlplan.reports.tables.answers import SPARE_COLUMNS, answer_table, fit_words, step_lines
    from rlplan.simulator.timeline.utilisation import mfu_fractions
    from rlplan.units import show_filled

    mfu = mfu_fractions(plan, forecast, facts)
    first = None
    if not forecast.feasible:  # what explains loads the search
        from rlplan.planner.answers.explain import first_shortage

        first = first_shortage(plan, facts)
    lines = [fit_words(forecast, verdict), *step_lines(plan, forecast, mfu)]
    if first is not None and first.during not in {each.peak_task for each in forecast.memory}:
        filled = show_filled(first.needed_bytes, first.capacity_bytes)
        lines.insert(1, f"runs out first during {first.during} on pool {first.pool}: {filled}")
    sys.stdout.write("\n".join(lines) + "\n\n")
    print_table("How each task runs", answer_table(plan, forecast, mfu), spare=SPARE_COLUMNS)


def print_remarks(forecast: Forecast, verdict: str = "does not fit") -> None:
    """Print on stderr what was assumed, where the forecast may be off, and why a plan does not fit.

    Args:
        verdict: What is said of a forecast that does not fit.
    """
    from rlplan.reports.tables.answers import least_certain_words

    for assumption in forecast.assumptions:
        say(f"assumed: {assumption}")
    for warning in (*forecast.warnings, least_certain_words(forecast)):
        if warning:
            say(f"may be off: {warning}")
    if forecast.infeasible_reasons:
        _print_reasons(forecast, verdict)


def _print_reasons(forecast: Forecast, verdict: str) -> None:
    from rlplan.planner.answers.explain import NEAREST

    for reason in forecast.infeasible_reasons:
        nearest = reason.startswith(NEAREST)
        say(reason if nearest else f"{verdict}: {reason}")
