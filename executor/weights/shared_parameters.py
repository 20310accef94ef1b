"""A generate shard that shares memory with the train shard.

With equal tensor-parallel sizes, every parameter of the train shard is a parameter of the generate shard,
in the same form: generation reads it where training wrote it, and only the parameters of other pipeline
stages need memory (Sheng et al. 2025, HybridFlow, section 5.3). With a smaller tensor-parallel size in
generation, a rank's rows or columns of a matrix must lie next to those of other ranks for one matrix
product: then the train shard is copied.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rlplan.executor.model.building import EMBEDDING, HEAD
from rlplan.executor.weights.flat import (
    Entry,
    FlatParameters,
    distinct_parameters,
    entries_of,
    local_part,
    parameter_like,
    placed,
)


def shared_names(train: Sequence[Entry], generate: Sequence[Entry]) -> dict[str, str]:
    """Return which parameters of a generate shard lie in the train shard, and their names there.

    Empty unless all of the train shard is shared: what is left of it would be held twice.
    """
    wanted = {entry.name: entry for entry in generate}
    tied = {HEAD: EMBEDDING, EMBEDDING: HEAD}
    found: dict[str, str] = {}
    for entry in train:
        name = entry.name if entry.name in wanted else tied.get(entry.name, "")
        there = wanted.get(name)
        form = (entry.shape, entry.dimension, entry.first)
        if there is None or name in found or (there.shape, there.dimension, there.first) != form:
            return {}
        found[name] = entry.name
    return found


class SharedParameters:
    """Hold a generate shard: views of the train shard's weights, and memory for all others.

    Args:
        modules: The rank's stages that generate; their parameters are replaced.
        train: The train shard's weights, which stay where they are.
        shared: By name, the names of its parameters in the train shard.

    Attributes:
        entries: All parameters, one after another as `whole_values` returns them.
        values: Those that are not shared.
        gathered_bytes: What a rank receives when `whole_values` is asked for.
    """

    gathered_bytes = 0

    def __init__(
        self, modules: Sequence[nn.Module], train: FlatParameters, shared: Mapping[str, str]
    ) -> None:
        found = distinct_parameters(modules)
        self.entries = entries_of(found)
        theirs = {entry.name: entry for entry in train.entries}
        own = placed([entry for entry in self.entries if entry.name not in shared])
        self.values = torch.zeros(own[-1].stop if own else 0, device=train.values.device)
        self._bytes = self.values.untyped_storage().nbytes()
        self._views = {entry.name: _view(self.values, entry) for entry in own}
        self._views |= {name: _view(train.values, theirs[there]) for name, there in shared.items()}
        for entry, (_, parameter, owners) in zip(self.entries, found, strict=True):
            view = self._views[entry.name].view(local_part(parameter).shape)
            replacement = parameter_like(view, parameter, requires_grad=False)
            for module, name in owners:
                setattr(module, name, replacement)

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of this rank's weights, the shared ones included."""
        return self.entries[-1].stop * self.values.element_size()

    def view_of(self, entry: Entry) -> Tensor:
        """Return a parameter's values, in the entry's shape."""
        return self._views[entry.name]

    def whole_values(self) -> Tensor:
        """Return a copy of all weights, as `entries` say."""
        return torch.cat([self._views[entry.name].reshape(-1) for entry in self.entries])

    def stored(self) -> list[Tensor]:
        """Return what holds the weights that are not shared, with a storage of its own."""
        return [self.values]

    def release(self) -> None:
        """Give back the memory of what is not shared; the views stay and are valid again after `claim`."""
        self.values.untyped_storage().resize_(0)

    def claim(self) -> None:
        """Take memory for weights that are written next."""
        self.values.untyped_storage().resize_(self._bytes)


def _view(values: Tensor, entry: Entry) -> Tensor:
    return values[entry.start : entry.stop].view(entry.shape)
