"""Which numbers make sense for a setting, by its name: counts begin at 1, shares end at 1, whatever framework's key gives them.

What one framework means by a value outside of its name's range stands in its own sheet (`least` of a setting): 0 prompts of a batch
that says only how many begin, -1 for no limit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

# More than any job has of what is counted.
MOST_COUNTED: Final = 1_000_000_000
# Words by which frameworks leave a number to themselves.
LEFT_OPEN: Final = frozenset({"auto", "none", "null", "inf", ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Say which numbers make sense.

    Attributes:
        least: The smallest; where `above` is set, what they have to be more than; -inf for none.
        most: The largest; inf for none.
        above: Whether `least` itself is too little.
        kind: What it is, for people.
        whole: Whether parts of one make no sense.
    """

    least: float
    most: float = MOST_COUNTED
    above: bool = False
    kind: str = "count"
    whole: bool = False

    def fault(self, value: object, least: float | None = None) -> tuple[str, str] | None:
        """Return what is wrong with a value, as a clause, and what is allowed; None where it makes sense or is left open.

        Args:
            least: The smallest in one framework, in place of the name's own.
        """
        if value is None or (isinstance(value, str) and value.strip().lower() in LEFT_OPEN):
            return None
        first, above = (self.least, self.above) if least is None else (least, False)
        allowed = (
            f"{'above' if above else 'from'} {first:,g}" if first > -math.inf else "any number"
        )
        allowed += "" if self.most == math.inf else f" to {self.most:,.0f}"
        number = _number(value)
        if number is None or (self.whole and not (math.isinf(number) or number.is_integer())):
            return f"is no {'whole ' if self.whole else ''}number", allowed
        inside = first < number if above else first <= number
        sound = not math.isnan(number) and inside and number <= self.most
        return None if sound else (f"is no possible {self.kind}", allowed)


def _number(value: object) -> float | None:
    """Return what a value counts, a variable's text too; None where it is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.inf if isinstance(value, int) else None  # more digits than a float has


COUNT: Final = Amount(least=1, whole=True)
# Where none is a number like others: copies beside, rows of a micro-batch that tokens fill, guesses (0 of which is how NeMo-RL turns
# them off: models/generation/vllm/vllm_worker.py).
COUNT_OR_NONE: Final = Amount(least=0, whole=True)
# Of tokens, some write a number beyond any batch for no limit (AReaL's own default is 10^12: utils/data.py, DEFAULT_MAX_TOKENS_PER_MB).
BUDGET: Final = replace(COUNT, most=math.inf)
# Steps from one to the next, where less than one, and more than there are, is never: 10^13 is written as well as -1.
INTERVAL: Final = Amount(least=-math.inf, most=math.inf, kind="interval")
# Steps of all, where -1 leaves the end to passes over the data.
ALL_STEPS: Final = Amount(least=-1, most=math.inf, kind="number of steps")
# What -1 leaves to the framework, or to the model.
LIMIT: Final = Amount(least=-1, kind="number")
# Ranks of a group, where any number below 0 is all of them (verl, workers/engine/fsdp/utils.py, create_device_mesh).
GROUP: Final = Amount(least=-math.inf, kind="number", whole=True)
SHARE: Final = Amount(least=0, most=1, above=True, kind="share")
TEMPERATURE: Final = Amount(least=0, kind="temperature")
SIZE: Final = Amount(least=0, most=math.inf, kind="size")
BUCKET: Final = Amount(least=0, most=math.inf, above=True, kind="size")
RATE: Final = Amount(least=0, kind="rate")
LEVEL: Final = Amount(least=0, most=2, kind="level")
PART: Final = Amount(least=0, most=1, kind="share")
BEHIND: Final = Amount(least=0, kind="number of steps")
PASSES: Final = Amount(least=0, above=True, kind="number of passes")

_NAMES: Final[Mapping[Amount, str]] = {
    COUNT: """
        prompts samples copies agents nodes gpus_per_node mini_prompts critic_mini_prompts update_sequences gen_prompts
        actor_nodes actor_gpus_per_node max_prompt max_response max_total max_session max_input max_tokens max_running running
        accumulation device_batch global_batch generation_batch generation_steps minibatches pack epochs
        critic_epochs rollout_tp rollout_dp rollout_pp rollout_ep server_tp server_dp teacher_tp teacher_dp teacher_pp teacher_ep
        reward_tp vllm_tp sglang_tp megatron_tp trtllm_tp vllm_pp sglang_pp megatron_pp trtllm_pp engine_pp engine_dp
        engine_gpus tp pp cp ep expert_tp chunks engine_tokens server_running teacher_running
        rollout_running engine_running vllm_running sglang_running megatron_running trtllm_running requests concurrency
        steps_a_rollout train_gpus machines sync_step sync_interval require_batches env_groups
        prefill_each decode_each teacher_top
    """,
    BUDGET: "token_budget infer_token_budget packed_tokens infer_packed_tokens",
    COUNT_OR_NONE: """
        micro_batch infer_micro_batch global_micro_batch rollout_nodes rollout_gpus reward_nodes teacher_nodes
        reference_nodes critic_nodes lora_rank redundancy validation_gpus infer_global_micro_batch validation_samples engines trigger
        rollout_gpus_per_node reward_gpus_per_node teacher_gpus_per_node
        reference_gpus_per_node critic_gpus_per_node first_stage_layers last_stage_layers expert_ranks
        megatron_expert_ranks teacher_expert_ranks speculation_tokens speculation_steps speculation_checked
    """,
    ALL_STEPS: "steps updates_of_training",
    INTERVAL: "validation_every checkpoint_every",
    LIMIT: "validation_prompts positions max_model_len server_model_len turns shard_degree replicas",
    GROUP: "shard_ranks",
    SHARE: """
        memory_fraction vllm_memory sglang_memory megatron_memory trtllm_memory server_memory teacher_memory rollout_memory
    """,
    TEMPERATURE: "temperature",
    SIZE: "host_cache_gib host_cache_bytes host_cache_ratio host_cache_rank_gb lora_alpha",
    BUCKET: "bucket_mebibytes bucket_gib bucket_bytes buffer_mb refit_buffer_gib",
    RATE: "learning_rate critic_learning_rate weight_decay",
    LEVEL: "sleep_level",
    PART: "memory_budget host_fraction",
    BEHIND: "staleness ahead off_policy_steps max_staleness",
    PASSES: "passes",
}
AMOUNTS: Final[Mapping[str, Amount]] = {
    name: amount for amount, names in _NAMES.items() for name in names.split()
}
# Settings that no plug-in reads, and those by which plug-ins divide: they are looked at first.
LOOKED_AT_FIRST: Final = (
    "passes", "steps", "updates_of_training", "engine_tokens", "prompts", "samples", "copies", "nodes", "max_prompt",
    "max_response", "max_running", "running", "validation_every", "checkpoint_every",
    "speculation_tokens", "speculation_steps", "speculation_checked",
)  # fmt: skip
# Settings that end a training by steps, and what means nothing beside them: public scripts write -1 passes then (EasyR1's
# trainer.max_steps; transformers, TrainingArguments, max_steps).
STEPS: Final = ("steps", "updates_of_training")
ENDED_BY_STEPS: Final = frozenset({"passes"})
