python3 train.py \
    --colocate --actor-num-nodes 2 --actor-num-gpus-per-node 8 \
    --hf-checkpoint Qwen/Qwen3-4B --rollout-num-gpus 16 --rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.8 \
    --rollout-batch-size 16 --n-samples-per-prompt 8 --num-steps-per-rollout 1 --global-batch-size 128 --rollout-max-response-len 8192 \
    --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.00 --kl-loss-type low_var_kl --eps-clip 0.2 --eps-clip-high 0.28 \
    --get-mismatch-metrics \
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --context-parallel-size 1 --expert-model-parallel-size 1 --sequence-parallel \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --use-dynamic-batch-size --max-tokens-per-gpu 8192
