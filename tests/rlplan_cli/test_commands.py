"""Commands: what they print and write, that their files read back, and that help shows an example."""

import inspect
import json
from pathlib import Path
from typing import NamedTuple

import jsonschema
import pytest
import yaml

from rlplan.files.decoding import adapter
from rlplan.plan import PlanDraft
from rlplan.results.forecast import Forecast
from rlplan_cli import commands
from rlplan_cli.application import _flat, command_names
from tests.executor.test_tokenizer import write_tokenizer
from tests.house.tree import ROOT
from tests.rlplan_cli.conftest import change

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
PLAN_EXAMPLES = [path for path in EXAMPLES if path.name.endswith(".plan.yaml")]
JOB_EXAMPLES = [path for path in EXAMPLES if path not in PLAN_EXAMPLES]

FORECAST_FIELDS = {
    "iteration_seconds", "iteration_seconds_interval", "tokens_per_second", "stage_seconds", "tasks",
    "memory", "feasible", "cost_usd", "energy_joules", "warnings",
}  # fmt: skip
SEARCH_FIELDS = {"plans", "considered", "pruned", "bound_seconds", "gap", "search_seconds"}
TASKS = {
    "actor.generate", "critic.compute_values", "reference.compute_log_prob", "reward.compute_reward",
    "rule.compute_reward", "actor.update", "critic.update",
}  # fmt: skip


def check_forecast(data):
    assert data.keys() >= FORECAST_FIELDS
    low, high = data["iteration_seconds_interval"]
    assert low <= data["iteration_seconds"] <= high
    assert data["stage_seconds"].keys() == {"generation", "preparation", "training", "transition"}
    for task in data["tasks"]:
        assert task.keys() == {
            "name", "pool", "iteration", "start_seconds", "end_seconds", "activity",
        }  # fmt: skip
        assert task["start_seconds"] <= task["end_seconds"]
    for memory in data["memory"]:
        assert memory.keys() >= {"pool", "gpu_peak_bytes", "capacity_bytes", "terms"}
        assert sum(memory["terms"].values()) == memory["gpu_peak_bytes"]


def test_simulate_prints_every_field_of_a_forecast(project, rlplan):
    data = rlplan("simulate", "plan.yaml", "--json").json
    check_forecast(data)
    assert {task["name"] for task in data["tasks"] if task["activity"] == "task"} == TASKS
    assert data["feasible"] is True


def test_tasks_of_every_iteration_have_their_start_and_end(project, rlplan):
    data = rlplan("simulate", "plan.yaml", "--iterations", 3, "--json").json
    played = [task for task in data["tasks"] if task["name"] == "actor.update"]
    assert [task["iteration"] for task in played] == [0, 1, 2]
    assert played[0]["end_seconds"] <= played[1]["start_seconds"]


def test_a_forecasts_file_is_what_json_prints_and_reads_back(project, rlplan):
    printed = rlplan("simulate", "plan.yaml", "--json", "--out", "forecast.json").json
    stored = json.loads(Path("forecast.json").read_text())
    assert stored == printed
    assert isinstance(adapter(Forecast).validate_python(stored), Forecast)


def test_simulate_takes_a_runs_folder_and_writes_a_trace(project, rlplan):
    assert rlplan("simulate", "run", "--trace", "trace.json").code == 0
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}


@pytest.mark.full
def test_search_prints_every_field_of_its_result_and_the_best_plans_forecast(project, rlplan):
    data = rlplan("search", "job.yaml", "--json").json
    check_forecast(data)
    assert data.keys() >= SEARCH_FIELDS
    seconds = [each["forecast"]["iteration_seconds"] for each in data["plans"]]
    assert seconds == sorted(seconds)
    assert data["iteration_seconds"] == seconds[0]
    for each in data["plans"]:
        check_forecast(each["forecast"])
        assert each["plan"]["pools"]
    assert data["bound_seconds"] <= seconds[0]


def test_the_plan_that_search_writes_is_its_best_and_simulates_to_the_same_forecast(
    project, rlplan
):
    found = rlplan("search", "job.yaml", "--out", "best.yaml", "--json").json
    again = rlplan("simulate", "best.yaml", "--json").json
    assert again["iteration_seconds"] == pytest.approx(found["iteration_seconds"])


def test_what_search_prints_is_what_report_reads(project, rlplan):
    Path("printed.json").write_text(rlplan("search", "job.yaml", "--json").out)
    answer = rlplan(
        "report", "run", "--search", "printed.json", "--out", "pages", "--no-what-if", "--json"
    )
    assert answer.code == 0
    assert Path(answer.json["report"]).is_file()


def test_other_jobs_are_not_played_from_other_facts_than_the_forecast_rests_on(project, rlplan):
    stored = Path("run/forecast.json")
    held = json.loads(stored.read_text(encoding="utf-8"))
    stored.write_text(json.dumps(held | {"profile": "profile mine (cpu)"}), encoding="utf-8")
    answer = rlplan("report", "run", "--out", "pages")
    reason = "ther jobs are not played: the forecast rests on profile mine (cpu), which --profile would give"
    assert f"o{reason}" in " ".join(answer.err.split())
    page = Path("pages/report.md").read_text(encoding="utf-8")
    assert f"O{reason}." in page.replace("\\", "")
    assert "half the batch" not in page
    assert "Responses under way" not in page


@pytest.mark.full
def test_search_writes_the_page_of_its_best_plan_with_other_jobs(project, rlplan):
    answer = rlplan("search", "job.yaml", "--report", "page")
    assert answer.code == 0, answer.err
    page = Path("page/report.html").read_text()
    for words in ("responses twice as long", "half the batch", "2 more nodes", "Why this plan won"):
        assert words in page


def test_a_plan_alone_has_a_report_beside_it(project, rlplan):
    page = Path(rlplan("report", "plan.yaml", "--no-what-if", "--json").json["report"])
    assert page.parent == Path("plan.report")
    assert "actor.generate" in page.read_text()


def test_validate_compares_a_run_and_stores_the_table(project, rlplan):
    answer = rlplan("validate", "run", "--json")
    rows = {row["name"] for row in answer.json["rows"]}
    assert rows >= TASKS
    assert answer.json["iteration"]["error_fraction"] == pytest.approx(0)
    assert (answer.json["warmup_iterations"], answer.json["compared_iterations"]) == (1, 4)
    assert json.loads(Path("run/validation.json").read_text()) == answer.json


def test_validate_with_a_profile_forecasts_anew(project, rlplan):
    Path("run/forecast.json").unlink()
    assert rlplan("validate", "run", "--profile", "profile").code == 0
    assert "profile small" in json.loads(Path("run/forecast.json").read_text())["profile"]


def test_profile_show_prints_tables_and_draws_them(project, rlplan):
    answer = rlplan("profile", "show", "profile", "--plots", "plots", "--json")
    assert answer.json["header"]["device"] == "cpu"
    assert [table["table"] for table in answer.json["tables"]] == ["gemm"]
    assert list(Path("plots").iterdir())
    assert "gemm" in rlplan("profile", "show", "profile").out


BROKEN_DATA = """\
{"prompt": "a"}
{"promt": "b"}
{"prompt": "much too long a prompt"}
"""

INITS = {"grpo": ["--algorithm", "grpo"], "tiny": [],
         "llama": ["--model", "llama-3.1-8b", "--gpu", "h100-80gb-sxm", "--gpus", "16"]}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", INITS)
def test_what_init_writes_can_be_searched_at_once(project, rlplan, name):
    options = INITS[name]
    assert rlplan("init", "new.yaml", *options).code == 0
    answer = rlplan("search", "new.yaml", "--out", "new.plan.yaml")
    assert answer.code == 0, answer.err
    assert rlplan("simulate", "new.plan.yaml", "--json").json["feasible"] is True


def test_init_replaces_a_file_only_when_it_is_told_to(project, rlplan):
    assert rlplan("init", "job.yaml", "--force", "--algorithm", "grpo", "--json").code == 0
    assert yaml.safe_load(Path("job.yaml").read_text())["algorithm"] == "grpo"


def model_folder(project, *, weights):
    folder = project / "model"
    write_tokenizer(folder, eos_token="<eos>")
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 260,
        "max_position_embeddings": 512, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    if weights:
        (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_init_starts_from_a_folders_weights_at_their_rate_with_its_tokenizer(project, rlplan):
    model_folder(project, weights=True)
    rows = [{"prompt": "one", "answer": 1}, {"prompt": "one two two", "answer": 2}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    Path("asked.jsonl").write_text(lines, encoding="utf-8")
    answer = rlplan("init", "new.yaml", "--model", "model", "--prompts", "asked.jsonl")
    assert answer.code == 0, answer.err
    assert "asked.jsonl: 2 prompts of 1 to 3 tokens" in answer.err
    text = Path("new.yaml").read_text()
    job = yaml.safe_load(text)
    assert (job["models"]["actor"], job["tokenizer"]) == ("model", "model")
    assert "weights" not in job
    assert job["hyperparameters"]["learning_rate"] == 1e-6
    assert "learning_rate: 1.0e-06  # usual where all weights" in text
    assert (job["prompts_file"], job["rewards"]["function"]) == ("asked.jsonl", "exact_match")
    lengths = job["workload"]["prompt_tokens"]["values"]
    assert (len(lengths), min(lengths), max(lengths)) == (17, 1, 3)


def test_init_takes_held_out_prompts_into_the_job_and_its_lengths(project, rlplan):
    Path("asked.jsonl").write_text('{"prompt": "a", "answer": 1}\n', encoding="utf-8")
    Path("held.jsonl").write_text('{"prompt": "abcdef", "answer": 1}\n', encoding="utf-8")
    held = ("--held-out", "held.jsonl")
    answer = rlplan("init", "new.yaml", "--prompts", "asked.jsonl", *held)
    assert answer.code == 0, answer.err
    assert "asked.jsonl: 1 prompts of 2 to 2 tokens" in answer.err
    job = yaml.safe_load(Path("new.yaml").read_text())
    assert job["evaluation"]["prompts_file"] == "held.jsonl"
    assert max(job["workload"]["prompt_tokens"]["values"]) == 7
    assert rlplan("search", "new.yaml").code == 0
    Path("held.jsonl").write_text('{"prompt": "abcdef"}\n', encoding="utf-8")
    refused = rlplan("search", "new.yaml")
    assert (refused.code, "held.jsonl: line 1: answer: is missing" in refused.err) == (2, True)
    alone = rlplan("init", "other.yaml", *held)
    assert (alone.code, "together with --prompts" in alone.err) == (2, True)
    same = rlplan("init", "other.yaml", "--prompts", "asked.jsonl", "--held-out", "./asked.jsonl")
    assert (same.code, "--held-out: is what --prompts names" in same.err) == (2, True)
    both = rlplan("init", "other.yaml", "--prompts", "asked.jsonl", "--mean-prompt", "90")
    assert (both.code, "is measured in the file that --prompts names" in both.err) == (2, True)


def test_init_takes_rows_in_gsm8ks_form_by_their_column_and_last_number(project, rlplan):
    rows = [{"question": "2 + 3?", "answer": "2+3=<<2+3=5>>5\n#### 5"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for name in ("asked.jsonl", "held.jsonl"):
        Path(name).write_text(lines, encoding="utf-8")
    given = ("init", "new.yaml", "--prompts", "asked.jsonl", "--held-out", "held.jsonl")
    refused = rlplan(*given)
    assert (refused.code, "(--prompt-column of init): answer, question" in refused.err) == (2, True)
    answer = rlplan(*given, "--prompt-column", "question")
    assert answer.code == 0, answer.err
    job = yaml.safe_load(Path("new.yaml").read_text())
    assert (job["prompt_data"]["column"], job["rewards"]["function"]) == (
        "question",
        "numeric_match",
    )
    assert rlplan("check", "new.yaml").code == 0
    alone = rlplan("init", "other.yaml", "--prompt-column", "question")
    assert (alone.code, "--prompt-column: is for an actor" in alone.err) == (2, True)


@pytest.mark.parametrize("answer", ["5", "Two of 5. #### five"])
def test_init_compares_texts_where_no_number_stands_behind_the_mark(project, rlplan, answer):
    row = {"prompt": "2 + 3?", "answer": answer}
    Path("asked.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert rlplan("init", "new.yaml", "--prompts", "asked.jsonl").code == 0
    job = yaml.safe_load(Path("new.yaml").read_text())
    assert job["rewards"]["function"] == "exact_match"


def test_init_says_that_weights_of_a_configuration_alone_are_random(project, rlplan):
    model_folder(project, weights=False)
    for model, tokenizer in (("model", "model"), ("tiny", "bytes")):
        assert rlplan("init", "new.yaml", "--force", "--model", model).code == 0
        text = Path("new.yaml").read_text()
        job = yaml.safe_load(text)
        assert (job["weights"], job["tokenizer"]) == ("random", tokenizer)
        assert "weights: random  # drawn from the seed: a rehearsal" in text


def test_init_writes_nothing_for_prompts_with_mistakes(project, rlplan):
    Path("prompts.jsonl").write_text(BROKEN_DATA + "no JSON", encoding="utf-8")
    answer = rlplan("init", "new.yaml", "--prompts", "prompts.jsonl")
    assert answer.code == 2
    assert "2 mistakes: (1) prompts.jsonl: line 4: is not JSON" in answer.err
    assert "(2) prompts.jsonl: line 2: prompt: is missing" in answer.err
    assert not Path("new.yaml").exists()


@pytest.mark.full
@pytest.mark.parametrize("path", JOB_EXAMPLES, ids=lambda path: path.name)
def test_every_example_job_satisfies_the_published_schema(rlplan, path):
    jsonschema.validate(yaml.safe_load(path.read_text()), rlplan("schema", "job").json)


@pytest.mark.full
@pytest.mark.parametrize("path", PLAN_EXAMPLES, ids=lambda path: path.name)
def test_every_example_plan_satisfies_the_published_schema_and_fits(rlplan, path):
    jsonschema.validate(yaml.safe_load(path.read_text()), rlplan("schema", "plan").json)
    data = rlplan("simulate", path, "--json").json
    check_forecast(data)
    assert data["feasible"] is True
    assert data["infeasible_reasons"] == []


def test_the_ppo_example_has_a_plan():
    assert [path.name for path in PLAN_EXAMPLES] == ["ppo-7b-16xa100.plan.yaml"]


def test_a_complete_plan_satisfies_the_schema_of_plans(project, rlplan):
    jsonschema.validate(
        yaml.safe_load(Path("plan.yaml").read_text()), rlplan("schema", "plan").json
    )


@pytest.mark.full
def test_schemas_refuse_what_the_reader_refuses(rlplan):
    schema = rlplan("schema", "plan").json
    jsonschema.Draft202012Validator.check_schema(schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"job": "job.yaml", "pools": [], "taks": {}}, schema)
    assert schema["properties"].keys() == PlanDraft.__dataclass_fields__.keys()


@pytest.mark.full
def test_every_file_of_the_commands_folder_is_a_command_with_an_example(rlplan):
    files = {path.stem.replace("_", "-") for path in Path(commands.__path__[0]).glob("*.py")} - {
        "--init--"
    }
    assert set(command_names()) == files
    assert files >= set("init profile search simulate execute validate report schema demo".split())
    overview = rlplan("--help")
    assert overview.code == 0
    for name in files:
        assert f" {name} " in overview.out
        shown = rlplan(name, "--help")
        assert shown.code == 0
        # An example may begin with another command that starts this one: `claude mcp add rlplan -- rlplan mcp`.
        _, _, example = " ".join(shown.out.split()).partition("Example: ")
        assert f"rlplan {name}" in example


def test_the_subcommand_of_profile_has_an_example_too(rlplan):
    assert "Example: rlplan profile show" in rlplan("profile", "show", "--help").out


def test_without_a_command_help_is_shown(rlplan):
    answer = rlplan()
    assert (answer.code, answer.err) == (0, "")
    assert "Usage: rlplan" in answer.out


def test_the_version_is_told(rlplan):
    assert rlplan("--version").out.startswith("rlplan ")


def test_a_stored_forecast_stays_when_a_run_is_compared_with_another(project, rlplan):
    change("run/forecast.json", "warnings", to=["as it was stored"])
    stored = (project / "run" / "forecast.json").read_bytes()
    assert rlplan("validate", "run", "--profile", "profile").code == 0
    assert (project / "run" / "forecast.json").read_bytes() == stored


def test_a_search_says_all_mistakes_in_the_data_and_plans_nothing(project, rlplan):
    Path("prompts.jsonl").write_text(BROKEN_DATA, encoding="utf-8")
    answer = rlplan("search", "job.yaml", "--out", "best.yaml")
    assert answer.code == 2
    assert "2 mistakes: (1) " in answer.err
    assert "line 2: prompt: is missing; did you mean 'promt'?" in answer.err
    assert "line 3: prompt: has 23 tokens; allowed: 1 to 8" in answer.err
    assert not Path("best.yaml").exists()


@pytest.mark.full
def test_a_check_lists_mistakes_in_the_data_beside_what_it_forecasts(project, rlplan):
    Path("prompts.jsonl").write_text(BROKEN_DATA, encoding="utf-8")
    answer = rlplan("check", "job.yaml", "--json")
    assert answer.code == 1
    assert not answer.json["will_run"]
    assert answer.json["memory"] == "fits"
    assert [each["rule"] for each in answer.json["findings"]] == ["data", "data"]
    assert answer.json["step_seconds"] > 0
    shown = rlplan("check", "job.yaml")
    assert "stops: prompt: is missing; did you mean 'promt'? (" in shown.out


class Two(NamedTuple):
    first: int = 1
    second: str = "b"


def test_a_named_tuple_of_options_is_taken_apart_for_typer_and_put_together_for_the_command():
    taken = []

    def command(*, path: str, two: Two, last: bool = False) -> None:
        taken.append((path, two, last))

    flat = _flat(command)
    found = inspect.signature(flat).parameters
    assert {name: each.annotation for name, each in found.items()} == {
        "path": str, "first": int, "second": str, "last": bool,
    }  # fmt: skip
    assert (found["first"].default, found["second"].default) == (1, "b")
    flat(path="p", first=3, second="c", last=True)
    assert taken == [("p", Two(3, "c"), True)]
