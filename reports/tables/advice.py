"""A running job in words: each step beside its forecast; and advice: what to change, what it gains, until when."""

from collections.abc import Iterator, Sequence

from rlplan.reports.tables.plans import Table, columns
from rlplan.results.advice import AdviceLine, Barred, Decision, Departure, Gain, NoSearch, Outcome
from rlplan.results.measurement import WatchedStep
from rlplan.units import show_seconds

USUAL = "the default"
MINUS = "\u2212"


def advice_lines(line: AdviceLine) -> tuple[str, ...]:
    """Return a line of the ledger in sentences, the answer first."""
    if isinstance(line, Barred):
        return (f"not tried again in this run ({line.plan}): {line.reason}",)
    if isinstance(line, NoSearch):
        return (f"no search after step {line.step:,}: {line.reason}",)
    return (outcome_words(line),) if isinstance(line, Outcome) else tuple(_of_decision(line))


def _of_decision(found: Decision) -> Iterator[str]:
    lengths = (
        ""
        if found.response_tokens is None
        else f", {found.response_tokens:,.0f} response tokens on average"
    )
    yield (f"step {found.step:,}, {found.steps_left:,} left: {answer_words(found)}")
    yield (
        f"the last {found.steps:,} steps took {show_seconds(found.measured_seconds)} each{lengths}; forecast with this run's "
        f"factors: {show_seconds(found.forecast_seconds)}"
    )
    yield from (f"out of its range: {departure_words(each)}" for each in found.departures)


def answer_words(found: Decision) -> str:
    """Return the answer of a decision in words."""
    if found.gain is None:
        return "nothing that was tried would make steps shorter"
    gains = f"would gain {gain_words(found.gain)} a step"
    if found.answer == "keep":
        return f"nothing surely helps: the best change {gains}"
    whole = show_seconds(found.gain.p10_seconds * found.steps_left)
    if found.answer == "restart unknown":
        return f"a change {gains}, at least {whole} in all; whether that pays hangs on what a restart costs"
    assert found.restart_seconds is not None
    cost = show_seconds(found.restart_seconds)
    if found.answer == "too late" and not found.steps_left:
        return f"too late: no step is left; a change {gains}"
    if found.answer == "too late":
        until = "" if found.deadline_step is None else f" since step {found.deadline_step:,}"
        return f"too late{until}: a change {gains}, at least {whole} in all, and a restart costs {cost}"
    return f"change: it {gains}, at least {whole} in all for a restart of {cost}; it pays until step {found.deadline_step:,}"


def gain_words(gain: Gain) -> str:
    """Return a gain for people, its ends behind it."""
    low, middle, high = (
        (MINUS if each < 0 else "") + show_seconds(abs(each))
        for each in (gain.p10_seconds, gain.p50_seconds, gain.p90_seconds)
    )
    return f"{middle} ({low} to {high})"


def departure_words(found: Departure) -> str:
    """Return what left its normal range in words."""
    low, high = map(show_seconds, found.normal_seconds)
    where = {"forecast": "the forecast has", "steps before": "the steps before it had"}[
        found.beside
    ]
    stage = f"; {found.stage} is furthest from its own" if found.stage else ""
    return (
        f"{found.name} takes {show_seconds(found.measured_seconds)}, {where} {low} to {high}{stage}"
    )


def outcome_words(found: Outcome) -> str:
    """Return what came of a change in words."""
    before, after = found.response_tokens
    lengths = (
        ""
        if before is None or after is None
        else f" (responses of {before:,.0f} and {after:,.0f} tokens)"
    )
    verdict = "as forecast" if found.as_forecast else "not as forecast"
    return (
        f"outcome of the change after step {found.decision_step:,}: steps take {show_seconds(found.after_seconds)} in place of "
        f"{show_seconds(found.before_seconds)}{lengths}, {verdict}: {gain_words(found.gain)} less"
    )


def changes_table(found: Decision) -> Table:
    """Return the keys that change, with what they have and what they would have."""
    rows = tuple((each.key, each.before or USUAL, each.after) for each in found.changes)
    return Table(columns=columns("Key", "Now", "Then"), rows=rows)


def watched_words(found: WatchedStep) -> str:
    """Return a step: `step 12: measured 45.20 s, forecast 44.10 s (38.00 s to 51.00 s): within; furthest: generation ...`."""
    low, high = map(show_seconds, found.interval_seconds)
    measured, forecast = show_seconds(found.measured_seconds), show_seconds(found.forecast_seconds)
    words = f"step {found.step:,}: measured {measured}, forecast {forecast} ({low} to {high}): {found.place}"
    if found.starts:
        words += ", the first of a start"
    if found.response_tokens is not None:
        words += f"; {found.response_tokens:,.0f} response tokens"
    far = found.furthest
    if far is not None:
        took, expected = show_seconds(far.measured_seconds), show_seconds(far.forecast_seconds)
        words += f"; furthest: {far.name} {took} (forecast {expected})"
    return words


def prometheus_text(found: WatchedStep, log: str) -> str:
    """Return the newest step as gauges in Prometheus' text format, which node_exporter's textfile collector reads.

    Args:
        log: Of which log it is, for a label.

    The format is that of prometheus.io, "Exposition formats": a line of help and of the type for each metric, labels in
    quotes with backslashes, quotes and line ends escaped, a line end at the last line.
    """
    low, high = found.interval_seconds
    own: tuple[tuple[str, str, float], ...] = (
        ("step", "Number of the newest step in the log.", found.step),
        ("step_measured_seconds", "What the newest step took.", found.measured_seconds),
        ("step_forecast_seconds", "What was forecast at its lengths.", found.forecast_seconds),
        ("step_forecast_p10_seconds", "Low end of the forecast.", low),
        ("step_forecast_p90_seconds", "High end of the forecast.", high),
        ("step_within_forecast", "1 where it lies between both ends.", found.place == "within"),
    )
    lines = [
        line
        for name, text, value in own
        for line in _metric(name, text, [((("log", log),), value)])
    ]
    for name, text, values in (
        (
            "stage_measured_seconds",
            "What a stage of the newest step took.",
            [(each.name, each.measured_seconds) for each in found.stages],
        ),
        (
            "stage_forecast_seconds",
            "What was forecast of the stage.",
            [(each.name, each.forecast_seconds) for each in found.stages],
        ),
    ):
        rows = [((("log", log), ("stage", stage)), value) for stage, value in values]
        lines += _metric(name, text, rows) if rows else []
    return "\n".join(lines) + "\n"


Labels = tuple[tuple[str, str], ...]


def _metric(name: str, text: str, rows: Sequence[tuple[Labels, float]]) -> Iterator[str]:
    yield f"# HELP rlplan_{name} {text}"
    yield f"# TYPE rlplan_{name} gauge"
    for labels, value in rows:
        told = ",".join(f'{label}="{_label(held)}"' for label, held in labels)
        yield f"rlplan_{name}{{{told}}} {float(value)!r}"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
