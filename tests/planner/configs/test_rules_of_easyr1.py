"""Rules that EasyR1 finds broken at run time: each broken on purpose, and none by sound configurations."""

import pytest

from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.importing import ImportOptions, settings_of
from tests.house.tree import ROOT

PUBLISHED = ROOT.parent / "shared" / "data" / "configs-new" / "easyr1"
OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={"HOME": "~"})
A, C, R = "worker.actor", "worker.critic", "worker.rollout"
EASYR1 = (
    "-m verl.trainer.main algorithm.adv_estimator=grpo algorithm.use_kl_loss=true trainer.n_gpus_per_node=8 "
    f"trainer.nnodes=2 {A}.model.model_path=Qwen/Qwen3-8B {R}.n=8 {R}.tensor_parallel_size=2 data.rollout_batch_size=256 "
    f"{A}.global_batch_size=64 data.max_prompt_length=1024 data.max_response_length=4096 "
    f"{A}.micro_batch_size_per_device_for_update=2 {A}.micro_batch_size_per_device_for_experience=4"
).split()
CRITIC = (
    "algorithm.adv_estimator=gae", f"{C}.model.model_path=Qwen/Qwen3-8B", f"{C}.global_batch_size=64",
)  # fmt: skip
COUNTED = (f"{A}.dynamic_batching=false",)
BREAKS = {
    "updates-divide-the-step": (f"{A}.global_batch_size=100",),
    "passes-divide-the-step": (f"{A}.micro_batch_size_per_device_for_experience=3",),
    "groups-have-samples": (f"{R}.n=1",),
    "updates-reach-every-rank": (f"{A}.micro_batch_size_per_device_for_update=3",),
    "updates-divide-over-ranks": (f"{A}.global_batch_size=7", "data.rollout_batch_size=112"),
    "batches-divide-over-the-gpus": ("data.rollout_batch_size=264", f"{A}.global_batch_size=66"),
    "passes-divide-over-ranks": (
        *COUNTED, f"{A}.micro_batch_size_per_device_for_experience=128", "trainer.nnodes=4",
    ),
    "host-states-want-one-micro-batch": (f"{A}.fsdp.enable_cpu_offload=true",),
    "replicas-divide-the-gpus": (f"{R}.tensor_parallel_size=3",),
    "ranks-divide-the-gpus": (f"{A}.fsdp.fsdp_size=6",),
    "sequence-ranks-divide-the-heads": (f"{A}.ulysses_size=16",),
    "sequence-ranks-want-packing": (f"{A}.ulysses_size=2", f"{A}.padding_free=false"),
    "sequence-ranks-want-text": (
        f"{A}.ulysses_size=2", f"{A}.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct",
    ),
    "packed-models-are-patched": (f"{A}.model.model_path=microsoft/phi-4",),
    "engine-steps-hold-the-longest": ("data.max_response_length=8192",),
    "sequences-fit-the-engine": (f"{R}.max_model_len=1024",),
    "sequences-fit-the-model": ("data.max_response_length=64000", f"{R}.max_num_batched_tokens=70000"),
    "critics-have-a-model": ("algorithm.adv_estimator=gae",),
    "actors-have-a-model": (f"{A}.model.model_path=null",),
    "optimizers-are-known": (f"{A}.optim.strategy=sgd",),
    "penalties-are-known": ("algorithm.kl_penalty=full",),
    "losses-are-averaged": (f"{A}.loss_avg_mode=token-mean",),
    "loggers-are-known": ("trainer.logger=[console,comet]",),
    "adapters-have-a-rank-of-the-engine": (f"{A}.model.lora.rank=48",),
    "engines-are-vllm": ("worker.hybrid_engine=false",),
    "checkpoints-are-of-a-step": ("trainer.load_checkpoint_path=out/last",),
    "keys-are-known": (f"{A}.ulyses_size=2",),
}  # fmt: skip
# What EasyR1 takes and does otherwise than asked, or what it may take in somebody's copy.
MERELY_SAID = {"sequence-ranks-want-packing", "sequence-ranks-want-text", "keys-are-known"}


def broken(words):
    settings = settings_of("easyr1", words, OPTIONS)
    return {
        rule.name: rule.broken(settings) for rule in rules_of("easyr1") if rule.broken(settings)
    }


@pytest.mark.parametrize(
    "more",
    [(), CRITIC, COUNTED, ("algorithm.disable_kl=true",), (f"{A}.ulysses_size=4",),
     (f"{A}.model.lora.rank=64",), ("data.mini_rollout_batch_size=128",), (f"{A}.fsdp.fsdp_size=8",),
     ("trainer.load_checkpoint_path=out/global_step_20",), ("trainer.logger=['console','swanlab']",)],
)  # fmt: skip
def test_sound_configurations_break_no_rule(more):
    assert broken([*EASYR1, *more]) == {}


@pytest.mark.parametrize("name", BREAKS)
def test_rules_are_found_broken(name):
    found = broken([*EASYR1, *BREAKS[name]])
    assert name in found
    assert any(each.stops for each in found[name]) == (name not in MERELY_SAID)


def test_every_rule_is_broken_by_a_test_of_its_own():
    rules = rules_of("easyr1")
    assert {rule.name for rule in rules} == set(BREAKS)
    assert all(rule.source and rule.check.__doc__ for rule in rules)


def test_a_critic_has_rules_of_its_own():
    found = broken([*EASYR1, *CRITIC, f"{C}.global_batch_size=100"])
    (each,) = found["updates-divide-the-step"]
    assert each.key == f"{C}.global_batch_size"


def test_a_finding_names_key_value_place_and_what_would_do():
    checked = check_config("easyr1", [*EASYR1, f"{R}.tensor_parallel_size=3"], OPTIONS)
    (finding,) = checked.findings
    assert not checked.will_run
    assert (finding.key, finding.value) == (f"{R}.tensor_parallel_size", 3)
    assert (finding.where, finding.allowed) == ("the command line", "divisors of 16")


def test_a_misspelt_key_is_answered_with_the_nearest():
    (each,) = broken([*EASYR1, "worker.rollout.tensor_paralel_size=2"])["keys-are-known"]
    assert each.allowed == f"{R}.tensor_parallel_size"
    assert "keys-are-known" not in broken([*EASYR1, "data.curriculum_of_our_own=hard"])


def test_a_key_of_an_earlier_version_is_said_where_another_version_is_meant():
    later = (
        *EASYR1,
        f"{A}.model.lora.rank=32",
        f"{A}.dynamic_batching=true",
        "trainer.find_last_checkpoint=true",
    )
    (each,) = broken([*later, "trainer.total_episodes=3"])["keys-are-known"]
    assert each.key == "trainer.total_episodes"
    assert each.problem == "is a key of versions up to 0.3, and 0.3.3 stops at it"


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="EasyR1's examples are not here")
def test_published_configurations_break_no_rule():
    files = [path for path in PUBLISHED.iterdir() if path.suffix in {".sh", ".yaml"}]
    assert {path.name: broken([str(path)]) for path in files} == {path.name: {} for path in files}
