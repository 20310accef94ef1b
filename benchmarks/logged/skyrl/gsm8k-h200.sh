# YottaLabs' guide to SkyRL on one H200 (26 March 2026).
uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base \
  trainer.algorithm.advantage_estimator=grpo trainer.policy.model.path=Qwen/Qwen2.5-1.5B-Instruct \
  trainer.strategy=fsdp2 trainer.placement.colocate_all=true trainer.placement.policy_num_gpus_per_node=1 \
  generator.inference_engine.backend=vllm generator.inference_engine.num_engines=1 \
  generator.inference_engine.tensor_parallel_size=1 generator.inference_engine.weight_sync_backend=nccl \
  environment.env_class=gsm8k
