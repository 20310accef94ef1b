NNODES=1 \
NPROC_PER_NODE=8 \
swift rlhf \
    --rlhf_type grpo \
    --model Qwen/Qwen2.5-VL-72B-Instruct \
    --train_type lora \
    --dataset AI-MO/NuminaMath-TIR \
    --torch_dtype bfloat16 \
    --num_train_epochs 2 \
    --max_length 4096 \
    --per_device_train_batch_size 1 \
    --per_device_eval_batch_size 1 \
    --gradient_accumulation_steps 1 \
    --learning_rate 1e-4 \
    --max_completion_length 2048 \
    --num_generations 8 \
    --use_vllm true \
    --vllm_mode server \
    --vllm_server_host 10.0.0.12 \
    --vllm_server_port 8000 \
    --deepspeed zero3 \
    --log_completions true
