"""Measured stages beside their forecast, as text."""

from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import counted, interval
from rlplan.results.step_check import StageCheck, StepCheck
from rlplan.units import show_seconds


def step_check_table(found: StepCheck) -> Table:
    """Return a row for each stage, then what is in no stage, the step last."""
    rows = [_row(each) for each in found.stages]
    rows += [
        (name, show_seconds(seconds), "", "", "", "") for name, seconds in found.others.items()
    ]
    rows += [_row(found.step)] if found.step else []
    return Table(
        columns=columns("Stage", "#Measured", "#Forecast", "#Times", "#Normal range", "Verdict"),
        rows=tuple(rows),
        strong_rows=frozenset({len(rows) - 1} if found.step else ()),
    )


def _row(stage: StageCheck) -> tuple[str, ...]:
    return (
        stage.name,
        show_seconds(stage.measured_seconds),
        show_seconds(stage.forecast_seconds),
        f"{stage.times:.2f}",
        interval(stage.normal_seconds),
        stage.verdict,
    )


def measured_words(found: StepCheck) -> str:
    """Return what was measured: `24 steps of verl: 220 prompt and 1,536 response tokens on average`."""
    lengths = " and ".join(
        f"{tokens:,.0f} {what}"
        for what, tokens in (("prompt", found.prompt_tokens), ("response", found.response_tokens))
        if tokens is not None
    )
    words = f"{counted(found.steps, 'step')} of {found.source}"
    return (
        f"{words}: {lengths} tokens on average" if lengths else f"{words}; lengths are not logged"
    )


def verdict_lines(found: StepCheck) -> tuple[str, ...]:
    """Return the verdict, then each stage that is not normal with its likely causes and what to try."""
    every = (*found.stages, *((found.step,) if found.step else ()))
    odd = [each for each in every if each.verdict != "normal"]
    if not odd:
        return ("normal: every stage takes what is to be expected",)
    lines = []
    for each in sorted(odd, key=lambda each: each.forecast_seconds - each.measured_seconds):
        lines.append(
            f"{each.verdict}: {each.name} takes {each.times:.2f} times its forecast, "
            f"{show_seconds(each.measured_seconds)} in place of {show_seconds(each.forecast_seconds)}"
        )
        lines += [f"  likely: {words}" for words in each.causes]
        lines += [f"  try: {words}" for words in each.tries]
    return tuple(lines)
