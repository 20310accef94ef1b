"""`rlplan compare` and `rlplan reproduce`: what they print and write, and what they refuse."""

import json

import pytest

from tests.rlplan_cli.conftest import change


@pytest.mark.full
def test_systems_are_printed_with_our_speed_up_over_each(rlplan, project):
    answer = rlplan("compare", "job.yaml", "--systems", "verl, megatron-heuristic")
    assert answer.code == 0
    assert "verl" in answer.out
    assert "megatron-heuristic" in answer.out
    assert "deepspeed-chat" not in answer.out
    assert "Our plan takes" in answer.err


@pytest.mark.full
def test_json_has_every_system_with_its_plan_or_its_reason(rlplan, project):
    found = rlplan("compare", "job.yaml", "--systems", "verl,openrlhf-0.2", "--json").json
    assert found["ours"]["feasible"]
    assert [system["name"] for system in found["systems"]] == ["verl", "openrlhf-0.2"]
    for system in found["systems"]:
        assert system["feasible"] == (system["reason"] is None)
    assert not found["systems"][1]["feasible"], "five pools are more than two devices"


@pytest.mark.full
def test_a_folder_gets_the_page_the_document_and_the_plans(rlplan, project):
    assert rlplan("compare", "job.yaml", "--systems", "verl", "--out", "compared").code == 0
    folder = project / "compared"
    assert {path.name for path in folder.iterdir()} >= {
        "compare.html",
        "compare.md",
        "compare.json",
    }
    assert json.loads((folder / "compare.json").read_text())["job"] == "small"
    assert (folder / "plans" / "rlplan.yaml").exists()
    assert rlplan("simulate", folder / "plans" / "rlplan.yaml", "--json").code == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("compare", "job.yaml", "--systems", "deepspeed"), "did you mean 'deepspeed-chat'?"),
        (("compare", "job.yaml", "--systems", ","), "names no system"),
        (("compare", "nothing.yaml"), "nothing.yaml: no such file"),
        (("compare", "run"), "run: is a folder, not a file"),
        (("compare", "prompts.jsonl"), "prompts.jsonl: is not YAML at line 2"),
        (
            ("compare", "job.yaml", "--out", "job.yaml"),
            "job.yaml is not a folder; found 'job.yaml'",
        ),
        (("compare", "job.yaml", "--out", "/proc/page"), "/proc/page"),
        (("compare", "job.yaml", "--profile", "run"), "run/profile.yaml: no such file"),
        (("reproduce", "hybridflo"), "did you mean 'hybridflow'?"),
        (("reproduce", "hybridflow", "--out", "job.yaml"), "--out"),
    ],
)
def test_mistakes_are_refused_in_one_line(rlplan, project, arguments, said):
    answer = rlplan(*arguments)
    assert answer.code == 2
    assert len(answer.lines) == 1
    assert said in answer.err


@pytest.mark.parametrize(
    ("field", "to", "said"),
    [
        (("workload", "prompts"), -4, "job.yaml: workload.prompts: input should be greater than"),
        (("workload", "promts"), 4, "did you mean 'prompts'?"),
        (("cluster", 0, "gpu"), "a100-80g", "did you mean 'a100-80gb-sxm'?"),
        (("cluster", 0, "gpus_per_node"), "two", "job.yaml: cluster.0.gpus_per_node"),
        (("models", "actor"), "lama-2-7b", "did you mean 'llama-2-7b'"),
        (("models", "critic"), "", "job.yaml: models.critic"),
    ],
)
def test_a_wrong_job_is_refused_before_anything_is_compared_or_written(
    rlplan, project, field, to, said
):
    change("job.yaml", *field, to=to)
    answer = rlplan("compare", "job.yaml", "--out", "page")
    assert answer.code == 2
    assert len(answer.lines) == 1
    assert said in answer.err
    assert not (project / "page").exists()
