"""Models that a configuration names and no forecast counts: a verdict says so, and is no plain yes."""

import pytest

from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.uncounted import uncounted_models
from tests.planner.configs.test_importing import VERL
from tests.planner.configs.test_keys_of_skyrl import BASES as SKYRL_BASES

LEARNERS = (
    "python open_instruct/grpo_fast.py --model_name_or_path Qwen/Qwen2.5-1.5B --num_unique_prompts_rollout 32 "
    "--num_samples_per_prompt_rollout 16 --max_prompt_token_length 1024 --response_length 1024 --pack_length 2048 "
    "--num_learners_per_node 4 --vllm_num_engines 4 --vllm_tensor_parallel_size 1 --deepspeed_stage 3"
)
OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={})
UNCOUNTED = "names a model whose memory is not counted"


def checked(*more):
    return check_config("open-instruct", [*LEARNERS.split(), *more], OPTIONS)


def test_a_teacher_of_a_key_that_nobody_knows_leaves_no_plain_yes():
    plain = checked()
    assert plain.verdict == "fits"
    found = checked("--opd_teacher_model_name_or_path", "Qwen/Qwen3-32B")
    assert found.imported.keys.unknown == ("opd_teacher_model_name_or_path",)
    assert found.verdict == "may not fit"
    assert found.remarks[0] == f"opd_teacher_model_name_or_path=Qwen/Qwen3-32B {UNCOUNTED}"
    assert found.forecast.memory == plain.forecast.memory
    assert found.will_run


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--my_judge_path", "/models/somebody-7B-judge", True),
        ("--verifier_model", "Qwen/Qwen2.5-7B-Instruct", True),
        ("--teacher_path", "Qwen/Qwen2.5-1.5B", True),  # another one of the same sizes
        ("--my_model_path", "Qwen/Qwen2.5-1.5B", False),  # the one that is trained
        ("--my_tokenizer_model", "Qwen/Qwen3-32B", False),
        ("--my_dataset", "somebody/qwen-7B-samples", False),
        ("--judge_prompt", "Is it right?", False),
        ("--reward_style", "dense", False),
        ("--judge_model", "none", False),
        ("--judge_model", "http://10.0.0.1:8000/qwen3-32b", False),  # on GPUs of its own
    ],
)
def test_what_is_a_model_is_told_by_its_key_and_its_name(flag, value, told):
    found = imported("open-instruct", [*LEARNERS.split(), flag, value], OPTIONS)
    assert found.keys.unknown == (flag.removeprefix("--"),)
    assert any(UNCOUNTED in each for each in uncounted_models(found)) == told


def test_a_key_that_names_no_other_model_leaves_a_plain_yes():
    assert checked("--my_model_path", "Qwen/Qwen2.5-1.5B").verdict == "fits"


def test_what_does_not_fit_stays_so_and_says_it_too():
    small = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={})
    words = [
        *VERL,
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.99",
        "+my.judge_model=Qwen/Qwen3-32B",
    ]
    found = check_config("verl", words, small)
    assert found.verdict == "does not fit"
    assert any(UNCOUNTED in each for each in found.remarks)


@pytest.mark.parametrize(
    ("word", "model", "verdict"),
    [
        ("trainer.policy.my_config.tensor_parallel_size=4", "Qwen/Qwen2.5-7B", "may not fit"),
        ("trainer.policy.my_config.tensor_parallel_size=4", "Qwen/Qwen2.5-72B", "may not fit"),
        ("trainer.policy.my_config.cp=1", "Qwen/Qwen2.5-7B", "fits"),
    ],
)
def test_a_parallel_size_of_a_copys_own_leaves_no_plain_answer(word, model, verdict):
    words = [*SKYRL_BASES["together"], f"trainer.policy.model.path={model}", f"+{word}"]
    found = check_config("skyrl", words, OPTIONS)
    assert found.verdict == verdict
    key, _, value = word.partition("=")
    assert any(
        each.startswith(f"{key}={value} is called as a parallel size") for each in found.remarks
    ) == (value == "4")
