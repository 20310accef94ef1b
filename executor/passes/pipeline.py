"""Passes through a model's pipeline stages, on ranks that hold one or several of them.

Training runs torch's schedules: 1F1B (Narayanan et al. 2019, PipeDream; 2021, arXiv:2104.04473,
section 2.2), interleaved where a rank holds several stages, and GPipe where there are fewer
micro-batches than stages. Without a backward pass, stages just hand micro-batches on.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from rlplan.executor.data.packing import Packed
from rlplan.executor.model.building import StageModel
from rlplan.executor.weights.shard import ModelShard

# Returns the loss of a micro-batch (by number) from the head's outputs.
StageLoss = Callable[[Tensor, int], Tensor]


class _NumberedStage(nn.Module):
    """Run a stage on micro-batches that schedules know by number only."""

    def __init__(self, shard: ModelShard, stage: StageModel, batches: Sequence[Packed]) -> None:
        super().__init__()
        self._run, self._shard, self._batches = stage, shard, batches

    def forward(self, inputs: Tensor, number: Tensor) -> Tensor:
        """Return the stage's output of one micro-batch."""
        packed = self._batches[int(number)]
        with self._shard.autocast():
            outputs: Tensor = self._run(inputs, packed.slots, packed.positions)
        return outputs


def pipeline_backward(shard: ModelShard, batches: Sequence[Packed], loss: StageLoss) -> None:
    """Run forward and backward of micro-batches of one length; gradients are added up in place.

    Every rank of the pipeline calls it; the last stage's calls the loss.
    """
    count = len(batches)
    assert len({packed.length for packed in batches}) == 1, "buffers between stages have one shape"
    schedule = _schedule(shard, batches, lambda outputs, number: loss(outputs, int(number)))
    # Numbers stay on the host: reading them must not wait for the device.
    numbers = torch.arange(count)
    settings: dict[str, Any] = {"number": numbers}
    if shard.stages[-1].last:
        settings |= {"target": numbers, "return_outputs": False}
    if shard.stages[0].first:
        schedule.step(torch.cat([packed.tokens for packed in batches]), **settings)
    else:
        schedule.step(**settings)


def _schedule(shard: ModelShard, batches: Sequence[Packed], loss: Callable[..., Tensor]) -> Any:
    mesh, count, held = shard.mesh, len(batches), len(shard.stages)
    stages = [
        _pipeline_stage(shard, chunk * mesh.pp_size + mesh.pp, stage, batches)
        for chunk, stage in enumerate(shard.stages)
    ]
    settings: Any = {"n_microbatches": count, "loss_fn": loss, "scale_grads": False}
    if held > 1:
        return ScheduleInterleaved1F1B(list(stages), **settings)
    return (Schedule1F1B if count >= mesh.pp_size else ScheduleGPipe)(stages[0], **settings)


def _pipeline_stage(
    shard: ModelShard, index: int, stage: StageModel, batches: Sequence[Packed]
) -> PipelineStage:
    """Return torch's view of a stage, with its shapes given: nothing is tried out for them."""
    mesh, length = shard.mesh, batches[0].length
    held = length // shard.tokens_multiple
    hidden = torch.empty(1, held, stage.hidden_size, device="meta", requires_grad=True)
    tokens = torch.empty(1, length, dtype=torch.long, device="meta")
    return PipelineStage(
        _NumberedStage(shard, stage, batches),
        index,
        mesh.pp_size * len(shard.stages),
        mesh.device,
        input_args=tokens if stage.first else hidden,
        output_args=hidden,
        group=mesh.group("pp"),
    )


def pipeline_forward(
    shard: ModelShard, batches: Sequence[Packed], use: Callable[[Tensor, int], None]
) -> None:
    """Run micro-batches forward; on the rank of the last stage, `use` the head's outputs of each."""
    sending: list[dist.Work] = []
    for number, packed in enumerate(batches):
        outputs = forward_through(
            shard, packed.tokens, packed.slots, packed.positions, sending=sending
        )
        if outputs is not None:
            use(outputs, number)
    for work in sending:
        work.wait()


def forward_through(
    shard: ModelShard,
    tokens: Tensor,
    attention: Any,
    positions: Tensor,
    cache: Any = None,
    *,
    only_last: bool = False,
    sending: list[dist.Work] | None = None,
) -> Tensor | None:
    """Run one batch through this rank's stages; return the head's outputs on the last stage's rank.

    Args:
        tokens: Shape (B, T).
        sending: Takes what is still on its way to the next stage; None waits for it.
    """
    outputs: Tensor | None = None
    for stage in shard.stages:
        inputs = tokens
        if not stage.first:
            rows, length = tokens.shape[0], tokens.shape[1] // shard.tokens_multiple
            inputs = torch.empty(rows, length, stage.hidden_size, device=tokens.device)
            dist.recv(inputs, shard.mesh.pipeline_rank((shard.mesh.pp - 1) % shard.mesh.pp_size))
        with shard.autocast():
            output: Tensor = stage(inputs, attention, positions, cache, only_last=only_last)
        if stage.last:
            outputs = output
            continue
        target = shard.mesh.pipeline_rank((shard.mesh.pp + 1) % shard.mesh.pp_size)
        work = dist.isend(output.contiguous(), target)
        assert work is not None
        if sending is None:
            work.wait()
        else:
            sending.append(work)
    return outputs
