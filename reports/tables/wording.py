"""Plans, clusters and verdicts in words, shared by the page, its Markdown version and the terminal."""

from collections.abc import Iterable

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.job import Job
from rlplan.models import ModelArchitecture
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import Comparison, ComparisonRow
from rlplan.stages import STAGE_KINDS
from rlplan.transfers import TRANSFERS
from rlplan.units import show_seconds
from rlplan.workload import (
    Empirical,
    Lengths,
    Logged,
    Lognormal,
    TraceFile,
    Uniform,
    mean_length,
)

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"

_SMALLEST_SHARE = 0.001
_WHOLE_PERCENTS_FROM = 0.1
# Mean lengths of responses that differ by less do not explain errors of several percent.
_SAME_LENGTH_FRACTION = 0.05

_RECOMPUTE = {
    "none": "all activations kept",
    "attention": "attention recomputed",
    "selective": "norms, activations and attention recomputed",
    "alternate": "every other layer recomputed",
    "experts": "norms, activations and experts recomputed",
    "full": "all activations recomputed",
    "full-offload": "all activations recomputed, from inputs in host memory",
}


def signed(value: float, text: str) -> str:
    """Return `text` (of the magnitude) with the sign of `value`."""
    return f"{'+' if value >= 0 else MINUS}{text}"


def signed_percent(fraction: float) -> str:
    """Return a fraction as a signed percentage, such as `+1.6 %`."""
    return signed(fraction, f"{abs(fraction) * 100:.1f} %")


def signed_seconds(seconds: float) -> str:
    """Return a difference of seconds with its sign, such as `+1.20 s`."""
    return signed(seconds, show_seconds(abs(seconds)))


def percent(fraction: float) -> str:
    """Return a share, such as `42 %`, `4.2 %` or `<0.1 %`."""
    if 0 < fraction < _SMALLEST_SHARE:
        return f"<{_SMALLEST_SHARE * 100:.1f} %"
    return (
        f"{fraction * 100:.0f} %"
        if fraction >= _WHOLE_PERCENTS_FROM or fraction == 0
        else f"{fraction * 100:.1f} %"
    )


def interval(seconds: tuple[float, float]) -> str:
    """Return an interval of seconds, such as `1.20 s to 1.40 s`."""
    return f"{show_seconds(seconds[0])} to {show_seconds(seconds[1])}"


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun, such as `1 node` or `1,024 prompts`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def listed(words: Iterable[str]) -> str:
    """Return words as an enumeration, such as `a, b and c`."""
    items = list(words)
    return (
        items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""
    )


def verdict(forecast: Forecast, comparison: Comparison | None) -> str:
    """Return one sentence that says what the forecast was worth, or what it is."""
    predicted = show_seconds(forecast.iteration_seconds)
    if comparison is not None:
        return compared(comparison.iteration)
    if not forecast.feasible:
        return f"This plan does not fit: {listed(forecast.infeasible_reasons)}."
    low, high = forecast.iteration_seconds_interval
    spread = f" ({interval((low, high))}, 10th to 90th percentile)" if high > low else ""
    return f"Forecast: {predicted} an iteration{spread}. Not run yet."


def compared(row: ComparisonRow) -> str:
    """Return one row's verdict: `forecast 1.23 s, measured 1.25 s: off by -1.6 %`."""
    return (
        f"Forecast {show_seconds(row.forecast_seconds)}, "
        f"measured {show_seconds(row.measured_median_seconds)}: "
        f"off by {signed_percent(row.error_fraction)}."
    )


def compared_iterations(comparison: Comparison) -> str:
    """Return over which iterations a comparison's medians are, as a sentence."""
    warmup = comparison.warmup_iterations
    left_out = f"; {counted(warmup, 'warm-up iteration')} left out" if warmup else ""
    return f"Medians over {counted(comparison.compared_iterations, 'iteration')}{left_out}."


def other_lengths(comparison: Comparison) -> str | None:
    """Return a warning where responses were longer or shorter than the forecast's; None if not."""
    if comparison.response_tokens is None:
        return None
    forecast, measured = comparison.response_tokens
    if abs(measured - forecast) <= _SAME_LENGTH_FRACTION * forecast:
        return None
    kind = "shorter" if measured < forecast else "longer"
    words = (
        f"Responses were {kind} than the forecast's: {measured:.1f} tokens on average, not"
        f" {forecast:.1f}."
    )
    if comparison.as_run_response_tokens is not None:
        return words
    return f"{words} `rlplan check-step RUN` compares at the lengths that the run had."


def as_run_words(comparison: Comparison) -> str | None:
    """Return how far off the iteration's forecast is as it ran, as a sentence; None where nothing differs."""
    row, slowdown, parts = comparison.iteration, comparison.machine_slowdown, []
    if comparison.as_run_response_tokens is not None and (error := row.error_at()) is not None:
        tokens = comparison.as_run_response_tokens
        parts.append(f"{signed_percent(error)} at its lengths ({tokens:.1f} tokens a response)")
    if slowdown is not None and (error := row.error_at(slowdown)) is not None:
        parts.append(
            f"{signed_percent(error)} with its machine's rate (a fixed loop took {slowdown:.2f} times as "
            "long as when it was profiled)"
        )
    if not parts:
        return None
    return f"The iteration is off by {listed((signed_percent(row.error_fraction), *parts))}."


def replayed_words(comparison: Comparison) -> str | None:
    """Return what iterations take by forecasts with the replicas and lengths that they had, beside what they took; None where that is not known."""
    forecast = measured = 0.0
    for row in comparison.replicas:
        if row.as_run_seconds is None or row.measured_seconds is None:
            return None
        forecast += row.iterations * row.as_run_seconds
        measured += row.measured_seconds
    if not measured:
        return None
    iterations = sum(row.iterations for row in comparison.replicas)
    return (
        f"Replayed with the replicas and lengths that they had, these {iterations:,} iterations take {show_seconds(forecast)}; they "
        f"took {show_seconds(measured)} ({signed_percent(forecast / measured - 1)})."
    )


def cluster(job: Job) -> str:
    """Return the cluster, such as `2 nodes of 8 x a100-80gb-sxm, 200 Gbit/s between nodes`."""
    groups = []
    for group in job.cluster:
        words = f"{counted(group.nodes, 'node')} of {group.gpus_per_node} {TIMES} {group.gpu}"
        if group.nodes > 1 and group.inter_node_gbps is not None:
            words += f", {group.inter_node_gbps:g} Gbit/s between nodes"
        groups.append(words)
    return "; ".join(groups)


def model_of(job: Job, role: str) -> str:
    """Return the name of a role's model."""
    model = job.models[role]  # type: ignore[index]
    return model.name if isinstance(model, ModelArchitecture) else model


def models(job: Job) -> str:
    """Return the models with their roles, such as `llama-2-7b (actor, critic)`."""
    roles: dict[str, list[str]] = {}
    for role in job.models:
        adapter = job.adapter(role)
        words = f"{role} by adapters of rank {adapter.rank}" if adapter else role
        roles.setdefault(model_of(job, role), []).append(words)
    return "; ".join(f"{name} ({', '.join(of)})" for name, of in roles.items())


def workload(job: Job) -> str:
    """Return the work of an iteration in words."""
    work = job.workload
    samples = f", {work.samples_per_prompt} samples each" if work.samples_per_prompt > 1 else ""
    passes = f" in {counted(work.epochs, 'epoch')}" if work.epochs > 1 else ""
    return (
        f"{counted(work.prompts, 'prompt')}{samples}; "
        f"{lengths(work.prompt_tokens)} prompt and {lengths(work.response_tokens)} response tokens; "
        f"{counted(work.updates, 'update')}{passes}"
    )


def lengths(of: Lengths) -> str:
    """Return lengths in words, such as `1,024` or `8 to 32`."""
    if isinstance(of, Uniform):
        return f"{of.low:,} to {of.high:,}"
    if isinstance(of, Lognormal):
        never = f", {of.at_max:.0%} of them so long" if of.at_max else ""
        # What is drawn is cut: the mean before that may even lie beyond the longest.
        return f"{mean_length(of):,.0f} on average (at most {of.max:,}{never})"
    if isinstance(of, Empirical):
        return f"{min(of.values):,} to {max(of.values):,} (as observed)"
    if isinstance(of, TraceFile):
        return f"those of {of.trace}"
    if isinstance(of, Logged):
        return f"{of.mean:,.0f} on average, as logged"
    return f"{of:,}"


def kinds(job: Job) -> dict[str, str]:
    """Return what each task of a job does, by its name, in the dataflow's order.

    Raises:
        UnknownNameError: The job's algorithm is not known.
    """
    return {task.name: task.kind for task in tasks_of(load_algorithm(job.algorithm), job)}


def pool_words(pool: ResourcePool) -> str:
    """Return what a pool is made of, such as `8 x a100-80gb-sxm`."""
    if pool.is_host:
        return counted(pool.gpus, "CPU worker process", "CPU worker processes")
    return f"{pool.gpus} {TIMES} {pool.device}"


def pool_sizes(plan: Plan) -> str:
    """Return the devices of a plan's pools, such as `8 + 4`."""
    return " + ".join(str(pool.gpus) for pool in plan.pools if not pool.is_host)


def layout_words(layout: TaskPlan, kind: str) -> str:
    """Return how a task runs on its pool, in words."""
    if not STAGE_KINDS.load(kind).has_model:
        return counted(layout.gpus, "worker process", "worker processes")
    if kind == "generate":
        words = [_replicas(layout), f"at most {layout.max_running:,} sequences at a time each"]
        words.append(f"up to {layout.memory_fraction * 100:.0f} % of the memory")
    else:
        words = [_sizes(layout), _micro_batch(layout)]
    if kind == "train":
        words.append(_RECOMPUTE[layout.recompute])
        words.append(f"ZeRO stage {layout.zero}" if layout.zero else "no ZeRO")
    if layout.offload:
        kept = "optimizer states" if kind == "train" else "weights"
        words.append(f"{kept} in host memory between uses")
    if layout.engine:
        words.append(f"engine {layout.engine}")
    return ", ".join(words)


def transition_words(plan: Plan) -> str:
    """Return how the actor's weights get from training to generation, as a sentence."""
    name = "" if plan.transition == "none" else f" ({plan.transition})"
    words = TRANSFERS.load(plan.transition).words
    return f"Weights from training to generation{name}: {words}."


def _micro_batch(layout: TaskPlan) -> str:
    if layout.token_budget is not None:
        return f"micro-batches of up to {layout.token_budget:,} tokens"
    return f"micro-batches of {layout.micro_batch:,}"


def _replicas(layout: TaskPlan) -> str:
    each = layout.tp * layout.pp * layout.cp
    sizes = _sizes(layout, data_parallel=False)
    return f"{counted(layout.dp, 'replica')} of {counted(each, 'device')}{f' ({sizes})' if each > 1 else ''}"


def _sizes(layout: TaskPlan, *, data_parallel: bool = True) -> str:
    """Return the parallel sizes; those of one that say nothing are left out."""
    sizes = [f"TP {layout.tp}"] if layout.tp > 1 or data_parallel else []
    sizes += [f"PP {layout.pp}"] if layout.pp > 1 else []
    sizes += [f"CP {layout.cp}"] if layout.cp > 1 else []
    sizes += [f"DP {layout.dp}"] if data_parallel else []
    sizes += [f"EP {layout.ep}"] if layout.ep > 1 else []
    apart = layout.expert_tp not in (None, layout.tp)
    sizes += [f"expert TP {layout.expert_tp}"] if apart else []
    return f" {TIMES} ".join(sizes)
