"""The Lagrange multiplier of Safe-RLHF: it grows while costs are above their limit."""

import math
from collections.abc import Mapping

from rlplan.dataflow import Algorithm
from rlplan.job import Constraint, Job

# Its name in the algorithm's state and in the metrics.
MULTIPLIER = "lagrange_multiplier"
# Keeps its logarithm finite; a cost that counts for so little changes no advantage.
SMALLEST_MULTIPLIER = 1e-8


def next_multiplier(multiplier: float, mean_cost: float, constraint: Constraint) -> float:
    """Return the multiplier of the next iteration.

    ln m' = ln m + a m (mean cost - limit), at most `multiplier_max` (Dai et al. 2023, Safe RLHF,
    arXiv:2310.12773, eq. 31).
    """
    step = constraint.multiplier_learning_rate * multiplier * (mean_cost - constraint.cost_limit)
    lowest, highest = math.log(SMALLEST_MULTIPLIER), math.log(constraint.multiplier_max)
    return math.exp(max(lowest, min(math.log(multiplier) + step, highest)))


def initial_state(algorithm: Algorithm, job: Job) -> dict[str, float]:
    """Return what an algorithm carries from iteration to iteration, before the first one."""
    constraint = job.constraint or Constraint()
    return {MULTIPLIER: constraint.multiplier} if algorithm.constrained else {}


def next_state(
    algorithm: Algorithm,
    job: Job,
    state: Mapping[str, float],
    metrics: Mapping[str, Mapping[str, float]],
) -> dict[str, float]:
    """Return what an algorithm carries on, given what an iteration's tasks measured."""
    if not algorithm.constrained:
        return dict(state)
    mean_cost = metrics["actor.update"]["cost_sum"] / job.workload.sequences
    constraint = job.constraint or Constraint()
    return {**state, MULTIPLIER: next_multiplier(state[MULTIPLIER], mean_cost, constraint)}
