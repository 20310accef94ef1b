import pytest

from rlplan.errors import InfeasibleError
from rlplan.job import Specs
from rlplan.planner.answers.best_plans import (
    infeasible_specs_error,
    nearest_value,
    show_value,
)
from tests.planner.tables import JOB, candidate, solver

NONE_FITS = InfeasibleError("no plan fits")
TABLE = (
    candidate(10, 8, 3000, gpus=8, peak_fraction=0.9),
    candidate(20, 4, 1000, gpus=4, peak_fraction=0.6),
    candidate(40, 2, 2000, gpus=3, peak_fraction=0.8),
)


def said(specs, *table):
    return str(infeasible_specs_error(JOB, specs, solver(*(table or TABLE)), NONE_FITS))


def test_the_spec_that_binds_is_named_with_the_nearest_value_that_can_be_kept():
    assert said(Specs(iteration_seconds=8, gpus=8)) == (
        "no plan of job 'job' keeps its specs; with the others kept, "
        "specs.iteration_seconds (at most 8 s) would have to be 10 s"
    )


def test_of_two_specs_that_contradict_each_other_both_say_how_far_they_would_have_to_go():
    assert said(Specs(iteration_seconds=15, cost_usd=5)) == (
        "no plan of job 'job' keeps its specs; with the others kept, "
        "specs.iteration_seconds (at most 15 s) would have to be 20 s or "
        "specs.cost_usd (at most 5 USD) would have to be 8 USD"
    )


def test_two_specs_that_no_plan_keeps_even_alone_are_told_apart():
    assert said(Specs(iteration_seconds=5, cost_usd=1)) == (
        "no plan of job 'job' keeps its specs, not even with one of them left out: "
        "specs.iteration_seconds (at most 5 s), where no plan at all reaches beyond 10 s; "
        "specs.cost_usd (at most 1 USD), where no plan at all reaches beyond 2 USD"
    )


def test_three_specs_of_which_no_two_go_together():
    message = said(Specs(iteration_seconds=15, cost_usd=3, energy_joules=1500))
    assert message.endswith("each can be kept by itself, but not with the others")


def test_a_job_that_does_not_fit_at_all_says_that():
    assert said(Specs(gpus=1, staleness=1), candidate(10, 8, gpus=8)) != "no plan fits"
    solve = solver()
    assert infeasible_specs_error(JOB, Specs(gpus=1), solve, NONE_FITS) is NONE_FITS


@pytest.mark.parametrize(
    ("name", "others", "nearest"),
    [
        ("energy_joules", Specs(), 1000),
        ("energy_joules", Specs(cost_usd=3), 2000),
        ("gpus", Specs(), 3),
        ("gpus", Specs(iteration_seconds=20), 4),
        ("memory_headroom_fraction", Specs(), 0.4),
        ("memory_headroom_fraction", Specs(cost_usd=3), 0.2),
        ("usd_per_hour", Specs(), 2 * 3600 / 40),
        ("usd_per_hour", Specs(iteration_seconds=30), 4 * 3600 / 20),
        ("usd_per_hour", Specs(iteration_seconds=5), None),
    ],
)
def test_the_nearest_value_is_the_best_of_the_plans_that_keep_the_others(name, others, nearest):
    found = nearest_value(name, others, solver(*TABLE))
    assert found == (nearest if nearest is None else pytest.approx(nearest))


def test_shown_values_are_rounded_to_the_side_on_which_they_are_kept():
    assert show_value("iteration_seconds", 70.30401) == "70.31 s"
    assert show_value("iteration_seconds", 70.31) == "70.31 s"
    assert show_value("memory_headroom_fraction", 0.123456) == "0.1234"
    assert show_value("gpus", 12) == "12 GPUs"
    assert show_value("energy_joules", 1_234_567) == "1.235e+06 J"
