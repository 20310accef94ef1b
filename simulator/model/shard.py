"""How a model is cut over devices, and what tokens one of them computes at a time."""

from dataclasses import dataclass

from rlplan.model import ModelArchitecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Say how one device's part of the model is cut out of the whole.

    Attributes:
        value_bytes: Bytes of one weight or activation.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    value_bytes: int = 2
    sequence_parallel: bool = False

    @property
    def splits_sequence(self) -> bool:
        """Tell whether norms and residuals are split over the tensor-parallel ranks."""
        return self.sequence_parallel and self.tp > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Describe the tokens of one (micro-)batch.

    Attributes:
        tokens: Query tokens of the batch, padding included where it is computed.
        sequence_tokens: Query tokens of a sequence whose attention costs what the average one's
            does.
        cached_tokens: Tokens of a sequence whose keys and values lie in the cache.
        head_tokens: Tokens that reach the output head.
    """

    sequences: int
    tokens: int
    sequence_tokens: int
    cached_tokens: int = 0
    head_tokens: int


def local_kv_heads(model: ModelArchitecture, tp: int) -> int:
    """Return the KV heads on one device; ranks beyond their number hold copies."""
    return max(1, model.num_kv_heads // tp)


def layers_of_stages(num_layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each pipeline stage; what does not divide goes to the first stages.

    The last stage has the output head, so it never gets a layer more than the others.
    """
    each, rest = divmod(num_layers, stages)
    return tuple(each + (1 if stage < rest else 0) for stage in range(stages))
