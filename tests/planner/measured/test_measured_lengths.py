"""Plans at the lengths that a run had."""

from dataclasses import replace

import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.planner.measured.measured_lengths import at_logged_lengths, at_run_lengths, own_tokens
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


def logged(name, tokens):
    return LoggedSteps(
        sheet=load_log_sheet(name),
        steps=5,
        step_seconds=100.0,
        stage_seconds=FrozenDict(),
        prompt_tokens=None,
        response_tokens=tokens,
    )


def test_what_environments_answered_is_taken_off_responses_whose_log_counts_it():
    """Of 12 turns 11 are answered with 330 tokens each, in three of four episodes."""
    tools = Environment(name="swe", share=0.75, turns=12, observation_tokens=330, step_seconds=1.0)
    chat = Environment(name="chat", share=0.25, turns=1, step_seconds=1.0)
    plan = split_plan()
    work = replace(plan.job.workload, environments=(tools, chat))
    assert own_tokens(work, logged("verl", 4000.0)) == 4000 - 0.75 * 11 * 330
    assert own_tokens(work, logged("nemo-rl", 4000.0)) == 4000
    assert own_tokens(replace(work, environments=()), logged("verl", 4000.0)) == 4000
    assert (
        own_tokens(work, logged("verl", 2000.0)) is None
    )  # fewer than the job's environments answer
    assert own_tokens(work, logged("verl", None)) is None

    plan = replace(plan, job=replace(plan.job, workload=work))
    found = at_logged_lengths(plan, logged("verl", 4000.0)).job.workload.response_tokens
    assert mean_length(found) == pytest.approx(1277.5, abs=0.5)
