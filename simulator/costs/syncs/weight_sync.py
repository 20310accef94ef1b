"""Seconds of a framework's weight sync: gathered, staged, carried and loaded, bucket by bucket.

A method (`rlplan.sheets.hardware`) says which stages there are and what its software reaches; bytes, layouts and
links say the rest. Where stages overlap, the longest shows whole and the others for one bucket.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from rlplan.estimate import Estimate, Source
from rlplan.sheets.hardware import TransitionSheet
from rlplan.sheets.weight_sync import SyncMethod

BY_STAGE = ("stage heads", "every rank")
METADATA, GATHER, STAGING = "metadata", "weight gather", "host staging"
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
        longest = max(stages, key=lambda each: stages[each])
        stages = {
            name: seconds if name == longest else seconds / buckets
            for name, seconds in stages.items()
        }
    calls = 0.0 if method.sender in BY_STAGE else method.bucket_seconds * buckets
    return {
        METADATA: method.metadata_seconds * case.tensors,
        **stages,
        CALLS: method.fixed_seconds + calls,
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
    if case.across:
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
    return sent / readers / (case.network_bytes_per_second * method.link_fraction)


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
    tensors = method.load_seconds * case.tensors * share
    return tensors + _per(_sent(method, case) * share, method.load_bytes_per_second)
