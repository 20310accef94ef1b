NPROC_PER_NODE=6 \
swift rlhf \
    --rlhf_type grpo \
    --model Qwen/Qwen2.5-3B-Instruct \
    --use_vllm true \
    --vllm_mode server \
    --vllm_server_base_url http://0.0.0.0:8000 \
    --tuner_type full \
    --torch_dtype bfloat16 \
    --max_length 2048 \
    --max_completion_length 2048 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 8 \
    --num_generations 4 \
    --deepspeed zero3
