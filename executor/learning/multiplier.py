"""Weights that change from iteration to iteration: Safe-RLHF's multiplier, an adaptive KL penalty.

The multiplier grows while costs are above their limit, the penalty while the KL is above its target.
"""

import math
from collections.abc import Mapping

from rlplan.dataflow import Algorithm
from rlplan.job import Constraint, Hyperparameters, Job

# Its name in the algorithm's state and in the metrics.
MULTIPLIER = "lagrange_multiplier"
KL_COEFFICIENT = "kl_coefficient"
# Ziegler et al. 2019, section 2.2: the error counts at most so much, up or down.
LARGEST_ERROR = 0.2
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


def next_kl_coefficient(
    coefficient: float, mean_kl: float, responses: int, settings: Hyperparameters
) -> float:
    """Return the weight of the KL penalty in the next iteration, where it aims at `kl_target`.

    b' = b (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon) for n responses (Ziegler et al. 2019,
    arXiv:1909.08593, section 2.2, whose 0.1 a step is n / horizon), never below zero.

    Args:
        mean_kl: Of a response, the sum over its tokens, in nats.
    """
    assert settings.kl_target is not None, "a weight adapts to a target"
    error = max(-LARGEST_ERROR, min(mean_kl / settings.kl_target - 1.0, LARGEST_ERROR))
    return coefficient * max(0.0, 1.0 + error * responses / settings.kl_horizon)


def initial_state(algorithm: Algorithm, job: Job) -> dict[str, float]:
    """Return what an algorithm carries from iteration to iteration, before the first one."""
    constraint, settings = job.constraint or Constraint(), job.hyperparameters
    state = {MULTIPLIER: constraint.multiplier} if algorithm.constrained else {}
    if settings.kl_target is not None and algorithm.uses_reference(settings):
        state[KL_COEFFICIENT] = settings.kl_coefficient
    return state


def next_state(
    algorithm: Algorithm,
    job: Job,
    state: Mapping[str, float],
    metrics: Mapping[str, Mapping[str, float]],
) -> dict[str, float]:
    """Return what an algorithm carries on, given what an iteration's tasks measured."""
    found, responses = dict(state), job.workload.sequences
    if algorithm.constrained:
        mean_cost = metrics["actor.update"]["cost_sum"] / responses
        constraint = job.constraint or Constraint()
        found[MULTIPLIER] = next_multiplier(state[MULTIPLIER], mean_cost, constraint)
    if KL_COEFFICIENT in state:
        mean_kl = metrics["actor.update"]["kl_sum"] / responses
        found[KL_COEFFICIENT] = next_kl_coefficient(
            state[KL_COEFFICIENT], mean_kl, responses, job.hyperparameters
        )
    return found
