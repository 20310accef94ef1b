"""Shards of a trained model in a folder of torch's distributed checkpoint, as safetensors.

Nothing is unpickled: a folder from somebody else gives numbers and names only.

Each parameter and each of its optimizer states is stored as one tensor of the whole model; every rank writes
and reads its part of it. So any layout can read what another one wrote: tensor-parallel parts are cut anew, and
stages read their own layers. Torch's planners take the places of parts from DTensors; these take them from
the shard's entries.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from rlplan.errors import FileError
from rlplan.executor.model.building import EMBEDDING, HEAD
from rlplan.executor.weights.adapted import AdaptedParameters
from rlplan.executor.weights.flat import Entry
from rlplan.executor.weights.optimizers import MOMENTS
from rlplan.executor.weights.shard import ModelShard, SharedParameters

WEIGHTS = "weights"
STEPS = "steps"
# By what a tensor is called, which part of the whole model's tensor it is; all others are whole.
Places = Mapping[str, Entry]


class PartSavePlanner(DefaultSavePlanner):
    """Write tensors as the parts of whole ones that they are."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places

    def create_local_plan(self) -> SavePlan:
        """Return what this rank holds, with where it lies."""
        plan = super().create_local_plan()
        self.plan = replace(plan, items=[self._placed(item) for item in plan.items])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        """Return a tensor by what it is called: this rank has one part of it."""
        found: Tensor = self.state_dict[index.fqn]
        return found

    def _placed(self, item: WriteItem) -> WriteItem:
        place, data = self._places.get(item.index.fqn), item.tensor_data
        if place is None or data is None:
            return item
        size = torch.Size(place.whole_shape)
        return replace(
            item,
            index=MetadataIndex(item.index.fqn, place.offsets),
            type=WriteItemType.SHARD,
            tensor_data=replace(data, chunk=_chunk_of(place), size=size),
        )


class PartLoadPlanner(DefaultLoadPlanner):
    """Read tensors as the parts of whole ones that they are, whatever parts were written."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places

    def create_local_plan(self) -> LoadPlan:
        """Return what this rank reads, of which parts.

        Raises:
            ValueError: A tensor is not there, or is of another size.
        """
        assert self.metadata is not None, "torch reads it before it plans"
        requests = []
        for name, tensor in self.state_dict.items():
            about = self.metadata.state_dict_metadata.get(name)
            if not isinstance(about, TensorStorageMetadata):
                raise ValueError(f"there is no {name}")
            place = self._places.get(name) or _whole_entry(tensor)
            if tuple(about.size) != place.whole_shape:
                raise ValueError(
                    f"{name} is of size {list(about.size)}, and not {list(place.whole_shape)}"
                )
            requests += create_read_items_for_chunk_list(name, about, [_chunk_of(place)])
        return LoadPlan(requests)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """Return a tensor by what it is called: this rank has one part of it."""
        found: Tensor = self.state_dict[index.fqn]
        return found


def _whole_entry(tensor: Tensor) -> Entry:
    return Entry("", 0, tensor.numel(), tuple(tensor.shape), None)


def _chunk_of(place: Entry) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(place.offsets), torch.Size(place.shape))


def save_shard(shard: ModelShard, folder: Path) -> None:
    """Write a rank's part of a model, with its optimizer's states if it is trained; all ranks write together.

    Args:
        folder: Of this model alone.
    """
    flats, trainer = {WEIGHTS: shard.trained.whole_values()}, shard.trainer
    if trainer is None:
        _save(*_states(shard, flats), folder)
        return
    states, places = _states(shard, flats | trainer.whole_moments())
    _save(states | {STEPS: torch.tensor([trainer.steps])}, places, folder)


def load_shard(shard: ModelShard, folder: Path) -> None:
    """Take over a rank's part of what any layout wrote; all ranks of the pool read together.

    Raises:
        FileError: The folder does not hold this model.
    """
    trained, trainer = shard.trained, shard.trainer
    assert not isinstance(trained, SharedParameters | AdaptedParameters), (
        "these are views of others"
    )
    size = trained.entries[-1].stop
    kinds = (WEIGHTS,) if trainer is None else stored_kinds(folder)
    flats = {kind: torch.empty(size, device=shard.device) for kind in kinds}
    (states, places), steps = _states(shard, flats), torch.tensor([0])
    _load(states if trainer is None else states | {STEPS: steps}, places, folder)
    trained.write_values(flats.pop(WEIGHTS))
    if trainer is not None:
        trainer.write_moments(flats, int(steps))


def stored_kinds(folder: Path) -> tuple[str, ...]:
    """Return what is stored of each parameter: its weights, and states once there was a step.

    Raises:
        FileError: The folder holds no checkpoint of a model.
    """
    names = _names(folder)
    return (WEIGHTS, *(kind for kind in MOMENTS if any(n.startswith(f"{kind}/") for n in names)))


def whole_weights(folder: Path) -> dict[str, Tensor]:
    """Return all weights of a stored model on the host, by name; stacked matrices as they are stacked.

    Raises:
        FileError: The folder holds no checkpoint of a model.
    """
    prefix = f"{WEIGHTS}/"
    found = {
        name: torch.empty(size) for name, size in _names(folder).items() if name.startswith(prefix)
    }
    _load(dict(found), {}, folder, alone=True)
    return {name.removeprefix(prefix): found[name] for name in sorted(found)}


def _names(folder: Path) -> dict[str, torch.Size]:
    try:
        metadata = HuggingFaceStorageReader(str(folder)).read_metadata()
    except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
        raise FileError(str(folder), f"holds no checkpoint of a model: {error}") from None
    held = metadata.state_dict_metadata.items()
    sizes = {name: about.size for name, about in held if hasattr(about, "size")}
    if not sizes:
        raise FileError(str(folder), "holds no checkpoint of a model")
    return sizes


def _save(states: dict[str, Tensor], places: Places, folder: Path) -> None:
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    planner = PartSavePlanner(places)
    try:
        save(states, storage_writer=writer, planner=planner, no_dist=not dist.is_initialized())
    except (OSError, CheckpointException) as error:
        raise FileError(str(folder), f"cannot be written: {_reasons(error)}") from None


def _load(states: dict[str, Tensor], places: Places, folder: Path, *, alone: bool = False) -> None:
    try:
        with warnings.catch_warnings():
            # One process reads alone on purpose; torch warns that it assumes so.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(
                states,
                storage_reader=HuggingFaceStorageReader(str(folder)),
                planner=PartLoadPlanner(places),
                no_dist=alone or not dist.is_initialized(),
            )
    except (CheckpointException, SafetensorError) as error:
        raise FileError(str(folder), f"does not hold this model: {_reasons(error)}") from None


def _reasons(error: BaseException) -> str:
    """Return what failed on the ranks, each reason once."""
    failed: list[BaseException] = [error]
    if isinstance(error, CheckpointException):
        failed = [failure[0] for failure in error.failures.values()]
    words = [getattr(each, "strerror", None) or str(each) for each in failed]
    return "; ".join(dict.fromkeys(words))


def _states(
    shard: ModelShard, flats: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Entry]]:
    """Return views of flat tensors by what they are called, and of which part of the whole model's tensor.

    A tied head is stored once, as the embedding.
    """
    states, places = dict[str, Tensor](), dict[str, Entry]()
    for kind, flat in flats.items():
        for entry in shard.trained.entries:
            name = f"{kind}/{EMBEDDING if shard.tied and entry.name == HEAD else entry.name}"
            states[name] = flat[entry.start : entry.stop].view(entry.shape)
            if entry.dimension is not None:
                places[name] = entry
    return states, places
