"""PPO-ptx: PPO's policy loss with ordinary language modelling mixed in (Ouyang et al. 2022, eq. 2)."""

from collections.abc import Mapping

from torch import Tensor

from rlplan.executor.learning.losses import ppo_policy
from rlplan.executor.learning.tokenwise import masked_sum
from rlplan.job import Hyperparameters


def loss(
    outputs: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    settings: Hyperparameters,
    normalizer: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return PPO's loss - g mean log p(token) over the texts among the rows, if there are any.

    The auxiliary term of Safe-RLHF (Dai et al. 2023, arXiv:2310.12773, appendix B) and InstructGPT
    (arXiv:2203.02155, eq. 2).

    Arguments and metrics are those of `ppo_policy`, and `pretrain_loss`, which includes g: the batch's
    `text_weights` (B, T) are g times what makes the sum over an update's texts a mean, zero on responses.
    """
    total, metrics = ppo_policy.loss(outputs, batch, settings, normalizer)
    if "text_weights" not in batch:
        return total, metrics
    weights = batch["text_weights"]
    pretrain_loss = -masked_sum(weights * outputs["log_probs"], weights > 0) / normalizer
    metrics["pretrain_loss"] = pretrain_loss.detach()
    return total + pretrain_loss, metrics
