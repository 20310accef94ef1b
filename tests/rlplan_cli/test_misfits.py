"""What does not fit: a forecast that says why and what would, and a search that finds nothing."""

from pathlib import Path

import pytest
import yaml

from tests.house.tree import ROOT
from tests.rlplan_cli.conftest import change

EXAMPLE = ROOT / "examples" / "ppo-7b-16xa100.plan.yaml"


@pytest.fixture
def misfit(project, rlplan):
    """Write a plan whose critic keeps too many activations."""
    assert rlplan("simulate", EXAMPLE, "--out-plan", "misfit.yaml").code == 0
    for field, value in {"micro_batch": 64, "recompute": "none"}.items():
        change("misfit.yaml", "tasks", "critic.update", field, to=value)
    return "misfit.yaml"


@pytest.mark.full
def test_a_plan_that_does_not_fit_is_forecast_with_pool_term_shortage_and_the_nearest_fit(
    misfit, rlplan
):
    answer = rlplan("simulate", misfit, "--json")
    assert answer.code == 2
    assert answer.json["feasible"] is False
    shortage, nearest = answer.json["infeasible_reasons"]
    memory = answer.json["memory"][0]
    short_gib = (memory["gpu_peak_bytes"] - memory["capacity_bytes"]) / 2**30
    assert shortage.startswith("pool p0 (16 x a100-80gb-sxm): its fullest GPU needs ")
    assert f"of 80.0 GiB in critic.update, {short_gib:.1f} GiB too many" in shortage
    assert "largest term: activations" in shortage
    assert nearest.startswith("nearest change that fits: critic.update: ")


@pytest.mark.full
def test_the_named_change_makes_the_plan_fit(misfit, rlplan):
    nearest = rlplan("simulate", misfit, "--json").json["infeasible_reasons"][-1]
    _, task, setting = nearest.split(": ")
    field, value = setting.split(" ")
    change(misfit, "tasks", task, field, to=yaml.safe_load(value))
    assert rlplan("simulate", misfit, "--json").json["feasible"] is True


@pytest.mark.full
def test_the_table_tells_the_same_reasons(misfit, rlplan):
    answer = rlplan("simulate", misfit)
    assert answer.code == 2
    assert "does not fit: pool p0 (16 x a100-80gb-sxm): " in answer.err
    assert "\nnearest change that fits: critic.update: " in answer.err


@pytest.mark.full
def test_a_search_of_a_plan_that_does_not_fit_says_the_same_in_one_line(misfit, rlplan):
    answer = rlplan("search", misfit)
    assert answer.code == 2
    (line,) = answer.lines
    assert "that keeps what is pinned fits its cluster; the nearest: pool p0 " in line
    assert " in critic.update, " in line
    assert "; it holds activations " in line
    assert line.count("nearest change that fits: critic.update: ") == 1


@pytest.fixture
def pinned(project):
    """Write a partial plan whose pinned critic does not fit, whatever else is chosen."""
    job = yaml.safe_load((ROOT / "examples" / "ppo-7b-16xa100.yaml").read_text())
    job["models"] = dict.fromkeys(job["models"], "qwen2.5-1.5b")
    job["cluster"][0] |= {"gpus_per_node": 4, "nodes": 1}
    pins = {"micro_batch": 64, "recompute": "none", "tp": 1}
    pool = {"device": "a100-80gb-sxm", "gpus": 4, "roles": list(job["models"])}
    plan = {"job": job, "pools": [pool], "tasks": {"critic.update": pins}}
    Path("pinned.yaml").write_text(yaml.safe_dump(plan))
    return "pinned.yaml"


@pytest.mark.full
@pytest.mark.parametrize("command", ["simulate", "search"])
def test_pins_that_do_not_fit_are_told_the_terms_and_what_of_them_would_have_to_give_way(
    pinned, rlplan, command
):
    answer = rlplan(command, pinned)
    assert answer.code == 2
    assert " GiB too many; largest term: activations, " in answer.err
    assert "nearest change that fits: critic.update: " in answer.err


@pytest.mark.full
def test_the_report_tells_them_too(misfit, rlplan):
    page = Path(rlplan("report", misfit, "--no-what-if", "--json").json["report"])
    assert "nearest change that fits" in page.read_text()


def test_a_job_that_fits_nowhere_is_refused_with_the_reason_of_its_placements(project, rlplan):
    job = yaml.safe_load((ROOT / "examples" / "ppo-7b-16xa100.yaml").read_text())
    job["models"] = dict.fromkeys(job["models"], "llama-2-70b")
    job["cluster"][0] |= {"gpus_per_node": 2, "nodes": 1}
    Path("large.yaml").write_text(yaml.safe_dump(job))
    answer = rlplan("search", "large.yaml", "--out", "best.yaml")
    assert answer.code == 2
    (line,) = answer.lines
    assert "no plan of job 'ppo-7b-16xa100' fits its cluster, in 52 placements: " in line
    assert "{actor, critic, reference, reward} on 2 x a100-80gb-sxm needs at least " in line
    assert " GiB too many" in line
    assert "4 pools are more than the cluster's 2 GPUs" in line
    assert not Path("best.yaml").exists()
