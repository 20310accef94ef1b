"""`rlplan compare` and `rlplan reproduce`: what they print and write, and what they refuse."""

import json

import pytest

from tests.planner.configs.test_comparing import VERL
from tests.rlplan_cli.conftest import change

SAID = ("--gpu", "h100-80gb-sxm", "--mean-response", "200")


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


def test_frameworks_are_set_side_by_side_by_stage(rlplan, project):
    (project / "run.sh").write_text(f"python3 {VERL}\n")
    answer = rlplan("compare", "run.sh", *SAID, "--with", "areal", "--seconds", "0.1")
    assert answer.code == 0
    assert "verl (FSDP), best settings, against verl (FSDP), as it is" in answer.out
    assert "on GPUs that the trainer shares" in " ".join(answer.out.split())
    assert "times the step of verl (FSDP), as it is" in answer.err


@pytest.mark.full
def test_json_has_stages_that_sum_to_the_difference(rlplan, project):
    (project / "run.sh").write_text(f"python3 {VERL}\n")
    found = rlplan(
        "compare", "run.sh", *SAID, "--framework", "verl", "--with", "verl,slime", "--json"
    ).json
    steps = [step for step in found["steps"] if step.get("difference")]
    assert [(step["framework"], step["kind"]) for step in steps] == [
        ("verl", "best settings"),
        ("slime", "same layout"),
        ("slime", "best settings"),
    ]
    for step in steps:
        stages = step["difference"]["stages"]
        total = sum(each["seconds"] - each["base_seconds"] for each in stages)
        assert total == pytest.approx(step["difference"]["seconds"])
        assert step["plan"]["tasks"]["actor.update"]["engine"]


@pytest.mark.full
def test_a_jobs_file_has_the_best_of_each_framework_alone(rlplan, project):
    (project / "run.sh").write_text(f"python3 {VERL}\n")
    assert rlplan("import", "verl", "run.sh", *SAID, "--out", "own.yaml").code == 0
    found = rlplan("compare", "own.yaml", "--with", "slime", "--json").json
    assert [(step["framework"], step["kind"]) for step in found["steps"]] == [
        ("verl-fsdp", "best settings"),
        ("slime", "best settings"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("compare", "job.yaml", "--with", "slim"), "did you mean 'slime'"),
        (("compare", "job.yaml", "--with", ","), "names no framework"),
        (
            ("compare", "job.yaml", "--with", "slime", "--systems", "verl"),
            "--systems: has no effect",
        ),
        (("compare", "job.yaml", "--mode", "async"), "--mode: has no effect here"),
        (("compare", "job.yaml", "--with", "slime", "--mode", "asyn"), "did you mean 'async'?"),
        (("compare", "job.yaml", "again.yaml"), "one job's file, or --with"),
    ],
)
def test_what_has_no_effect_is_refused(rlplan, project, arguments, said):
    answer = rlplan(*arguments)
    assert answer.code == 2
    assert said in answer.err
