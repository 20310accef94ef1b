"""Rules that open-instruct finds broken at run time: each broken on purpose, and none by sound configurations."""

import pytest

from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.importing import settings_of
from tests.planner.configs.test_keys_of_open_instruct import BASES, OPTIONS

LEARNERS = "learners"
BREAKS = {
    "packs-hold-a-sequence": (LEARNERS, "--pack_length 4096"),
    "groups-differ-where-equal-ones-are-dropped": (
        LEARNERS,
        "--num_samples_per_prompt_rollout 1",
    ),
    "batches-are-prepared-ahead": ("groups again", "--async_steps 1"),
    "some-reward-is-applied": (LEARNERS, "--apply_verifiable_reward false"),
    "penalties-have-a-reference": (LEARNERS, "--load_ref_policy false"),
    "samplers-are-corrected-once": (LEARNERS, "--use_vllm_logprobs true"),
    "sequences-are-cut-under-full-sharding": (
        LEARNERS,
        "--deepspeed_stage 2 --sequence_parallel_size 2",
    ),
    "learners-are-whole-groups": (LEARNERS, "--sequence_parallel_size 3"),
    "shards-and-copies-fill-the-learners": ("OLMo-core", "--fsdp_shard_degree 3"),
    "denominators-are-above-zero": (LEARNERS, "--loss_denominator 0"),
}


def broken(base, more=""):
    settings = settings_of("open-instruct", [*BASES[base], *more.split()], OPTIONS)
    rules = rules_of("open-instruct")
    return {rule.name: rule.broken(settings) for rule in rules if rule.broken(settings)}


@pytest.mark.parametrize("base", list(BASES))
def test_sound_configurations_break_no_rule(base):
    assert broken(base) == {}


@pytest.mark.parametrize("name", BREAKS)
def test_rules_are_found_broken(name):
    found = broken(*BREAKS[name])
    assert name in found
    assert all(each.problem and each.allowed for each in found[name])


def test_every_rule_is_broken_once():
    assert {rule.name for rule in rules_of("open-instruct")} == set(BREAKS)


def test_shards_and_copies_are_as_many_as_learners_together():
    found = broken("OLMo-core", "--fsdp_shard_degree 4 --fsdp_num_replicas 4")
    assert set(found) == {"shards-and-copies-fill-the-learners"}


@pytest.mark.parametrize(("cap", "refused"), [("0.0", False), ("2.0", True)])
def test_an_earlier_versions_cap_says_whether_samplers_are_corrected(cap, refused):
    more = f"--use_vllm_logprobs true --truncated_importance_sampling_ratio_cap {cap}"
    found = broken(LEARNERS, more)
    assert set(found) == ({"samplers-are-corrected-once"} if refused else set())
    if refused:
        said = found["samplers-are-corrected-once"][0].problem
        assert "truncated_importance_sampling_ratio_cap" in said
