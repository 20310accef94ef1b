"""The bytes that one task puts on a GPU, by term.

Resident terms stay while other tasks of the pool run; transient ones live as long as their task. Terms of
tasks that infer or train are worked out for many layouts at once; a single one is a table of one row.
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np

from rlplan.files.frozen import FrozenDict
from rlplan.models import KeptBatch, is_narrow, layer_kinds
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.simulator.generation.batching.waves import most_prompts
from rlplan.simulator.generation.judging import judging
from rlplan.simulator.generation.speculation import draft_weight_bytes
from rlplan.simulator.memory.states import (
    GATHERED_LAYERS,
    GRADIENTS_SHARDED,
    StageStates,
    states_of_stages,
)
from rlplan.simulator.memory.working import (
    ACTIVATIONS,
    FRAGMENTATION,
    LOGITS,
    WORKING_COLUMNS,
    ManyTerms,
    micro_batch_bytes,
    working_terms,
)
from rlplan.simulator.model import (
    layer_activation_bytes,
    layer_parameters,
    logits_bytes,
)
from rlplan.simulator.placed import Ints, PlacedTask, PlacedTasks, whole
from rlplan.simulator.workload import samples_sharing

CONTEXT = "context and libraries"
KV_CACHE = "KV cache"
QUANTISED = "quantised weights"
DRAFT = "weights that guess tokens"
COMMUNICATORS = "communicators"

# NCCL's buffers of one communicator of several GPUs after its first collective: 688 MB on A100 (NCCL issue 964), and
# of one whose ranks exchange with each other, as experts do: 3.3 GB on eight H100 (NCCL issue 1685).
COMMUNICATOR_BYTES = 688 * 10**6
EXCHANGE_BYTES = 3_300 * 10**6

Terms = dict[str, int]
EMPTY: FrozenDict[str, int] = FrozenDict()


@dataclass(frozen=True, slots=True)
class TaskMemory:
    """Hold the bytes that a task puts on its fullest GPU, by term."""

    resident: FrozenDict[str, int] = EMPTY
    transient: FrozenDict[str, int] = EMPTY

    @property
    def resident_bytes(self) -> int:
        """Return the bytes that stay while other tasks run."""
        return sum(self.resident.values())

    @property
    def transient_bytes(self) -> int:
        """Return the bytes that live as long as the task."""
        return sum(self.transient.values())


@dataclass(frozen=True, slots=True, eq=False)
class LayoutMemory:
    """Hold the bytes that a task puts on its fullest GPU in each of many layouts, by term.

    Attributes:
        weights_term: The resident term that tasks of one role share.
        resident, transient: By term, shape (layouts,); 0 where a layout does not have it.
    """

    weights_term: str
    resident: ManyTerms
    transient: ManyTerms

    @property
    def weights_bytes(self) -> Ints:
        """Return the resident weights, which tasks of one role share. Shape (layouts,)."""
        return self.resident[self.weights_term]

    @property
    def passing_weights_bytes(self) -> Ints:
        """Return the weights that are there while the task runs, where they are not resident. Shape (layouts,)."""
        return self.transient[self.weights_term]

    @property
    def resident_bytes(self) -> Ints:
        """Return the bytes that stay while other tasks run. Shape (layouts,)."""
        return np.asarray(np.sum(list(self.resident.values()), axis=0, dtype=np.int64))

    @property
    def transient_bytes(self) -> Ints:
        """Return the bytes that live as long as the task. Shape (layouts,)."""
        return np.asarray(np.sum(list(self.transient.values()), axis=0, dtype=np.int64))

    def row(self, row: int) -> TaskMemory:
        """Return one layout's terms."""
        return TaskMemory(_row_terms(self.resident, row), _row_terms(self.transient, row))


def _row_terms(terms: ManyTerms, row: int) -> FrozenDict[str, int]:
    return FrozenDict({name: int(sizes[row]) for name, sizes in terms.items() if sizes[row]})


def weights_term(role: str, *, generating: bool = False) -> str:
    """Return the name of the term that holds a role's weights."""
    return f"{role} weights for generation" if generating else f"{role} weights"


def passes_memory(placed: PlacedTask) -> TaskMemory:
    """Return what an infer or train task holds on its fullest pipeline stage."""
    return layout_memory(PlacedTasks.of(placed)).row(0)


def layout_memory(table: PlacedTasks) -> LayoutMemory:
    """Return what infer or train tasks hold on their fullest pipeline stage.

    It is the first or the last, or with layers of unlike kinds the one whose layers have most parameters. A reward
    model that generates holds what its engine does, with room for one longest sequence at least.
    """
    if judging(table.any) is not None:
        return _judged_memory(table)
    held, fits = table, np.minimum(table.columns.micro_batch, table.local)
    budgets = table.columns.token_budget
    if np.any(budgets):
        most = whole(table.by(("dp",), lambda placed: (placed.most_local_tokens,))[0])
        budgets = np.minimum(budgets, most)
    if np.any(fits < table.columns.micro_batch) or np.any(budgets < table.columns.token_budget):
        columns = table.columns.changed(micro_batch=fits, token_budget=budgets)
        held = table.with_columns(columns)
    working = whole(held.by(WORKING_COLUMNS, micro_batch_bytes, on_any_site=True))
    kinds = len(layer_kinds(table.any.model).models)
    stages = states_of_stages(table, kinds)
    return reduce(_fuller, (_stage_memory(table, stage, working) for stage in stages))


# What of a layout a judge's engine reads.
JUDGED_COLUMNS = ("tp", "pp", "dp", "ep", "expert_tp")


def _judged_memory(table: PlacedTasks) -> LayoutMemory:
    """Return what the engine of a reward model that generates holds, in each layout."""
    found = whole(table.by(JUDGED_COLUMNS, _judged_bytes))
    weights, terms = found[0], dict(zip((KV_CACHE, ACTIVATIONS, CONTEXT), found[1:], strict=True))
    term, away = weights_term(table.any.task.role), table.columns.offload > 0
    transient: ManyTerms = {term: np.where(away, weights, 0), **terms}
    transient[COMMUNICATORS] = _communicator_bytes(table)
    return LayoutMemory(term, {term: np.where(away, 0, weights)}, transient)


def _judged_bytes(placed: PlacedTask) -> tuple[int, ...]:
    judge = judging(placed)
    assert judge is not None, "asked of judges"
    terms = generation_terms(judge)
    context = terms.pop(CONTEXT)
    return generation_weight_bytes(judge), least_kv_bytes(judge), sum(terms.values()), context


def _fuller(one: LayoutMemory, other: LayoutMemory) -> LayoutMemory:
    """Return the terms of the stage that holds more in each layout."""
    more = other.resident_bytes + other.transient_bytes > one.resident_bytes + one.transient_bytes

    def chosen(mine: ManyTerms, others: ManyTerms) -> ManyTerms:
        return {name: np.where(more, sizes, mine[name]) for name, sizes in others.items()}

    resident = chosen(one.resident, other.resident)
    return LayoutMemory(one.weights_term, resident, chosen(one.transient, other.transient))


def _stage_memory(table: PlacedTasks, states: StageStates, working: Ints) -> LayoutMemory:
    """Return what one GPU of a pipeline stage of each layout holds.

    Args:
        working: As `micro_batch_bytes` has them, shape (3 + kinds of layers, layouts).
    """
    columns, any_ = table.columns, table.any
    term = weights_term(any_.task.role)
    away = columns.offload > 0
    weights = states.weights(table)
    leaves = any_.off_loadable if any_.trains_role else ("weights",)
    stays = ~away if "weights" in leaves else np.ones_like(away)
    if any_.trains_role and not any_.trains and "weights" in leaves:
        # Whether they are away is said by the layout in which they train: there they are resident, if not.
        stays = np.zeros_like(away)
    resident: ManyTerms = {term: np.where(stays, weights, 0)}
    transient: ManyTerms = {term: np.where(stays, 0, weights)}
    stepped = np.zeros_like(states.parameters)
    if is_narrow(any_.precision) and not any_.engine.narrow_products:
        transient[QUANTISED] = states.quantised(table)
    if any_.trains:
        on_gpu = 1 - any_.options.host_optimizer
        stepped = whole(np.rint(states.stepped(table) * on_gpu))
        stay, leave = _trained_terms(table, states, stepped)
        resident |= stay
        transient |= leave
    if any_.options.host_states:  # layers come to the GPU as they are needed, and step on the host
        resident, transient = (
            {name: np.zeros_like(size) for name, size in terms.items()}
            for terms in (resident, transient)
        )
        stepped = np.zeros_like(stepped)
    transient[COMMUNICATORS] = _communicator_bytes(table)
    transient |= working_terms(table, states, working, stepped)
    transient[CONTEXT] = np.full_like(states.stage, any_.device.context_bytes)
    return LayoutMemory(term, resident, transient)


def _communicator_bytes(table: PlacedTasks) -> Ints:
    """Return the buffers of the groups of ranks that a task's model meets in, of each kind one on a GPU."""
    columns = table.columns
    if table.any.device.sheet.kind == "cpu":
        return np.zeros_like(columns.tp)
    sizes = (columns.dp * columns.cp, columns.tp, columns.pp, columns.cp)
    groups = np.sum([size > 1 for size in sizes], axis=0)
    return np.asarray(
        groups * COMMUNICATOR_BYTES + np.where(columns.ep > 1, EXCHANGE_BYTES, 0), dtype=np.int64
    )


def _trained_terms(
    table: PlacedTasks, states: StageStates, on_gpu: Ints
) -> tuple[ManyTerms, ManyTerms]:
    """Return what a stage keeps of gradients and of what its optimizer steps: what stays, and what leaves.

    Args:
        on_gpu: Parameters that are stepped on each GPU. Shape (layouts,).
    """
    columns, any_ = table.columns, table.any
    role, sizes, leaves = any_.task.role, any_.stored, any_.off_loadable
    stepped, away = states.stepped(table), columns.offload > 0
    resident: ManyTerms = {}
    transient: ManyTerms = {}
    if any_.adapter is not None:
        held = np.where(columns.zero == FULLY_SHARDED, stepped, states.trained)
        resident[f"{role} adapters"] = held * sizes.weight_bytes
    sharded = np.where(columns.zero >= GRADIENTS_SHARDED, stepped, states.trained)
    gradients = sharded * sizes.gradient_bytes
    if any_.options.host_optimizer == 1 and not any_.engine.keeps_gradients:
        # What is stepped on the host is reduced into its memory (ZeRO-Offload; Ren et al. 2021, section 3).
        gradients = np.where(columns.zero >= GRADIENTS_SHARDED, 0, gradients)
    kept = any_.engine.keeps_gradients & ~(away & ("gradients" in leaves))
    resident[f"{role} gradients"] = np.where(kept, gradients, 0)
    transient[f"{role} gradients"] = np.where(kept, 0, gradients)
    if not sizes.master_bytes:
        resident[f"{role} weights that are stepped"] = states.copied(table)
    states_leave = away & ("optimizer" in leaves)
    optimizer = on_gpu * sizes.optimizer_bytes
    resident[f"{role} optimizer states"] = np.where(states_leave, 0, optimizer)
    transient[f"{role} optimizer states"] = np.where(states_leave, optimizer, 0)
    return resident, transient


def generate_memory(placed: PlacedTask) -> TaskMemory:
    """Return what a generating task needs at least: a whole copy of its weights and one longest sequence.

    `rlplan.simulator.timeline.pool_memory` knows what it shares with the training task and fills the cache up.
    """
    terms = {
        weights_term(placed.task.role, generating=True): generation_weight_bytes(placed),
        KV_CACHE: least_kv_bytes(placed),
        **generation_terms(placed),
    }
    return TaskMemory(EMPTY, FrozenDict(terms))


def generation_terms(placed: PlacedTask) -> Terms:
    """Return what a generation engine holds beside its weights and its KV cache.

    One layer's activations of its largest prefill pass, which has each prompt once where samples share
    it, and the logits of all running sequences.
    """
    model, engine, shard = placed.model, placed.engine, placed.shard
    prompt, whole = placed.statistics.longest_prompt_tokens, placed.statistics.longest_tokens
    if engine.batching == "none":
        prompt = whole  # its last pass is its longest
    elif placed.workload.environments:  # whose later turns prefill all that came before
        prompt = min(whole, engine.max_batched_tokens) if engine.chunked_prefill else whole
    prompts = most_prompts(placed.running, samples_sharing(engine, placed.workload))
    together = max(1, min(prompts, engine.max_batched_tokens // prompt))
    batch = KeptBatch(shard, together, prompt, engine.fused_attention)
    activations = max(
        layer_activation_bytes(kind, batch, "none") for kind in layer_kinds(model).models
    )
    logits = logits_bytes(
        model, placed.layout.tp, placed.running, shard.value_bytes, backward=False
    )
    drafted = draft_weight_bytes(placed)
    return {
        **({DRAFT: drafted} if drafted else {}),
        ACTIVATIONS: activations,
        LOGITS: logits,
        FRAGMENTATION: round(engine.memory.slack_fraction * (activations + logits)),
        CONTEXT: placed.device.context_bytes,
    }


def generation_weight_bytes(placed: PlacedTask) -> int:
    """Return the weight bytes of one GPU of a generation layout.

    An engine that gathers layer by layer holds a few at a time, beside the shard of training.
    """
    if not placed.engine.gathers_weights:
        return placed.weight_bytes
    layer = layer_parameters(placed.model, placed.cut)
    return GATHERED_LAYERS * layer * placed.formats.weight_bytes


def least_kv_bytes(placed: PlacedTask) -> int:
    """Return the KV-cache bytes of one longest sequence on one GPU: with less nothing runs."""
    return _kv_bytes_of(1, placed)


def useful_kv_bytes(placed: PlacedTask) -> int:
    """Return the KV-cache bytes beyond which all running sequences fit at their longest."""
    return _kv_bytes_of(placed.running, placed)


def _kv_bytes_of(sequences: int, placed: PlacedTask) -> int:
    if placed.engine.batching == "none":
        return 0  # it keeps no cache: every step computes the whole sequences again
    block_tokens = placed.engine.kv_block_tokens
    blocks = -(-placed.statistics.longest_tokens // block_tokens) + placed.state_blocks
    return sequences * blocks * placed.block_bytes
