"""Iterations that overlap: with which weights a batch is generated, and what runs beside what."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from rlplan.errors import UserError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.checkpoints import find_checkpoint
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.run import Saving
from rlplan.executor.execute import execute
from rlplan.files.frozen import FrozenDict
from rlplan.job import DynamicSampling
from tests.executor.plans import ALL_ROLES, make_job, make_plan
from tests.executor.test_checkpoints import assert_same, checkpointed_run, stored_weights

pytestmark = pytest.mark.ray

APART = {"p0": (1, ALL_ROLES), "generator": (1, ("actor",))}
# The critic works where tokens are generated.
SHARED = {"p0": (1, ("actor", "reference", "reward")), "generator": (1, ("actor", "critic"))}


# Groups of equal rewards are sampled again; a model judges them where the actor is trained.
DAPO = {"p0": (1, ("actor", "reward")), "generator": (1, ("actor",))}


def both_modes(pools, job=None, **sizes):
    plan = make_plan(job or make_job(), pools, transition="two-copies", **sizes)
    return plan, replace(plan, mode="one-step-off", staleness=1)


def dapo_job(*, with_model):
    """Return a job whose rules tell few groups apart, and a model all of them."""
    job = make_job("dapo", samples_per_prompt=2)
    roles = ("actor", "reward") if with_model else ("actor",)
    models = FrozenDict(dict.fromkeys(roles, job.architecture("actor")))
    return replace(job, models=models, dynamic_sampling=DynamicSampling(max_rounds=2))


@pytest.fixture(scope="module", params=[APART, SHARED], ids=["apart", "critic beside generation"])
def runs(request, worker_pool):
    """Return an overlapping run, and synchronous ones with whose weights its batches are made."""
    sync, overlapping = both_modes(request.param)
    return (
        worker_pool.run(overlapping, iterations=4),
        worker_pool.run(sync, numbers=(0, 2)),
        worker_pool.run(sync, numbers=(1,)),
    )


@pytest.mark.full
def test_a_batch_is_generated_with_weights_that_are_one_update_old(runs):
    overlapping, after_the_first_update, at_once = runs
    first, third = after_the_first_update.tokens
    (second,) = at_once.tokens
    for tokens, expected in zip(overlapping.tokens, (first, second, third), strict=False):
        assert np.array_equal(tokens, expected)


def test_the_weights_differ_from_the_reference_from_the_third_batch_on(runs):
    kl = [metrics["kl"] for metrics in runs[0].metrics]
    assert kl[:2] == pytest.approx([0, 0], abs=1e-5)
    assert min(map(abs, kl[2:])) > 1e-4


def test_the_first_two_losses_are_those_of_batches_that_the_first_weights_made(runs):
    overlapping, after_the_first_update, _ = runs
    for name in ("policy_loss", "value_loss"):
        found = overlapping.metrics[0][name]
        assert found == pytest.approx(after_the_first_update.metrics[0][name], abs=1e-6)


def test_samples_are_an_update_old_but_those_of_the_first_batch(runs):
    overlapping, after_the_first_update, _ = runs
    sequences = make_job().workload.sequences
    assert [[*record.ages] for record in overlapping.finished] == [
        [age] * sequences for age in (0, 1, 1, 1)
    ]
    assert [metrics["staleness_mean"] for metrics in overlapping.metrics] == [0, 1, 1, 1]
    assert {metrics["staleness_max"] for metrics in after_the_first_update.metrics} == {0}


def test_generation_begins_before_the_iteration_ahead_of_it_has_ended(runs):
    by_iteration = [{span.name: span for span in record.spans} for record in runs[0].finished]
    # In one of them at least: where the machine has other work, a worker may begin any time later.
    assert any(
        following["actor.generate"].start_seconds < now["actor.update"].end_seconds
        for now, following in pairwise(by_iteration)
    )


def test_spans_of_a_pool_do_not_overlap(runs):
    spans = [span for record in runs[0].finished for span in record.spans]
    for pool in {span.pool for span in spans}:
        own = sorted((s for s in spans if s.pool == pool), key=lambda span: span.start_seconds)
        assert all(a.end_seconds <= b.start_seconds + 1e-6 for a, b in pairwise(own))


@pytest.mark.full
def test_a_run_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(worker_pool, tmp_path):
    _, plan = both_modes(APART)
    undisturbed = worker_pool.run(plan, iterations=4)
    execute(plan, tmp_path, iterations=2, seed=1, saving=Saving(every=1))
    execute(plan, tmp_path, iterations=4, seed=1, saving=Saving(every=1, resume=tmp_path))
    rows = read_metrics(tmp_path)
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3]
    for row, expected in zip(rows, undisturbed.metrics, strict=True):
        for name in (
            "policy_loss",
            "value_loss",
            "kl",
            "mean_reward",
            "response_tokens",
            "staleness_mean",
        ):
            assert row[name] == pytest.approx(expected[name], abs=1e-6), name
    assert_same(stored_weights(find_checkpoint(tmp_path)), undisturbed.actor[0])


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["ppo", "dapo"])
def test_the_weights_an_update_behind_go_on_in_another_layout(worker_pool, tmp_path, algorithm):
    job = dapo_job(with_model=False) if algorithm == "dapo" else None
    pools = DAPO | {"p0": (1, tuple(job.models))} if job else APART
    _, alone = both_modes(pools, job)
    pools = {"p0": (1, tuple(alone.job.models)), "generator": (2, ("actor",))}
    _, cut = both_modes(pools, job, tp_gen=2)
    whole = checkpointed_run(worker_pool, alone, 0, 4, folder=tmp_path / "whole")
    half = checkpointed_run(worker_pool, alone, 0, 2, folder=tmp_path / "halves")
    more = checkpointed_run(worker_pool, cut, 2, 3, start=half, folder=tmp_path / "halves", keep=3)
    rest = checkpointed_run(
        worker_pool, alone, 3, 4, start=more, folder=tmp_path / "halves", keep=3
    )
    assert_same(stored_weights(rest), stored_weights(whole), 1e-4)
    for later, earlier in ((more, half), (rest, more)):
        assert_same(stored_weights(later, "generator"), stored_weights(earlier), 1e-4)
    moved = stored_weights(rest)["head.weight"] - stored_weights(rest, "generator")["head.weight"]
    assert abs(moved).max() > 5e-4  # as far as one update goes


@pytest.mark.full
@pytest.mark.parametrize("with_model", [False, True], ids=["a rule judges", "a model too"])
def test_all_rounds_of_a_batch_are_generated_with_weights_one_update_old(worker_pool, with_model):
    job = dapo_job(with_model=with_model)
    pools = DAPO | {"p0": (1, tuple(job.models))}
    sync, overlapping = both_modes(pools, job)
    found = worker_pool.run(overlapping, iterations=4)
    first, third = worker_pool.run(sync, numbers=(0, 2)).tokens
    (second,) = worker_pool.run(sync, numbers=(1,)).tokens
    for tokens, expected in zip(found.tokens, (first, second, third), strict=False):
        assert np.array_equal(tokens, expected)
    rounds = {metrics.get("rounds", 1) for metrics in found.metrics}
    assert rounds == ({1} if with_model else {2})
    spans = [span for record in found.finished for span in record.spans]
    assert [s.iteration for s in spans if s.name == "actor.update"] == [0, 1, 2, 3]
    for pool in {span.pool for span in spans}:
        own = sorted((s for s in spans if s.pool == pool), key=lambda span: span.start_seconds)
        assert all(a.end_seconds <= b.start_seconds + 1e-6 for a, b in pairwise(own))


def test_modes_that_are_not_run_are_refused_by_name():
    _, overlapping = both_modes(APART)
    colocated = make_plan(make_job(), {"p0": (1, ALL_ROLES)})
    dapo, _ = both_modes(DAPO | {"p0": (1, ("actor",))}, dapo_job(with_model=False))
    cut, _ = both_modes(APART | {"generator": (2, ("actor",))}, pp_gen=2)
    for plan, message in (
        (
            replace(dapo, mode="streaming"),
            "mode is streaming: this executor cannot: groups that are sampled again",
        ),
        (
            replace(cut, mode="async", staleness=1),
            "actor.generate.pp is 2: this executor cannot: pipelined generation that hands",
        ),
        (replace(overlapping, staleness=0), "staleness: must be 1 in mode one-step-off; found 0"),
        (
            replace(colocated, mode="one-step-off", staleness=1),
            "actor.generate shares pool p0 with actor.update",
        ),
    ):
        with pytest.raises(UserError, match=message):
            check_runnable(plan)
