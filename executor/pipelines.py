"""Forward and backward passes of micro-batches over the stages of a pipeline, by torch's schedules.

Apart from `rlplan.executor.passes`, since torch's pipelines load its compiler, which takes a worker seconds to start.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
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
