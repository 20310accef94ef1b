"""Nodes of a NeMo-RL cluster that neither train nor generate: those of teachers on GPUs of their own."""

from typing import Final

from planner.configs.reading.settings import Settings

OVERRIDES: Final = "on_policy_distillation.non_colocated_teachers.teacher_overrides"
TEACHERS: Final = "on_policy_distillation.teacher_model_by_agent_name"


def nodes_of_policy(settings: Settings) -> int:
    """Return the nodes that train and generate: the cluster's without those of teachers (algorithms/grpo.py)."""
    return settings.whole("nodes") - _teacher_nodes(settings)


def _teacher_nodes(settings: Settings) -> int:
    """Return the nodes of teachers: agents that share a checkpoint share its teacher, unless that is switched off."""
    if not settings.on("teaches") or not settings.on("teachers_apart"):
        return 0
    usual, nodes, seen = settings.whole("teacher_nodes"), 0, set()
    for key in settings.has(f"{TEACHERS}.*"):
        checkpoint = str(settings.flat[key].value)
        if settings.on("teachers_shared") and checkpoint in seen:
            continue
        seen.add(checkpoint)
        own = settings.flat.get(f"{OVERRIDES}.{key.removeprefix(f'{TEACHERS}.')}.num_nodes")
        nodes += own.value if own is not None and isinstance(own.value, int) else usual
    return nodes
