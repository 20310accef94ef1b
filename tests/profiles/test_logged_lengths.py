"""Lengths as logs print them become distributions whose log would print the same."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.files.decoding import decode
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup, Rewards
from rlplan.profiles.facts import load_facts
from rlplan.profiles.jobs.checks import JobPlace
from rlplan.profiles.jobs.logged_lengths import (
    load_length_spreads,
    other_spreads,
    with_logged_lengths,
)
from rlplan.profiles.jobs.resolve import resolve_job
from rlplan.simulator.timeline.assemble import assumptions_of
from rlplan.simulator.workload import LengthStatistics, evenly
from rlplan.workload import (
    Lengths,
    Logged,
    Lognormal,
    Workload,
    longest,
    mean_length,
    sample_lengths,
)

PLACE = JobPlace(file="job.yaml")


def work(responses: Lengths, prompts: Lengths = 127, total: int | None = None) -> Workload:
    return Workload(
        prompts=64,
        samples_per_prompt=16,
        prompt_tokens=prompts,
        response_tokens=responses,
        max_total_tokens=total,
    )


def resolved(responses: Lengths, prompts: Lengths = 127, total: int | None = None) -> Lognormal:
    found = with_logged_lengths(work(responses, prompts, total), PLACE).response_tokens
    assert isinstance(found, Lognormal)
    return found


@settings(max_examples=60)
@given(st.floats(0.02, 0.98), st.integers(64, 40_000))
def test_the_mean_after_the_cut_is_the_logged_one(share, most):
    mean = max(1.0, share * most)
    lengths = resolved(Logged(mean=mean, max=most))
    assert mean_length(lengths) == pytest.approx(mean, rel=1e-9)
    assert longest(lengths) == most


@settings(max_examples=60)
@given(st.floats(0.001, 0.9), st.floats(0.02, 0.98))
def test_mean_and_share_that_is_cut_are_the_logged_ones(ratio, place):
    mean = 4096 * (ratio + place * (1 - ratio))
    lengths = resolved(Logged(mean=mean, max=4096, clip_ratio=ratio))
    assert mean_length(lengths) == pytest.approx(mean, rel=1e-9)
    cut = evenly(lengths, 10_000) == 4096
    assert float(cut.mean()) == pytest.approx(ratio, abs=0.002)


def test_more_cut_than_usual_is_a_share_that_never_ends():
    """As on-policy distillation of Qwen3-1.7B-Base logged it: 4,120 tokens of 16,384, 13.6 % cut."""
    lengths = resolved(Logged(mean=4119.75, max=16_384, clip_ratio=0.13625))
    assert lengths.at_max == pytest.approx(0.136, abs=0.001)
    assert lengths.mean == pytest.approx((4119.75 - 0.13625 * 16_384) / (1 - 0.13625), rel=0.01)
    drawn = np.array(sample_lengths(lengths, 50_000, 1))
    assert drawn.mean() == pytest.approx(4119.75, rel=0.01)
    assert float(np.mean(drawn == 16_384)) == pytest.approx(0.13625, abs=0.005)


def test_one_response_of_hundreds_reaches_a_limit_that_the_usual_spread_does_not():
    """By hand: a median of 324, so that 3,969 is 3.9 deviations of 0.64 away, and none of 1,024 samples reaches it."""

    def of(mean, most, prompts=64):
        step = replace(work(Logged(mean=mean, max=most)), prompts=prompts)
        return with_logged_lengths(step, PLACE).response_tokens

    far = of(398, 3969)
    assert far.at_max == pytest.approx(1 / 1024, rel=0.1)
    assert mean_length(far) == pytest.approx(398)
    assert far.assumed.endswith("one response of a step reaches 3,969 tokens, as in most of them")
    assert of(795, 3969).at_max is None  # lengths of the usual spread reach it
    assert of(398, 3969, prompts=8).at_max is None  # too few samples to say
    assert of(20, 32_768).at_max is None  # it would be more than the mean
    narrower, wider = other_spreads(far)
    assert (narrower.at_max, wider.at_max) == (None, far.at_max)
    assert [mean_length(each) for each in (narrower, wider)] == pytest.approx([398, 398], rel=1e-3)


def test_the_deviation_after_the_cut_is_the_logged_one():
    lengths = resolved(Logged(mean=1500, max=4096, std=900))
    drawn = np.array(sample_lengths(lengths, 50_000, 1))
    assert drawn.mean() == pytest.approx(1500, rel=0.01)
    assert drawn.std() == pytest.approx(900, rel=0.01)
    assert lengths.assumed is None


def test_statistics_have_the_logged_mean():
    known = LengthStatistics(with_logged_lengths(work(Logged(mean=3196, max=3969)), PLACE))
    assert known.response_tokens == pytest.approx(3196, rel=1e-3)
    assert known.longest_of(1024, "responses")[0] == pytest.approx(3969)


def test_a_limit_of_both_together_leaves_responses_what_prompts_leave():
    whole = with_logged_lengths(work(Logged(mean=1019), total=4096), PLACE)
    assert longest(whole.response_tokens) == 4096 - 127
    assert whole.longest_sequence_tokens == 4096
    wide = with_logged_lengths(work(Logged(mean=1019), Logged(mean=127, max=512), 4096), PLACE)
    assert wide.longest_sequence_tokens == 4096
    assert LengthStatistics(wide).ordered("whole").max() == 4096
    assert with_logged_lengths(work(8192, total=4096), PLACE).response_tokens == 4096 - 127


@given(st.integers(2, 600), st.integers(1, 600))
def test_a_whole_mean_prompt_leaves_all_that_is_not_it(mean, more):
    """Fitted means are off in their last digits, on either side."""
    response = Logged(mean=500, max=3000)
    found = with_logged_lengths(
        work(response, Logged(mean=mean, max=mean + more), 3000 + mean), PLACE
    )
    assert found.response_tokens.max == 3000


def test_fewer_cut_than_usual_narrow_the_spread():
    usual = load_length_spreads().response_log_std.value
    lengths = resolved(Logged(mean=167.27, max=256, clip_ratio=0.082))
    assert lengths.at_max is None
    assert lengths.assumed is None
    assert 0 < np.log1p((lengths.std / lengths.mean) ** 2) < usual**2


def test_none_cut_narrows_the_spread_until_the_longest_of_a_batch_is_not_cut():
    usual = load_length_spreads().response_log_std.value
    lengths = resolved(Logged(mean=1000, max=2000, clip_ratio=0))
    cut = sum(length == 2000 for length in sample_lengths(lengths, 100_000, 1))
    assert cut < 200
    free = resolved(Logged(mean=100, max=20_000, clip_ratio=0))
    assert free.assumed == f"log standard deviation {usual:g} of published runs"


def test_lengths_that_grow_are_taken_at_a_share_of_training():
    grown = Logged(mean=1000, mean_at_end=4000, max=16_384)
    mean_of = lambda **more: mean_length(resolved(replace(grown, **more)))  # noqa: E731
    assert mean_of() == pytest.approx(2500)
    assert mean_of(training_share=0.0) == pytest.approx(1000)
    assert mean_of(training_share=1.0) == pytest.approx(4000)
    assert "2,500 tokens, the mean over a training" in str(resolved(grown).assumed)


def test_growth_that_was_measured_is_taken_as_it_bends():
    grown = Logged(mean=1000, mean_at_end=4000, means_between=(3000,), max=16_384)
    assert resolved(grown).training_means == (1000, 3000, 4000)
    assert mean_length(resolved(grown)) == pytest.approx(2750)  # of two halves, 2000 and 3500
    assert mean_length(resolved(replace(grown, training_share=0.25))) == pytest.approx(2000)


@pytest.mark.parametrize(
    ("logged", "words"),
    [
        (Logged(mean=4096, max=4096), r"response_tokens\.mean: is no mean of lengths from 1 to 4,096"),
        (Logged(mean=0.5, max=4096), "found 0.5; allowed: from 1 to below 4,096"),
        (Logged(mean=1000), "max: is missing: .*max_total_tokens"),
        (Logged(mean=1000, max=4096, clip_ratio=0.5), "clip_ratio: does not go with a mean of 1,000.*below 0.244"),
        (Logged(mean=1000, max=4096, clip_ratio=1.0), "clip_ratio"),
        (Logged(mean=1000, max=4096, std=5000), "are spread so; found 5000.*below 1,625"),
        (Logged(mean=1000, max=4096, std=0.5, clip_ratio=0.1), "one of clip_ratio and std"),
        (Logged(mean=1000, max=4096, training_share=0.5), "mean_at_end: is missing"),
        (Logged(mean=1000, max=4096, means_between=(1500,)), "mean_at_end: is missing"),
    ],
)  # fmt: skip
def test_figures_that_no_lengths_have_are_refused_by_field(logged, words):
    with pytest.raises(FileError, match=words):
        resolved(logged)


def test_a_limit_that_prompts_fill_is_refused():
    with pytest.raises(FileError, match=r"max_total_tokens: leaves no room.*more than 127"):
        resolved(Logged(mean=10), total=127)


def test_a_forecast_says_where_the_spread_is_from():
    data = {"distribution": "logged", "mean": 1019, "max": 3969}
    job = resolve_job(
        Job(
            algorithm="grpo",
            models=FrozenDict(actor="qwen2.5-0.5b", reference="qwen2.5-0.5b"),
            workload=decode(
                Workload,
                {
                    "prompts": 8,
                    "samples_per_prompt": 4,
                    "prompt_tokens": 127,
                    "response_tokens": data,
                },
                "job.yaml",
            ),
            cluster=(NodeGroup(gpu="a100", gpus_per_node=8),),
            rewards=Rewards(function="digits"),
        ),
        Path(),
    )
    said = assumptions_of(job, load_facts(job))
    assert any(line.startswith("response lengths: log standard deviation") for line in said)
    assert resolve_job(job, Path()) == job
