# SkyRL's recipe of DAPO with Qwen3.5-9B on eight H100 (August 2026), as its documentation's table of speculative decoding has it:
# eight engines, where the recipe without it has four of two GPUs.
uv run --isolated --extra megatron -m examples.train.algorithms.dapo.main_dapo \
  trainer.algorithm.advantage_estimator=grpo trainer.algorithm.policy_loss_type=dual_clip trainer.algorithm.use_kl_loss=false \
  trainer.algorithm.loss_reduction=token_mean trainer.policy.model.path=Qwen/Qwen3.5-9B trainer.placement.colocate_all=true \
  trainer.strategy=megatron trainer.placement.policy_num_nodes=1 trainer.placement.policy_num_gpus_per_node=8 \
  trainer.policy.megatron_config.tensor_model_parallel_size=4 trainer.policy.megatron_config.pipeline_model_parallel_size=1 \
  trainer.policy.megatron_config.context_parallel_size=1 trainer.policy.megatron_config.expert_model_parallel_size=1 \
  trainer.algorithm.off_policy_correction.tis_ratio_type=token trainer.algorithm.off_policy_correction.token_tis_ratio_clip_high=2.0 \
  trainer.remove_microbatch_padding=false trainer.update_epochs_per_batch=1 trainer.train_batch_size=32 \
  trainer.policy_mini_batch_size=32 trainer.micro_forward_batch_size_per_gpu=1 trainer.micro_train_batch_size_per_gpu=1 \
  trainer.max_prompt_length=2048 generator.sampling_params.max_generate_length=8192 generator.n_samples_per_prompt=8 \
  generator.inference_engine.num_engines=8 generator.inference_engine.tensor_parallel_size=1 \
  generator.inference_engine.enforce_eager=true generator.inference_engine.gpu_memory_utilization=0.5 \
  generator.inference_engine.backend=vllm generator.inference_engine.run_engines_locally=true \
  generator.inference_engine.weight_sync_backend=nccl generator.inference_engine.async_engine=true generator.batched=true \
  environment.env_class=aime
