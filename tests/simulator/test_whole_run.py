"""A whole run beside the same sums done by hand: steps, lengths that grow, validations, checkpoints, failures."""

import math
from dataclasses import replace

import pytest

from rlplan.errors import InfeasibleError, UserError
from rlplan.job import Checkpoints, Failures, Spot
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from rlplan.simulator.whole_run import SPOT_NOTE, run_forecast
from rlplan.workload import Evaluation, Lognormal
from tests.simulator.plans import priced_plan, split_plan
from tests.simulator.test_streaming_plans import apart

STEPS = 100
GROWING = Lognormal(mean=250, std=140, max=1638, training_means=(100.0, 400.0))


def plan_of(response_tokens=GROWING, **changes):
    job = split_plan().job
    work = replace(job.workload, response_tokens=response_tokens)
    return priced_plan(job=replace(job, workload=work, **changes))


def run_of(plan, **options):
    return run_forecast(plan, load_facts(plan.job, None), STEPS, **options)


def test_a_run_of_lengths_that_stay_is_its_steps():
    plan = plan_of(16)
    step = simulate(plan, load_facts(plan.job, None))
    run = run_of(plan)
    assert run.seconds == pytest.approx(STEPS * step.iteration_seconds)
    assert run.interval_seconds == pytest.approx(
        [STEPS * each for each in step.iteration_seconds_interval]
    )
    assert run.usd == pytest.approx(STEPS * step.cost_usd)
    assert run.usd_per_hour * run.seconds / 3600 == pytest.approx(run.usd)


def test_what_is_paid_an_hour_may_be_more_than_the_plans_gpus():
    run = run_of(plan_of(16), usd_per_hour=55.0)
    assert run.usd == pytest.approx(run.seconds / 3600 * 55)
    assert run.interval_usd == pytest.approx([each / 3600 * 55 for each in run.interval_seconds])


def test_a_run_whose_responses_grow_is_near_one_simulated_at_many_of_its_steps():
    usual, many = run_of(plan_of()), run_of(plan_of(), points=9)
    assert usual.seconds == pytest.approx(many.seconds, rel=0.01)
    assert usual.points[0].seconds < usual.points[-1].seconds
    assert [usual.points[0].response_tokens, usual.points[-1].response_tokens] == pytest.approx(
        [100, 400], rel=0.02
    )


def test_a_curve_of_the_run_comes_before_what_the_job_says():
    run = run_of(plan_of(), curve=[(1, 150.0), (50, 150.0), (100, 150.0)])
    assert {point.response_tokens for point in run.points} == {150.0}
    flat = plan_of()
    at = run_of(flat, curve=[(30, 150.0)])
    assert at.seconds == pytest.approx(run.seconds), (
        "it stays before its first and behind its last point"
    )


def test_a_curve_that_ends_long_before_its_run_stays_where_it_ends():
    curve = [(float(step), 100.0 + 5 * step) for step in range(1, 31)]
    at = {point.step: point.response_tokens for point in run_of(plan_of(), curve=curve).points}
    assert at[1] == 105
    assert at[100] == 250
    assert len([step for step in at if step <= 30]) == len(at) - 1


def on_spot(spot, plan=None):
    """Return a plan on spot nodes, and its failures."""
    plan = plan or plan_of(16)
    (group,) = plan.job.cluster
    failures = Failures(node_mtbf_seconds=1e9, checkpoint_seconds=5.0, restart_seconds=60.0)
    group = replace(group, spot=spot, usd_per_gpu_hour=1.0)
    return replace(plan, job=replace(plan.job, cluster=(group,), failures=failures))


def test_losses_of_spot_nodes_that_train_stop_a_run():
    """Two nodes, each lost every 10,000 s; another is there 60 s later, has started in 30 s, and the run restarts in 60 s."""
    rare, often = (
        Spot(loss_every_seconds=each, replacement_seconds=60.0, start_seconds=30.0)
        for each in (1e12, 1e4)
    )
    calm, run = run_of(on_spot(rare)), run_of(on_spot(often))
    assert SPOT_NOTE in run.notes
    assert run_of(plan_of(16)).notes == ()
    assert run.parts["steps"] == calm.parts["steps"]
    assert run.failures == pytest.approx(2 * run.seconds / 1e4, rel=1e-3)
    assert run.parts["failures"] > run.failures * (60 + 60 + 30)
    present = 1e4 / (1e4 + 60)
    assert run.usd_per_hour == pytest.approx(calm.usd_per_hour * present, rel=1e-3)
    with pytest.raises(InfeasibleError, match="would not get on"):
        run_of(on_spot(replace(often, loss_every_seconds=1.0)))


def test_a_run_and_its_steps_say_the_same_of_spot_nodes_that_only_generate():
    plan = apart("streaming", samples=1, updates=1)
    group = replace(plan.job.cluster[0], gpus_per_node=2, usd_per_gpu_hour=1.2)
    spot = Spot(loss_every_seconds=3600.0, replacement_seconds=300.0, start_seconds=120.0)
    job = replace(plan.job, cluster=(group, replace(group, spot=spot)), iterations=STEPS)
    plan = replace(plan, job=job)
    step, run = simulate(plan, load_facts(job)).spot, run_of(plan)
    assert run.parts["spot"] > 0
    assert run.seconds == pytest.approx(step.run_seconds)
    assert run.usd == pytest.approx(step.run_usd)


def test_a_curve_of_longer_responses_than_the_longest_is_refused():
    with pytest.raises(
        UserError, match="at step 100 are none of this job, whose longest has 1,638"
    ):
        run_of(plan_of(), curve=[(1, 150.0), (100, 9000.0)])
    with pytest.raises(UserError, match="without a point"):
        run_of(plan_of(), curve=[])


def test_validations_and_checkpoints_come_as_often_as_the_job_says():
    plan = plan_of(
        16,
        evaluation=Evaluation(prompts=8, every=20, before_first=True, after_last=True),
        checkpoints=Checkpoints(every=25, node_bytes_per_second=1e6),
    )
    run, bare = run_of(plan), run_of(plan_of(16))
    assert (run.validations, run.checkpoints) == (6, 4)
    assert run.parts["steps"] == pytest.approx(bare.seconds)
    assert run.parts["validation"] == pytest.approx(6 * run.points[0].validation_seconds)
    assert run.parts["validation"] > 0
    assert run.seconds == pytest.approx(sum(run.parts.values()))
    once = run_of(plan_of(16, checkpoints=Checkpoints(node_bytes_per_second=1e6)))
    assert run.parts["checkpoints"] == pytest.approx(4 * once.parts["checkpoints"])


def test_failures_lengthen_a_run_by_restarts_and_lost_work():
    bare = run_of(plan_of(16))
    seldom = Failures(
        node_mtbf_seconds=bare.seconds / 2,
        checkpoint_seconds=bare.seconds / 1000,
        restart_seconds=bare.seconds / 100,
        checkpoint_every=10,
    )
    run = run_of(plan_of(16, failures=seldom))
    # Two failures and a little, each with its restart and half of what lies between two checkpoints.
    each = bare.seconds / 100 + bare.seconds * 0.101 / 2
    assert run.failures == pytest.approx(2 * (1 + 2 * each / bare.seconds), rel=0.1)
    assert run.parts["failures"] == pytest.approx(run.failures * each, rel=0.1)
    assert run.checkpoints == 10
    margin = run.interval_seconds[1] - run.seconds
    assert margin > (bare.interval_seconds[1] - bare.seconds) * run.seconds / bare.seconds


def test_chance_of_failures_adds_to_the_interval_as_a_variance():
    bare = run_of(plan_of(16))
    restart = bare.seconds / 10
    failures = Failures(
        node_mtbf_seconds=bare.seconds,
        checkpoint_seconds=0.0,
        restart_seconds=restart,
        checkpoint_every=1,
    )
    run = run_of(plan_of(16, failures=failures))
    piece = bare.seconds / STEPS
    variance = run.failures * (restart**2 + restart * piece + piece**2 / 3)
    steps = (bare.interval_seconds[1] - bare.seconds) * run.seconds / bare.seconds
    assert run.interval_seconds[1] - run.seconds == pytest.approx(
        math.hypot(steps, 1.2815515655 * math.sqrt(variance)), rel=1e-6
    )


def test_a_run_that_failures_keep_from_getting_on_is_refused():
    failures = Failures(node_mtbf_seconds=1e-6, checkpoint_seconds=1.0, restart_seconds=600.0)
    with pytest.raises(InfeasibleError, match="would not get on"):
        run_of(plan_of(16, failures=failures))


def test_a_run_says_at_which_of_its_steps_it_does_not_fit():
    reasons = run_of(plan_of(16), curve=[(1, 16.0), (100, 4e7)]).infeasible_reasons
    assert reasons
    assert all(each.startswith("at step 100 (40,000,000 tokens a response): ") for each in reasons)
