import statistics

from hypothesis import given
from hypothesis import strategies as st

from rlplan.workload import Lognormal, longest, mean_length, sample_lengths
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
