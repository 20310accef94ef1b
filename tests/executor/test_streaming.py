"""Responses that go on one by one: what is learnt is what a synchronous run learns, or as old as is allowed."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from rlplan.job import Rewards
from rlplan.lengths import Lognormal
from tests.executor.plans import make_job, make_plan

pytestmark = pytest.mark.ray

LENGTHS = Lognormal(mean=8.0, std=8.0, max=40)
APART = {"p0": (1, ("actor", "reference")), "generator": (1, ("actor",))}


def grpo_job(**work):
    job = make_job("grpo", samples_per_prompt=2, response_tokens=LENGTHS, **work)
    return replace(job, rewards=Rewards(function="digits"))


def with_mode(plan, mode, **settings):
    return replace(plan, mode=mode, **settings)


def same(found, expected):
    return all(
        np.array_equal(one[name], other[name])
        for one, other in zip(found, expected, strict=True)
        for name in other
    )


@pytest.fixture(scope="module")
def runs(worker_pool):
    """Return a synchronous run and a streaming one of the same job, whose passes are of one prompt each."""
    plan = make_plan(
        grpo_job(updates=2), APART, transition="two-copies", micro_batch=2, max_running=8
    )
    return worker_pool.run(plan, iterations=3), worker_pool.run(
        with_mode(plan, "streaming"), iterations=3
    )


def test_streaming_learns_what_a_synchronous_run_learns_to_the_last_bit(runs):
    sync, streaming = runs
    for one, other in zip(streaming.tokens, sync.tokens, strict=True):
        assert sorted(one.tolist()) == sorted(other.tolist())
    assert same(streaming.actor, sync.actor)
    assert not same(streaming.actor, sync.generator) or same(sync.generator, sync.actor)
    for found, expected in zip(streaming.metrics, sync.metrics, strict=True):
        for name in ("policy_loss", "mean_reward", "kl", "response_tokens"):
            assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-7), name


def test_spans_of_a_pool_do_not_overlap(runs):
    spans = [span for record in runs[1].finished for span in record.spans]
    assert {span.name for span in spans} >= {"actor.generate", "actor.update", "transition"}
    for pool in {span.pool for span in spans}:
        own = sorted((s for s in spans if s.pool == pool), key=lambda span: span.start_seconds)
        assert all(a.end_seconds <= b.start_seconds + 1e-6 for a, b in pairwise(own))


@pytest.mark.parametrize("in_flight", ["drain", "keep", "recompute"])
def test_no_sample_is_older_than_the_bound_allows(worker_pool, in_flight):
    plan = make_plan(grpo_job(), APART, transition="two-copies", micro_batch=4, max_running=6)
    plan = with_mode(plan, "async", staleness=2, sync_every=2, in_flight=in_flight)
    found = worker_pool.run(plan, iterations=5)
    assert all(len(record.ages) == 16 for record in found.finished)
    assert max(metrics["staleness_max"] for metrics in found.metrics) <= 2
    assert found.metrics[1]["staleness_mean"] == 1  # no sync after the first iteration
    assert all(np.isfinite(metrics["policy_loss"]) for metrics in found.metrics)
