"""Keys and values of the tokens so far, for sequences that are decoded together."""

from torch import Tensor


class KeyValueCache:
    """Hold keys and values of a wave for all layers in two tensors, filled from the left.

    It is what transformers' layers ask of a cache: `update` and `get_seq_length`.

    Args:
        sources: Row of the first pass whose keys and values each row of the wave begins with, where
            rows begin alike; None: its own. Shape (B,).
    """

    is_compileable = False

    def __init__(self, layers: int, capacity_tokens: int, sources: Tensor | None = None) -> None:
        self.length = 0
        self._sources = sources
        self._layers, self._capacity = layers, capacity_tokens
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_unused: object, **_named: object
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values (B, heads, new, head_dim) of one layer; return all of that layer."""
        held_keys, held_values = keys, values
        if self.length == 0 and self._sources is not None:
            held_keys, held_values = keys[self._sources], values[self._sources]
        if self._keys is None or self._values is None:
            # Nothing beyond the length is ever read.
            shape = (self._layers, *held_keys.shape[:2], self._capacity, keys.shape[3])
            self._keys, self._values = keys.new_empty(shape), values.new_empty(shape)
        stop = self.length + keys.shape[2]
        self._keys[layer, :, :, self.length : stop] = held_keys
        self._values[layer, :, :, self.length : stop] = held_values
        if self.length == 0:
            return keys, values
        return self._keys[layer, :, :, :stop], self._values[layer, :, :, :stop]

    def get_seq_length(self, *_: object) -> int:
        """Return how many tokens are held."""
        return self.length
