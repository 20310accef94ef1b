from dataclasses import replace

import pytest

from rlplan.errors import FileError
from rlplan.files.decoding import decode
from rlplan.job import Job, Specs
from rlplan.planner.requests.specs import (
    Violation,
    allowed_modes,
    spec_values,
    usable_fraction,
    violations,
)
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from tests.simulator.plans import priced_plan

PLAN = priced_plan()
FORECAST = simulate(PLAN, load_facts(PLAN.job, None))


def test_a_plans_values_are_its_forecasts():
    values = spec_values(PLAN, FORECAST)
    assert values["gpus"] == 4
    assert values["staleness"] == 0
    assert values["usd_per_hour"] == pytest.approx(4 * 3.43)
    fullest = max(each.gpu_peak_bytes for each in FORECAST.memory)
    assert values["memory_headroom_fraction"] == pytest.approx(1 - fullest / 85899345920)


def test_limits_from_above_and_headroom_from_below_are_violated_with_what_was_found():
    assert violations(PLAN, FORECAST, Specs(gpus=4, memory_headroom_fraction=0.01)) == ()
    found = violations(PLAN, FORECAST, Specs(gpus=3, memory_headroom_fraction=0.999))
    headroom = spec_values(PLAN, FORECAST)["memory_headroom_fraction"]
    assert found == (
        Violation("gpus", 3, 4),
        Violation("memory_headroom_fraction", 0.999, headroom),
    )


def test_weights_may_be_old_only_where_the_specs_say_so():
    assert allowed_modes(Specs()) == ("sync",)
    assert allowed_modes(Specs(staleness=0)) == ("sync",)
    assert allowed_modes(Specs(staleness=1)) == ("sync", "one-step-off")


def test_headroom_leaves_the_rest_of_the_memory():
    assert usable_fraction(Specs()) == 1
    assert usable_fraction(Specs(memory_headroom_fraction=0.1)) == 0.9


def test_a_job_file_may_hold_an_objective_and_specs():
    data = {
        "algorithm": "ppo",
        "models": {"actor": "llama-2-7b"},
        "workload": {"prompts": 1, "prompt_tokens": 1, "response_tokens": 1},
        "cluster": [{"gpu": "h100-80gb-sxm", "gpus_per_node": 8, "usd_per_gpu_hour": 2.5}],
        "objective": "cost",
        "specs": {"iteration_seconds": 120, "usd_per_hour": 60},
    }
    job = decode(Job, data, "job.yaml")
    assert job.objective == "cost"
    assert job.specs == Specs(iteration_seconds=120, usd_per_hour=60)
    assert job.specs.given == {"iteration_seconds": 120, "usd_per_hour": 60}
    assert job.cluster[0].usd_per_gpu_hour == 2.5
    with pytest.raises(FileError, match=r"specs\.gpu: unknown key.*did you mean 'gpus'"):
        decode(Job, data | {"specs": {"gpu": 3}}, "job.yaml")


def test_a_plan_of_old_weights_keeps_no_limit_of_staleness_zero():
    stale = replace(PLAN, staleness=1)
    assert violations(stale, FORECAST, Specs(staleness=0)) == (Violation("staleness", 0, 1),)
