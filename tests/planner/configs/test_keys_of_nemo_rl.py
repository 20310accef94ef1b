"""No key of NeMo-RL's is swallowed: changing it changes job or plan, or what becomes of it is said."""

import json
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from rlplan.errors import UserError
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.sheet import load_config_sheet, spelled
from rlplan.units import GIB
from tests.planner.configs.fates import outcome

CATALOGUE = Path(__file__).parent / "data" / "keys_of_nemo_rl.txt"
OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={"HOME": "~"}
)
SHEET = load_config_sheet("nemo-rl")
# Keys of its configurations whose names its users, or the programs behind it, choose.
FREE = (
    "env.nemo_gym.*",
    "env.penguin.*",
    "on_policy_distillation.non_colocated_teachers.default_teacher_cfg.megatron_cfg_overrides.*",
    "on_policy_distillation.non_colocated_teachers.teacher_overrides.*",
    "on_policy_distillation.teacher_model_by_agent_name.*",
    "policy.generation.trtllm_kwargs.*",
    "policy.generation.vllm_cfg.env_vars.*",
    "policy.generation.vllm_kwargs.*",
    "{role}.dtensor_cfg.env_vars.*",
    "{role}.hf_config_overrides.*",
    "{role}.megatron_cfg.env_vars.*",
    "{role}.megatron_cfg.model_overrides.*",
)
COMMON = """
loss_fn: {reference_policy_kl_penalty: 0.01, use_importance_sampling_correction: true}
policy: &policy
  model_name: Qwen/Qwen3-8B
  train_global_batch_size: 256
  train_micro_batch_size: 4
  logprob_batch_size: 8
  max_total_sequence_length: 2048
  precision: bfloat16
  dtensor_cfg: {enabled: true, tensor_parallel_size: 2, context_parallel_size: 2}
  megatron_cfg: {enabled: false, tensor_model_parallel_size: 2}
  generation: {backend: vllm, vllm_cfg: {tensor_parallel_size: 2, gpu_memory_utilization: 0.6}}
cluster: {gpus_per_node: 8, num_nodes: 2}
data: {max_input_seq_length: 1024}
"""
GRPO = f"grpo: {{num_prompts_per_step: 64, num_generations_per_prompt: 8}}\n{COMMON}"
PPO = (
    f"{COMMON}\nppo: {{num_prompts_per_step: 64, num_generations_per_prompt: 8}}\nvalue: *policy\n"
)
D, M, G, V = "policy.dtensor_cfg", "policy.megatron_cfg", "policy.generation", "value.megatron_cfg"
MEGATRON = f"{M}.enabled=true {D}.enabled=false {V}.enabled=true"
EXPERTS = "policy.model_name=Qwen/Qwen3-30B-A3B value.model_name=Qwen/Qwen3-30B-A3B"
MOE = f"""
{MEGATRON} {EXPERTS} {M}.expert_model_parallel_size=4 {M}.pipeline_model_parallel_size=2
{M}.activation_checkpointing=true {V}.activation_checkpointing=true
{V}.expert_model_parallel_size=4 {V}.pipeline_model_parallel_size=2
"""
APART = f"{G}.colocated.enabled=false {G}.colocated.resources.num_nodes=1 {G}.vllm_cfg.async_engine=true"
PACKED = "{0}.sequence_packing.enabled=true {0}.sequence_packing.train_mb_tokens=8192"
BY_LENGTH = "{0}.dynamic_batching.enabled=true {0}.dynamic_batching.train_mb_tokens=8192"
AHEAD = "{0}.enabled=true {0}.max_trajectory_age_steps=2 {0}.in_flight_weight_updates=true"
ROTATIONS = "policy.hf_config_overrides.rope_scaling"
JUDGES = "env.should_use_nemo_gym=true env.nemo_gym.num_gpu_nodes=1 cluster.num_nodes=4"
BY_MODEL = "data.default.env_name=reward_model"
JUDGED = "env.reward_model.resources"
TEACHERS = "on_policy_distillation.non_colocated_teachers"
TAUGHT = "on_policy_distillation.teacher_model_by_agent_name"
# A student of a teacher's likeliest tokens.
DISTILLED = (
    f"{COMMON}\ndistillation: {{num_prompts_per_step: 64, num_generations_per_prompt: 4, topk_logits_k: 64}}\n"
    "teacher:\n  <<: *policy\n  model_name: Qwen/Qwen3-32B\n"
)
T = "teacher.megatron_cfg"
OF_DOMAINS = "nodes of a domain"
OF_SAMPLES = {
    "samples compared": "",
    "packed": PACKED.format("policy"),
    "masters of Transformer Engine": (
        f"policy.optimizer.kwargs.master_weights=true policy.optimizer.kwargs.exp_avg_dtype=torch.bfloat16 "
        f"policy.optimizer.kwargs.exp_avg_sq_dtype=torch.bfloat16 {D}.expert_parallel_size=4 {EXPERTS}"
    ),
    "by length": BY_LENGTH.format("policy"),
    "experts": f"{D}.expert_parallel_size=4 {EXPERTS}",
    "Megatron": MOE,
    "Megatron, packed": f"{MOE} {PACKED.format('policy')}",
    "Megatron, by copies for nodes": f"{MOE} {M}.moe_token_dispatcher_type=flex {M}.cuda_graph_impl=transformer_engine",
    "Megatron, FP8": f"{MOE} {M}.fp8_cfg.enabled=true",
    "Megatron, stepped on the host": f"{MEGATRON} {M}.optimizer.optimizer_cpu_offload=true {M}.optimizer.optimizer_offload_fraction=1.0",
    "Megatron, gradients as products make them": (
        f"{MEGATRON} {M}.distributed_data_parallel_config.grad_reduce_in_fp32=false "
        f"{M}.optimizer.use_precision_aware_optimizer=true"
    ),
    "asynchronous": f"{APART} {AHEAD.format('grpo.async_grpo')}",
    "on one node": f"{APART} cluster.num_nodes=1 {G}.colocated.resources.gpus_per_node=4",
    "ahead": f"{APART} async_rl.enabled=true async_rl.sampler.max_staleness_versions=2",
    "looking ahead": f"{APART} async_rl.enabled=true async_rl.sampler.max_lookahead_versions=2",
    "groups filtered": "grpo.use_dynamic_sampling=true loss_fn.reference_policy_kl_penalty=0",
    "no baseline": "grpo.adv_estimator.name=reinforce_plus_plus",
    "no penalty": "loss_fn.reference_policy_kl_penalty=0",
    "no reference": "loss_fn.reference_policy_kl_penalty=0 grpo.skip_reference_policy_logprobs_calculation=true",
    "not normalised": "grpo.normalize_rewards=false loss_fn.reference_policy_kl_penalty=0 "
    "grpo.skip_reference_policy_logprobs_calculation=true",
    "Megatron, asynchronous": f"{MEGATRON} {APART} {AHEAD.format('grpo.async_grpo')}",
    "one update": "loss_fn.force_on_policy_ratio=true policy.train_global_batch_size=512",
    "an adapter": f"{D}.lora_cfg.enabled=true",
    "an adapter of Megatron": f"{MEGATRON} {M}.peft.enabled=true",
    "SGLang": f"{G}.backend=sglang {EXPERTS}",
    "TensorRT-LLM": f"{G}.backend=trtllm {EXPERTS}",
    "Megatron's engine": f"{MOE} {G}.backend=megatron",
    "Dynamo": f"{G}.backend=dynamo",
    "engines with experts": f"{G}.vllm_cfg.expert_parallel_size=2 {EXPERTS}",
    "a game": "grpo.max_rollout_turns=50",
    "scaled rotations": f"{ROTATIONS}.factor=4 {ROTATIONS}.original_max_position_embeddings=32768",
    "judges": JUDGES,
    "judges on the cluster": f"{JUDGES} env.use_genrm_compare=true",
    "a reward model": f"{BY_MODEL} {JUDGED}.num_nodes=1 {JUDGED}.gpus_per_node=8 cluster.num_nodes=3",
    "a reward model on the node": f"{BY_MODEL} {JUDGED}.gpus_per_node=4 cluster.num_nodes=1",
    "teachers": f"{APART} on_policy_distillation.enabled=true {TEACHERS}.enabled=true cluster.num_nodes=4 "
    f"{TEACHERS}.default_teacher_cfg.num_nodes=1 {TAUGHT}.a=x {TAUGHT}.b=x",
    OF_DOMAINS: "cluster.gpus_per_node=4 cluster.num_nodes=32 cluster.segment_size=16",
}
WITH_CRITICS = {
    "a critic": "",
    "a critic, packed": PACKED.format("value"),
    "a critic, by length": BY_LENGTH.format("value"),
    "a critic of experts": f"{D}.expert_parallel_size=4 {EXPERTS}",
    "a critic with masters of Transformer Engine": (
        "value.optimizer.kwargs.master_weights=true value.optimizer.kwargs.exp_avg_dtype=torch.bfloat16 "
        "value.optimizer.kwargs.exp_avg_sq_dtype=torch.bfloat16"
    ),
    "a critic of experts, by Megatron": MOE,
    "a critic of experts, by copies for nodes": f"{MOE} {V}.moe_token_dispatcher_type=flex {V}.cuda_graph_impl=transformer_engine",
    "a critic of Megatron, gradients as products make them": (
        f"{MEGATRON} {V}.distributed_data_parallel_config.grad_reduce_in_fp32=false "
        f"{V}.optimizer.use_precision_aware_optimizer=true"
    ),
    "a critic of Megatron, stepped on the host": f"{MEGATRON} {V}.optimizer.optimizer_cpu_offload=true {V}.optimizer.optimizer_offload_fraction=1.0",
    "a critic of Megatron, asynchronous": f"{MEGATRON} {APART} {AHEAD.format('ppo.async_ppo')}",
    "asynchronous with a critic": f"{APART} {AHEAD.format('ppo.async_ppo')}",
    "asynchronous with a critic, by its older name": f"{APART} {AHEAD.format('ppo.async_grpo')}",
}
OF_TEACHERS = {
    "a student": "",
    "a student, packed": f"{PACKED.format('policy')} {PACKED.format('teacher')}",
    "a student, by length": f"{BY_LENGTH.format('policy')} {BY_LENGTH.format('teacher')}",
    "a student of experts": "teacher.dtensor_cfg.expert_parallel_size=4 teacher.model_name=Qwen/Qwen3-30B-A3B",
    "a student of Megatron": f"{MEGATRON} {T}.enabled=true teacher.dtensor_cfg.enabled=false",
    "a student of Megatron's experts": f"{MEGATRON} {T}.enabled=true teacher.dtensor_cfg.enabled=false "
    f"teacher.model_name=Qwen/Qwen3-30B-A3B {T}.expert_model_parallel_size=4 {T}.pipeline_model_parallel_size=2",
    "a student of Megatron's experts, by copies for nodes": f"{MEGATRON} {T}.enabled=true teacher.dtensor_cfg.enabled=false "
    f"teacher.model_name=Qwen/Qwen3-30B-A3B {T}.expert_model_parallel_size=4 {T}.moe_token_dispatcher_type=flex "
    f"{T}.cuda_graph_impl=transformer_engine",
    "a student, apart": APART,
    "a student in a game": "distillation.max_rollout_turns=50",
}
BASES = {
    name: (text, words)
    for text, found in ((GRPO, OF_SAMPLES), (PPO, WITH_CRITICS), (DISTILLED, OF_TEACHERS))
    for name, words in found.items()
}
FILES = {GRPO: "grpo", PPO: "ppo", DISTILLED: "distillation"}


def catalogue():
    """Return NeMo-RL's keys, and values that they have in its own files."""
    lines = (
        line.split("\t")
        for line in CATALOGUE.read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    return {key: [json.loads(value) for value in values] for key, *values in lines}


def changed(key, values):
    """Return values that a key may be changed to: its words, those of its own files, and what their types allow."""
    meant = [
        word for setting in SHEET.every_setting() if key in setting.keys for word in setting.values
    ]
    numbers = [
        each
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool)
        for each in (value * 2, value / 2, value + 1)
    ]
    others = [1, 2, 3, 4, 16, 64, 0.25, 1024, 4096, True, False, *WORDS]
    texts = [value for value in values if isinstance(value, str)]
    return [*meant, *numbers, *texts, *others]


WORDS = ("selective", "Qwen/Qwen2.5-7B", "other_word")


class Bases:
    """Read configurations, each as it is only once."""

    def __init__(self, folder):
        self._folder = folder
        self._known = {}

    def found(self, name, *more):
        """Return a base with further words, imported."""
        text, words = BASES[name]
        path = self._folder / f"{FILES[text]}.yaml"
        path.write_text(text, encoding="utf-8")
        options = replace(OPTIONS, gpu="gb200") if name == OF_DOMAINS else OPTIONS
        return imported("nemo-rl", [str(path), *words.split(), *more], options)

    def before(self, name):
        """Return the job and plan of a base as it is."""
        if name not in self._known:
            found = self.found(name)
            self._known[name] = (found.job, found.draft)
        return self._known[name]


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    return Bases(tmp_path_factory.mktemp("bases"))


def told(key, value, name, bases):
    """Return what becomes of a key that is changed: idle where nothing reads it, empty where that is not seen."""
    before = bases.before(name)
    try:
        found = bases.found(name, f"{key}={json.dumps(value)}")
    except UserError as error:
        said = str(error)
        return "refused" if key in said and "is no whole number" not in said else ""
    return outcome(found, key, before)


@cache
def mapped():
    """Return the keys that the sheet maps."""
    return {key for setting in SHEET.every_setting() for key in setting.keys}


def is_told(key):
    """Tell whether the sheet only says of a key, or of keys that it fits, what of it is not counted."""
    if key in mapped():
        return False
    named = (*SHEET.not_modelled, *SHEET.changes_work)
    return any(fnmatchcase(key, each) for name in named for each in spelled(name, SHEET.roles))


def fate(key, values, bases):
    """Return what becomes of a key in the first configuration and with the first value that show it."""
    if key in SHEET.harmless():
        return "named"
    seen = "swallowed"
    for name in BASES:
        for value in ["other_word"] if is_told(key) else changed(key, values):
            found = told(key, value, name, bases)
            if found in {"acts", "reported"}:
                return found
            if found == "idle":
                break
            seen = found or seen
    return seen


@pytest.mark.full
def test_no_key_is_swallowed(pytestconfig, bases):
    keys = catalogue()
    chosen = list(keys) if pytestconfig.getoption("full") else list(keys)[::29]
    assert [key for key in chosen if fate(key, keys[key], bases) == "swallowed"] == []


@pytest.mark.full
def test_every_key_that_the_sheet_maps_acts(bases):
    keys = catalogue()
    others = [key for key in sorted(mapped()) if key not in keys]
    assert [key for key in others if fate(key, [], bases) == "swallowed"] == []


def test_nothing_is_ignored_by_a_pattern():
    assert [name for name in SHEET.harmless() if "*" in name] == []


def test_patterns_stand_only_where_keys_are_free_and_are_reported():
    patterns = {key for key in (*SHEET.not_modelled, *SHEET.changes_work) if "*" in key}
    assert patterns == set(FREE)


def test_keys_that_nobody_knows_are_not_understood(bases):
    words = ("policy.nonsense_key=7", "grpo.val_nonsense=1", "data.nonsense=1", "logger.nonsense=1")
    found = bases.found("samples compared", *words)
    assert set(found.keys.unknown) == {word.partition("=")[0] for word in words}


def test_free_keys_are_reported(bases):
    keys = ("env.nemo_gym.made_up.by=1", f"{G}.vllm_kwargs.made_up=1", f"{D}.env_vars.MADE_UP=1")
    found = bases.found("samples compared", *keys)
    assert set(found.keys.not_modelled) == {key.partition("=")[0] for key in keys}


def test_a_cache_of_a_size_of_its_own_makes_the_answer_doubtful(bases):
    """vLLM makes it so large, whatever share of the card it was told (config/cache.py, kv_cache_memory_bytes)."""
    key = "policy.generation.vllm_kwargs.kv_cache_memory_bytes"
    found = bases.found("samples compared", f"+{key}=21474836480")
    assert key in found.keys.changes_work
    assert key not in found.keys.not_modelled


def test_turns_and_judges_make_the_answer_doubtful(bases):
    found = bases.found("judges", "grpo.max_rollout_turns=50")
    assert set(found.keys.changes_work) == {
        "grpo.max_rollout_turns", "env.should_use_nemo_gym", "env.nemo_gym.num_gpu_nodes",
    }  # fmt: skip
    one = bases.found("samples compared", "grpo.max_rollout_turns=1")
    assert not one.keys.changes_work


@pytest.mark.parametrize(
    ("name", "words", "gpus"),
    [
        ("judges", (), 32),
        ("judges on the cluster", (), 24),
        # Only without the judges' nodes are there whole copies of the model.
        ("judges", ("cluster.num_nodes=5", f"{D}.tensor_parallel_size=4", f"{D}.context_parallel_size=8"), 32),
        ("a reward model", (), 16),
        ("a reward model on the node", (), 4),
        ("teachers", (), 16),
        ("teachers", ("on_policy_distillation.deduplicate_shared_teacher_checkpoints=false",), 8),
    ],
)  # fmt: skip
def test_gpus_of_judges_rewards_and_teachers_train_nothing(bases, name, words, gpus):
    pools = {pool.name: pool.gpus for pool in bases.found(name, *words).draft.pools}
    assert pools["train"] == gpus


def test_a_reward_model_leaves_a_node_to_training(bases):
    with pytest.raises(UserError, match=r"cluster.num_nodes: leaves no node .* at least 3"):
        bases.found("a reward model", "cluster.num_nodes=2", f"{JUDGED}.num_nodes=2")


@pytest.mark.parametrize(
    ("prompts", "samples", "update", "updates", "doubted"),
    [(15, 16, 60, 4, False), (8, 16, 8, 16, False), (8, 16, 48, 2, True), (4, 4, 64, 1, True)],
)
def test_updates_are_counted_in_samples(bases, prompts, samples, update, updates, doubted):
    found = bases.found(
        "samples compared", f"grpo.num_prompts_per_step={prompts}",
        f"grpo.num_generations_per_prompt={samples}", f"policy.train_global_batch_size={update}",
    )  # fmt: skip
    assert found.job.workload.updates == updates
    assert ("policy.train_global_batch_size" in found.keys.changes_work) == doubted


@pytest.mark.parametrize(
    ("multiple", "rounds", "most"), [(1, 2.0, 10), (1.5, 1.5, 15), (2, 2.0, 20), (3, 3.0, 30), (0.5, 1.5, 5)]
)  # fmt: skip
def test_whole_batches_are_generated_until_enough_groups_differ(bases, multiple, rounds, most):
    skips = "grpo.skip_reference_policy_logprobs_calculation=true"
    found = bases.found("groups filtered", f"grpo.batch_multiplier={multiple}", skips)
    sampling = found.job.dynamic_sampling
    assert (found.job.algorithm, sampling.expected_rounds, sampling.max_rounds) == (
        "dapo",
        rounds,
        most,
    )
    assert any("67% of groups" in guess for guess in found.guesses)


def test_groups_that_are_sampled_again_and_not_counted_make_the_answer_doubtful(bases):
    found = bases.found("no baseline", "grpo.use_dynamic_sampling=true")
    assert "grpo.use_dynamic_sampling" in found.keys.changes_work


def test_errors_of_sequences_are_measured_by_a_pass_of_the_actor(bases):
    assert bases.found("one update").job.old_log_prob == "engine"
    measured = bases.found("one update", "grpo.seq_logprob_error_threshold=2.0")
    assert measured.job.old_log_prob != "engine"


def test_sequences_end_where_their_engine_ends_them(bases):
    found = bases.found("samples compared", f"{G}.vllm_cfg.max_model_len=1500")
    assert found.job.workload.max_total_tokens == 1500
    other = bases.found("SGLang", f"{G}.vllm_cfg.max_model_len=1500")
    assert other.job.workload.max_total_tokens == 2048


def test_references_mean_what_the_command_line_says(tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text(
        GRPO.replace(
            "logprob_batch_size: 8", "logprob_batch_size: ${policy.train_micro_batch_size}"
        )
    )
    found = imported("nemo-rl", [str(path), "policy.train_micro_batch_size=1"], OPTIONS)
    tasks = found.draft.tasks
    assert (tasks["actor.update"].micro_batch, tasks["reference.compute_log_prob"].micro_batch) == (
        1,
        1,
    )
    words = ("cluster.num_nodes=1", "policy.logprob_batch_size=${mul:${cluster.num_nodes}, 16}")
    found = imported("nemo-rl", [str(path), *words], OPTIONS)
    assert found.draft.tasks["reference.compute_log_prob"].micro_batch == 16
    assert found.settings.flat["policy.logprob_batch_size"].where == "the command line"


@pytest.mark.parametrize(
    ("number", "reads"), [("0.2", True), ("0.3", False), ("0.6", False), ("0.7", True)]
)
def test_buckets_of_a_refit_count_where_the_version_reads_their_size(number, reads, tmp_path):
    """algorithms/grpo.py: not from pull request 292 (0.3) to 2592 (0.7)."""
    file = tmp_path / "grpo.yaml"
    file.write_text(
        f"{GRPO}\n".replace("policy: &policy", "policy: &policy\n  refit_buffer_size_gb: 4")
    )
    found = imported("nemo-rl", [str(file)], replace(OPTIONS, version=number))
    assert found.run.bucket_bytes == (4 * GIB if reads else None)
    named = [note for note in found.notes if "refit_buffer_size_gb has no effect" in note]
    assert bool(named) != reads


@pytest.mark.parametrize(("number", "loads"), [("0.6", True), ("0.7", False)])
def test_a_penalty_of_0_loads_no_reference_since_0_7(number, loads, tmp_path):
    """algorithms/grpo.py, pull request 2443; algorithms/ppo.py loads one whatever the penalty."""
    found = {}
    for name, text in (("grpo", GRPO), ("ppo", PPO)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        words = [str(file), "loss_fn.reference_policy_kl_penalty=0"]
        found[name] = imported("nemo-rl", words, replace(OPTIONS, version=number))
    assert ("reference" in found["grpo"].job.models) == loads
    assert "reference" in found["ppo"].job.models


@pytest.mark.parametrize(("words", "gpus"), [((), 12), (("data.default.env_name=math",), 16)])
def test_before_data_sets_named_environments_a_reward_model_was_switched_on(words, gpus, tmp_path):
    """algorithms/grpo.py, tag v0.4.0: env_configs["reward_model"]["enabled"]."""
    resources = "{gpus_per_node: 4, num_nodes: 1}"
    judged = f"{{enabled: true, model_name: Qwen/Qwen3-0.6B, resources: {resources}}}"
    file = tmp_path / "grpo.yaml"
    file.write_text(f"{GRPO}\nenv: {{reward_model: {judged}}}\n")
    start = (str(file), "cluster.gpus_per_node=16", "cluster.num_nodes=1", *words)
    found = imported("nemo-rl", start, replace(OPTIONS, version="0.4"))
    assert found.draft.pools[0].gpus == gpus
    assert ("env.reward_model.model_name" in found.keys.changes_work) != bool(words)
