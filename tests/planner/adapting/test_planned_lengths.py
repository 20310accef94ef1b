"""Runs whose lengths are those that their job says, within chance: at which lengths gains are weighed, and what is found before a run begins."""

from dataclasses import replace

import pytest

from rlplan.calibration import NO_CALIBRATION, Calibration, Factor
from rlplan.files.frozen import FrozenDict
from rlplan.planner.adapting.background import Background
from rlplan.planner.adapting.pacing import Pace
from rlplan.planner.adapting.proposing import (
    AGAIN,
    BEFORE_FACTOR,
    Proposals,
    Request,
    SearchedBefore,
    at_present_lengths,
    proposals,
    searched_before,
)
from rlplan.planner.adapting.window import Window
from rlplan.planner.measured.measured_lengths import at_run_lengths
from rlplan.simulator.simulate import simulate
from rlplan.workload import mean_length
from tests.planner.adapting.test_adapting import (
    apart,  # noqa: F401 -- a fixture
    done,
    facts,  # noqa: F401 -- a fixture
    job,  # noqa: F401 -- a fixture
    measured_run,
    together,  # noqa: F401 -- a fixture
)
from tests.planner.adapting.test_growing_lengths import growing  # noqa: F401 -- a fixture


def request_of(plan, facts, **more):  # noqa: F811
    """Return a request of a run of a hundred iterations, which takes what it is forecast to."""
    window = measured_run(plan, facts, times=1.0)
    return Request(
        measured=window.measured(),
        step_seconds=window.step_seconds,
        iterations=100,
        staleness=1,
        **more,
    )


def window_of(plan, tokens, **more):
    window = Window(20, 0)
    for number, each in enumerate(tokens):
        window.note(done(plan, number, tokens=each, **more))
    return window


@pytest.mark.parametrize(
    ("tokens", "planned"),
    [
        # By the job 4.04, 4.12, ... in the first of 100 iterations. A mean ratio of 1.03, its standard error 0.26.
        ([2.0, 6.5, 3.0, 7.0, 2.5, 4.0], True),
        ([8.0, 9.0, 7.5, 8.5, 9.5, 8.0], False),
        ([4.0, 4.0], False),  # too few to tell
    ],
)
def test_lengths_are_the_planned_ones_within_two_standard_errors(growing, tokens, planned):  # noqa: F811
    assert window_of(growing, tokens).has_planned_lengths == planned


def test_lengths_that_stay_are_laid_beside_the_jobs_mean(together):  # noqa: F811
    mean = mean_length(together.job.workload.response_tokens)
    assert window_of(together, [mean * each for each in (0.9, 1.1, 1.0, 0.95)]).has_planned_lengths
    assert not window_of(together, [mean * each for each in (1.9, 2.1, 2.0)]).has_planned_lengths
    # Alike to the token: nothing is left to chance.
    assert not window_of(together, [mean * 1.01] * 5).has_planned_lengths


def test_of_dropped_responses_nothing_is_said(growing):  # noqa: F811
    work = replace(growing.job.workload, over_sampling=1.5)
    plan = replace(growing, job=replace(growing.job, workload=work))
    assert plan.job.workload.drops_responses
    assert not window_of(plan, [2.0, 6.5, 3.0, 7.0]).has_planned_lengths


def test_gains_are_weighed_at_planned_lengths_where_those_measured_are_so_by_chance(growing, facts):  # noqa: F811
    """The iteration that was measured is brought to planned lengths by the ratio of forecasts."""
    request = request_of(growing, facts)
    short, seconds = at_present_lengths(request, facts)
    assert (short, seconds) == (at_run_lengths(growing, request.measured), request.step_seconds)
    there, brought = at_present_lengths(replace(request, has_planned_lengths=True), facts)
    numbers = [each.iteration + 1 for each in request.measured.trace.iterations]
    # From 4 tokens in the first of 100 iterations to 12 in the last one, evenly.
    means = [4.0 + 8.0 * (number - 0.5) / 100 for number in numbers]
    assert mean_length(there.job.workload.response_tokens) == pytest.approx(
        sum(means) / len(means), rel=0.02
    )
    then, now = (simulate(each, facts).iteration_seconds for each in (there, short))
    assert brought == pytest.approx(request.step_seconds * then / now)


def test_lengths_of_a_run_are_not_taken_to_be_spread_as_other_runs_may_be(growing, facts):  # noqa: F811
    """Factors of generation are fitted on its own responses: what is assumed of their spread is in these."""
    lengths = replace(growing.job.workload.response_tokens, assumed="of published runs")
    work = replace(growing.job.workload, response_tokens=lengths)
    plan = replace(growing, job=replace(growing.job, workload=work))
    for has_planned_lengths in (True, False):
        request = request_of(plan, facts, has_planned_lengths=has_planned_lengths)
        there, _ = at_present_lengths(request, facts)
        assert there.job.workload.response_tokens.assumed is None
        known, _ = at_present_lengths(
            replace(request, measured=replace(request.measured, plan=growing)), facts
        )
        assert there == known


def test_what_was_found_before_a_run_holds_for_a_run_as_that_took_it_to_be(growing, facts):  # noqa: F811
    before = searched_before(growing, facts)
    assert before.plans
    assert before.cpu_seconds > 0
    request = request_of(growing, facts, has_planned_lengths=True)
    assert before.holds(request, NO_CALIBRATION)
    assert not before.holds(replace(request, has_planned_lengths=False), NO_CALIBRATION)
    assert not before.holds(replace(request, staleness=0), NO_CALIBRATION)
    for value in (BEFORE_FACTOR * 1.01, 0.99 / BEFORE_FACTOR):
        site = Calibration(stages=FrozenDict({"training": Factor(value=value)}))
        assert not before.holds(request, site)


def test_a_first_look_is_at_what_was_found_before_and_takes_no_search(growing, apart, facts):  # noqa: F811
    before = SearchedBefore(plans=(replace(apart, job=growing.job),), staleness=1, cpu_seconds=2.5)
    request = request_of(growing, facts, has_planned_lengths=True)
    found = proposals(request, facts, before)
    assert found.before_cpu_seconds == 2.5
    assert found.search_cpu_seconds < 0.1
    assert [each.mode for each in found.known] == ["one-step-off"]
    (lengths, where) = found.notes
    # Five tokens were measured in the second to the fifth iteration; by the job 4.12, 4.20, 4.28 and 4.36.
    assert lengths.startswith("forecasts and gains are of 4.2 response tokens")
    assert "the 5.0 that were measured" in lengths
    assert where.startswith("plans of a search before the run")
    # Plans that are given are looked at again, and nothing else.
    again = proposals(replace(request, known=found.known), facts, before)
    assert again.before_cpu_seconds == 0.0
    assert again.notes == (lengths, AGAIN)
    as_measured = proposals(replace(request, known=found.known, has_planned_lengths=False), facts)
    assert as_measured.notes == (AGAIN,)


def test_a_search_is_taken_to_take_what_the_one_before_the_run_did(growing, facts):  # noqa: F811
    pace = Pace(10)
    found = Proposals(request=request_of(growing, facts), cpu_seconds=0.1, before_cpu_seconds=2.5)
    pace.note(found, is_present=True)
    assert pace.spent_words == "searches have taken 100.0 ms of a core"
    assert pace._takes_seconds == {True: 2.6, False: 0.1}


@pytest.mark.full
def test_the_process_beside_a_run_searches_before_it_and_anew_behind_its_first_look(growing, facts):  # noqa: F811
    request = request_of(growing, facts, has_planned_lengths=True)
    with Background(plan=growing) as there:
        first, second = (_answer(there, request) for _ in range(2))
    assert first.before_cpu_seconds > 0
    assert second.before_cpu_seconds == 0
    assert second.search_cpu_seconds > 0
    (lengths,) = second.notes
    assert "which the job plans" in lengths


def _answer(there, request):
    there.ask(request)
    while (answer := there.answer()) is None:
        pass
    return answer
