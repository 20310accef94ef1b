"""Rows of the tables that set the steps of one job by several frameworks side by side, with what their difference is made of."""

from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import TIMES, interval, percent, signed_seconds
from rlplan.results.differences import (
    ComparedStep,
    FrameworksComparison,
    StageDifference,
    StepDifference,
)
from rlplan.units import show_seconds

NOTHING = "-"
# A stage below this share of both steps is left out of what is shown; JSON has all of them.
LEAST_SHOWN = 0.001
# Causes and parts of a stage that are shown.
MOST_CAUSES, MOST_PARTS = 3, 2


def steps_table(compared: FrameworksComparison) -> Table:
    """Return a row for each step that can be run: seconds, interval, rate, and how many times the other's it is."""
    return Table(
        columns=columns(
            "Framework",
            "Settings",
            "#Step",
            "#p10 to p90",
            "#Tokens/s",
            "#Times",
            "Against",
            "#Gap",
        ),
        rows=tuple(_step_row(step) for step in compared.steps if step.forecast is not None),
    )


def _step_row(step: ComparedStep) -> tuple[str, ...]:
    forecast, difference = step.forecast, step.difference
    assert forecast is not None, "steps without one have no row"
    return (
        step.title,
        step.kind,
        show_seconds(forecast.iteration_seconds),
        interval(forecast.iteration_seconds_interval),
        f"{forecast.tokens_per_second:,.0f}",
        NOTHING if difference is None else f"{difference.ratio:.2f}{TIMES}",
        NOTHING if difference is None else difference.against,
        NOTHING if step.gap is None else percent(step.gap),
    )


def refused_table(compared: FrameworksComparison) -> Table:
    """Return what no framework runs so, each with the reason."""
    return Table(
        columns=columns("Framework", "Settings", "Why not"),
        rows=tuple(
            (step.title, step.kind, step.reason) for step in compared.steps if step.forecast is None
        ),
    )


def difference_table(difference: StepDifference) -> Table:
    """Return what a difference is made of, stage by stage, its sum last."""
    other = sum(each.base_seconds for each in difference.stages)
    own = sum(each.seconds for each in difference.stages)
    least = LEAST_SHOWN * max(own, other)
    shown = [
        each
        for each in difference.stages
        if max(abs(each.seconds), abs(each.base_seconds)) >= least
    ]
    rows = [
        (
            each.stage,
            _seconds(each.base_seconds),
            _seconds(each.seconds),
            *_otherwise(each, least),
        )
        for each in shown
    ]
    total = ("step", _seconds(other), _seconds(own), signed_seconds(difference.seconds), "", "")
    return Table(
        columns=columns("Stage", "#There", "#Here", "#Difference", "Mainly in", "Otherwise here"),
        rows=(*rows, total),
        strong_rows=frozenset({len(rows)}),
    )


def _otherwise(stage: StageDifference, least: float) -> tuple[str, str, str]:
    """Return a stage's difference, its parts and causes; nothing where the difference is as good as none."""
    seconds = stage.difference_seconds
    if abs(seconds) < least:
        return NOTHING, "", ""
    return signed_seconds(seconds), _parts(stage), ", ".join(stage.causes[:MOST_CAUSES])


def difference_words(step: ComparedStep) -> str:
    """Say in a sentence how much longer or shorter a step is, by what, and whether that may be nothing."""
    difference = step.difference
    assert difference is not None, "only steps that are compared are said"
    times = f"{difference.ratio:.2f} times"
    words = f"{step.title}, {step.kind}: {times} the step of {difference.against}"
    if not difference.seconds:
        return f"{words}: the same"
    # What goes the way the whole difference goes.
    along = [each for each in difference.stages if each.difference_seconds * difference.seconds > 0]
    largest = max(along, key=lambda each: abs(each.difference_seconds), default=None)
    if largest is not None:
        words += f", most of it in {largest.stage} ({signed_seconds(largest.difference_seconds)})"
    if difference.may_be_nothing:
        words += "; p10 to p90 of both overlap: the difference may be nothing"
    return words


def _seconds(seconds: float) -> str:
    return show_seconds(seconds) if seconds >= 0 else signed_seconds(seconds)


def _parts(stage: StageDifference) -> str:
    parts = list(stage.main_parts.items())[:MOST_PARTS]
    return ", ".join(f"{name} {signed_seconds(seconds)}" for name, seconds in parts)
