python3 -m verl.trainer.main_ppo --config-path=config --config-name='ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=grpo data.train_batch_size=32 data.max_prompt_length=1024 data.max_response_length=2048 \
    data.image_key=images actor_rollout_ref.model.path=Qwen/Qwen3.5-9B \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096 \
    actor_rollout_ref.model.use_remove_padding=False actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1 \
    actor_rollout_ref.ref.megatron.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.tensor_model_parallel_size=8 actor_rollout_ref.rollout.gpu_memory_utilization=0.35 actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.rollout.free_cache_engine=True trainer.n_gpus_per_node=8 trainer.nnodes=1
