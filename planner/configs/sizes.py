"""Sizes that frameworks have in common: copies of a model, micro-batches, off-loading, engines without graphs."""

from typing import Final

from planner.configs.reading.settings import Settings
from planner.plans.trained import TrainerSizes
from profiles.sheets import engine_names
from rlplan.job import Role

# Launches every kernel, without CUDA graphs, where there is such a sheet.
EAGER: Final = "{}-eager"


def divided(settings: Settings, key: str, gpus: int, model_gpus: int) -> int:
    """Return how many copies of a model's GPUs a pool has.

    Raises:
        FileError: The sizes do not divide the pool.
    """
    if model_gpus < 1 or gpus % model_gpus:
        problem = (
            f"the sizes take {model_gpus} GPUs together, which do not divide the pool's {gpus}"
        )
        allowed = "sizes whose product divides it"
        raise settings.refused_key(key, problem, allowed)
    return gpus // model_gpus


def role_sizes(settings: Settings, trainer: str, role: Role, gpus: int, pool: str) -> TrainerSizes:
    """Return the sizes of a role's model as a sheet's trainer has them, without recomputation."""

    def size(name: str, usual: int = 1) -> int:
        return settings.whole_size(trainer, role, name, usual) or usual

    tp, pp, cp, ep = (size(name) for name in ("tp", "pp", "cp", "ep"))
    parts = [name for name in ("tp", "cp", "pp") if name in settings.sheet.trainers[trainer].sizes]
    named = next((name for name in parts if size(name) > 1), parts[0])
    key = settings.key_of_size(trainer, role, named)
    dp = divided(settings, key, gpus, tp * pp * cp)
    shard_ranks = settings.whole_size(trainer, role, "shard_ranks", -1) or -1
    dynamic = settings.size_is_on(trainer, role, "dynamic")
    ranks = 1 if settings.sheet.trainers[trainer].tokens_of_all_ranks else cp
    budget = size("token_budget", 0) * ranks or None if dynamic else None
    micro_batch = size("micro_batch", 0) or max(1, size("global_micro_batch", 0) // gpus)
    away = any(
        settings.size_is_on(trainer, role, name)
        for name in ("param_offload", "optimizer_offload", "cpu_offload", "cpu_optimizer")
    )
    held = settings.size_is_on(trainer, role, "param_offload") or settings.size_is_on(
        trainer, role, "cpu_offload"
    )
    return TrainerSizes(
        pool=pool,
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        ep=ep,
        expert_tp=settings.whole_size(trainer, role, "expert_tp") if ep > 1 else None,
        first_stage_layers=settings.whole_size(trainer, role, "first_stage_layers"),
        last_stage_layers=settings.whole_size(trainer, role, "last_stage_layers"),
        chunks=size("chunks"),
        shard_ranks=shard_ranks if 0 < shard_ranks < dp * cp else None,
        micro_batch=micro_batch,
        token_budget=budget,
        infer_micro_batch=micro_batch,
        infer_token_budget=budget,
        offload=held if role == "reference" else away,
        infer_offload=held if role == "reference" else None,
    )


def eager_engine(name: str, *, eager: bool) -> str:
    """Return the engine sheet of an engine, with or without CUDA graphs."""
    without = EAGER.format(name)
    return without if eager and without in engine_names() else name
