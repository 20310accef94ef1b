"""No key of SkyRL's is swallowed: changing it changes job or plan, or what becomes of it is said."""

import ast
from pathlib import Path

import pytest

from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.settings import Settings, keys_of
from rlplan.planner.configs.reading.sheet import load_config_sheet
from tests.cases import first
from tests.planner.configs.fates import fate, imports_of, mapped_keys, usual_values

CATALOGUE = Path(__file__).parent / "data" / "keys_of_skyrl.txt"
OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={"HOME": "~"}
)
SHEET = load_config_sheet("skyrl")
P, G, E = "trainer.placement", "generator", "generator.inference_engine"
WORK = (
    "-m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen3-8B trainer.train_batch_size=256 "
    "trainer.policy_mini_batch_size=64 trainer.max_prompt_length=1024 generator.n_samples_per_prompt=8 "
    f"generator.sampling_params.max_generate_length=4096 {P}.policy_num_gpus_per_node=8"
)
REFERENCE = f"{P}.ref_num_gpus_per_node=8"
TOGETHER = f"{WORK} {REFERENCE} {E}.num_engines=8"
APART = f"{WORK} {P}.colocate_all=false {E}.num_engines=4 {E}.tensor_parallel_size=2"
ENDLESS = (
    f"{APART} trainer.algorithm.use_kl_loss=false trainer.fully_async.enabled=true trainer.train_batch_size=64 "
    "trainer.algorithm.policy_loss_type=rollout_is"
)
MEGATRON = (
    "trainer.strategy=megatron trainer.policy.megatron_config.tensor_model_parallel_size=2 "
    "trainer.policy.model.path=Qwen/Qwen3-30B-A3B trainer.policy.megatron_config.expert_model_parallel_size=4 "
    "trainer.ref.megatron_config.expert_model_parallel_size=4"
)
BASES = {
    name: words.split()
    for name, words in {
        "together": TOGETHER,
        "a critic": (
            f"{TOGETHER} trainer.algorithm.advantage_estimator=gae trainer.critic.model.path=Qwen/Qwen3-8B "
            f"{P}.critic_num_gpus_per_node=8"
        ),
        "adapters of both": (
            f"{TOGETHER} trainer.algorithm.advantage_estimator=gae trainer.critic.model.path=Qwen/Qwen3-8B trainer.policy.model.lora.rank=32 "
            f"{P}.critic_num_gpus_per_node=8 trainer.critic.model.lora.rank=32"
        ),
        "apart": f"{APART} {P}.colocate_policy_ref=false {REFERENCE}",
        "a critic apart": (
            f"{APART} trainer.algorithm.advantage_estimator=gae trainer.critic.model.path=Qwen/Qwen3-8B"
            f" trainer.algorithm.use_kl_loss=false"
        ),
        "without an end": ENDLESS,
        "Megatron": f"{TOGETHER} {MEGATRON}",
        "Megatron's adapter": f"{TOGETHER} {MEGATRON} trainer.policy.model.lora.rank=32",
        "an adapter": f"{TOGETHER} trainer.policy.model.lora.rank=32",
        "optimizers on the host": (
            f"{TOGETHER} {MEGATRON} trainer.policy.megatron_config.optimizer_config_kwargs.optimizer_cpu_offload=true"
        ),
        "groups sampled again": (
            f"{TOGETHER} trainer.algorithm.dynamic_sampling.type=filter trainer.algorithm.use_kl_loss=false"
        ),
        "dual clip and entropies": (
            f"{TOGETHER} trainer.algorithm.policy_loss_type=dual_clip trainer.algorithm.use_entropy_loss=true"
        ),
        "cispo": f"{TOGETHER} trainer.algorithm.policy_loss_type=cispo trainer.algorithm.cispo.cispo_anchor=rollout",
        "sums": f"{TOGETHER} trainer.algorithm.loss_reduction=seq_mean_token_sum_norm trainer.algorithm.max_seq_len=5120 "
            "trainer.algorithm.use_kl_loss=false",
        "turns": f"{TOGETHER} {G}.max_turns=4 {G}.max_input_length=8192",
        "a checkpoint of four bits": TOGETHER.replace("Qwen/Qwen3-8B", "casperhansen/Qwen3.6-35B-A3B-INT4-RTN"),
        "the model left out": TOGETHER.replace("trainer.policy.model.path=Qwen/Qwen3-8B", ""),
        "the engine as it was": TOGETHER.replace(f"{E}.num_engines=8", f"{G}.num_inference_engines=8"),
        "sizes left out": f"-m skyrl.train.entrypoints.main_base {P}.colocate_all=false",
    }.items()
}  # fmt: skip


def catalogue():
    """Return SkyRL's keys and their defaults."""
    lines = CATALOGUE.read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {key: ast.literal_eval(default) if default else None for key, default in rows}


KEYS = catalogue()
MAPPED = [key for key in mapped_keys(SHEET) if key in KEYS]
# What only rules ask for, or a part of a note.
ONLY_IN_RULES = {
    "trainer.max_training_steps", "generator.batched", "generator.inference_engine.num_prefill",
    "generator.inference_engine.distributed_executor_backend", "trainer.algorithm.kl_loss_coef",
}  # fmt: skip


@pytest.fixture(scope="module")
def before():
    """Return the job and plan of each base as it is."""
    return imports_of("skyrl", BASES, OPTIONS)


@pytest.mark.parametrize("key", first(4, sorted(MAPPED, reverse=True)))
def test_no_key_is_swallowed(key, before):
    values = [*usual_values(SHEET, key, KEYS[key]), "null"]
    if key not in ONLY_IN_RULES:
        assert fate("skyrl", key, values, BASES, OPTIONS, before) != "swallowed"


def test_every_key_of_every_version_is_known():
    flat = {key: GivenValue(value="word", where="there") for key in KEYS}
    assert keys_of(Settings(SHEET, flat, "file")).unknown == ()


def test_nothing_is_ignored_by_a_pattern():
    names = [name for keys in SHEET.without_influence.values() for name in keys]
    assert [name for name in names if any(sign in name for sign in "*?[")] == []


def test_defaults_are_those_of_its_classes():
    differing = {
        each.keys[0]
        for each in SHEET.every_setting()
        if each.keys
        and each.default is not None
        and KEYS.get(each.keys[0]) not in {None, each.default}
    }
    # A critic's rate is set where its class is made; so is the engine's layout of its sizes.
    assert differing == {"trainer.critic.optimizer_config.lr"}


def test_a_key_that_nobody_knows_is_not_understood():
    found = imported("skyrl", [*BASES["together"], "trainer.nonsense=7"], OPTIONS)
    assert found.keys.unknown == ("trainer.nonsense",)
