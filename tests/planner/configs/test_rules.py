"""Rules that frameworks find broken at run time: each broken on purpose, and none by sound configurations."""

from dataclasses import replace

import pytest

from rlplan.errors import FileError, UserError
from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.importing import ImportOptions, settings_of
from tests.cases import draws
from tests.house.tree import ROOT
from tests.planner.configs.test_importing import NEMO, OPENRLHF, VERL

PUBLISHED = ROOT.parent / "shared" / "data" / "configs"
OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={"HOME": "~"})
A, R, T = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "trainer.v1"
MEGATRON = "model_engine=megatron"
FIXED = (
    f"{A}.use_dynamic_bsz=False", f"{A}.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4", f"{R}.log_prob_micro_batch_size_per_gpu=4",
)  # fmt: skip
REWARD = ("reward.reward_model.enable=True", "reward.reward_model.model_path=Qwen/Qwen3-8B")
SEPARATE = (
    f"{T}.trainer_mode=separate_async", f"{R}.nnodes=1", f"{R}.checkpoint_engine.backend=nccl",
    f"{T}.separate_async.parameter_sync_step=4",
)  # fmt: skip
ASYNC_START = ("-m", "verl.experimental.fully_async_policy.fully_async_main")
ASYNC = (
    *VERL[2:], "rollout.nnodes=1", "rollout.n_gpus_per_node=8", "actor_rollout_ref.hybrid_engine=False",
    "data.train_batch_size=0", "data.gen_batch_size=1",
)  # fmt: skip
D = "distillation"
TAUGHT = (
    f"{D}.enabled=True", f"{D}.nnodes=1", f"{D}.n_gpus_per_node=8", f"{D}.teacher_models.teacher_model.model_path=Qwen/Qwen3-32B",
)  # fmt: skip
NAMED = [
    f"+{D}.teacher_models.{name}.{key}"
    for name in ("one", "two")
    for key in ("model_path=Qwen/Qwen3-8B", "num_replicas=1")
]
SERVED, LOSS = f"{D}.teacher_models.teacher_model.inference", f"{D}.distillation_loss"

BREAKS_VERL = {
    "replicas-divide-the-gpus": (f"{R}.tensor_model_parallel_size=3",),
    "replicas-fill-nodes": ("trainer.n_gpus_per_node=6", f"{R}.tensor_model_parallel_size=8"),
    "tensor-ranks-stay-in-a-node": (f"{R}.tensor_model_parallel_size=3", f"{R}.data_parallel_size=2"),
    "expert-ranks-are-all-of-a-replica": (f"{R}.expert_parallel_size=4",),
    "only-tensorrt-pipelines": (f"{R}.pipeline_model_parallel_size=2",),
    "model-ranks-divide-the-gpus": (MEGATRON, f"{A}.megatron.tensor_model_parallel_size=5"),
    "expert-ranks-divide-the-gpus": (MEGATRON, f"{A}.megatron.expert_model_parallel_size=3"),
    "mini-batches-divide": (f"{A}.ppo_mini_batch_size=7", f"{R}.n=1"),
    "micro-batches-divide": (*FIXED, f"{A}.ppo_micro_batch_size_per_gpu=3"),
    "micro-batches-are-given": (f"{A}.use_dynamic_bsz=False",),
    "micro-batches-are-given-once": (*FIXED, f"{A}.ppo_micro_batch_size=64"),
    "batches-hold-a-mini-batch": (f"{A}.ppo_mini_batch_size=512",),
    "batches-balance": ("data.train_batch_size=255", f"{R}.n=3"),
    "budgets-hold-the-longest": (f"{A}.ppo_max_token_len_per_gpu=4096",),
    "log-prob-budgets-hold-the-longest": (f"{R}.log_prob_max_token_len_per_gpu=4096",),
    "actor-and-log-probs-batch-alike": (f"{R}.log_prob_use_dynamic_bsz=False",),
    "sequences-fit-the-engine": (f"{R}.max_model_len=4096",),
    "sequences-fit-the-model": ("data.max_response_length=64000", f"{A}.ppo_max_token_len_per_gpu=70000"),
    "sequence-ranks-divide-the-heads": (f"{A}.ulysses_sequence_parallel_size=16", "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B"),
    "sequence-ranks-want-packing": (f"{A}.ulysses_sequence_parallel_size=2", "actor_rollout_ref.model.use_remove_padding=False"),
    "shards-divide-the-gpus": (f"{A}.fsdp_config.fsdp_size=6",),
    "models-come-by-the-bridge": (MEGATRON, f"{A}.megatron.use_mbridge=False"),
    "interleaved-stages-take-whole-rounds": (
        MEGATRON, *FIXED, f"{A}.megatron.pipeline_model_parallel_size=4", f"{A}.ppo_micro_batch_size_per_gpu=64",
        f"{A}.megatron.virtual_pipeline_model_parallel_size=2",
    ),
    "separate-batches-are-sync-steps": (*SEPARATE, "data.train_batch_size=128"),
    "separate-rollout-has-nodes": (*SEPARATE, f"{R}.nnodes=0"),
    "separate-weights-need-a-transport": (*SEPARATE, f"{R}.checkpoint_engine.backend=naive"),
    "async-reward-models-have-a-pool": (*SEPARATE, *REWARD),
    "reward-pools-have-gpus": (*REWARD, "reward.reward_model.enable_resource_pool=True"),
    "reward-models-have-a-path": ("reward.reward_model.enable=True",),
    "adapters-have-a-rank-of-the-engine": ("actor_rollout_ref.model.lora_rank=1024",),
    "layers-are-summoned-beside-weights": ("actor_rollout_ref.model.lora_rank=32", f"{R}.layered_summon=True"),
    "losses-are-aggregated": (f"{A}.loss_agg_mode=token-sum",),
    "generation-is-asynchronous": (f"{R}.mode=sync", "trainer.use_v1=True"),
    "validation-samples-with-a-temperature": (f"{R}.val_kwargs.do_sample=True", f"{R}.val_kwargs.temperature=0"),
    "dynamic-context-needs-a-length": (MEGATRON, f"{A}.megatron.dynamic_context_parallel=True"),
    "disaggregation-has-an-engine": (f"{R}.name=trtllm", f"{R}.disaggregation.enabled=True"),
    "teachers-have-gpus": (*TAUGHT, f"{SERVED}.tensor_model_parallel_size=3"),
    "teachers-have-a-path": TAUGHT[:3],
    "teachers-fill-their-pool": (*TAUGHT[:3], *NAMED, f"+{D}.teacher_models.two.num_replicas=5"),
    "teachers-read-whole-responses": (*TAUGHT, f"{SERVED}.max_model_len=5120"),
    "likeliest-tokens-come-of-the-engine": (*TAUGHT, f"{LOSS}.loss_mode=forward_kl_topk", f"{SERVED}.name=trtllm"),
    "divergences-have-a-gradient": (*TAUGHT, f"{LOSS}.loss_mode=k1"),
    "teachers-have-the-plain-policy-loss": (*TAUGHT, f"{LOSS}.policy_loss_mode=gspo"),
}  # fmt: skip
BREAKS_ASYNC = {
    "async-keeps-no-hybrid-engine": "actor_rollout_ref.hybrid_engine=True",
    "async-takes-prompts-one-by-one": "data.train_batch_size=64",
    "async-counts-are-sound": "async_training.trigger_parameter_sync_step=0",
    "async-keeps-log-probs": f"{R}.calculate_log_probs=False",
}
M = ("policy.megatron_cfg.enabled=true", "policy.dtensor_cfg.enabled=false")
APART = (
    "policy.generation.colocated.enabled=false",
    "policy.generation.colocated.resources.gpus_per_node=4",
)
RUNS_ON = (
    "grpo.async_grpo.enabled=true", "policy.generation.vllm_cfg.async_engine=true", *APART,
    "loss_fn.use_importance_sampling_correction=true",
)  # fmt: skip
DISTILS = ("+distillation.num_prompts_per_step=32", "+teacher.model_name=Qwen/Qwen3-4B")
BREAKS_NEMO = {
    "teachers-pack-without-sequence-parallelism": (
        *DISTILS, "+teacher.sequence_packing.enabled=true", "+teacher.dtensor_cfg.sequence_parallel=true",
    ),
    "students-have-their-teachers-vocabulary": (*DISTILS, "teacher.model_name=meta-llama/Llama-3.1-8B"),
    "model-ranks-divide-the-gpus": ("policy.dtensor_cfg.tensor_parallel_size=3",),
    "expert-ranks-divide-the-gpus": (*M, "policy.megatron_cfg.expert_model_parallel_size=3"),
    "replicas-divide-the-gpus": ("policy.generation.vllm_cfg.tensor_parallel_size=3",),
    "expert-ranks-are-tensor-groups": (
        "policy.generation.vllm_cfg.tensor_parallel_size=4", "policy.generation.vllm_cfg.expert_parallel_size=2",
    ),
    "updates-divide-the-step": ("policy.train_global_batch_size=300",),
    "updates-divide-over-ranks": ("policy.train_global_batch_size=2",),
    "micro-batches-divide": ("policy.sequence_packing.enabled=false", "policy.train_micro_batch_size=3"),
    "one-update-keeps-the-policy": ("loss_fn.force_on_policy_ratio=true",),
    "generation-leaves-gpus-to-training": (*APART, "policy.generation.colocated.resources.gpus_per_node=8"),
    "async-generates-apart": (*RUNS_ON, "policy.generation.colocated.enabled=true"),
    "async-corrects-its-ratios": (*RUNS_ON, "loss_fn.use_importance_sampling_correction=false"),
    "async-engines-are-async": (*RUNS_ON, "policy.generation.vllm_cfg.async_engine=false"),
    "one-trainer-is-on": ("policy.megatron_cfg.enabled=true",),
    "optimizers-on-the-host-are-there-whole": (*M, "policy.megatron_cfg.optimizer.optimizer_cpu_offload=true"),
    "batches-are-made-in-one-way": ("policy.dynamic_batching.enabled=true",),
    "budgets-hold-the-longest": ("policy.sequence_packing.train_mb_tokens=512",),
    "groups-have-samples": ("grpo.use_dynamic_sampling=true", "grpo.num_generations_per_prompt=1"),
    "larger-rounds-are-filtered": ("grpo.batch_multiplier=2",),
    "filters-wait-for-generation": (*RUNS_ON, "grpo.use_dynamic_sampling=true"),
    "losses-go-together": ("loss_fn.use_cispo=true", "loss_fn.ratio_clip_c=3"),
    "sequences-fit-the-model": ("policy.max_total_sequence_length=1000000",),
}  # fmt: skip
# Published files that their framework refuses: an inherited batch_multiplier of 1.5, and groups are not filtered.
REFUSED_BY_THEIR_OWN = {"prorlv2_1_moe.v2.yaml": {"larger-rounds-are-filtered"}}
BREAKS_OPENRLHF = {
    "actor-and-reference-are-equal": "--train.colocate_actor_ref",
    "critic-and-reward-are-equal": "--train.colocate_critic_reward --reward.model_name_or_path x",
    "engines-fill-the-shared-gpus": "--train.colocate_all",
    "groups-have-samples": "--algo.advantage.estimator rloo",
    "filters-have-samples-and-rewards": "--algo.dynamic_filtering_enable",
    "async-engines-stay-awake": "--train.async_enable --vllm.enable_sleep --train.colocate_all",
    "partial-rollout-is-async": "--train.partial_rollout_enable",
    "more-prompts-are-begun-async": "--rollout.vllm_generate_batch_size 512",
    "every-actor-has-a-micro-batch": "--rollout.micro_batch_size 128",
    "model-ranks-divide-the-gpus": "--ds.ring_attn_size 3",
    "updates-have-enough-samples": "--train.batch_size 130",
    "packing-has-engines": "--vllm.num_engines 0",
    "sequences-fit-the-model": "--data.max_len 200000",
}


def broken(framework, words):
    settings = settings_of(framework, words, OPTIONS)
    return {
        rule.name: rule.broken(settings) for rule in rules_of(framework) if rule.broken(settings)
    }


@pytest.fixture
def nemo(tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text(NEMO)
    return str(path)


def test_sound_configurations_break_no_rule(nemo):
    assert not broken("verl", VERL)
    assert not broken("verl", [*VERL, *FIXED])
    assert not broken("verl", [*VERL, *SEPARATE])
    assert not broken("verl", [*VERL, f"{A}.fsdp_config.fsdp_size=64"])
    assert not broken("verl", [*ASYNC_START, *ASYNC])
    assert not broken("nemo-rl", [nemo])
    assert not broken("nemo-rl", [nemo, *RUNS_ON])
    assert not broken("openrlhf", OPENRLHF)


def test_every_rule_is_broken_by_a_test_of_its_own():
    for framework, tests in (
        ("verl", {*BREAKS_VERL, *BREAKS_ASYNC}), ("nemo-rl", BREAKS_NEMO), ("openrlhf", BREAKS_OPENRLHF),
    ):  # fmt: skip
        rules = rules_of(framework)
        assert {rule.name for rule in rules} == set(tests)
        assert all(rule.source and rule.check.__doc__ for rule in rules)
    assert set(frameworks_with("rules")) >= {"verl", "nemo-rl", "openrlhf"}


@pytest.mark.parametrize("name", BREAKS_VERL)
def test_verl_rules_are_found_broken(name):
    assert name in broken("verl", [*VERL, *BREAKS_VERL[name]])


@pytest.mark.parametrize("name", BREAKS_ASYNC)
def test_verl_rules_of_asynchronous_training_are_found_broken(name):
    assert name in broken("verl", [*ASYNC_START, *ASYNC, BREAKS_ASYNC[name]])


@pytest.mark.parametrize(("version", "trains"), [("0.3", False), ("0.2", True)])
def test_a_policy_that_switches_both_trainers_off_trained_by_fsdp1_in_nemo_rl_0_2(
    nemo, version, trains
):
    options = replace(OPTIONS, version=version)
    settings = settings_of("nemo-rl", [nemo, "policy.dtensor_cfg.enabled=false"], options)
    found = {rule.name for rule in rules_of("nemo-rl") if rule.broken(settings)}
    assert ("one-trainer-is-on" not in found) is trains


@pytest.mark.parametrize("name", BREAKS_NEMO)
def test_nemo_rl_rules_are_found_broken(name, nemo):
    assert name in broken("nemo-rl", [nemo, *BREAKS_NEMO[name]])


@pytest.mark.parametrize("name", BREAKS_OPENRLHF)
def test_openrlhf_rules_are_found_broken(name):
    assert name in broken("openrlhf", [*OPENRLHF, *BREAKS_OPENRLHF[name].split()])


def test_trainers_of_their_own_that_take_from_a_queue_need_no_batch_of_prompts():
    words = [*ASYNC, "async_training.staleness_threshold=0.5", f"{A}.ppo_mini_batch_size=2047"]
    options = replace(OPTIONS, taken_as="my.train")
    settings = settings_of("verl", ["-m", "my.train", *words], options)
    broken = {rule.name for rule in rules_of("verl") for _ in rule.broken(settings)}
    assert not broken & {"batches-hold-a-mini-batch", "mini-batches-divide"}


def test_a_finding_names_key_value_place_and_what_would_do():
    checked = check_config("verl", [*VERL, f"{R}.tensor_model_parallel_size=3"], OPTIONS)
    (finding,) = checked.findings
    assert not checked.will_run
    assert (finding.key, finding.value) == (f"{R}.tensor_model_parallel_size", 3)
    assert finding.where == "the command line"
    assert finding.allowed == "divisors of 16"


def test_a_sound_configuration_runs_and_gets_better_settings():
    checked = check_config("verl", VERL, OPTIONS)
    assert checked.will_run
    assert checked.verdict == "fits"
    assert 1 <= len(checked.better) <= 3
    seconds = [each.seconds for each in checked.better]
    assert seconds == sorted(seconds)
    assert seconds[-1] < checked.forecast.iteration_seconds
    assert checked.document()["will_run"]


@pytest.mark.full
def test_what_is_far_too_large_does_not_run():
    words = [*VERL, "actor_rollout_ref.model.path=Qwen/Qwen2.5-72B", "trainer.nnodes=1"]
    checked = check_config("verl", words, OPTIONS)
    assert checked.verdict == "does not fit"
    assert not checked.will_run


@pytest.mark.full
def test_an_optimizer_that_steps_on_the_host_is_counted_there():
    words = [
        *VERL, MEGATRON, "trainer.nnodes=1", "actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B",
        f"{R}.tensor_model_parallel_size=8", f"{R}.gpu_memory_utilization=0.3",
        f"{A}.megatron.expert_model_parallel_size=8", f"{A}.megatron.optimizer_offload=True",
        f"{A}.megatron.override_transformer_config.recompute_granularity=full",
    ]  # fmt: skip
    on_host = f"+{A}.optim.override_optimizer_config.optimizer_cpu_offload=True"
    share = f"+{A}.optim.override_optimizer_config.optimizer_offload_fraction=1.0"
    held = check_config("verl", words, OPTIONS)
    spared = check_config("verl", [*words, on_host, share], OPTIONS)
    assert held.verdict == "does not fit"
    # Megatron-Core takes a share of none where nothing says how much lies on the host.
    assert check_config("verl", [*words, on_host], OPTIONS).plan == held.plan
    assert spared.verdict in {"fits", "may not fit"}
    (pool,) = spared.forecast.memory
    assert "actor optimizer states" not in pool.terms
    # 16 bytes of 30.5 billion parameters over eight GPUs: states of 12, and gradients in fp32 to step with.
    assert pool.host_terms["actor optimizer on the host"] == pytest.approx(
        16 * 30.53e9 / 8, rel=0.01
    )


@pytest.mark.full
def test_what_the_configuration_keeps_off_the_gpus_is_not_held_against_it():
    words = [
        *VERL, "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        f"{A}.ppo_max_token_len_per_gpu=30000",
    ]  # fmt: skip
    longer = replace(OPTIONS, mean_response=1500)
    away = "actor_rollout_ref.model.enable_activation_offload=True"
    assert check_config("verl", words, longer).verdict == "does not fit"
    spared = check_config("verl", [*words, away], longer)
    assert spared.verdict == "may not fit"
    assert any("enable_activation_offload" in remark for remark in spared.remarks)


@pytest.mark.full
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the frameworks' examples are not here")
@pytest.mark.parametrize("framework", ["verl", "nemo-rl", "openrlhf"])
def test_published_configurations_break_no_rule(framework):
    files = sorted((PUBLISHED / framework).rglob("*.sh")) + sorted(
        (PUBLISHED / framework).rglob("*.yaml")
    )
    for path in files[:: draws(5, 1) if framework != "nemo-rl" else draws(60, 15)]:
        try:
            found = broken(framework, [str(path)])
        except FileError:
            continue
        except UserError as error:
            raise AssertionError(path.name) from error
        settings = settings_of(framework, [str(path)], OPTIONS)
        stops = {name for name, ways in found.items() if any(each.stops for each in ways)}
        stops -= REFUSED_BY_THEIR_OWN.get(path.name, set())
        assert not stops or any(settings.has("defaults: *")), (path.name, found)
