"""All weights of a rank's shard in one flat tensor, and their gradients in another.

The parameters of the modules are views of them. So a gradient reduction, an optimizer step and a
transfer each handle one tensor, whatever the model. Sharded parameters come first, then replicated ones
whose gradients must be summed over the tensor-parallel ranks, then the other replicated ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rlplan.executor.model.adapters import FROZEN, LORA_A, LORA_B
from rlplan.executor.model.building import HEAD
from rlplan.executor.parallel.meshes import RankMesh
from rlplan.executor.parallel.tensor_parallel import (
    COLUMN_MODULES,
    PARTIAL_GRADIENT_MODULES,
    ROW_MODULES,
    Cut,
    is_distributed,
)

# Of adapters, what ranks hold whole: each sees the gradients of its slice of the layer.
PARTIAL_ADAPTERS = ((LORA_A, COLUMN_MODULES), (LORA_B, ROW_MODULES))


@dataclass(frozen=True, slots=True)
class Entry:
    """Locate one parameter of a shard in the flat tensor.

    Attributes:
        shape: Shape of the rank's part; stacked matrices have a dimension for the stack.
        dimension: Along which it is cut over the tensor-parallel ranks; None: held whole.
        first: Where the rank's part begins along that dimension.
        whole: Of the whole parameter, the size along it.
    """

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    dimension: int | None
    first: int = 0
    whole: int = 0

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """Return the shape of what all tensor-parallel ranks hold together."""
        sizes = list(self.shape)
        if self.dimension is not None:
            sizes[self.dimension] = self.whole
        return tuple(sizes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return where the rank's part begins in the whole parameter, by dimension."""
        return tuple(self.first if at == self.dimension else 0 for at in range(len(self.shape)))


class FlatParameters:
    """Own the weights of a rank's part of a model, moved into one flat tensor on its device.

    Args:
        modules: The rank's stages; their parameters, plain or DTensor, are replaced by views.
        device: Where the flat tensors are.
        trainable: Whether a flat gradient is kept as well.
        tied: Name of a parameter of which another pipeline stage has a copy; the head is the copy.
        multiple: Number of elements by which `stored_values` divides.
        keeps: Tells by its name whether a parameter is one of these; None: all are.

    Attributes:
        values: All weights, one after another as `entries` say.
        stored_values: The same with zeros at the end, up to a multiple of elements.
        tied: Where that parameter lies in `values`; empty where there is none.
        gathered_bytes: What a rank receives when `whole_values` is asked for.
    """

    gathered_bytes = 0

    def __init__(
        self,
        modules: Sequence[nn.Module],
        device: torch.device,
        *,
        trainable: bool,
        tied: str = "",
        multiple: int = 1,
        keeps: Callable[[str], bool] | None = None,
    ) -> None:
        found = distinct_parameters(modules)
        if keeps is not None:
            found = [item for item in found if keeps(item[0])]
        self.entries = entries_of(found)
        size = self.entries[-1].stop
        self.sharded_stop = max(
            (e.stop for e in self.entries if e.dimension is not None), default=0
        )
        partial = [e.stop for e in self.entries if is_partial(e.name) and e.dimension is None]
        self.partial_stop = max([self.sharded_stop, *partial])
        self.tied = next(
            (slice(e.start, e.stop) for e in self.entries if e.name == tied), slice(0, 0)
        )
        self._copied = self.tied if tied == HEAD else slice(0, 0)
        stored = -(-size // multiple) * multiple
        self.stored_values = torch.zeros(stored, device=device)
        self.stored_gradients = torch.zeros(stored, device=device) if trainable else None
        self.values = self.stored_values[:size]
        self.gradients = self.stored_gradients[:size] if self.stored_gradients is not None else None
        self._bytes = self.values.untyped_storage().nbytes()
        for entry, (_, parameter, owners) in zip(self.entries, found, strict=True):
            self._adopt(entry, parameter, owners)

    def _adopt(
        self, entry: Entry, parameter: nn.Parameter, owners: list[tuple[nn.Module, str]]
    ) -> None:
        shape = local_part(parameter).shape
        view = self.values[entry.start : entry.stop].view(shape)
        if not parameter.is_meta:  # else it has no values yet
            view.copy_(local_part(parameter))
        trainable = self.gradients is not None
        replacement = parameter_like(view, parameter, requires_grad=trainable)
        if self.gradients is not None:
            gradient = self.gradients[entry.start : entry.stop].view(shape)
            replacement.grad = with_placements_of(gradient, parameter)
        for module, name in owners:
            setattr(module, name, replacement)

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of this rank's weights."""
        return self.values.numel() * self.values.element_size()

    def pieces(self) -> Iterator[tuple[Entry, slice, Tensor]]:
        """Yield each parameter's entry, the range of rows (first dimension) that this rank holds, and their values."""
        for entry in self.entries:
            yield entry, slice(0, entry.shape[0]), self.view_of(entry)

    def view_of(self, entry: Entry) -> Tensor:
        """Return a parameter's values, in the entry's shape."""
        return self.values[entry.start : entry.stop].view(entry.shape)

    def stored(self) -> list[Tensor]:
        """Return the tensors that hold this rank's weights, each with its own storage."""
        return [self.stored_values]

    def whole_values(self) -> Tensor:
        """Return all weights of this rank's stages, as `entries` say."""
        return self.values

    def write_values(self, flat: Tensor) -> None:
        """Take over weights that `whole_values` of any rank of this position returned."""
        with torch.no_grad():
            self.values.copy_(flat)

    def release(self) -> None:
        """Give the weights' memory back; the views stay and are valid again after `claim`."""
        self.values.untyped_storage().resize_(0)

    def claim(self) -> None:
        """Take memory for weights that are written next."""
        self.values.untyped_storage().resize_(self._bytes)

    def sum_of_squares(self, span: slice, mesh: RankMesh) -> Tensor:
        """Return the gradient's sum of squares over a span, every weight of the model once. ().

        Args:
            span: Of this rank's flat gradient; other ranks of the model ask for other weights.
        """
        assert self.gradients is not None
        pieces = [
            (slice(0, self.sharded_stop), 1.0),
            (slice(self.sharded_stop, len(self.gradients)), 1 / mesh.tp_size),
        ]
        total = self.gradients.new_zeros((), dtype=torch.float32)
        for piece, share in pieces:
            for start, stop in _without(_common(span, piece), self._copied):
                total = total + share * self.gradients[start:stop].square().sum()
        return total


def _common(one: slice, other: slice) -> slice:
    start = max(one.start, other.start)
    return slice(start, max(start, min(one.stop, other.stop)))


def _without(span: slice, hole: slice) -> list[tuple[int, int]]:
    """Return what is left of a span outside a hole."""
    if hole.stop <= span.start or span.stop <= hole.start:
        return [(span.start, span.stop)]
    pieces = [(span.start, hole.start), (hole.stop, span.stop)]
    return [(start, stop) for start, stop in pieces if start < stop]


def distinct_parameters(
    modules: Sequence[nn.Module],
) -> list[tuple[str, nn.Parameter, list[tuple[nn.Module, str]]]]:
    """Return each parameter once, under its first name, with all modules that hold it (tied ones).

    Parameters that tensor parallelism cuts come first, then replicated ones whose gradients are partial sums, then the
    other replicated ones.
    """
    found: dict[int, tuple[str, nn.Parameter, list[tuple[nn.Module, str]]]] = {}
    named = [item for module in modules for item in module.named_modules()]
    for module_name, module in named:
        for name, parameter in module.named_parameters(recurse=False):
            whole = module_name.removesuffix(f".{FROZEN}")
            full_name = f"{whole}.{name}" if whole else name
            found.setdefault(id(parameter), (full_name, parameter, []))[2].append((module, name))
    return sorted(found.values(), key=lambda item: _order(item[0], item[1]))


def entries_of(found: list[tuple[str, nn.Parameter, list[tuple[nn.Module, str]]]]) -> list[Entry]:
    """Return where parameters lie in a flat tensor that holds them one after another."""
    entries, start = [], 0
    for name, parameter, _ in found:
        local = local_part(parameter)
        stop = start + local.numel()
        cut = _cut_of(parameter)
        entries.append(Entry(name, start, stop, cut.shape, cut.dimension, cut.first, cut.whole))
        start = stop
    return entries


def placed(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries of several flat tensors, or some of one, as they lie in a tensor of their own."""
    found, start = [], 0
    for entry in entries:
        stop = start + entry.stop - entry.start
        found.append(replace(entry, start=start, stop=stop))
        start = stop
    return found


def _order(name: str, parameter: nn.Parameter) -> int:
    if _cut_of(parameter).dimension is not None:
        return 0
    return 1 if is_partial(name) else 2


def is_partial(name: str) -> bool:
    """Tell whether tensor-parallel ranks hold a weight whole and see parts of its gradient."""
    path = name.split(".")
    if any(part in PARTIAL_GRADIENT_MODULES for part in path):
        return True
    return any(a in path and any(m in path for m in modules) for a, modules in PARTIAL_ADAPTERS)


def _cut_of(parameter: Tensor) -> Cut:
    """Return how a parameter is cut over the tensor-parallel ranks."""
    # What is cut without DTensors notes it itself (`rlplan.executor.model.experts`).
    noted: Cut | None = getattr(parameter, "cut", None)
    shape = tuple(local_part(parameter).shape)
    if noted is not None or not is_distributed(parameter):
        return noted or Cut(shape)
    from torch.distributed.tensor import Shard  # noqa: PLC0415  # loaded by now

    (placement,) = parameter.placements
    if not isinstance(placement, Shard):
        return Cut(shape)
    # The executor refuses layouts that do not divide heads and widths: all parts are alike.
    first = parameter.device_mesh.get_local_rank() * shape[placement.dim]
    return Cut(shape, placement.dim, first, parameter.shape[placement.dim])


def local_part(parameter: Tensor) -> Tensor:
    """Return what this rank has of a tensor, without its history."""
    detached = parameter.detach()
    return detached.to_local() if is_distributed(detached) else detached


def parameter_like(local: Tensor, parameter: Tensor, *, requires_grad: bool) -> nn.Parameter:
    """Return a parameter of values on this rank that is cut as another one is."""
    made: Any = nn.Parameter(with_placements_of(local, parameter), requires_grad=requires_grad)
    if hasattr(parameter, "cut"):
        made.cut = parameter.cut
    found: nn.Parameter = made
    return found


def with_placements_of(local: Tensor, parameter: Tensor) -> Tensor:
    """Return `local` dressed as the DTensor that `parameter` is, or as it is."""
    if not is_distributed(parameter):
        return local
    return type(parameter).from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
