"""What slime and miles find broken at run time: each rule broken on purpose, and none by sound command lines."""

import pytest

from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.importing import ImportOptions, settings_of
from rlplan.planner.configs.megatron import rules as shared

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=1000, environment={})
SOUND = (
    "train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate --hf-checkpoint /models/Qwen3-4B "
    "--ref-load /models/ref --num-rollout 10 --rollout-batch-size 32 --n-samples-per-prompt 8 "
    "--rollout-max-response-len 8192 --global-batch-size 256 --use-dynamic-batch-size --max-tokens-per-gpu 9216 "
    "--tensor-model-parallel-size 2 --sequence-parallel --rollout-num-gpus-per-engine 2 --use-kl-loss "
    "--attention-dropout 0.0 --hidden-dropout 0.0 --advantage-estimator grpo"
)
APART = SOUND.replace("--colocate", "--rollout-num-gpus 8")
AHEAD = APART.replace("train.py", "train_async.py")
EXPERTS = SOUND.replace("Qwen3-4B", "Qwen3-30B-A3B")


def without(*flags, of=SOUND):
    """Return a command line without some flags and their values."""
    kept, words = list[str](), of.split()
    leaves = False
    for word in words:
        leaves = word.removeprefix("--") in flags if word.startswith("--") else leaves
        kept += [] if leaves else [word]
    return " ".join(kept)


BREAKS = {
    "async-trains-apart": SOUND.replace("train.py", "train_async.py"),
    "generation-has-gpus": without("colocate"),
    "model-ranks-divide-the-gpus": f"{SOUND} --context-parallel-size 3",
    "expert-ranks-divide-the-gpus": f"{EXPERTS} --expert-model-parallel-size 8",
    "experts-share-sequences": f"{without('sequence-parallel', of=EXPERTS)} --num-experts 128",
    "stages-have-layers-of-their-own": f"{SOUND} --decoder-last-pipeline-num-layers 4",
    "recomputation-says-how": f"{SOUND} --recompute-granularity full --recompute-method uniform",
    "engines-divide-the-gpus": SOUND.replace("per-engine 2", "per-engine 3"),
    "engine-ranks-divide-its-gpus": f"{SOUND} --sglang-ep-size 4",
    "groups-of-requests-share-attention": f"{SOUND} --sglang-dp-size 2",
    "batches-say-the-same": f"{SOUND} --num-steps-per-rollout 2",
    "updates-have-samples": SOUND.replace("--global-batch-size 256", "--global-batch-size 512"),
    "budgets-are-told": without("max-tokens-per-gpu"),
    "more-are-begun-than-learnt-from": f"{SOUND} --over-sampling-batch-size 16",
    "one-penalty-is-on": f"{SOUND} --kl-coef 0.01 --kl-loss-coef 0.01",
    "references-are-loaded": without("ref-load"),
    "weights-without-copies-are-one-model-s": f"{SOUND} --disable-weights-backuper",
    "advantages-are-normalised": SOUND.replace("estimator grpo", "estimator reinforce_plus_plus"),
    "ratios-are-corrected-once": f"{SOUND} --use-rollout-logprobs --use-tis",
    "teachers-are-told": f"{SOUND} --use-opd --opd-type megatron",
    "steps-are-told": f"{SOUND} --eval-interval 20",
    "prompts-leave-a-token": f"{SOUND} --rollout-max-context-len 8192 --rollout-max-prompt-len 8192",
    "rollouts-are-sampled": f"{SOUND} --rollout-temperature 0",
    "flags-are-the-checkpoint-s": f"{SOUND} --num-layers 35",
    "sequences-fit-the-model": SOUND.replace("response-len 8192", "response-len 50000"),
    "dropout-is-off": without("hidden-dropout"),
    "nodes-say-their-gpus": SOUND.replace("--actor-num-nodes 1", "--actor-num-nodes 2").replace("per-node 8", "per-node 4"),
}  # fmt: skip
BREAKS_SLIME = {
    "files-carry-what-they-can": f"{APART} --update-weight-mode delta",
    "released-trainers-are-saved": f"{APART} --release-train",
}
BREAKS_MILES = {
    "other-transports-are-between-pools": f"{SOUND} --update-weight-transfer-mode p2p",
    "endless-rollouts-are-async": f"{APART} --fully-async",
    "adapters-say-where-they-are": f"{SOUND} --lora-rank 16",
    "padded-samples-are-counted": f"{SOUND} --qkv-format bshd",
    "critics-train-with-megatron": AHEAD.replace("estimator grpo", "estimator ppo"),
    "fsdp-has-no-other-ranks": f"{SOUND} --train-backend fsdp --context-parallel-size 2",
}
OWN = {"slime": BREAKS_SLIME, "miles": BREAKS_MILES}


def broken(framework, words):
    """Return what of a framework's rules a command line breaks, by the rules' names."""
    settings = settings_of(framework, words.split(), OPTIONS)
    found = {rule.name: rule.broken(settings) for rule in rules_of(framework)}
    return {name: ways for name, ways in found.items() if ways}


@pytest.mark.parametrize("framework", OWN)
@pytest.mark.parametrize(
    "words", [SOUND, APART, AHEAD, f"{EXPERTS} --expert-model-parallel-size 4"]
)
def test_sound_command_lines_break_no_rule(framework, words):
    assert broken(framework, words) == {}


@pytest.mark.parametrize("framework", OWN)
def test_every_rule_is_broken_by_a_test_of_its_own(framework):
    rules = rules_of(framework)
    assert [rule.name for rule in rules] == [*BREAKS, *OWN[framework]]
    assert [rule.check for rule in rules[: len(BREAKS)]] == [rule.check for rule in shared.RULES]
    assert all(rule.source and rule.check.__doc__ for rule in rules)


@pytest.mark.parametrize("name", BREAKS)
def test_rules_of_both_are_found_broken(name):
    assert name in broken("slime", BREAKS[name])


@pytest.mark.parametrize(
    ("framework", "name"), [(each, name) for each, tests in OWN.items() for name in tests]
)
def test_rules_of_one_are_found_broken(framework, name):
    assert name in broken(framework, OWN[framework][name])


def test_changed_bytes_went_by_other_words_before():
    words = f"{APART} --update-weight-mode delta --update-weight-encoding deltas_zstd"
    assert "files-carry-what-they-can" not in broken("slime", words)
    disk = f"{words} --update-weight-transport disk"
    assert "files-carry-what-they-can" in broken("slime", disk)
    assert "files-carry-what-they-can" not in broken(
        "slime", f"{disk} --update-weight-delta-dir /a"
    )


@pytest.mark.parametrize(
    ("words", "key", "allowed"),
    [
        (f"{SOUND} --num-layers 35", "num-layers", "36"),
        (f"{SOUND} --num-layers 36 --hidden-size 2560 --untie-embeddings-and-output-weights",
         "untie-embeddings-and-output-weights", "none"),
    ],
)  # fmt: skip
def test_flags_that_are_not_the_checkpoint_s_are_named_with_its_own(words, key, allowed):
    (found,) = broken("slime", words)["flags-are-the-checkpoint-s"]
    assert (found.key, found.allowed, found.stops) == (key, allowed, True)


def test_a_name_in_which_a_sheet_s_only_stands_may_be_of_another_model():
    words = f"{SOUND} --hidden-size 2048".replace("Qwen3-4B", "Qwen3-4B-pruned")
    (found,) = broken("slime", words)["flags-are-the-checkpoint-s"]
    assert not found.stops


def test_a_finding_names_key_value_place_and_what_would_do():
    checked = check_config("slime", f"{SOUND} --over-sampling-batch-size 16".split(), OPTIONS)
    (finding,) = checked.findings
    assert not checked.will_run
    assert (finding.key, finding.value, finding.allowed) == (
        "over-sampling-batch-size",
        16,
        "at least 32",
    )
    assert finding.source == "slime/utils/arguments.py: slime_validate_args"
