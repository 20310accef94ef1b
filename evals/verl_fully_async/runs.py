"""Runs of verl's fully asynchronous experiments, and lengths that are fitted on the colocated ones of them.

Mean lengths are not published. A step is that of the first 100: lengths changed later, by run.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from scipy.optimize import brentq

from rlplan.evals.settings.published_points import step_seconds, task_seconds
from rlplan.job import Engines
from rlplan.planner.measured.framework_runs import PublishedRun
from rlplan.workload import Logged

STEPS = 100  # the hours are of so many


def _each_seconds(hours: int, minutes: int) -> float:
    return (hours * 60 + minutes) * 60 / STEPS


# By GPUs; those of asynchronous runs by GPUs that train, with as many that generate.
COLOCATED: Mapping[int, float] = {
    32: _each_seconds(13, 44),
    64: _each_seconds(10, 22),
    128: _each_seconds(8, 36),
}
APART: Mapping[int, float] = {
    16: _each_seconds(7, 58),
    32: _each_seconds(4, 57),
    64: _each_seconds(3, 13),
}
# On 64 and 64 GPUs, by `staleness_threshold` and by `require_batches`.
STALENESS: Mapping[float, float] = {
    0.0: _each_seconds(4, 25), 0.1: _each_seconds(3, 53), 0.3: _each_seconds(3, 18), 0.5: _each_seconds(3, 13),
}  # fmt: skip
REQUIRED: Mapping[int, float] = {
    1: _each_seconds(3, 31),
    2: _each_seconds(3, 35),
    4: _each_seconds(3, 13),
}
COLOCATED_30B, APART_30B = _each_seconds(13, 36), _each_seconds(6, 45)
USUAL_STALENESS, USUAL_REQUIRED = 0.5, 4
LARGEST = 64
# `ppo_mini_batch_size` times `require_batches` times `trigger_parameter_sync_step` prompts lie between two syncs.
PROMPTS, SAMPLES, UPDATE_PROMPTS = 512, 16, 32
LONGEST_RESPONSE = 28 * 1024
# `max_concurrent_samples` of fully_async_rollouter.py: prompts under way on each server.
PROMPTS_OF_SERVER = 16
# Every published accuracy is a multiple of 1/960: AIME 2024's 30 problems, 32 times, each sampled once.
VALIDATED, STEPS_OF_VALIDATION = 960, 20
TOGETHER = PublishedRun(
    framework="verl-fsdp-0.6",
    algorithm="grpo",
    model="qwen2.5-math-7b",
    gpu="h20",
    gpus=32,
    gpus_per_node=8,
    prompts=PROMPTS,
    samples=SAMPLES,
    sequences_per_update=UPDATE_PROMPTS * SAMPLES,
    prompt_tokens=128,
    response_tokens=Logged(mean=1000, max=LONGEST_RESPONSE),
    longest_tokens=30 * 1024,
    token_budget=60 * 1024,
    cp=4,
    shard_ranks=8,
    rollout_tp=4,
    rollout_memory_fraction=0.8,
    offloads=frozenset({"actor"}),
)
# require_batches is 1, and an update has 128 prompts.
TOGETHER_30B = replace(
    TOGETHER,
    framework="verl-megatron-0.6",
    engines=Engines(generate="vllm-0.11-eager"),
    model="qwen3-30b-a3b",
    gpus=128,
    sequences_per_update=128 * SAMPLES,
    response_tokens=Logged(mean=1000, max=8192),
    longest_tokens=10 * 1024,
    token_budget=10 * 1024,
    tp=2,
    cp=2,
    ep=8,
    shard_ranks=None,
    rollout_memory_fraction=0.7,
    recomputes=True,
    compares_reference=True,
    offloads=frozenset({"actor", "reference"}),
)
ENGINES_30B = Engines(train="megatron-core-2025", generate="vllm-0.11-eager")
GENERATING_30B, TRAINING_30B = 96, 32
# On 128 GPUs a step ends before one response can have been cut at 28,672 tokens.
NONE_CUT = 0.0
# Mean lengths between which the fitted ones are looked for.
LEAST_MEAN, MOST_MEAN = 150.0, 6000.0


def colocated(gpus: int) -> PublishedRun:
    """Return the colocated run on so many GPUs."""
    return replace(TOGETHER, gpus=gpus, response_tokens=lengths_by_gpus()[gpus])


def split(
    training: int, staleness: float = USUAL_STALENESS, required: int = USUAL_REQUIRED
) -> PublishedRun:
    """Return the asynchronous run with so many GPUs that train, and as many that generate."""
    run = replace(colocated(2 * training), framework="verl-fully-async-0.6")
    return apart(run, training, training, staleness, required)


def apart(
    run: PublishedRun, training: int, generating: int, staleness: float, required: int
) -> PublishedRun:
    """Return a colocated run on devices apart; without staleness it streams, and drains before a sync."""
    parts = run.prompts * run.samples // (run.sequences_per_update * required)
    streams = staleness == 0
    return replace(
        run,
        mode="streaming" if streams else "async",
        parts=1 if streams else parts,
        staleness=0.0 if streams else parts - 1 + parts * staleness,
        in_flight="drain" if streams else "recompute",
        train_gpus=training,
        rollout_gpus=generating,
        rollout_running=PROMPTS_OF_SERVER * run.samples,
        old_log_prob="engine",
        offloads=run.offloads - {"actor"},
    )


def measured_seconds(run: PublishedRun) -> float:
    """Return what a step is forecast to take as its hours were counted, a share of a validation with it."""
    return step_seconds(run) + validation_seconds(run) / STEPS_OF_VALIDATION


def validation_seconds(run: PublishedRun) -> float:
    """Return what generating the validation set's responses is forecast to take; training is taken to wait for it."""
    alone = replace(run, mode="sync", parts=1, staleness=0.0, in_flight="drain")
    # GRPO has no job of one sample a prompt; that two share a prompt's prefill is little of it.
    pairs = replace(alone, prompts=VALIDATED // 2, samples=2, sequences_per_update=VALIDATED)
    return task_seconds(pairs)["actor.generate"]


@cache
def lengths_by_gpus() -> Mapping[int, Logged]:
    """Return lengths for each number of GPUs, of the mean at which the colocated step is right."""
    return {
        gpus: usual_lengths(replace(TOGETHER, gpus=gpus), each, NONE_CUT)
        for gpus, each in COLOCATED.items()
    }


def usual_lengths(run: PublishedRun, seconds: float, clip_ratio: float | None = None) -> Logged:
    """Return lengths of the usual spread with the mean at which a step takes so many seconds.

    Args:
        clip_ratio: Share that is cut; None where nothing tells.
    """
    most = run.longest_tokens - 2048

    def error(mean: float) -> float:
        lengths = Logged(mean=round(mean), max=most, clip_ratio=clip_ratio)
        return measured_seconds(replace(run, response_tokens=lengths)) - seconds

    mean = brentq(error, LEAST_MEAN, MOST_MEAN, xtol=2.0)
    return Logged(mean=round(mean), max=most, clip_ratio=clip_ratio)


@cache
def larger() -> tuple[PublishedRun, PublishedRun]:
    """Return the runs of the 30B model, colocated and apart, with the usual spread."""
    together = replace(TOGETHER_30B, response_tokens=usual_lengths(TOGETHER_30B, COLOCATED_30B))
    beside = apart(together, TRAINING_30B, GENERATING_30B, USUAL_STALENESS, required=1)
    return together, replace(beside, framework="verl-fully-async", engines=ENGINES_30B)
