"""One rank's part of one model: its stages, flat weights and, where it is trained, its optimizer."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from rlplan.executor.model.adapters import AdaptedLinear, adapters_off, add_adapters, is_adapter
from rlplan.executor.model.building import EMBEDDING, HEAD, StageModel, build_stages, scalar_head
from rlplan.executor.model.experts import cut_experts, is_expert
from rlplan.executor.model.fused_projections import keep_heads
from rlplan.executor.parallel.meshes import RankGroup, RankMesh
from rlplan.executor.parallel.positions import cuts_sequences
from rlplan.executor.parallel.tensor_parallel import cut_vocabulary, cut_wide_norms
from rlplan.executor.weights.adapted import AdaptedParameters
from rlplan.executor.weights.flat import (
    Entry,
    FlatParameters,
    distinct_parameters,
    entries_of,
    local_part,
    parameter_like,
    placed,
)
from rlplan.executor.weights.fully_sharded import (
    ExpertParallelOptimizer,
    ExpertParallelParameters,
    FullyShardedOptimizer,
    FullyShardedParameters,
    shard_fully,
)
from rlplan.executor.weights.optimizers import FlatOptimizer, ShardOptimizer
from rlplan.executor.weights.pretrained import (
    PretrainedFolder,
    parts_of,
    read_router_biases,
    read_weights,
)
from rlplan.models import Adapter, Head, ModelArchitecture, Precision
from rlplan.plan import TaskPlan


class HostOffload:
    """Keep tensors on the host between uses; the tensors themselves, and views of them, stay valid.

    Args:
        tensors: Returns what is off-loaded, each with a storage of its own; it may grow between uses.
    """

    def __init__(self, tensors: Callable[[], Sequence[Tensor]]) -> None:
        self._tensors = tensors
        self._held: list[tuple[Tensor, Tensor]] = []

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Hold the tensors on the device inside the context."""
        self.reload()
        try:
            yield
        finally:
            self.offload()

    def offload(self) -> None:
        """Copy the tensors to the host and give their device memory back."""
        for tensor in self._tensors():
            whole = _storage_of(tensor)
            host = torch.empty_like(whole, device="cpu", pin_memory=whole.is_cuda)
            host.copy_(whole)
            whole.untyped_storage().resize_(0)
            self._held.append((whole, host))

    def reload(self) -> None:
        """Take device memory again and copy the tensors back; nothing where nothing is off-loaded."""
        for whole, host in self._held:
            whole.untyped_storage().resize_(host.untyped_storage().nbytes())
            whole.copy_(host)
        self._held.clear()


def _storage_of(tensor: Tensor) -> Tensor:
    """Return all of a tensor's storage as one flat tensor."""
    with torch.no_grad():
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
            tensor.untyped_storage()
        )


# A generate shard that shares memory with the train shard.
#
# With equal tensor-parallel sizes, every parameter of the train shard is a parameter of the generate shard, in the
# same form: generation reads it where training wrote it, and only the parameters of other pipeline stages need memory
# (Sheng et al. 2025, HybridFlow, section 5.3). With a smaller tensor-parallel size in generation, a rank's rows or
# columns of a matrix must lie next to those of other ranks for one matrix product: then the train shard is copied.


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


Weights = (
    FlatParameters
    | FullyShardedParameters
    | ExpertParallelParameters
    | SharedParameters
    | AdaptedParameters
)
Part = tuple[FlatParameters | FullyShardedParameters, ShardOptimizer | None]

# Distinct random streams of one seed, so that critic and reward model differ from the actor. The reference starts as a copy
# of the actor, with the same stream. A teacher starts as the actor of the next seed, which is no model of this run.
ROLE_STREAMS = {
    "actor": 0,
    "reference": 0,
    "critic": 1,
    "reward": 2,
    "cost": 3,
    "cost_critic": 4,
    "teacher": 5,
}
NUM_STREAMS = 5
GRADIENTS_SHARDED, WEIGHTS_SHARDED = 2, 3  # ZeRO stages; weights rest in shards in the last one
CRITICS = ("critic", "cost_critic")


@dataclass(slots=True, eq=False)
class ModelShard:
    """Hold one rank's part of one model.

    Attributes:
        stages: This rank's pipeline stages, first ones first; several where they interleave.
        flat: Its weights: whole ones in one flat tensor, fully sharded ones, or shared ones.
        trainer: Reduces gradients and steps; None where the model is not trained.
        offloading: Keeps optimizer states, or the weights of a model that is not trained, on the host
            between uses; None: they stay on the device.
        tokens_multiple: Packed rows divide by it; hidden states between stages are so much shorter,
            where sequence parallelism cuts them along the tokens.
        precision: What matrices are multiplied in; weights and optimizer states are fp32.
        tied: Whether the head is the embedding, on one stage or as a copy on another.
        adapted: Whether passes compute the adapters, where the stages have any.
    """

    stages: tuple[StageModel, ...]
    flat: Weights
    mesh: RankMesh
    head: Head
    precision: Precision
    trainer: ShardOptimizer | None = None
    offloading: HostOffload | None = None
    tokens_multiple: int = 1
    tied: bool = False
    adapted: bool = True

    @property
    def trained(self) -> Weights:
        """Return the weights that are trained, or would be: all of them, or the adapters."""
        return self.flat.adapters if isinstance(self.flat, AdaptedParameters) else self.flat

    def without_adapters(self) -> "ModelShard":
        """Return the same model without its adapters, which is not trained: it shares the weights."""
        return replace(self, trainer=None, offloading=None, adapted=False)

    @property
    def device(self) -> torch.device:
        """Return where the shard is."""
        return self.mesh.device

    @property
    def num_layers(self) -> int:
        """Return the layers that this rank holds."""
        return sum(len(stage.layers) for stage in self.stages)

    def weights_on_device(self) -> AbstractContextManager[None]:
        """Return the context of a forward pass: off-loaded weights are there inside it."""
        return self._fetched() if self.trainer is None else nullcontext()

    def states_on_device(self) -> AbstractContextManager[None]:
        """Return the context of an update: off-loaded optimizer states are there inside it."""
        return self._fetched() if self.trainer is not None else nullcontext()

    def _fetched(self) -> AbstractContextManager[None]:
        return self.offloading.on_device() if self.offloading is not None else nullcontext()

    def offload(self) -> None:
        """Keep what is not needed between uses on the host from now on."""
        trainer, flat = self.trainer, self.flat
        if trainer is not None:
            self.offloading = HostOffload(trainer.states)
        else:
            self.offloading = HostOffload(flat.stored)
        self.offloading.offload()

    @property
    def fully_sharded(self) -> FullyShardedParameters | None:
        """Return what holds weights that FSDP gathers for each pass; None: there are none."""
        parts = parts_of(self.flat)
        return next((part for part in parts if isinstance(part, FullyShardedParameters)), None)

    def without_gradients(self) -> AbstractContextManager[None]:
        """Return the context of a pass without a backward pass."""
        # Not in inference mode: FSDP needs the version counters of gathered tensors, which inference mode does not keep, and
        # DTensor gets whole linear layers there, which it decomposes anew for each shape to find their placements (20 ms on
        # a CPU, in every step of decoding).
        counted = self.fully_sharded is not None or self.mesh.tp_size > 1
        context: AbstractContextManager[None] = (
            torch.no_grad() if counted else torch.inference_mode()
        )
        return context if self.adapted else self._as_frozen(context)

    @contextmanager
    def _as_frozen(self, context: AbstractContextManager[None]) -> Iterator[None]:
        with context, adapters_off(self.stages):
            yield

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context of a pass: bf16 products with fp32 weights, or plain fp32."""
        if self.precision == "fp32":
            return nullcontext()
        context: AbstractContextManager[None] = torch.autocast(self.device.type, torch.bfloat16)
        return context


def build_shard(  # noqa: PLR0913 -- all that a shard depends on
    architecture: ModelArchitecture,
    head: Head,
    mesh: RankMesh,
    *,
    role: str,
    seed: int,
    precision: Precision,
    adapter: Adapter | None = None,
    folder: Path | None = None,
    filled: bool = True,
    learning_rate: float | None = None,
    layout: TaskPlan | None = None,
) -> ModelShard:
    """Return a rank's shard of a pre-trained model, or of the one that `seed` gives, the same weights on any layout.

    What a seed gives is initialised on the host as a whole and then cut; of a folder every rank reads its own.

    Args:
        role: Chooses the stream of the seed, and how a scalar head starts.
        adapter: What is trained in place of the model's own weights; None: these are.
        folder: Holds the weights; None: the seed gives them.
        filled: Whether weights of a folder are read; else they are written later, by a transition.

    Raises:
        FileError: The folder does not hold this model.
        learning_rate: Of AdamW; None for a model that is not trained.
        layout: Says how stages interleave, what is recomputed and sharded; None: nothing of it.
    """
    stream = seed * NUM_STREAMS + ROLE_STREAMS[role]
    trained = layout if learning_rate is not None else None
    chunks = trained.chunks if trained is not None and mesh.pp_size > 1 else 1
    stages = build_stages(
        architecture,
        head,
        stream,
        folder=folder,
        random_head=role not in CRITICS,
        stages=chunks * mesh.pp_size,
        held=[chunk * mesh.pp_size + mesh.pp for chunk in range(chunks)],
        recompute=trained.recompute if trained is not None else "none",
        kernels_of=mesh.device if precision != "fp32" else None,
    )
    tied = head == "lm" and architecture.tied_embeddings
    cuts_tokens = layout is not None and cuts_sequences(layout) and mesh.tp_size > 1
    for stage in stages:
        if folder is None:
            stage.to(mesh.device)
        cut_experts(stage, mesh)
        if mesh.tp_size > 1:
            cut_wide_norms(stage, mesh)
            keep_heads(stage, mesh.tp_size)
            cut_vocabulary(stage, mesh, cuts_tokens=cuts_tokens)
            # Loads torch's distributed tensors: more than a second, which others start without.
            from rlplan.executor.parallel.layer_plan import apply_tensor_parallelism  # noqa: PLC0415

            apply_tensor_parallelism(stage, mesh, sequence_parallel=cuts_tokens)
    if adapter is not None:
        for stage in stages:
            add_adapters(stage, adapter, stream, mesh, cuts_tokens=cuts_tokens)
        shard = _with_adapters(stages, mesh, head, precision, learning_rate, layout)
    else:
        shard = _with_weights(stages, mesh, head, precision, learning_rate, layout, tied=tied)
    shard.tokens_multiple, shard.tied = mesh.tp_size if cuts_tokens else 1, tied
    if folder is not None:
        read_router_biases(stages, mesh.device, folder)
    if folder is not None and filled:
        assert not isinstance(shard.flat, SharedParameters)
        scalar = scalar_head(shard.device, architecture.hidden_size, stream, zero=role in CRITICS)
        read_weights(shard.flat, mesh, PretrainedFolder(folder), tied=tied, fresh_head=scalar)
    return shard


def _with_adapters(
    stages: tuple[StageModel, ...],
    mesh: RankMesh,
    head: Head,
    precision: Precision,
    learning_rate: float | None,
    layout: TaskPlan | None,
) -> ModelShard:
    """Return the shard of stages with adapters, which are trained in place of all other weights."""
    assert learning_rate is not None, "what is not trained has no adapters"
    zero = layout.zero if layout is not None and mesh.copies.size > 1 else 0

    def learns(name: str) -> bool:  # a scalar head is fresh: nobody has trained it
        return is_adapter(name) or (head == "scalar" and name == HEAD)

    def stays(name: str) -> bool:
        return not learns(name)

    for name, parameter, _ in distinct_parameters(stages):
        parameter.requires_grad_(learns(name))
    frozen: FlatParameters | FullyShardedParameters
    trained: Part
    if zero == WEIGHTS_SHARDED:
        frozen, sharded = shard_fully(stages, mesh, stays_whole=False, groups=(stays, learns))
        trained = sharded, FullyShardedOptimizer(sharded, mesh, learning_rate)
    else:  # nothing steps frozen weights: with gradients sharded they lie as they do without
        frozen, _ = _flat_part(stages, mesh, mesh.copies, None, keeps=stays)
        if zero == GRADIENTS_SHARDED:
            (sharded,) = shard_fully(stages, mesh, stays_whole=True, groups=(learns,))
            trained = sharded, FullyShardedOptimizer(sharded, mesh, learning_rate)
        else:
            trained = _flat_part(stages, mesh, mesh.copies, learning_rate, zero=zero, keeps=learns)
    adapters, optimizer = trained
    scale = next(
        module.scale for module in stages[0].modules() if isinstance(module, AdaptedLinear)
    )
    weights = AdaptedParameters(frozen, adapters, scale)
    return ModelShard(stages, weights, mesh, head, precision, optimizer)


def _with_weights(
    stages: tuple[StageModel, ...],
    mesh: RankMesh,
    head: Head,
    precision: Precision,
    learning_rate: float | None,
    layout: TaskPlan | None,
    *,
    tied: bool,
) -> ModelShard:
    """Return the shard of stages whose weights are laid out, and its trainer, as the layout says."""
    rate, zero = learning_rate, layout.zero if layout is not None else 0
    name = _tied_name(stages, mesh) if tied and mesh.pp_size > 1 else ""

    parts: list[Part]
    if zero > 1 and mesh.copies.size > 1:
        stays_whole = zero < WEIGHTS_SHARDED and rate is not None
        (sharded,) = shard_fully(stages, mesh, stays_whole=stays_whole, tied=name)
        trainer = FullyShardedOptimizer(sharded, mesh, rate) if rate is not None else None
        parts = [(sharded, trainer)]
    elif mesh.experts.size == 1:
        parts = [_flat_part(stages, mesh, mesh.copies, rate, zero=zero, tied=name)]
    else:

        def is_other(name: str) -> bool:
            return not is_expert(name)

        parts = [
            _flat_part(stages, mesh, mesh.copies, rate, zero=zero, keeps=is_other, tied=name),
            _flat_part(stages, mesh, mesh.expert_copies, rate, zero=zero, keeps=is_expert),
        ]
    if mesh.experts.size == 1:
        ((weights, optimizer),) = parts
        return ModelShard(stages, weights, mesh, head, precision, optimizer)
    joined = ExpertParallelParameters([weights for weights, _ in parts], mesh)
    optimizers = [optimizer for _, optimizer in parts if optimizer is not None]
    both = ExpertParallelOptimizer(joined, optimizers, mesh) if optimizers else None
    return ModelShard(stages, joined, mesh, head, precision, both)


def _flat_part(
    stages: Sequence[StageModel],
    mesh: RankMesh,
    copies: RankGroup,
    learning_rate: float | None,
    *,
    zero: int = 0,
    keeps: Callable[[str], bool] | None = None,
    tied: str = "",
) -> Part:
    """Return flat weights that the ranks of `copies` replicate, and their optimizer if they are trained."""
    trainable = learning_rate is not None
    slices = copies.size if trainable and zero else 1
    flat = FlatParameters(
        stages, mesh.device, trainable=trainable, multiple=slices, keeps=keeps, tied=tied
    )
    for stage in stages:
        stage.make_buffers(mesh.device)
    if learning_rate is None:
        return flat, None
    return flat, FlatOptimizer(flat, mesh, copies, learning_rate, sharded=zero > 0)


def _tied_name(stages: Sequence[StageModel], mesh: RankMesh) -> str:
    """Return the name of the parameter here of which the other end of the pipeline has a copy."""
    mesh.tie_ends()
    if stages[0].first:
        return EMBEDDING
    return HEAD if stages[-1].last else ""


def freeze_collector() -> None:
    """Take all objects there are out of Python's garbage collection.

    Libraries and models stay for the life of a worker; walking over them would stop tasks for
    tenths of a second at moments that nobody chose.
    """
    gc.collect()
    gc.freeze()


def thaw_collector() -> None:
    """Let Python's garbage collection find what was frozen and is of no use any more, and free it at once."""
    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # nothing where no CUDA was used
