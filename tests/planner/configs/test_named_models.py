"""Models whose path says nothing, told by other words of a configuration, are taken and said; where words differ, none is."""

from pathlib import Path

import pytest

from rlplan.errors import MissingValueError
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.importing import Imported, ImportOptions, imported

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={})
SCRIPT = """MODEL_PATH={path}
python3 -m verl.trainer.main config=examples/config.yaml worker.actor.model.model_path=${{MODEL_PATH}} \\
  trainer.experiment_name={name} trainer.n_gpus_per_node=8
"""


def read(folder: Path, path: str, name: str, file: str = "run.sh") -> Imported:
    script = folder / file
    script.write_text(SCRIPT.format(path=path, name=name))
    return imported("easyr1", [str(script)], OPTIONS)


@pytest.mark.parametrize(
    ("path", "name", "sheet"),
    [
        ("/data/ckpt/my_sft_v3", "qwen2_5_7b_math_grpo", "qwen2.5-7b"),
        ("/data/ckpt/qwen3_sft", "qwen3-4b-dapo", "qwen3-4b"),
        ("/out/qwen2.5-3b-round1/policy_two", "grpo", "qwen2.5-3b"),
        ("/ckpt/mine", "deepseek_r1_distill_qwen_7b_grpo", "deepseek-r1-distill-qwen-7b"),
    ],
)
def test_a_private_path_takes_the_model_that_other_words_name(
    tmp_path: Path, path: str, name: str, sheet: str
) -> None:
    found = read(tmp_path, path, name)
    assert found.job.models["actor"] == sheet
    first = next(found.doubts())
    assert first.startswith(f"the model is not known: no sheet is of {path}; it is taken for")
    assert sheet in first
    assert not any("by its name" in note for note in found.notes)


def test_a_variable_that_nothing_sets_takes_the_model_that_the_file_names(tmp_path: Path) -> None:
    found = read(tmp_path, "$BASE", "grpo", "qwen3_8b_grpo.sh")
    assert found.job.models["actor"] == "qwen3-8b"
    assert "nothing at hand says it" in next(found.doubts())


def test_the_verdict_is_never_firm(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT.format(path="/ckpt/mine", name="qwen2.5-3b"))
    assert check_config("easyr1", [str(script)], OPTIONS).verdict == "may not fit"


@pytest.mark.parametrize(
    ("path", "name", "file"),
    [
        ("/ckpt/mine", "qwen3-4b", "qwen3_8b.sh"),
        ("/ckpt/my-7b-sft", "qwen3-4b", "run.sh"),
        ("/ckpt/llama_sft", "qwen3-4b", "run.sh"),
        ("/ckpt/qwen2.5_sft", "qwen3-4b", "run.sh"),
        ("/ckpt/mine", "grpo", "run.sh"),
        ("/ckpt/mine", "qwen3-4b-from-32b", "run.sh"),
        ("/ckpt/mine", "qwen3-8b_vs_llama-3.1-8b", "run.sh"),
        ("/ckpt/mine", "qwen2.5-7b_after_qwen2-7b", "run.sh"),
        ("/ckpt/qwen3vl_sft", "qwen3-4b", "run.sh"),
        ("/ckpt/qwen2.5_omni_sft", "qwen2.5-7b", "run.sh"),
        ("/ckpt/Baichuan2-7B-Chat", "qwen2_7b_function_rm", "run.sh"),
    ],
)
def test_words_that_differ_or_contradict_the_path_are_no_guess(
    tmp_path: Path, path: str, name: str, file: str
) -> None:
    with pytest.raises(MissingValueError, match="no sheet is of the model"):
        read(tmp_path, path, name, file)


@pytest.mark.parametrize(
    "line",
    [
        "# teacher_model=Qwen/Qwen3-32B",
        "# REWARD_MODEL_PATH=Qwen/Qwen3-8B",
        "orm.model=Qwen/Qwen2.5-7B-Instruct",
        "search.model=Qwen/Qwen2.5-7B-Instruct",
        "user_simulator.model=Qwen/Qwen3-8B",
        "trainer.project_name=teacher_qwen3_32b",
        "worker.model.other=Skywork/Skywork-Reward-Llama-3.1-8B",
    ],
)
def test_a_judge_or_a_teacher_is_not_taken_for_the_actor(tmp_path: Path, line: str) -> None:
    script = tmp_path / "run.sh"
    text = SCRIPT.format(path="/ckpt/mine", name="grpo")
    ahead = line.startswith("#")
    script.write_text(f"{line}\n{text}" if ahead else f"{text.rstrip()} {line}\n")
    with pytest.raises(MissingValueError, match="no sheet is of the model"):
        imported("easyr1", [str(script)], OPTIONS)


def test_several_models_are_named_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(MissingValueError, match=r"tells qwen3-4b; .* tells qwen3-8b"):
        read(tmp_path, "/ckpt/mine", "qwen3-4b", "qwen3_8b.sh")


def test_an_option_says_another(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT.format(path="/ckpt/mine", name="qwen3-4b"))
    options = ImportOptions(
        gpu="h100-80gb-sxm", mean_response=300, environment={}, model="qwen3-8b"
    )
    found = imported("easyr1", [str(script)], options)
    assert found.job.models["actor"] == "qwen3-8b"
    assert not list(found.taken())


def test_a_name_in_the_example_that_a_script_is_laid_over_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "worker: {actor: {model: {model_path: Qwen/Qwen2.5-7B-Instruct}}}\n"
        "trainer: {experiment_name: qwen2_5_7b_math_grpo}\n"
    )
    script = tmp_path / "run.sh"
    script.write_text(
        f"python3 -m verl.trainer.main config={tmp_path}/base.yaml worker.actor.model.model_path=/ckpt/mine\n"
    )
    with pytest.raises(MissingValueError, match="no sheet is of the model /ckpt/mine"):
        imported("easyr1", [str(script)], OPTIONS)
