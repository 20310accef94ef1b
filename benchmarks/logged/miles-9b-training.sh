python3 train.py \
    --colocate --actor-num-nodes 1 --actor-num-gpus-per-node 8 --megatron-to-hf-mode bridge \
    --hf-checkpoint Qwen/Qwen3.5-9B --rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.6 \
    --rollout-batch-size 8 --n-samples-per-prompt 8 --global-batch-size 64 --rollout-max-context-len 16384 --rollout-max-response-len 16128 \
    --advantage-estimator grpo \
    --tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1 \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --use-dynamic-batch-size --max-tokens-per-gpu 16384
