"""What verl and frameworks that are built on it read alike: updates, batches that are generated, losses and rates."""

from typing import Final

from rlplan.job import Hyperparameters, KlPlace
from rlplan.planner.configs.losses import given_losses, gradient_norm, kl_place
from rlplan.planner.configs.reading.settings import RoleSettings, Settings
from rlplan.planner.configs.sizes import nearest_divisor

# They always have a dual clip; a ratio is never that large.
NO_DUAL_CLIP: Final = 1e6
# ZeRO's stage of FSDP that keeps whole parameters between a layer's forward and backward pass.
GRADIENTS: Final = 2


def doubt_attention(settings: Settings) -> None:
    """Say that attention of transformers' layers by other kernels than FlashAttention's is not counted.

    PyTorch's own with a mask (`sdpa`) and products that write all scores (`eager`) take as long as they will for padded rows, and
    mask packed ones from each other in a square of all of a micro-batch's tokens.
    """
    if "flash" in str(settings.value("model_attention")):
        return
    if not settings.on("reads_attention"):
        settings.leave_out(
            "model_attention", "this version takes FlashAttention 2, whatever it says"
        )
    else:
        settings.doubt(
            "model_attention",
            "attention by other kernels than FlashAttention's: without it a user's padded passes and updates of a 4B on A800 took 1.5 and "
            "1.6 times their forecast",
        )


def updates_of_rows(settings: Settings, rows: int, copies: int) -> int:
    """Return the updates of a step whose batch has so many rows, each sampled so many times.

    verl, workers/fsdp_workers.py multiplies `ppo_mini_batch_size` by `rollout.n`, and EasyR1 `global_batch_size`. A last
    update that is smaller is none of a job's: the nearest number is taken, which is a doubt.

    Raises:
        FileError: A batch is empty.
    """
    mini = settings.whole("mini_prompts")
    for key, size in (("mini_prompts", mini), ("prompts", rows)):
        if size < 1:
            raise settings.refused(key, "is no batch", "at least 1")
    if rows % mini:
        settings.doubt("mini_prompts", f"updates that do not divide a step's {rows:,} prompts")
    return nearest_divisor(rows * copies, rows / mini)


def generated_prompts(settings: Settings) -> tuple[int, int]:
    """Return the prompts that a step learns from, and those of a batch that is generated for it."""
    prompts = settings.whole("prompts")
    return prompts, settings.optional_whole("gen_prompts") or prompts


def doubt_updates_of_critics(settings: Settings) -> None:
    """Say where a critic has other updates than the actor, which no job has."""
    for own, actors in (("critic_mini_prompts", "mini_prompts"), ("critic_epochs", "epochs")):
        if settings.whole(own) != settings.whole(actors):
            settings.doubt(own, "other updates of the critic than of the actor")


def hyperparameters_of(
    settings: Settings, actor: RoleSettings, algorithm: str, kind: KlPlace, weight: float
) -> Hyperparameters:
    """Return what a configuration says of losses and optimizers.

    Args:
        actor: What is set of the actor's trainer.
        kind: Where the penalty goes.
        weight: Of the penalty.
    """
    losses, usual = given_losses(settings, algorithm), Hyperparameters()
    if (losses.get("clip_ratio_dual") or 0.0) >= NO_DUAL_CLIP:
        del losses["clip_ratio_dual"]
    return Hyperparameters(
        **losses,
        max_gradient_norm=gradient_norm(actor),
        learning_rate=settings.number("learning_rate") or usual.learning_rate,
        critic_learning_rate=settings.number("critic_learning_rate"),
        temperature=settings.number("temperature") or usual.temperature,
        **kl_place(kind, weight),
    )
