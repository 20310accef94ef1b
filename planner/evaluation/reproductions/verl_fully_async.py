"""verl's fully asynchronous trainer beside its colocated one: volcengine/verl, docs/advance/fully_async.md."""

from collections.abc import Iterator

from planner.evaluation.settings.framework_runs import PublishedRun
from planner.evaluation.settings.published_points import Progress, forecast_points, task_seconds
from planner.evaluation.verl_fully_async.claims import (
    BATCHES,
    LARGER,
    SERIES_30B,
    SIZES,
    STALE,
    claims_of,
    figure_of,
)
from planner.evaluation.verl_fully_async.runs import (
    APART,
    APART_30B,
    COLOCATED,
    COLOCATED_30B,
    ENDLESS,
    LARGEST,
    REQUIRED,
    STALENESS,
    USUAL,
    Fitted,
    endless,
    larger,
    measured_seconds,
    usual,
)
from rlplan.results.reproduced import Point, Reproduction
from rlplan.workload.lengths import Logged

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
        claims=tuple(claims_of(points)),
    )


def _figures() -> Iterator[tuple[str, Rows]]:
    for fit in (usual(), endless()):
        yield figure_of(SIZES, fit.name), _sizes(fit)
        stale: Rows = {
            (PANEL_7B, f"staleness {staleness:g}"): (fit.apart(LARGEST, staleness), seconds)
            for staleness, seconds in STALENESS.items()
        }
        yield figure_of(STALE, fit.name), stale
        batches: Rows = {
            (PANEL_7B, f"require_batches {each}"): (fit.apart(LARGEST, required=each), seconds)
            for each, seconds in REQUIRED.items()
        }
        yield figure_of(BATCHES, fit.name), batches
    together, split = SERIES_30B
    runs = zip((together, split), larger(), (COLOCATED_30B, APART_30B), strict=True)
    larger_rows: Rows = {(PANEL_30B, name): (run, seconds) for name, run, seconds in runs}
    yield figure_of(LARGER, USUAL), larger_rows


def _sizes(fit: Fitted) -> Rows:
    found: Rows = {}
    for gpus, seconds in COLOCATED.items():
        found[PANEL_7B, f"colocated, {gpus}"] = (fit.colocated(gpus), seconds)
    for training, seconds in APART.items():
        found[PANEL_7B, f"apart, {training} + {training}"] = (fit.apart(training), seconds)
    return found


LEFT_OUT = (
    "Left out: asynchronous training without partial rollout (its row is empty); ReTool with several turns (neither "
    "turns, lengths nor times of its tool are published); the ablation of validation on the trainer."
)


def notes() -> tuple[str, ...]:
    """Return what to know before judging, with the lengths that were fitted."""
    means = ", ".join(f"{gpus} GPUs {each.mean:,.0f}" for gpus, each in usual().by_gpus.items())
    shared = endless().by_gpus[min(COLOCATED)]
    together, _ = larger()
    large = together.response_tokens
    assert isinstance(large, Logged)
    return (
        (
            "Published are steps, stages and hours, not lengths. Lengths are fitted on colocated (synchronous) rows only, in "
            f"two ways. '{USUAL}': the mean at which each colocated step is right, with the spread of other published runs "
            f"({means} tokens; 30B-A3B {large.mean:,.0f}). '{ENDLESS}': one distribution for all three 7B set-ups, with a "
            f"share that runs to the limit of 28,672 tokens, at which the three colocated steps are nearest ({shared.mean:,.0f} "
            f"tokens on average, {shared.clip_ratio or 0.0:.3%} never end). Nothing is fitted on asynchronous rows."
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
            "The split of a colocated step is not right. On 64 GPUs, whose hours hardly change over 400 steps, generation, "
            f"old log-probabilities and update are published as 151, 70 and 133 s; {_split_words()}. Log-probabilities took 40 "
            "to 56 s more than forecast on 64 and 128 GPUs alike, so not for computing: verl hands 8,192 sequences on, padded "
            "to 30,720 tokens, through one process, which is not modelled. Beside its stages the asynchronous trainer took 4 s "
            "a step in every row; the sheet's time a token, fitted to verl 0.2, makes it 19 to 37."
        ),
        (
            f"So hits of '{ENDLESS}' are no proof that lengths were so; that some responses never end was also tried after the "
            "asynchronous rows had been seen. At staleness 0 a step of 159 s leaves no room for a "
            "response of 28,672 tokens at 6.6 ms each, in which a server decodes one alone by the sheet: either decoding was "
            "faster, or not every step had one."
        ),
        LEFT_OUT,
    )


def _split_words() -> str:
    """Return what the stages of the colocated step on 64 GPUs are forecast to take."""
    stages = ("actor.generate", "actor.compute_log_prob", "actor.update")
    shown = []
    for fit in (usual(), endless()):
        seconds = task_seconds(fit.colocated(64))
        shown.append(", ".join(f"{seconds[stage]:.0f}" for stage in stages) + f" s ({fit.name})")
    return "forecast are " + " and ".join(shown)
