"""Sizes that a model can be cut by over a pool: tensor, pipeline, data, context and expert parallelism."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Final, NamedTuple

from rlplan.job import Job
from rlplan.models.model import ModelArchitecture
from rlplan.models.precision import PRECISIONS
from rlplan.parts import num_parameters
from rlplan.plan import TaskDraft
from rlplan.planner.placements.allocations import gpus_of
from rlplan.profiles.catalog import load_device
from rlplan.rules.batches import batch_sequences, shares_batch
from rlplan.rules.engines import engine_runs, largest_size
from rlplan.rules.layouts import (
    FULLY_SHARDED,
    divides_experts,
    divides_heads,
    divides_layers,
    divides_mlp,
    divisors,
)
from rlplan.sheets.hardware import EngineSheet
from rlplan.simulator.placed.columns import Zero

# Context parallelism is for sequences that one GPU's memory does not hold: with fewer tokens than these
# on a rank, its exchange of keys and values costs more than data or tensor parallelism's.
# Megatron-Core's documentation advises it from 8K tokens a sequence on.
LEAST_TOKENS_OF_CONTEXT_RANK = 4096

# Stages of which the fullest has an eighth more layers than the mean keep the others waiting for as long:
# a search lists no pipelines that waste more.
LARGEST_STAGE = 9 / 8


@dataclass(frozen=True, slots=True, order=True)
class Sizes:
    """Hold how a model is cut over a pool; tp * pp * dp * cp is the pool's GPUs.

    Attributes:
        zero: The ZeRO stage of what trains; what only infers has 0 or, fully sharded, 3.
        expert_tp: Ranks that each expert's width is cut over; 0 is tp.
    """

    tp: int
    pp: int
    dp: int
    zero: Zero = 0
    cp: int = 1
    ep: int = 1
    expert_tp: int = 0


class PinnedCut(NamedTuple):
    """Hold what of a cut is not the search's to choose.

    Attributes:
        sizes: Those that the user pinned.
        pools: GPUs of pools that the user pinned.
    """

    sizes: TaskDraft = TaskDraft()
    pools: frozenset[int] = frozenset()


NOTHING_ASKED: Final = PinnedCut()


def powers_of_two(largest: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to `largest`, and `largest` itself."""
    values = [1]
    while values[-1] * 2 <= largest:
        values.append(values[-1] * 2)
    return tuple(sorted({*values, largest}))


def nearly_equal(stages: int, layers: int) -> bool:
    """Tell whether each of so many stages has a layer, and the fullest hardly more than the mean."""
    return stages <= layers and -(-layers // stages) * stages <= LARGEST_STAGE * layers


def _is_power(size: int) -> bool:
    return size & (size - 1) == 0


@dataclass(frozen=True, slots=True)
class PoolCuts:
    """List the cuts of a model over a pool, as an engine runs them."""

    model: ModelArchitecture
    engine: EngineSheet
    job: Job
    gpus: int
    gpus_per_node: int
    asked: PinnedCut = NOTHING_ASKED

    def train(self) -> Iterator[Sizes]:
        """Yield the cuts of a trained model of which each copy gets sequences of an update."""
        for sizes in self.splits():
            if self.lists_copies(sizes.dp, trains=True):
                for zero in self._stages(sizes):
                    yield replace(sizes, zero=zero)

    def _stages(self, sizes: Sizes) -> tuple[Zero, ...]:
        """Return the ZeRO stages to list: on one rank, which has nothing to share out, the one that is pinned."""
        stages, pinned = self.engine.zero_stages, self.asked.sizes.zero
        if sizes.dp * sizes.cp > 1:
            return stages
        return (pinned,) if pinned in stages else stages[:1]

    def infer(self) -> Iterator[Sizes]:
        """Yield the cuts of a model that infers: whole weights on every data-parallel rank, or sharded."""
        for sizes in self.splits():
            if self.lists_copies(sizes.dp, trains=False):
                yield sizes
                asked = self.asked.sizes.zero == FULLY_SHARDED
                shards = sizes.dp * sizes.cp > 1 or asked
                if shards and FULLY_SHARDED in self.engine.zero_stages:
                    yield replace(sizes, zero=FULLY_SHARDED)

    def lists_copies(self, dp: int, *, trains: bool) -> bool:
        """Tell whether a search lists layouts with so many copies of the model.

        Where they do not share out a batch equally it lists powers of two, and on all GPUs of a device, or of
        a pool that the user pinned, whatever covers them: a layout for every number of nodes costs a search of
        1,024 GPUs four times as long, and gains 0.7 %.
        """
        if not shares_batch(dp, self.engine, self.job, trains=trains):
            return False
        equal = batch_sequences(self.job.workload, trains=trains) % dp == 0
        pinned = dp == self.asked.sizes.dp or self.gpus in self.asked.pools
        return equal or _is_power(dp) or pinned or self.gpus in gpus_of(self.job)

    def splits(self) -> Iterator[Sizes]:
        """Yield all cuts that the model's heads, layers and experts allow."""
        widest = self._widest_experts()
        for tp in self._tp_sizes():
            for cp in self._cp_sizes(self.gpus // tp):
                heads = divides_heads(tp * cp, self.model, replicated=True)
                if cp > 1 and self.engine.context_exchange == "ulysses" and not heads:
                    continue
                # A group that spans nodes is for models that no node holds by itself; stages are for others.
                stages = self._pp_sizes(self.gpus // (tp * cp))
                if tp > self.gpus_per_node and self.asked.sizes.pp is None:
                    stages = (1,)
                for pp in stages:
                    dp = self.gpus // (tp * cp * pp)
                    for ep in self._ep_sizes(dp, widest):
                        yield Sizes(tp, pp, dp, cp=cp, ep=ep)
                    for ep, width in self._expert_sizes(tp, cp * dp):
                        yield Sizes(tp, pp, dp, cp=cp, ep=ep, expert_tp=width)

    def why_none(self, *, trains: bool) -> str:
        """Return in words why no cut covers the pool."""
        asked, model, engine = self.asked.sizes, self.model, self.engine
        names = [name for name in ("tp", "pp", "dp", "cp") if getattr(asked, name) is not None]
        pinned = {name: getattr(asked, name) for name in names}
        words = " x ".join(f"{name} {size}" for name, size in pinned.items())
        if self.gpus % prod(pinned.values()):
            return f"{words} = {prod(pinned.values())} does not divide the pool's {self.gpus}"
        kept = [
            cut
            for cut in self.splits()
            if all(getattr(cut, name) == pinned[name] for name in names)
        ]
        if kept:
            least = min(each.dp for each in kept)
            count = batch_sequences(self.job.workload, trains=trains)
            why = (
                f"it has {count} sequences"
                if least > count
                else f"{engine.name} wants equal parts of its {count} sequences"
            )
            return f"dp is at least {least}, and {why}"
        sizes = (
            f"{model.num_heads} heads, {model.num_kv_heads} KV heads and {model.num_layers} layers"
        )
        cut = words or "tp x pp x cp"
        return f"engine {engine.name} cuts {sizes} into no {cut} on {self.gpus} GPUs"

    def _tp_sizes(self) -> Iterator[int]:
        """Yield the tensor-parallel sizes that divide heads and MLP, inside a node or over whole ones."""
        sizes = divisors(min(self.gpus, self.gpus_per_node))
        if self.engine.tp_leaves_nodes:
            whole = (size for size in divisors(self.gpus) if size % self.gpus_per_node == 0)
            sizes += tuple(whole)
        replicated = self.engine.replicates_kv_heads
        for size in dict.fromkeys(sizes):
            heads = divides_heads(size, self.model, replicated=replicated)
            if self.gpus % size == 0 and heads and divides_mlp(size, self.model):
                yield size

    def _pp_sizes(self, gpus: int) -> tuple[int, ...]:
        """Return the pipeline sizes that the engine runs and that divide the layers, or powers of two that nearly do.

        One that the user pinned need do neither.
        """
        layers, uneven = self.model.num_layers, not self.engine.equal_parts
        pinned = self.asked.sizes.pp
        return tuple(
            size
            for size in divisors(gpus)
            if engine_runs(self.engine, "pp", size)
            and (
                divides_layers(size, self.model)
                or (uneven and _is_power(size) and nearly_equal(size, layers))
                or (uneven and size == pinned and size <= layers)
            )
        )

    def _cp_sizes(self, gpus: int) -> tuple[int, ...]:
        """Return the context-parallel sizes: powers of two that leave a rank enough tokens, or the pinned one."""
        engine, pinned = self.engine, self.asked.sizes.cp
        if pinned is not None:
            return (pinned,) if gpus % pinned == 0 and engine_runs(engine, "cp", pinned) else ()
        most = self.job.workload.longest_sequence_tokens // LEAST_TOKENS_OF_CONTEXT_RANK
        limit = max(1, min(largest_size(engine, "cp") or gpus, most))
        return (1, *(size for size in powers_of_two(limit)[1:] if gpus % size == 0))

    def _ep_sizes(self, dp: int, widest: int) -> tuple[int, ...]:
        """Return the expert-parallel sizes that divide the experts and the data-parallel ranks.

        Args:
            widest: GPUs over which they are spread at most.
        """
        if not self.model.num_experts:
            return (1,)
        return tuple(size for size in divisors(dp) if size <= widest and self._spreads(size))

    def _spreads(self, ep: int) -> bool:
        return divides_experts(ep, self.model) and engine_runs(self.engine, "ep", ep)

    def _widest_experts(self) -> int:
        """Return the GPUs over which a search spreads experts at most, where the user pins no size.

        A node's where a node holds the model with all its states by itself, since exchanges of tokens across
        nodes only cost more then; else all that there are.
        """
        job = self.job
        if self.asked.sizes.ep or not self.model.num_experts:
            return job.gpus
        assert job.precision is not None, "job was not resolved: no precision"
        sizes = PRECISIONS[job.precision]
        each = sizes.weight_bytes
        if self.engine.role == "train":
            each += sizes.gradient_bytes + sizes.optimizer_bytes
        needed = num_parameters(self.model) * each
        holding = [
            group.gpus_per_node
            for group in job.cluster
            if needed <= group.gpus_per_node * load_device(group.gpu).memory_bytes
        ]
        return max(holding) if len(holding) == len(job.cluster) else job.gpus

    def _expert_sizes(self, tp: int, copies: int) -> Iterator[tuple[int, int]]:
        """Yield pairs of `ep` and `expert_tp` beside those of experts that are cut as all else.

        A search tries whole experts on the ranks of a tensor-parallel group, where exchanges are near: with
        all other groups that of a mixture of experts takes more than twice as long. A pinned `expert_tp` is
        the only one.
        """
        engine, pinned = self.engine, self.asked.sizes.expert_tp
        alone = pinned is None and (tp == 1 or not engine.whole_experts)
        if not self.model.num_experts or alone:
            return
        if pinned is None:
            sizes, width = ([tp] if engine.role == "train" else []), 1
        elif tp % pinned:
            return
        else:
            sizes, width = list(divisors(tp * copies // pinned)), pinned
        yield from ((ep, width) for ep in sizes if self._spreads(ep))


def infer_cut(sizes: Sizes) -> Sizes:
    """Return the sizes with which a role infers that is cut so: sharded fully or not at all."""
    return replace(sizes, zero=FULLY_SHARDED if sizes.zero == FULLY_SHARDED else 0)
