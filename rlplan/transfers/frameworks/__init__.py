"""Frameworks' own ways to sync weights: what they do and which pools they serve.

They differ by their sheets alone: the name is that of a method in `profiles/transitions/`, which says what it takes,
with its sources.
"""

from collections.abc import Mapping
from functools import partial

from rlplan.transfers import Transition, own_copy

# Behind all others where a usual transition is looked for.
METHOD_PLACE = 10


def _method(words: str, *, on_one_pool: bool = False, between_pools: bool = False) -> Transition:
    """Return a framework's way: it reaches every cut and is tried only where it is named."""
    return Transition(
        words=words,
        volume=partial(own_copy, collective="stream", group_ranks=1),
        on_one_pool=on_one_pool,
        between_pools=between_pools,
        method=True,
        reaches=lambda *_: True,
        place=METHOD_PLACE,
    )


_apart = partial(_method, between_pools=True)
_colocated = partial(_method, on_one_pool=True)
_anywhere = partial(_method, on_one_pool=True, between_pools=True)


MEMBERS: Mapping[str, Transition] = {
    "areal-nccl": _apart(
        "gathered by the first training rank and broadcast in buckets to the other pool"
    ),
    "checkpoint-engine": _anywhere(
        "copied from the host, broadcast in buckets among all ranks and copied by the engine"
    ),
    "checkpoint-engine-0.1": _anywhere(
        "copied from the host, broadcast in buckets among all ranks and copied by the engine"
    ),
    "checkpoint-engine-p2p": _anywhere(
        "read from other hosts by RDMA, broadcast in buckets among the new ranks and copied"
    ),
    "checkpoint-engine-p2p-0.1": _anywhere(
        "read from other hosts by RDMA, one rank at a time, broadcast in buckets and copied"
    ),
    "fabric-lib": _apart(
        "gathered by every rank and written by RDMA, what each rank of the other pool keeps"
    ),
    "files": _apart("written to shared files and read by the other pool"),
    "miles-p2p": _apart(
        "gathered, cut as the engine is in host memory, and written by RDMA to the other pool"
    ),
    "nemo-rl-ipc": _colocated(
        "gathered tensor by tensor and handed to the engine on the same GPU in buckets, by CUDA IPC"
    ),
    "nemo-rl-nccl": _apart(
        "gathered by the first training rank and broadcast, packed, to the other pool"
    ),
    "nemo-rl-nccl-reshard": _apart(
        "resharded: every rank sends the others what they lack, without gathering"
    ),
    "openrlhf-ipc": _colocated(
        "gathered and handed to the engine on the same GPU tensor by tensor, by CUDA IPC"
    ),
    "openrlhf-nccl": _apart(
        "gathered by the first training rank and broadcast tensor by tensor to the other pool"
    ),
    "prime-rl-nccl": _apart(
        "gathered by the first training rank and broadcast layer by layer to the other pool"
    ),
    "prime-rl-nixl": _apart(
        "pulled by every rank of the other pool, the slices that it keeps, by RDMA"
    ),
    "skyrl-ipc": _colocated(
        "gathered tensor by tensor and handed to the engine on the same GPU in buckets, by CUDA IPC"
    ),
    "skyrl-nccl": _apart(
        "gathered by the first training rank and broadcast to all ranks of the other pool"
    ),
    "slime-ipc": _colocated(
        "gathered tensor by tensor and handed to the engine on the same GPU in buckets, by CUDA IPC"
    ),
    "slime-nccl": _apart(
        "gathered by the first rank of every stage and broadcast in buckets to the other pool"
    ),
    "verl-delta": _apart(
        "compared on every rank, and what changed gathered and broadcast to the other pool"
    ),
    "verl-kimi": _apart(
        "off-loaded to the host, read by RDMA and broadcast in buckets among the ranks of the other pool"
    ),
    "verl-megatron-broadcast": _apart("gathered and broadcast tensor by tensor to the other pool"),
    "verl-mooncake": _apart(
        "gathered by the first training rank and passed on in buckets, by RDMA, to the other pool"
    ),
    "verl-naive": _colocated(
        "gathered tensor by tensor and streamed in buckets to the engine on the same GPU"
    ),
    "verl-nccl": _apart(
        "gathered by the first training rank and broadcast in buckets to all ranks of the other pool"
    ),
    "verl-nixl": _apart(
        "gathered by the first training rank and passed on in buckets from rank to rank of the other pool"
    ),
    "vllm-rdt": _apart("pulled by every rank of the other pool, the slices that it keeps, by RDMA"),
}
