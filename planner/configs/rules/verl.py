"""What verl asks for at run time, and its validator for the most part does not see.

Sources are files of verl 0.9.1: `workers/` and `trainer/ppo/` as the rules name them.
"""

from typing import Final

from planner.configs.broken import Check, Rule
from planner.configs.rules.of_verl import batches, modes, ranks


def _rule(check: Check, source: str) -> Rule:
    return Rule(name=check.__name__.replace("_", "-"), source=source, check=check)


RULES: Final = (
    _rule(ranks.replicas_divide_the_gpus, "workers/engine_workers.py:659"),
    _rule(ranks.replicas_fill_nodes, "workers/rollout/replica.py:114"),
    _rule(
        ranks.tensor_ranks_stay_in_a_node, "workers/rollout/vllm_rollout/vllm_async_server.py:385"
    ),
    _rule(ranks.expert_ranks_are_all_of_a_replica, "workers/config/rollout.py"),
    _rule(ranks.only_tensorrt_pipelines, "workers/config/rollout.py"),
    _rule(ranks.model_ranks_divide_the_gpus, "utils/config.py: validate_config; Megatron-Core"),
    _rule(ranks.expert_ranks_divide_the_gpus, "Megatron-Core, parallel_state"),
    _rule(batches.mini_batches_divide, "workers/engine_workers.py:267"),
    _rule(batches.micro_batches_divide, "workers/engine/utils.py:125"),
    _rule(batches.micro_batches_are_given, "utils/config.py: validate_config"),
    _rule(batches.micro_batches_are_given_once, "utils/config.py: validate_config"),
    _rule(batches.batches_hold_a_mini_batch, "utils/config.py: validate_config"),
    _rule(batches.batches_balance, "utils/seqlen_balancing.py:147"),
    _rule(batches.budgets_hold_the_longest, "utils/seqlen_balancing.py:384"),
    _rule(batches.log_prob_budgets_hold_the_longest, "utils/seqlen_balancing.py:384"),
    _rule(batches.actor_and_log_probs_batch_alike, "workers/engine_workers.py:616"),
    _rule(batches.sequences_fit_the_engine, "vLLM, at the start of the engine"),
    _rule(batches.sequences_fit_the_model, "vLLM, at the start of the engine"),
    _rule(ranks.sequence_ranks_divide_the_heads, "models/transformers/monkey_patch.py:344"),
    _rule(ranks.sequence_ranks_want_packing, "utils/config.py: validate_config"),
    _rule(ranks.shards_divide_the_gpus, "PyTorch, init_device_mesh"),
    _rule(ranks.models_come_by_the_bridge, "workers/engine/megatron/transformer_impl.py:191"),
    _rule(
        batches.interleaved_stages_take_whole_rounds,
        "workers/engine/megatron/transformer_impl.py:916",
    ),
    _rule(modes.separate_batches_are_sync_steps, "trainer/ppo/v1/trainer_separate_async.py:59"),
    _rule(modes.separate_rollout_has_nodes, "trainer/ppo/v1/trainer_separate_async.py:59"),
    _rule(modes.separate_weights_need_a_transport, "trainer/ppo/v1/trainer_separate_async.py:59"),
    _rule(modes.async_reward_models_have_a_pool, "trainer/ppo/v1/trainer_separate_async.py:59"),
    _rule(modes.reward_pools_have_gpus, "trainer/ppo/v1/trainer_base.py:825"),
    _rule(modes.reward_models_have_a_path, "trainer/config/reward"),
    _rule(
        modes.async_keeps_no_hybrid_engine,
        "experimental/fully_async_policy/fully_async_rollouter.py:350",
    ),
    _rule(
        modes.async_takes_prompts_one_by_one,
        "experimental/fully_async_policy/fully_async_rollouter.py:350",
    ),
    _rule(
        modes.async_counts_are_sound, "experimental/fully_async_policy/fully_async_rollouter.py:350"
    ),
    _rule(
        modes.async_keeps_log_probs, "experimental/fully_async_policy/fully_async_rollouter.py:350"
    ),
    _rule(modes.adapters_have_a_rank_of_the_engine, "utils/config.py: validate_config"),
    _rule(modes.losses_are_aggregated, "workers/config/actor.py"),
    _rule(modes.generation_is_asynchronous, "workers/config/rollout.py"),
    _rule(modes.validation_samples_with_a_temperature, "utils/config.py: validate_config"),
    _rule(modes.dynamic_context_needs_a_length, "utils/config.py: validate_config"),
    _rule(modes.disaggregation_has_an_engine, "workers/config/rollout.py"),
)
