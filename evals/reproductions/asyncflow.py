"""AsyncFlow's ablation and its scaling beside verl: Han et al. 2025, arXiv:2507.01663.

A figure that the paper states is taken to hold when the forecast's is within 25 % of it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from rlplan.evals.claims import ALL, FALLS, Measured, Stated, figure, judged, near, order
from rlplan.evals.settings.published_points import Progress, forecast_points, step_seconds
from rlplan.job import Engines, Specs
from rlplan.planner.measured.framework_runs import PublishedRun, job_of
from rlplan.planner.search import search
from rlplan.profiles.facts import load_facts
from rlplan.results.accuracy import Point, Reproduction
from rlplan.results.forecast import SearchResult
from rlplan.workload import Logged

WITHIN_FRACTION = 0.25
ABLATION_DEVICES = 512
ROLLOUT_TPS = (1, 2, 4)
CLUSTERS = (32, 64, 128, 256, 512, 1024)
APART, STREAMED, ASYNCHRONOUS = "tasks apart", "with TransferQueue", "and asynchronous"
FACTORS: Mapping[str, float] = {APART: 1.0, STREAMED: 2.01, ASYNCHRONOUS: 2.74}
VERL, ASYNCFLOW = "verl", "AsyncFlow"
LEAST_SPEED_UP, MOST_SPEED_UP, MEAN_SPEED_UP = 1.33, 2.03, 1.59
ENGINES = Engines(train="megatron-core-2025", generate="vllm-0.8")
TOGETHER = PublishedRun(
    framework="verl-megatron",
    engines=ENGINES,
    algorithm="grpo",
    model="qwen2.5-7b",
    gpu="a100-80gb-sxm",
    gpus=ABLATION_DEVICES,
    gpus_per_node=8,
    prompts=256,
    samples=8,
    sequences_per_update=256 * 8,
    prompt_tokens=150,
    response_tokens=Logged(mean=2000, max=8192),
    longest_tokens=9216,
    token_budget=16_384,
    tp=2,
    rollout_memory_fraction=0.8,
    compares_reference=True,
    offloads=frozenset({"actor", "reference"}),
)
ABLATION, SCALING, MODEL = "Ablation", "Throughput beside verl", "Qwen2.5-7B"
NOTES = (
    (
        "Assumed workload: 256 prompts of 150 tokens with 8 responses of 2,000 tokens on average, at most 8,192, one "
        "update, the same on every cluster. The paper has Qwen2.5 7B and 32B, GRPO and DeepScaleR; its batch and "
        "lengths could not be read."
    ),
    (
        "The paper's devices are Ascend NPUs. Forecast on A100 80 GB, whose rates lie near those of a die of the 910C (312 "
        "and 376 TFLOP/s in bf16, 2.0 and 1.6 TB/s: Zuo et al. 2025, arXiv:2506.12708), with Megatron-Core's and vLLM's "
        "sheets for MindSpeed's and vLLM-Ascend's: what is compared are factors on equal devices."
    ),
    (
        "Half of the devices generate, half train and compute log-probabilities, with TP 2; generation has the TP, of 1, "
        "2 and 4, that makes a step shortest. The paper's layouts are not published. "
        "Tasks apart and verl's colocated baseline hand their data through one process, at the times of the sheet "
        "verl-megatron (fitted to published steps); AsyncFlow's sheet has none. A part of the factors is this."
    ),
    "Its 32B points and learning curves are left out.",
    (
        "The search gets the job alone, with weights a step behind at most: mode, pools, their sizes and layouts are "
        "its own. Its gap is that of its bounds, which know less of overlap than its playing does."
    ),
)


def reproduce(progress: Progress | None = None) -> Reproduction:
    """Return every point forecast, and every claim of the paper marked.

    Args:
        progress: Called with (done, total, point) before each.
    """
    points = (
        *forecast_points(ABLATION, "tokens_per_second", ablation_runs(), {}, progress),
        *forecast_points(SCALING, "tokens_per_second", dict(_scaling_runs()), {}, progress),
    )
    return Reproduction(
        name="asyncflow",
        title="AsyncFlow's ablation and scaling, forecast",
        source="Han et al. 2025, AsyncFlow: An Asynchronous Streaming RL Framework for Efficient LLM Post-Training, "
        "arXiv:2507.01663",
        notes=NOTES,
        points=points,
        claims=tuple(judged(CLAIMS, points)),
    )


def apart(gpus: int) -> PublishedRun:
    """Return the run whose tasks have devices of their own and wait for each other."""
    return replace(
        TOGETHER,
        gpus=gpus,
        train_gpus=gpus // 2,
        rollout_gpus=gpus // 2,
        offloads=frozenset({"reference"}),
    )


def asynchronous(gpus: int) -> PublishedRun:
    """Return AsyncFlow's run: one update behind at most, responses go on while weights come."""
    streamed = replace(apart(gpus), framework="asyncflow", mode="streaming")
    return replace(streamed, mode="async", staleness=1.0, in_flight="keep")


def tuned(run: PublishedRun) -> PublishedRun:
    """Return a run with the tensor parallelism of generation that makes its step shortest."""
    offered = [replace(run, rollout_tp=tp) for tp in ROLLOUT_TPS]
    return min(offered, key=step_seconds)


def ablation_runs() -> dict[tuple[str, str], PublishedRun]:
    """Return the runs of the ablation by panel and series."""
    alone, last = apart(ABLATION_DEVICES), asynchronous(ABLATION_DEVICES)
    streamed = replace(last, mode="streaming", staleness=0.0, in_flight="drain")
    runs = {APART: alone, STREAMED: streamed, ASYNCHRONOUS: last}
    return {(MODEL, name): tuned(run) for name, run in runs.items()}


def _scaling_runs() -> Iterator[tuple[tuple[str, str], PublishedRun]]:
    for gpus in CLUSTERS:
        panel = f"{MODEL}, {gpus} devices"
        yield (panel, VERL), tuned(replace(TOGETHER, gpus=gpus))
        yield (panel, ASYNCFLOW), tuned(asynchronous(gpus))


Points = tuple[Point, ...]


def _factor(name: str) -> float:
    """Return how many times as fast a part of the ablation makes the first of its runs."""
    steps = {series: step_seconds(run) for (_, series), run in ablation_runs().items()}
    return steps[APART] / steps[name]


def _speed_ups(points: Points) -> list[float]:
    rates = {(point.gpus, point.series): point.forecast or 0.0 for point in points}
    return [rates[gpus, ASYNCFLOW] / rates[gpus, VERL] for gpus in CLUSTERS]


def _all_faster(points: Points) -> Measured:
    """Return the clusters on which asynchronous training is faster, as a share of all."""
    found = _speed_ups(points)
    shown = ", ".join(f"{each:.2f}" for each in found)
    share = sum(each > 1 for each in found) / len(found)
    return Measured(figures=(share,), evidence=f"{shown} times as fast as verl")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


ENDS: tuple[tuple[str, Callable[[list[float]], float], float], ...] = (
    ("At least", min, LEAST_SPEED_UP),
    ("At most", max, MOST_SPEED_UP),
    ("On average", _mean, MEAN_SPEED_UP),
)


def _part(name: str, factor: float) -> Stated[Points]:
    return Stated(
        where=ABLATION,
        text=f"{name}: {factor} times as fast",
        bounds=(near(factor, WITHIN_FRACTION),),
        measure=lambda _: figure(_factor(name)),
    )


def _end(words: str, of: Callable[[list[float]], float], value: float) -> Stated[Points]:
    return Stated(
        where=SCALING,
        text=f"{words} {value} times as fast as verl",
        bounds=(near(value, WITHIN_FRACTION),),
        measure=lambda points: figure(of(_speed_ups(points))),
    )


def searched(gpus: int) -> SearchResult:
    """Return the best plan of AsyncFlow's job whose weights are a step behind at most."""
    job = job_of(asynchronous(gpus))
    return search(job, load_facts(job), specs=Specs(staleness=1))


def chosen_modes(results: Mapping[int, SearchResult]) -> Measured:
    """Return the clusters on which the search lets generation go on beside training, as a share of all.

    Args:
        results: By the devices of the cluster.
    """
    plans = {gpus: result.plans[0].plan for gpus, result in results.items()}
    shown = "; ".join(
        f"{gpus}: {plan.mode}, "
        + " + ".join(str(pool.gpus) for pool in plan.pools if not pool.is_host)
        + f", gap {results[gpus].gap:.0%}"
        for gpus, plan in plans.items()
    )
    beside = sum(plan.mode in ("one-step-off", "async") for plan in plans.values())
    return Measured(figures=(beside / len(plans),), evidence=shown)


CLAIMS: tuple[Stated[Points], ...] = (
    Stated(
        where=ABLATION,
        text="Each part makes it faster",
        bounds=(FALLS,),
        measure=lambda _: order([step_seconds(run) for run in ablation_runs().values()]),
    ),
    *(_part(name, factor) for name, factor in FACTORS.items() if name != APART),
    *(_end(*each) for each in ENDS),
    Stated(
        where=SCALING,
        text="Asynchronous training is the fastest on every cluster from 32 to 1,024 devices",
        bounds=(ALL,),
        measure=_all_faster,
    ),
    Stated(
        where=SCALING,
        text="The search chooses generation beside training on every cluster from 32 to 1,024 devices",
        bounds=(ALL,),
        measure=lambda _: chosen_modes({gpus: searched(gpus) for gpus in CLUSTERS}),
    ),
)
