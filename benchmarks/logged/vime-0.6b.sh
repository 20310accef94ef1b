python3 train.py \
    --colocate --actor-num-nodes 1 --actor-num-gpus-per-node 1 \
    --hf-checkpoint Qwen/Qwen3-0.6B --rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.4 \
    --rollout-batch-size 8 --n-samples-per-prompt 2 --global-batch-size 16 --rollout-max-response-len 192 \
    --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.001 --entropy-coef 0 \
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --context-parallel-size 1 \
    --accumulate-allreduce-grads-in-fp32 --use-dynamic-batch-size --max-tokens-per-gpu 4096
