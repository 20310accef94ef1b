"""Plans at the lengths that a run had."""

from dataclasses import replace

import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.job import DynamicSampling
from rlplan.planner.measured.measured_lengths import at_logged_lengths, at_run_lengths, own_steps
from rlplan.profiles.sheets import load_log_sheet
from rlplan.results.measurement import LoggedSteps, MeasuredRun, ResponseLengths
from rlplan.trace import Trace
from rlplan.workload import Environment, Lognormal, longest, mean_length
from tests.simulator.plans import split_plan


def run_of(**lengths):
    return MeasuredRun(
        plan=split_plan(),
        trace=Trace(origin="measured", spans=(), iterations=()),
        warmup_iterations=0,
        memory_peak_bytes=FrozenDict(),
        machine=FrozenDict(),
        response_lengths=ResponseLengths(**lengths) if lengths else None,
    )


def responses(run):
    return at_run_lengths(run.plan, run).job.workload.response_tokens


def test_uneven_responses_have_the_mean_and_the_longest_of_the_run():
    found = responses(run_of(mean=24.0, std=9.5, longest=32.0))
    assert isinstance(found, Lognormal)
    assert (mean_length(found), longest(found)) == (pytest.approx(24.0), 32)


def test_a_run_as_long_as_planned_or_that_says_nothing_leaves_the_plan():
    planned = split_plan().job.workload.response_tokens
    assert responses(run_of()) == planned
    assert responses(run_of(mean=mean_length(planned), std=0.0, longest=9999.0)) == planned


def test_responses_of_one_length_are_as_long_as_the_mean():
    run = run_of(mean=24.0, std=0.0, longest=24.0)
    assert responses(run) == 24
    of_old = replace(run, response_lengths=None, response_tokens=30.0)
    assert responses(of_old) == 30


@pytest.mark.parametrize(
    ("sheet", "logged", "own", "longest_own"),
    [
        ("verl", 1500.0, 900.0, 3400.0),
        ("verl", 500.0, 500.0, 4000.0),
        ("openrlhf", 1500.0, 1500.0, 4000.0),
    ],
)
def test_responses_that_hold_what_environments_add_are_forecast_as_the_model_wrote_them(
    sheet, logged, own, longest_own
):
    # Four turns of an episode have three observations of 200 tokens between them.
    plan = split_plan()
    tools = Environment(name="tools", turns=4, observation_tokens=200, step_seconds=1.0)
    work = replace(plan.job.workload, environments=(tools,))
    plan = replace(plan, job=replace(plan.job, workload=work))
    steps = LoggedSteps(
        sheet=load_log_sheet(sheet),
        steps=3,
        step_seconds=None,
        stage_seconds=FrozenDict(),
        prompt_tokens=None,
        response_tokens=logged,
        longest_response=4000.0,
    )
    found, notes = own_steps(steps, work.mean_observations_tokens)
    assert (found.response_tokens, found.longest_response) == (own, longest_own)
    assert bool(notes) == (sheet == "verl")


@pytest.mark.parametrize(
    ("assumed", "most", "longest_of_all"),
    [("as published", 600.0, 600), (None, 600.0, 1024), ("as published", None, 1024)],
)
def test_a_spread_that_is_only_taken_ends_where_the_log_has_the_longest(
    assumed, most, longest_of_all
):
    """A limit of 1,024 tokens says little where the longest response that a log has is of 600."""
    plan = split_plan()
    lengths = Lognormal(mean=240.0, std=120.0, max=1024, assumed=assumed)
    workload = replace(plan.job.workload, response_tokens=lengths)
    plan = replace(plan, job=replace(plan.job, workload=workload))
    steps = LoggedSteps(
        sheet=load_log_sheet("verl"),
        steps=1,
        step_seconds=None,
        stage_seconds=FrozenDict(),
        prompt_tokens=None,
        response_tokens=240.0,
        longest_response=most,
    )
    found = at_logged_lengths(plan, steps).job.workload.response_tokens
    assert longest(found) == longest_of_all
    assert mean_length(found) == pytest.approx(240.0, rel=0.01)


def batches_logged(count):
    return LoggedSteps(
        sheet=load_log_sheet("verl"),
        steps=1,
        step_seconds=None,
        stage_seconds=FrozenDict(),
        prompt_tokens=None,
        response_tokens=None,
        generated_batches=count,
    )


@pytest.mark.parametrize(
    ("sampling", "count", "rounds"),
    [
        # A batch of generation has the prompts of three updates: 1.2 of them are 3.6 rounds.
        (DynamicSampling(expected_rounds=3.0, batches_at_once=3.0), 1.2, 3.6),
        (DynamicSampling(max_rounds=2), 3.0, 3.0),
        (DynamicSampling(), None, None),
        # No batches, and no others in place of those that are left out.
        (DynamicSampling(together=True), 3.0, None),
        (DynamicSampling(max_rounds=1, expected_rounds=1.0), 3.0, 1.0),
    ],
)
def test_groups_are_sampled_in_as_many_batches_as_a_log_has(sampling, count, rounds):
    plan = split_plan()
    plan = replace(plan, job=replace(plan.job, algorithm="dapo", dynamic_sampling=sampling))
    found = at_logged_lengths(plan, batches_logged(count)).job.dynamic_sampling
    assert found.expected_rounds == pytest.approx(rounds)
    assert found.max_rounds >= min(rounds or 1.0, sampling.max_rounds)


@pytest.mark.parametrize(("algorithm", "counted"), [("dapo", True), ("grpo", False)])
def test_an_algorithm_that_samples_again_has_batches_without_being_told(algorithm, counted):
    plan = split_plan()
    plan = replace(plan, job=replace(plan.job, algorithm=algorithm, dynamic_sampling=None))
    found = at_logged_lengths(plan, batches_logged(2.0)).job.dynamic_sampling
    assert (found.expected_rounds if found else None) == (2.0 if counted else None)


@pytest.mark.parametrize(("count", "most"), [(3.0, 3), (2.3, 3), (1.0, 2)])
def test_a_log_of_more_batches_than_its_job_allows_is_forecast_with_as_many(count, most):
    plan = split_plan()
    sampling = DynamicSampling(max_rounds=2)
    plan = replace(plan, job=replace(plan.job, algorithm="dapo", dynamic_sampling=sampling))
    found = at_logged_lengths(plan, batches_logged(count)).job.dynamic_sampling
    assert (found.expected_rounds, found.max_rounds) == (count, most)
