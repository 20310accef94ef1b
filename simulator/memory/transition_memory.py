"""What a transition takes of each GPU, and what an engine's share of it leaves to the KV cache of the generation behind it.

For one pool, or for many at once.
"""

import math
from dataclasses import dataclass

import numpy as np

from rlplan.job import Job
from rlplan.layout import WHOLE_MODEL, ModelCut
from rlplan.plan import BUCKET_BYTES
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.sheets import EngineSheet
from rlplan.simulator.columns import Flags, Floats
from rlplan.simulator.costs.syncs import volume_of
from rlplan.simulator.generation.judging import judging
from rlplan.simulator.memory.task_memory import (
    COMMUNICATOR_BYTES,
    CONTEXT,
    JUDGED_COLUMNS,
    generation_terms,
    generation_weight_bytes,
    least_kv_bytes,
    passes_memory,
)
from rlplan.simulator.memory.terms import Terms, weights_term
from rlplan.simulator.model import largest_shard, layer_parameters
from rlplan.simulator.placed import PlacedTask, PlacedTasks, PlacedTransition, whole
from rlplan.transfers import TRANSFERS
from rlplan.weight_syncs import SyncMethod

# Shares that are chosen are whole hundredths: rounded down, as people write them.
HUNDREDTHS = 100


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """Hold what lies on a card while an engine generates; numbers, or arrays of one shape.

    Attributes:
        weights_bytes: Those that generation adds to what others have there.
        working_bytes: Of the engine beside weights and cache.
        others_bytes: Of all others: what stays of trained models, of models that only infer.
        started_bytes: Of those, what lay there when the engine started.
        synced_bytes: What a sync of weights has there beside weights and cache, where the cache stays meanwhile.
        passing_bytes: What the hungriest task of others takes while the engine is awake, beside a context.
    """

    capacity_bytes: int
    weights_bytes: int
    working_bytes: int
    others_bytes: Floats | float
    started_bytes: Floats | float
    synced_bytes: int = 0
    passing_bytes: Floats | float = 0.0

    def cache_bytes(self, engine: EngineSheet, fraction: Floats | float) -> Floats:
        """Return the bytes of the card that a share leaves to the KV cache; 0 if there are none."""
        return np.maximum(0.0, self.left_bytes(engine, fraction))

    def left_bytes(self, engine: EngineSheet, fraction: Floats | float) -> Floats:
        """Return the bytes of the card that a share leaves beside weights and work; below 0 where it has no room for these."""
        share, own = engine.share, self.weights_bytes + self.working_bytes
        if share.of == "free":
            free = self.capacity_bytes - self.others_bytes - own
            return np.asarray(np.where(np.less(free, 0.0), free, fraction * free))
        counted = self.others_bytes
        if share.counts_others != "everything":
            counted = self.started_bytes if share.counts_others == "started" else 0.0
            counted = counted + np.zeros(np.shape(self.others_bytes))
        if share.of == "static":
            return np.asarray(fraction * (self.capacity_bytes - counted) - self.weights_bytes)
        return np.asarray(fraction * self.capacity_bytes - counted - own)

    def fraction_left(
        self, engine: EngineSheet, usable_bytes: float, *, rounds: bool = True
    ) -> Floats:
        """Return the largest share, in hundredths, with which everything stays within the bytes that may be used.

        An engine off whose share everything on the card goes has room for it whatever the share is: it takes its
        usual one. Off whose share goes what lay there when it started, the share is as much larger.

        Args:
            rounds: Whether it is a whole hundredth, as plans have it.
        """
        share = engine.share
        if share.of == "free" or share.counts_others == "everything":
            return np.full(np.shape(self.others_bytes), engine.memory_fraction)
        # What it works in goes off a share of the card, and lies beside one of weights and cache; neither a sync nor others' tasks
        # have a use for it.
        inside, beside = (
            (0, self.working_bytes) if share.of == "static" else (self.working_bytes, 0)
        )
        left = usable_bytes - self.others_bytes
        held = max(beside + share.awake_bytes, self.synced_bytes - inside)
        left = left - np.maximum(held, self.passing_bytes - inside)
        counted = self.started_bytes if share.counts_others == "started" else 0.0
        if share.of == "static":
            fraction = left / np.maximum(1.0, self.capacity_bytes - counted)
        else:
            fraction = (left + counted) / self.capacity_bytes
        fraction = np.floor(HUNDREDTHS * fraction) / HUNDREDTHS if rounds else fraction
        return np.asarray(np.minimum(np.maximum(fraction, 0.0), engine.memory_fraction))


def hundredths(fraction: float) -> float:
    """Return a share of at least one hundredth, as a file has it."""
    return max(1, math.floor(HUNDREDTHS * fraction + 1e-9)) / HUNDREDTHS


WEIGHT_BUCKETS = "weights under way"
# Of the ranks of both pools, beside those of either (`COMMUNICATOR_BYTES`).
SYNC_GROUP = "communicator of the weight sync"
GROUPED = frozenset({"broadcast", "point to point"})
# Layers that the transition of fully sharded weights gathers at a time: the default of DeepSpeed's
# `tp_gather_partition_size` (DeepSpeed 0.14, runtime/config.py, HybridEngineConfig).
PIECE_LAYERS = 8


def generation_room(
    generate: PlacedTask,
    transition: PlacedTransition | None,
    others_bytes: float,
    started_bytes: float = 0.0,
    synced_bytes: int = 0,
) -> Room:
    """Return what lies on a GPU while an engine generates.

    Args:
        transition: From the layout that trains the model on the same pool, whose shard may be shared;
            None if it trains elsewhere.
        others_bytes: Residents of the pool, the weights of a separate copy left out.
        started_bytes: Of those, what lay there when the engine started.
        synced_bytes: What a sync has there beside weights and cache, where the cache stays meanwhile.
    """
    own = (
        generation_weight_bytes(generate) if transition is None else extra_weight_bytes(transition)
    )
    return Room(
        capacity_bytes=generate.device.sheet.memory_bytes,
        weights_bytes=own,
        working_bytes=generation_working_bytes(generate),
        others_bytes=others_bytes,
        started_bytes=started_bytes,
        synced_bytes=synced_bytes,
    )


def serving_cache_bytes(served: PlacedTask) -> float:
    """Return the bytes of each GPU that the share of an engine which serves a model leaves to its KV cache; 0 if there are none.

    Args:
        served: What it generates (`rlplan.simulator.generation.judging`).
    """
    room = generation_room(served, None, 0.0)
    return float(room.cache_bytes(served.engine, served.layout.memory_fraction))


def serving_shortage_bytes(served: PlacedTask) -> int:
    """Return by how much such a share is too small for weights, work and the cache of one longest sequence; 0 if it is not."""
    return cache_shortage_bytes(served, generation_room(served, None, 0.0))


def cache_shortage_bytes(generate: PlacedTask, room: Room) -> int:
    """Return what an engine's share lacks for the cache of one longest sequence, weights that are over it included; 0 if nothing."""
    left = float(room.left_bytes(generate.engine, generate.layout.memory_fraction))
    return max(0, round(least_kv_bytes(generate) - left))


def has_room_to_serve(table: PlacedTasks) -> Flags:
    """Tell in which layouts the engine of a served model has room for one longest sequence; of other tasks in all. Shape (layouts,)."""
    if not table.any.job.serves or judging(table.any) is None:
        return np.ones(len(table.columns), dtype=np.bool_)

    def shortage(placed: PlacedTask) -> tuple[int]:
        served = judging(placed)
        assert served is not None, "asked of what engines serve"
        return (serving_shortage_bytes(served),)

    return np.asarray(whole(table.by(JUDGED_COLUMNS, shortage))[0] == 0)


def generation_working_bytes(generate: PlacedTask) -> int:
    """Return what an engine computes in, as far as it goes off its share: a context is there before it looks."""
    terms = generation_terms(generate)
    counted = generate.engine.share.counts_others == "everything"
    return sum(size for term, size in terms.items() if counted or term != CONTEXT)


def extra_weight_bytes(transition: PlacedTransition) -> int:
    """Return the weight bytes that generation adds to the resident shard of training.

    Zero-redundancy groups grow the train shard into the generate shard, and equal layouts share
    one copy; all others keep the train shard beside the weights that they generate with (Sheng et
    al. 2025, HybridFlow, section 5.3).
    """
    train, generate = transition.train, transition.generate
    shard = generation_weight_bytes(generate)
    shares = TRANSFERS.load(transition.name).nests
    sharded = train.engine.reshards_in_buckets and _gathers_first(train)
    if sharded or train.casts_weights:
        shares = False  # what is sharded further, or in another format, is no slice of the shard
    if transition.keeps_own_weights:
        shares = False
    if shares and not generate.engine.gathers_weights:
        return max(0, shard - train_shard_bytes(train))
    return shard


def transition_terms(transition: PlacedTransition) -> Terms:
    """Return what a transition on one pool takes of each GPU beside the pool's residents."""
    train, generate = transition.train, transition.generate
    extra, volume = extra_weight_bytes(transition), volume_of(transition)
    peak = round(volume.peak_weight_bytes) - train_shard_bytes(train)
    method = transition.sheet.method
    if generate.engine.gathers_weights:
        peak = extra
    elif transition.moves_adapter:
        peak = extra + _whole_bytes(method, train)
    elif method is not None:
        buckets = _bucket_bytes(method, transition)
        peak = extra + max(buckets, _whole_bytes(method, train))
    elif transition.keeps_own_weights:
        peak = extra + _piece_bytes(train)
    elif train.engine.reshards_in_buckets:
        bucket = transition.bucket_bytes or BUCKET_BYTES
        under_way = min(bucket, round(max(0.0, volume.received_bytes)))
        peak = _bucketed_peak(transition) + max(under_way, _second_copy_bytes(train))
    elif train.layout.zero == FULLY_SHARDED or TRANSFERS.load(transition.name).gathers_shards:
        # The published formula has the whole model at the peak; software gathers it piece by piece, "layer
        # by layer ... to prevent OOM" (Sheng et al. 2025, HybridFlow, section 8.4).
        peak = min(peak, extra + _piece_bytes(train))
    whole = min(peak - extra, _whole_bytes(method, train))
    terms = {
        weights_term(train.task.role, generating=True): max(extra, peak) - max(0, whole),
        CONTEXT: generate.device.context_bytes,
    }
    if whole > 0:
        terms[WEIGHT_BUCKETS] = whole
    if transition.train_is_away:
        own = weights_term(train.task.role)
        # They are there once more, to be sent.
        terms[own] = passes_memory(train).transient.get(own, 0)
    return terms


def bucket_terms(transition: PlacedTransition, *, sends: bool) -> Terms:
    """Return what a framework's method takes of a GPU on one side of two pools, beside residents.

    Args:
        sends: Whether it is the side that trains.
    """
    method = transition.sheet.method
    if method is None:  # no GPU
        return {}
    whole = _whole_bytes(method, transition.train) if sends else 0
    more = 1 if method.handed_on and not sends else 0
    buckets = _bucket_bytes(method, transition, more)
    grouped = method.transport in GROUPED and not method.by_rdma
    return {
        WEIGHT_BUCKETS: max(whole, buckets),
        SYNC_GROUP: COMMUNICATOR_BYTES if grouped else 0,
        CONTEXT: transition.generate.device.context_bytes,
    }


def has_own_context(transition: PlacedTransition) -> bool:
    """Tell whether an engine on a pool of its own has its context among what lies beside its share, and is its GPUs' only process."""
    method, share = transition.sheet.method, transition.generate.engine.share
    alone = not transition.same_pool and (method is None or not method.handed_on)
    return alone and share.beside_bytes > 0


def keeps_cache(transition: PlacedTransition) -> bool:
    """Tell whether an engine has its KV cache on the GPUs while weights come that were trained there: awake, or woken whole."""
    generate = transition.generate
    return transition.same_pool and is_whole_before_weights(generate.engine, generate.job)


def is_whole_before_weights(engine: EngineSheet, job: Job) -> bool:
    """Tell whether an engine beside a trainer has its KV cache before new weights come: awake all the time, or woken whole."""
    return engine.share.wakes_whole or not job.engines.sleeps


def synced_bytes(transition: PlacedTransition) -> int:
    """Return what a sync of weights takes of an engine's GPU beside its own and its KV cache, and beside a context.

    0 where it gives the cache back meanwhile, or has no weights of its own. An engine whose cache is what all others leave is
    taken to leave room for weights from another pool.
    """
    engine, method = transition.generate.engine, transition.sheet.method
    if keeps_cache(transition):
        terms = transition_terms(transition)
        own = extra_weight_bytes(transition) + terms[CONTEXT]
        return sum(terms.values()) - own + engine.share.awake_bytes
    if method is None or transition.same_pool or transition.moves_adapter or not transition.streams:
        return 0
    sized = engine.share.of == "free" or engine.share.counts_others == "everything"
    if sized or engine.name.startswith(method.frees_cache):
        return 0
    terms = bucket_terms(transition, sends=False)
    return terms[WEIGHT_BUCKETS] + terms[SYNC_GROUP]


def _whole_bytes(method: SyncMethod | None, train: PlacedTask) -> int:
    """Return the bytes of all weights, where a method has them whole at a time beside the shards that they are gathered from."""
    if method is None or not method.gathers_at_once:
        return 0
    sharded = train.layout.zero == FULLY_SHARDED and train.state_ranks > 1
    return train.parameters * train.stored.weight_bytes if sharded else 0


def _bucket_bytes(method: SyncMethod, transition: PlacedTransition, more: int = 0) -> int:
    """Return what a framework's method has on a GPU beside both shards: buckets, or a tensor at a time.

    A tensor is gathered whole before it goes into a bucket; the largest is the embedding.

    Args:
        more: Buckets beyond those that either side has.
    """
    train = transition.train
    largest = train.model.embedding_parameters * train.stored.weight_bytes
    said = transition.bucket_bytes if method.bucket_bytes else None
    return max((method.buckets_held + more) * (said or method.bucket_bytes), largest)


def _bucketed_peak(transition: PlacedTransition) -> int:
    """Return what a trainer that reshards in buckets holds at the peak beside its shard.

    A train shard that generation uses too stays the part of the generate shard that it is. Any other
    one is there until the generate shard is written; what is sharded further is gathered whole before.
    """
    train, layout = transition.train, transition.train.layout
    shard = generation_weight_bytes(transition.generate)
    if _gathers_first(train):
        parameters = largest_shard(train.model, "lm", ModelCut(tp=layout.tp, pp=layout.pp))
        return shard + parameters * train.formats.weight_bytes
    alike = layout.tp == transition.generate.layout.tp
    if alike and TRANSFERS.load(transition.name).nests:
        return extra_weight_bytes(transition)
    return shard


def _second_copy_bytes(train: PlacedTask) -> int:
    """Return what is there for a moment beside weights that are gathered whole before all else.

    Experts are gathered out of a copy of all that the rank holds; fully sharded weights are gathered in
    their modules, and copied one after another from there.
    """
    layout = train.layout
    if layout.ep > 1 or (layout.zero == FULLY_SHARDED and _gathers_first(train)):
        return train.parameters * train.formats.weight_bytes
    return 0


def _gathers_first(train: PlacedTask) -> bool:
    """Tell whether weights are gathered over copies, or experts over their ranks, before all else."""
    return train.layout.ep > 1 or (train.layout.zero > 1 and train.state_ranks > 1)


def _piece_bytes(train: PlacedTask) -> int:
    """Return the bytes of the layers that a gather of fully sharded weights holds whole at a time."""
    model = train.model
    pieces = min(model.num_layers, PIECE_LAYERS) * layer_parameters(model, WHOLE_MODEL)
    return (pieces + model.embedding_parameters) * train.formats.weight_bytes


def train_shard_bytes(train: PlacedTask) -> int:
    """Return the weight bytes of a GPU's shard in training."""
    parameters = train.parameters
    if train.layout.zero == FULLY_SHARDED:
        parameters = -(-parameters // train.state_ranks)
    return parameters * train.formats.weight_bytes
