"""Updates of one model: epochs x updates x micro-batches, the same result on any layout.

A loss is a sum over response tokens divided by the response tokens of the whole optimizer step on
all ranks, so that gradients of micro-batches and ranks add up to the gradient of the mini-batch.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from executor.batches import RESPONSE
from executor.forward import policy_outputs, value_outputs
from executor.losses import Loss, load_loss
from executor.shard import ModelShard
from rlplan.job import Hyperparameters

Batch = Mapping[str, Tensor]


def update_model(
    shard: ModelShard,
    batch: Batch,
    loss_name: str,
    settings: Hyperparameters,
    *,
    updates: int,
    epochs: int,
    micro_batch: int,
) -> dict[str, float]:
    """Train on a rank's rows, the shares of the mini-batches one after another; return metrics.

    Loss metrics are means over the updates of this rank's part of each loss: their sum over the
    data-parallel ranks is the loss. `gradient_norm_mean` is the same on every rank.
    """
    loss = load_loss(loss_name)
    rows = len(batch["tokens"])
    assert rows % updates == 0, "every rank has an equal share of every mini-batch"
    shares = [
        _rows(batch, start, start + rows // updates) for start in range(0, rows, rows // updates)
    ]
    normalizers = _response_tokens(shard, shares)
    sums: dict[str, Tensor] = {}
    for _ in range(epochs):
        for share, normalizer in zip(shares, normalizers, strict=True):
            for start in range(0, rows // updates, micro_batch):
                part = _rows(share, start, start + micro_batch)
                metrics = run_micro_batch(shard, part, loss, settings, normalizer)
                for name, value in metrics.items():
                    sums[name] = sums.get(name, torch.zeros((), device=shard.device)) + value
            reduce_gradients(shard)
            norm = clip_and_step(shard, settings.max_gradient_norm)
            sums["gradient_norm_mean"] = sums.get("gradient_norm_mean", 0.0) + norm
    return _as_numbers(sums, updates * epochs)


def _as_numbers(sums: Mapping[str, Tensor], count: int) -> dict[str, float]:
    """Return means as floats, fetched from the device all at once."""
    values = (torch.stack([value.float() for value in sums.values()]) / count).tolist()
    return dict(zip(sums, values, strict=True))


def run_micro_batch(
    shard: ModelShard, part: Batch, loss: Loss, settings: Hyperparameters, normalizer: Tensor
) -> dict[str, Tensor]:
    """Run forward, loss and backward of one micro-batch; gradients are added up in place."""
    tokens, parts = part["tokens"], part["parts"]
    if shard.head == "lm":
        entropy = settings.entropy_coefficient > 0
        outputs = policy_outputs(shard, tokens, parts, settings.temperature, entropy=entropy)
    else:
        outputs = value_outputs(shard, tokens, parts)
    total, metrics = loss(outputs, part, settings, normalizer)
    total.backward()  # type: ignore[no-untyped-call]
    return metrics


def reduce_gradients(shard: ModelShard) -> None:
    """Sum the gradients over the data-parallel ranks, in one flat bucket."""
    assert shard.flat.gradients is not None
    shard.mesh.sum_over_dp(shard.flat.gradients)


def clip_and_step(shard: ModelShard, max_norm: float) -> Tensor:
    """Clip the whole model's gradient to a norm, step, and clear; return the norm before. ()."""
    flat, gradients = shard.flat, shard.flat.gradients
    assert gradients is not None
    assert shard.optimizer is not None
    sharded, partial = flat.sharded_stop, flat.partial_stop
    if partial > sharded:
        shard.mesh.sum_over_tp(gradients[sharded:partial])
    squares = shard.mesh.sum_over_tp(gradients[:sharded].square().sum())
    norm = (squares + gradients[sharded:].square().sum()).sqrt()
    gradients.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
    shard.optimizer.step()
    gradients.zero_()
    return norm


def _rows(batch: Batch, start: int, stop: int) -> dict[str, Tensor]:
    return {name: column[start:stop] for name, column in batch.items()}


def _response_tokens(shard: ModelShard, shares: list[dict[str, Tensor]]) -> list[Tensor]:
    """Return the response tokens of each mini-batch, over all ranks."""
    counts = torch.stack([(share["parts"] == RESPONSE).sum() for share in shares]).float()
    return list(shard.mesh.sum_over_dp(counts).clamp(min=1).unbind())
