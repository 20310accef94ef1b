"""What a plan comes to, first things first: whether it fits, how long a step takes, how its tasks run."""

from collections.abc import Mapping, Sequence

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.plan import Plan, TaskPlan
from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import counted, interval, listed, percent
from rlplan.results.forecast import CHECKPOINTS, BesideForecast, Forecast, MemoryForecast
from rlplan.stages import STAGE_KINDS
from rlplan.units import show_bytes, show_filled, show_joules, show_seconds, show_usd

# Columns of `answer_table` that a narrow terminal can do without, the last first.
SPARE_COLUMNS = ("Batch", "Recompute", "EP", "CP", "MFU", "p10 to p90", "GPUs")

_RECOMPUTE = {"none": "none", "full-offload": "full, inputs on host"}


def fit_words(forecast: Forecast, verdict: str | None = None) -> str:
    """Return the verdict: `fits: 71.2 of 79.6 GiB (89 %), during actor.update`.

    Args:
        verdict: What is said of it where more is known than the forecast; None: whether that fits.
    """
    verdict = verdict or ("fits" if forecast.feasible else "does not fit")
    if not forecast.memory:
        return verdict
    fullest = max(forecast.memory, key=_filled)
    if fullest.fits_host:
        filled = show_filled(fullest.gpu_peak_bytes, fullest.capacity_bytes)
        words = f"{filled} ({percent(_filled(fullest))}), during {fullest.peak_task}"
    else:
        filled = show_filled(fullest.host_peak_bytes, fullest.host_capacity_bytes)
        words = f"{filled} of a GPU's share of its host's memory ({percent(_filled(fullest))})"
    pools = f" on pool {fullest.pool}" if len(forecast.memory) > 1 else ""
    return f"{verdict}: {words}{pools}"


def _filled(memory: MemoryForecast) -> float:
    """Return the share of a GPU's memory that its peak takes, or of its host's where that is short."""
    if not memory.fits_host:
        return memory.host_peak_bytes / memory.host_capacity_bytes
    return memory.gpu_peak_bytes / memory.capacity_bytes if memory.capacity_bytes else 0.0


def step_lines(plan: Plan, forecast: Forecast, mfu: Mapping[str, float]) -> tuple[str, ...]:
    """Return a step's seconds; its tokens per second and GPU, and MFU of training; its money and energy."""
    gpus = gpus_of(plan)
    trains = [task.name for task in _tasks(plan) if task.trains and task.name in mfu]
    utilised = listed(f"{percent(mfu[name])} in {name}" for name in trains)
    seconds = show_seconds(forecast.iteration_seconds)
    each = forecast.tokens_per_second / gpus
    lines = (
        f"step: {seconds} (p10 to p90: {interval(forecast.iteration_seconds_interval)})",
        f"rate: {each:,.0f} tokens/s/GPU on {counted(gpus, 'GPU')}",
        f"MFU:  {utilised}" if utilised else "",
        f"cost: {show_usd(forecast.cost_usd)} and {show_joules(forecast.energy_joules)} a step",
        _goodput_line(forecast),
        speculation_line(forecast),
        *beside_lines(forecast),
    )
    return tuple(line for line in lines if line)


def speculation_line(forecast: Forecast) -> str:
    """Return what guessing tokens ahead does to generation; nothing where the engine does not."""
    found = forecast.speculation
    if found is None:
        return ""
    times = found.without_seconds / found.generation_seconds
    until = (
        f"a token is faster with up to the {found.most_running:,} sequences that run at a time"
        if found.break_even_running is None
        else f"a token is slower from {counted(found.break_even_running, 'running sequence')} a replica on"
    )
    return (
        f"speculation: {found.tokens_per_step:.2f} tokens a step, generation {show_seconds(found.generation_seconds)} in place of "
        f"{show_seconds(found.without_seconds)} ({times:.2f} times as fast); {until}"
    )


def beside_lines(forecast: Forecast) -> tuple[str, ...]:
    """Return what a run has beside its steps, and what it takes as a whole; nothing where the job does not speak of it."""
    beside = forecast.beside
    if beside is None:
        return ()
    lines = [_beside_line(beside, name) for name in (*beside.each_seconds, *beside.unknown)]
    lines += [f"        {note}" for note in beside.notes]
    if beside.run_seconds is not None:
        left_out = f", {' and '.join(beside.unknown)} not counted" if beside.unknown else ""
        usd = f"{beside.run_usd or 0.0:,.0f} USD"
        lines.append(
            f"training: {show_seconds(beside.run_seconds)} and {usd} in {counted(beside.iterations or 0, 'step')}{left_out}"
        )
    return tuple(lines)


def _beside_line(beside: BesideForecast, name: str) -> str:
    """Return what one of validation and checkpoints takes, or what is not known of it."""
    every = f"every {counted(beside.every[name], 'step')}" if name in beside.every else "once"
    size = f" of {show_bytes(beside.checkpoint_bytes)}" if name == CHECKPOINTS else ""
    if name in beside.unknown:
        return f"beside: {name}{size} {every}, not counted: it is not known {beside.unknown[name]}"
    seconds = show_seconds(beside.each_seconds[name])
    each = show_seconds(beside.per_iteration_seconds[name])
    return f"beside: {name}{size} {every}, {seconds} each, {each} a step on average"


def _goodput_line(forecast: Forecast) -> str:
    """Return what failures leave of the steps; nothing where the job does not speak of them."""
    left = forecast.goodput
    if left is None:
        return ""
    every = show_seconds(left.failure_every_seconds)
    if left.iteration_seconds is None:
        return (
            f"goodput: none; with a failure every {every} the run would not get on: hardly a step and its "
            "checkpoint, or a restart, would ever be done"
        )
    return (
        f"goodput: {percent(left.fraction)} with a failure every {every} and a checkpoint every "
        f"{counted(left.checkpoint_every, 'step')}: {show_seconds(left.iteration_seconds)} a step"
    )


def gpus_of(plan: Plan) -> int:
    """Return the devices of all of a plan's pools."""
    return sum(pool.gpus for pool in plan.pools if not pool.is_host)


def answer_table(plan: Plan, forecast: Forecast, mfu: Mapping[str, float]) -> Table:
    """Return every task and transition: where and how it runs, what it takes; the step last."""
    kinds = {task.name: task for task in _tasks(plan)}
    rows = []
    for cost in forecast.costs:
        if cost.activity == "transfer":  # of data between pools: small, and beside other work
            continue
        layout, task = plan.tasks.get(cost.name), kinds.get(cost.name)
        is_run = layout is not None and task is not None and task.has_model
        how = _layout_cells(layout, task) if is_run and layout and task else ("",) * 7
        gpus = str(plan.pool(cost.pool).gpus) if layout is not None else ""
        times = (show_seconds(cost.seconds), _short_interval(cost.interval_seconds))
        used = percent(mfu[cost.name]) if cost.name in mfu else ""
        rows.append((cost.name, cost.pool, gpus, *how, *times, used))
    whole = show_seconds(forecast.iteration_seconds), interval(forecast.iteration_seconds_interval)
    rows.append(("step", *("",) * 9, *whole, ""))
    return Table(
        columns=columns(
            "Task", "Pool", "#GPUs", "#TP", "#PP", "#DP", "#CP", "#EP", "#Batch", "Recompute",
            "#Time", "#p10 to p90", "#MFU",
        ),
        rows=tuple(rows),
        strong_rows=frozenset({len(rows) - 1}),
    )  # fmt: skip


def _short_interval(seconds: tuple[float, float]) -> str:
    """Return an interval whose unit stands once, such as `39.50 to 66.74 s`."""
    low, high = (show_seconds(each) for each in seconds)
    unit = high.partition(" ")[2]
    return (
        f"{low.removesuffix(f' {unit}')} to {high}"
        if "min" not in low + high
        else interval(seconds)
    )


def _tasks(plan: Plan) -> Sequence[Task]:
    return tasks_of(load_algorithm(plan.job.algorithm), plan.job)


def _layout_cells(layout: TaskPlan, task: Task) -> tuple[str, ...]:
    uses = STAGE_KINDS.load(task.kind).layout_fields
    sizes = (str(getattr(layout, size)) for size in ("tp", "pp", "dp", "cp", "ep"))
    recompute = _RECOMPUTE.get(layout.recompute, layout.recompute) if "recompute" in uses else ""
    return (*sizes, batch_words(layout, task), recompute)


def batch_words(layout: TaskPlan, task: Task) -> str:
    """Return what one replica works on at a time: `8 seqs` or `16,384 tokens`."""
    if task.generates:
        return counted(layout.max_running, "seq")
    if layout.token_budget is not None:
        return f"{layout.token_budget:,} tokens"
    return counted(layout.micro_batch, "seq")


def least_certain_words(forecast: Forecast) -> str:
    """Return which part of a step is known least, in words; nothing where all of it is known well."""

    def width(interval_seconds: tuple[float, float]) -> float:
        return interval_seconds[1] - interval_seconds[0]

    known = [cost for cost in forecast.costs if cost.interval_seconds[1] > cost.seconds > 0]
    if not known:
        return ""
    least = max(known, key=lambda cost: width(cost.interval_seconds))
    outside = ", outside the measured range" if least.outside_range else ""
    return (
        f"most of all {least.name}: {interval(least.interval_seconds)} (p10 to p90, from "
        f"{least.source}{outside})"
    )
