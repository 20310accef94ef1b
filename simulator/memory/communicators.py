"""What NCCL's buffers take of a GPU's memory: groups of ranks in which a task's model meets, and what each of them holds.

Sizes follow NCCL's source (2.21 to 2.30: init.cc, transport/p2p.cc, transport/net.cc, transport/nvls.cc, graph/connect.cc,
graph/paths.cc). A rank connects to a neighbour in every channel, and has for it a buffer for each protocol and a send buffer of its
own; a group has one more that all of its sends over the network share. Measured of them: 544 MiB of a group of two A100 and 688 of
one of four (NCCL issue 964), where 544 and 760 are counted; 3.28 GB of an exchange between eight H100 (issue 1685), where 3.09 are;
about 7 and 9.5 GB of all groups of a Megatron on eight H100 at TP 2, PP 2 and DP 2 without and with experts at EP 2 (verl pull request
6408).
"""

from typing import Final

import numpy as np

from rlplan.dispatchers import DISPATCHERS
from rlplan.sheets import DeviceSheet
from rlplan.simulator.columns import Flags, Ints
from rlplan.simulator.placed import PlacedTasks
from rlplan.units import MIB

# A channel's buffers for one neighbour: what is received in all three protocols (LL 512 KiB, LL128 4.7 MiB, Simple 4 MiB; 10 MiB in
# pages of 2 MiB), and what is sent.
CONNECTION_BYTES: Final = 12 * MIB
# Channels between GPUs of one node that a switch or a mesh of NVLink connects: of collectives, and of sends to one rank.
CHANNELS: Final = 24
SEND_CHANNELS: Final = 32
# Slots of sends over the network that a group has for each channel, whether it sends over the network or not: 16 steps of 512 KiB where
# NVLink connects all ranks, of 128 KiB else. Of the channels there are then as many as the next power of 2.
SHARED_BYTES: Final = 16 * MIB // 2
SHARED_APART_BYTES: Final = 16 * MIB // 8
# Channels of a group over nodes for each rank that a node has of it, as each has a network card, and of sends to one rank in it.
APART_CHANNELS: Final = 2
# From Hopper on a group over nodes has twice as many where these are fewer (graph/connect.cc).
DOUBLED_CHANNELS: Final = 16
# What a rank at which a channel leaves the node has more: a tree's three neighbours there, for receiving and for sending.
LEAVING_BYTES: Final = 56 * MIB
# Two ranks are each other's neighbours on both sides, and add up without the switch.
PAIR: Final = 2
# Reductions in the switch (NVLS): channels in one node and over nodes (since 2.27; transport/nvls.cc), and of each for each rank, at most
# 32, two buffers of 8 steps of 128 KiB.
SWITCH_CHANNELS: Final = {"hopper": (16, 16), "blackwell": (24, 32)}
SWITCH_BYTES: Final = 2 * MIB
SWITCH_RANKS: Final = 32
# Two ranks of a group over PCIe: few channels.
SLOW_CHANNELS: Final = 4
FAST_BYTES_PER_SECOND: Final = 1.0e11
# Ascend's library has two buffers of 200 MB for each group, to send and to receive (CANN 8.0 to 9.0, environment variables, HCCL_BUFFSIZE).
ASCEND: Final = "ascend"
HCCL_BYTES: Final = 2 * 200 * MIB
MEGATRON: Final = "megatron"
# DeepEP's buffers in place of an exchange by NCCL (csrc/config.hpp, deep_ep/buffer.py: 10 channels; for each rank of a node 288 tokens,
# for each node 128 twice), and what a token has beside its row: 128 choices with weights and scales.
DEEPEP: Final = frozenset({"deepep", "deepep-efa", "uccl"})
DEEPEP_CHANNELS: Final = 10
DEEPEP_LINK_TOKENS: Final = 288
DEEPEP_NETWORK_TOKENS: Final = 2 * 128
DEEPEP_TOKEN_BYTES: Final = 128 * (8 + 4 + 4)


def communicator_bytes(table: PlacedTasks) -> Ints:
    """Return the buffers of the groups of ranks that a task's model meets in, on one GPU of each layout. Shape (layouts,)."""
    columns, device = table.columns, table.any.device.sheet
    if device.kind == "cpu":
        return np.zeros_like(columns.tp)
    node = _node_gpus(table)
    total = np.zeros_like(columns.tp)
    for ranks, stride in _groups(table):
        total = total + _group_bytes(device, ranks, _local(node, ranks, stride))
    if table.any.engine.memory.groups == MEGATRON:
        total = total + np.where(columns.pp > 1, 2 * _sends_bytes(table, node), 0)
    exchanged = np.where(columns.ep > 1, _dispatcher_bytes(table, node), 0)
    return np.asarray(total + exchanged, dtype=np.int64)


def _dispatcher_bytes(table: PlacedTasks, node: int) -> Ints:
    """Return what ranks that share out experts hold to bring tokens to them.

    Where all ranks gather all tokens, Megatron-Core's do so in the group that is counted as the one that counts tokens
    (transformer/moe/token_dispatcher.py, MoEAllGatherTokenDispatcher: `tp_ep_group`).
    """
    ranks, device = table.columns.ep, table.any.device.sheet
    near = _local(node, ranks, _expert_width(table))
    dispatcher = table.any.options.dispatcher or table.any.engine.dispatcher
    if dispatcher in DEEPEP:
        return _deepep_bytes(table, near)
    if DISPATCHERS.load(dispatcher).copies != "all":
        return _exchange_bytes(device, ranks, near)
    if table.any.engine.memory.groups == MEGATRON:
        return np.zeros_like(ranks)
    return _group_bytes(device, ranks, near)


def _deepep_bytes(table: PlacedTasks, near: Ints) -> Ints:
    ranks = table.columns.ep
    row = 2 * table.any.model.hidden_size + DEEPEP_TOKEN_BYTES
    nodes = np.where(near < ranks, -(-ranks // near), 0)
    tokens = near * DEEPEP_LINK_TOKENS + nodes * DEEPEP_NETWORK_TOKENS
    return np.asarray(DEEPEP_CHANNELS * tokens * row, dtype=np.int64)


def _groups(table: PlacedTasks) -> list[tuple[Ints, Ints]]:
    """Return the ranks of each group in which collectives run, and how far apart they stand.

    Ranks that share states in groups of some of them meet in these, and in one with those that hold copies of theirs.
    Megatron-Core (0.13, optimizer/__init__.py, transformer/moe/token_dispatcher.py) has beside those of data, tensors, stages and
    context: the process's first group and, of experts, those that count tokens; of what learns one of all ranks over which
    gradients' norms are added up, and those that share an expert's gradients.
    """
    columns = table.columns
    one = np.ones_like(columns.tp)
    data, shards = columns.dp * columns.cp, columns.state_ranks
    outermost = table.any.engine.stages_outermost
    block = columns.tp if outermost else columns.tp * columns.pp
    groups = [
        (shards, block),
        (data // shards, block * shards),
        (columns.tp, one),
        (columns.pp, columns.tp * data if outermost else columns.tp),
        (columns.cp, block),
    ]
    if table.any.engine.memory.groups != MEGATRON:
        return groups
    ranks, width = columns.tp * data * columns.pp, _expert_width(table)
    counting = np.where(columns.ep > 1, width * columns.ep, 1)
    groups += [(ranks, one), (counting, one)]
    if not table.any.trains_role:
        return groups
    sharing = np.where(columns.ep > 1, columns.tp * data // (width * columns.ep), 1)
    return [*groups, (ranks, one), (sharing, width * columns.ep)]


def _expert_width(table: PlacedTasks) -> Ints:
    columns = table.columns
    return np.asarray(
        np.where(columns.expert_tp > 0, columns.expert_tp, columns.tp), dtype=np.int64
    )


def _node_gpus(table: PlacedTasks) -> int:
    """Return the GPUs that a link reaches without the network: those of the largest node, whatever the site."""
    job, name = table.any.job, table.any.site.device
    return max((group.linked_gpus for group in job.cluster if group.gpu == name), default=1)


def _local(node: int, ranks: Ints, stride: Ints) -> Ints:
    """Return how many of a group's ranks share a node."""
    return np.asarray(
        np.maximum(1, np.minimum(ranks, node // np.maximum(1, stride))), dtype=np.int64
    )


def _group_bytes(device: DeviceSheet, ranks: Ints, near: Ints) -> Ints:
    """Return what one group's collectives hold; 0 of one rank alone.

    In a node a channel is a ring, and a chain that goes back over the same neighbours: all but one of them both ways.
    """
    if device.architecture == ASCEND:
        return np.where(ranks > 1, HCCL_BYTES, 0)
    apart = near < ranks
    channels = _channels(device, near, apart)
    back = np.where(ranks > PAIR, (ranks - 1) / ranks, 0.0)
    rings = channels * CONNECTION_BYTES * (1 + back)
    leaving = np.where(apart, np.ceil(channels / near) * LEAVING_BYTES, 0)
    held = rings + _shared_bytes(device, channels, apart) + leaving
    return np.where(ranks > 1, np.rint(held + _switch_bytes(device, near, apart)), 0).astype(
        np.int64
    )


def _is_fast(device: DeviceSheet) -> bool:
    return device.intra_node_bytes_per_second >= FAST_BYTES_PER_SECOND


def _channels(device: DeviceSheet, near: Ints, apart: Flags) -> Ints:
    """Return the channels of a group's collectives."""
    inside = CHANNELS if _is_fast(device) else SLOW_CHANNELS
    over = np.minimum(APART_CHANNELS * near, inside)
    if _is_fast(device) and device.architecture in SWITCH_CHANNELS:
        over = np.where(over < DOUBLED_CHANNELS, 2 * over, over)
    return np.asarray(np.where(apart, over, inside), dtype=np.int64)


def _shared_bytes(device: DeviceSheet, channels: Ints, apart: Flags) -> Ints:
    """Return what all sends of a group over the network share, by the channels of its collectives."""
    slots = 2 ** np.ceil(np.log2(channels)).astype(np.int64)
    near = SHARED_BYTES if _is_fast(device) else SHARED_APART_BYTES
    return np.asarray(slots * np.where(apart, SHARED_APART_BYTES, near), dtype=np.int64)


def _switch_bytes(device: DeviceSheet, near: Ints, apart: Flags) -> Ints:
    if not _is_fast(device) or device.architecture not in SWITCH_CHANNELS:
        return np.zeros_like(near)
    inside, over = SWITCH_CHANNELS[device.architecture]
    held = np.where(apart, over, inside) * np.minimum(near, SWITCH_RANKS) * SWITCH_BYTES
    return np.where(near > PAIR, held, 0)


def _sends_bytes(table: PlacedTasks, node: int) -> Ints:
    """Return what a group of two stages holds, which send to each other and meet in nothing else.

    Sends one by one have such groups in PyTorch, one with each neighbour; of two stages Megatron-Core sends back in another (0.13,
    pipeline_parallel/p2p_communication.py, `_p2p_ops`). Sends in batches (`batch_p2p_comm`) need none, which is not told apart.
    """
    columns, device = table.columns, table.any.device.sheet
    pair = np.full_like(columns.pp, PAIR)
    stride = columns.tp * columns.dp * columns.cp
    return _exchange_bytes(device, pair, _local(node, pair, stride))


def _exchange_bytes(device: DeviceSheet, ranks: Ints, near: Ints) -> Ints:
    """Return what a group holds in which each rank sends to each other: many channels to each in one node, few where some are elsewhere.

    What comes over the network has slots like those of what goes.
    """
    if device.architecture == ASCEND:
        return np.full_like(ranks, HCCL_BYTES)
    apart = near < ranks
    inside = SEND_CHANNELS if _is_fast(device) else SLOW_CHANNELS
    channels = np.where(apart, APART_CHANNELS, inside)
    shared = _shared_bytes(device, _channels(device, near, apart), apart) * np.where(apart, 2, 1)
    return np.asarray((near - 1) * channels * CONNECTION_BYTES + shared, dtype=np.int64)
