"""slime: a launch script of its flags and Megatron's, one a line."""

from typing import Final

from rlplan.planner.configs.megatron.writing import text_of_flags, trainer_leaves, write_flags
from rlplan.planner.configs.writing.export import UPDATE, Export

FILTER: Final = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


def write(export: Export) -> str:
    """Write a plan's values, and return the command that starts them."""
    if "critic" in export.roles and not trainer_leaves(export):
        where, problem = f"tasks.{UPDATE}.offload", "a trainer with a critic stays on its GPUs"
        raise export.refused(where, problem, "true, of all states", False)
    return write_flags(export, filter_path=FILTER)


def text_of(export: Export, start: str) -> str:
    """Return the script."""
    return text_of_flags(export, start)
