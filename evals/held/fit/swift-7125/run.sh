NPROC_PER_NODE=8 \
NNODES=16 \
swift rlhf \
    --rlhf_type grpo \
    --model Qwen/Qwen3-235B-A22B-Instruct-2507 \
    --use_vllm true \
    --vllm_mode colocate \
    --vllm_gpu_memory_utilization 0.7 \
    --vllm_max_model_len 10240 \
    --tuner_type lora \
    --lora_rank 128 \
    --torch_dtype bfloat16 \
    --max_completion_length 2048 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 1 \
    --per_device_eval_batch_size 1 \
    --learning_rate 1e-06 \
    --gradient_accumulation_steps 1 \
    --sleep_level 1 \
    --offload_optimizer true \
    --offload_model true \
    --vllm_tensor_parallel_size 8 \
    --vllm_enable_expert_parallel true \
    --max_length 8192 \
    --num_generations 8 \
    --deepspeed zero3
