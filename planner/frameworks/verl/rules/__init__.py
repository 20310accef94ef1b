"""What verl asks for at run time, and its validator for the most part does not see.

Sources are files of verl 0.9.1: `workers/` and `trainer/ppo/` as the rules name them. Rules that earlier versions did
not have say since when there are.
"""

from typing import Final

from rlplan.planner.configs.broken import Rule
from rlplan.planner.frameworks.verl.rules import batches, modes, ranks

RULES: Final = (
    Rule(ranks.replicas_divide_the_gpus, "workers/engine_workers.py:659"),
    Rule(ranks.replicas_fill_nodes, "workers/rollout/replica.py:114"),
    Rule(
        ranks.tensor_ranks_stay_in_a_node, "workers/rollout/vllm_rollout/vllm_async_server.py:385"
    ),
    Rule(ranks.expert_ranks_are_all_of_a_replica, "workers/config/rollout.py"),
    Rule(ranks.only_tensorrt_pipelines, "workers/config/rollout.py"),
    Rule(ranks.model_ranks_divide_the_gpus, "utils/config.py: validate_config; Megatron-Core"),
    Rule(ranks.expert_ranks_divide_the_gpus, "Megatron-Core, parallel_state"),
    Rule(batches.mini_batches_divide, "workers/engine_workers.py:267"),
    Rule(batches.micro_batches_divide, "workers/engine/utils.py:125"),
    Rule(batches.micro_batches_are_given, "utils/config.py: validate_config"),
    Rule(batches.micro_batches_are_given_once, "utils/config.py: validate_config"),
    Rule(batches.batches_hold_a_mini_batch, "utils/config.py: validate_config"),
    Rule(batches.batches_balance, "utils/seqlen_balancing.py:147"),
    Rule(batches.budgets_hold_the_longest, "utils/seqlen_balancing.py:384"),
    Rule(batches.log_prob_budgets_hold_the_longest, "utils/seqlen_balancing.py:384"),
    Rule(batches.actor_and_log_probs_batch_alike, "workers/engine_workers.py:616", since="0.8"),
    Rule(batches.sequences_fit_the_engine, "vLLM, at the start of the engine"),
    Rule(batches.sequences_fit_the_model, "vLLM, at the start of the engine"),
    Rule(ranks.sequence_ranks_divide_the_heads, "models/transformers/monkey_patch.py:344"),
    Rule(ranks.sequence_ranks_want_packing, "utils/config.py: validate_config"),
    Rule(ranks.shards_divide_the_gpus, "PyTorch, init_device_mesh"),
    Rule(
        ranks.models_come_by_the_bridge,
        "workers/engine/megatron/transformer_impl.py:191",
        since="0.8",
    ),
    Rule(
        batches.interleaved_stages_take_whole_rounds,
        "workers/engine/megatron/transformer_impl.py:916",
    ),
    Rule(modes.separate_batches_are_sync_steps, "trainer/ppo/v1/trainer_separate_async.py:59"),
    Rule(modes.separate_rollout_has_nodes, "trainer/ppo/v1/trainer_separate_async.py:59"),
    Rule(modes.separate_weights_need_a_transport, "trainer/ppo/v1/trainer_separate_async.py:59"),
    Rule(modes.async_reward_models_have_a_pool, "trainer/ppo/v1/trainer_separate_async.py:59"),
    Rule(modes.reward_pools_have_gpus, "trainer/ppo/v1/trainer_base.py:825"),
    Rule(modes.reward_models_have_a_path, "trainer/config/reward"),
    Rule(
        modes.async_keeps_no_hybrid_engine,
        "experimental/fully_async_policy/fully_async_rollouter.py:350",
    ),
    Rule(
        modes.async_takes_prompts_one_by_one,
        "experimental/fully_async_policy/fully_async_rollouter.py:350",
    ),
    Rule(
        modes.async_counts_are_sound, "experimental/fully_async_policy/fully_async_rollouter.py:350"
    ),
    Rule(
        modes.async_keeps_log_probs, "experimental/fully_async_policy/fully_async_rollouter.py:350"
    ),
    Rule(modes.adapters_have_a_rank_of_the_engine, "utils/config.py: validate_config"),
    Rule(modes.losses_are_aggregated, "workers/config/actor.py"),
    Rule(modes.generation_is_asynchronous, "workers/config/rollout.py", since="0.7"),
    Rule(modes.validation_samples_with_a_temperature, "utils/config.py: validate_config"),
    Rule(modes.dynamic_context_needs_a_length, "utils/config.py: validate_config"),
    Rule(modes.disaggregation_has_an_engine, "workers/config/rollout.py"),
)
