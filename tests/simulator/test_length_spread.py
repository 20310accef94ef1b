"""The luck of lengths: how far other batches of a workload take other times, and which share is last."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_engine, load_model
from rlplan.profiles.jobs.checks import JobPlace
from rlplan.profiles.jobs.logged_lengths import with_logged_lengths
from rlplan.simulator.generation import shares
from rlplan.simulator.generation.generating import (
    clock_of,
    limits_of,
    played,
    replica_of,
    steps_in,
    with_length_spread,
)
from rlplan.simulator.generation.playing import generate
from rlplan.simulator.generation.shares import (
    OTHER_BATCHES,
    length_spread,
    longest_shares,
    other_shares,
    waits,
)
from rlplan.simulator.stages import task_cost
from rlplan.simulator.workload import LengthStatistics
from rlplan.workload import Empirical, Logged, Lognormal, Uniform, Workload
from tests.simulator.cost_jobs import facts_of, job_of, site_of
from tests.simulator.placing import generating, replica_setting

A100 = "a100-80gb-sxm"
PROMPTS = Lognormal(mean=256, std=200, max=1024)
TAILED = Lognormal(mean=512, std=400, max=2048)


def statistics(responses, prompts=PROMPTS, **fields):
    lengths = {"prompts": 512, "prompt_tokens": prompts, "response_tokens": responses}
    return LengthStatistics(Workload(**(lengths | fields)))


@pytest.mark.parametrize(
    ("engine", "running", "blocks", "replicas"),
    [
        ("vllm", 256, 27_000, 1),
        ("vllm", 256, 27_000, 16),
        ("vllm-0.3", 256, 6_800, 4),
        ("vllm-0.3-calls", 8, 6_800, 8),
        ("tensorrt-llm", 256, 3_000, 4),
        ("real-static", 32, 400_000, 8),
    ],
)
def test_the_spread_added_up_is_that_of_batches_played(engine, running, blocks, replicas):
    sheet = load_engine(engine)
    steps = steps_in(replica_setting(load_model("llama-2-7b"), sheet, A100))
    limits = limits_of(sheet, running, blocks)
    known = statistics(TAILED)
    wave = running if waits(limits.batching) else 0

    def played(shares):
        each = (generate(replica_of(clock_of(steps), limits), *share) for share in shares)
        return max(done.seconds for done in each)

    here = played(longest_shares(known, replicas, 1, wave))
    others = [
        played(other_shares(known, replicas, 1, wave, number)) / here - 1
        for number in range(OTHER_BATCHES)
    ]
    exact = math.sqrt(sum(each**2 for each in others) / OTHER_BATCHES)
    cache_tokens = blocks * sheet.kv_block_tokens
    quick = length_spread(clock_of(steps), limits.batching, running, cache_tokens, known, replicas)
    assert 0.005 < exact < 0.15
    assert quick == pytest.approx(exact, rel=0.4)


@pytest.mark.full
@pytest.mark.parametrize("engine", ["vllm-0.15", "vllm-0.3", "tensorrt-llm", "real-static"])
@given(
    shares=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=30),
    running=st.integers(1, 12),
    blocks=st.lists(st.integers(1, 150), min_size=2, max_size=4),
)
def test_what_is_remembered_of_caches_that_are_never_full_is_what_they_play(
    engine, shares, running, blocks
):
    sheet = load_engine(engine)
    steps = steps_in(replica_setting(load_model("llama-2-7b"), sheet, A100))
    share = tuple(zip(*shares, strict=True))
    for count in blocks:
        limits = replace(limits_of(sheet, running, count), block_tokens=8)
        fresh = generate(replica_of(clock_of(steps), limits), *share)
        found = played(steps, limits, share)
        assert (found.prefill.seconds, found.decode.seconds) == (
            fresh.prefill_seconds,
            fresh.decode_seconds,
        )
        ends = np.array(fresh.finish_seconds, dtype=np.float32)
        assert np.array_equal(found.finish_seconds, ends)


@pytest.mark.parametrize(
    ("played", "expected"),
    [
        # Other batches of 8, 10 and 12 steps. Around 10 they are off by -0.2, 0 and 0.2: a variance of 0.04, a quarter of it in the mean of four.
        (10, math.sqrt(0.04 / 4)),
        # Around 8 by 0, 0.25 and 0.5: the square of their mean, 0.0625, less the variance of a mean of three, 0.0625 / 3.
        (8, math.sqrt(0.0625 - 0.0625 / 3 + 0.0625 / 4)),
        # Around 9.5: the mean of the three is off by less than such a mean is by chance.
        (9.5, math.sqrt((2 / 9.5) ** 2 / 4)),
    ],
)
def test_how_far_a_batch_lies_from_the_mean_of_few_is_known_without_their_own_chance(
    monkeypatch, played, expected
):
    monkeypatch.setattr(shares, "OTHER_BATCHES", 3)
    monkeypatch.setattr(shares, "longest_shares", lambda *_: (((7,), (played,)),))
    monkeypatch.setattr(shares, "other_shares", lambda *given: (((7,), ((8, 10, 12)[given[-1]],)),))
    clock = type(
        "Clock",
        (),
        {"prefill": lambda *_: 0.0, "decode": lambda *_: 1.0},
    )()
    found = length_spread(clock, "mixed", 1, 0, statistics(Uniform(low=1, high=20)), 1, batches=4)
    assert found == pytest.approx(expected)


def test_equal_lengths_have_no_luck():
    def never(*_):
        raise AssertionError("nothing is priced")

    clock = type("Clock", (), {"prefill": never, "decode": never})()
    assert length_spread(clock, "mixed", 64, 10_000, statistics(512, 256), 4) == 0


def test_the_usual_batch_holds_each_length_as_often_as_the_distribution():
    known = statistics(Empirical(values=(10, 20, 20, 40)), prompts=7)
    ((prompts, responses),) = longest_shares(known, 1, 1)
    assert set(prompts) == {7}
    assert [responses.count(tokens) for tokens in (10, 20, 40)] == [128, 256, 128]
    assert list(responses) != sorted(responses)


@pytest.mark.parametrize("wave", [0, 16, 32])
@pytest.mark.parametrize("prompts", [16, 64, 112])
def test_a_small_usual_batch_waits_as_long_as_small_batches_do_on_average(prompts, wave):
    lengths = Lognormal(mean=24, std=24, max=128)
    work = Workload(
        prompts=prompts, samples_per_prompt=4, prompt_tokens=16, response_tokens=lengths
    )
    known = LengthStatistics(work)
    ((_, responses),) = longest_shares(known, 1, 4, wave)
    count = 4 * prompts
    most, waves = (wave, count // wave) if wave else (count, 1)
    expected = waves * known.longest_of(most, "responses")[0]
    tops = sum(max(responses[first : first + most]) for first in range(0, count, most))
    assert tops == pytest.approx(expected, rel=0.05)
    assert sum(responses) == pytest.approx(count * known.response_tokens, rel=0.1)


def test_samples_of_one_prompt_stay_on_one_replica():
    known = statistics(TAILED, prompts=Uniform(low=1, high=512), samples_per_prompt=8)
    for prompts, responses in longest_shares(known, 16, 8):
        assert len(prompts) == len(responses) == 512 * 8 // 16
        assert all(len(set(prompts[first : first + 8])) == 1 for first in range(0, 256, 8))


def test_where_waves_wait_the_replica_with_the_longest_waves_is_last():
    known = statistics(TAILED)
    ((_, last),) = longest_shares(known, 8, 1, 16)

    def tops(responses):
        return sum(max(responses[first : first + 16]) for first in range(0, 64, 16))

    by_tokens = longest_shares(known, 8, 1)
    assert all(tops(last) >= tops(responses) for _, responses in by_tokens)


def test_other_batches_are_the_same_on_every_call_and_differ_from_each_other():
    one, again = (other_shares(statistics(TAILED), 4, 1, 0, 3) for _ in range(2))
    assert one == again
    assert one != other_shares(statistics(TAILED), 4, 1, 0, 4)
    assert np.mean(one[0][1]) == pytest.approx(506, rel=0.2)


@pytest.mark.parametrize("replicas", [1, 16])
def test_a_generation_s_spread_joins_costs_and_lengths(replicas):
    job = job_of(prompt_tokens=256, response_tokens=TAILED)
    layout = TaskPlan(pool="p0", dp=replicas, engine="vllm")
    placed = generating(layout, site_of(job, replicas), job, facts_of(job))
    plain = task_cost(placed)
    wider = with_length_spread(plain, placed)
    assert wider.total.seconds == plain.total.seconds
    costs, both = plain.total.spread_seconds, wider.total.spread_seconds
    assert costs < both < costs + 0.3 * plain.total.seconds
    fixed = replace(job, workload=replace(job.workload, response_tokens=512))
    same = generating(layout, site_of(fixed, replicas), fixed, facts_of(fixed))
    assert with_length_spread(task_cost(same), same) == task_cost(same)


def test_a_spread_that_is_assumed_widens_the_interval_and_leaves_the_mean():
    work = with_logged_lengths(
        Workload(
            prompts=64,
            samples_per_prompt=8,
            prompt_tokens=128,
            response_tokens=Logged(mean=900, max=8192),
        ),
        JobPlace(file="job.yaml"),
    )
    known = LengthStatistics(work)
    narrow, wide = known.other_spreads
    for other in (narrow, wide):
        assert other.response_tokens == pytest.approx(known.response_tokens, rel=1e-3)
    deviations = [each.ordered("responses").std() for each in (narrow, known, wide)]
    assert deviations == sorted(deviations)
    assert isinstance(work.response_tokens, Lognormal)
    given = replace(work, response_tokens=replace(work.response_tokens, assumed=None))
    assert LengthStatistics(given).other_spreads == ()
    clock = clock_of(steps_in(replica_setting(load_model("llama-2-7b"), load_engine("vllm"), A100)))
    luck = length_spread(clock, "mixed", 256, 400_000, LengthStatistics(given), 4)
    assumed = length_spread(clock, "mixed", 256, 400_000, known, 4)
    assert luck < 0.2 < assumed < 0.6
