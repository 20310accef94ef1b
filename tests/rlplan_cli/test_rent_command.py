"""`rlplan rent` and `rlplan simulate --steps`: what they print and write, and what they refuse."""

import pytest

from rlplan.files.writing import write_yaml
from rlplan_cli.commands.rent import _seconds

NODE = {
    "name": "node",
    "gpu": "h100",
    "gpus": 1,
    "usd_per_hour": 2.0,
    "price_date": "2026-11",
    "vcpus": 32,
    "host_memory_bytes": 2**38,
}
JOB = {
    "name": "rented",
    "algorithm": "grpo",
    "models": {"actor": "tiny", "reference": "tiny"},
    "workload": {"prompts": 2, "samples_per_prompt": 2, "prompt_tokens": 16, "response_tokens": 64},
    "rewards": {"function": "digits"},
}


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_yaml(tmp_path / "job.yaml", JOB)
    write_yaml(tmp_path / "prices.yaml", {"provider": "ours", "instances": [NODE]})
    return tmp_path


def test_a_folder_gets_the_page_the_document_and_plans_that_simulate(rlplan, job):
    asked = ("rent", "job.yaml", "--steps", "50", "--prices", "prices.yaml", "--deadline", "1d12h")
    answer = rlplan(*asked, "--out", "rented")
    assert answer.code == 0
    assert answer.out.startswith("cheapest: 1 x node of ours, within 36.0 h at p90\n")
    assert "not counted: waiting until instances are there; storage" in answer.err
    assert "prices are list prices" in answer.err
    assert (
        "one instance alone where no rate of the network between them is known (1 type of ours)"
        in answer.err
    )
    (job / "rented/plan-2.yaml").write_text("of an answer before")
    assert rlplan(*asked, "--out", "rented").code == 0
    found = {path.name for path in (job / "rented").iterdir()}
    assert found == {"rent.html", "rent.md", "rent.json", "plan-1.yaml", "pictures"}
    run = rlplan("simulate", "rented/plan-1.yaml", "--steps", "50", "--json").json["run"]
    assert run["steps"] == 50
    assert run["usd_per_hour"] == pytest.approx(2.0)


@pytest.mark.full
def test_json_has_the_front_and_what_was_asked(rlplan, job):
    asked = ("rent", "job.yaml", "--steps", "50", "--prices", "prices.yaml", "--budget-usd", "9000")
    found = rlplan(*asked, "--json").json
    assert found["chosen"] == 0
    assert found["limits"]["budget_usd"] == 9000
    assert found["front"][0]["run"]["interval_usd"][1] <= 9000


@pytest.mark.full
def test_a_budget_that_nothing_keeps_is_an_error_that_names_the_nearest(rlplan, job):
    asked = (
        "rent",
        "job.yaml",
        "--steps",
        "50000",
        "--prices",
        "prices.yaml",
        "--budget-usd",
        "0.01",
    )
    answer = rlplan(*asked)
    assert answer.code == 2
    assert "nothing to rent keeps 0.0100 USD at p90; the cheapest takes up to" in answer.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--deadline", "soon"), "--deadline: is no duration"),
        (("--budget-usd", "inf"), "--budget-usd: is no amount"),
        (("--deadline", "0h"), "--deadline: is no duration"),
        (("--provider", "nobody"), "unknown provider 'nobody'"),
        (("--prices", "prices.yaml", "--provider", "aws"), "--provider: names providers"),
        (("--prices", "prices.yaml", "--gpu", "a100"), "what is offered: h100-80gb-sxm"),
        (("--prices", "prices.yaml", "--mode", "async", "--lengths", "none.csv"), "none.csv"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_a_search(rlplan, job, options, words):
    answer = rlplan("rent", "job.yaml", "--steps", "5", *options)
    assert answer.code == 2
    assert words in answer.err


@pytest.mark.parametrize(
    ("text", "seconds"), [("5d", 432000), ("1d12h", 129600), ("90 min", 5400), ("1.5H", 5400)]
)
def test_deadlines_are_read_as_people_write_them(text, seconds):
    assert _seconds(text) == seconds


def test_a_run_of_a_plan_is_told_after_its_step(rlplan, project):
    (project / "curve.csv").write_text("step,response_tokens\n1,4\n50,8\n")
    answer = rlplan("simulate", "plan.yaml", "--steps", "50", "--lengths", "curve.csv")
    assert answer.code == 0
    assert "\nrun:  50 steps in " in answer.out
    assert "responses of 4 tokens at first and 8 at last" in answer.out
    refused = rlplan("simulate", "plan.yaml", "--lengths", "curve.csv")
    assert refused.code == 2
    assert "--lengths: are those of a whole run" in refused.err
