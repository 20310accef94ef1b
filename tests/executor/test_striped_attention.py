"""Attention of context-parallel ranks: what one process says, without most of what a mask hides."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from executor.attention import BLOCK_QUERIES, _blocks, packed_attention
from executor.meshes import RankGroup
from executor.packing import pack

HEADS, KV_HEADS, DIM = 4, 2, 8
LAYER = SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, is_causal=True, training=True)
# Several blocks of two ranks' queries, just one query more than a block, and next to nothing.
LENGTHS = (3 * 2 * BLOCK_QUERIES + 5, 2 * BLOCK_QUERIES + 2, 1, 8)


def packed_rows(lengths, ranks):
    parts = torch.zeros(len(lengths), max(lengths), dtype=torch.int8)
    for row, length in enumerate(lengths):
        parts[row, :length] = 1
    return pack(torch.ones_like(parts, dtype=torch.long), parts, ranks=ranks)


def attended(ranks):
    """Return the outputs and gradients at a rank's positions of one packed row."""
    packed = packed_rows(LENGTHS, ranks)
    total, mine = sum(LENGTHS), slice(ranks.position, None, ranks.size)
    generator = torch.Generator().manual_seed(0)
    query, *pair = (
        torch.randn(1, heads, total, DIM, generator=generator)[:, :, mine].requires_grad_()
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    output, _ = packed_attention(LAYER, query, *pair, packed.slots, scaling=0.3, dropout=0.0)
    wanted = torch.randn(1, total, HEADS, DIM, generator=generator)[:, mine]
    (output * wanted).sum().backward()
    return output.detach().numpy(), *(part.grad.numpy() for part in (query, *pair))


def on_stripes(rank, ranks):
    return attended(RankGroup(ranks, rank, dist.group.WORLD))


@pytest.mark.ray
def test_outputs_and_gradients_of_long_stripes_are_those_of_one_process(crew):
    expected = attended(RankGroup())
    for rank, found in enumerate(crew.on_ranks(2, on_stripes)):
        assert found[0] == pytest.approx(expected[0][:, rank::2], abs=1e-5)
        for ours, theirs in zip(found[1:], expected[1:], strict=True):
            assert ours == pytest.approx(theirs[:, :, rank::2], abs=1e-5)


lengths = st.lists(st.integers(1, 900), min_size=1, max_size=4)


@given(lengths, st.integers(2, 4), st.data())
def test_blocks_hold_every_query_once_and_every_key_that_it_sees(lengths, ranks, data):
    rank = data.draw(st.integers(0, ranks - 1))
    stripe = packed_rows(lengths, RankGroup(ranks, rank)).slots.stripe
    blocks, seen = _blocks(stripe), stripe.seen[:, 0].any(dim=0)
    assert [rows.start for rows, _ in blocks] == list(range(0, stripe.slots.width, BLOCK_QUERIES))
    assert [rows.stop for rows, _ in blocks[:-1]] == [rows.start for rows, _ in blocks[1:]]
    assert blocks[-1][0].stop == stripe.slots.width
    for rows, reach in blocks:
        assert not seen[rows, reach:].any()


def test_a_long_row_of_two_ranks_multiplies_little_more_than_the_causal_half():
    stripe = packed_rows((4096,), RankGroup(2, 1)).slots.stripe
    products = sum((rows.stop - rows.start) * reach for rows, reach in _blocks(stripe))
    assert products / (2048 * 4096) == pytest.approx(0.53125)
