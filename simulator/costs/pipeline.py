"""A pass through the pipeline's stages: who is slowest, and what filling and draining costs."""

from dataclasses import dataclass

from rlplan.estimate import ZERO, Estimate, total
from rlplan.model import Head, ModelArchitecture
from simulator.costs.pricing import NOTHING, Direction, PassSeconds, Setting, pass_seconds
from simulator.model.operators import Batch


def layers_of_stages(num_layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each pipeline stage; what does not divide goes to the first stages.

    The last stage has the output head, so it never gets a layer more than the others.
    """
    each, rest = divmod(num_layers, stages)
    return tuple(each + (1 if stage < rest else 0) for stage in range(stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Hold what one micro-batch costs in the pipeline.

    Attributes:
        forward, backward, recompute: On the slowest stage.
        others: All other stages' work on the micro-batch: what filling and draining waits for.
        send: Handing activations to the next stage, one way.
    """

    forward: PassSeconds
    backward: PassSeconds = NOTHING
    recompute: PassSeconds = NOTHING
    others: Estimate = ZERO
    send: Estimate = ZERO

    @property
    def passes(self) -> PassSeconds:
        """Return all passes of the slowest stage."""
        return self.forward + self.backward + self.recompute


def slot_of(
    setting: Setting,
    model: ModelArchitecture,
    batch: Batch,
    head: Head,
    recompute: Direction | None,
) -> Slot:
    """Return what one micro-batch costs in the pipeline.

    Args:
        recompute: Recomputation mode of a training pass; None for a forward pass alone.
    """
    directions: tuple[Direction, ...] = ("forward",)
    if recompute is not None:
        directions = ("forward", "backward", recompute)
    layer = [pass_seconds(setting, model, "layer", batch, each) for each in directions]
    if recompute == "alternate":
        layer[-1] = layer[-1] * 0.5
    # Embedding and head are outside the layers, and no mode computes them again.
    ends = directions[:2]
    first = [pass_seconds(setting, model, "embedding", batch, each) for each in ends]
    last = [pass_seconds(setting, model, "head", batch, each, head) for each in ends]
    stages = _distinct_stages(model.num_layers, setting.pp, layer, first, last)
    slowest = max(stages, key=_whole_seconds)
    everything = _whole(layer) * model.num_layers + _whole(first) + _whole(last)
    waiting = everything.total.seconds - _whole_seconds(slowest)
    others = everything.total * max(0.0, waiting / everything.total.seconds)
    padded = [*slowest, *[NOTHING] * (3 - len(slowest))]
    return Slot(
        forward=padded[0],
        backward=padded[1],
        recompute=padded[2],
        others=others if setting.pp > 1 else ZERO,
        send=send_seconds(setting, model, batch),
    )


def _distinct_stages(
    num_layers: int,
    stages: int,
    layer: list[PassSeconds],
    first: list[PassSeconds],
    last: list[PassSeconds],
) -> list[list[PassSeconds]]:
    """Return the passes of the stages that differ: the first, the fullest middle one, the last."""
    counts = layers_of_stages(num_layers, stages)
    if stages == 1:
        return [_joined([each * num_layers for each in layer], first, last)]
    found = [
        _joined([each * counts[0] for each in layer], first),
        _joined([each * counts[-1] for each in layer], last),
    ]
    if stages > 2:  # noqa: PLR2004 - between a first and a last stage
        found.append([each * counts[1] for each in layer])
    return found


def _joined(passes: list[PassSeconds], *ends: list[PassSeconds]) -> list[PassSeconds]:
    joined = list(passes)
    for end in ends:
        for index, each in enumerate(end):
            joined[index] = joined[index] + each
    return joined


def _whole(passes: list[PassSeconds]) -> PassSeconds:
    result = NOTHING
    for each in passes:
        result = result + each
    return result


def _whole_seconds(passes: list[PassSeconds]) -> float:
    return total(each.total for each in passes).seconds


def send_seconds(setting: Setting, model: ModelArchitecture, batch: Batch) -> Estimate:
    """Return seconds of handing one micro-batch's activations to the next stage, tp ranks away.

    Ranks that each send a share gather the whole there (Narayanan et al. 2021, section 4.1), unless
    they need but their part of the sequence.
    """
    if setting.pp == 1:
        return ZERO
    shard = setting.shard
    num_bytes = -(-batch.tokens // shard.cp) * model.hidden_size * shard.value_bytes
    if shard.splits_sequence:
        return setting.send(num_bytes // shard.tp)
    if setting.splits_sends:
        gathered = setting.collective("all_gather", num_bytes, shard.tp, 1)
        return setting.send(num_bytes // shard.tp) + gathered
    return setting.send(num_bytes)
