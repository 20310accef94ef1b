trl grpo \
    --model_name_or_path Qwen/Qwen3-4B \
    --per_device_train_batch_size 4 \
    --num_generations 4 \
    --max_prompt_length 2048 \
    --max_completion_length 1024 \
    --use_vllm false \
    --num_processes 1
