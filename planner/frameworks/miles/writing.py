"""miles: a launch script of its flags and Megatron's, one a line."""

from typing import Final

from rlplan.planner.configs.megatron.writing import text_of_flags, write_flags
from rlplan.planner.configs.writing.export import Export
from rlplan.planner.frameworks.miles.reading import WITH_ENTROPY

# Steps whose samples its buffer holds where nobody says it.
BUFFER: Final = 2
FILTER: Final = "miles.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


def write(export: Export) -> str:
    """Write a plan's values, and return the command that starts them."""
    adapter = export.plan.job.adapter("actor")
    if adapter is not None and export.penalty[0] != "none":
        where, problem = "job.adapters.actor", "trains an adapter beside a reference"
        raise export.refused(
            where, problem, "no KL penalty, or all weights", f"rank {adapter.rank}"
        )
    start = write_flags(export, filter_path=FILTER)
    if export.plan.job.trainer("actor").logits == WITH_ENTROPY:
        export.put("observes_entropy", True)
    if export.plan.flow.is_endless:
        _endless(export)
    if adapter is not None:
        if adapter.sync != "adapter":
            where, problem = "job.adapters.actor.sync", "merges adapters before engines get them"
            raise export.refused(where, problem, "adapter", adapter.sync)
        export.put("lora_rank", adapter.rank)
        export.put("lora_alpha", adapter.alpha or adapter.rank)
        export.values["target-modules"] = "all-linear"
    return start


def _endless(export: Export) -> None:
    """Write a rollout that never stops: how old samples get at most, and what becomes of those under way.

    A step's samples are under way, and as many as make up the rest of the age wait in the buffer (rollout/fully_async_rollout.py).
    """
    age = int(export.plan.staleness)
    if export.plan.in_flight == "drain":
        problem = "waits for responses under way before weights are synced"
        raise export.refused("in_flight", problem, "keep, recompute", export.plan.in_flight)
    export.put("fully_async", True)
    export.put("max_staleness", age)
    export.put("async_buffer", float(max(BUFFER, age - 1)))
    export.put("pauses", export.plan.in_flight)


def text_of(export: Export, start: str) -> str:
    """Return the script."""
    return text_of_flags(export, start)
