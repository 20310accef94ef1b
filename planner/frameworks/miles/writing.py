"""miles: a launch script of its flags and Megatron's, one a line."""

from typing import Final

from rlplan.planner.configs.megatron.writing import text_of_flags, write_flags
from rlplan.planner.configs.writing.export import Export

# Steps whose samples its buffer holds where nobody says it.
BUFFER: Final = 2
FILTER: Final = "miles.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


def write(export: Export) -> str:
    """Write a plan's values, and return the command that starts them."""
    start = write_flags(export, filter_path=FILTER)
    if export.plan.flow.is_endless:
        _endless(export)
    adapter = export.plan.job.adapter("actor")
    if adapter is not None:
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
