"""The Lagrange multiplier of Safe-RLHF: it grows while costs are above their limit."""

import math

from rlplan.job import Constraint

# Its name in the algorithm's state and in the metrics.
MULTIPLIER = "lagrange_multiplier"


def next_multiplier(multiplier: float, mean_cost: float, constraint: Constraint) -> float:
    """Return the multiplier of the next iteration.

    ln m' = ln m + a m (mean cost - limit), at most `multiplier_max` (Dai et al. 2023, Safe RLHF,
    arXiv:2310.12773, appendix B.2, the update of ln lambda).
    """
    step = constraint.multiplier_learning_rate * multiplier * (mean_cost - constraint.cost_limit)
    highest = math.log(constraint.multiplier_max)
    return math.exp(min(math.log(multiplier) + step, highest))
