NPROC_PER_NODE=8 \
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
swift rlhf \
    --rlhf_type grpo \
    --model Qwen/Qwen3-1.7B \
    --model_type qwen3 \
    --reward_funcs external_countdown format \
    --use_vllm true \
    --vllm_mode colocate \
    --tuner_type lora \
    --torch_dtype bfloat16 \
    --max_length 2048 \
    --max_completion_length 1024 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 8 \
    --per_device_eval_batch_size 8 \
    --learning_rate 5e-07 \
    --gradient_accumulation_steps 8 \
    --eval_steps 500 \
    --save_steps 100 \
    --num_generations 8 \
    --temperature 1.0 \
    --deepspeed zero3_offload
