"""What a page shows of a plan beside its forecast."""

import pytest

from rlplan.planner.answers import plan_details as details
from rlplan.planner.answers.completion import load_plan
from rlplan.simulator.simulate import simulate
from rlplan.workload import Empirical, Lognormal, Uniform, longest, stretched
from tests.house.tree import ROOT


@pytest.fixture(scope="module")
def known():
    return load_plan(ROOT / "examples" / "ppo-7b-16xa100.plan.yaml")


@pytest.mark.full
def test_other_jobs_are_simulated_and_more_nodes_are_searched(known, monkeypatch):
    plan, facts = known
    monkeypatch.setattr(details, "SEARCH_SECONDS", 0.2)
    longer, half, more = details.what_ifs(plan, facts)
    assert longer.is_same_plan
    assert longer.forecast == simulate(longer.plan, facts)
    assert longest(longer.plan.job.workload.response_tokens) == 2 * longest(
        plan.job.workload.response_tokens
    )
    assert half.plan.job.workload.prompts == plan.job.workload.prompts // 2
    assert not more.is_same_plan
    assert more.plan.job.cluster[0].nodes == plan.job.cluster[0].nodes + 2


def test_memory_is_told_of_every_task_and_its_most_is_the_forecast_peak(known):
    plan, facts = known
    found = details.plan_details(plan, facts, asks=False).memory
    for memory in simulate(plan, facts).memory:
        moments = {
            each.during: sum(each.terms.values()) for each in found if each.pool == memory.pool
        }
        assert max(moments.values()) == moments[memory.peak_task] == memory.gpu_peak_bytes


def test_as_many_responses_are_under_way_as_are_sampled_until_generation_ends(known):
    plan, facts = known
    found = details.plan_details(plan, facts, asks=False).under_way
    assert (found.seconds[0], found.responses[0]) == (0.0, plan.job.workload.sequences)
    assert list(found.seconds) == sorted(found.seconds)
    assert list(found.responses) == sorted(found.responses, reverse=True)
    assert found.responses[-1] == 0
    (cost,) = [each for each in simulate(plan, facts).costs if each.name == "actor.generate"]
    parts = cost.parts
    assert found.seconds[-1] == pytest.approx(parts["prefill"] + parts["decode"], rel=1e-5)


@pytest.mark.parametrize(
    ("lengths", "most"),
    [
        (600, 1200),
        (Uniform(low=2, high=9), 18),
        (Empirical(values=(3, 8)), 16),
        (Lognormal(mean=9.0, std=4.0, max=40), 80),
    ],
)
def test_stretched_lengths_are_each_so_many_times_as_long(lengths, most):
    assert longest(stretched(lengths, 2)) == most
