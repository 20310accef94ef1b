"""The memory that searches leave free: an engine that fills its share of a GPU leaves the rest, to the byte."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import InfeasibleError
from rlplan.files.decoding import decode
from rlplan.job import Job, Specs
from rlplan.plan import PlanDraft
from rlplan.planner.answers.best_plans import best_plans
from rlplan.planner.answers.completion import complete
from rlplan.planner.requests.specs import usable_fraction
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_job, resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate

JOB = resolve_job(decode(
    Job,
    {
        "algorithm": "grpo",
        "models": {"actor": "qwen2.5-1.5b"},
        "workload": {
            "prompts": 256, "samples_per_prompt": 16, "prompt_tokens": 1024, "response_tokens": 8192,
        },
        "cluster": [{"gpu": "h100-80gb-sxm", "gpus_per_node": 1}],
        "hyperparameters": {"kl_in": "none"},
        "rewards": {"function": "exact_match"},
    },
    "job",
), Path())  # fmt: skip


def test_an_engine_may_fill_its_usual_share_where_just_the_rest_is_to_stay_free():
    facts = load_facts(JOB)
    found = {}
    for headroom in (0.1, 0.0999):  # the engine's share is 0.9
        best = search(JOB, facts, specs=Specs(memory_headroom_fraction=headroom)).plans[0]
        found[headroom] = best.plan
        assert best.forecast.memory[0].terms.get("KV cache", 0) > 0
        assert 1 - best.forecast.free_fraction <= usable_fraction(Specs()) - headroom + 1e-9
    assert found[0.1] == found[0.0999]


@pytest.mark.full
def test_a_limit_that_only_fuller_plans_keep_finds_none_of_them():
    job = load_job(Path(__file__).resolve().parents[2] / "examples" / "grpo-qwen2.5-7b-8xh100.yaml")
    facts = load_facts(job)
    roomy, full = (
        search(job, facts, specs=Specs(memory_headroom_fraction=free)).plans[0].forecast
        for free in (0.1, None)
    )
    assert full.iteration_seconds < roomy.iteration_seconds
    limit = Specs(iteration_seconds=(full.iteration_seconds + roomy.iteration_seconds) / 2)
    with pytest.raises(InfeasibleError, match=r"memory_headroom_fraction \(at least 0\.1\) would"):
        best_plans(replace(job, specs=limit), facts)


@pytest.mark.full
def test_where_only_fuller_plans_fit_the_share_that_they_leave_free_is_named(monkeypatch):
    monkeypatch.setattr("rlplan.planner.requests.specs.USUAL_HEADROOM", 0.999)
    with pytest.raises(
        InfeasibleError, match=r"memory_headroom_fraction .* would have to be 0\.\d"
    ):
        best_plans(JOB, load_facts(JOB))


@pytest.mark.full
def test_what_a_plan_leaves_open_leaves_the_usual_share_free_where_that_is_possible(monkeypatch):
    facts, draft = load_facts(JOB), PlanDraft(job="job.yaml")
    assert simulate(complete(draft, JOB, facts), facts).free_fraction >= 0.1 - 1e-9
    wanted = replace(JOB, specs=Specs(memory_headroom_fraction=0.2))
    assert simulate(complete(draft, wanted, facts), facts).free_fraction >= 0.2 - 1e-9

    monkeypatch.setattr("rlplan.planner.requests.specs.USUAL_HEADROOM", 0.999)
    full = complete(draft, JOB, facts)
    assert full.tasks == search(JOB, facts).plans[0].plan.tasks
