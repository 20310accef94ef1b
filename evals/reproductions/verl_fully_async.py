"""verl's fully asynchronous trainer beside its colocated one: volcengine/verl, docs/advance/fully_async.md."""

from collections.abc import Iterator, Sequence

from rlplan.evals.claims import judged
from rlplan.evals.settings.published_points import Progress, forecast_points, task_seconds
from rlplan.evals.verl_fully_async.claims import (
    BATCHES,
    CLAIMS,
    LARGER,
    SERIES_30B,
    SIZES,
    STALE,
    Steps,
)
from rlplan.evals.verl_fully_async.runs import (
    APART,
    APART_30B,
    COLOCATED,
    COLOCATED_30B,
    LARGEST,
    REQUIRED,
    STALENESS,
    colocated,
    larger,
    lengths_by_gpus,
    measured_seconds,
    split,
)
from rlplan.planner.measured.framework_runs import PublishedRun
from rlplan.results.accuracy import Point, Reproduction
from rlplan.workload import Logged

PANEL_7B, PANEL_30B = "Qwen2.5-Math-7B, H20", "Qwen3-30B-A3B, H20"
# Runs with their published seconds, by panel and series.
Rows = dict[tuple[str, str], tuple[PublishedRun, float]]


def reproduce(progress: Progress | None = None) -> Reproduction:
    """Return every point forecast, and every claim marked.

    Args:
        progress: Called with (done, total, point) before each.
    """
    points: list[Point] = []
    for figure, rows in dict(_figures()).items():
        runs = {key: run for key, (run, _) in rows.items()}
        published = {key: seconds for key, (_, seconds) in rows.items()}
        points += forecast_points(figure, "seconds", runs, published, progress, measured_seconds)
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
            f"mean at which each colocated step is right, with the spread of other published runs ({means} tokens; 30B-A3B "
            f"{large.mean:,.0f}). No number is fitted on these asynchronous rows."
        ),
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
            "microseconds a token of all sequences padded to the longest (sheet verl-fsdp), from the old log-probabilities of "
            "these runs on 64 and 128 GPUs and of others on 12 and 16. The asynchronous trainer is forecast without: its updates "
            "are published as 314 and 157 s on 16 and 32 GPUs. Without the first, 1 of the 8 asynchronous 7B steps is within "
            "25 % (+20 to +50 %). It was looked for with these rows in view; 30B-A3B had no part in it (+31 % before). "
            "For it speaks that the lengths of the three runs, of one model on the same data, differ by 13 %, where they came out "
            "22 % apart."
        ),
        (
            "On 64 GPUs, whose hours hardly change over 400 steps, generation, old log-probabilities and update are published as "
            f"151, 70 and 133 s; forecast are {_shown(colocated(64), 1)}. For 30B-A3B old log-probabilities, reference and update "
            f"are published as 29, 21 and 86 s, forecast {_shown(together, 1, COMPARED_30B)}; apart, reference and update as 50 "
            f"and 207 s, forecast {_shown(later, later.parts, COMPARED_30B[1:])}."
        ),
        LEFT_OUT,
    )


COMPARED = ("actor.generate", "actor.compute_log_prob", "actor.update")
COMPARED_30B = ("actor.compute_log_prob", "reference.compute_log_prob", "actor.update")


def _shown(run: PublishedRun, parts: int, tasks: Sequence[str] = COMPARED) -> str:
    """Return what tasks of a step are forecast to take, in words."""
    seconds = task_seconds(run)
    each = [f"{seconds[task] * parts:.0f}" for task in tasks]
    return f"{', '.join(each[:-1])} and {each[-1]} s"
