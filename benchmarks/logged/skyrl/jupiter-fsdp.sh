# The same user's run with FSDP 2, whose copy of skyrl_train shares experts out over 4 GPUs.
python -m skyrl_train.entrypoints.main_base \
  trainer.strategy=fsdp2 trainer.flash_attn=true trainer.gradient_checkpointing=true \
  trainer.algorithm.advantage_estimator=grpo trainer.algorithm.use_kl_loss=false trainer.algorithm.kl_loss_coef=0.0 \
  trainer.train_batch_size=32 trainer.policy_mini_batch_size=32 trainer.micro_forward_batch_size_per_gpu=1 \
  trainer.micro_train_batch_size_per_gpu=1 trainer.max_prompt_length=512 trainer.policy.model.path=Qwen/Qwen3-30B-A3B \
  trainer.policy.fsdp_config.cpu_offload=false trainer.policy.fsdp_config.reshard_after_forward=true \
  trainer.policy.fsdp_config.fsdp_size=4 trainer.placement.colocate_all=false \
  trainer.placement.colocate_policy_ref=true trainer.placement.policy_num_nodes=4 trainer.placement.ref_num_nodes=4 \
  trainer.placement.policy_num_gpus_per_node=4 trainer.placement.ref_num_gpus_per_node=4 \
  generator.backend=vllm generator.model_dtype=bfloat16 generator.enforce_eager=true \
  generator.inference_engine_tensor_parallel_size=1 generator.num_inference_engines=8 generator.n_samples_per_prompt=4 \
  generator.gpu_memory_utilization=0.85 generator.max_num_seqs=8 generator.max_num_batched_tokens=4096 \
  generator.run_engines_locally=true generator.weight_sync_backend=nccl generator.async_engine=true generator.batched=true \
  generator.sampling_params.max_generate_length=1024 generator.engine_init_kwargs.max_model_len=2048 \
  environment.env_class=gsm8k
