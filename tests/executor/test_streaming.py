"""Responses that go on one by one: what is learnt is what a synchronous run learns, or as old as is allowed."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import ray

from rlplan.errors import CapabilityError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.checkpoints import find_checkpoint
from rlplan.executor.control.controller import Controller
from rlplan.executor.control.feeds.sample_stream import SampleStream
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.run import Saving
from rlplan.executor.control.start import prepare_groups
from rlplan.executor.control.summary import iteration_metrics
from rlplan.executor.data.workload import PromptBatches
from rlplan.executor.execute import execute
from rlplan.job import Rewards
from rlplan.plan import Lending
from rlplan.workload import Lognormal
from tests.executor.harness import collected
from tests.executor.plans import make_job, make_plan

pytestmark = pytest.mark.ray

LENGTHS = Lognormal(mean=8.0, std=8.0, max=40)
APART = {"p0": (1, ("actor", "reference")), "generator": (1, ("actor",))}


def grpo_job(**work):
    job = make_job("grpo", samples_per_prompt=2, response_tokens=LENGTHS, **work)
    return replace(job, rewards=Rewards(function="digits"))


# Passes are of one prompt each, so that no row's numbers depend on which others there are.
PLAN = make_plan(grpo_job(updates=2), APART, transition="two-copies", micro_batch=2, max_running=8)


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
    for found, expected in zip(streaming.metrics, sync.metrics, strict=True):
        for name in ("policy_loss", "mean_reward", "kl", "response_tokens"):
            assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-7), name


def test_spans_of_a_pool_do_not_overlap(runs):
    spans = [span for record in runs[1].finished for span in record.spans]
    assert {span.name for span in spans} >= {"actor.generate", "actor.update", "transition"}
    for pool in {span.pool for span in spans}:
        own = sorted((s for s in spans if s.pool == pool), key=lambda span: span.start_seconds)
        assert all(a.end_seconds <= b.start_seconds + 1e-6 for a, b in pairwise(own))


@pytest.mark.full
@pytest.mark.parametrize("in_flight", ["recompute", "keep", "drain"])
def test_no_sample_is_older_than_the_bound_allows(worker_pool, in_flight):
    plan = make_plan(grpo_job(), APART, transition="two-copies", micro_batch=4, max_running=6)
    plan = with_mode(plan, "async", staleness=2, sync_every=2, in_flight=in_flight)
    found = worker_pool.run(plan, iterations=5)
    assert all(len(record.ages) == 16 for record in found.finished)
    assert max(metrics["staleness_max"] for metrics in found.metrics) <= 2
    assert found.metrics[1]["staleness_mean"] == 1  # no sync after the first iteration
    assert all(np.isfinite(metrics["policy_loss"]) for metrics in found.metrics)


@pytest.mark.full
@pytest.mark.parametrize("in_flight", ["recompute", "drain"])
def test_what_is_begun_beyond_what_is_learnt_from_is_dropped_when_it_is_too_old(
    worker_pool, in_flight
):
    job = grpo_job()
    job = replace(job, workload=replace(job.workload, over_provisioning=1.5))
    plan = make_plan(job, APART, transition="two-copies", micro_batch=4, max_running=24)
    plan = with_mode(plan, "async", staleness=1, in_flight=in_flight)
    tasks, groups = check_runnable(plan), worker_pool.groups_of(plan)
    prompts = PromptBatches(plan.job, Path())
    prepare_groups(plan, tasks, prompts, 1, groups)
    controller = Controller(plan, tasks, groups, prompts.columns)
    found = [controller.finish(controller.send(i, is_last=i == 4)) for i in range(5)]
    following, left = controller.position(4)
    controller.stop()
    assert all(len(record.ages) == 16 and max(record.ages) <= 1 for record in found)
    dropped = [record.dropped for record in found]
    assert dropped[0] == 0  # nothing is too old yet
    assert sum(dropped) > 0
    # 12 prompts of 2 samples are begun for each iteration, and each has one of three ends.
    assert 2 * following == 5 * 16 + sum(dropped) + 2 * len(left)
    assert following <= 6 * 12
    metrics = iteration_metrics(plan, tasks, found[-1])
    assert metrics["dropped_samples"] == dropped[-1]


@pytest.mark.full
def test_a_streamed_iteration_learns_from_what_ends_first_and_drops_the_rest(worker_pool):
    job = grpo_job()
    job = replace(job, workload=replace(job.workload, over_provisioning=1.5))
    plan = make_plan(job, APART, transition="two-copies", micro_batch=4, max_running=24)
    plan = with_mode(plan, "streaming")
    tasks, groups = check_runnable(plan), worker_pool.groups_of(plan)
    prompts = PromptBatches(plan.job, Path())
    prepare_groups(plan, tasks, prompts, 1, groups)
    controller = Controller(plan, tasks, groups, prompts.columns)
    found, tokens = [], []
    for iteration in range(3):
        running = controller.send(iteration, is_last=iteration == 2)
        found.append(controller.finish(running))
        tokens.append(collected(running, "sequences", "tokens"))
    following, left = controller.position(2)
    controller.stop()
    assert all(record.ages == [0] * 16 for record in found)
    assert [record.dropped for record in found] == [8, 8, 8], "of 12 prompts, 4 with 2 samples each"
    assert (following, left) == (36, ())
    assert all(len(each) == 16 for each in tokens)


@pytest.mark.full
def test_every_row_of_a_pass_alone_makes_streaming_ppo_equal_to_the_last_bit(worker_pool):
    pools = {"p0": (1, ("actor", "critic", "reference", "reward")), "generator": (2, ("actor",))}
    plan = make_plan(make_job(updates=2), pools, transition="two-copies", micro_batch=1)
    sync = worker_pool.run(plan)
    streaming = worker_pool.run(with_mode(plan, "streaming"))
    assert same(streaming.actor, sync.actor)


def learnt_beside_a_killed_storage_actor(worker_pool, plan):
    """Return records and tokens of two iterations in which one of the queue's storage actors is killed."""
    tasks, groups = check_runnable(plan), worker_pool.groups_of(plan)
    prompts = PromptBatches(plan.job, Path())
    prepare_groups(plan, tasks, prompts, 1, groups)
    controller = Controller(plan, tasks, groups, prompts.columns)
    assert isinstance(controller.feed, SampleStream)
    queue, killed, learnt, tokens = controller.feed.samples.queue, [], [], []
    note = queue.note

    def note_and_kill(write):
        note(write)
        if not killed and write.unit == 0:
            killed.append(len(write.attempts))
            ray.kill(queue._actors[0])

    queue.note = note_and_kill
    for iteration in range(2):
        running = controller.send(iteration, is_last=iteration == 1)
        learnt.append(controller.finish(running))
        tokens.append(collected(running, "sequences", "tokens"))
    controller.stop()
    assert killed
    return learnt, tokens


@pytest.mark.full
def test_a_storage_actor_that_is_killed_changes_nothing_that_is_learnt(worker_pool, runs):
    learnt, tokens = learnt_beside_a_killed_storage_actor(worker_pool, with_mode(PLAN, "streaming"))
    for found, expected in zip(tokens, runs[0].tokens, strict=False):
        assert sorted(found.tolist()) == sorted(expected.tolist())
    assert [len(record.ages) for record in learnt] == [16, 16]


@pytest.mark.full
def test_an_engine_and_a_trainer_that_agree_weigh_samples_by_one(worker_pool):
    settings = replace(grpo_job().hyperparameters, importance_cap=2.0)
    job = replace(grpo_job(), old_log_prob="trainer", hyperparameters=settings)
    plan = make_plan(job, APART, transition="two-copies", micro_batch=4, max_running=6)
    sync = worker_pool.run(plan)
    stale = worker_pool.run(with_mode(plan, "async", staleness=2), iterations=4)
    assert [m["importance_weight"] for m in sync.metrics] == pytest.approx([1, 1], abs=1e-4)
    weights = [metrics["importance_weight"] for metrics in stale.metrics]
    assert weights[0] == pytest.approx(1, abs=1e-4)
    assert max(abs(weight - 1) for weight in weights) > 1e-4


@pytest.mark.full
def test_a_run_goes_on_with_the_prompts_that_were_begun_and_not_learnt_from(
    shared_workers, tmp_path
):
    plan = make_plan(grpo_job(), APART, transition="two-copies", micro_batch=4, max_running=6)
    plan = with_mode(plan, "async", staleness=1, in_flight="keep")
    execute(plan, tmp_path, iterations=2, seed=1, warmup=0, saving=Saving(every=2))
    state = find_checkpoint(tmp_path).state
    begun = {*range(state.next_prompt), *state.left_prompts} - set(state.left_prompts)
    assert len(begun) == 2 * plan.job.workload.prompts
    execute(plan, tmp_path, iterations=4, seed=1, warmup=0, saving=Saving(every=2, resume=tmp_path))
    rows = read_metrics(tmp_path)
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3]
    assert rows[2]["staleness_max"] == 0
    assert all(row["staleness_max"] <= 1 for row in rows)


def test_a_plan_that_lends_gpus_is_refused_by_name():
    plan = replace(with_mode(PLAN, "streaming"), lending=Lending())
    with pytest.raises(CapabilityError, match=r"lending\.to is generation: this executor cannot"):
        check_runnable(plan)
