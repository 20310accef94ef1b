"""Updates of one model: epochs x updates x micro-batches, the same result on any layout.

A loss is a sum over response tokens divided by the response tokens of the whole optimizer step on
all ranks, so that gradients of micro-batches and ranks add up to the gradient of the mini-batch.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlplan.executor.data.batches import RESPONSE
from rlplan.executor.data.packing import balanced_rows, packed_tokens
from rlplan.executor.learning.losses import Loss, load_loss
from rlplan.executor.passes import (
    Reader,
    head_outputs,
    pack_for,
    policy_reader,
    read_values,
)
from rlplan.executor.weights.shard import ModelShard
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
    data-parallel ranks is the loss; only the last stage of a pipeline knows them.
    `gradient_norm_mean` is the same on every rank, and so are `learning_rate_max`, the last update's, and
    `skipped_updates_max`, the updates whose gradient is not finite: they leave the weights as they are.

    Args:
        micro_batch: Most sequences of a micro-batch; micro-batches have about equal tokens.
    """
    loss, trainer = load_loss(loss_name), shard.trainer
    assert trainer is not None, "a model that is not trained takes no updates"
    rows = len(batch["tokens"])
    assert rows % updates == 0, "every rank has an equal share of every mini-batch"
    shares = [
        {name: column[start : start + rows // updates] for name, column in batch.items()}
        for start in range(0, rows, rows // updates)
    ]
    normalizers = response_tokens(shard, shares)
    sums: dict[str, Tensor] = {}
    skipped = 0
    for _ in range(epochs):
        for share, normalizer in zip(shares, normalizers, strict=True):
            parts = split_micro_batches(shard, share, micro_batch)
            for name, value in run_micro_batches(shard, parts, loss, settings, normalizer).items():
                sums[name] = sums.get(name, torch.zeros((), device=shard.device)) + value
            trainer.reduce_gradients()
            norm = trainer.clip_and_step(settings.max_gradient_norm)
            sums["gradient_norm_mean"] = sums.get("gradient_norm_mean", 0.0) + norm
            skipped += not math.isfinite(norm)
    return _as_numbers(sums, updates * epochs) | {
        "learning_rate_max": trainer.learning_rate,
        "skipped_updates_max": float(skipped),
    }


def _as_numbers(sums: Mapping[str, Tensor], count: int) -> dict[str, float]:
    """Return means as floats, fetched from the device all at once."""
    values = (torch.stack([value.float() for value in sums.values()]) / count).tolist()
    return dict(zip(sums, values, strict=True))


def split_micro_batches(
    shard: ModelShard, share: Batch, micro_batch: int
) -> list[dict[str, Tensor]]:
    """Return a mini-batch's rows in micro-batches of about equal tokens, as the schedule wants them."""
    tokens, parts, stages = share["tokens"], share["parts"], shard.mesh.pp_size
    # Interleaved schedules take whole rounds of micro-batches, one for each rank of the pipeline.
    rounds = len(shard.stages) > 1 and len(tokens) > stages * micro_batch
    shares = balanced_rows(tokens, parts, micro_batch, multiple=stages if rounds else 1)
    return [{name: column[rows] for name, column in share.items()} for rows in shares]


def run_micro_batches(
    shard: ModelShard,
    parts: Sequence[Batch],
    loss: Loss,
    settings: Hyperparameters,
    normalizer: Tensor,
) -> dict[str, Tensor]:
    """Run forward, loss and backward of micro-batches; return the sums of the loss's metrics.

    Gradients are added up in place. Ranks before the last stage know no metrics.
    """
    reader, sums = _reader_of(shard, settings), dict[str, Tensor]()
    # Buffers between pipeline stages have one length.
    length = 0
    if shard.mesh.pp_size > 1:
        length = max(packed_tokens(part["tokens"], part["parts"]) for part in parts)
    batches = [pack_for(shard, part["tokens"], part["parts"], length=length) for part in parts]

    def loss_of(head: Tensor, number: int) -> Tensor:
        outputs = reader(head, batches[number])
        total, metrics = loss(outputs, parts[number], settings, normalizer)
        for name, value in metrics.items():
            sums[name] = sums[name] + value if name in sums else value
        return total

    if shard.mesh.pp_size > 1:
        from rlplan.executor.pipelines import pipeline_backward  # noqa: PLC0415  # slow import

        pipeline_backward(shard, batches, loss_of)
        return sums
    for number, packed in enumerate(batches):
        loss_of(head_outputs(shard, packed), number).backward()  # type: ignore[no-untyped-call]
    return sums


def _reader_of(shard: ModelShard, settings: Hyperparameters) -> Reader:
    if shard.head == "scalar":
        return read_values
    return policy_reader(settings.temperature, entropy=settings.entropy_coefficient > 0)


def response_tokens(shard: ModelShard, shares: list[dict[str, Tensor]]) -> list[Tensor]:
    """Return the response tokens of each mini-batch, over all ranks."""
    counts = torch.stack([(share["parts"] == RESPONSE).sum() for share in shares]).float()
    return list(shard.mesh.sum_over_dp(counts).clamp(min=1).unbind())
