"""miles: a launch script of its flags and Megatron's, one a line."""

from typing import Final

from rlplan.planner.configs.megatron.writing import text_of_flags, write_flags
from rlplan.planner.configs.writing.export import Export

FILTER: Final = "miles.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


def write(export: Export) -> str:
    """Write a plan's values, and return the command that starts them."""
    start = write_flags(export, filter_path=FILTER)
    adapter = export.plan.job.adapter("actor")
    if adapter is not None:
        export.put("lora_rank", adapter.rank)
        export.put("lora_alpha", adapter.alpha or adapter.rank)
        export.values["target-modules"] = "all-linear"
    return start


def text_of(export: Export, start: str) -> str:
    """Return the script."""
    return text_of_flags(export, start)
