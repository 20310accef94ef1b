"""Measure what blocks of queries spare two context-parallel ranks' attention.

    python benchmarks/striped_attention.py [--repeats 5]

Each rank is a process with one thread. Printed are CPU milliseconds of forward and backward on
the slower one, the least of the repeats, with all queries at once and with the executor's blocks.
"""

import argparse
import os
import socket
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from rlplan.executor.data import packing
from rlplan.executor.model.attention import packed_attention
from rlplan.executor.parallel.meshes import RankGroup

RANKS, HEADS, KV_HEADS, HEAD_DIM = 2, 8, 4, 64
LAYER = SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, is_causal=True, training=True)
# Sequences of a packed row, and tokens of each.
ROWS = ((4, 512), (2, 1024), (1, 4096))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    processes.spawn(work, (port, repeats), nprocs=RANKS)


def work(rank: int, port: int, repeats: int) -> None:
    """Measure on one rank; the first one prints."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    for sequences, tokens in ROWS:
        at_once, in_blocks = (
            slower_rank(rank, sequences, tokens, block, repeats)
            for block in (tokens, packing.BLOCK_QUERIES)
        )
        if rank == 0:
            print(
                f"{sequences} x {tokens} tokens: {at_once:.1f} ms at once, {in_blocks:.1f} ms in"
                f" blocks of {packing.BLOCK_QUERIES} ({in_blocks / at_once - 1:+.0%})"
            )
    dist.destroy_process_group()


def slower_rank(rank: int, sequences: int, tokens: int, block: int, repeats: int) -> float:
    """Return CPU milliseconds of attention in blocks of so many queries."""
    usual, packing.BLOCK_QUERIES = packing.BLOCK_QUERIES, block
    parts = torch.ones(sequences, tokens, dtype=torch.int8)
    ranks = RankGroup(RANKS, rank, dist.group.WORLD)
    packed = packing.pack(torch.ones_like(parts, dtype=torch.long), parts, ranks=ranks)
    query, key, value = (
        torch.randn(1, heads, packed.length, HEAD_DIM, requires_grad=True)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    taken = []
    for _ in range(repeats + 1):  # the first one warms up
        dist.barrier()
        start = time.process_time()
        output, _ = packed_attention(
            LAYER, query, key, value, packed.slots, scaling=HEAD_DIM**-0.5, dropout=0.0
        )
        output.sum().backward()
        taken.append(time.process_time() - start)
    slower = torch.tensor(min(taken[1:]))
    dist.all_reduce(slower, op=dist.ReduceOp.MAX)
    packing.BLOCK_QUERIES = usual
    return float(slower) * 1e3


if __name__ == "__main__":
    main()
