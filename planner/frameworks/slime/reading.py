"""slime: Megatron trains and SGLang generates; old log-probabilities are the update's own where a step has one."""

from collections.abc import Mapping
from typing import Any, Final

from rlplan.planner.configs.megatron.reading import (
    WAITING_GROUPS,
    Ways,
    batch_of,
    critic_gpus_of,
    endless,
    gpus_of,
    never_stops,
    one_off,
    run_by,
    steps_ahead,
)
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.run import Run
from rlplan.planner.configs.sizes import adapter_of

# The first version whose update takes its own log-probabilities for the old ones (slime@bf9b1a3bc, May 2026).
REUSING: Final = "0.3"
# Trained in up to 0.2 beside Megatron.
FSDP: Final = "fsdp"
# What is forecast: every weight, by CUDA IPC or NCCL.
USUAL_SYNC: Final[Mapping[str, object]] = {"sync_mode": "full", "sync_transport": "nccl"}
# The module of its fully asynchronous rollout since 18 May 2026 (f0bce74ae); before, examples/fully_async had one of its own.
OWN_ENDLESS: Final = ".rollout.fully_async_rollout"
# ray/placement_group.py of v0.2.4: critic-num-nodes x critic-num-gpus-per-node, as many as the actor's where nothing says it.
CRITIC_APART: Final = (
    "a critic on GPUs of its own beside the actor's, as slime up to 0.2 places it, on which colocated engines stand too: "
    "it is forecast on the actor's GPUs"
)
CRITIC_GUESS: Final = (
    "a critic on {} GPUs of its own, as releases of slime up to 0.2.4 place it where no flag says how many; checkouts since April 2026 "
    "put it on the actor's"
)
ADAPTER_NOTE: Final = "{} is of a copy of slime, which trains no adapters itself: they are taken to be merged for generation"


def run_of(settings: Settings) -> Run:
    """Return what a configuration trains, and how."""
    trainer = settings.word("backend")
    if trainer == FSDP and not _is_before(settings, REUSING):
        raise settings.refused(
            "backend", f"is of slime before {REUSING}", "megatron, or --framework-version 0.2"
        )
    for name, usual in USUAL_SYNC.items():
        if settings.value(name) != usual:
            settings.leave_out(name, "weights that go over a file system")
    if settings.on("releases_train"):
        settings.leave_out("releases_train", "trainers that end and start anew in every step")
    critic = settings.word("estimator") == "ppo" and _is_before(settings, REUSING)
    if critic and settings.on("colocate"):
        settings.doubt("estimator", CRITIC_APART)
    elif critic and not (
        settings.is_given("critic_nodes") or settings.is_given("critic_gpus_per_node")
    ):
        note = CRITIC_GUESS.format(critic_gpus_of(settings))
        settings.notes = tuple(dict.fromkeys((*settings.notes, note)))
    adapter = adapter_of(settings)
    if adapter is not None:
        settings.notes = (*settings.notes, ADAPTER_NOTE.format(settings.key_of("lora_rank")))
    ways = Ways(
        trainer=trainer,
        adapter=adapter,
        reuses_log_probs=trainer != FSDP and reuses_log_probs(settings),
        critic_leaves=True,
        critic_gpus=critic_gpus_of(settings) if critic and not settings.on("colocate") else 0,
        one_pool=_is_before(settings, REUSING),
        mode=_mode(settings),
        under_way=batch_of(settings) if _keeps_a_batch(settings) else None,
    )
    return run_by(settings, ways)


def _is_before(settings: Settings, version: str) -> bool:
    """Tell whether a configuration is of an older version than one."""
    known = settings.sheet.versions
    return settings.sheet.version in known[: known.index(version)]


def reuses_log_probs(settings: Settings) -> bool:
    """Tell whether a step of one update takes its own log-probabilities (backends/megatron_utils/actor.py).

    A penalty in rewards, metrics of mismatch, a critic, a copy of an older actor, distillation, routing that is played
    again from training, and GSPO need the pass.
    """
    if _is_before(settings, REUSING):
        return False
    replayed = settings.on("routing_replay") and not settings.on("rollout_routing_replay")
    needed = (
        settings.number("kl_reward_weight") != 0,
        settings.on("mismatch_metrics"),
        settings.on("keeps_old_actor"),
        settings.on("distils"),
        replayed,
        settings.word("estimator") in {"ppo", "gspo"},
    )
    return not any(needed)


def _mode(settings: Settings) -> Mapping[str, Any] | None:
    """Return the mode: a batch ahead, or without an end where the rollout is slime's fully asynchronous one.

    That has as many samples under way as its client may have at all engines, whatever a step learns from, and lets as many
    whole groups wait that have ended (rollout/fully_async_rollout.py: output_queue); requests stay where new weights come,
    without their caches (update_weight_from_distributed.py: flush_cache). The example before it has a step's own batch under way.
    """
    if not never_stops(settings):
        return one_off(settings)
    _, gpus = gpus_of(settings)
    engines = max(1, gpus // max(1, settings.whole("rollout_tp")))
    samples = settings.whole("samples")
    held = settings.whole("concurrency") * engines * (1 + samples)
    if _keeps_a_batch(settings):
        held = batch_of(settings) + WAITING_GROUPS * samples
    return endless(steps_ahead(settings, held), "recompute")


def _keeps_a_batch(settings: Settings) -> bool:
    """Tell whether a rollout without an end has as many samples under way as a step learns from, whatever its engines hold.

    So has the one of examples/fully_async (max_concurrent_tasks = rollout_batch_size), which is named without that package's module.
    """
    if not never_stops(settings):
        return False
    own = OWN_ENDLESS in str(settings.value("rollout_function"))
    return _is_before(settings, REUSING) or not own
