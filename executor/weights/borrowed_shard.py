"""A generate shard that borrows what the train shard has of it.

Where tensor-parallel sizes are equal, every parameter of the train shard is one of the generate
shard, in the same form: generation reads it where training wrote it, and only the other pipeline
stages' parameters need memory (Sheng et al. 2025, HybridFlow, section 5.3). Where generation is cut
less, a rank's part of a matrix is some of its rows or columns, and one matrix product wants them
beside those of the others: there the train shard has to move.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from executor.model.building import EMBEDDING, HEAD
from executor.weights.flat import Entry, FlatParameters, distinct_parameters, dressed_as, entries_of


def lent_names(train: Sequence[Entry], generate: Sequence[Entry]) -> dict[str, str]:
    """Return which parameters of a generate shard lie in the train shard, and their names there.

    Empty unless all of the train shard can be lent: what is left of it would be held twice.
    """
    wanted = {entry.name: entry for entry in generate}
    tied = {HEAD: EMBEDDING, EMBEDDING: HEAD}
    found: dict[str, str] = {}
    for entry in train:
        name = entry.name if entry.name in wanted else tied.get(entry.name, "")
        if name not in wanted or name in found or not _alike(wanted[name], entry):
            return {}
        found[name] = entry.name
    return found


def _alike(one: Entry, other: Entry) -> bool:
    return (one.shape, one.dimension) == (other.shape, other.dimension)


class LentParameters:
    """Hold a generate shard: views of the train shard's weights, and memory for all others.

    Args:
        modules: The rank's stages that generate; their parameters are replaced.
        lender: The train shard's weights, which stay where they are.
        lent: By name, the names of its parameters in the lender.

    Attributes:
        entries: All parameters, one after another as `whole_values` returns them.
        values: Those that are not lent.
    """

    def __init__(
        self, modules: Sequence[nn.Module], lender: FlatParameters, lent: Mapping[str, str]
    ) -> None:
        found = distinct_parameters(modules)
        self.entries = entries_of(found)
        theirs = {entry.name: entry for entry in lender.entries}
        own, start = [], 0
        for entry in self.entries:
            if entry.name not in lent:
                stop = start + entry.stop - entry.start
                own.append(replace(entry, start=start, stop=stop))
                start = stop
        self.values = torch.zeros(start, device=lender.values.device)
        self._bytes = self.values.untyped_storage().nbytes()
        self._views = {entry.name: _view(self.values, entry) for entry in own}
        self._views |= {name: _view(lender.values, theirs[there]) for name, there in lent.items()}
        for entry, (_, parameter, owners) in zip(self.entries, found, strict=True):
            view = self._views[entry.name]
            replacement = nn.Parameter(dressed_as(view, parameter), requires_grad=False)
            for module, name in owners:
                setattr(module, name, replacement)

    @property
    def gathered_bytes(self) -> int:
        """Return the bytes that a rank receives when `whole_values` is asked for: none."""
        return 0

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of this rank's weights, the lent ones included."""
        return self.entries[-1].stop * self.values.element_size()

    def view_of(self, entry: Entry) -> Tensor:
        """Return a parameter's values, in the entry's shape."""
        return self._views[entry.name]

    def whole_values(self) -> Tensor:
        """Return a copy of all weights, as `entries` say."""
        return torch.cat([self._views[entry.name].reshape(-1) for entry in self.entries])

    def stored(self) -> list[Tensor]:
        """Return what holds the weights that are not lent, with a storage of its own."""
        return [self.values]

    def release(self) -> None:
        """Give back the memory of what is not lent; the views stay and are valid again after `claim`."""
        self.values.untyped_storage().resize_(0)

    def claim(self) -> None:
        """Take memory for weights that are written next."""
        self.values.untyped_storage().resize_(self._bytes)


def _view(values: Tensor, entry: Entry) -> Tensor:
    return values[entry.start : entry.stop].view(entry.shape)
