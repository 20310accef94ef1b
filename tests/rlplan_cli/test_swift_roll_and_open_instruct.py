"""ms-swift, ROLL and open-instruct through the command: told by their words, imported, checked, and stopped by a rule."""

from pathlib import Path

import pytest

GPU = ("--gpu", "h100-80gb-sxm", "--mean-response", "300", "--mean-prompt", "100")
SWIFT = """
NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct --tuner_type full --use_vllm true \\
    --vllm_mode colocate --vllm_gpu_memory_utilization 0.4 --sleep_level 1 --offload_model true --offload_optimizer true \\
    --max_length 1024 --max_completion_length 2048 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \\
    --num_generations {samples} --deepspeed zero3
"""
ROLL = """
pretrain: Qwen/Qwen2.5-7B
rollout_batch_size: 64
num_return_sequences_in_group: 8
prompt_length: 1024
response_length: 2048
adv_estimator: grpo
actor_train:
  training_args: {{per_device_train_batch_size: 1, gradient_accumulation_steps: {samples}}}
  strategy_args:
    strategy_name: megatron_train
    strategy_config: {{tensor_model_parallel_size: 2, use_distributed_optimizer: true, recompute_granularity: full}}
  device_mapping: list(range(0,8))
  infer_batch_size: 4
actor_infer:
  strategy_args: {{strategy_name: vllm, strategy_config: {{gpu_memory_utilization: 0.7}}}}
  device_mapping: list(range(0,8))
reference:
  strategy_args: {{strategy_name: megatron_infer}}
  infer_batch_size: 4
  device_mapping: list(range(0,8))
"""
OPEN_INSTRUCT = """
python mason.py --cluster ai2/jupiter --gpus 8 --num_nodes 2 -- source setup.sh \\&\\& python open_instruct/grpo_fast.py \\
    --model_name_or_path Qwen/Qwen2.5-7B --num_unique_prompts_rollout 32 --num_samples_per_prompt_rollout {samples} \\
    --max_prompt_token_length 1024 --response_length 2048 --pack_length 4096 --num_learners_per_node 8 \\
    --vllm_num_engines 8 --deepspeed_stage 3 --gradient_checkpointing
"""


@pytest.mark.parametrize(
    ("name", "file", "text", "sound", "broken", "rule"),
    [
        ("ms-swift", "swift.sh", SWIFT, 8, 7, "groups-fill-what-is-generated"),
        ("roll", "roll.yaml", ROLL, 8, 7, "updates-divide-the-step"),
        ("open-instruct", "open.sh", OPEN_INSTRUCT, 8, 1, "groups-differ-where-equal-ones-are-dropped"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("project")
def test_a_configuration_is_imported_and_a_broken_one_is_stopped(
    rlplan, name, file, text, sound, broken, rule
):
    Path(file).write_text(text.format(samples=sound))
    answer = rlplan("import", name, file, *GPU, "--out", "new/job.yaml", "--plan", "new/plan.yaml")
    assert answer.code == 0, answer.err
    assert "not understood          0" in answer.err + answer.out
    assert rlplan("simulate", "new/plan.yaml").code == 0
    Path(file).write_text(text.format(samples=broken))
    stopped = rlplan("check", name, file, *GPU)
    assert stopped.code == 1
    assert f"[{rule}]" in stopped.out
