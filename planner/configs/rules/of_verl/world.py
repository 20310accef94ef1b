"""Sizes of a configuration of verl: GPUs, roles, ranks, lengths."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from planner.configs.broken import Subject, divides
from planner.configs.frameworks.verl import FULLY_ASYNC, trainer_of
from planner.configs.reading.settings import Settings
from rlplan.job import Role

MEGATRON: Final = ("megatron", "mlite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Hold the sizes of one role: GPUs, and how they are shared out."""

    trainer: str
    role: Role
    gpus: int
    tp: int
    pp: int
    cp: int
    dp: int

    def key(self, settings: Settings, name: str) -> str:
        """Return the key of one of its sizes."""
        return settings.key_of_size(self.trainer, self.role, name)


def world_of(settings: Settings) -> int:
    """Return the GPUs of the trainer's nodes."""
    return settings.whole("nodes") * settings.whole("gpus_per_node")


def roles_of(settings: Settings) -> Iterator[Role]:
    """Yield the roles that the trainer holds."""
    yield "actor"
    if settings.on("kl_loss") or settings.on("kl_reward"):
        yield "reference"
    if settings.word("estimator") == "ppo":
        yield "critic"


def sizes_of(settings: Settings, role: Role) -> Sizes:
    """Return the sizes of one role."""
    trainer, gpus = trainer_of(settings), world_of(settings)
    tp, pp, cp = (settings.whole_size(trainer, role, name, 1) or 1 for name in ("tp", "pp", "cp"))
    dp = gpus // (tp * pp * cp) if divides(tp * pp * cp, gpus) else 0
    return Sizes(trainer=trainer, role=role, gpus=gpus, tp=tp, pp=pp, cp=cp, dp=dp)


def sizes_of_roles(subject: Subject) -> Iterator[Sizes]:
    """Yield the sizes of each role that the trainer holds."""
    for role in roles_of(subject.settings):
        yield sizes_of(subject.settings, role)


def longest_of(settings: Settings) -> int:
    """Return the tokens of the longest prompt with the longest response."""
    return settings.whole("max_prompt") + settings.whole("max_response")


def is_async(subject: Subject) -> bool:
    """Tell whether training is fully asynchronous."""
    return FULLY_ASYNC in subject.start


def is_separate(subject: Subject) -> bool:
    """Tell whether V1 generates on nodes of its own."""
    return subject.settings.value("trainer_mode") == "separate_async" and not is_async(subject)


def rollout_gpus(subject: Subject) -> int:
    """Return the GPUs that generate."""
    settings = subject.settings
    nodes = settings.whole("rollout_nodes")
    return nodes * settings.whole("rollout_gpus_per_node") if nodes > 0 else world_of(settings)


def replica_gpus(settings: Settings) -> int:
    """Return the GPUs of one replica of the engine."""
    return (
        settings.whole("rollout_tp") * settings.whole("rollout_dp") * settings.whole("rollout_pp")
    )
