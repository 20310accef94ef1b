# SkyRL's Search-R1 example of October 2025, as its documentation's table of back ends has it.
uv run --isolated --extra vllm -m skyrl_train.entrypoints.main_base \
  trainer.algorithm.advantage_estimator=grpo trainer.algorithm.use_kl_loss=true \
  trainer.policy.model.path=Qwen/Qwen2.5-3B-Instruct trainer.placement.colocate_all=true trainer.strategy=fsdp2 \
  trainer.ref.fsdp_config.cpu_offload=true trainer.placement.policy_num_gpus_per_node=8 \
  trainer.placement.ref_num_gpus_per_node=8 generator.num_inference_engines=4 \
  generator.inference_engine_tensor_parallel_size=2 generator.backend=vllm generator.weight_sync_backend=nccl \
  generator.gpu_memory_utilization=0.5 trainer.train_batch_size=512 trainer.policy_mini_batch_size=256 \
  trainer.micro_forward_batch_size_per_gpu=4 trainer.micro_train_batch_size_per_gpu=4 \
  trainer.max_prompt_length=2048 generator.max_input_length=4096 generator.sampling_params.max_generate_length=500 \
  generator.n_samples_per_prompt=5 generator.max_turns=4 environment.env_class=search
