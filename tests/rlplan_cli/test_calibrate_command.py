"""`rlplan calibrate`: factors of runs and tables, used with `--site`, and what it says of wrong files."""

from dataclasses import replace

import jsonschema
import pytest
import yaml

from rlplan.calibration import Calibration, Factor
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_json, write_yaml
from rlplan.planner.answers.completion import load_plan
from rlplan.simulator.simulate import simulate
from tests.rlplan_cli.conftest import change, write_run

KINDS = ("generation", "inference", "training")


def site_of(**values):
    return Calibration(
        site="mine",
        stages=FrozenDict({kind: Factor(value=value, rows=1) for kind, value in values.items()}),
    )


def run_of_a_slower_site(project, factor):
    """Write a run whose tasks took so many times as long as the forecast stored in it."""
    plan, facts = load_plan(project / "plan.yaml")
    slower = facts.with_calibration(site_of(**dict.fromkeys(KINDS, factor)))
    write_run(project / "slow", plan, simulate(plan, slower, iterations=5))
    write_run(project / "usual", plan, simulate(plan, facts, iterations=5))
    (project / "usual" / "forecast.json").rename(project / "slow" / "forecast.json")


@pytest.mark.full
def test_a_run_as_forecast_has_factors_of_1_that_leave_forecasts_as_they_are(project, rlplan):
    assert rlplan("calibrate", "run", "--out", "site.yaml").code == 0
    written = yaml.safe_load((project / "site.yaml").read_text())
    assert (written["site"], written["rests_on"], written["sources"]) == (
        "site",
        "datasheet",
        ["run"],
    )
    values = [each["value"] for each in written["stages"].values()]
    assert values == pytest.approx([1.0] * len(values))
    usual = rlplan("simulate", "plan.yaml", "--json").json
    answer = rlplan("simulate", "plan.yaml", "--site", "site.yaml", "--json").json
    assert answer["iteration_seconds"] == pytest.approx(usual["iteration_seconds"])
    assert "site" not in usual
    assert answer["site"] == "site"
    assert any(each.startswith("site site: generation") for each in answer["assumptions"])


@pytest.mark.full
def test_the_factors_of_a_slower_site_are_found_up_to_the_shrinkage(project, rlplan):
    run_of_a_slower_site(project, 1.5)
    found = rlplan("calibrate", "slow", "--out", "slow.yaml", "--json").json
    for kind in KINDS:
        factor = found["stages"][kind]
        expected = 1.5 ** (1 - factor["shrinkage"])
        assert factor["value"] == pytest.approx(expected)
        assert factor["value"] > 1.2
    assert rlplan("validate", "slow", "--site", "slow.yaml", "--json").code == 0


@pytest.mark.full
def test_search_and_simulate_agree_under_a_site(project, rlplan):
    write_yaml(project / "site.yaml", site_of(generation=0.5, inference=0.8, training=1.7))
    asked = ("search", "job.yaml", "--site", "site.yaml", "--json", "--out", "best.yaml")
    found = rlplan(*asked).json
    again = rlplan("simulate", "best.yaml", "--site", "site.yaml", "--json").json
    best = found["plans"][0]["forecast"]
    assert again["iteration_seconds"] == pytest.approx(best["iteration_seconds"])
    assert found["bound_seconds"] <= best["iteration_seconds"]


def test_a_table_that_holds_no_steps_of_frameworks_is_refused(project, rlplan):
    (project / "table.csv").write_text("a,b\n1,2\n")
    answer = rlplan("calibrate", "table.csv")
    assert answer.code == 2
    assert "has the columns of no table that rlplan knows" in answer.err


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("stages", "trainig"), {"value": 1.0}, "did you mean 'training'"),
        (("stages", "training", "value"), -1, "stages.training.value"),
        (("version",), 2, "version"),
        (("rests_on",), "profile mine (cpu)", "corrects forecasts that rest on something else"),
        (("stages", "training", "valeu"), 1.0, "did you mean 'value'"),
    ],
)
def test_a_wrong_site_is_one_message(project, rlplan, keys, value, said):
    write_yaml(project / "site.yaml", site_of(training=1.1))
    change(project / "site.yaml", *keys, to=value)
    answer = rlplan("simulate", "plan.yaml", "--site", "site.yaml")
    assert answer.code == 2
    assert len(answer.lines) == 1
    assert "site.yaml" in answer.err
    assert said in answer.err


def test_a_run_that_was_forecast_with_a_site_is_calibrated_on_without_it(project, rlplan):
    plan, facts = load_plan(project / "plan.yaml")
    forecast = simulate(plan, facts.with_calibration(site_of(generation=5.0)))
    write_json(project / "run" / "forecast.json", forecast)
    found = rlplan("calibrate", "run", "--json").json
    assert found["stages"]["generation"]["value"] == pytest.approx(1.0)


def test_a_run_of_other_lengths_is_forecast_anew_at_them(project, rlplan):
    change(project / "run" / "measured.json", "response_tokens", to=4.0)
    found = rlplan("calibrate", "run", "--json").json
    assert found["stages"]["generation"]["value"] > 1.3  # half of the tokens in the same time
    change(project / "run" / "forecast.json", "profile", to="profile mine (cpu)")
    answer = rlplan("calibrate", "run")
    assert answer.code == 2
    assert "with that --profile" in answer.err


def test_a_site_of_another_framework_is_named(project, rlplan):
    site = replace(site_of(training=1.1), framework="verl-fsdp")
    write_yaml(project / "site.yaml", site)
    found = rlplan("simulate", "plan.yaml", "--site", "site.yaml", "--json").json
    assert "site mine: fitted on steps of verl-fsdp, not of rlplan" in found["assumptions"]


def test_a_factor_that_was_asked_for_and_not_measured_is_refused(project, rlplan):
    answer = rlplan("calibrate", "run", "--factor", "engine sglang")
    assert answer.code == 2
    assert "engine sglang was not measured" in answer.err
    assert not (project / "site.yaml").exists()


def test_what_calibrate_writes_satisfies_the_published_schema(project, rlplan):
    assert rlplan("calibrate", "run", "--out", "site.yaml").code == 0
    schema = rlplan("schema", "site").json
    jsonschema.validate(yaml.safe_load((project / "site.yaml").read_text()), schema)


@pytest.mark.full
def test_plans_are_reported_and_compared_at_a_site(project, rlplan):
    write_yaml(project / "site.yaml", site_of(training=2.0))
    assert (
        rlplan("report", "plan.yaml", "--site", "site.yaml", "--out", "page", "--no-what-if").code
        == 0
    )
    assert "site mine: training x 2.00" in (project / "page" / "report.md").read_text()
