"""A whole run on check, search and simulate: its days and USD, and limits that its p90 keeps."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rlplan.errors import FileError, InfeasibleError
from rlplan.files.frozen import FrozenDict
from rlplan.planner.answers import run_limits
from rlplan.planner.answers.run_limits import AskedRun, plans_within
from rlplan.results.renting import RentalLimits
from rlplan.results.run import RunForecast
from rlplan.units import whole_usd
from rlplan_cli.run_options import RunOptions, asked_run, keeps_run


def test_limits_are_of_so_many_steps():
    found = asked_run(RunOptions(400, 2000.0, 1.5))
    assert (found.steps, found.limits) == (
        400,
        RentalLimits(budget_usd=2000, deadline_seconds=129600),
    )
    assert asked_run(RunOptions(budget_usd=5.0), known=30).steps == 30
    assert asked_run(RunOptions(), known=30) is None
    assert not asked_run(RunOptions(10)).has_limits


@pytest.mark.parametrize(
    "given", [(None, 5.0, None), (None, None, 1.0), (10, 0.0, None), (10, None, float("inf"))]
)
def test_limits_without_steps_and_limits_that_are_none_are_refused(given):
    with pytest.raises(FileError, match=r"--budget-usd|--max-days"):
        asked_run(RunOptions(*given))


def test_a_run_that_does_not_fit_to_its_end_keeps_nothing():
    asked = asked_run(RunOptions(10, 100.0, 1.0))
    run = RunForecast(
        steps=10, points=(), seconds=10.0, interval_seconds=(9.0, 11.0), parts=FrozenDict(),
        usd_per_hour=1.0, usd=1.0, interval_usd=(0.9, 1.1),
    )  # fmt: skip
    assert keeps_run(asked, run)
    assert not keeps_run(asked, replace(run, infeasible_reasons=("at step 9: too long",)))


@pytest.fixture
def plans(monkeypatch):
    """Search among plans of (seconds of a step, USD of a step), whose runs' p90 are a fifth longer and dearer."""
    known = [(10.0, 4.0), (15.0, 2.0), (40.0, 1.0)]
    calls = []

    def search(job):
        calls.append(job)
        limit, late = job.specs.cost_usd or 1e9, job.specs.iteration_seconds or 1e9
        kept = [each for each in known if each[1] <= limit and each[0] <= late]
        if not kept:
            raise InfeasibleError("no plan keeps the limits")
        seconds, usd = min(kept, key=lambda each: each[job.objective == "cost"])
        plan = candidate(job, seconds, usd)
        unfit = ("without memory",) if len(kept) == len(known) else ("without memory", "too slow")
        return replace_like(
            plans=(plan,),
            gap=0.0,
            bound_seconds=seconds,
            space="plans",
            infeasible=unfit,
            unseen=(),
        )

    def run(plan, _facts, steps):
        seconds, usd = plan.known
        return RunForecast(
            steps=steps, points=(), seconds=seconds * steps, interval_seconds=(0.0, 1.2 * seconds * steps),
            parts=FrozenDict(), usd_per_hour=1.0, usd=usd * steps, interval_usd=(0.0, 1.2 * usd * steps),
        )  # fmt: skip

    monkeypatch.setattr(run_limits, "run_forecast", run)
    monkeypatch.setattr(run_limits, "replace", loosely_replaced)
    monkeypatch.setattr(run_limits, "batch_tokens", lambda _job: 1e6)
    return search, calls


def candidate(job, seconds, usd):
    forecast = replace_like(iteration_seconds=seconds, cost_usd=usd, run=None)
    return replace_like(plan=replace_like(job=job, known=(seconds, usd)), forecast=forecast)


def replace_like(**fields):
    return SimpleNamespace(**fields)


def loosely_replaced(thing, **changes):
    return SimpleNamespace(**{**vars(thing), **changes})


def job_of():
    return replace_like(
        objective="throughput", specs=replace_like(cost_usd=None, iteration_seconds=None)
    )


def within(search, **limits):
    asked = AskedRun(steps=100, limits=RentalLimits(**limits))
    best: Any = plans_within(job_of(), None, asked, search).plans[0].plan
    return best.known


def test_the_fastest_plan_is_taken_that_keeps_the_budget_at_p90(plans):
    search, calls = plans
    assert within(search, budget_usd=500.0) == (10.0, 4.0)
    assert len(calls) == 1  # nothing was over
    # 4 USD a step are 400 USD on average and 480 USD at p90.
    assert within(search, budget_usd=450.0) == (15.0, 2.0)
    assert within(search, budget_usd=130.0) == (40.0, 1.0)


def test_what_no_run_keeps_is_refused_with_the_cheapest_and_the_fastest(plans):
    words = (
        r"no plan was found that does 100 steps within 100 USD at p90; the cheapest run takes 120 USD and .* at p90; "
        r"the fastest run takes 480 USD"
    )
    with pytest.raises(InfeasibleError, match=words):
        within(plans[0], budget_usd=100.0)
    with pytest.raises(InfeasibleError, match="within 450 USD and 10 min 0 s at p90"):
        within(plans[0], budget_usd=450.0, deadline_seconds=600.0)


def test_limits_that_the_run_has_put_on_steps_are_not_the_plans_and_prove_nothing(plans):
    asked = AskedRun(steps=100, limits=RentalLimits(budget_usd=450.0))
    found = plans_within(job_of(), None, asked, plans[0])
    job = found.plans[0].plan.job
    assert (job.specs, job.objective) == (job_of().specs, "throughput")
    # 15 s, beside 10 s without a limit.
    assert found.gap == pytest.approx(1 / 3)
    assert found.bound_seconds == 10.0
    assert found.infeasible == ("without memory",)


@pytest.mark.parametrize(
    ("usd", "shown"), [(0.3, "0.3000 USD"), (7.5, "7.50 USD"), (140, "140 USD")]
)
def test_small_budgets_are_told_to_the_cent(usd, shown):
    assert whole_usd(usd) == shown


def test_budget_and_days_are_kept_together(plans):
    assert within(plans[0], budget_usd=450.0, deadline_seconds=1900.0) == (15.0, 2.0)


def test_simulate_says_whether_a_run_is_within_its_limits(project, rlplan):
    kept = rlplan("simulate", "plan.yaml", "--steps", "50", "--max-days", "1")
    assert kept.code == 0, kept.err
    assert "run:  50 steps in " in kept.out
    assert "      in time: " in kept.out
    late = rlplan("simulate", "plan.yaml", "--steps", "50", "--max-days", "1e-6")
    assert late.code == 2
    assert "      too late: " in late.out


@pytest.mark.full
def test_check_and_search_answer_for_the_whole_run(project, rlplan):
    found = json.loads(rlplan("check", "plan.yaml", "--steps", "50", "--json").out)
    assert found["run"]["steps"] == 50
    assert rlplan("check", "plan.yaml", "--steps", "50", "--max-days", "1e-6").code == 1
    searched = rlplan("search", "job.yaml", "--steps", "50", "--max-days", "1")
    assert searched.code == 0, searched.err
    assert "in time: " in searched.out
    refused = rlplan("search", "job.yaml", "--steps", "50", "--max-days", "1e-6")
    assert refused.code == 2
    assert "the fastest run takes" in refused.err
