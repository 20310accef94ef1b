"""Bringing the actor's weights from training to generation: transitions, and frameworks' own ways.

What they hold is in `simulator/memory/`.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import expected_calls
from rlplan.estimate import ZERO, Estimate, Source, total
from rlplan.files.limits import LARGEST_COUNT
from rlplan.layout import GenerateLayout, TrainLayout
from rlplan.models import PRECISIONS, is_narrow
from rlplan.parts import num_parameters
from rlplan.probing import ModelPass
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.simulator.costs.taskcost import (
    TaskCost,
    cost_of,
    host_seconds,
    pinned_copy,
    times,
    transition_at_site,
)
from rlplan.simulator.model import (
    adapter_shard,
    expert_parameters,
    largest_shard_bytes,
    num_tensors,
)
from rlplan.simulator.placed import PlacedTask, PlacedTransition, Site
from rlplan.transfers import TRANSFERS, TransitionShape, TransitionVolume, transition_volume
from rlplan.transports import KNOWN_TRANSPORTS
from rlplan.weight_syncs import SyncMethod, TransitionSheet

BY_STAGE = ("stage heads", "every rank")
METADATA, GATHER, STAGING = "metadata", "weight gather", "host staging"
RESTORED = "off-loaded shards"
CARRYING, LOADING, CALLS = "weight transfer", "weight loading", "software"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncCase:
    """Hold what the seconds of a sync follow from, beside its method.

    Attributes:
        num_bytes: Of the whole model, in the format in which it is sent.
        trained_bytes: The same in the format in which training gathers it.
        tensors: Of the whole model, as a checkpoint names them.
        active_fraction: Share of the parameters that a token reaches.
        shard_fraction: Share of the model that a rank of the engine keeps.
        cuts: Ways in which training cuts a tensor: shards of data-parallel ranks, and parallel groups.
        stages: Pipeline stages of training.
        senders: Ranks that train.
        receivers: Ranks that generate.
        receiver_nodes: Nodes on which they stand.
        across: Whether weights go from one node to another.
        gathers_across: Whether those that gather from each other are on more than one node.
        restored_bytes: Of a training rank's shard of fully sharded weights, where it lies in host memory between uses.
        casts: Whether the engine's ranks cast to a narrow format what they load.
        node_gpus: GPUs of a node that take part.
        network_bytes_per_second: Each GPU's share of its node's network cards.
        node_bytes_per_second: Link between GPUs of a node.
        host_bytes_per_second: Link of a GPU to its host's memory.
        bucket_bytes: Sent at a time; None takes the method's.
    """

    num_bytes: float
    trained_bytes: float
    tensors: int
    active_fraction: float
    shard_fraction: float
    cuts: int
    stages: int
    senders: int
    receivers: int
    receiver_nodes: int
    across: bool
    node_gpus: int
    network_bytes_per_second: float
    node_bytes_per_second: float
    host_bytes_per_second: float
    bucket_bytes: int | None = None
    gathers_across: bool = False
    restored_bytes: float = 0.0
    casts: bool = False


def sync_parts(sheet: TransitionSheet, case: SyncCase) -> dict[str, Estimate]:
    """Return the seconds of a sync by cause.

    Raises:
        AssertionError: The sheet has no method.
    """
    assert sheet.method is not None, f"transition {sheet.name} is no method of a framework"
    seconds = method_seconds(sheet.method, case)
    spread = sheet.spread_fraction
    return {cause: Estimate(each, each * spread, Source.FITTED) for cause, each in seconds.items()}


@lru_cache(maxsize=65536)
def method_seconds(method: SyncMethod, case: SyncCase) -> dict[str, float]:
    """Return the seconds of each cause; stages that overlap count as far as they show."""
    buckets = _buckets(method, case)
    stages = {
        GATHER: _gather_seconds(method, case, buckets),
        STAGING: _staging_seconds(method, case),
        CARRYING: _carrying_seconds(method, case, buckets),
        LOADING: _loading_seconds(method, case),
    }
    # One stage's head gathers its next bucket while another's is sent.
    if method.pipelined or (method.sender == "stage heads" and case.stages > 1):
        stages = _overlapped(method, stages, buckets, case.receivers)
    calls = 0.0 if method.sender in BY_STAGE else method.bucket_seconds * buckets
    restored = _per(case.restored_bytes, method.restore_bytes_per_second)
    return {
        METADATA: method.metadata_seconds * case.tensors,
        RESTORED: restored,
        **stages,
        CALLS: method.fixed_seconds + calls,
    }


def _overlapped(
    method: SyncMethod, stages: dict[str, float], buckets: int, readers: int
) -> dict[str, float]:
    """Return how far each stage shows: the longest whole, others for one bucket.

    Where who sends reads each bucket itself first, reading and sending are one stage; where all read a bucket each
    before the first of them sends, reading overlaps with the loading of the last one before.
    """
    groups = {name: [name] for name in stages}
    if method.staging_overlaps == "loading":
        groups[CARRYING] += groups.pop(STAGING)
    elif method.staging_overlaps == "one load":
        del groups[STAGING]
        shown = max(0.0, stages[STAGING] - stages[LOADING] / readers)
        stages = stages | {STAGING: max(shown, stages[STAGING] / buckets)}
    spans = {head: sum(stages[name] for name in names) for head, names in groups.items()}
    longest = max(spans, key=lambda head: spans[head])
    hidden = {name for head, names in groups.items() if head != longest for name in names}
    return {
        name: seconds / buckets if name in hidden else seconds for name, seconds in stages.items()
    }


def _sent(method: SyncMethod, case: SyncCase) -> float:
    if method.sent_fraction == 1:
        return case.num_bytes
    return case.num_bytes * case.active_fraction * method.sent_fraction


def _buckets(method: SyncMethod, case: SyncCase) -> int:
    """Return the messages, or calls, that carry the model."""
    size = method.bucket_bytes if case.bucket_bytes is None else case.bucket_bytes
    return max(1, math.ceil(_sent(method, case) / size)) if size else case.tensors


def _per(amount: float, rate: float) -> float:
    """Return what takes no time where no rate is stated."""
    return amount / rate if rate else 0.0


def _gather_seconds(method: SyncMethod, case: SyncCase, buckets: int) -> float:
    """Return the seconds in which training brings full tensors together, or finds what changed.

    Where stages send, each makes the calls for its own buckets.
    """
    at_once = {"one rank": 1, "stage heads": case.stages, "receivers": 1}
    parts = at_once.get(method.sender, case.stages if method.gathers else case.senders)
    passes = case.cuts if method.gathers else 1
    rate = method.gather_bytes_per_second
    if case.gathers_across:
        rate = method.gather_network_bytes_per_second or rate
    whole = _per(passes * case.trained_bytes, rate)
    calls = method.gather_seconds * case.tensors
    calls += method.bucket_seconds * buckets if method.sender in BY_STAGE else 0.0
    return calls / parts + whole * (method.broadcast_fraction or 1 / parts)


def _staging_seconds(method: SyncMethod, case: SyncCase) -> float:
    """Return the seconds of copies out of pinned host memory, with those into it if training made them."""
    sent = _sent(method, case)
    ranks = case.receivers if method.sender == "receivers" else case.senders
    if method.staging in {"none", "replica"}:
        return 0.0
    if method.staging == "host":
        return sent / ranks / case.host_bytes_per_second
    readers = 1 if method.staging == "host of one peer" else case.receivers
    reached = method.staging_fraction or method.link_fraction
    return sent / readers / (case.network_bytes_per_second * reached)


def _carrying_seconds(method: SyncMethod, case: SyncCase, buckets: int) -> float:
    """Return the seconds on the links between senders and receivers."""
    sent = _sent(method, case)
    if method.transport == "process":
        return 0.0
    if method.transport == "files":
        return 2 * _per(sent, method.file_bytes_per_second)
    link = case.network_bytes_per_second if case.across else case.node_bytes_per_second
    if method.staging == "replica":
        link = case.network_bytes_per_second  # hosts send over the cards, on one node too
    if method.transport == "point to point":
        received = sent * (1 - method.broadcast_fraction) * case.shard_fraction
        given = received * case.receivers / case.senders
        rest = sent * method.broadcast_fraction
        return (max(received, given) + rest) / (link * method.link_fraction)
    if case.across and method.relays:
        link = min(link * case.node_gpus, case.node_bytes_per_second)
    messages = buckets if method.packed else max(buckets, case.tensors)
    hops = method.hop_seconds * messages * case.receiver_nodes
    return sent / (link * method.link_fraction) + hops


def _loading_seconds(method: SyncMethod, case: SyncCase) -> float:
    """Return the seconds of the engine's loader on each rank: all tensors pass, or those that it keeps.

    A sender loads replicas of the ranks that it serves one after another, of the tensors of its stage.
    """
    share = case.shard_fraction if method.transport == "point to point" else 1.0
    if method.staging == "replica":
        share = max(1 / case.senders, case.shard_fraction / case.stages)
    cast = method.cast_seconds if case.casts else 0.0
    tensors = (method.load_seconds + cast) * case.tensors * share
    return tensors + _per(_sent(method, case) * share, method.load_bytes_per_second)


# Both factors of the adapters of a layer's seven matrices.
ADAPTER_TENSORS = 14


@lru_cache(maxsize=1024)
def volume_of(transition: PlacedTransition) -> TransitionVolume:
    """Return what a transition moves and keeps, in bytes per GPU."""
    train, generate = transition.train.layout, transition.generate.layout
    shape = TransitionShape(
        tp=train.tp,
        pp=train.pp,
        dp=train.dp,
        tp_gen=generate.tp,
        pp_gen=generate.pp,
        sharded=train.zero == FULLY_SHARDED,
    )
    return _volume(transition.name, moved_bytes(transition), shape)


_volume = lru_cache(maxsize=65536)(transition_volume)


def moved_bytes(transition: PlacedTransition) -> int:
    """Return the bytes of what a transition brings: a whole model, or its adapters."""
    placed, generate = transition.train, transition.generate
    if generate.adapter is not None:
        return adapter_shard(placed.model, generate.adapter) * placed.formats.weight_bytes
    if placed.job.quantised_at == "sender":
        return largest_shard_bytes(placed.model, generate.precision)
    return num_parameters(placed.model) * placed.formats.weight_bytes


def transition_cost(transition: PlacedTransition) -> TaskCost:
    """Return what it costs to bring new weights to the generation engine.

    Measured whole where the profile has it. Otherwise: a gather of fully sharded weights first, or of
    experts that training shares out over more ranks than generation does, the
    collective of the transition's formula, writing the received bytes, what the software needs beyond
    that (`profiles/transitions/`), and what the framework's host does meanwhile.
    Nothing at all when both layouts are equal, on the same GPUs, and share one copy. Where groups are
    sampled again, a pool that also trains comes back to the generate layout for each batch that is asked for.
    """
    job = transition.train.job
    train = transition.train
    once = transition_at_site(_once(transition), train.facts, train.framework)
    calls = expected_calls(load_algorithm(job.algorithm), job) if transition.same_pool else 1.0
    return once if calls == 1 else times(once, calls)


def _once(transition: PlacedTransition) -> TaskCost:
    train, generate = transition.train, transition.generate
    if transition.shares_weights:
        return cost_of({})
    switch = ZERO
    if transition.same_pool and not train.framework.runs:
        switch = host_seconds(train.framework.call("transition"), generate)
    if transition.sheet.method is not None:
        synced = sync_parts(transition.sheet, sync_case(transition))
        asleep = _sleeping_weights(transition)
        return cost_of({**asleep, **_own_weights(transition), **synced, "engine switch": switch})
    measured = _measured(transition)
    if measured is not None:
        return cost_of({"weight sync": measured})
    model_bytes, volume = moved_bytes(transition), volume_of(transition)
    received = max(0.0, volume.received_bytes)
    parts: dict[str, Estimate] = _own_weights(transition)
    if train.layout.zero < FULLY_SHARDED:  # else they come with all other weights
        parts["expert gather"] = _gather_experts(transition)
    if not TRANSFERS.load(transition.name).gathers_shards:
        parts["sharded weight gather"] = _unshard(train, model_bytes)
    if volume.collective == "broadcast" or not transition.same_pool:
        shard_bytes = model_bytes / (generate.layout.tp * generate.layout.pp)
        parts["weight broadcast"] = _broadcast(shard_bytes, train, generate)
        received = shard_bytes
    elif volume.collective == "all_gather" and received > 0:
        parts["weight gather"] = _gather(volume, transition)
    parts["weight writes"] = generate.device.memory_bound(2 * received) if received else ZERO
    if received:
        nodes = _nodes(train.site, generate.site, transition.same_pool)
        wire = total(parts.values())
        parts["software"] = _software(transition, model_bytes, received, nodes, wire)
    parts["engine switch"] = switch
    return cost_of(parts)


def sync_seconds(transition: PlacedTransition) -> Estimate:
    """Return the seconds of a framework's weight sync alone, without the engine's switch."""
    return total(sync_parts(transition.sheet, sync_case(transition)).values())


def least_sync_seconds(transition: PlacedTransition) -> Estimate:
    """Return seconds that a framework's sync into a layout takes at least, wherever training cuts the model."""
    case = sync_case(transition)
    whole = replace(
        case,
        cuts=1,
        stages=transition.train.model.num_layers,
        senders=LARGEST_COUNT,
        gathers_across=False,
        restored_bytes=0.0,
    )
    return total(sync_parts(transition.sheet, whole).values())


def sync_case(transition: PlacedTransition) -> SyncCase:
    """Return what the seconds of a framework's weight sync follow from."""
    train, generate = transition.train, transition.generate
    source, target = train.site, generate.site
    model, sheet = train.model, generate.device.sheet
    apart = 0 if transition.same_pool else source.gpus
    num_bytes, tensors = moved_bytes(transition), num_tensors(model)
    experts = expert_parameters(model)
    idle = experts * (1 - model.experts_per_token / model.num_experts) if experts else 0
    cut = train.layout.tp > 1 or train.layout.ep > 1
    whole = num_parameters(model) * train.stored.weight_bytes
    if transition.moves_adapter:
        tensors = ADAPTER_TENSORS * model.num_layers
    elif is_narrow(generate.precision) and train.job.quantised_at == "sender":
        tensors *= 2  # scales are tensors of their own
    return SyncCase(
        num_bytes=num_bytes,
        trained_bytes=max(num_bytes, whole if not transition.moves_adapter else 0),
        tensors=tensors,
        active_fraction=1 - idle / num_parameters(model),
        shard_fraction=min(1.0, generate.parameters / num_parameters(model)),
        cuts=max(1, int(train.layout.zero == FULLY_SHARDED) + int(cut)),
        stages=train.layout.pp,
        senders=source.gpus,
        receivers=target.gpus,
        receiver_nodes=-(-target.gpus // target.gpus_per_node),
        across=apart + target.gpus > target.gpus_per_node,
        node_gpus=min(source.gpus, source.gpus_per_node),
        network_bytes_per_second=min(
            source.inter_node_bytes_per_second, target.inter_node_bytes_per_second
        ),
        node_bytes_per_second=sheet.intra_node_bytes_per_second,
        host_bytes_per_second=sheet.host_bytes_per_second,
        bucket_bytes=_said_bucket_bytes(transition),
        gathers_across=_gathering_ranks(train) > source.gpus_per_node,
        restored_bytes=_restored_bytes(train, transition.moves_adapter),
        casts=is_narrow(generate.precision)
        and train.job.quantised_at != "sender"
        and not transition.moves_adapter,
    )


def _said_bucket_bytes(transition: PlacedTransition) -> int | None:
    """Return the buckets that a plan says, where its method sends any: what goes tensor by tensor has none."""
    method = transition.sheet.method
    return transition.bucket_bytes if method is not None and method.bucket_bytes else None


def _gathering_ranks(train: PlacedTask) -> int:
    """Return the ranks next to each other that have a whole model among them: all, or a group that shards one copy of several."""
    layout = train.layout
    if layout.zero == FULLY_SHARDED and layout.shard_ranks is not None:
        return layout.shard_ranks * layout.tp * layout.pp
    return train.site.gpus


def _restored_bytes(train: PlacedTask, adapters: bool) -> float:
    """Return the bytes of a training rank's shard of weights that is in host memory when they are to be sent.

    Whole buffers, as Megatron's, are pinned there, and come back at once before the sync (verl@1dda039b, utils/megatron_utils.py,
    load_megatron_model_to_gpu).
    """
    if adapters or "weights" not in train.leaves or train.layout.zero != FULLY_SHARDED:
        return 0.0
    return train.kept_states(train.state_ranks, train.stored.weight_bytes)


def _nodes(train: Site, generate: Site, same_pool: bool) -> int:
    gpus = train.gpus if same_pool else train.gpus + generate.gpus
    return max(1, -(-gpus // max(train.gpus_per_node, generate.gpus_per_node)))


def _software(
    transition: PlacedTransition, model_bytes: float, received: float, nodes: int, wire: Estimate
) -> Estimate:
    """Return the seconds that software needs beyond the wire's: bytes move while it works."""
    sheet, layout = transition.sheet, transition.generate.layout
    written = model_bytes / (layout.tp * layout.pp)
    if layout.expert_ranks > layout.tp:  # of experts, a rank generates with its own
        shard_bytes = transition.generate.parameters * transition.train.formats.weight_bytes
        written = min(written, shard_bytes)
    groups = max(1, transition.train.site.gpus // volume_of(transition).group_ranks)
    seconds = sheet.software_seconds(model_bytes, received, written, nodes, groups)
    return Estimate(
        max(0.0, seconds - wire.seconds), seconds * sheet.spread_fraction, Source.FITTED
    )


def _own_weights(transition: PlacedTransition) -> dict[str, Estimate]:
    """Return seconds of what makes weights that are the engine's own, or brings them back."""
    train, generate = transition.train, transition.generate
    if transition.moves_adapter:
        away = generate.weight_bytes if transition.same_pool else 0
        return {
            "weights from host": pinned_copy(generate, away, "host_to_device") if away else ZERO
        }
    parts: dict[str, Estimate] = {}
    if train.adapter is not None:
        # Each frozen weight is read, and the sum with its adapter's product written.
        parts["adapter merge"] = train.device.memory_bound(2 * train.weight_bytes)
    if is_narrow(generate.precision):
        # A block's weights are read for its largest value and for the quotients, which are written.
        at_work = train if train.job.quantised_at == "sender" else generate
        num_bytes = 2 * train.formats.weight_bytes + PRECISIONS[generate.precision].weight_bytes
        parts["quantisation"] = at_work.device.memory_bound(at_work.parameters * num_bytes)
    return parts


def _sleeping_weights(transition: PlacedTransition) -> dict[str, Estimate]:
    """Return seconds of the engine's weights to host memory when it falls asleep, and back when it wakes.

    A framework that lets them lie there copies them both ways, though new ones come after (vLLM's sleep at level 1,
    device_allocator/cumem.py: into pinned memory), all ranks of a node at once. Of weights under adapters the way back alone is counted, for every framework (`_own_weights`).
    """
    train, generate = transition.train, transition.generate
    asleep = transition.same_pool and train.job.engines.sleeps
    if not (asleep and train.framework.host.keeps_engine_weights) or transition.moves_adapter:
        return {}
    num_bytes = generate.weight_bytes
    return {
        "engine's weights to host": pinned_copy(generate, num_bytes, "device_to_host"),
        "engine's weights from host": pinned_copy(generate, num_bytes, "host_to_device"),
    }


def _measured(transition: PlacedTransition) -> Estimate | None:
    """Return the measured seconds of a sync into another process, from tp to tp ranks."""
    train, generate = transition.train.layout, transition.generate.layout
    if transition.same_pool or train.pp * generate.pp > 1 or transition.expert_shares > 1:
        return None
    if transition.keeps_own_weights:
        return None  # no probe has adapters or quantises
    if not KNOWN_TRANSPORTS.load(transition.transport).probed:
        return None
    placed = transition.generate
    spans_nodes = placed.site.spans_nodes or transition.train.site.spans_nodes
    if placed.device.measured_by_node and spans_nodes:
        return None  # it was measured on one node
    return placed.device.model_pass(
        ModelPass(
            name="weight_sync",
            model=placed.model,
            head="lm",
            precision=placed.precision,
            tp=train.tp,
        )
    )


def _gathered(placed: PlacedTask, num_bytes: float, ranks: int, per_node: int) -> Estimate:
    """Return seconds of gathering `num_bytes` in full on each of a group of a pool's ranks."""
    return placed.device.collective(
        "all_gather",
        num_bytes,
        ranks,
        ranks_per_node=per_node,
        inter_node_bytes_per_second=placed.site.inter_node_bytes_per_second,
    )


def _unshard(train: PlacedTask, model_bytes: int) -> Estimate:
    """Return seconds of gathering fully sharded weights over the data-parallel ranks."""
    layout = train.layout
    ranks = min(layout.dp, layout.shard_ranks or layout.dp)
    if layout.zero < FULLY_SHARDED or ranks == 1:
        return ZERO
    block = layout.tp * layout.pp
    per_node = train.site.ranks_per_node(ranks, block)
    return _gathered(train, model_bytes / block, ranks, per_node)


def lacking_expert_bytes(transition: PlacedTransition) -> int:
    """Return the bytes of experts that each rank receives from the others of its expert group.

    A rank of e trains one in e of the experts, and generates with one in e_g of them: of every e / e_g
    shares it has one.
    """
    if transition.moves_adapter:
        return 0
    lacking, train = max(0, transition.expert_shares - 1), transition.train
    return lacking * train.expert_parameters * train.formats.weight_bytes


def _gather_experts(transition: PlacedTransition) -> Estimate:
    """Return seconds of gathering experts over the ranks that share them out, a model block apart."""
    received = lacking_expert_bytes(transition)
    if not received:
        return ZERO
    placed = transition.train
    train = placed.layout
    ranks, stride = transition.expert_shares, train.tp * train.pp * train.cp
    per_node = placed.site.ranks_per_node(ranks, stride)
    return _gathered(placed, received * ranks / (ranks - 1), ranks, per_node)


def _gather(volume: TransitionVolume, transition: PlacedTransition) -> Estimate:
    """Return seconds of the all-gathers, one in each group, all groups at once.

    A group of n that each receive r bytes gathers a tensor of r n / (n - 1).
    """
    ranks, site = volume.group_ranks, transition.train.site
    train, generate = transition.train.layout, transition.generate.layout
    if TRANSFERS.load(transition.name).nests:
        per_node = _micro_dp_ranks_per_node(
            (train.pp, train.tp), (generate.pp, generate.tp), site.gpus_per_node
        )
    else:
        per_node = site.ranks_per_node(ranks)
    return _gathered(transition.train, volume.received_bytes * ranks / (ranks - 1), ranks, per_node)


@lru_cache(maxsize=4096)
def _micro_dp_ranks_per_node(
    train: tuple[int, int], generate: tuple[int, int], gpus_per_node: int
) -> int:
    """Return how many ranks of the most scattered micro-DP group share a node."""
    block = TrainLayout(pp=train[0], tp=train[1], dp=1)
    groups = GenerateLayout(train=block, pp=generate[0], tp=generate[1]).micro_dp_groups()
    return min(
        math.ceil(len(group) / len({rank // gpus_per_node for rank in group})) for group in groups
    )


def _broadcast(shard_bytes: float, train: PlacedTask, generate: PlacedTask) -> Estimate:
    """Return seconds of sending each generate rank's shard to all replicas, all shards at once."""
    source, target = train.site, generate.site
    spread_out = source.gpus + target.gpus > target.gpus_per_node
    ranks = 1 + generate.layout.dp
    return generate.device.collective(
        "broadcast",
        shard_bytes,
        ranks,
        ranks_per_node=1 if spread_out else ranks,
        inter_node_bytes_per_second=min(
            source.inter_node_bytes_per_second, target.inter_node_bytes_per_second
        ),
    )
