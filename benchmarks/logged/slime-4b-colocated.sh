python3 train.py \
    --colocate --actor-num-nodes 1 --actor-num-gpus-per-node 8 \
    --hf-checkpoint Qwen/Qwen3-4B --rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.35 \
    --sglang-max-running-requests 32 --sglang-cuda-graph-max-bs 8 \
    --rollout-batch-size 8 --n-samples-per-prompt 16 --global-batch-size 32 --rollout-max-response-len 8192 \
    --advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28 \
    --tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1 \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --use-dynamic-batch-size --max-tokens-per-gpu 2048
