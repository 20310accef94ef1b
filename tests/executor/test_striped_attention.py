"""Attention of context-parallel ranks: what one process says, without most of what a mask hides."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.data.packing import BLOCK_QUERIES, pack
from rlplan.executor.model.attention import packed_attention
from rlplan.executor.parallel.meshes import RankGroup

HEADS, KV_HEADS, DIM = 4, 2, 8
LAYER: Any = SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, is_causal=True, training=True)
# By sequence: whose prompt, its tokens, and those of the response. Samples of one prompt share it:
# a rank has few queries of the second one, that see as many keys as those of the first.
APART = ((0, 600, 173), (1, 250, 8), (2, 1, 0), (3, 3, 5))
SAMPLES = ((0, 300, 480), (0, 300, 700), (1, 9, 1), (1, 9, 250))


def packed_rows(rows, ranks):
    """Return sequences packed, left-padded prompts before right-padded responses."""
    prompt, response = (max(row[part] for row in rows) for part in (1, 2))
    parts = torch.zeros(len(rows), prompt + response, dtype=torch.int8)
    for row, (_, asked, made) in enumerate(rows):
        parts[row, prompt - asked : prompt] = 1
        parts[row, prompt : prompt + made] = 2
    tokens = torch.tensor([[1 + row[0]] for row in rows]).expand(parts.shape)
    return pack(tokens, parts, ranks=ranks)


def attended(rows, ranks):
    """Return the outputs and gradients at a rank's positions of one packed row."""
    packed = packed_rows(rows, ranks)
    total, mine = packed.length * ranks.size, slice(ranks.position, None, ranks.size)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, total, DIM, generator=generator)[:, :, mine].requires_grad_()
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    output, _ = packed_attention(LAYER, query, key, value, packed.slots, scaling=0.3, dropout=0.0)
    wanted = torch.randn(1, total, HEADS, DIM, generator=generator)[:, mine]
    (output * wanted).sum().backward()
    return output.detach().numpy(), *(part.grad.numpy() for part in (query, key, value))


def on_stripes(rank, ranks):
    return [attended(rows, RankGroup(ranks, rank, dist.group.WORLD)) for rows in (APART, SAMPLES)]


@pytest.mark.full
@pytest.mark.ray
def test_outputs_and_gradients_of_long_stripes_are_those_of_one_process(worker_pool):
    alone = [attended(rows, RankGroup()) for rows in (APART, SAMPLES)]
    for rank, by_rows in enumerate(worker_pool.on_ranks(2, on_stripes)):
        for found, expected in zip(by_rows, alone, strict=True):
            assert found[0] == pytest.approx(expected[0][:, rank::2], abs=1e-5)
            for ours, theirs in zip(found[1:], expected[1:], strict=True):
                assert ours == pytest.approx(theirs[:, :, rank::2], abs=1e-5)


sequences = st.tuples(st.integers(0, 1), st.integers(1, 500), st.integers(0, 500))


@given(st.lists(sequences, min_size=1, max_size=4), st.integers(2, 4), st.data())
def test_blocks_hold_every_query_once_and_every_key_that_it_sees(rows, ranks, data):
    rank = data.draw(st.integers(0, ranks - 1))
    stripe = packed_rows(rows, RankGroup(ranks, rank)).slots.stripe
    seen = stripe.seen[:, 0].any(dim=0)
    starts = [queries.start for queries, _ in stripe.blocks]
    stops = [queries.stop for queries, _ in stripe.blocks]
    assert starts == list(range(0, stripe.slots.width, BLOCK_QUERIES))
    assert stops == [*starts[1:], stripe.slots.width]
    for queries, reach in stripe.blocks:
        assert seen[queries, reach - 1].any()
        assert not seen[queries, reach:].any()


def test_a_long_row_of_two_ranks_multiplies_little_more_than_the_causal_half():
    stripe = packed_rows(((0, 1024, 3072),), RankGroup(2, 1)).slots.stripe
    products = sum((rows.stop - rows.start) * reach for rows, reach in stripe.blocks)
    assert products / (2048 * 4096) == pytest.approx(0.53125)
