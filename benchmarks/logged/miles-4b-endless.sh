python3 train_async.py --fully-async --max-weight-staleness 64 --pause-generation-mode in_place \
    --actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-num-gpus 8 --num-gpus-per-node 8 \
    --hf-checkpoint Qwen/Qwen3-4B-Instruct-2507 --rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.7 \
    --rollout-batch-size 192 --n-samples-per-prompt 16 --global-batch-size 3072 \
    --rollout-max-response-len 32768 --rollout-max-context-len 32768 \
    --advantage-estimator grpo \
    --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1 \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --use-dynamic-batch-size --max-tokens-per-gpu 32768
