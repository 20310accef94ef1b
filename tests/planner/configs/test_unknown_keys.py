"""Keys that no sheet knows: slips are answered with the key that is meant, others tell a copy."""

import pytest

from rlplan.planner.configs.broken import keys_of_a_copy, nearest_key
from rlplan.planner.configs.importing import ImportOptions, settings_of
from rlplan.planner.configs.reading.given import flags_of
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.planner.configs.shell.text import Gap, Text
from tests.planner.configs.test_importing import VERL
from tests.planner.configs.test_rules_of_easyr1 import EASYR1

KNOWN = set(load_config_sheet("easyr1").every_key())
OPTIONS = ImportOptions(gpu="h100-80gb-sxm", environment={})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("worker.actor.ulyses_size", "worker.actor.ulysses_size"),
        ("worker.rollout.tensor_paralel_size", "worker.rollout.tensor_parallel_size"),
        ("worker.actr.global_batch_size", "worker.actor.global_batch_size"),
        ("rollout.gpu_memory_utilization", "worker.rollout.gpu_memory_utilization"),
        ("data.max_input_length", None),
        ("worker.val_reward.reward_type", None),
        ("env.max_steps", None),
        ("worker.actor.model.freeze_text_encoder", None),
        ("actor_rollout_ref.rollout.n", None),
    ],
)
def test_a_slip_is_told_from_a_key_of_another_kind(given, meant):
    assert nearest_key(given, KNOWN) == meant


def test_no_key_is_a_slip_of_another_that_is_known():
    assert all(nearest_key(key, KNOWN) == key for key in sorted(KNOWN)[::9])


def test_only_a_framework_that_stops_at_unknown_keys_has_copies_that_these_tell():
    own = "data.curriculum_of_our_own=hard"
    words = [*EASYR1, own, "worker.actor.ulyses_size=2"]
    assert keys_of_a_copy(settings_of("easyr1", words, OPTIONS)) == ("data.curriculum_of_our_own",)
    assert keys_of_a_copy(settings_of("verl", [*VERL, f"+{own}"], OPTIONS)) == ()


def test_a_variable_that_is_a_word_of_its_own_behind_a_value_takes_no_flag_with_it():
    gap = Gap(line=3, source="$MORE", reason="MORE is not set")
    more = Text("$MORE", 3, (gap,))
    words = [Text("--model"), Text("m"), more, Text("--num_generations"), Text("4")]
    flat = flags_of(words, "run.sh")
    assert (flat["model"].value, flat["model"].gaps, flat["num_generations"].value) == ("m", (), 4)
    assert flat["$MORE"].gaps == (gap,)
    assert flags_of([Text("--model"), more], "run.sh")["model"].gaps == (gap,)
