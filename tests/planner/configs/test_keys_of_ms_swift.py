"""No key of ms-swift's is swallowed: changing it changes job or plan, or what becomes of it is said."""

import ast
from pathlib import Path

import pytest

from rlplan.errors import UserError
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.settings import Settings, keys_of
from rlplan.planner.configs.reading.sheet import load_config_sheet
from tests.cases import first
from tests.planner.configs.fates import imports_of, mapped_keys, outcome, usual_values

CATALOGUE = Path(__file__).parent / "data" / "keys_of_ms_swift.txt"
OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=100, mean_prompt=100, environment={"HOME": "~"}
)
SHEET = load_config_sheet("ms-swift")
WORK = (
    "swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --NPROC_PER_NODE 8 --tuner_type full --max_length 1024 "
    "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --num_generations 8 --max_completion_length 2048 "
    "--reward_funcs accuracy format"
)
TOGETHER = f"{WORK} --use_vllm true --vllm_mode colocate --deepspeed zero3 --sleep_level 1"
MEGATRON = (
    "megatron rlhf --rlhf_type grpo --model Qwen/Qwen3-30B-A3B --NPROC_PER_NODE 8 --tensor_model_parallel_size 2 "
    "--expert_model_parallel_size 4 --micro_batch_size 2 --global_batch_size 64 --num_generations 8 --max_length 1024 "
    "--max_completion_length 2048 --vllm_mode colocate --sleep_level 2 --vllm_tensor_parallel_size 2"
)
SERVER = f"{WORK} --use_vllm true --vllm_mode server --vllm_server_host 127.0.0.1 --deepspeed zero2"
BASES = {
    name: words.split()
    for name, words in {
        "together": TOGETHER,
        "Megatron": MEGATRON,
        "a server": SERVER,
        "an adapter": TOGETHER.replace("--tuner_type full", ""),
        "without vLLM": f"{WORK} --deepspeed zero3",
        "FSDP": f"{WORK} --fsdp fsdp2 --use_vllm true --vllm_mode colocate",
        "Ray": (
            f"{MEGATRON} --use_ray true --train.gpus 8 --rollout.gpus 4"
        ),
        "samples again": f"{TOGETHER} --dynamic_sample true --beta 0",
        "turns": f"{TOGETHER} --multi_turn_scheduler math_tip_trick --vllm_max_model_len 8192",
        "images": TOGETHER.replace("Qwen/Qwen3-8B", "Qwen/Qwen2.5-VL-7B-Instruct"),
        "an optimizer on the host": f"{MEGATRON} --optimizer_cpu_offload true",
        "weights in fp32": f"{TOGETHER} --torch_dtype float32",
        "a short engine": f"{SERVER} --rollout.vllm_max_model_len 2048",
    }.items()
}  # fmt: skip


def catalogue():
    """Return ms-swift's keys and their defaults."""
    lines = CATALOGUE.read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {key: ast.literal_eval(default) if default else None for key, default in rows}


KEYS = catalogue()
MAPPED = [key for key in mapped_keys(SHEET) if key in KEYS]
# What only rules ask for, or a part of a note or doubt.
ONLY_IN_RULES = {
    "CUDA_VISIBLE_DEVICES", "eval_strategy", "eval_steps", "save_only_model", "max_resample_times", "reward_weights",
    "reward_funcs", "delta", "off_policy_sequence_mask_delta", "top_entropy_quantile", "log_entropy", "soft_cache_length",
    "truncation_strategy", "use_gym_env", "max_turns", "scale_rewards", "per_device_eval_batch_size", "num_generations_eval",
    "use_ray",
}  # fmt: skip


@pytest.fixture(scope="module")
def before():
    """Return the job and plan of each base as it is."""
    return imports_of("ms-swift", BASES, OPTIONS)


def fate(key, values, before):
    """Return what becomes of a key: the first outcome that shows it."""
    seen = "swallowed"
    for name, words in BASES.items():
        for value in values:
            try:
                found = imported("ms-swift", [*words, f"--{key}", str(value)], OPTIONS)
            except UserError as error:
                seen = "refused" if key in str(error) else seen
                continue
            told = outcome(found, key, before[name])
            if told in {"acts", "reported"}:
                return told
    return seen


@pytest.mark.parametrize("key", first(4, sorted(MAPPED, reverse=True)))
def test_no_key_is_swallowed(key, before):
    values = [*usual_values(SHEET, key, KEYS[key]), "[[train, rollout]]", "null"]
    if key not in ONLY_IN_RULES:
        assert fate(key, values, before) != "swallowed"


def test_every_key_is_known():
    flat = {key: GivenValue(value="word", where="there") for key in KEYS}
    assert keys_of(Settings(SHEET, flat, "file")).unknown == ()


def test_only_mappings_without_known_keys_are_ignored_by_a_pattern():
    names = [name for keys in SHEET.without_influence.values() for name in keys]
    patterns = [name for name in names if any(sign in name for sign in "*?[")]
    assert patterns == [
        "columns.*",
        "deepspeed.{optimizer,scheduler}.*",
        "deepspeed.{bf16,fp16}.*",
        "rollout.vllm_limit_mm_per_prompt.*",
    ]


def test_defaults_are_those_of_its_classes():
    differing = {
        each.keys[0]
        for each in SHEET.every_setting()
        if each.keys
        and each.default is not None
        and not each.values
        and KEYS.get(each.keys[0]) not in {None, each.default}
    }
    # Of GRPO alone; what the class of servers inherits.
    assert differing == set()


def test_a_key_that_nobody_knows_is_not_understood():
    found = imported("ms-swift", [*BASES["together"], "--nonsense", "7"], OPTIONS)
    assert found.keys.unknown == ("nonsense",)
