"""How many replicas of a generating pool pay at which lengths of responses, by forecasts of each number of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, isfinite, log, sqrt
from typing import Final

from rlplan.errors import InfeasibleError, UserError
from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.planner.answers.variants import LEAST_LENDING_GAIN, expected_seconds, expected_value
from rlplan.planner.measured.measured_lengths import at_lengths
from rlplan.profiles.facts import Facts
from rlplan.replicas import OPTION, LengthRow, ReplicaRange, ReplicaTable, with_replicas
from rlplan.results.forecast import Forecast
from rlplan.simulator.simulate import simulate
from rlplan.workload import Lognormal, can_have_mean, longest, mean_length

# What one more has to bring, as a share of the objective: means of finitely many iterations are off by as much.
LEAST_GAIN: Final = LEAST_LENDING_GAIN
# By how many times longer the next lengths are of which iterations are forecast, and how far they reach beyond those that a job plans.
STEP: Final = sqrt(2.0)
BEYOND: Final = 2.0
SAME: Final = 1e-9  # of lengths that differ by rounding alone


def replica_table(plan: Plan, facts: Facts, asked: ReplicaRange) -> ReplicaTable:
    """Return how many replicas of a plan's generating pool pay at which lengths, by its job's objective.

    At each length it is the fewest of which more would bring less than a hundredth, among those that fit and get on. Where the job's generating pool stands on
    spot nodes, losses are counted. Between two lengths whose numbers differ the border is their geometric mean. Lengths beyond those
    that the job plans, at which no number fits, are left out: the last row before them holds there.

    Args:
        plan: A complete plan that streams, with as many replicas as are asked for at most.

    Raises:
        InfeasibleError: No number of them fits at some length that the job plans or a shorter one, or has a forecast.
    """
    planned, rows = max(_ends(plan)) * (1 + SAME), list[LengthRow]()
    for tokens in _lengths(plan):
        try:
            rows.append(_row(plan, facts, asked, tokens))
        except InfeasibleError:
            if tokens <= planned:
                raise
    kept = rows[:1]
    for before, row in pairwise(rows):
        border = sqrt(before.tokens * row.tokens)
        kept.append(replace(row, above_tokens=border))
    return ReplicaTable(rows=tuple(kept), begins=_ends(plan)[0])


def _row(plan: Plan, facts: Facts, asked: ReplicaRange, tokens: float) -> LengthRow:
    """Return how many replicas pay for responses of a mean length, whatever is shorter."""
    found, refused = dict[int, Forecast](), list[UserError]()
    for count in range(asked.least, asked.most + 1):
        try:
            forecast = _forecast(plan, facts, count, tokens)
        except UserError as error:  # such as a number that does not divide the prompts
            refused.append(error)
            continue
        if not forecast.feasible:
            continue
        if isfinite(expected_seconds(forecast)) and isfinite(expected_value(forecast, plan.job)):
            found[count] = forecast
        else:
            refused.append(UserError(f"with losses of spot nodes {count} of them would not get on"))
    if not found:
        words = f"{OPTION}: none of {asked.least} to {asked.most} replicas fits at {tokens:,.0f} tokens a response"
        raise InfeasibleError(f"{words}: {refused[0]}" if refused else words)
    values = {count: expected_value(each, plan.job) for count, each in found.items()}
    enough = min(values.values()) * (1 + LEAST_GAIN)
    return LengthRow(
        above_tokens=0.0,
        tokens=tokens,
        replicas=min(count for count, value in values.items() if value <= enough),
        seconds=FrozenDict({count: expected_seconds(each) for count, each in found.items()}),
    )


def _forecast(plan: Plan, facts: Facts, count: int, tokens: float) -> Forecast:
    return simulate(at_lengths(with_replicas(plan, count), None, tokens), facts)


def _ends(plan: Plan) -> tuple[float, float]:
    """Return the mean response tokens with which a run of a plan begins and ends."""
    lengths = plan.job.workload.response_tokens
    if isinstance(lengths, Lognormal) and lengths.training_means is not None:
        return lengths.training_means[0], lengths.training_means[-1]
    mean = float(mean_length(lengths))
    return mean, mean


def _lengths(plan: Plan) -> Sequence[float]:
    """Return mean response tokens, shortest first: those of the job's plan and beyond, as far as it allows such means."""
    low, high = min(_ends(plan)) / BEYOND, max(_ends(plan)) * BEYOND
    steps = max(1, ceil(log(high / low, STEP) - SAME))
    times = (high / low) ** (1 / steps)
    return tuple(_allowed(plan, [low * times**step for step in range(steps + 1)]))


def _allowed(plan: Plan, means: Sequence[float]) -> Iterator[float]:
    lengths = plan.job.workload.response_tokens
    for mean in means:
        if can_have_mean(lengths, mean) and mean <= longest(lengths) * (1 + SAME):
            yield mean
