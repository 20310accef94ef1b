"""Sizes of a configuration of verl: GPUs, roles, ranks, lengths."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

from rlplan.job import Role
from rlplan.planner.configs.broken import divides
from rlplan.planner.configs.reading.settings import RoleSettings, Settings
from rlplan.planner.frameworks.verl.reading import (
    CUTS_EXPERTS,
    FULLY_ASYNC,
    of_role,
    roles_of,
    trainer_of,
)

MEGATRON: Final = ("megatron", "mlite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(RoleSettings):
    """Hold the sizes of one role: GPUs, and how they are shared out."""

    gpus: int
    tp: int
    pp: int
    cp: int
    dp: int


def world_of(settings: Settings) -> int:
    """Return the GPUs of the trainer's nodes."""
    return settings.whole("nodes") * settings.whole("gpus_per_node")


def sizes_of(settings: Settings, role: Role) -> Sizes:
    """Return the sizes of one role."""
    trainer, gpus = trainer_of(settings), world_of(settings)
    own = of_role(settings, trainer, role)
    tp, pp, cp = (own.whole(name) for name in ("tp", "pp", "cp"))
    dp = gpus // (tp * pp * cp) if divides(tp * pp * cp, gpus) else 0
    return Sizes(settings, trainer, role, own.layout_of, gpus=gpus, tp=tp, pp=pp, cp=cp, dp=dp)


def sizes_of_roles(settings: Settings) -> Iterator[Sizes]:
    """Yield the sizes of each role that the trainer holds."""
    for role in roles_of(settings):
        yield sizes_of(settings, role)


def longest_of(settings: Settings) -> int:
    """Return the tokens of the longest prompt with the longest response."""
    return settings.whole("max_prompt") + settings.whole("max_response")


def is_async(settings: Settings) -> bool:
    """Tell whether training is fully asynchronous."""
    return FULLY_ASYNC in settings.start


def is_separate(settings: Settings) -> bool:
    """Tell whether V1 generates on nodes of its own."""
    return settings.value("trainer_mode") == "separate_async" and not is_async(settings)


def rollout_gpus(settings: Settings) -> int:
    """Return the GPUs that generate."""
    nodes = settings.whole("rollout_nodes")
    return nodes * settings.whole("rollout_gpus_per_node") if nodes > 0 else world_of(settings)


def replica_gpus(settings: Settings) -> int:
    """Return the GPUs of one replica of the engine."""
    return prod(settings.whole(f"rollout_{size}") for size in ("tp", "dp", "pp"))


def is_tensorrt(settings: Settings) -> bool:
    """Tell whether TensorRT-LLM generates."""
    return settings.word("rollout_engine").startswith(CUTS_EXPERTS)
