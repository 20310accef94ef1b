python3 train.py \
    --actor-num-nodes 1 --actor-num-gpus-per-node 2 --rollout-num-gpus 2 --num-gpus-per-node 4 --megatron-to-hf-mode bridge \
    --hf-checkpoint Qwen/Qwen3-VL-4B-Instruct --rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7 --sglang-disable-cuda-graph \
    --rollout-batch-size 16 --n-samples-per-prompt 8 --global-batch-size 64 --rollout-max-response-len 3072 \
    --advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28 \
    --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1 \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --use-dynamic-batch-size --max-tokens-per-gpu 2048
