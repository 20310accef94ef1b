"""TRL's GKD: a student learns from whole distributions of a teacher, of its own responses or of texts at hand, batch by batch.

Each micro-batch is generated with probability `lmbda`, by `generate` of transformers in the trainers' own processes, and of the
data set otherwise; the teacher's pass over it stands before the student's, on the same GPU (experimental/gkd/gkd_trainer.py:
training_step, compute_loss).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rlplan.job import Hyperparameters, Teacher
from rlplan.plan import TaskPlan
from rlplan.planner.configs.losses import given_losses, kl_place
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.run import Run, Work
from rlplan.planner.configs.trl_family import GATHERING, STATIC, Batches, Processes
from rlplan.planner.frameworks.trl.batches import device_batch
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.rules.layouts import FULLY_SHARDED

ALGORITHM: Final = "on-policy-distillation"
GKD: Final = "gkd"
TEACHER: Final = Teacher(top_tokens="all")
# Engines that pad each micro-batch to its own longest sequence, as its collator does, by what wraps the model.
PADDED: Final = {
    "deepspeed": "deepspeed-hf-padded",
    "fsdp": "fsdp2-hf-autocast-padded",
    "ddp": "ddp-hf-padded",
}
# Generation without a cache of keys and values, which stays off where gradients are checkpointed.
WITHOUT_CACHE: Final = {
    STATIC: "transformers-no-cache",
    GATHERING: "transformers-no-cache-gathering",
}
FUSED, MIXED, FORWARD, REVERSE = (
    "fused-jensen-shannon",
    "jensen-shannon",
    "forward-kl",
    "reverse-kl",
)
# Settings that GKD's trainer has and GRPO's has not, and the other way around.
OWN: Final = (
    "student_share", "student_tokens", "longest_text", "teacher_writes", "teacher_model", "packs_texts", "unpadded_texts",
)  # fmt: skip
OTHERS: Final = (
    "samples", "max_prompt", "max_response", "generation_steps", "generation_batch", "epochs", "server_mode",
    "memory_fraction", "reward_functions",
)  # fmt: skip
NO_CACHE: Final = (
    "responses are generated without a cache of keys and values, since gradients are checkpointed: "
    "gradient_checkpointing=False keeps one"
)


def distils(settings: Settings) -> bool:
    """Tell whether GKD's trainer trains, by its start."""
    return GKD in settings.start.lower()


def batches_of(settings: Settings, processes: Processes) -> Batches:
    """Return what an optimizer step learns from: rows of the data set, of which each micro-batch generates for itself."""
    batch, accumulation = device_batch(settings, processes.count), settings.whole("accumulation")
    if accumulation < 1:
        raise settings.refused("accumulation", "is no number of micro-batches", "at least 1")
    return Batches(
        completions=batch * accumulation * processes.count,
        parts=accumulation,
        epochs=1,
        updates=1,
        divides=True,
        micro_batch=batch,
        rank_part=batch,
    )


def check(settings: Settings) -> None:
    """Refuse what generates nothing, or what lets the teacher write.

    Raises:
        FileError: Names the key.
    """
    if settings.on("use_vllm"):
        problem = "is none of GKD's keys, whose responses `generate` of transformers makes"
        raise settings.refused("use_vllm", problem, "off")
    share = settings.number("student_share")
    if not 0 < share <= 1:
        problem = "leaves the student no response of its own: that trains on texts alone, which no job says"
        raise settings.refused("student_share", problem, "above 0, at most 1")
    if settings.on("teacher_writes") and share < 1:
        problem = "lets the teacher write the texts that the student does not, which no job says"
        raise settings.refused("teacher_writes", problem, "off, or lmbda=1")


def texts_share(settings: Settings) -> float:
    """Return the share of micro-batches whose responses are texts at hand, on average."""
    return round(1 - settings.number("student_share"), 9)


def work_of(settings: Settings, batches: Batches) -> Work:
    """Return the work of an optimizer step.

    Raises:
        FileError: Nothing limits its texts.
    """
    longest, response = settings.optional_whole("longest_text"), settings.whole("student_tokens")
    if longest is None:
        raise settings.refused("longest_text", "leaves texts without a limit", "a whole number")
    return Work(
        prompts=batches.completions,
        samples=1,
        max_prompt=longest,
        max_response=response,
        max_total=longest + response,
        texts=texts_share(settings),
        max_text=longest,
    )


def loss_of(settings: Settings) -> Hyperparameters:
    """Return what the loss and its optimizer need."""
    given = given_losses(settings, ALGORITHM)
    names = ("learning_rate", "weight_decay", "epsilon", "max_gradient_norm", "betas")
    kept = {name: given[name] for name in names if name in given}
    return Hyperparameters(
        **kept, temperature=settings.number("temperature") or 1.0, **kl_place("none", 0.0)
    )


def logits_of(settings: Settings) -> str:
    """Return the way in which whole distributions are compared.

    Raises:
        FileError: It is none.
    """
    beta = settings.number("kl_weight")
    if not 0 <= beta <= 1:
        raise settings.refused("kl_weight", "is no share of two divergences", "from 0 to 1")
    if settings.on("liger_kernel"):
        return FUSED
    return {0.0: FORWARD, 1.0: REVERSE}.get(beta, MIXED)


def generated_by(settings: Settings, layout: TaskPlan) -> TaskPlan:
    """Return the layout of generation, without a cache where gradients are checkpointed."""
    return replace(layout, engine=WITHOUT_CACHE[layout.engine]) if uncached(settings) else layout


def uncached(settings: Settings) -> bool:
    """Tell whether `generate` keeps no keys and values."""
    return settings.on("checkpoints")


def sizes_of(trainer: str, sizes: TrainerSizes) -> TrainerSizes:
    """Return a teacher's sizes: whole on each GPU, but where DeepSpeed shards all that it holds."""
    sharded = trainer == "deepspeed" and sizes.zero_stage == FULLY_SHARDED
    return sizes if sharded else replace(sizes, zero_stage=0)


def distilled(settings: Settings, run: Run) -> Run:
    """Return a run with what GKD's loop does otherwise than GRPO's."""
    trainer, engine = run.trainer, PADDED[run.trainer]
    way, generate = logits_of(settings), generated_by(settings, run.generate)
    return replace(
        run,
        algorithm=ALGORITHM,
        teacher=TEACHER,
        scores=False,
        engines=replace(run.engines, train=engine, generate=generate.engine),
        generate=generate,
        trainers={
            role: sizes_of(trainer, sizes) if role == "teacher" else sizes
            for role, sizes in run.trainers.items()
        },
        options={role: replace(each, logits=way) for role, each in run.options.items()},
        loss=loss_of(settings),
        old_log_prob="engine",
    )


def say_others(settings: Settings) -> None:
    """Name keys that the trainer does not have: it ends with an error, or a program of one's own does something with them."""
    names, title = (OTHERS, "GKD") if distils(settings) else (OWN, "GRPO")
    for key in (settings.key_of(name) for name in names if settings.is_given(name)):
        settings.doubts[key] = f"is none of {title}'s keys: what it does there is not known"


def say_doubts(settings: Settings) -> None:
    """Name what changes a step, and is not counted."""
    if settings.start[:1].isupper() and not any(settings.has("trainer.*")):
        key = settings.key_of("student_share")
        settings.doubts[key] = "a trainer of one's own: its loop is not known"
    for name in ("packs_texts", "unpadded_texts"):
        if settings.on(name):
            settings.leave_out(name, "texts that are put together")


def notes_of(settings: Settings) -> Iterator[str]:
    """Yield what is assumed of the loop."""
    if texts_share(settings):
        yield (
            f"{texts_share(settings):.0%} of micro-batches are texts at hand, by chance: a step is forecast as they are "
            "on average"
        )
    if uncached(settings):
        yield NO_CACHE


def guesses_of(settings: Settings, batches: Batches, *, sharded: bool) -> Iterator[str]:
    """Yield what was assumed of lengths and formats, which a program may say of each of its models.

    Args:
        sharded: Whether generation gathers the model first.
    """
    generated = batches.parts * settings.number("student_share")
    if sharded and generated > 1:
        yield (
            f"weights are gathered for each of the {generated:g} micro-batches of a rank that a step generates on average, and "
            "forecast as gathered once"
        )
    if texts_share(settings):
        yield (
            "texts at hand are as long as responses on average: workload.texts.response_tokens of the job says "
            "otherwise"
        )
    if any(settings.has("model_init_kwargs.*")):
        yield "student and teacher are taken to be loaded in one number format, the one that is given last"
