import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.workload import (
    Lognormal,
    at_step,
    longest,
    mean_at_step,
    mean_in_training,
    mean_length,
    sample_lengths,
)
from tests.strategies import distributions


@given(distributions(), st.integers(0, 200), st.integers(0, 2**32))
def test_drawn_lengths_are_positive_at_most_the_longest_and_the_same_for_the_same_seed(
    lengths, count, seed
):
    drawn = sample_lengths(lengths, count, seed)
    assert len(drawn) == count
    assert all(1 <= length <= longest(lengths) for length in drawn)
    assert drawn == sample_lengths(lengths, count, seed)


def test_the_mean_of_a_cut_lognormal_is_that_of_its_draws():
    lengths = Lognormal(mean=500, std=400, max=1000)
    drawn = statistics.fmean(sample_lengths(lengths, 50_000, 1))
    assert abs(drawn - mean_length(lengths)) < 3


def test_the_same_seed_gives_these_lengths_on_any_machine():
    assert sample_lengths(Lognormal(mean=100, std=50, max=200), 6, 7) == (76, 102, 94, 43, 46, 63)


@given(st.floats(1, 1e4), st.floats(1, 1e4), st.integers(1, 300))
def test_even_growth_has_the_mean_of_its_ends_over_a_training(first, last, steps):
    means = [mean_at_step((first, last), step, steps) for step in range(1, steps + 1)]
    assert statistics.fmean(means) == pytest.approx((first + last) / 2)
    assert all(min(first, last) <= mean <= max(first, last) for mean in means)


def test_growth_between_measured_means_bends_at_them_and_stays_at_its_end():
    means = (100.0, 400.0, 500.0)
    shares = [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [mean_in_training(means, share) for share in shares] == [100, 250, 400, 450, 500]
    assert mean_at_step(means, 1000, 10) == 500


@given(st.integers(1, 40), st.floats(20, 120), st.floats(20, 120))
def test_lengths_of_a_step_have_its_mean_and_the_same_maximum(step, first, last):
    lengths = Lognormal(mean=60, std=30, max=200, training_means=(first, last))
    there = at_step(lengths, step, 40)
    assert longest(there) == 200
    assert mean_length(there) == pytest.approx(mean_at_step((first, last), step, 40))
    still = replace(lengths, training_means=None)
    assert at_step(still, step, None) == still
