"""Weights of a pre-trained model: every rank reads the slices that it holds out of a folder of safetensors.

Tensors of a folder have the names and shapes of the published format. Here the experts of a layer are stacked in one
tensor, and fused projections are split. Both are converted slice by slice, so that a rank never holds more than its
shard and one tensor.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlplan.errors import FileError
from rlplan.executor.model.building import (
    EMBEDDING,
    HEAD,
    ROUTER_BIAS,
    StageModel,
    published_name,
)
from rlplan.executor.model.experts import is_expert
from rlplan.executor.model.fused_projections import APART
from rlplan.executor.parallel.meshes import RankMesh
from rlplan.executor.weights.adapted import AdaptedParameters
from rlplan.executor.weights.flat import Entry, FlatParameters, distinct_parameters, entries_of
from rlplan.executor.weights.fully_sharded import ExpertParallelParameters, FullyShardedParameters
from rlplan.files.decoding import load_json
from rlplan.models import WEIGHT_FILES

SCORE = "score.weight"
PREFIXES = ("model.", "", "language_model.model.", "model.language_model.")
FIRST_NORM = re.compile(r"layers\.0\.(input|post_attention)_layernorm\.weight$")
# What families call a layer's experts, and their matrices by what they are called here; and their routers.
EXPERT_MATRICES = {
    "mlp.experts": {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"},
    "block_sparse_moe.experts": {"gate": "w1", "up": "w3", "down": "w2"},
}
STACKED = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}
ROUTERS = (("mlp.gate.", "block_sparse_moe.gate."),)


# Formats that are numbers as they stand; those of quantised weights need scales that lie beside them.
NUMBERS = ("F64", "F32", "F16", "BF16")
# What `transformers` reads of a folder: one file, or else those that an index names (`_get_resolved_checkpoint_files` of its
# `modeling_utils.py`, 5.23).
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Rows of an embedding that are compared at a time.
COMPARED_ROWS = 4096


def weight_paths(folder: Path) -> list[Path]:
    """Return the files that a folder's weights are read from: those that `transformers` reads or, of other names, all.

    Raises:
        FileError: There are none, or its index is broken or names one that is missing.
    """
    if (folder / WHOLE).exists():
        return [folder / WHOLE]
    index = folder / INDEX
    if not index.exists():
        paths = sorted(folder.glob(WEIGHT_FILES))
        if not paths:
            raise FileError(str(folder), "holds no weights", allowed=WEIGHT_FILES)
        return paths
    held = load_json(index)
    named = held.get("weight_map") if isinstance(held, dict) else None
    if not isinstance(named, dict) or not named:
        allowed = "files by names of weights"
        raise FileError(str(index), "is no index of weights", field="weight_map", allowed=allowed)
    names = sorted(set(map(str, named.values())))
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        problem = (
            f"is missing; {INDEX} names {len(names)} files, of which {len(missing)} are not there"
        )
        raise FileError(str(folder / missing[0]), problem)
    return [folder / name for name in names]


class PretrainedFolder:
    """Read parts of the tensors of a folder.

    Raises:
        FileError: The folder holds no weights, not all that its index names, or no model's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files, self._open = ExitStack(), dict[str, Any]()
        for path in weight_paths(folder):
            try:
                file = self._files.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise FileError(str(path), f"is broken: {error}") from None
            self._open |= dict.fromkeys(file.keys(), file)
        firsts = [name for name in self._open if FIRST_NORM.search(name)]
        found = [FIRST_NORM.sub("", name) for name in firsts]
        prefix = next((each for each in PREFIXES if each in found), None)
        if prefix is None:
            raise FileError(str(folder), "holds the weights of no transformer that runs here")
        self._prefix = prefix

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def __contains__(self, name: str) -> bool:
        """Tell whether there is a tensor of a published name."""
        return self.name_of(name) in self._open

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor.

        Raises:
            FileError: There is none of this name.
        """
        return tuple(self._slice(name).get_shape())

    def format(self, name: str) -> str:
        """Return the format of a tensor, as safetensors names it.

        Raises:
            FileError: There is none of this name.
        """
        return str(self._slice(name).get_dtype())

    def read(self, name: str, part: tuple[slice, ...]) -> Tensor:
        """Return a part of a tensor, on the host.

        Raises:
            FileError: There is none of this name.
        """
        found: Tensor = self._slice(name)[part]
        return found

    def others(self, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield what the folder holds beside tensors of published names, under its own names, such as a tower's."""
        mine = {self.name_of(name) for name in names}
        for there, file in self._open.items():
            if there not in mine:
                yield there, file.get_tensor(there)

    def _slice(self, name: str) -> Any:
        there = self.name_of(name)
        if there not in self._open:
            raise FileError(str(self.folder), "holds no such weights", field=there)
        return self._open[there].get_slice(there)

    def name_of(self, name: str) -> str:
        """Return the name that a tensor has in this folder."""
        inner = name.removeprefix("model.")
        there = name if inner == name else f"{self._prefix}{inner}"
        if there not in self._open and name == published_name(HEAD):
            there = f"{self._prefix.removesuffix('model.')}{name}"
        for mine, theirs in ROUTERS:
            if there not in self._open and mine in there:
                there = there.replace(mine, theirs)
        return there


def read_weights(
    weights: FlatParameters | FullyShardedParameters | ExpertParallelParameters | AdaptedParameters,
    mesh: RankMesh,
    source: PretrainedFolder,
    *,
    tied: bool,
    fresh_head: Tensor,
) -> None:
    """Write what a rank holds of a model from its folder.

    Args:
        tied: Whether the head is the embedding.
        fresh_head: Initial values of a scalar head that the folder does not have. Shape (1, hidden).

    Raises:
        FileError: The folder lacks weights, or has them in other shapes, or some are not finite.
    """
    try:
        with torch.no_grad():
            for entry, rows, target in weights.pieces():
                if not target.numel():
                    continue
                if entry.name == HEAD and entry.shape[0] == 1 and SCORE not in source:
                    target.copy_(fresh_head[rows])
                    continue
                there = target.view(rows.stop - rows.start, *entry.shape[1:])
                for place, name, part in _sources(entry, rows, mesh, source, tied=tied):
                    there[place].copy_(source.read(name, part))
                _check_finite(target, entry.name, source)
    finally:
        source.close()
    for each in parts_of(weights):
        if isinstance(each, FullyShardedParameters):
            each.refresh()


def read_router_biases(stages: Sequence[StageModel], device: torch.device, folder: Path) -> None:
    """Take the biases of routers that no gradient trains from a model's folder.

    Raises:
        FileError: The folder lacks one.
    """
    routers = {name: each for stage in stages for name, each in stage.router_biases.items()}
    if not routers:
        return
    with closing(PretrainedFolder(folder)) as source:
        for name, router in routers.items():
            values = source.read(published_name(name), (slice(None),))
            setattr(router, ROUTER_BIAS, values.to(device, torch.float32))


def _check_finite(values: Tensor, parameter: str, source: PretrainedFolder) -> None:
    """Refuse weights that are not finite: the first iteration would end for them, as if it had diverged.

    Raises:
        FileError: Names the parameter.
    """
    # A sum takes no memory; only where it overflows is each number looked at.
    if not values.sum().isfinite() and not values.isfinite().all():
        problem = "holds weights that are not finite"
        raise FileError(str(source.folder), problem, field=published_name(parameter))


def parts_of(weights: object) -> tuple[object, ...]:
    """Return what a rank's weights consist of, where they lie in parts of unlike kinds; else themselves."""
    if isinstance(weights, ExpertParallelParameters | AdaptedParameters):
        return weights.parts
    return (weights,)


def check_weights(
    stages: Sequence[StageModel], mesh: RankMesh, source: PretrainedFolder, *, tied: bool
) -> None:
    """Refuse a folder that does not hold all weights of stages as numbers in their shapes; reads weights of a tied head alone.

    Raises:
        FileError: Names the first that is missing, or has another shape or format; or the folder has another head beside an
            embedding that is to be the head.
    """
    for entry in entries_of(distinct_parameters(stages)):
        if entry.name == HEAD and entry.shape[0] == 1 and SCORE not in source:
            continue
        for _, name, part in _sources(entry, slice(0, entry.shape[0]), mesh, source, tied=tied):
            held = source.shape(name)
            if len(held) != len(part) or any(
                cut.stop > size for cut, size in zip(part, held, strict=True)
            ):
                _refuse_shape(source, name, [cut.stop for cut in part])
            if source.format(name) not in NUMBERS:
                raise FileError(
                    str(source.folder),
                    "has weights in a format that is not read here, as quantised checkpoints do",
                    field=name,
                    value=source.format(name),
                    allowed=", ".join(NUMBERS),
                )
    for name, router in ((n, each) for s in stages for n, each in s.router_biases.items()):
        wanted = list(getattr(router, ROUTER_BIAS).shape)
        if list(source.shape(published_name(name))) != wanted:
            _refuse_shape(source, published_name(name), wanted)
    if tied and not _has_tied_head(source):
        raise FileError(
            str(source.folder),
            f"has {published_name(HEAD)} and {published_name(EMBEDDING)}, which differ, though its configuration ties them",
            field="tie_word_embeddings",
            value=True,
            allowed="False, or weights without a head of their own",
        )


def _has_tied_head(source: PretrainedFolder) -> bool:
    """Tell whether a folder has no head beside its embedding, or the same."""
    head, embedding = published_name(HEAD), published_name(EMBEDDING)
    if head not in source:
        return True
    shape = source.shape(embedding)
    if source.shape(head) != shape:
        return False
    for first in range(0, shape[0], COMPARED_ROWS):
        part = slice(first, min(first + COMPARED_ROWS, shape[0])), slice(0, shape[1])
        if not torch.equal(source.read(head, part), source.read(embedding, part)):
            return False
    return True


def _sources(
    entry: Entry, rows: slice, mesh: RankMesh, source: PretrainedFolder, *, tied: bool
) -> Iterator[tuple[Any, str, tuple[slice, ...]]]:
    """Return where some of an entry's rows come from, in pieces: the place among them, a tensor's name, its part."""
    if is_expert(entry.name):
        yield from _expert_sources(entry, rows, mesh, source)
        return
    name = published_name(EMBEDDING if tied and entry.name == HEAD else entry.name)
    if entry.name == HEAD and entry.shape[0] == 1:
        name = SCORE
    offset = 0
    joined = APART.search(name)
    if joined is not None and name not in source:
        offset = _rows_before(joined, name, source, entry)
        name = f"{name[: joined.start()]}{joined['joined']}.weight"
    part = [slice(0, size) for size in entry.shape]
    part[0] = rows
    if entry.dimension is not None:
        cut = part[entry.dimension]
        part[entry.dimension] = slice(cut.start + entry.first, cut.stop + entry.first)
    if joined is None and source.shape(name) != entry.whole_shape:
        _refuse_shape(source, name, list(entry.whole_shape))
    part[0] = slice(part[0].start + offset, part[0].stop + offset)
    yield slice(None), name, tuple(part)


def _rows_before(joined: re.Match[str], name: str, source: PretrainedFolder, entry: Entry) -> int:
    """Return the rows of a joined matrix before those of one of its parts."""
    whole = source.shape(f"{name[: joined.start()]}{joined['joined']}.weight")[0]
    mine = entry.whole_shape[0]
    before = {"q_proj": 0, "gate_proj": 0, "v_proj": whole - mine, "up_proj": whole - mine}
    return before.get(joined["part"], whole - 2 * mine)  # keys have as many rows as values


def _expert_sources(
    entry: Entry, rows: slice, mesh: RankMesh, source: PretrainedFolder
) -> Iterator[tuple[Any, str, tuple[slice, ...]]]:
    """Return where the matrices of experts come from, each with its place (expert, matrix) in the entry."""
    layer, _, matrix = published_name(entry.name).partition("mlp.experts.")
    first = mesh.experts.position * entry.shape[0]
    height, width = entry.shape[2], entry.shape[3]
    top, left = entry.offsets[2:]
    part = slice(top, top + height), slice(left, left + width)
    for expert in range(rows.start, rows.stop):
        for at, kind in enumerate(STACKED[matrix]):
            name = _expert_name(source, layer, first + expert, kind)
            yield (expert - rows.start, at), name, part


def _expert_name(source: PretrainedFolder, layer: str, expert: int, kind: str) -> str:
    names = [
        f"{layer}{experts}.{expert}.{matrices[kind]}.weight"
        for experts, matrices in EXPERT_MATRICES.items()
    ]
    return next((name for name in names if name in source), names[0])


def _refuse_shape(source: PretrainedFolder, name: str, wanted: list[int]) -> None:
    raise FileError(
        str(source.folder),
        "has weights of another shape than its configuration says",
        field=name,
        value=list(source.shape(name)),
        allowed=str(wanted),
    )
