"""Rules that SkyRL finds broken at run time: each broken on purpose, and none by sound configurations."""

from dataclasses import replace

import pytest

from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.importing import ImportOptions, settings_of
from tests.planner.configs.test_keys_of_skyrl import BASES, OPTIONS

T, E, M = "trainer", "generator.inference_engine", "trainer.policy.megatron_config"
TOGETHER, APART, ENDLESS, MEGATRON = "together", "apart", "without an end", "Megatron"
BREAKS = {
    "updates-divide-the-step": (TOGETHER, f"{T}.policy_mini_batch_size=100"),
    "ranks-divide-the-gpus": (MEGATRON, f"{M}.tensor_model_parallel_size=3"),
    "expert-ranks-divide-the-gpus": (MEGATRON, f"{M}.expert_model_parallel_size=16"),
    "updates-reach-every-rank": (TOGETHER, f"{T}.micro_train_batch_size_per_gpu=7"),
    "updates-are-shared-out-evenly": (
        TOGETHER, f"{T}.policy_mini_batch_size=4", "generator.n_samples_per_prompt=5", f"{T}.micro_train_batch_size_per_gpu=1",
    ),
    "steps-reach-every-rank": (
        TOGETHER, f"{T}.train_batch_size=1", f"{T}.policy_mini_batch_size=1", "generator.n_samples_per_prompt=4",
    ),
    "engines-fill-the-policys-gpus": (TOGETHER, f"{E}.num_engines=4"),
    "shared-gpus-are-as-many": (TOGETHER, f"{T}.placement.ref_num_gpus_per_node=4"),
    "advantages-have-a-critic": (TOGETHER, f"{T}.algorithm.advantage_estimator=gae"),
    "penalties-go-to-one-place": (TOGETHER, f"{T}.algorithm.use_kl_in_reward=true"),
    "engines-spread-experts-over-all-ranks": (TOGETHER, f"{E}.expert_parallel_size=2"),
    "some-engines-write": (APART, f"{E}.enable_pd=true", f"{E}.num_prefill=4"),
    "megatron-trains-no-critic": (MEGATRON, f"{T}.critic.model.path=Qwen/Qwen3-8B"),
    "megatron-has-no-ulysses": (MEGATRON, f"{T}.policy.sequence_parallel_size=2"),
    "context-ranks-want-packing": (
        MEGATRON, f"{M}.context_parallel_size=2", f"{T}.remove_microbatch_padding=false",
    ),
    "sequence-ranks-divide-the-heads": (
        TOGETHER, f"{T}.policy.model.path=Qwen/Qwen2.5-1.5B-Instruct", f"{T}.policy.sequence_parallel_size=8",
    ),
    "single-turns-read-their-prompt": (TOGETHER, "generator.max_input_length=2048"),
    "sums-have-a-norm": (TOGETHER, f"{T}.algorithm.loss_reduction=seq_mean_token_sum_norm"),
    "steps-have-one-advantage": (
        TOGETHER, "generator.step_wise_trajectories=true", f"{T}.algorithm.advantage_estimator=reinforce++",
    ),
    "corrections-are-of-known-losses": (
        TOGETHER, f"{T}.algorithm.policy_loss_type=kl_cov",
        f"{T}.algorithm.off_policy_correction.tis_ratio_type=token",
    ),
    "few-prompts-are-under-way": (ENDLESS, f"{T}.fully_async.num_parallel_generation_workers=1000"),
    "endless-runs-are-apart": (ENDLESS, f"{T}.train_batch_size=128"),
    "endless-runs-learn-from-sampled-log-probs": (ENDLESS, f"{T}.algorithm.policy_loss_type=regular"),
    "adapters-go-by-nccl": (APART, f"{T}.policy.model.lora.rank=8", f"{E}.weight_sync_backend=delta"),
    "chunks-are-tokens": (TOGETHER, f"{T}.fused_lm_head_logprob=true"),
    "keys-are-known": (TOGETHER, f"{T}.placement.policy_num_gpu_per_node=8"),
}  # fmt: skip
# The version of which a rule is, where that is not the newest.
VERSIONS = {"updates-are-shared-out-evenly": "0.1"}
SIZED = (f"{T}.fully_async.num_parallel_generation_workers=320",)


def broken(base, *more, version=None):
    words = [*BASES[base], *(SIZED if base == ENDLESS else ()), *more]
    settings = settings_of("skyrl", words, replace(OPTIONS, version=version))
    return {rule.name: rule.broken(settings) for rule in rules_of("skyrl") if rule.broken(settings)}


@pytest.mark.parametrize(
    "base", [TOGETHER, "a critic", APART, ENDLESS, MEGATRON, "an adapter", "turns"]
)
def test_sound_configurations_break_no_rule(base):
    assert broken(base) == {}


@pytest.mark.parametrize("name", BREAKS)
def test_rules_are_found_broken(name):
    found = broken(*BREAKS[name], version=VERSIONS.get(name))
    assert name in found
    assert all(each.problem and each.allowed for each in found[name])


def test_every_rule_is_broken_once():
    assert {rule.name for rule in rules_of("skyrl")} == set(BREAKS)


def test_rules_of_later_versions_are_not_asked_of_earlier_ones():
    words = [*BASES[ENDLESS], *SIZED, f"{T}.algorithm.policy_loss_type=regular"]
    earlier = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={}, version="0.2")
    settings = settings_of("skyrl", words, earlier)
    (rule,) = (each for each in rules_of("skyrl") if each.name.startswith("endless-runs-learn"))
    assert rule.broken(settings) == ()
