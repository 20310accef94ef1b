NPROC_PER_NODE=7 \
swift rlhf \
    --rlhf_type grpo \
    --model Qwen/Qwen2.5-3B-Instruct \
    --use_vllm true \
    --vllm_mode server \
    --tuner_type lora \
    --gradient_checkpointing true \
    --lora_rank 64 \
    --lora_alpha 64 \
    --torch_dtype bfloat16 \
    --max_completion_length 1024 \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 6 \
    --max_length 3072 \
    --num_generations 7
