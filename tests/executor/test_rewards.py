"""Rewards, penalties for length, weights of tokens, and the multiplier of a cost."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.learning.experience import overlong_penalties, sequence_weights, text_weights
from rlplan.executor.learning.multiplier import next_multiplier
from rlplan.job import Constraint, Overlong


def mask_of(*lengths, width=None):
    width = width or max(lengths)
    return torch.tensor([[place < length for place in range(width)] for length in lengths])


def alone(tensor):
    return tensor


def test_only_the_last_tokens_of_the_longest_responses_are_punished():
    """DAPO's eq. 13 with L = 10 and a buffer of 4."""
    mask = mask_of(0, 6, 7, 8, 10)
    found = overlong_penalties(mask, Overlong(buffer_tokens=4, penalty=2.0), 10)
    assert found.tolist() == [0.0, 0.0, -0.5, -1.0, -2.0]


@given(st.lists(st.integers(0, 7), min_size=6, max_size=6))
def test_sequence_weights_make_the_mean_of_the_means_of_an_updates_responses(lengths):
    mask = mask_of(*lengths, width=7)
    values = torch.rand(6, 7, dtype=torch.float64)
    weights = sequence_weights(mask, 2, alone)
    for update in (slice(0, 3), slice(3, 6)):
        normalizer = mask[update].sum().clamp(min=1)
        found = (weights * values * mask)[update].sum() / normalizer
        means = [
            values[row][mask[row]].mean().item()
            for row in range(update.start, update.stop)
            if lengths[row]
        ]
        expected = sum(means) / len(means) if means else 0.0
        assert found.item() == pytest.approx(expected, abs=1e-6)


def test_responses_of_one_length_weigh_one():
    assert torch.equal(sequence_weights(mask_of(4, 4), 1, alone), torch.ones(2, 4))


def test_sequence_weights_count_what_other_ranks_have():
    """Another rank has three responses of 9 tokens in all: 12 tokens of 4 responses."""
    weights = sequence_weights(
        mask_of(3), 1, lambda sums: sums + torch.tensor([[9.0], [3.0]], dtype=sums.dtype)
    )
    assert weights.tolist() == [[1.0, 1.0, 1.0]]


def test_the_weights_of_an_updates_texts_sum_to_its_response_tokens():
    texts, mask = mask_of(1, 2, 4, 0), mask_of(2, 1, 3, 3)
    weights = text_weights(texts, mask, 2, alone)
    assert weights[:2].sum().item() == 3.0
    assert weights[2:].sum().item() == 6.0
    assert weights[2].tolist() == [1.5, 1.5, 1.5, 1.5]
    assert (weights[~texts] == 0).all()


def test_a_multiplier_grows_above_the_limit_and_shrinks_below_it():
    constraint = Constraint(cost_limit=1.0, multiplier_learning_rate=0.5)
    assert next_multiplier(2.0, 1.0, constraint) == pytest.approx(2.0)
    assert next_multiplier(2.0, 1.5, constraint) == pytest.approx(2.0 * 1.6487212707)
    assert next_multiplier(2.0, 0.5, constraint) == pytest.approx(2.0 / 1.6487212707)


@given(st.floats(0.01, 100), st.floats(-1e6, 1e6))
def test_a_multiplier_stays_within_its_bounds(multiplier, cost):
    found = next_multiplier(multiplier, cost, Constraint(multiplier_max=100.0))
    assert 0 < found <= 100 * (1 + 1e-9)
    assert next_multiplier(found, cost, Constraint(multiplier_max=100.0)) > 0
