"""What an update of slime's, and of miles', holds of logits, by version."""

import pytest

from rlplan.planner.answers.completion import complete
from rlplan.profiles.facts import load_facts
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.stages import task_memory
from tests.planner.configs.test_megatron_flags import SHARED, read


@pytest.mark.parametrize(
    ("framework", "version", "more", "way", "width"),
    [
        ("slime", "0.3", "", "softmax", 8),
        ("slime", "0.3", " --entropy-coef 0.001", "softmax-entropy", 12),
        ("slime", "0.2", "", "entropy-kept", 16),
        ("slime", "0.2", " --entropy-coef 0.001", "entropy-kept", 16),
        ("slime", "0.1", " --entropy-coef 0.001", "entropy-kept-scaled", 20),
        ("miles", None, "", "softmax", 8),
        ("miles", None, " --entropy-coef 0.001", "entropy-kept", 16),
        ("slime", "0.3", " --rollout-temperature 0.8", "softmax", 12),
        ("slime", "0.2", " --rollout-temperature 0.8", "entropy-kept", 20),
        ("slime", "0.1", " --rollout-temperature 0.8", "entropy-kept-scaled", 20),
        ("miles", None, " --observe-training-entropy", "entropy-kept", 16),
        (
            "miles",
            None,
            " --observe-training-entropy --rollout-temperature 0.8",
            "entropy-kept",
            20,
        ),
    ],
)
def test_an_update_holds_logits_as_its_version_makes_them(framework, version, more, way, width):
    """Of 9,216 tokens and half of 151,936 entries: one softmax beside the logits, or copies and an entropy's softmax; its gradient too.

    A temperature other than 1 makes logits of their own; an entropy that is only watched is made all the same.
    """
    words = f"{SHARED} --tensor-model-parallel-size 2 --use-dynamic-batch-size --max-tokens-per-gpu 9216"
    words += f" --rollout-max-prompt-len 1024{more}"
    found = read(words, framework, version=version)
    facts = load_facts(found.resolved)
    there = PlacedPlan(complete(found.draft, found.resolved, facts, "there"), facts)
    update = there.tasks["actor.update"]
    assert update.logit_way == way
    entries = 9216 * 151_936 // 2
    assert update.logit_tensors.logits_bytes(9216, 151_936 // 2, trains=True) == width * entries
    assert task_memory(update).transient["logits"] == pytest.approx(width * entries, rel=0.01)


def test_a_session_is_limited_over_all_of_its_turns_and_a_turn_by_what_it_may_write():
    words = (
        f"{SHARED} --tensor-model-parallel-size 2 --rollout-max-prompt-len 1024 --max-seq-len 20000"
    )
    alone = read(words, "miles").resolved.workload
    assert (alone.response_tokens.max, alone.max_total_tokens) == (8192, None)
    played = read(f"{words} --custom-generate-function-path mine.generate", "miles")
    work = played.resolved.workload
    assert (work.response_tokens.max, work.max_total_tokens) == (
        20000 - 256,
        20000,
    )  # beside a prompt of 256
    assert played.settings.left_out["rollout-max-response-len"].endswith("limited by max-seq-len")
