"""One job in the words of two frameworks: what is imported is the same, but for what each framework has of its own.

The pairs have the sizes of public recipes, as they stood in August 2026: of slime (commit 624b824) scripts/run-qwen3-4B.sh,
run-glm4-9B.sh with its two pools on one, run-qwen3-30B-A3B.sh, and examples/fully_async/run-qwen3.5-9B-fully_async.sh a
batch ahead; of verl (commit 1dda039) the keys of examples/grpo_trainer/run_qwen3_8b_megatron.sh and of
verl/experimental/one_step_off_policy. A twin has every setting of its pair by its own key, those of defaults too.
"""

from dataclasses import dataclass, fields, is_dataclass
from typing import Final

import pytest

from rlplan.planner.configs.importing import ImportOptions, imported

OPTIONS: Final = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=2000, mean_prompt=256, environment={}
)
# What each framework has of its own, by the fields of job and plan: its name and sheets, how its weights reach the engine, and
# whether it passes once more over what it generated (slime takes its update's own log-probabilities where there is one update).
OWN: Final = frozenset(
    {"job.name", "job.framework", "job.weight_sync", "job.old_log_prob", "draft.made_by"}
)
OWN_TASK: Final = "draft.tasks.actor.compute_log_prob"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Hold what two scripts have in common: sizes of work and of layouts, GPUs in nodes of eight unless said."""

    model: str
    prompts: int = 32
    samples: int = 8
    updates: int = 1
    longest: int = 8192
    train_gpus: int = 8
    rollout_gpus: int = 0
    tp: int = 2
    cp: int = 1
    pp: int = 1
    ep: int = 1
    budget: int = 9216
    engine_gpus: int = 2
    temperature: float = 1.0


RECIPES: Final = {
    "qwen3-4b": Recipe(model="Qwen/Qwen3-4B"),
    "glm-4-9b": Recipe(
        model="zai-org/GLM-Z1-9B-0414", cp=2, budget=4608, engine_gpus=1, temperature=0.8, updates=2
    ),
    "qwen3-30b-a3b": Recipe(
        model="Qwen/Qwen3-30B-A3B", prompts=8, samples=4, tp=4, ep=8, budget=20480, engine_gpus=8
    ),
    "qwen3-30b-a3b in stages": Recipe(model="Qwen/Qwen3-30B-A3B", tp=2, pp=2, ep=4, engine_gpus=4, updates=2),
    "asynchronous": Recipe(
        model="Qwen/Qwen3.5-9B", prompts=8, samples=4, longest=2048, train_gpus=4, rollout_gpus=4, budget=4096
    ),
}  # fmt: skip


def slime(each: Recipe) -> list[str]:
    """Return the recipe in slime's words, with every setting that verl's defaults have otherwise."""
    apart = each.rollout_gpus
    start = "slime/train_async.py" if apart else "slime/train.py"
    where = f"--rollout-num-gpus {apart}" if apart else "--colocate"
    sequences = each.prompts * each.samples // each.updates
    return f"""{start} {where} --actor-num-nodes 1 --actor-num-gpus-per-node {each.train_gpus}
        --hf-checkpoint {each.model} --rollout-batch-size {each.prompts} --n-samples-per-prompt {each.samples}
        --rollout-max-prompt-len 2048 --rollout-max-response-len {each.longest} --rollout-temperature {each.temperature}
        --global-batch-size {sequences} --num-rollout 3000 --balance-data --tensor-model-parallel-size {each.tp}
        --pipeline-model-parallel-size {each.pp}
        --sequence-parallel --context-parallel-size {each.cp} --expert-model-parallel-size {each.ep}
        --expert-tensor-parallel-size 1 --recompute-granularity full --recompute-method uniform
        --recompute-num-layers 1 --use-dynamic-batch-size --max-tokens-per-gpu {each.budget}
        --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.001 --kl-loss-type low_var_kl
        --eps-clip 0.2 --eps-clip-high 0.28 --eps-clip-c 3.0 --value-clip 0.5 --lr 1e-6 --weight-decay 0.1
        --adam-beta1 0.9 --adam-beta2 0.98 --rollout-num-gpus-per-engine {each.engine_gpus}
        --sglang-mem-fraction-static 0.7 --update-weight-buffer-size 2147483648""".split()


def verl(each: Recipe) -> list[str]:
    """Return the recipe in verl's words, with every setting that slime's defaults have otherwise."""
    actor, rollout, ref = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
    apart = each.rollout_gpus
    start = "verl.experimental.one_step_off_policy.main_ppo" if apart else "verl.trainer.main_ppo"
    where = f"rollout.nnodes=1 rollout.n_gpus_per_node={apart}" if apart else ""
    layout = " ".join(
        f"{role}.megatron.tensor_model_parallel_size={each.tp} {role}.megatron.context_parallel_size={each.cp} "
        f"{role}.megatron.pipeline_model_parallel_size={each.pp} "
        f"{role}.megatron.expert_model_parallel_size={each.ep} {role}.megatron.expert_tensor_parallel_size=1"
        for role in (actor, ref)
    )
    recompute = " ".join(
        f"+{actor}.megatron.override_transformer_config.recompute_{name}={value}"
        for name, value in (("granularity", "full"), ("method", "uniform"), ("num_layers", 1))
    )
    leaves = "" if apart else " ".join(
        f"{actor}.megatron.{what}_offload=True" for what in ("param", "grad", "optimizer")
    )  # fmt: skip
    return f"""-m {start} model_engine=megatron {where} trainer.nnodes=1 trainer.n_gpus_per_node={each.train_gpus}
        actor_rollout_ref.model.path={each.model} actor_rollout_ref.model.use_remove_padding=True
        data.train_batch_size={each.prompts} data.max_prompt_length=2048 data.max_response_length={each.longest}
        algorithm.adv_estimator=grpo {actor}.ppo_mini_batch_size={each.prompts // each.updates}
        {actor}.use_dynamic_bsz=True {actor}.ppo_max_token_len_per_gpu={each.budget} {layout} {recompute} {leaves}
        {actor}.use_kl_loss=True {actor}.kl_loss_coef=0.001 {actor}.kl_loss_type=low_var_kl {actor}.clip_ratio_low=0.2
        {actor}.clip_ratio_high=0.28 {actor}.loss_agg_mode=seq-mean-token-mean {actor}.optim.lr=1e-6
        {actor}.optim.weight_decay=0.1 {actor}.optim.betas=[0.9,0.98] {ref}.megatron.param_offload=True
        {ref}.log_prob_use_dynamic_bsz=True {ref}.log_prob_max_token_len_per_gpu={each.budget}
        {rollout}.log_prob_use_dynamic_bsz=True {rollout}.log_prob_max_token_len_per_gpu={each.budget}
        {rollout}.name=sglang {rollout}.n={each.samples} {rollout}.temperature={each.temperature}
        {rollout}.tensor_model_parallel_size={each.engine_gpus} {rollout}.gpu_memory_utilization=0.7
        {rollout}.max_num_seqs=512 trainer.balance_batch=True trainer.total_training_steps=3000""".split()


def leaves_of(value: object, path: str):
    """Yield every field of nested types and mappings by its path."""
    if is_dataclass(value):
        for each in fields(value):
            yield from leaves_of(getattr(value, each.name), f"{path}.{each.name}")
    elif hasattr(value, "items"):
        for key, inner in value.items():
            yield from leaves_of(inner, f"{path}.{key}")
    else:
        yield path, value


def differences(framework_words: dict[str, list[str]]) -> dict[str, tuple[object, object]]:
    """Return what is imported otherwise from two frameworks' words, but for what each has of its own."""
    both = []
    for framework, words in framework_words.items():
        found = imported(framework, words, OPTIONS)
        assert found.keys.unknown == ()
        both.append(dict(leaves_of(found.resolved, "job")) | dict(leaves_of(found.draft, "draft")))
    one, other = both
    keys = (key for key in {**one, **other} if one.get(key) != other.get(key))
    return {
        key: (one.get(key), other.get(key))
        for key in keys
        if not (key.startswith((OWN_TASK, "draft.job")) or any(key.startswith(own) for own in OWN))
    }


VERL_FSDP: Final = """-m verl.trainer.main_ppo trainer.nnodes=1 trainer.n_gpus_per_node=8 algorithm.adv_estimator=grpo
    actor_rollout_ref.model.path=Qwen/Qwen3-4B data.train_batch_size=32 data.max_prompt_length=2048
    data.max_response_length=8192 A.ppo_mini_batch_size=16 A.ppo_micro_batch_size_per_gpu=4 A.use_kl_loss=True
    A.kl_loss_coef=0.001 A.kl_loss_type=low_var_kl A.clip_ratio_low=0.2 A.clip_ratio_high=0.28 A.clip_ratio_c=3.0
    A.loss_agg_mode=token-mean A.optim.lr=2e-6 A.optim.weight_decay=0.1 R.name=vllm R.n=8 R.temperature=0.8
    R.tensor_model_parallel_size=2 R.gpu_memory_utilization=0.6 R.log_prob_micro_batch_size_per_gpu=4
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4"""
SKYRL: Final = """-m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen3-4B trainer.strategy=fsdp2
    P.colocate_all=true P.policy_num_gpus_per_node=8 P.ref_num_gpus_per_node=8 G.inference_engine.num_engines=4
    G.inference_engine.tensor_parallel_size=2 G.inference_engine.gpu_memory_utilization=0.6 G.n_samples_per_prompt=8
    trainer.train_batch_size=32 trainer.policy_mini_batch_size=16 trainer.micro_train_batch_size_per_gpu=4
    trainer.micro_forward_batch_size_per_gpu=4 trainer.max_prompt_length=2048 L.use_kl_loss=true
    G.sampling_params.max_generate_length=8192 G.sampling_params.temperature=0.8 L.advantage_estimator=grpo
    L.kl_loss_coef=0.001 L.kl_estimator_type=k3 L.eps_clip_low=0.2 L.eps_clip_high=0.28 L.policy_loss_type=dual_clip
    L.clip_ratio_c=3.0 trainer.policy.optimizer_config.lr=2e-6 trainer.policy.optimizer_config.weight_decay=0.1"""
OPENRLHF: Final = """-m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-4B --actor.num_gpus_per_node 8
    --ref.num_gpus_per_node 8 --train.colocate_all --vllm.num_engines 4 --vllm.tensor_parallel_size 2
    --vllm.gpu_memory_utilization 0.6 --vllm.enable_sleep --ds.enable_sleep --reward.remote_url /reward.py
    --rollout.batch_size 32 --rollout.n_samples_per_prompt 8 --train.batch_size 128 --train.micro_batch_size 4
    --rollout.micro_batch_size 4 --data.max_len 10240 --rollout.max_new_tokens 8192 --rollout.temperature 0.8
    --algo.advantage.estimator group_norm --algo.kl.use_loss --algo.kl.init_coef 0.001 --algo.kl.estimator k3
    --actor.eps_clip_low_high 0.2 0.28 --actor.dual_clip 3.0 --actor.adam.lr 2e-6 --actor.adam.weight_decay 0.1
    --actor.entropy_coef 0 --actor.gradient_checkpointing_enable --ds.zero_stage 3 --ds.packing_samples"""
NEMO_RL: Final = """
grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 8}
loss_fn: {reference_policy_kl_penalty: 0.001, reference_policy_kl_type: k3, ratio_clip_min: 0.2, ratio_clip_max: 0.28,
  ratio_clip_c: 3.0, token_level_loss: true}
policy:
  {model_name: Qwen/Qwen3-4B, train_global_batch_size: 128, train_micro_batch_size: 4, logprob_batch_size: 4,
  max_total_sequence_length: 10240, precision: bfloat16, max_grad_norm: 1.0,
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 2.0e-6, weight_decay: 0.1}},
  dtensor_cfg: {enabled: true, activation_checkpointing: true},
  generation: {backend: vllm, temperature: 0.8, max_new_tokens: 8192,
    vllm_cfg: {tensor_parallel_size: 2, gpu_memory_utilization: 0.6}}}
data: {max_input_seq_length: 2048}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""
# Beside its sheets: how losses weigh values without a critic, whether rewards are computed behind generation, and what
# keeps a reference's weights, and how often SkyRL writes checkpoints where nobody says it. OpenRLHF limits a prompt and its response together, as NeMo-RL does beside prompts.
OWN_OF_FOUR: Final = frozenset(
    {
        "job.engines", "job.trainers", "job.checkpoints", "job.rewards.streamed", "job.hyperparameters.critic_learning_rate",
        "job.hyperparameters.gae_lambda", "job.hyperparameters.value_clip", "job.workload.max_total_tokens",
        "job.workload.prompt_tokens",
    }
)  # fmt: skip


@pytest.mark.parametrize("framework", ["skyrl", "openrlhf", "nemo-rl"])
def test_a_job_in_verls_words_is_what_it_is_in_others(framework, tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text(NEMO_RL)
    short = {"A.": "actor_rollout_ref.actor.", "R.": "actor_rollout_ref.rollout."}
    short |= {"P.": "trainer.placement.", "G.": "generator.", "L.": "trainer.algorithm."}
    texts = {"verl": VERL_FSDP, "skyrl": SKYRL, "openrlhf": OPENRLHF, "nemo-rl": str(path)}
    words = {
        each: [short.get(word[:2], word[:2]) + word[2:] for word in texts[each].split()]
        for each in ("verl", framework)
    }
    differing = [
        key
        for key in differences(words)
        if key.startswith("job.") and not any(key.startswith(own) for own in OWN_OF_FOUR)
    ]
    assert differing == []


# Trainers of both: slime's images have FlashAttention 3, verl's 2 alone.
KERNELS: Final = ("megatron-core-2025-flash-3", "megatron-core-2025-flash")
# The same job in the words of those whose trainers or engines are others: what each has of its own stands beside it.
OTHERS: Final = {
    "easyr1": (
        """-m verl.trainer.main config=/nowhere/config.yaml data.rollout_batch_size=32 data.max_prompt_length=2048
        data.max_response_length=8192 worker.actor.model.model_path=Qwen/Qwen3-4B worker.actor.global_batch_size=16
        worker.actor.micro_batch_size_per_device_for_update=4 worker.actor.micro_batch_size_per_device_for_experience=4
        worker.actor.dynamic_batching=false worker.actor.clip_ratio_low=0.2 worker.actor.clip_ratio_high=0.28
        worker.actor.clip_ratio_dual=3.0 worker.actor.optim.lr=2e-6 worker.actor.optim.weight_decay=0.1
        worker.actor.offload.offload_params=false worker.actor.offload.offload_optimizer=false worker.rollout.n=8
        worker.rollout.temperature=0.8 worker.rollout.tensor_parallel_size=2 worker.rollout.gpu_memory_utilization=0.6
        algorithm.adv_estimator=grpo algorithm.use_kl_loss=true algorithm.kl_coef=0.001 algorithm.kl_penalty=low_var_kl
        algorithm.disable_kl=false trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.val_freq=-1""",
        ("job.evaluation",),
    ),
    "ms-swift": (
        """swift rlhf --rlhf_type grpo --model Qwen/Qwen3-4B --NPROC_PER_NODE 8 --tuner_type full --use_vllm true
        --vllm_mode colocate --vllm_tensor_parallel_size 2 --vllm_gpu_memory_utilization 0.6 --num_generations 8
        --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --steps_per_generation 8 --max_length 2048
        --max_completion_length 8192 --temperature 0.8 --beta 0.001 --epsilon 0.2 --epsilon_high 0.28
        --learning_rate 2e-6 --weight_decay 0.1 --deepspeed zero3 --gradient_checkpointing true --sleep_level 1""",
        ("job.hyperparameters.kl_estimator", "job.hyperparameters.clip_ratio_dual", "job.hyperparameters.loss_mean"),
    ),
    "open-instruct": (
        """python open_instruct/grpo_fast.py --model_name_or_path Qwen/Qwen3-4B --num_learners_per_node 8
        --num_unique_prompts_rollout 32 --num_samples_per_prompt_rollout 8 --num_mini_batches 2
        --max_prompt_token_length 2048 --response_length 8192 --pack_length 10240 --temperature 0.8 --beta 0.001
        --clip_lower 0.2 --clip_higher 0.28 --learning_rate 2e-6 --weight_decay 0.1 --vllm_num_engines 4
        --vllm_tensor_parallel_size 2 --vllm_gpu_memory_utilization 0.6 --deepspeed_stage 3 --gradient_checkpointing""",
        ("job.cluster", "job.specs.staleness", "job.hyperparameters.kl_estimator", "job.hyperparameters.clip_ratio_dual"),
    ),
    "areal": (
        """actor.path=Qwen/Qwen3-4B train_dataset.batch_size=32 gconfig.n_samples=8 train_dataset.max_length=2048
        gconfig.max_new_tokens=8192 gconfig.max_tokens=10240 actor.backend=fsdp:d8 rollout.backend=vllm:d4t2
        rollout.scheduling_strategy.type=colocation actor.weight_update_mode=disk enable_offload=true
        actor.ppo_n_minibatches=2 actor.eps_clip=0.2 actor.eps_clip_higher=0.28 actor.c_clip=3.0
        actor.optimizer.lr=2e-6 actor.optimizer.weight_decay=0.1 actor.kl_ctl=0.001 actor.kl_estimator=k3
        ref.path=Qwen/Qwen3-4B ref.scheduling_strategy.type=colocation actor.gradient_checkpointing=true
        actor.use_decoupled_loss=true gconfig.temperature=0.8 vllm.gpu_memory_utilization=0.6""",
        ("job.hyperparameters.kl_in", "job.hyperparameters.loss_mean"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("framework", OTHERS)
def test_what_is_trained_and_how_much_is_the_same_in_the_words_of_others(framework):
    text, own = OTHERS[framework]
    short = {"A.": "actor_rollout_ref.actor.", "R.": "actor_rollout_ref.rollout."}
    theirs = [short.get(word[:2], word[:2]) + word[2:] for word in VERL_FSDP.split()]
    found = differences({"verl": theirs, framework: text.split()})
    left = [
        key for key in found if key.startswith("job.") and not key.startswith((*OWN_OF_FOUR, *own))
    ]
    assert left == []
    sizes = {
        f"draft.tasks.actor.{task}.{size}"
        for task in ("generate", "update")
        for size in ("tp", "pp", "dp", "cp")
    }
    assert not sizes & set(found)


@pytest.mark.parametrize("name", RECIPES)
def test_a_job_in_slimes_words_is_what_it_is_in_verls(name):
    found = differences({"slime": slime(RECIPES[name]), "verl": verl(RECIPES[name])})
    assert {key: pair for key, pair in found.items() if pair != KERNELS} == {}


def test_sequence_level_ratios_in_slimes_words_are_what_they_are_in_verls():
    recipe = RECIPES["qwen3-4b"]
    words = ["gspo" if word == "grpo" else word for word in slime(recipe)]
    theirs = [*verl(recipe), "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"]
    found = differences({"slime": words, "verl": theirs})
    assert {key: pair for key, pair in found.items() if pair != KERNELS} == {}


# A teacher on an engine of its own: slime's script starts its server, verl has a pool for it.
TAUGHT: Final = """distillation.enabled=True distillation.nnodes=1 distillation.n_gpus_per_node=2 D.loss_mode=k1
    D.use_policy_gradient=True T.model_path=Qwen/Qwen3-14B T.inference.name=sglang T.inference.max_num_seqs=256
    T.inference.tensor_model_parallel_size=2 T.inference.gpu_memory_utilization=0.6"""


def test_a_teacher_in_slimes_words_is_what_it_is_in_verls(tmp_path):
    recipe = RECIPES["qwen3-4b"]
    server = (
        "--model-path Qwen/Qwen3-14B --tp 2 --mem-fraction-static 0.6 --max-running-requests 256"
    )
    more = "--use-opd --opd-type sglang --rm-url http://127.0.0.1:30000/generate"
    path = tmp_path / "run.sh"
    path.write_text(
        f"python3 -m sglang.launch_server {server} &\n"
        f"python3 {' '.join(slime(recipe)).removeprefix('slime/')} {more}\n"
    )
    short = {
        "D.": "distillation.distillation_loss.",
        "T.": "distillation.teacher_models.teacher_model.",
    }
    taught = [short.get(word[:2], word[:2]) + word[2:] for word in TAUGHT.split()]
    found = differences({"slime": [str(path)], "verl": [*verl(recipe), *taught]})
    assert {key: pair for key, pair in found.items() if pair != KERNELS} == {}
