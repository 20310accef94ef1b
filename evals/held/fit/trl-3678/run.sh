trl grpo \
    --model_name_or_path Qwen/Qwen3-0.6B \
    --max_prompt_length 256 \
    --max_completion_length 256 \
    --use_vllm false \
    --num_processes 1
