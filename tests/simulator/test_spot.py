"""Spot nodes: what losses leave of a plan, in literal figures, against a playing of losses, and as laws."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.calibration import Calibration, Factor
from rlplan.errors import FileError, MissingFactError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Failures, Job, NodeGroup, Rewards, Spot
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.reports.tables.plans import step_lines
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.spot import _slower, lost_response_seconds
from tests.simulator.test_streaming_plans import apart

HOUR = 3600.0
PRICE = 1.2
FAILURES = Failures(node_mtbf_seconds=1e7, checkpoint_seconds=5.0, restart_seconds=60.0)


def spot(every=4 * HOUR, replacement=300.0, start=120.0):
    return Spot(loss_every_seconds=every, replacement_seconds=replacement, start_seconds=start)


def on_spot(*, trains=None, generates=None, mode="streaming", **job):
    """Return GRPO on two nodes of two GPUs, the first of which trains."""
    plan = apart(mode, samples=1, updates=1)
    group = replace(plan.job.cluster[0], gpus_per_node=2, usd_per_gpu_hour=PRICE)
    cluster = (replace(group, spot=trains), replace(group, spot=generates))
    return replace(plan, job=replace(plan.job, cluster=cluster, **job))


def forecast(plan):
    return simulate(plan, load_facts(plan.job))


def test_nodes_that_stay_have_no_word_of_losses():
    assert forecast(on_spot()).spot is None


def test_a_replica_on_spot_nodes_generates_what_losses_leave():
    plan = on_spot(generates=spot())
    found, placed = forecast(plan), PlacedPlan(plan, load_facts(plan.job))
    lost = lost_response_seconds(found, placed)
    wait = found.iteration_seconds / 2
    left = found.spot
    assert left.generating_fraction == pytest.approx(
        (4 * HOUR - lost) / (4 * HOUR + 300 + 120 + wait)
    )
    assert (left.pools, left.loss_every_seconds, left.goodput) == (("g",), 4 * HOUR, None)
    assert left.iteration_seconds > found.iteration_seconds
    present = 4 * HOUR / (4 * HOUR + 300)
    usd_per_second = PRICE / HOUR * (2 + 2 * present)
    assert left.cost_usd == pytest.approx(usd_per_second * left.iteration_seconds)


def test_what_is_lost_is_what_a_playing_of_losses_loses():
    every, lost, away, generator = 1000.0, 40.0, 150.0, random.Random(0)
    made = passed = 0.0
    for _ in range(20_000):
        lives = generator.expovariate(1 / every)
        made += lives - lost  # what was under way when it was lost is begun again
        passed += lives + away
    assert made / passed == pytest.approx((every - lost) / (every + away), rel=0.02)


@pytest.mark.full
@given(
    st.floats(600, 1e6),
    st.floats(0, 3600),
    st.floats(0, 3600),
    st.sampled_from(["every", "replacement"]),
)
@settings(max_examples=4, deadline=None)
def test_more_losses_or_later_replacements_never_shorten_an_iteration(every, away, start, worse):
    better = forecast(on_spot(generates=spot(every, away, start))).spot
    changed = spot(every / 2, away, start) if worse == "every" else spot(every, away + 600, start)
    poorer = forecast(on_spot(generates=changed)).spot
    assert poorer.fraction <= better.fraction + 1e-9


def test_nodes_that_are_lost_sooner_than_they_start_generate_nothing():
    left = forecast(on_spot(generates=spot(every=1e-3))).spot
    assert (left.fraction, left.iteration_seconds, left.cost_usd) == (0.0, None, None)


def test_a_trainer_on_spot_nodes_needs_to_know_what_a_checkpoint_and_a_restart_take():
    with pytest.raises(MissingFactError, match=r"pool t trains on spot nodes.*job\.failures"):
        forecast(on_spot(trains=spot()))
    left = forecast(on_spot(trains=spot(), failures=FAILURES, iterations=1000)).spot
    assert left.goodput.failure_every_seconds == pytest.approx(1 / (1 / (4 * HOUR) + 2 / 1e7))
    assert 0 < left.fraction < 1
    assert left.run_seconds == pytest.approx(1000 * left.iteration_seconds)
    assert left.run_usd == pytest.approx(1000 * left.cost_usd)


@pytest.mark.full
def test_streams_are_slowed_by_losses_where_generation_is_what_they_wait_for():
    found = forecast(on_spot(generates=spot(every=HOUR), mode="async"))
    assert found.spot.generating_fraction < 1
    assert found.spot.iteration_seconds >= found.iteration_seconds


def test_a_report_says_what_losses_leave_and_what_that_costs():
    plan = on_spot(generates=spot(), iterations=1000)
    lines = step_lines(plan, forecast(plan), {})
    words = next(line for line in lines if line.startswith("spot:"))
    assert "pool g loses a node every 4.0 h" in words
    assert "USD" in words


def test_losses_of_generators_slow_no_other_engine_that_a_site_has_a_factor_of():
    known = Calibration(
        stages=FrozenDict(generation=Factor(value=1.5), training=Factor(value=1.2)),
        engines=FrozenDict(trainer=Factor(value=1.1)),
    )
    slower = _slower(known, "generator", 2.0)
    assert slower.factor("generation", "generator").value == 3.0
    assert slower.factor("training", "trainer").value == 1.1
    assert slower.factor("training", "other").value == 1.2


def test_nodes_lost_twice_as_often_leave_less():
    often, seldom = (
        forecast(on_spot(generates=spot(every))).spot.fraction for every in (HOUR / 2, HOUR)
    )
    assert often < seldom < 1


def written(**group):
    group = {"gpu": "a100-80gb-sxm", "gpus_per_node": 8, **group}
    return Job(
        algorithm="grpo", models=FrozenDict(actor="qwen2.5-0.5b", reference="qwen2.5-0.5b"),
        workload=apart().job.workload, cluster=(NodeGroup(**group),),
        rewards=Rewards(function="exact_match"),
    )  # fmt: skip


def test_a_spot_price_that_is_not_known_is_refused_with_what_to_say(tmp_path):
    with pytest.raises(FileError, match=r"usd_per_gpu_hour: is missing.*spot prices change"):
        resolve_job(written(spot=spot()), tmp_path)
    resolve_job(written(spot=spot(), usd_per_gpu_hour=PRICE), tmp_path)
