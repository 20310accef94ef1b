"""Advice on a running job in words: what changes, what that gains, until when it pays, and what left its range."""

from collections.abc import Iterator

from rlplan.reports.tables.plans import Table, columns
from rlplan.results.advice import AdviceLine, Barred, Decision, Departure, Gain, NoSearch, Outcome
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
