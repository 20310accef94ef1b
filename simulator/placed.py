"""Plans resolved: where pools stand, and tasks in their layouts with all that costs and bytes ask for.

It looks things up and prices nothing.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import DISTRIBUTIONS, Task, in_calls, tasks_of
from rlplan.errors import MissingFactError
from rlplan.framework import FrameworkSheet
from rlplan.job import Job, NodeGroup
from rlplan.layout import ModelCut
from rlplan.models import (
    ALONE,
    FP32_BYTES,
    KEPT_BYTES,
    PRECISIONS,
    WIDE,
    Adapter,
    ModelArchitecture,
    Precision,
    PrecisionPlan,
    Shard,
)
from rlplan.parts import CachedSequence
from rlplan.parts.linear_attention import sharing
from rlplan.plan import HOST_DEVICE, Plan, Recompute, ResourcePool, TaskPlan
from rlplan.profiles.facts import DeviceFacts, Facts
from rlplan.rules.batches import rank_sequences
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.sheets import EngineSheet, ExpertLoop, LogitTensors
from rlplan.simulator.answers import answers_of, job_of_any_lengths
from rlplan.simulator.columns import Floats, Ints, LayoutColumns, columns_of
from rlplan.simulator.model import (
    OFFLOADED,
    adapter_shard,
    as_told,
    cached_sequence,
    expert_parameters,
    inferred_model,
    largest_shard,
    largest_shard_bytes,
    shard_of,
    without_tower,
)
from rlplan.simulator.workload import (
    LengthStatistics,
    fullest_tokens,
    learnt_work,
    packed_sequences,
    samples_in_budget,
    statistics_of,
    writing_of,
)
from rlplan.trainers import TrainerOptions
from rlplan.transfers import TRANSFERS, TransitionName
from rlplan.transports import DEFAULT_TRANSPORT, TransportName
from rlplan.weight_syncs import TransitionSheet
from rlplan.workload import Workload


@dataclass(frozen=True, slots=True)
class Site:
    """Describe the GPUs of one pool by what decides the speed of their collectives.

    Attributes:
        device: Device sheet's name; `host` for CPU workers.
        gpus: GPUs of the pool.
        gpus_per_node: Largest group of consecutive ranks that never straddles two nodes, or two domains
            where the link inside a node reaches over several nodes.
        inter_node_bytes_per_second: Each GPU's share of its node's network cards, one direction.
        network: Kind of that network where it has a sheet (see `NodeGroup`).
    """

    device: str
    gpus: int
    gpus_per_node: int
    inter_node_bytes_per_second: float
    network: str | None = None

    def ranks_per_node(self, ranks: int, stride: int = 1) -> int:
        """Return how many of a group's ranks, `stride` apart, share one node at the worst place."""
        return max(1, min(ranks, self.gpus_per_node // stride))

    @property
    def spans_nodes(self) -> bool:
        """Tell whether the pool has GPUs on several nodes."""
        return self.gpus > self.gpus_per_node


def first_gpus(plan: Plan) -> Iterator[tuple[ResourcePool, int]]:
    """Yield each pool with the place of its first GPU among all of its device.

    Pools take the GPUs of the node groups that have their device, one pool after another in the
    plan's order, node by node.
    """
    taken: Counter[str] = Counter()
    for pool in plan.pools:
        yield pool, taken[pool.device]
        taken[pool.device] += pool.gpus


def sites_of(plan: Plan, facts: Facts) -> dict[str, Site]:
    """Return each pool's site by the pool's name."""
    sites: dict[str, Site] = {}
    for pool, first in first_gpus(plan):
        if pool.is_host:
            sites[pool.name] = host_site(plan.job, pool.gpus)
            continue
        facts.device(pool.device)  # an unknown device is named here, not deep inside a cost
        site = site_at(plan.job, pool.device, first, pool.gpus)
        assert site is not None, "the rules of a plan let pools want what the cluster has"
        sites[pool.name] = site
    return sites


def host_site(job: Job, workers: int) -> Site:
    """Return the site of CPU worker processes, which reach GPUs over the first nodes' network."""
    first = job.cluster[0]
    network = first.network_bytes_per_second * first.gpus_per_node
    return Site(HOST_DEVICE, workers, workers, network)


def site_at(job: Job, device: str, first: int, gpus: int) -> Site | None:
    """Return the site of `gpus` GPUs of a device from the `first`-th on; None if there are too few."""
    pieces = pieces_at(job, device, first, gpus)
    if sum(size for _, size in pieces) < gpus:
        return None
    if len(pieces) == 1:
        unbroken = pieces[0][0].linked_gpus
    else:
        unbroken = math.gcd(*(size for _, size in pieces))
    network = min(group.network_bytes_per_second for group, _ in pieces)
    return Site(device, gpus, unbroken, network, pieces[0][0].network)


def pieces_at(job: Job, device: str, first: int, gpus: int) -> list[tuple[NodeGroup, int]]:
    """Return the pool's share of every node, or domain of nodes on one link, that it touches."""
    pieces: list[tuple[NodeGroup, int]] = []
    position, end = 0, first + gpus
    for group in (group for group in job.cluster if group.gpu == device):
        low, high = max(first, position), min(end, position + group.gpus)
        at = low
        while at < high:
            link_end = position + ((at - position) // group.linked_gpus + 1) * group.linked_gpus
            size = min(link_end, high) - at
            pieces.append((group, size))
            at += size
        position += group.gpus
    return pieces


# The usual way of losses that compare whole distributions: each model's with the mean of both (TRL, experimental/gkd).
WHOLE_DISTRIBUTIONS: Final = "jensen-shannon"


def whole(numbers: Floats) -> Ints:
    """Return whole numbers, which floats of 53 bits carry exactly."""
    return numbers.astype(np.int64)


@dataclass(frozen=True, eq=False)
class PlacedTask:
    """Hold a task of a resolved job in one layout on one site."""

    task: Task
    layout: TaskPlan
    site: Site
    job: Job
    facts: Facts

    @cached_property
    def model(self) -> ModelArchitecture:
        """Return the model of the task's role, as the task's ranks share it out."""
        model = self.job.architecture(self.task.role)
        shares = model.linear is not None and self.task.kind != "generate"
        return sharing(model, self.options.linear_attention) if shares else model

    @cached_property
    def expert_loop(self) -> ExpertLoop | None:
        """Return what the task's experts take that are computed one by one; None where they are not.

        Raises:
            MissingFactError: Its engine's sheet does not say it.
        """
        one_by_one = self.task.kind != "generate" and self.options.experts == "one by one"
        if not (one_by_one and self.model.num_experts):
            return None
        if self.engine.expert_loop is None:
            said = f"as trainers.{self.task.role}.experts says"
            raise MissingFactError(f"{self.engine.name} computes no experts one by one, {said}")
        return self.engine.expert_loop

    @cached_property
    def computed_model(self) -> ModelArchitecture:
        """Return the model as its passes compute it."""
        return self.model if self.trains else inferred_model(self.model, self.expert_loop)

    @property
    def adapter(self) -> Adapter | None:
        """Return the adapters that the task computes beside frozen weights, if there are any."""
        if self.job.adapters is None or self.task.without_adapter:
            return None
        adapter = self.job.adapter(self.task.role)
        if adapter is None:
            return None
        return None if self.task.kind == "generate" and adapter.sync == "merged" else adapter

    @cached_property
    def engine(self) -> EngineSheet:
        """Return the sheet of the layout's engine, as the role's trainer uses it."""
        return as_told(self.facts.engine(self.layout.engine), self.task, self.job)

    @cached_property
    def framework(self) -> FrameworkSheet:
        """Return the sheet of the framework whose step the task is a part of."""
        return self.facts.framework(self.job.framework)

    @cached_property
    def device(self) -> DeviceFacts:
        """Return the facts of the site's device."""
        return self.facts.device(self.site.device)

    @property
    def precision(self) -> Precision:
        """Return the number format in which the task's products are computed."""
        job = self.job
        assert job.precision is not None, "job was not resolved: no precision"
        if self.task.kind != "generate":
            return job.precision
        return job.rollout_precision or WIDE[job.precision]

    @property
    def formats(self) -> PrecisionPlan:
        """Return what weights, gradients and optimizer states take where none is quantised."""
        return PRECISIONS[WIDE[self.precision]]

    @cached_property
    def options(self) -> TrainerOptions:
        """Return how the trainer of the task's role keeps its states and makes its logits."""
        return self.job.trainer(self.task.role)

    @property
    def passes(self) -> Hashable:
        """Return what decides what the passes of a task compute and exchange, its layout aside: tasks of several roles may have it alike.

        Of what a teacher tells tasks compute unlike things.
        """
        if self.job.top_tokens or self.job.compares_all:
            return self.task
        task = self.task
        return task.kind, task.head, task.batches, self.model, self.options, self.adapter

    @property
    def gradient_bytes(self) -> int:
        """Return the bytes of a gradient as micro-batches are added up and reduced: as the trainer says, or as goes with products."""
        said = self.options.gradients
        return self.formats.gradient_bytes if said is None else ALONE[said].gradient_bytes

    @property
    def stored(self) -> PrecisionPlan:
        """Return the formats in which a training engine keeps and steps what it trains."""
        if self.options.weights is not None:
            kept = ALONE[self.options.weights]
        else:
            kept = PRECISIONS["fp32"] if self.engine.memory.fp32_weights else self.formats
        if self.options.gradients is not None:
            kept = replace(kept, gradient_bytes=self.gradient_bytes)
        if (states := KEPT_BYTES.get(self.options.optimizer)) is not None:
            return replace(kept, optimizer_bytes=states + kept.master_bytes)
        return kept

    @property
    def casts_weights(self) -> bool:
        """Tell whether weights are kept in another format than that in which products read them."""
        return self.stored.weight_bytes != self.formats.weight_bytes

    @property
    def logit_way(self) -> str | None:
        """Return how the trainer makes log-probabilities; None is as its engine's copies of logits say."""
        if self.options.logits is not None:
            return self.options.logits
        if DISTRIBUTIONS in (*self.task.inputs, *self.task.outputs):
            return WHOLE_DISTRIBUTIONS
        choice, memory = self.framework.logits, self.engine.memory
        cut = choice.cut if self.layout.tp > 1 or self.layout.cp > 1 else None
        compared = choice.reference if self.task.role == "reference" else None
        learns = self.trains and self.task.role == "actor"
        bonus = choice.entropy if learns and self.job.hyperparameters.entropy_coefficient else None
        way = bonus or cut or compared or choice.usual
        return way if way in memory.logit_ways else memory.usual_way

    @property
    def logit_tensors(self) -> LogitTensors | None:
        """Return what the trainer's way of making log-probabilities holds of logits; None counts copies.

        Raises:
            MissingFactError: Its engine's sheet has no such way.
        """
        way, ways = self.logit_way, self.engine.memory.logit_ways
        if way is None:
            return None
        if way not in ways:
            known = ", ".join(ways) or "none"
            raise MissingFactError(
                f"engine {self.engine.name} has no way {way!r} to make logits; its sheet has: {known}"
            )
        chunk = self.options.logit_chunk_tokens
        held = ways[way] if chunk is None else replace(ways[way], chunk_tokens=chunk)
        if not (self.framework.logits.scaled and self.job.hyperparameters.temperature != 1):
            return held
        infer_bytes, train_bytes = held.infer_bytes + FP32_BYTES, held.train_bytes + FP32_BYTES
        return replace(held, infer_bytes=infer_bytes, train_bytes=train_bytes)

    @property
    def off_loadable(self) -> tuple[str, ...]:
        """Return which states of a model that is trained leave the GPUs where a layout off-loads them."""
        return self.framework.leaving(self.job, self.task.role)

    @property
    def workload(self) -> Workload:
        """Return the work of an iteration, as the task has it: what generates makes no texts that are at hand."""
        work = self.job.workload
        return work if work.texts is None or self.task.generates else learnt_work(work)

    @cached_property
    def statistics(self) -> LengthStatistics:
        """Return what is known of the lengths of prompts and responses."""
        return statistics_of(self.workload)

    @property
    def trains(self) -> bool:
        """Tell whether the task updates its model."""
        return self.task.kind == "train"

    @cached_property
    def trains_role(self) -> bool:
        """Tell whether the model of the task's role is trained, by this task or another one."""
        tasks = tasks_of(load_algorithm(self.job.algorithm), self.job)
        return self.trains or any(task.trains and task.role == self.task.role for task in tasks)

    @property
    def recompute(self) -> Recompute:
        """Return what its backward pass computes again, and where the inputs are kept: on a device whose memory is the host's, there."""
        mode = self.layout.recompute
        return "full" if mode == OFFLOADED and self.device.sheet.shares_host_memory else mode

    @property
    def leaves(self) -> tuple[str, ...]:
        """Return which states of a model that is trained leave the GPUs where its layout off-loads them."""
        return self.off_loadable if self.layout.offload else ()

    @property
    def writing(self) -> int:
        """Return how many ranks or replicas share its sequences, without those that read prompts for others."""
        return writing_of(self.task, self.job, self.layout.dp)

    @cached_property
    def local(self) -> int:
        """Return the sequences of the fullest data-parallel rank; of one update where it trains."""
        return rank_sequences(self.writing, self.workload, trains=self.trains)

    @property
    def most_local_tokens(self) -> int:
        """Return the most tokens that a rank's sequences of one pass or update have in a run: a pack has no more."""
        return fullest_tokens(self.statistics, self.local)

    @property
    def state_ranks(self) -> int:
        """Return the ranks over which a model's states may be sharded."""
        return self.layout.shard_ranks or self.layout.dp * self.layout.cp

    @cached_property
    def expert_parameters(self) -> int:
        """Return the parameters of experts on the device that holds most of them."""
        return expert_parameters(self.model, self.cut)

    @property
    def expert_batches(self) -> int:
        """Return the micro-batches whose tokens meet in a group that shares out experts."""
        layout = self.layout
        if self.model.num_experts == 0:
            return 1
        # Ranks of a context have one batch, and an experts' group where no stage lies between them.
        same = layout.tp * (layout.cp if self.engine.stages_outermost or layout.pp == 1 else 1)
        return min(layout.dp, max(1, layout.expert_ranks // same))

    def expert_copies(self, ranks: int) -> int:
        """Return the ranks that have copies of a device's experts, of those that have copies of all else."""
        return max(1, ranks * self.layout.tp // self.layout.expert_ranks)

    def kept_states(self, ranks: int, value_bytes: int = 1) -> int:
        """Return the bytes of the states that each of so many ranks keeps, of one value a parameter."""
        copies, whole = self.expert_copies(ranks), self.trained_parameters * value_bytes
        if copies == ranks or self.adapter is not None:
            return whole // ranks
        experts = self.expert_parameters * value_bytes
        return (whole - experts) // ranks + experts // copies

    @cached_property
    def cut(self) -> ModelCut:
        """Return how the layout cuts the model's weights."""
        return self.layout.cut

    @cached_property
    def shard(self) -> Shard:
        """Return how the layout cuts the model."""
        return shard_of(self.layout, self.precision, self.engine)

    @cached_property
    def parameters(self) -> int:
        """Return the parameters of the device that holds most of them."""
        return largest_shard(self.model, self.task.head, self.cut)

    @cached_property
    def weight_bytes(self) -> int:
        """Return the bytes of whole weights, as they generate (quantised where the job says so), where most are, with adapters."""
        own = largest_shard_bytes(self.model, self.precision, self.cut)
        return own + self.adapter_parameters * self.formats.weight_bytes

    @property
    def trained_parameters(self) -> int:
        """Return those of them that have gradients and optimizer states."""
        if self.adapter is not None:
            return self.adapter_parameters
        learns = without_tower(self.model) if self.options.freezes_tower else self.model
        return largest_shard(learns, self.task.head, self.cut)

    @property
    def adapter_parameters(self) -> int:
        """Return the parameters of adapters on the device that holds most of them; 0 without any."""
        adapter = self.adapter
        return 0 if adapter is None else adapter_shard(self.model, adapter, self.cut)

    @cached_property
    def running(self) -> int:
        """Return the sequences that a generating replica decodes at a time, at most."""
        return min(self.layout.max_running, self.local)

    @property
    def cache_value_bytes(self) -> int:
        """Return the bytes of one value in the KV cache."""
        return PRECISIONS[self.job.kv_cache or WIDE[self.precision]].weight_bytes

    @cached_property
    def cached_sequence(self) -> CachedSequence:
        """Return what the cache holds of a sequence on the device that holds most of the longest one."""
        longest = self.statistics.longest_tokens
        return cached_sequence(
            self.model, self.layout.tp, self.layout.pp, self.cache_value_bytes, longest
        )

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block of the KV cache on that device."""
        return max(1, self.cached_sequence.token_bytes) * self.engine.kv_block_tokens

    @property
    def state_blocks(self) -> int:
        """Return the blocks that a sequence takes beside those of its tokens: states, and whole windows."""
        return -(-self.cached_sequence.fixed_bytes // self.block_bytes)

    def laid_out(self, layout: TaskPlan) -> "PlacedTask":
        """Return the task in another layout of the same engine."""
        placed = PlacedTask(self.task, layout, self.site, self.job, self.facts)
        # What no layout changes need not be looked up again.
        for name in ("model", "engine", "framework", "device", "statistics"):
            if name in self.__dict__:
                placed.__dict__[name] = self.__dict__[name]
        return placed

    @property
    def batched(self) -> "PlacedTask":
        """Return the task with all its global batches in one, as an update has them."""
        if self.task.batches == 1:
            return self
        prompts = round(self.workload.prompts * self.task.batches)
        job = replace(self.job, workload=replace(self.workload, prompts=prompts))
        return replace(self, task=replace(self.task, batches=1.0), job=job)


# Plans that are compared share most tasks, with what was found out of them (`rlplan.simulator.stages`).
placed_task = lru_cache(maxsize=512)(PlacedTask)


# What is asked of a placed task: numbers that depend on some columns of its layout.
Numbers = Callable[[PlacedTask], Sequence[float] | Floats]


class PlacedTasks:
    """Hold one task in many layouts of one engine on one site.

    Args:
        placed: The task in any layout of that engine.
        is_row: Whether that is the only row of the columns.
    """

    def __init__(self, columns: LayoutColumns, placed: PlacedTask, *, is_row: bool = False) -> None:
        self.columns = columns
        # What is asked of the only row is asked of it: a layout that is none of the rows answers for nothing.
        self.any = placed if is_row else placed.laid_out(columns.layout(0))
        # What is asked of the same row is looked up once.
        self._placed: dict[int, PlacedTask] = {}

    def __len__(self) -> int:
        return len(self.columns)

    @classmethod
    def of(cls, placed: PlacedTask) -> "PlacedTasks":
        """Return a table of one row."""
        return cls(columns_of(placed.layout.engine, [placed.layout]), placed, is_row=True)

    def with_columns(self, columns: LayoutColumns) -> "PlacedTasks":
        """Return the task in other layouts of the same engine."""
        return PlacedTasks(columns, self.any)

    def row(self, row: int) -> PlacedTask:
        """Return the task in one of the layouts."""
        return self._rows(np.array([row]))[0]

    def _rows(self, rows: Ints) -> list[PlacedTask]:
        if len(self) == 1:
            return [self.any]
        new = [row for row in rows.tolist() if row not in self._placed]
        layouts = self.columns.layouts(np.array(new, dtype=np.int64)) if new else ()
        self._placed |= zip(new, map(self.any.laid_out, layouts), strict=True)
        return [self._placed[row] for row in rows.tolist()]

    @cached_property
    def local(self) -> Ints:
        """Return the sequences of the fullest data-parallel rank. Shape (layouts,)."""
        return np.asarray(self.by(("dp",), lambda placed: (placed.local,))[0], dtype=np.int64)

    def by(
        self,
        names: Sequence[str],
        numbers: Numbers,
        *,
        on_any_site: bool = False,
        of_any_lengths: bool = False,
        of_any_role: bool = False,
    ) -> Floats:
        """Return numbers that depend on some columns only, asked once for each of their values.

        Args:
            numbers: Answers for a layout; what it does not depend on is that of any row.
            on_any_site: Whether it does not depend on how many GPUs the pool has: sites share answers.
            of_any_lengths: Whether it does not depend on how long prompts and responses are: jobs share answers.
            of_any_role: Whether it asks of a task no more than `PlacedTask.passes`: tasks of several roles share answers.

        Returns:
            Shape (*numbers, layouts).
        """
        if len(self) == 1:
            return np.asarray(numbers(self.any), dtype=np.float64)[..., None]
        first, inverse = self.columns.groups(tuple(names))
        if on_any_site or of_any_lengths or of_any_role:
            columns = (getattr(self.columns, name)[first].tolist() for name in names)
            values = list(zip(*columns, strict=True)) if names else [()]
            task = self.any.passes if of_any_role else self.any.task
            decides = (task, *self._deciding(on_any_site, of_any_lengths))
            asked = np.array(
                answers_of(numbers, decides, values, lambda places: self._rows(first[places]))
            )
        else:
            asked = np.array([numbers(placed) for placed in self._rows(first)], dtype=np.float64)
        return np.moveaxis(asked, 0, -1)[..., inverse]

    def _deciding(self, on_any_site: bool, of_any_lengths: bool) -> tuple[Hashable, ...]:
        """Return what decides the answers of a question beside columns and the task, as all tables that ask it have it."""
        placed = self.any
        site = replace(placed.site, gpus=placed.site.gpus_per_node) if on_any_site else placed.site
        job = job_of_any_lengths(placed.job) if of_any_lengths else placed.job
        return placed.layout.engine, site, job, placed.facts


@dataclass(frozen=True, slots=True, eq=False)
class PlacedTransition:
    """Hold where a model's weights come from and where they generate.

    Attributes:
        name: How they get there, as the plan says it.
        same_pool: Whether they are trained on the pool that generates.
        transport: What carries them to another pool.
        bucket_bytes: Weights that are under way at a time, as the plan says it; None takes what the transition has.
    """

    name: TransitionName
    train: PlacedTask
    generate: PlacedTask
    same_pool: bool
    transport: TransportName = DEFAULT_TRANSPORT
    bucket_bytes: int | None = None

    @property
    def shares_weights(self) -> bool:
        """Tell whether generation reads the very weights that are trained: whole ones, cut alike."""
        train, generate = self.train.layout, self.generate.layout
        alike = (train.tp, train.pp) == (generate.tp, generate.pp) and self.expert_shares <= 1
        stays = train.zero < FULLY_SHARDED and not self.train_is_away
        return self.same_pool and alike and stays and not self._differ and not self.streams

    @property
    def train_is_away(self) -> bool:
        """Tell whether the weights that are trained are in host memory while the model generates."""
        return "weights" in self.train.leaves

    @property
    def sheet(self) -> TransitionSheet:
        """Return what is known of the transition's software on the generating device."""
        return self.generate.facts.transition(self.name, self.generate.site.device)

    @property
    def streams(self) -> bool:
        """Tell whether a framework's method writes weights into an engine that has its own."""
        return TRANSFERS.load(self.name).method

    @property
    def expert_shares(self) -> int:
        """Return how many ranks' experts in training a rank generates with, beyond what TP brings it."""
        train, generate = self.train.layout, self.generate.layout
        return train.expert_ranks * generate.tp // (generate.expert_ranks * train.tp)

    @property
    def keeps_own_weights(self) -> bool:
        """Tell whether the weights that generate are no part of those that are trained.

        Those are in host memory then; or they are quantised, have adapters merged into them, are written by a
        framework's method, or are frozen and stay with the engine, which puts them into host memory while
        others work (vLLM's sleep level 1, as verl has it with adapters).
        """
        own = self.train_is_away or self._differ or self.streams
        return own or (self.moves_adapter and not self.shares_weights)

    @property
    def moves_adapter(self) -> bool:
        """Tell whether generation gets adapters only."""
        return self.generate.adapter is not None

    @property
    def _differ(self) -> bool:
        merged = self.train.adapter is not None and self.generate.adapter is None
        return merged or WIDE[self.train.precision] != self.generate.precision


@dataclass(frozen=True, eq=False)
class PlacedPlan:
    """Hold a plan whose pools stand on the cluster's GPUs; its spreads are of a mean over `mean_of` iterations.

    Raises:
        PlanError: The pools want more GPUs than the cluster has.
    """

    plan: Plan
    facts: Facts
    mean_of: int = 1

    @cached_property
    def sites(self) -> dict[str, Site]:
        """Return each pool's site by the pool's name."""
        return sites_of(self.plan, self.facts)

    @cached_property
    def known_tasks(self) -> tuple[Task, ...]:
        """Return all tasks of the job's algorithm, in the dataflow's order."""
        return tasks_of(load_algorithm(self.plan.job.algorithm), self.plan.job)

    @cached_property
    def tasks(self) -> dict[str, PlacedTask]:
        """Return the tasks that have a layout by their names, in the dataflow's order."""
        tasks, sites, by_sample = self.plan.tasks, self.sites, self.plan.flow.by_sample
        found: dict[str, PlacedTask] = {}
        for each in self.known_tasks:
            if each.name not in tasks:
                continue
            task, job = (each, self.plan.job) if by_sample else in_calls(each, self.plan.job)
            layout, site = self._packed(each), sites[tasks[each.name].pool]
            found[each.name] = placed_task(task, layout, site, job, self.facts)
        return found

    def _packed(self, task: Task) -> TaskPlan:
        """Return a task's layout with the sequences that its token budget holds, if it has one."""
        layout, job = self.plan.tasks[task.name], self.plan.job
        if layout.token_budget is None:
            return layout
        engine = as_told(self.facts.engine(layout.engine), task, job)
        work = learnt_work(job.workload)
        held = packed_sequences(layout.token_budget, work, samples_in_budget(engine, work))
        return replace(layout, micro_batch=held)

    @property
    def generate(self) -> PlacedTask:
        """Return the task that generates."""
        return next(placed for placed in self.tasks.values() if placed.task.generates)

    def tasks_on(self, pool: ResourcePool) -> list[PlacedTask]:
        """Return the tasks of a pool, in the dataflow's order."""
        return [placed for placed in self.tasks.values() if placed.layout.pool == pool.name]

    def transition_to(self, generate: PlacedTask) -> PlacedTransition | None:
        """Return how new weights get to a generating task; None if its model is not trained."""
        for placed in self.tasks.values():
            if placed.trains and placed.task.role == generate.task.role:
                same = placed.layout.pool == generate.layout.pool
                plan, moved = self.plan, (self.plan.transition, placed, generate, same)
                return PlacedTransition(*moved, plan.transport, plan.bucket_bytes)
        return None
