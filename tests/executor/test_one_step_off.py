"""Iterations that overlap: with which weights a batch is generated, and what runs beside what."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from executor.execute import execute
from executor.metrics import read_metrics
from executor.run import Saving
from executor.runnable import check_runnable
from rlplan.errors import PlanError
from tests.executor.plans import ALL_ROLES, make_job, make_plan

pytestmark = pytest.mark.ray

APART = {"p0": (1, ALL_ROLES), "generator": (1, ("actor",))}
# The critic works where tokens are generated.
SHARED = {"p0": (1, ("actor", "reference", "reward")), "generator": (1, ("actor", "critic"))}


def both_modes(pools):
    plan = make_plan(make_job(), pools, transition="two-copies")
    return plan, replace(plan, mode="one-step-off", staleness=1)


@pytest.fixture(scope="module", params=[APART, SHARED], ids=["apart", "critic beside generation"])
def runs(request, crew):
    """Return an overlapping run, and synchronous ones with whose weights its batches are made."""
    sync, overlapping = both_modes(request.param)
    return (
        crew.run(overlapping, iterations=4),
        crew.run(sync, numbers=(0, 2)),
        crew.run(sync, numbers=(1,)),
    )


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


def test_generation_begins_before_the_iteration_ahead_of_it_has_ended(runs):
    by_iteration = [{span.name: span for span in record.spans} for record in runs[0].finished]
    for now, following in pairwise(by_iteration):
        assert following["actor.generate"].start_seconds < now["actor.update"].end_seconds


def test_spans_of_a_pool_do_not_overlap(runs):
    spans = [span for record in runs[0].finished for span in record.spans]
    for pool in {span.pool for span in spans}:
        own = sorted((s for s in spans if s.pool == pool), key=lambda span: span.start_seconds)
        assert all(a.end_seconds <= b.start_seconds + 1e-6 for a, b in pairwise(own))


def test_a_run_goes_on_from_a_checkpoint_in_the_same_folder(ray_slots, tmp_path):
    _, plan = both_modes(APART)
    execute(plan, tmp_path, iterations=2, seed=1, saving=Saving(every=1))
    execute(plan, tmp_path, iterations=4, seed=1, saving=Saving(every=1, resume=tmp_path))
    rows = read_metrics(tmp_path)
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3]
    assert rows[1]["kl"] == pytest.approx(0, abs=1e-5)
    # What was generated ahead is gone; the weights of the checkpoint generate instead.
    assert abs(rows[2]["kl"]) > 1e-4


def test_modes_that_are_not_run_are_refused_by_name():
    sync, overlapping = both_modes(APART)
    colocated = make_plan(make_job(), {"p0": (1, ALL_ROLES)})
    dapo = make_plan(
        make_job("dapo", samples_per_prompt=2),
        {"p0": (1, ("actor",)), "generator": (1, ("actor",))},
        transition="two-copies",
    )
    for plan, message in (
        (replace(sync, mode="streaming", staleness=4), "mode streaming, staleness 4"),
        (replace(overlapping, staleness=0), "one-step-off, staleness 0"),
        (replace(colocated, mode="one-step-off", staleness=1), "both are on p0"),
        (replace(dapo, mode="one-step-off", staleness=1), "dapo generates again"),
    ):
        with pytest.raises(PlanError, match=message):
            check_runnable(plan)
