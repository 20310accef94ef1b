"""What starts a training of TRL: who counts its processes, and whose a program of one's own is."""

from pathlib import Path

import pytest

from rlplan.files.decoding import is_own_file
from rlplan.planner.configs.importing import ImportOptions, imported, settings_of
from rlplan.planner.configs.proposing.changes import by_words_of_files, of_own_files
from rlplan_cli.config_options import framework_of

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=200, environment={"HOME": "~"})
RECIPE = """
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
bf16: true
use_vllm: true
vllm_mode: colocate
num_generations: 8
per_device_train_batch_size: 8
gradient_accumulation_steps: 4
max_completion_length: 1024
num_processes: 7
"""
ZERO = """
deepspeed_config: {zero_stage: 2}
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder, where the tests are, with a recipe that names processes and a file of accelerate."""
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(RECIPE, encoding="utf-8")
    Path("zero2.yaml").write_text(ZERO, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("launch", "gpus"),
    [
        ("accelerate launch --num_processes 2", 2),
        ("accelerate launch --config_file zero2.yaml", 8),
        ("accelerate launch --config_file zero2.yaml --num_processes 4", 4),
        ("accelerate launch", 7),
    ],
)
def test_what_launches_says_how_many_processes_there_are_before_a_recipe(folder, launch, gpus):
    words = f"{launch} src/open_r1/grpo.py --config recipe.yaml".split()
    found = imported("trl", words, OPTIONS)
    assert found.draft.tasks["actor.update"].dp == gpus


def test_what_stands_in_accelerates_file_is_proposed_there(folder):
    (folder / "fsdp.yaml").write_text(
        ZERO.replace("deepspeed_config: {zero_stage: 2}", "fsdp_config: {fsdp_version: 2}").replace(
            "DEEPSPEED", "FSDP"
        )
    )
    start = "accelerate launch --config_file {} -m trl.scripts.grpo --config recipe.yaml"
    for file, key, value in (
        ("fsdp.yaml", "fsdp_config.fsdp_offload_params", True),
        ("zero2.yaml", "deepspeed_config.zero_stage", 3),
    ):
        settings = settings_of("trl", start.format(file).split(), OPTIONS)
        said = by_words_of_files(((key, value),), settings)
        assert said == ((key, value),)
        inside = of_own_files(said, settings)
        assert inside[key].words(value) == f"in {file}: {key}={str(value).lower()}"
    # A recipe may hold the section itself, as transformers' own arguments have it.
    (folder / "recipe.yaml").write_text(RECIPE + "fsdp_config: {fsdp_offload_params: false}\n")
    settings = settings_of("trl", start.format("zero2.yaml").split(), OPTIONS)
    assert of_own_files((("fsdp_config.fsdp_offload_params", True),), settings) == {}


def test_a_program_of_one_s_own_is_a_library_s_where_keys_are_those_of_two_frameworks(folder):
    keys = (
        "--num_generations 8 --steps_per_generation 2 --vllm_mode colocate --model_name_or_path x"
    )
    (folder / "run.sh").write_text(f"accelerate launch --num_processes 8 my_train.py {keys}\n")
    assert framework_of(["run.sh"]) == ("trl", ["run.sh"])
    (folder / "run.sh").write_text(f"swift rlhf --rlhf_type grpo {keys}\n")
    assert framework_of(["run.sh"]) == ("ms-swift", ["run.sh"])


def test_the_last_of_a_recipes_keys_counts_where_one_comes_twice(folder):
    (folder / "twice.yaml").write_text(RECIPE + "max_completion_length: 512\n", encoding="utf-8")
    assert not is_own_file(folder / "twice.yaml")
    assert framework_of(["twice.yaml"]) == ("trl", ["twice.yaml"])
    assert imported("trl", ["twice.yaml"], OPTIONS).job.workload.response_tokens.max == 512
