"""Packed rows, whole and in stripes: every token is somewhere, and sees what comes before it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.data.packing import pack
from rlplan.executor.parallel.context import gather_rows
from rlplan.executor.parallel.meshes import ONE_RANK, RankGroup

lengths = st.lists(st.integers(0, 7), min_size=0, max_size=5)


def padded(row_lengths):
    """Return tokens that differ and their parts, padded on the right. (B, 8)."""
    shape = (len(row_lengths), 8)
    parts = torch.zeros(shape, dtype=torch.int8)
    for row, length in enumerate(row_lengths):
        parts[row, :length] = 1
    return torch.arange(shape[0] * 8).view(shape) + 1, parts


def stripes(row_lengths, ranks, **settings):
    tokens, parts = padded(row_lengths)
    found = [pack(tokens, parts, ranks=RankGroup(ranks, r), **settings) for r in range(ranks)]
    return pack(tokens, parts, length=found[0].length * ranks), found


@given(lengths, st.sampled_from([2, 3, 4]), st.integers(1, 3))
def test_stripes_together_are_the_row(row_lengths, ranks, multiple):
    whole, parts = stripes(row_lengths, ranks, multiple=multiple)
    for name in ("tokens", "positions"):
        together = torch.stack([getattr(part, name)[0] for part in parts], dim=1).flatten()
        assert torch.equal(together, getattr(whole, name)[0])
    following = torch.stack([part.next_tokens for part in parts], dim=1).flatten()
    assert torch.equal(following, whole.next_tokens)
    assert all(part.length % multiple == 0 for part in parts)


@given(lengths, st.sampled_from([2, 3, 4]))
def test_a_striped_query_sees_its_sequence_up_to_itself(row_lengths, ranks):
    whole, parts = stripes(row_lengths, ranks)
    filled = sum(row_lengths)
    for rank, part in enumerate(parts):
        stripe = part.slots.stripe
        for local, place in enumerate(range(rank, filled, ranks)):
            row, column = divmod(int(stripe.slots.places[local]), stripe.slots.width)
            assert row == int(whole.rows[place])
            assert int(stripe.slots.taken[row * stripe.slots.width + column]) == local
            seen = stripe.seen[row, 0, column].nonzero().flatten().tolist()
            assert seen == list(range(int(whole.positions[0, place]) + 1))
        assert bool(stripe.seen[..., 0].all())


@given(lengths, st.sampled_from([2, 3, 4]))
def test_no_rank_has_more_of_a_sequence_than_its_share_rounded_up(row_lengths, ranks):
    _, parts = stripes(row_lengths, ranks)
    share = -(-max(row_lengths, default=0) // ranks)
    assert max(part.slots.stripe.slots.width for part in parts) == max(1, share)


def test_a_first_token_is_predicted_by_nobody():
    tokens, parts = padded([2, 3])
    outputs = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    made = pack(tokens, parts).predictions_at_tokens(outputs)
    assert made.tolist() == [[0, 1, 0, 0, 0, 0, 0, 0], [0, 3, 4, 0, 0, 0, 0, 0]]


def test_a_rank_alone_gathers_nothing():
    rows = torch.ones(3, 2)
    assert gather_rows(rows, ONE_RANK) is rows


@pytest.mark.parametrize("row_lengths", [[], [0], [0, 0]])
def test_a_row_without_tokens_is_one_of_filler(row_lengths):
    tokens, parts = padded(row_lengths)
    packed = pack(tokens, parts, ranks=RankGroup(2, 1))
    assert packed.tokens.tolist() == [[0]]
    assert packed.rows.numel() == 0
