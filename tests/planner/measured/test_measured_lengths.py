"""Plans at the lengths that a run had."""

from dataclasses import replace

import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.planner.measured.measured_lengths import at_run_lengths
from rlplan.results.measurement import MeasuredRun, ResponseLengths
from rlplan.trace import Trace
from rlplan.workload import Lognormal, longest, mean_length
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
