"""Lengths in costs: padding, packing, and the rank that draws more than its share."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rules.batches import rank_sequences
from rlplan.simulator.workload import (
    LengthStatistics,
    micro_batch_of,
    micro_batches,
    padded_tokens,
    statistics_of,
    straggler_fraction,
)
from rlplan.workload import Empirical, Uniform, Workload, mean_length
from tests.simulator.cost_jobs import job_of
from tests.strategies import distributions


def statistics(prompt_tokens=100, response_tokens=50, **fields):
    lengths = {"prompt_tokens": prompt_tokens, "response_tokens": response_tokens}
    return LengthStatistics(Workload(**({"prompts": 64} | lengths | fields)))


@pytest.mark.parametrize("padding", ["none", "micro_batch", "rank", "batch", "limits"])
def test_equal_lengths_need_no_padding(padding):
    batch = micro_batch_of(statistics(), 4, padding)
    assert (batch.tokens, batch.sequence_tokens, batch.head_tokens) == (600, 150, 600)
    assert straggler_fraction(statistics(), 8, 4, 16, padding) == 0


def test_a_micro_batch_is_padded_to_its_longest():
    two_lengths = statistics(prompt_tokens=100, response_tokens=Empirical(values=(100, 300)))
    # One in four pairs is short; the longest of two is 400 in three cases of four, else 200.
    assert padded_tokens(two_lengths, 2, "micro_batch") == pytest.approx(350, abs=3)
    assert padded_tokens(two_lengths, 64, "micro_batch") == 400


def test_all_rows_of_a_rank_are_as_wide_as_the_longest_that_it_has():
    drawn = statistics(100, Uniform(low=1, high=1000))
    alone, among = (micro_batch_of(drawn, 1, "rank", local) for local in (1, 64))
    assert alone == micro_batch_of(drawn, 1, "micro_batch", 64)  # which is as wide as its own
    assert among.tokens == padded_tokens(drawn, 64, "micro_batch") > 1.7 * alone.tokens
    # Ranks wait for the one with the longest sequence, the less the more each has, and never beyond the limit.
    few, many = (straggler_fraction(drawn, local, 1, 8, "rank") for local in (8, 64))
    assert 0 < many < few
    assert (1 + few) * padded_tokens(drawn, 8, "micro_batch") <= drawn.longest_tokens + 1


def test_rows_are_padded_to_the_limits_however_short_their_sequences_are():
    rare = statistics(prompt_tokens=100, response_tokens=Empirical(values=(*[10] * 999, 900)))
    assert padded_tokens(rare, 1, "limits") == 1000
    assert micro_batch_of(rare, 4, "limits").tokens == 4000
    assert straggler_fraction(rare, 8, 4, 16, "limits") == 0


def test_a_global_batch_is_padded_to_its_longest_prompt_and_its_longest_response():
    both = statistics(
        prompt_tokens=Uniform(low=1, high=100), response_tokens=Uniform(low=1, high=200)
    )
    assert padded_tokens(both, 1, "batch") == pytest.approx(98.5 + 197, abs=3)
    assert padded_tokens(both, 1, "micro_batch") == pytest.approx(151, abs=3)


def test_packed_sequences_count_real_tokens_and_square_attention():
    packed = micro_batch_of(
        statistics(prompt_tokens=100, response_tokens=Empirical(values=(100, 300))), 10, "none"
    )
    assert packed.tokens == pytest.approx(3000, rel=0.01)
    assert packed.sequence_tokens == pytest.approx(((200**2 + 400**2) / 2) ** 0.5, rel=0.01)


def test_the_fullest_of_two_ranks_works_its_expected_excess_longer():
    uneven = statistics(prompt_tokens=100, response_tokens=Empirical(values=(100, 300)))
    # Standard deviation 100 of mean 300; the larger of two normal draws lies 0.564 above the mean.
    expected = 0.564 * (100 / 300) / 25**0.5
    assert straggler_fraction(uneven, 25, 5, 2, "none") == pytest.approx(expected, rel=0.06)
    assert straggler_fraction(uneven, 25, 5, 1, "none") == 0
    assert straggler_fraction(uneven, 25, 5, 2, "batch") == 0


def test_the_last_micro_batch_may_be_smaller():
    assert micro_batches(10, 4) == ((4, 2), (2, 1))
    assert micro_batches(8, 4) == ((4, 2),)
    assert micro_batches(3, 4) == ((3, 1),)


def test_the_fullest_rank_takes_what_does_not_divide():
    work = job_of(prompts=100).workload
    assert rank_sequences(8, work, trains=False) == 13
    assert rank_sequences(8, replace(work, updates=2), trains=True) == 7


def test_ranks_share_out_sequences_and_not_prompts():
    work = job_of(algorithm="grpo", prompts=16, samples_per_prompt=32).workload
    assert rank_sequences(32, work, trains=False) == 16
    assert rank_sequences(32, replace(work, updates=1), trains=True) == 16
    assert rank_sequences(48, replace(work, updates=2), trains=True) == 6


def test_statistics_of_a_workload_are_drawn_once():
    job = job_of()
    assert statistics_of(job.workload) is statistics_of(job.workload)


@settings(max_examples=15)
@given(distributions(), distributions(), st.integers(1, 64))
def test_longer_batches_are_wider_and_none_exceeds_the_longest(prompts, responses, count):
    drawn = statistics(prompts, responses)
    assert padded_tokens(drawn, count, "micro_batch") <= padded_tokens(
        drawn, count + 1, "micro_batch"
    )
    assert padded_tokens(drawn, count, "micro_batch") <= drawn.longest_tokens
    assert padded_tokens(drawn, count, "batch") <= drawn.longest_tokens
    assert drawn.mean_tokens <= drawn.rms_tokens * (1 + 1e-9)
    whole = mean_length(prompts) + mean_length(responses)
    assert drawn.mean_tokens == pytest.approx(whole, rel=0.1, abs=2)
