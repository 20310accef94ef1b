"""No key of ROLL's is swallowed: changing it changes job or plan, or what becomes of it is said."""

import ast
from pathlib import Path

import pytest

from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.settings import Settings, keys_of
from rlplan.planner.configs.reading.sheet import load_config_sheet
from tests.cases import first
from tests.planner.configs.fates import fate, imports_of, mapped_keys, usual_values

CATALOGUE = Path(__file__).parent / "data" / "keys_of_roll.txt"
OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={"HOME": "~"}
)
SHEET = load_config_sheet("roll")
T, G, R = "actor_train", "actor_infer", "reference"
CONFIG = "strategy_args.strategy_config"
WORK = (
    "rollout_batch_size=64 num_return_sequences_in_group=8 prompt_length=1024 response_length=4096 adv_estimator=grpo "
    f"pretrain=Qwen/Qwen3-8B reward_pretrain=Qwen/Qwen3-8B {T}.device_mapping=list(range(0,8)) "
    f"{T}.training_args.per_device_train_batch_size=2 {T}.training_args.gradient_accumulation_steps=8 "
    f"{G}.strategy_args.strategy_name=vllm {R}.strategy_args.strategy_name=megatron_infer"
)
MEGATRON = (
    f"{WORK} {T}.strategy_args.strategy_name=megatron_train {T}.{CONFIG}.tensor_model_parallel_size=2 "
    f"{T}.{CONFIG}.use_distributed_optimizer=true"
)
TOGETHER = f"{MEGATRON} {G}.device_mapping=list(range(0,8)) {R}.device_mapping=list(range(0,8))"
EXPERTS = "pretrain=Qwen/Qwen3-30B-A3B"
APART = f"{MEGATRON} {G}.device_mapping=list(range(8,16)) {R}.device_mapping=list(range(16,24))"
FSDP = (
    f"{WORK} {T}.strategy_args.strategy_name=fsdp2_train {G}.device_mapping=list(range(0,8)) "
    f"{R}.device_mapping=list(range(0,8)) {R}.strategy_args.strategy_name=fsdp2_infer"
)
EPISODES = (
    f"{TOGETHER} train_env_manager.group_size=8 train_env_manager.tags=[FrozenLake] sequence_length=8192 "
    "init_kl_coef=0 custom_envs.FrozenLake.max_steps=10 train_env_manager.num_env_groups=8 "
    "train_env_manager.num_groups_partition=[8] val_batch_size=-1"
)
BASES = {
    name: words.split()
    for name, words in {
        "together": TOGETHER,
        "apart": APART,
        "FSDP": FSDP,
        "experts": (
            f"{TOGETHER} {EXPERTS} {T}.{CONFIG}.expert_model_parallel_size=4 {R}.{CONFIG}.expert_model_parallel_size=4"
        ),
        "episodes": EPISODES,
        "episodes ahead": f"{EPISODES} async_generation_ratio=1 {G}.device_mapping=list(range(8,16))",
        "a batch ahead": f"{APART} async_generation_ratio=1",
        "a critic": (
            f"{TOGETHER} adv_estimator=gae critic.device_mapping=list(range(0,8)) critic.strategy_args.strategy_name=fsdp2_train"
        ),
        "an adapter": (
            f"{TOGETHER} {T}.model_args.lora_target=all-linear {G}.model_args.lora_target=all-linear"
        ),
        "a critic that packs": (
            f"{TOGETHER} adv_estimator=gae critic.device_mapping=list(range(0,8)) critic.strategy_args.strategy_name=megatron_train "
            "critic.use_sequence_packing=true critic.sequence_packing_args.algorithm=load_balance "
            "critic.sequence_packing_args.max_packed_sequence_length_train=8192 "
            "critic.sequence_packing_args.max_packed_sequence_length_forward=8192"
        ),
        "a critic by tokens": (
            f"{TOGETHER} adv_estimator=gae critic.device_mapping=list(range(0,8)) critic.strategy_args.strategy_name=megatron_train "
            "critic.use_dynamic_batching_in_train=true critic.max_tokens_per_microbatch_in_train=8192 "
            "critic.use_dynamic_batching_in_infer=true critic.max_tokens_per_microbatch_in_infer=8192"
        ),
        "packs": (
            f"{TOGETHER} {R}.use_sequence_packing=true {R}.sequence_packing_args.algorithm=load_balance "
            f"{R}.sequence_packing_args.max_packed_sequence_length_forward=8192 "
            f"{T}.use_sequence_packing=true {T}.sequence_packing_args.algorithm=load_balance "
            f"{T}.sequence_packing_args.max_packed_sequence_length_train=8192 "
            f"{T}.sequence_packing_args.max_packed_sequence_length_forward=8192"
        ),
        "by tokens": (
            f"{TOGETHER} {T}.use_dynamic_batching_in_train=true {T}.max_tokens_per_microbatch_in_train=8192 "
            f"{T}.use_dynamic_batching_in_infer=true {T}.max_tokens_per_microbatch_in_infer=8192 "
            f"{R}.use_dynamic_batching_in_infer=true {R}.max_tokens_per_microbatch_in_infer=8192"
        ),
        "no penalty": f"{TOGETHER} init_kl_coef=0",
        "a penalty in the loss": f"{TOGETHER} use_kl_loss=true kl_loss_coef=0.01",
        "an optimizer on the host": f"{TOGETHER} {T}.{CONFIG}.optimizer_cpu_offload=true {T}.{CONFIG}.optimizer_offload_fraction=1.0",
        "SGLang": f"{TOGETHER} {G}.strategy_args.strategy_name=sglang {G}.num_gpus_per_worker=2",
        "a penalty in rewards": f"{TOGETHER} add_token_level_kl=true dual_clip_loss=true",
    }.items()
}  # fmt: skip


def catalogue():
    """Return ROLL's keys and their defaults."""
    lines = CATALOGUE.read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {key: ast.literal_eval(default) if default else None for key, default in rows}


KEYS = catalogue()
MAPPED = [key for key in mapped_keys(SHEET) if key in KEYS]
# What only rules ask for, or a part of a note.
ONLY_IN_RULES = {
    "generate_opt_level", "partial_gpu_mode", "val_batch_size",
    "train_env_manager.num_env_groups", "train_env_manager.num_groups_partition", "actor_infer.model_args.lora_target",
    "norm_mean_type", "reward_normalization.norm_mean_type", "reward_norm", "eval_steps",
}  # fmt: skip
# Sizes that only a trainer of another role, or none at all, has: the reference trains nothing.
OF_OTHERS = ("reference.training_args.", "critic.strategy_args.strategy_config.")
NOT_OF_REFERENCES = {
    f"{R}.{name}"
    for name in (
        "max_tokens_per_microbatch_in_train", "use_dynamic_batching_in_train",
        "sequence_packing_args.max_packed_sequence_length_train",
        *(f"{CONFIG}.{each}" for each in (
            "optimizer_cpu_offload", "optimizer_offload_fraction", "recompute_granularity", "use_distributed_optimizer",
            "virtual_pipeline_model_parallel_size",
        )),
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def before():
    """Return the job and plan of each base as it is."""
    return imports_of("roll", BASES, OPTIONS)


@pytest.mark.parametrize(
    "key",
    first(
        4, sorted(key for key in set(MAPPED) - NOT_OF_REFERENCES if not key.startswith(OF_OTHERS))
    ),
)
def test_no_key_is_swallowed(key, before):
    values = [*usual_values(SHEET, key, KEYS[key]), "list(range(0,4))", "null"]
    if key not in ONLY_IN_RULES:
        assert fate("roll", key, values, BASES, OPTIONS, before) != "swallowed"


def test_every_key_is_known():
    flat = {key: GivenValue(value="word", where="there") for key in KEYS}
    assert keys_of(Settings(SHEET, flat, "file")).unknown == ()


def test_defaults_are_those_of_its_classes():
    differing = {
        each.keys[0]
        for each in SHEET.every_setting()
        if each.keys
        and each.default is not None
        and not each.values
        and KEYS.get(each.keys[0]) not in {None, each.default}
    }
    assert differing == set()


def test_a_key_that_nobody_knows_is_not_understood():
    found = imported("roll", [*BASES["together"], "nonsense=7"], OPTIONS)
    assert found.keys.unknown == ("nonsense",)
