"""The transition: bringing the actor's weights from its train to its generate layout."""

import math
from functools import lru_cache

from profiles.facts import DeviceFacts, Facts
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import expected_rounds
from rlplan.estimate import ZERO, Estimate, Source, total
from rlplan.hardware import TransitionSheet
from rlplan.job import Job
from rlplan.layout import GenerateLayout, TrainLayout
from rlplan.model import ModelArchitecture
from rlplan.plan import TaskPlan
from rlplan.precision import PRECISIONS
from rlplan.probing import ModelPass
from rlplan.transfers import TransitionShape, TransitionVolume, transition_volume
from simulator.costs.pricing import precision_of
from simulator.costs.sharding import FULLY_SHARDED
from simulator.costs.taskcost import TaskCost, cost_of, times
from simulator.model.weights import expert_parameters
from simulator.site import Site


def shape_of(train: TaskPlan, generate: TaskPlan) -> TransitionShape:
    """Return both layouts' sizes as the transitions' formulas want them."""
    return TransitionShape(
        tp=train.tp, pp=train.pp, dp=train.dp, tp_gen=generate.tp, pp_gen=generate.pp
    )


def volume_of(name: str, model_bytes: int, train: TaskPlan, generate: TaskPlan) -> TransitionVolume:
    """Return what a transition moves and keeps, in bytes per GPU.

    The all-gather over all GPUs is written for fully sharded weights (ZeRO stage 3). Where data-
    parallel ranks hold the same weights it has only a model-parallel block to gather: the vanilla
    groups.
    """
    if name == "all-gather" and train.zero < FULLY_SHARDED:
        name = "hybridflow-v"
    return _volume(name, model_bytes, shape_of(train, generate))


@lru_cache(maxsize=65536)
def _volume(name: str, model_bytes: int, shape: TransitionShape) -> TransitionVolume:
    return transition_volume(name, model_bytes, shape)


def transition_cost(  # noqa: PLR0913, PLR0917 -- two layouts on two sites
    name: str,
    model: ModelArchitecture,
    train: TaskPlan,
    generate: TaskPlan,
    train_site: Site,
    generate_site: Site,
    same_pool: bool,
    job: Job,
    facts: Facts,
) -> TaskCost:
    """Return what it costs to bring new weights to the generation engine.

    Measured whole where the profile has it. Otherwise: a gather of fully sharded weights first, or of
    experts that training shares out over more ranks than generation does, the
    collective of the transition's formula, writing the received bytes, what the software needs beyond
    that (`profiles/transitions/`), and the engine's fixed time.
    Nothing at all when both layouts are equal, on the same GPUs, and share one copy. Where groups are
    sampled again, a pool that also trains comes back to the generate layout in each round.
    """
    once = _once(name, model, train, generate, train_site, generate_site, same_pool, job, facts)
    rounds = expected_rounds(load_algorithm(job.algorithm), job) if same_pool else 1.0
    return once if rounds == 1 else times(once, rounds)


def _once(  # noqa: PLR0913, PLR0917 -- two layouts on two sites
    name: str,
    model: ModelArchitecture,
    train: TaskPlan,
    generate: TaskPlan,
    train_site: Site,
    generate_site: Site,
    same_pool: bool,
    job: Job,
    facts: Facts,
) -> TaskCost:
    """Return what one transition costs."""
    device = facts.device(generate_site.device)
    engine = facts.engine(generate.engine)
    if same_pool and _shares_weights(train, generate):
        return cost_of({})
    measured = _measured(device, model, train, generate, same_pool, job)
    if measured is not None:
        return cost_of({"weight sync": measured})
    model_bytes = model.num_parameters() * PRECISIONS[precision_of(job)].weight_bytes
    volume = volume_of(name, model_bytes, train, generate)
    received = max(0.0, volume.received_bytes)
    parts: dict[str, Estimate] = {}
    if train.zero < FULLY_SHARDED:  # else they come with all other weights
        value_bytes = PRECISIONS[precision_of(job)].weight_bytes
        experts = lacking_expert_bytes(model, train, generate, value_bytes)
        parts["expert gather"] = _gather_experts(experts, train, generate, train_site, facts)
    if name != "all-gather":  # which gathers the shards of all ranks by itself
        parts["sharded weight gather"] = _unshard(train, train_site, model_bytes, facts)
    if volume.collective == "broadcast" or not same_pool:
        shard_bytes = model_bytes / (generate.tp * generate.pp)
        parts["weight broadcast"] = _broadcast(
            shard_bytes, generate, train_site, generate_site, facts
        )
        received = shard_bytes
    elif volume.collective == "all_gather" and received > 0:
        parts["weight gather"] = _gather(volume, name, train, generate, train_site, device)
    parts["weight writes"] = device.memory_bound(2 * received) if received else ZERO
    if received:
        sheet = facts.transition(name, generate_site.device)
        nodes = _nodes(train_site, generate_site, same_pool)
        parts["software"] = _software(sheet, model_bytes, received, nodes, total(parts.values()))
    parts["engine switch"] = Estimate(engine.transition_seconds, 0.0, Source.DATASHEET)
    return cost_of(parts)


def _nodes(train: Site, generate: Site, same_pool: bool) -> int:
    """Return the nodes that take part in a transition."""
    gpus = train.gpus if same_pool else train.gpus + generate.gpus
    return max(1, -(-gpus // max(train.gpus_per_node, generate.gpus_per_node)))


def _software(
    sheet: TransitionSheet, model_bytes: float, received: float, nodes: int, wire: Estimate
) -> Estimate:
    """Return the seconds that software needs beyond the wire's: bytes move while it works."""
    seconds = sheet.software_seconds(model_bytes, received, nodes)
    return Estimate(
        max(0.0, seconds - wire.seconds), seconds * sheet.spread_fraction, Source.FITTED
    )


def _shares_weights(train: TaskPlan, generate: TaskPlan) -> bool:
    same = (train.tp, train.pp) == (generate.tp, generate.pp)
    return same and train.zero < FULLY_SHARDED and train.ep <= generate.ep


def _measured(
    device: DeviceFacts,
    model: ModelArchitecture,
    train: TaskPlan,
    generate: TaskPlan,
    same_pool: bool,
    job: Job,
) -> Estimate | None:
    """Return the measured seconds of a sync into another process, from tp to tp ranks."""
    if same_pool or train.pp * generate.pp > 1 or train.ep > generate.ep:
        return None
    return device.model_pass(
        ModelPass(
            name="weight_sync",
            model=model,
            head="lm",
            precision=precision_of(job),
            tp=train.tp,
        )
    )


def _unshard(train: TaskPlan, site: Site, model_bytes: int, facts: Facts) -> Estimate:
    """Return seconds of gathering fully sharded weights over the data-parallel ranks."""
    if train.zero < FULLY_SHARDED or train.dp == 1:
        return ZERO
    block = train.tp * train.pp
    return facts.device(site.device).collective(
        "all_gather",
        model_bytes / block,
        train.dp,
        ranks_per_node=site.ranks_per_node(train.dp, block),
        inter_node_bytes_per_second=site.inter_node_bytes_per_second,
    )


def lacking_expert_bytes(
    model: ModelArchitecture, train: TaskPlan, generate: TaskPlan, value_bytes: int
) -> int:
    """Return the bytes of experts that each rank receives from the others of its expert group.

    A rank of e trains one in e of the experts, and generates with one in e_g of them: of every e / e_g
    shares it has one.
    """
    lacking = max(0, train.ep // generate.ep - 1)
    return lacking * expert_parameters(model, train.tp, train.pp, train.ep) * value_bytes


def _gather_experts(
    received: int, train: TaskPlan, generate: TaskPlan, site: Site, facts: Facts
) -> Estimate:
    """Return seconds of gathering experts over the ranks that share them out, a model block apart."""
    if not received:
        return ZERO
    ranks, stride = train.ep // generate.ep, train.tp * train.pp * train.cp
    return facts.device(site.device).collective(
        "all_gather",
        received * ranks / (ranks - 1),
        ranks,
        ranks_per_node=site.ranks_per_node(ranks, stride),
        inter_node_bytes_per_second=site.inter_node_bytes_per_second,
    )


def _gather(
    volume: TransitionVolume,
    name: str,
    train: TaskPlan,
    generate: TaskPlan,
    site: Site,
    device: DeviceFacts,
) -> Estimate:
    """Return seconds of the all-gathers, one in each group, all groups at once.

    A group of n that each receive r bytes gathers a tensor of r n / (n - 1).
    """
    ranks = volume.group_ranks
    if name == "hybridflow":
        per_node = _micro_dp_ranks_per_node(
            (train.pp, train.tp), (generate.pp, generate.tp), site.gpus_per_node
        )
    else:
        per_node = site.ranks_per_node(ranks)
    return device.collective(
        "all_gather",
        volume.received_bytes * ranks / (ranks - 1),
        ranks,
        ranks_per_node=per_node,
        inter_node_bytes_per_second=site.inter_node_bytes_per_second,
    )


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


def _broadcast(
    shard_bytes: float, generate: TaskPlan, source: Site, target: Site, facts: Facts
) -> Estimate:
    """Return seconds of sending each generate rank's shard to all replicas, all shards at once."""
    spread_out = source.gpus + target.gpus > target.gpus_per_node
    ranks = 1 + generate.dp
    return facts.device(target.device).collective(
        "broadcast",
        shard_bytes,
        ranks,
        ranks_per_node=1 if spread_out else ranks,
        inter_node_bytes_per_second=min(
            source.inter_node_bytes_per_second, target.inter_node_bytes_per_second
        ),
    )
