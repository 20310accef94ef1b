"""AReaL's throughput against the staleness that it permits: Fu et al. 2025, arXiv:2505.24298.

A point is taken to hold within 20 % of the published one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlplan.evals.claims import FALLS, Stated, figure, judged, near, order
from rlplan.evals.settings.published_points import Progress, forecast_points, step_seconds
from rlplan.job import Engines
from rlplan.planner.measured.framework_runs import PublishedRun
from rlplan.results.accuracy import Reproduction
from rlplan.workload import Logged

WITHIN_FRACTION = 0.20
# A bound that no sample reaches: generation is ahead by this many updates only after as many steps.
UNBOUNDED = 32.0
PUBLISHED: Mapping[float, float] = {
    0.0: 128.7e3, 1.0: 269.3e3, 2.0: 356.6e3, 4.0: 356.6e3, 16.0: 382.4e3, UNBOUNDED: 396.8e3,
}  # fmt: skip
# Hours of 1,000 steps of the 1.5B model on 16 nodes, of AReaL v0.3's blog.
SYNCHRONOUS_HOURS, ASYNCHRONOUS_HOURS = 41.0, 14.8
USUAL_STALENESS = 4.0
# AReaL leaves three quarters of the devices to generation (section 7.1).
GPUS, GENERATING = 128, 96
SYNCHRONOUS = PublishedRun(
    framework="areal",
    engines=Engines(generate="sglang-0.4"),
    algorithm="grpo",
    model="deepseek-r1-distill-qwen-1.5b",
    gpu="h800",
    gpus=GPUS,
    gpus_per_node=8,
    train_gpus=GPUS - GENERATING,
    rollout_gpus=GENERATING,
    prompts=128,
    samples=16,
    sequences_per_update=512,
    prompt_tokens=150,
    response_tokens=Logged(mean=9130, max=27_648),
    longest_tokens=28_672,
    token_budget=32_768,
    rollout_memory_fraction=0.85,
    recomputes=True,
)
FIGURE, PANEL = "Throughput against staleness", "1.5B, math"
NOTES = (
    (
        "Assumed workload: 128 prompts of 150 tokens with 16 responses of 9,130 tokens on average, at most 27,648. The "
        "paper has the model, 16 nodes of 8 H800, 16 responses a prompt and the limit; the mean follows from its tokens a "
        "second times its hours (19 million tokens a step, with and without staleness), for a batch of 2,048 responses."
    ),
    (
        "Staleness 0 is played as synchronous iterations on the same two pools: AReaL's trainer waits for a whole batch. "
        f"Unbounded is a bound of {UNBOUNDED:g} updates, which no sample reaches while generation is slower than training."
    ),
    (
        "Responses under way are prefilled again with new weights. The trainer is forecast as FSDP2 (the paper's was "
        "Megatron-Core), four updates a step, with a pass for the proximal policy's log-probabilities."
    ),
    "No constant of rlplan is fitted on these figures.",
)


def reproduce(progress: Progress | None = None) -> Reproduction:
    """Return every point forecast, and every claim of the paper marked.

    Args:
        progress: Called with (done, total, point) before each.
    """
    runs = {(PANEL, series_of(bound)): run_of(bound) for bound in PUBLISHED}
    published = {(PANEL, series_of(bound)): value for bound, value in PUBLISHED.items()}
    points = forecast_points(FIGURE, "tokens_per_second", runs, published, progress)
    return Reproduction(
        name="areal",
        title="AReaL's throughput against staleness, forecast",
        source="Fu et al. 2025, AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language "
        "Reasoning, arXiv:2505.24298, and the blog of AReaL v0.3",
        notes=NOTES,
        points=points,
        claims=tuple(judged(CLAIMS, [point.forecast or 0.0 for point in points])),
    )


def run_of(staleness: float) -> PublishedRun:
    """Return the run whose samples may be so many updates old."""
    if not staleness:
        return SYNCHRONOUS
    return replace(SYNCHRONOUS, mode="async", staleness=staleness, in_flight="recompute")


def series_of(staleness: float) -> str:
    """Return how a bound is called."""
    return "unbounded" if staleness == UNBOUNDED else f"staleness {staleness:g}"


def _point(place: int, bound: float, rate: float) -> Stated[Sequence[float]]:
    return Stated(
        where=FIGURE,
        text=f"{series_of(bound)}: {rate / 1e3:.1f} thousand tokens a second",
        bounds=(near(rate / 1e3, WITHIN_FRACTION),),
        measure=lambda rates: figure(rates[place] / 1e3),
    )


FASTER = SYNCHRONOUS_HOURS / ASYNCHRONOUS_HOURS
# Of tokens a second by staleness, in the order of `PUBLISHED`.
CLAIMS: tuple[Stated[Sequence[float]], ...] = (
    *(_point(place, bound, rate) for place, (bound, rate) in enumerate(PUBLISHED.items())),
    Stated(
        where=FIGURE,
        text="More staleness never lowers the throughput",
        bounds=(FALLS,),
        measure=lambda rates: order(rates[::-1]),
    ),
    Stated(
        where="blog of v0.3, table 2",
        text=f"Asynchronous training takes 14.8 hours where synchronous takes 41.0: {FASTER:.2f} times as fast",
        bounds=(near(FASTER, WITHIN_FRACTION),),
        measure=lambda _: figure(step_seconds(run_of(0.0)) / step_seconds(run_of(USUAL_STALENESS))),
    ),
)
