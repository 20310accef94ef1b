"""The fullest of a run's packed micro-batches, by the distribution of lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.simulator.workload import (
    MOST_CONVOLVED,
    RESPONSES_GROW,
    RUN_STEPS,
    fullest_tokens,
    statistics_of,
    to_the_power,
)
from rlplan.workload import Lognormal, Uniform, Workload

SPREAD = Workload(
    prompts=64,
    samples_per_prompt=8,
    prompt_tokens=128,
    response_tokens=Lognormal(mean=800, std=500, max=3000),
)

lengths = st.one_of(
    st.integers(1, 4000),
    st.tuples(st.integers(1, 900), st.integers(0, 3000)).map(
        lambda pair: Uniform(low=pair[0], high=sum(pair))
    ),
    st.tuples(st.integers(50, 2000), st.integers(10, 2000)).map(
        lambda pair: Lognormal(mean=pair[0], std=pair[1], max=2 * pair[0] + 4096)
    ),
)


@st.composite
def workloads(draw):
    return Workload(
        prompts=draw(st.integers(1, 512)),
        samples_per_prompt=draw(st.integers(1, 8)),
        prompt_tokens=draw(st.integers(1, 1000)),
        response_tokens=draw(lengths),
    )


@given(workloads(), st.lists(st.integers(1, 2 * MOST_CONVOLVED), min_size=2, max_size=4))
def test_more_sequences_never_have_fewer_tokens_nor_more_than_the_longest_ones(work, counts):
    statistics = statistics_of(work)
    found = [fullest_tokens(statistics, each) for each in sorted(counts)]
    assert found == sorted(found)
    for count, tokens in zip(sorted(counts), found, strict=True):
        assert 0 < tokens <= count * statistics.longest_tokens


@given(st.integers(1, 2000), st.integers(1, 2000), st.integers(1, 300))
def test_sequences_of_one_length_have_so_many_times_its_tokens(prompt, response, sequences):
    work = Workload(prompts=64, prompt_tokens=prompt, response_tokens=response)
    assert fullest_tokens(statistics_of(work), sequences) == sequences * (prompt + response)


@pytest.mark.parametrize("sequences", [1, 2, 8, 40, 200, 400])
def test_it_is_near_the_most_that_a_thousand_steps_draw(sequences):
    statistics = statistics_of(SPREAD)
    ordered = statistics.ordered("whole")
    grown = np.minimum(
        ordered * (1 + (RESPONSES_GROW - 1) * statistics.response_tokens / statistics.mean_tokens),
        SPREAD.longest_sequence_tokens,
    )
    generator = np.random.default_rng(5)
    passes = RUN_STEPS * -(-SPREAD.sequences // sequences)
    most = 0
    while passes > 0:
        some = min(passes, 2_000_000 // sequences)
        most = max(most, int(generator.choice(grown, size=(some, sequences)).sum(axis=1).max()))
        passes -= some
    assert fullest_tokens(statistics, sequences) == pytest.approx(most, rel=0.05)


def test_it_is_far_below_the_longest_ones_where_lengths_spread():
    """verl's first example has 40 sequences of 325 tokens in the mean that may have 1,536."""
    work = Workload(
        prompts=1024,
        prompt_tokens=Lognormal(mean=105, std=40, max=512),
        response_tokens=Lognormal(mean=220, std=120, max=1024),
    )
    found = fullest_tokens(statistics_of(work), 40)
    assert 40 * 325 < found < 0.4 * 40 * 1536


@given(st.integers(1, 9000), st.integers(2, MOST_CONVOLVED))
def test_powers_by_squaring_are_powers(seed, power):
    generator = np.random.default_rng(seed)
    values = np.exp(2j * np.pi * generator.random(8)) * (1 - 1e-3 * generator.random(8))
    assert np.allclose(to_the_power(values, power), values**power, rtol=1e-11, atol=0)
