# What a user of open-r1 says of his GRPO on four H100 without vLLM (TRL 0.14, 26 January 2025).
accelerate launch --use_deepspeed --zero_stage 3 --offload_optimizer_device cpu --offload_param_device none \
    --mixed_precision bf16 --num_processes 4 --num_machines 1 src/open_r1/grpo.py \
    --output_dir output \
    --model_name_or_path Qwen/Qwen2.5-Coder-7B \
    --dataset_name custom \
    --max_prompt_length 512 \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 16 \
    --logging_steps 1 \
    --bf16 \
    --max_completion_length 4096 \
    --temperature 0.6 \
    --num_generations 2
