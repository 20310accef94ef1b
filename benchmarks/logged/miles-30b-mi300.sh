python3 train.py \
    --colocate --actor-num-nodes 1 --actor-num-gpus-per-node 8 \
    --hf-checkpoint Qwen/Qwen3-30B-A3B --rollout-num-gpus-per-engine 8 --sglang-mem-fraction-static 0.7 \
    --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256 --rollout-max-response-len 8192 \
    --advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28 \
    --tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1 \
    --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 --optimizer-cpu-offload \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --use-dynamic-batch-size --max-tokens-per-gpu 20480
