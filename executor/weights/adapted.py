"""Weights of a rank whose model is frozen, with adapters that are trained beside it.

Who takes weights over from here, to generate or to keep, gets matrices with the adapters merged into them. What is
stored of a run is the adapters alone.
"""

from collections.abc import Iterator

from torch import Tensor

from rlplan.executor.model.adapters import LORA_A, LORA_B, is_adapter, layer_of
from rlplan.executor.weights.flat import Entry, FlatParameters, placed
from rlplan.executor.weights.fully_sharded import FullyShardedParameters

Part = FlatParameters | FullyShardedParameters


class AdaptedParameters:
    """Hold frozen weights and those of adapters.

    Args:
        frozen: Without gradients.
        adapters: All trainable.
        scale: Factor of what adapters add.

    Attributes:
        entries: Where matrices lie in what `whole_values` returns.
        gathered_bytes: What a rank receives when `whole_values` is asked for.
    """

    def __init__(self, frozen: Part, adapters: Part, scale: float) -> None:
        self.frozen, self.adapters, self._scale = frozen, adapters, scale
        self.entries = placed(frozen.entries)
        self.gathered_bytes = frozen.gathered_bytes + adapters.gathered_bytes
        self._places = {entry.name: entry for entry in self.entries}

    @property
    def parts(self) -> tuple[Part, Part]:
        """Return both."""
        return self.frozen, self.adapters

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of this rank's weights, adapters among them."""
        return self.frozen.weight_bytes + self.adapters.weight_bytes

    def pieces(self) -> Iterator[tuple[Entry, slice, Tensor]]:
        """Yield the parameters that a folder's weights are written to, all but the adapters: entry, rows and values."""
        yield from self.frozen.pieces()
        yield from (piece for piece in self.adapters.pieces() if not is_adapter(piece[0].name))

    def stored(self) -> list[Tensor]:
        """Return the tensors that hold this rank's weights, each with its own storage."""
        return [*self.frozen.stored(), *self.adapters.stored()]

    def whole_values(self) -> Tensor:
        """Return a copy of all frozen weights with the adapters merged into them, as `entries` say.

        Where they are sharded, all ranks gather together.
        """
        whole, adapters = self.frozen.whole_values(), self.adapters.whole_values()
        if isinstance(self.frozen, FlatParameters):  # which returns its own tensor
            whole = whole.clone()
        held = {entry.name: entry for entry in self.adapters.entries}

        def matrix_of(name: str) -> Tensor:
            return adapters[held[name].start : held[name].stop].view(held[name].shape)

        for name in held:
            if LORA_A not in name.split("."):
                continue
            first, second = matrix_of(name), matrix_of(name.replace(LORA_A, LORA_B))
            place = self._places[layer_of(name)]
            matrix = whole[place.start : place.stop].view(place.shape)
            matrix.add_(second.detach() @ first.detach(), alpha=self._scale)
        return whole
