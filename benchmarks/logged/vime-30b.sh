python3 train.py \
    --colocate --actor-num-nodes 1 --actor-num-gpus-per-node 8 \
    --hf-checkpoint Qwen/Qwen3-30B-A3B --rollout-num-gpus-per-engine 8 --sglang-mem-fraction-static 0.4 \
    --rollout-batch-size 2 --n-samples-per-prompt 2 --global-batch-size 4 --rollout-max-response-len 512 \
    --advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28 --kl-loss-coef 0 --entropy-coef 0 \
    --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1 \
    --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer \
    --accumulate-allreduce-grads-in-fp32 --use-dynamic-batch-size --max-tokens-per-gpu 2048
