"""Copies of a framework inside another repository say of which version its scripts are."""

from pathlib import Path

import pytest

from rlplan.planner.configs.importing import ImportOptions, imported

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={"HOME": "~"})
VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8 data.train_batch_size=256 "
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 data.max_prompt_length=512 data.max_response_length=1024\n"
)
SLIME = (
    "python3 train.py --hf-checkpoint Qwen/Qwen3-4B --rollout-batch-size 32 --n-samples-per-prompt 8 --colocate "
    "--rollout-max-response-len 4096 --global-batch-size 256 --rollout-num-gpus-per-engine 1\n"
)
PINS = {"requirements.txt": "verl==0.4.0\nvllm==0.8.5\n"}


def read(framework, folder, script, files):
    """Import a script of a repository with some files."""
    (folder / ".git").mkdir()
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    path = folder / "scripts" / "run.sh"
    path.parent.mkdir()
    path.write_text(script)
    return imported(framework, [str(path)], OPTIONS)


@pytest.mark.parametrize(
    "place", ["verl", "verl-0.6.x", "third_party/verl", "verl/verl/version/version"]
)
def test_a_copy_of_verl_counts_before_pins_of_requirements(tmp_path, place):
    file = place if Path(place).name == "version" else f"{place}/verl/version/version"
    found = read("verl", tmp_path, VERL, {file: "0.6.1\n", **PINS})
    assert found.document()["version"] == "0.6.1"
    assert any(str(tmp_path / file) in note for note in found.notes)


def test_a_folder_of_another_name_is_no_copy(tmp_path):
    found = read("verl", tmp_path, VERL, {"verlog/verl/version/version": "0.6.1\n", **PINS})
    assert found.document()["version"] == "0.4"


def test_a_fork_that_a_script_goes_to_counts_whatever_lies_beside_it(tmp_path):
    files = {
        f"{name}/verl/version/version": f"{number}\n"
        for name, number in (("own", "0.6.1"), ("old", "0.2.0"))
    }
    found = read("verl", tmp_path, f"cd $HOME/own\n{VERL}", {**files, **PINS})
    assert found.document()["version"] == "0.6.1"


@pytest.mark.parametrize(
    ("code", "framework"), [("", "slime-0.2"), ("can_reuse_log_probs_in_loss", "slime")]
)
def test_a_copy_of_slime_beside_a_script_says_its_version(tmp_path, code, framework):
    files = {
        "slime/setup.py": 'from setuptools import setup\nsetup(name="slime", version="0.2.4")\n',
        "slime/slime/backends/megatron_utils/actor.py": f"{code}\n",
    }
    assert read("slime", tmp_path, SLIME, files).job.framework == framework


def test_what_a_script_starts_by_counts_before_an_engine_that_files_pin(tmp_path):
    """skyrl_train is the package of releases up to train-0.4, whatever vLLM a copy of it pins."""
    script = (
        "python -m skyrl_train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen3-4B generator.num_inference_engines=4 "
        "trainer.placement.policy_num_gpus_per_node=4 generator.inference_engine_tensor_parallel_size=1\n"
    )
    found = read("skyrl", tmp_path, script, {"requirements.txt": "vllm==0.16.0\n"})
    assert found.document()["version"] == "train-0.4"
    assert found.job.engines.generate.startswith("vllm-0.15")


@pytest.mark.parametrize(("above", "version"), [(1, "0.6.1"), (3, "0.9.1")])
def test_folders_far_above_a_script_of_no_repository_hold_no_copies(tmp_path, above, version):
    script = tmp_path.joinpath(*"abc"[:above], "run.sh")
    script.parent.mkdir(parents=True)
    script.write_text(VERL)
    copy = tmp_path / "verl" / "verl" / "version" / "version"
    copy.parent.mkdir(parents=True)
    copy.write_text("0.6.1\n")
    assert imported("verl", [str(script)], OPTIONS).document()["version"] == version
