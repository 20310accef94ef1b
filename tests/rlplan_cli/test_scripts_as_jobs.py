"""A framework's script where a command takes a job or a plan: `search`, `simulate`, `rent`, and the tools for agents."""

import json
from functools import partial
from pathlib import Path

import pytest

import rlplan as package
from rlplan.errors import FileError, MissingValuesError
from rlplan_cli.config_options import framework_of
from rlplan_cli.serve.asked import GivenFile, SearchAsked
from rlplan_cli.serve.work import search
from tests.rlplan_cli.pages import SCRIPT
from tests.rlplan_cli.test_mcp import answer, mistake

BESIDE = ("--gpu", "h100", "--mean-response", "100")
# Half of its GPUs' memory for weights that lie there twice: some plan is faster.
SLOW = SCRIPT.replace("tensor_model_parallel_size=1", "tensor_model_parallel_size=2")


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(SLOW + "\n")
    return "run.sh"


def test_a_script_is_simulated_as_check_says_it(rlplan, script):
    told = rlplan("check", script, *BESIDE, "--json").json
    found = rlplan("simulate", script, *BESIDE, "--json", "--out-plan", "plan.yaml")
    assert found.json["iteration_seconds"] == told["step_seconds"]
    assert "assumed: prompts of" in found.err
    again = rlplan("simulate", "plan.yaml", "--json").json
    assert again["iteration_seconds"] == told["step_seconds"]


def test_a_search_of_a_script_is_that_of_its_job_with_its_own_plan_among_the_candidates(
    rlplan, script
):
    imported = rlplan("import", script, *BESIDE, "--out", "job.yaml", "--plan", "own.yaml")
    assert imported.code == 0, imported.err
    ours = rlplan("search", "job.yaml", "--plan", "own.yaml", "--json").json
    found = rlplan("search", script, *BESIDE, "--out", "best.yaml")
    assert found.code == 0, found.err
    assert "run.sh as it stands: " in found.err
    assert "against the best" in found.err
    assert "best of the plan as it stands and what verl runs" in found.err
    best = rlplan("simulate", "best.yaml", "--json").json
    assert best["iteration_seconds"] == ours["plans"][0]["forecast"]["iteration_seconds"]
    framework = rlplan("search", script, "--framework", "verl", *BESIDE, "--json").json
    assert framework["plans"][0]["forecast"]["iteration_seconds"] == best["iteration_seconds"]


def test_a_script_that_validates_is_searched_though_its_validation_set_is_elsewhere(rlplan, script):
    Path(script).write_text(f"{SLOW} trainer.test_freq=5\n")
    found = rlplan("search", script, *BESIDE)
    assert found.code == 0, found.err
    assert "validation every 5 steps, not counted" in found.out
    assert rlplan("import", script, *BESIDE, "--out", "job.yaml").code == 0
    assert rlplan("search", "job.yaml").code == 0


def test_what_a_script_breaks_is_said_and_seconds_are_no_gain_in_cost(rlplan, script):
    found = rlplan("search", script, *BESIDE, "--max-gpus", "1", "--objective", "cost")
    (line,) = (each for each in found.err.splitlines() if " as it stands: " in each)
    assert "against the best" not in line
    assert "it breaks a limit: specs.gpus is 1, this plan has 2" in " ".join(found.err.split())


def test_a_scripts_own_plan_is_no_candidate_for_another_framework(rlplan, script):
    found = rlplan("search", script, *BESIDE, "--for", "slime")
    said = " ".join(found.err.split())
    assert "searched with sglang" in said
    assert "as slime generates today; vllm-0." in said
    assert "is none of slime's engines; the job's options are those of verl" in said
    assert found.code == 0, found.err
    assert "the plan as it stands and" not in found.err
    assert "what slime runs" in found.err


def test_a_script_is_rented_for_as_its_job_is(rlplan, script):
    assert rlplan("import", script, *BESIDE, "--out", "job.yaml").code == 0
    asked = ("--steps", "10", "--gpu", "h100", "--provider", "lambda", "--max-gpus", "8", "--json")
    ours = rlplan("rent", "job.yaml", *asked)
    found = rlplan("rent", script, "--mean-response", "100", *asked)
    assert found.code == 0, found.err
    seconds = [each["run"]["seconds"] for each in ours.json["front"]]
    assert seconds
    assert [each["run"]["seconds"] for each in found.json["front"]] == seconds


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("search", "run.sh"), ("--gpu is missing", "--mean-response is missing")),
        (("simulate", "run.sh", "--gpu", "h100"), ("--mean-response", "is missing")),
        (("rent", "run.sh", "--steps", "9"), ("--mean-response", "is missing")),
        (("search", "run.sh", *BESIDE, "--plan", "x.yaml"), ("--plan: is said by the script",)),
        (("search", "run.sh", *BESIDE, "--framework", "vrel"), ("did you mean 'verl'?",)),
        (("search", "run.sh", *BESIDE, "--set", "a.b=1"), ("--set", "is no key of verl")),
        (("search", "gone.sh", *BESIDE), ("gone.sh: no such file",)),
        (("search", "folder", *BESIDE), ("folder: is a folder",)),
        (("simulate", "empty.sh", *BESIDE), ("empty.sh: is empty",)),
        (("search", "job.yaml", "--mean-response", "9"), ("--mean-response", "job or a plan")),
        (("search", "job.yaml", "--framework", "verl"), ("--framework", "job or a plan")),
        (("rent", "job.yaml", "--steps", "9", "--mean-prompt", "9"), ("--mean-prompt",)),
        (("check", "folder", *BESIDE), ("folder: is a folder",)),
        (("check", "rum.py", *BESIDE), ("rum.py: no such file",)),
        (("check-step", "train.log", "--plan", "empty.sh", "--gpu", "h100"), ("is empty",)),
        (("export", "run.sh", "--to", "slime"), ("run.sh: is a script", "rlplan import run.sh")),
        (("execute", "run.sh", "--out", "run"), ("run.sh: is a script", "rlplan import run.sh")),
        (("search", "notes.ipynb", *BESIDE), ("notes.ipynb",)),
        (("check-step", "train.log", "--job", "job.yaml", "--gpu", "h100"), ("--gpu", "job or")),
    ],
    ids=lambda value: " ".join(value[:2]),
)
def test_wrong_scripts_and_options_are_one_line_with_exit_code_2(rlplan, script, arguments, words):
    Path("folder").mkdir()
    Path("empty.sh").touch()
    Path("job.yaml").write_text("workload: {}\n")
    Path("train.log").touch()
    Path("notes.ipynb").write_text(json.dumps({"cells": [], "nbformat": 4}))
    found = rlplan(*arguments)
    assert found.code == 2
    assert len(found.lines) == 1, found.err
    assert all(each in found.err for each in words), found.err


def test_ends_of_lines_of_other_systems_change_nothing(rlplan, script):
    Path("dos.sh").write_bytes(Path(script).read_bytes().replace(b"\n", b"\r\n"))
    ours, theirs = (rlplan("simulate", each, *BESIDE, "--json") for each in (script, "dos.sh"))
    assert theirs.code == 0, theirs.err
    assert theirs.json["iteration_seconds"] == ours.json["iteration_seconds"]


OF_VERSION = ("--framework-version", "0.6")
BUCKET = 2**30


@pytest.fixture
def with_buckets(script):
    """Return a script that says how many weights are under way at a time."""
    Path(script).write_text(
        f"{SLOW} actor_rollout_ref.rollout.update_weights_bucket_megabytes={BUCKET // 2**20}\n"
    )
    return script


def test_searches_keep_the_buckets_and_the_version_of_a_script(rlplan, with_buckets):
    """Its version decides what a step takes, and which keys there are."""
    asked = (with_buckets, *BESIDE, *OF_VERSION)
    best = rlplan("search", *asked, "--json", "--out", "plan.yaml").json["plans"][0]
    seconds = best["forecast"]["iteration_seconds"]
    assert best["plan"]["bucket_bytes"] == BUCKET
    into = ("--patch", with_buckets, *OF_VERSION, "--out", "new.sh")
    assert rlplan("export", "plan.yaml", "--to", "verl", *into).code == 0
    told = rlplan("check", "new.sh", *BESIDE, *OF_VERSION, "--json").json
    assert told["step_seconds"] == pytest.approx(seconds, rel=1e-9)
    newest = rlplan("check", "new.sh", *BESIDE, "--json").json
    assert newest["step_seconds"] != told["step_seconds"]
    refused = rlplan("export", "plan.yaml", "--to", "verl", *OF_VERSION)
    assert refused.code == 2
    assert "--framework-version: is of a script" in refused.err


@pytest.mark.full
def test_every_door_keeps_the_buckets_and_the_version_of_a_script(rlplan, with_buckets, assumes):
    gpu, tokens = "h100", 100
    found = rlplan("search", with_buckets, *BESIDE, *OF_VERSION, "--json").json["plans"][0]
    seconds = found["forecast"]["iteration_seconds"]
    tool, _ = answer(
        "search",
        job=with_buckets,
        framework_version="0.6",
        gpu=gpu,
        mean_response_tokens=tokens,
    )
    assert (tool["step"]["step_seconds"], tool["plan"]["bucket_bytes"]) == (seconds, BUCKET)
    with assumes():
        ours = package.search(with_buckets, gpu="h100", mean_response=100, version="0.6")
    assert ours.plans[0].forecast.iteration_seconds == seconds
    given = GivenFile(name="run.sh", text=Path(with_buckets).read_text())
    page = search(SearchAsked(script=given, gpu=gpu, mean_response_tokens=tokens), print).answer[
        "plans"
    ][0]
    newest = rlplan("search", with_buckets, *BESIDE, "--json").json["plans"][0]["forecast"]
    assert page["step"]["step_seconds"] == newest["iteration_seconds"]
    assert page["plan"]["bucket_bytes"] == BUCKET
    offers = ("--steps", "10", "--provider", "lambda", "--gpu", "h100", "--max-gpus", "8", "--json")
    rented = rlplan("rent", with_buckets, "--mean-response", "100", *OF_VERSION, *offers)
    assert {each["plan"]["bucket_bytes"] for each in rented.json["front"]} == {BUCKET}


# --------------------------------------------------------------------------------- tools for agents


def test_the_search_tool_takes_a_script(rlplan, script):
    asked = {"gpu": "h100", "mean_response_tokens": 100}
    found, text = answer("search", job=script, **asked)
    own, _ = answer("check", file=script, **asked)
    assert found["as_it_stands_seconds"] == own["step"]["step_seconds"]
    assert found["step"]["step_seconds"] <= own["step"]["step_seconds"]
    assert any("prompts of" in each for each in found["doubts"])
    assert "the script as it stands: " in text
    wrong = mistake("search", job=script, **asked, values=["a.b=1"])
    assert (wrong["argument"], wrong["value"]) == ("values", "a.b")


def test_a_script_that_breaks_a_limit_is_said_to_beside_its_seconds(script):
    asked = {"gpu": "h100", "mean_response_tokens": 100, "limits": {"gpus": 1}}
    found, text = answer("search", job=script, **asked)
    (broken,) = found["as_it_stands_faults"]
    assert broken == "breaks a limit: specs.gpus is 1, this plan has 2"
    assert f" a step; it {broken}" in text


def test_the_check_step_tool_takes_a_script_with_values_of_its_keys(rlplan, script):
    lines = "".join(
        f"step:{number} - timing_s/gen:2.0 - timing_s/step:6.0 - response_length/mean:100.0\n"
        for number in range(1, 6)
    )
    Path("train.log").write_text(lines)
    found, _ = answer("check-step", log="train.log", plan=script, gpu="h100")
    told = rlplan("check-step", "train.log", "--plan", script, "--gpu", "h100", "--json").json
    assert found["step"]["forecast_seconds"] == told["step"]["forecast_seconds"]
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size=1"
    other, _ = answer("check-step", log="train.log", plan=script, gpu="h100", values=[key])
    assert other["step"]["forecast_seconds"] != found["step"]["forecast_seconds"]
    wrong = mistake("check-step", log="train.log", job="job.yaml", values=[key])
    assert wrong["argument"] == "values"


@pytest.fixture
def assumes():
    """Return a check that the calls within warn of what is assumed of a script's work."""
    return partial(pytest.warns, UserWarning, match="assumed: prompts of 64 tokens")


def test_python_takes_a_script_as_commands_do(rlplan, script, assumes):
    told = rlplan("search", script, *BESIDE, "--json").json["plans"][0]["forecast"]
    with assumes():
        found = package.search(script, gpu="h100", mean_response=100)
    assert found.plans[0].forecast.iteration_seconds == told["iteration_seconds"]
    with assumes():
        forecast = package.simulate(script, gpu="h100", mean_response=100)
    with assumes():
        own = package.load_plan(script, gpu="h100", mean_response=100)
    assert package.simulate(own).iteration_seconds == forecast.iteration_seconds
    checked = package.check(script, gpu="h100", mean_response=100)
    assert checked.forecast is not None
    assert checked.forecast.iteration_seconds == forecast.iteration_seconds
    with assumes():
        job = package.load_job(script, gpu="h100", mean_response=100)
    assert job == own.job


@pytest.mark.parametrize("name", ["search", "simulate", "load_plan", "load_job", "check"])
def test_python_refuses_what_is_said_beside_a_job(rlplan, script, name):
    assert rlplan("import", script, *BESIDE, "--out", "job.yaml").code == 0
    with pytest.raises(FileError, match="gpu: is said of frameworks' scripts"):
        getattr(package, name)("job.yaml", gpu="h100")


@pytest.mark.parametrize("name", ["search", "simulate", "load_plan", "load_job", "check"])
def test_python_refuses_a_name_that_nothing_has_and_a_script_that_is_not_there(script, name):
    with pytest.raises(TypeError, match="unexpected keyword argument 'mean_promt'"):
        getattr(package, name)(script, gpu="h100", mean_response=100, mean_promt=64)
    with pytest.raises(FileError, match=r"gone\.sh: no such file"):
        getattr(package, name)("gone.sh", gpu="h100", mean_response=100)


def test_python_checks_a_script_as_the_frameworks_that_is_said(script):
    with pytest.raises(FileError, match="starts no RL training of slime"):
        package.check(script, gpu="h100", mean_response=100, read_as="slime")


def test_python_refuses_a_second_plan_beside_a_script_and_one_whose_gpus_nobody_says(
    script, assumes
):
    with assumes():
        own = package.load_plan(script, gpu="h100", mean_response=100)
    with assumes(), pytest.raises(FileError, match="as_it_stands: is said by the script"):
        package.search(script, gpu="h100", mean_response=100, as_it_stands=own)
    with pytest.raises(MissingValuesError, match="--gpu is missing"):
        package.search(script)


def test_python_sets_keys_of_a_script(script, assumes):
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    with assumes():
        plan = package.load_plan(script, gpu="h100", mean_response=100, values={key: 1})
    assert plan.tasks["actor.generate"].tp == 1


def test_a_task_of_skypilot_is_told_by_the_script_that_it_runs(tmp_path):
    task = tmp_path / "sky.yaml"
    task.write_text(
        "resources: {accelerators: H100:8}\nrun: |\n  python3 -m verl.trainer.main_ppo data.train_batch_size=64\n"
    )
    assert framework_of([str(task)]) == ("verl", [str(task)])
