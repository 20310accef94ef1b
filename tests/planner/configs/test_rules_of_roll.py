"""Rules that ROLL finds broken at run time: each broken on purpose, and none by sound configurations."""

import pytest

from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.importing import settings_of
from tests.planner.configs.test_keys_of_roll import BASES, CONFIG, OPTIONS, G, T

TOGETHER, EPISODES = "together", "episodes"
BREAKS = {
    "sequences-have-a-length": (TOGETHER, "response_length=null"),
    "sizes-divide-the-gpus": (TOGETHER, f"{T}.{CONFIG}.tensor_model_parallel_size=3"),
    "engines-divide-their-devices": (TOGETHER, f"{G}.{CONFIG}.tensor_parallel_size=3"),
    "prompts-reach-every-copy": (TOGETHER, "rollout_batch_size=63"),
    "updates-divide-the-step": (TOGETHER, f"{T}.training_args.gradient_accumulation_steps=7"),
    "runs-ahead-are-whole-batches": (EPISODES, "async_generation_ratio=1"),
    "episodes-fill-their-groups": (EPISODES, "rollout_batch_size=60"),
    "evaluated-episodes-fill-their-environments": (EPISODES, "val_batch_size=60"),
    "environments-are-shared-out": (EPISODES, "train_env_manager.num_env_groups=9"),
    "only-megatron-packs": ("FSDP", f"{T}.use_sequence_packing=true"),
    "batches-by-tokens-have-a-budget": (TOGETHER, f"{T}.use_dynamic_batching_in_train=true"),
    "engines-take-adapters-that-are-trained": (TOGETHER, f"{T}.model_args.lora_target=all-linear"),
    "teachers-take-the-references-place": (TOGETHER, "use_opd=true"),
    "tensor-ranks-divide-the-heads": ("FSDP", f"{T}.model_args.ulysses_size=64"),
    "engines-take-whole-sequences": (TOGETHER, f"{G}.{CONFIG}.max_model_len=4096"),
}


def broken(base, more=""):
    settings = settings_of("roll", [*BASES[base], *more.split()], OPTIONS)
    rules = rules_of("roll")
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
    assert {rule.name for rule in rules_of("roll")} == set(BREAKS)
