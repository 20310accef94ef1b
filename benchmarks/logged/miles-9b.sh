python3 train.py \
    --colocate --actor-num-nodes 1 --actor-num-gpus-per-node 8 --megatron-to-hf-mode bridge \
    --hf-checkpoint Qwen/Qwen3.5-9B --rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.6 \
    --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256 --rollout-max-response-len 8192 \
    --advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28 \
    --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1 \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --use-dynamic-batch-size --max-tokens-per-gpu 9216
