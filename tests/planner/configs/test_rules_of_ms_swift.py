"""Rules that ms-swift finds broken at run time: each broken on purpose, and none by sound configurations."""

import pytest

from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.importing import settings_of
from tests.planner.configs.test_keys_of_ms_swift import BASES, OPTIONS

TOGETHER, MEGATRON, SERVER, ADAPTER, RAY = "together", "Megatron", "a server", "an adapter", "Ray"
BREAKS = {
    "generation-batches-are-whole": (TOGETHER, "--generation_batch_size 100"),
    "groups-fill-what-is-generated": (TOGETHER, "--num_generations 7"),
    "groups-have-samples": (TOGETHER, "--num_generations 1"),
    "evaluation-has-whole-groups": (
        TOGETHER, "--eval_strategy steps --split_dataset_ratio 0.1 --num_generations_eval 3",
    ),
    "a-mode-is-named-with-vllm": ("without vLLM", "--vllm_mode colocate"),
    "megatron-generates-by-vllm": (MEGATRON, "--use_vllm false"),
    "servers-are-named": (TOGETHER, "--vllm_mode server"),
    "engines-divide-the-processes": (TOGETHER, "--vllm_tensor_parallel_size 3"),
    "asynchronous-runs-have-a-server": (TOGETHER, "--async_generate true"),
    "adapters-have-no-reference": (ADAPTER, "--ref_model Qwen/Qwen3-8B"),
    "long-responses-are-punished-within-a-length": (TOGETHER, "--reward_funcs accuracy soft_overlong"),
    "prompts-are-cut-or-dropped": (TOGETHER, "--truncation_strategy right"),
    "ligers-loss-has-what-is-asked": (TOGETHER, "--use_liger_kernel true --delta 4"),
    "teachers-weigh-tokens": (TOGETHER, "--teacher_model Qwen/Qwen3-14B --loss_type fipo"),
    "every-reward-has-a-weight": (TOGETHER, "--reward_weights 1 1 1"),
    "megatron-learns-once": (MEGATRON, "--num_iterations 2"),
    "sizes-divide-the-gpus": (MEGATRON, "--tensor_model_parallel_size 3"),
    "updates-reach-every-copy": (MEGATRON, "--global_batch_size 60"),
    "prompts-reach-every-copy": (MEGATRON, "--global_batch_size 32"),
    "real-has-whole-groups": (MEGATRON, "--loss_type real"),
    "stages-are-not-interleaved": (
        MEGATRON, "--pipeline_model_parallel_size 2 --virtual_pipeline_model_parallel_size 2",
    ),
    "tensor-ranks-divide-the-heads": (MEGATRON, "--tensor_model_parallel_size 64"),
    "shared-gpus-are-as-many": (RAY, "--colocate_groups [[train,rollout]]"),
}  # fmt: skip


def broken(base, more=""):
    settings = settings_of("ms-swift", [*BASES[base], *more.split()], OPTIONS)
    rules = rules_of("ms-swift")
    return {rule.name: rule.broken(settings) for rule in rules if rule.broken(settings)}


@pytest.mark.parametrize("base", [TOGETHER, MEGATRON, SERVER, ADAPTER, RAY, "without vLLM", "FSDP"])
def test_sound_configurations_break_no_rule(base):
    assert broken(base) == {}


@pytest.mark.parametrize("name", BREAKS)
def test_rules_are_found_broken(name):
    found = broken(*BREAKS[name])
    assert name in found
    assert all(each.problem and each.allowed for each in found[name])


def test_every_rule_is_broken_once():
    assert {rule.name for rule in rules_of("ms-swift")} == set(BREAKS)
