CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
NPROC_PER_NODE=8 \
swift rlhf \
    --rlhf_type grpo \
    --model Qwen/QwQ-32B \
    --model_type qwq \
    --attn_impl flash_attn \
    --gradient_checkpointing true \
    --use_vllm false \
    --tuner_type full \
    --torch_dtype bfloat16 \
    --max_completion_length 2048 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 1 \
    --per_device_eval_batch_size 1 \
    --learning_rate 1e-06 \
    --gradient_accumulation_steps 8 \
    --max_length 2048 \
    --num_generations 8 \
    --deepspeed zero3 \
    --offload_model true \
    --offload_optimizer true
