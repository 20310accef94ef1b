"""The cost critic's loss: that of a critic, on costs (Dai et al. 2023, arXiv:2310.12773, appendix B)."""

from collections.abc import Mapping

from torch import Tensor

from rlplan.executor.learning.losses import value
from rlplan.job import Hyperparameters


def loss(
    outputs: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    settings: Hyperparameters,
    normalizer: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of `value` with `cost_values` and `cost_returns`; metrics begin with `cost_`."""
    of_costs = {**batch, "values": batch["cost_values"], "returns": batch["cost_returns"]}
    total, metrics = value.loss(outputs, of_costs, settings, normalizer)
    return total, {f"cost_{name}": each for name, each in metrics.items()}
