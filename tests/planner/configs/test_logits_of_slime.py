"""What an update of slime's, and of miles', holds of logits, by version."""

import pytest

from rlplan.planner.answers.completion import complete
from rlplan.profiles.facts import load_facts
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.stages import task_memory
from tests.planner.configs.test_megatron_flags import SHARED, read


@pytest.mark.parametrize(
    ("framework", "version", "way", "width"),
    [
        ("slime", "0.3", "softmax", 8),
        ("slime", "0.2", "entropy-kept", 16),
        ("slime", "0.1", "entropy-kept-scaled", 20),
        ("miles", None, "softmax", 8),
    ],
)
def test_an_update_holds_logits_as_its_version_makes_them(framework, version, way, width):
    """Of 9,216 tokens and half of 151,936 entries: one softmax beside the logits, or copies and an entropy's softmax."""
    words = f"{SHARED} --tensor-model-parallel-size 2 --use-dynamic-batch-size --max-tokens-per-gpu 9216"
    words += " --rollout-max-prompt-len 1024"
    found = read(words, framework, version=version)
    facts = load_facts(found.resolved)
    there = PlacedPlan(complete(found.draft, found.resolved, facts, "there"), facts)
    update = there.tasks["actor.update"]
    assert update.logit_way == way
    entries = 9216 * 151_936 // 2
    assert update.logit_tensors.logits_bytes(9216, 151_936 // 2, trains=True) == width * entries
    assert task_memory(update).transient["logits"] == pytest.approx(width * entries, rel=0.01)
