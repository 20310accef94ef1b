"""Laws of causes on reports of slow steps, with the cause that was found: what is named first, of the step or of its slowest stage.

Configurations are cut down to the keys that the reports state; where they leave a length or a key open, a usual one is taken.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import imported
from rlplan.planner.measured import causes
from rlplan.planner.measured.checking import RunContext, check_steps
from rlplan.profiles.facts import load_facts
from tests.planner.configs.test_importing import OPTIONS

BASES = Path(__file__).parents[3] / "evals" / "held" / "fit" / "bases"
COLOCATED = "python3 train.py --colocate --advantage-estimator grpo --use-dynamic-batch-size "
VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8 "


@dataclass(frozen=True, slots=True)
class Case:
    """Hold a report: its configuration, a step's figures, and how the true cause is named.

    Attributes:
        lengths: Mean tokens of prompts and of responses.
        stage: Slow stage whose first cause is looked at; `step`, or `notes` for one that is no fault of a stage.
    """

    source: str
    framework: str
    gpu: str
    file: str
    text: str
    lengths: tuple[float, float]
    row: dict[str, float]
    stage: str
    cause: str


CASES = {
    "states that sleep": Case(
        "https://github.com/vllm-project/vime/issues/442: sleep and wake_up are 80 % of a step of one GPU",
        "slime",
        "l20",
        "run.sh",
        COLOCATED + "--actor-num-nodes 1 --actor-num-gpus-per-node 1 --hf-checkpoint Qwen/Qwen3-0.6B --ref-load Qwen/Qwen3-0.6B "
        "--rollout-batch-size 8 --n-samples-per-prompt 2 --rollout-max-response-len 192 --global-batch-size 16 "
        "--use-kl-loss --kl-loss-coef 0.0 --max-tokens-per-gpu 4096 --rollout-num-gpus-per-engine 1 "
        "--sglang-mem-fraction-static 0.4 --num-rollout 8",
        (115, 185),
        {
            "perf/step_time": 18.853, "perf/train_wait_time": 17.425, "perf/train_time": 0.864, "perf/rollout_time": 1.3,
            "perf/actor_train_time": 0.472, "perf/ref_log_probs_time": 0.126, "perf/sleep_time": 11.228,
            "perf/wake_up_time": 3.773, "perf/update_weights_time": 0.534,
        },
        "step",
        "offload: ",
    ),
    "few requests after a barrier": Case(
        "https://github.com/PrimeIntellect-ai/prime-rl/pull/1372: 16 of 512 requests at a time after the first barrier",
        "prime-rl",
        "h100-80gb-sxm",
        "rl.toml",
        'max_steps = 100\nseq_len = 2048\n[model]\nname = "Qwen/Qwen3-0.6B"\n[orchestrator]\nbatch_size = 512\ngroup_size = 16\n'
        "[orchestrator.train.sampling]\nmax_completion_tokens = 2048\n[trainer]\n[inference]\n",
        (120, 323),
        {"time/step": 900.0, "time/wait_for_batch": 880.0, "time/forward_backward": 15.0},
        "step",
        "few running: ",
    ),
    "requests that do not come": Case(
        "https://github.com/THUDM/slime/issues/385: GPUs stand still for most of a rollout of 5,760 short responses",
        "slime",
        "h200",
        "run.sh",
        COLOCATED + "--actor-num-nodes 2 --actor-num-gpus-per-node 8 --hf-checkpoint Qwen/Qwen3-0.6B --rollout-batch-size 1152 "
        "--n-samples-per-prompt 5 --rollout-max-response-len 1024 --global-batch-size 5760 --max-tokens-per-gpu 9216 "
        "--rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.7 --num-rollout 300",
        (120, 300),
        {"perf/step_time": 540.0, "perf/rollout_time": 245.6},
        "generation",
        "few running: ",
    ),
    "an optimizer on the host": Case(
        "https://github.com/ISEEKYAN/Megatron-LM/issues/188: 1,227 of 1,340 s are the optimizer's step on the host",
        "verl",
        "h100-80gb-sxm",
        "run.sh",
        VERL + "--config-name=ppo_megatron_trainer.yaml trainer.nnodes=2 data.train_batch_size=16 data.max_prompt_length=1024 "
        "data.max_response_length=8192 actor_rollout_ref.model.path=Qwen/Qwen3.5-35B-A3B "
        "actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
        "actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 "
        "actor_rollout_ref.actor.megatron.context_parallel_size=4 actor_rollout_ref.actor.megatron.expert_model_parallel_size=8 "
        "actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1 actor_rollout_ref.actor.megatron.param_offload=True "
        "actor_rollout_ref.actor.megatron.grad_offload=True actor_rollout_ref.actor.megatron.optimizer_offload=True "
        "+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full "
        "+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform "
        "+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1 "
        "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=8 "
        "actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
        (300, 4000),
        {"timing_s/step": 1580.0, "timing_s/gen": 150.0, "timing_s/old_log_prob": 70.0, "timing_s/update_actor": 1340.0},
        "update_actor",
        "offload: ",
    ),
    "weights in many small pieces": Case(
        "https://github.com/modal-projects/training-gym/pull/97: 44 to 58 min a sync, 132 chunks one after the other",
        "slime",
        "h100-80gb-sxm",
        "run.sh",
        COLOCATED + "--actor-num-nodes 1 --actor-num-gpus-per-node 8 --hf-checkpoint Qwen/Qwen3.5-35B-A3B "
        "--tensor-model-parallel-size 2 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 --recompute-granularity full "
        "--recompute-method uniform --recompute-num-layers 1 --optimizer-cpu-offload --rollout-batch-size 32 "
        "--n-samples-per-prompt 8 --rollout-max-response-len 2048 --global-batch-size 256 --max-tokens-per-gpu 8192 "
        "--rollout-num-gpus-per-engine 8 --sglang-mem-fraction-static 0.6 --num-rollout 30",
        (200, 1000),
        {"perf/step_time": 2900.0, "perf/rollout_time": 60.0, "perf/actor_train_time": 80.0, "perf/update_weights_time": 2640.0},
        "weight_sync",
        "weight sync: ",
    ),
    "rewards one after the other": Case(
        "https://github.com/mit-han-lab/fastrl/issues/6: rewards, which run programs one by one, are 40 % of a step, rollout 30 %",
        "verl",
        "h20",
        "run.sh",
        VERL + "trainer.nnodes=1 data.train_batch_size=128 data.max_prompt_length=2048 data.max_response_length=16384 "
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.model.use_remove_padding=True "
        "actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_dynamic_bsz=True "
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=18432 actor_rollout_ref.rollout.name=sglang "
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.n=8",
        (300, 1500),
        {
            "timing_s/step": 600.0, "timing_s/gen": 180.0, "timing_s/reward": 240.0, "timing_s/old_log_prob": 40.0,
            "timing_s/update_actor": 120.0,
        },
        "step",
        "waiting: 4 min 20 s of the step are in no stage (reward 4 min 0 s)",
    ),
    "a trainer that waits": Case(
        "https://github.com/NVIDIA-NeMo/RL/pull/3278: 174 s of a step of 226 s are exposed generation; a larger cache makes them 137",
        "nemo-rl",
        "h100-80gb-sxm",
        "recipe.yaml",
        json.dumps(
            {
                "defaults": str(BASES / "nemo-rl-2026-08.yaml"),
                "grpo": {
                    "num_prompts_per_step": 16, "num_generations_per_prompt": 32,
                    "async_grpo": {"enabled": True, "max_trajectory_age_steps": 1},
                },
                "loss_fn": {"use_importance_sampling_correction": True},
                "policy": {
                    "model_name": "Qwen/Qwen3-235B-A22B", "dtensor_cfg": {"enabled": False}, "train_micro_batch_size": 1,
                    "logprob_batch_size": 1, "max_total_sequence_length": 8192, "make_sequence_length_divisible_by": 4,
                    "megatron_cfg": {
                        "enabled": True, "tensor_model_parallel_size": 4, "sequence_parallel": True,
                        "pipeline_model_parallel_size": 8, "context_parallel_size": 1, "expert_model_parallel_size": 16,
                        "activation_checkpointing": True, "num_layers_in_first_pipeline_stage": 11,
                        "num_layers_in_last_pipeline_stage": 11, "defer_fp32_logits": True,
                    },
                    "generation": {
                        "colocated": {"enabled": False, "resources": {"num_nodes": 16, "gpus_per_node": 8}},
                        "vllm_cfg": {"tensor_parallel_size": 8, "async_engine": True, "gpu_memory_utilization": 0.8},
                    },
                },
                "cluster": {"gpus_per_node": 8, "num_nodes": 32},
            }
        ),
        (150, 5570),
        {"timing/train/total_step_time": 226.0, "timing/train/exposed_generation": 174.0},
        "notes",
        "idle trainer: 77% of a step training waits",
    ),
}  # fmt: skip
KEYS = {
    "verl": ("prompt_length/mean", "response_length/mean"),
    "nemo-rl": ("train/mean_prompt_length", "train/mean_gen_tokens_per_sample"),
    "slime": ("", "rollout/response_lengths"),
    "prime-rl": ("", ""),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_the_cause_that_was_found_is_named_first(tmp_path, name):
    case = CASES[name]
    config, log = tmp_path / case.file, tmp_path / "log.jsonl"
    config.write_text(case.text, encoding="utf-8")
    prompt, response = case.lengths
    lengths = dict(zip(KEYS[case.framework], case.lengths, strict=True))
    lengths |= {"rollout/total_lengths": prompt + response} if case.framework == "slime" else {}
    lengths.pop("", None)
    key = "rollout/step" if case.framework == "slime" else "step"
    log.write_text(
        "".join(json.dumps({key: step, **case.row, **lengths}) + "\n" for step in range(3)),
        encoding="utf-8",
    )
    options = replace(OPTIONS, gpu=case.gpu, mean_response=response, mean_prompt=prompt)
    found = imported(case.framework, [str(config)], options)
    facts = load_facts(found.resolved)
    own = RunContext(plan=complete(found.draft, found.resolved, facts), facts=facts)
    check = check_steps(log, own)
    if case.stage == "notes":
        assert any(note.startswith(case.cause) for note in check.notes)
        return
    every = {each.name: each for each in (check.step, *check.stages) if each is not None}
    assert every[case.stage].verdict == "slow"
    assert every[case.stage].causes[0].startswith(case.cause)


@pytest.mark.parametrize(
    ("steps", "key"),
    [
        ("verl-fsdp", " (actor_rollout_ref.model.use_remove_padding)"),
        ("skyrl-fsdp", " (trainer.remove_microbatch_padding)"),
        ("nemo-rl-megatron", " (policy.sequence_packing.enabled)"),
        ("slime", " (qkv-format)"),
        ("prime-rl", ""),
    ],
)
def test_packing_is_asked_for_by_the_key_of_the_frameworks_own(steps, key):
    subject: Any = SimpleNamespace(
        plan=SimpleNamespace(job=SimpleNamespace(framework=steps)), imported=None
    )
    assert causes._packing_key(subject) == key
