"""verl's fully asynchronous trainer beside its colocated one: volcengine/verl, docs/advance/fully_async.md."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from scipy.optimize import brentq

from rlplan.evals.claims import ALL, FALLS, NONE, Measured, Stated, figure, judged, near, order
from rlplan.evals.settings.published_points import (
    Progress,
    forecast_points,
    step_seconds,
    task_seconds,
)
from rlplan.job import Engines
from rlplan.planner.measured.framework_runs import PublishedRun
from rlplan.results.accuracy import Point, Reproduction
from rlplan.workload import Logged

PANEL_7B, PANEL_30B = "Qwen2.5-Math-7B, H20", "Qwen3-30B-A3B, H20"
# Runs with their published seconds, by panel and series.
Rows = dict[tuple[str, str], tuple[PublishedRun, float]]

# Steps within 25 %, speed-ups within 20 %.
STEP_WITHIN, SPEED_UP_WITHIN = 0.25, 0.20
SIZES, STALE, BATCHES, LARGER = "7B by GPUs", "7B by staleness", "7B by require_batches", "30B-A3B"

STEPS = 100  # the hours are of so many


# Runs of verl's fully asynchronous experiments, and lengths that are fitted on the colocated ones of them.
#
# Mean lengths are not published. A step is that of the first 100: lengths changed later, by run.


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
# Generation's share of a step on so many GPUs, whose hours hardly change over 400 steps: published stages are those of the first 100 too.
GENERATION_SHARE, SHARED_GPUS = 150.72 / 365.28, 64
# Standard deviations by means between which the fitted ones are looked for.
LEAST_SPREAD, MOST_SPREAD = 0.4, 1.2
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
    """Return lengths for each number of GPUs, of the mean at which the colocated step is right, with one spread."""
    shared = replace(TOGETHER, gpus=SHARED_GPUS)
    spread = fitted_spread(shared, COLOCATED[SHARED_GPUS], GENERATION_SHARE)
    return {
        gpus: fitted_lengths(replace(TOGETHER, gpus=gpus), each, spread)
        for gpus, each in COLOCATED.items()
    }


def fitted_spread(run: PublishedRun, seconds: float, share: float) -> float:
    """Return the standard deviation, by the mean, at which generation has its share of a step of so many seconds."""

    def error(spread: float) -> float:
        lengths = fitted_lengths(run, seconds, spread)
        of_step = task_seconds(replace(run, response_tokens=lengths))["actor.generate"]
        return of_step / step_seconds(replace(run, response_tokens=lengths)) - share

    return float(brentq(error, LEAST_SPREAD, MOST_SPREAD, xtol=0.02))


def fitted_lengths(run: PublishedRun, seconds: float, spread: float | None = None) -> Logged:
    """Return lengths with the mean at which a step takes so many seconds.

    Args:
        spread: Their standard deviation, by the mean; None is that of other published runs.
    """
    most = run.longest_tokens - 2048

    def lengths(mean: float) -> Logged:
        std = None if spread is None else round(spread * mean)
        return Logged(mean=round(mean), max=most, std=std)

    def error(mean: float) -> float:
        return measured_seconds(replace(run, response_tokens=lengths(mean))) - seconds

    return lengths(float(brentq(error, LEAST_MEAN, min(MOST_MEAN, most / 3), xtol=2.0)))


@cache
def larger() -> tuple[PublishedRun, PublishedRun]:
    """Return the runs of the 30B model, colocated and apart."""
    together = replace(TOGETHER_30B, response_tokens=fitted_lengths(TOGETHER_30B, COLOCATED_30B))
    beside = apart(together, TRAINING_30B, GENERATING_30B, USUAL_STALENESS, required=1)
    return together, replace(beside, framework="verl-fully-async", engines=ENGINES_30B)


# Rows of other tables that are the run on most GPUs again.
REPEATED = (f"staleness {USUAL_STALENESS:g}", f"require_batches {USUAL_REQUIRED}")
SERIES_30B = ("colocated, 128", "apart, 96 + 32")


def reproduce(progress: Progress | None = None) -> Reproduction:
    """Return every point forecast, and every claim marked.

    Args:
        progress: Called with (done, total, point) before each.
    """
    points: list[Point] = []
    for name, rows in dict(_figures()).items():
        runs = {key: run for key, (run, _) in rows.items()}
        published = {key: seconds for key, (_, seconds) in rows.items()}
        points += forecast_points(name, "seconds", runs, published, progress, measured_seconds)
    return Reproduction(
        name="verl-fully-async",
        title="verl's fully asynchronous training, forecast",
        source="verl documentation, docs/advance/fully_async.md (commit 1dda039b; the 7B rows are of October 2025), "
        "with the scripts in verl/experimental/fully_async_policy/shell",
        notes=notes(),
        points=tuple(points),
        claims=tuple(judged(CLAIMS, Steps(points))),
    )


def _figures() -> Iterator[tuple[str, Rows]]:
    sizes: Rows = {}
    for gpus, seconds in COLOCATED.items():
        sizes[PANEL_7B, f"colocated, {gpus}"] = (colocated(gpus), seconds)
    for training, seconds in APART.items():
        sizes[PANEL_7B, f"apart, {training} + {training}"] = (split(training), seconds)
    yield SIZES, sizes
    stale: Rows = {
        (PANEL_7B, f"staleness {staleness:g}"): (split(LARGEST, staleness), seconds)
        for staleness, seconds in STALENESS.items()
    }
    yield STALE, stale
    batches: Rows = {
        (PANEL_7B, f"require_batches {each}"): (split(LARGEST, required=each), seconds)
        for each, seconds in REQUIRED.items()
    }
    yield BATCHES, batches
    runs = zip(SERIES_30B, larger(), (COLOCATED_30B, APART_30B), strict=True)
    larger_rows: Rows = {(PANEL_30B, name): (run, seconds) for name, run, seconds in runs}
    yield LARGER, larger_rows


USUAL_SPREAD = (
    "With the spread of other published runs, as it was, the means come out at 1,226 to 1,462 tokens, all 7B steps 5 to 20 % longer, and 6 of the claims hold. Since verl's "
    "engine in the trainer's process is forecast without making text, generation of whole batches is a fifth shorter at the same lengths, so "
    "that fitted lengths grew, and with them the updates that asynchronous steps wait for. Published stages on 64 GPUs say that it is "
    "the longest responses that take the time."
)
LEFT_OUT = (
    "Left out: asynchronous training without partial rollout (its row is empty); ReTool with several turns (neither "
    "turns, lengths nor times of its tool are published); the ablation of validation on the trainer."
)


def notes() -> tuple[str, ...]:
    """Return what to know before judging, with the lengths that were fitted."""
    means = ", ".join(f"{gpus} GPUs {each.mean:,.0f}" for gpus, each in lengths_by_gpus().items())
    together, later = larger()
    large = together.response_tokens
    assert isinstance(large, Logged)
    return (
        (
            "Published are steps, stages and hours, not lengths. Lengths are fitted on colocated (synchronous) rows only: the "
            f"mean at which each colocated step is right ({means} tokens; 30B-A3B {large.mean:,.0f}). Their spread is that at which generation has its "
            "published share of the colocated step on 64 GPUs, whose hours hardly change over 400 steps; that of 30B-A3B, whose share no spread gives, is that of other "
            "published runs. No number is fitted on these asynchronous rows."
        ),
        USUAL_SPREAD,
        (
            "A step is what lies between two syncs of weights, 512 prompts with 16 responses in 16 updates, as the mean of the "
            "first 100: later lengths are those of each run alone (colocated on 32 GPUs: 100 steps in 13.7 hours, then 14.0, "
            "29.7 and 31.7). Speed-ups are those of the first 100 steps; over 400 they are stated as 2.66, 1.92 and 2.35, 1.6 "
            "for streaming and 1.72 for 30B-A3B."
        ),
        (
            "Every 20 steps 960 responses are generated for validation (every accuracy is a multiple of 1/960); that is "
            "counted, with the same lengths, training taken to wait: 3 to 10 s a step."
        ),
        (
            "Colocated scripts of these runs are not published: layouts are those of the asynchronous scripts (FSDP2 in "
            "groups of 8, sequence parallel 4, generation with TP 4), states off-loaded while vLLM generates. Asynchronous runs "
            "take the engine's log-probabilities, run 16 prompts a server at most, and stop and go on at a sync. That all fits is taken for granted: a micro-batch of "
            "61,440 tokens a GPU, as the scripts allow, would need 132 GiB; an update's share is far from filling one."
        ),
        (
            "verl of October 2025 balanced the tokens of a batch over ranks, not those of an update: in each the ranks wait for "
            "the one with the longest part, the more the more ranks there are (pull request 3605 mended it). Forecast so; "
            "30B-A3B ran later and is forecast as balanced, its optimizer as if on the GPUs: on the host it has no cost here."
        ),
        (
            "What verl's colocated trainer hands on for each pass takes time that no number of GPUs shortens: 0.17 "
            "microseconds a token of all sequences padded to the longest (sheet verl-fsdp-0.6), from the old log-probabilities of "
            "these runs on 64 and 128 GPUs and of others on 12 and 16. The asynchronous trainer is forecast without: its updates "
            "are published as 314 and 157 s on 16 and 32 GPUs. It was looked for with these rows in view. For it speaks that the mean lengths of the three "
            f"runs, of one model on the same data, differ by {100 * _mean_lengths_apart():.0f} %. Without the first they come out 62 % apart, and none of the 8 "
            "asynchronous 7B steps is within 25 % (+62 to +101 %)."
        ),
        (
            "On 64 GPUs, whose hours hardly change over 400 steps, generation, old log-probabilities and update are published as "
            f"151, 70 and 133 s; forecast are {_shown(colocated(64), 1)}. For 30B-A3B old log-probabilities, reference and update "
            f"are published as 29, 21 and 86 s, forecast {_shown(together, 1, COMPARED_30B)}; apart, reference and update as 50 "
            f"and 207 s, forecast {_shown(later, later.parts, COMPARED_30B[1:])}."
        ),
        LEFT_OUT,
    )


def _mean_lengths_apart() -> float:
    """Return by which share the longest of the fitted mean lengths is longer than the shortest."""
    means = [each.mean for each in lengths_by_gpus().values()]
    return max(means) / min(means) - 1


COMPARED = ("actor.generate", "actor.compute_log_prob", "actor.update")
COMPARED_30B = ("actor.compute_log_prob", "reference.compute_log_prob", "actor.update")


def _shown(run: PublishedRun, parts: int, tasks: Sequence[str] = COMPARED) -> str:
    """Return what tasks of a step are forecast to take, in words."""
    seconds = task_seconds(run)
    each = [f"{seconds[task] * parts:.0f}" for task in tasks]
    return f"{', '.join(each[:-1])} and {each[-1]} s"


# Claims of verl's fully asynchronous experiments.


class Steps:
    """Hold the forecast seconds of every run by what tells it apart."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = points
        seconds = {(each.figure, each.series): each.forecast or 0.0 for each in points}
        self.together = {gpus: seconds[SIZES, f"colocated, {gpus}"] for gpus in COLOCATED}
        self.apart = {each: seconds[SIZES, f"apart, {each} + {each}"] for each in APART}
        self.stale = {each: seconds[STALE, f"staleness {each:g}"] for each in STALENESS}
        self.batches = {each: seconds[BATCHES, f"require_batches {each}"] for each in REQUIRED}
        self.larger = tuple(seconds[LARGER, series] for series in SERIES_30B)

    def speed_up(self, training: int) -> float:
        """Return how many times as fast runs apart are as colocated ones."""
        return self.together[2 * training] / self.apart[training]


def _all_steps(steps: Steps) -> Measured:
    """Return the asynchronous steps that are off by more, and say which is off most."""
    errors = {
        each.series: each.error_fraction or 0.0
        for each in steps.points
        if each.series not in REPEATED and not each.series.startswith("colocated")
    }
    within = sum(abs(error) <= STEP_WITHIN for error in errors.values())
    worst = max(errors, key=lambda series: abs(errors[series]))
    evidence = f"{within} of {len(errors)}; {worst}: {100 * errors[worst]:+.0f} %"
    return Measured(figures=(len(errors) - within,), evidence=evidence)


def _shortest_batches(steps: Steps) -> Measured:
    """Return whether most mini-batches at once make the shortest steps, as 1 or 0."""
    shortest = min(steps.batches, key=steps.batches.__getitem__)
    shown = ", ".join(f"{each}: {step:.3g} s" for each, step in steps.batches.items())
    return Measured(figures=(shortest == max(REQUIRED),), evidence=shown)


def _speed_up(
    where: str, what: str, published: float, of: Callable[[Steps], float]
) -> Stated[Steps]:
    return Stated(
        where=where,
        text=f"{what}: {published:.2f} times as fast as colocated",
        bounds=(near(published, SPEED_UP_WITHIN),),
        measure=lambda steps: figure(of(steps)),
    )


def _of_size(training: int) -> Stated[Steps]:
    published = COLOCATED[2 * training] / APART[training]
    what = f"{training} + {training} GPUs"
    return _speed_up(SIZES, what, published, lambda steps: steps.speed_up(training))


CLAIMS: tuple[Stated[Steps], ...] = (
    Stated(
        where="all tables",
        text="Every asynchronous step is forecast within 25 %",
        bounds=(NONE,),
        measure=_all_steps,
    ),
    *map(_of_size, APART),
    Stated(
        where=SIZES,
        text="More GPUs apart, shorter steps",
        bounds=(FALLS,),
        measure=lambda steps: order([*steps.apart.values()]),
    ),
    Stated(
        where=SIZES,
        text="More GPUs, more gain",
        bounds=(FALLS,),
        measure=lambda steps: order([steps.speed_up(each) for each in APART][::-1]),
    ),
    _speed_up(
        STALE,
        f"{LARGEST} + {LARGEST} GPUs, streaming alone",
        COLOCATED[2 * LARGEST] / STALENESS[0.0],
        lambda steps: steps.together[2 * LARGEST] / steps.stale[0.0],
    ),
    Stated(
        where=STALE,
        text="More staleness never lengthens a step",
        bounds=(FALLS,),
        measure=lambda steps: order([*steps.stale.values()]),
    ),
    Stated(
        where=BATCHES,
        text="Four mini-batches at once make the shortest steps",
        bounds=(ALL,),
        measure=_shortest_batches,
    ),
    _speed_up(
        LARGER,
        "96 + 32 GPUs",
        COLOCATED_30B / APART_30B,
        lambda steps: steps.larger[0] / steps.larger[1],
    ),
)
