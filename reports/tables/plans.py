"""Rows of every table, as text: the page, its Markdown version and the terminal share them.

And what a plan comes to, first things first: whether it fits, how long a step takes, how its tasks run.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.models import ModelArchitecture
from rlplan.plan import SIZES, Plan, TaskPlan
from rlplan.reports.tables.wording import (
    TIMES,
    counted,
    interval,
    layout_words,
    listed,
    model_of,
    percent,
    pool_words,
    signed_percent,
)
from rlplan.results.forecast import (
    CHECKPOINTS,
    BesideForecast,
    Forecast,
    MemoryForecast,
    MemoryMoment,
)
from rlplan.results.measurement import Comparison, ComparisonRow, MeasuredRun, ReplicaRow
from rlplan.stages import STAGE_KINDS
from rlplan.units import show_bytes, show_filled, show_joules, show_seconds, show_usd, whole_usd


@dataclass(frozen=True, slots=True)
class Column:
    """Head a column; figures are aligned to the right."""

    title: str
    is_figure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Hold a table as text.

    Attributes:
        strong_rows: Indices of rows that stand out (a total, the chosen plan).
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    strong_rows: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), "one cell per column"


def columns(*titles: str) -> tuple[Column, ...]:
    """Return columns; a title that begins with `#` is one of figures."""
    return tuple(Column(title.removeprefix("#"), title.startswith("#")) for title in titles)


def split(table: Table, first: int) -> tuple[Table, Table]:
    """Return a table's first rows, and the others."""
    strong = frozenset(index - first for index in table.strong_rows if index >= first)
    return (
        Table(
            columns=table.columns,
            rows=table.rows[:first],
            strong_rows=frozenset(index for index in table.strong_rows if index < first),
        ),
        Table(columns=table.columns, rows=table.rows[first:], strong_rows=strong),
    )


def _without_bars(cell: str) -> str:
    return cell.replace("|", "\\|")


def markdown_lines(table: Table, escape: Callable[[str], str] = _without_bars) -> list[str]:
    """Return a table as lines of Markdown.

    Args:
        escape: Returns the Markdown of a cell's text.
    """

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    titles = [column.title for column in table.columns]
    rules = ["---:" if column.is_figure else "---" for column in table.columns]
    rows = [line(map(escape, row)) for row in (titles, *table.rows)]
    return [rows[0], line(rules), *rows[1:]]


def error_table(comparison: Comparison) -> Table:
    """Return forecast against measurement, task by task, the iteration last."""
    rows = [*comparison.rows, comparison.iteration]
    at_lengths = comparison.iteration.as_run_seconds is not None
    slowdown = comparison.machine_slowdown
    return Table(
        columns=columns(
            "Task", "Pool", "#Forecast", *(["#Forecast at its lengths"] if at_lengths else []), "#Measured median",
            "#Measured p10 to p90", "#Error", *(["#Error at its lengths"] if at_lengths else []),
            *(["#Error at its rate"] if slowdown is not None else []), "Source of the forecast",
        ),
        rows=tuple(_error_row(row, slowdown, at_lengths=at_lengths) for row in rows),
        strong_rows=frozenset({len(rows) - 1}),
    )  # fmt: skip


def replica_table(comparison: Comparison) -> Table:
    """Return forecast against measurement of an iteration by the number of replicas that generate."""
    at_lengths = any(row.as_run_seconds is not None for row in comparison.replicas)
    return Table(
        columns=columns(
            "#Replicas", "#Iterations", *(["#Tokens a response", "#Forecast there"] if at_lengths else []),
            "#Forecast", "#Forecast p10 to p90", "#Measured median", "#Measured p10 to p90", "#Error",
        ),
        rows=tuple(
            (
                str(row.replicas),
                str(row.iterations),
                *(_at_its_lengths(row) if at_lengths else []),
                show_seconds(row.forecast_seconds),
                interval(row.forecast_interval_seconds),
                show_seconds(row.measured_median_seconds),
                interval(row.measured_interval_seconds),
                signed_percent(row.error_fraction),
            )
            for row in comparison.replicas
        ),
    )  # fmt: skip


def _at_its_lengths(row: ReplicaRow) -> tuple[str, str]:
    """Return the lengths of the iterations with a number of replicas, and the forecast of one with these."""
    if row.response_tokens is None or row.as_run_seconds is None:
        return "", ""
    return f"{row.response_tokens:,.1f}", show_seconds(row.as_run_seconds)


def _error_row(row: ComparisonRow, slowdown: float | None, *, at_lengths: bool) -> tuple[str, ...]:
    again = row.as_run_seconds
    return (
        row.name,
        row.pool,
        show_seconds(row.forecast_seconds),
        *(["" if again is None else show_seconds(again)] if at_lengths else []),
        show_seconds(row.measured_median_seconds),
        interval(row.measured_interval_seconds),
        signed_percent(row.error_fraction),
        *([_error_words(row.error_at())] if at_lengths else []),
        *([_error_words(row.error_at(slowdown))] if slowdown is not None else []),
        row.source,
    )


def _error_words(fraction: float | None) -> str:
    return "" if fraction is None else signed_percent(fraction)


def memory_table(forecast: Forecast, run: MeasuredRun | None = None) -> Table:
    """Return the peak of every pool's fullest GPU against its capacity, measured peaks beside it."""
    measured: Mapping[str, int] = run.memory_peak_bytes if run else {}
    titles = ["Pool", "#Forecast peak", "#Capacity", "#Filled", "Peak during"]
    if measured:
        titles.append("#Measured peak")
    rows = []
    for memory in forecast.memory:
        row = [
            memory.pool,
            show_bytes(memory.gpu_peak_bytes),
            show_bytes(memory.capacity_bytes),
            _filled(memory),
            memory.peak_task,
        ]
        if measured:
            peak = measured.get(memory.pool)
            row.append("not measured" if peak is None else show_bytes(peak))
        rows.append(tuple(row))
    return Table(columns=columns(*titles), rows=tuple(rows))


def _filled(memory: MemoryForecast) -> str:
    share = percent(memory.gpu_peak_bytes / memory.capacity_bytes)
    if memory.fits:
        return share
    return f"{share}, over by {show_bytes(memory.gpu_peak_bytes - memory.capacity_bytes)}"


def memory_terms_table(forecast: Forecast) -> Table:
    """Return what every pool's peak is made of, the largest term first."""
    return Table(
        columns=columns("Pool", "Term", "#Size", "#Share of the peak"),
        rows=tuple(
            (memory.pool, term, show_bytes(size), percent(size / max(memory.gpu_peak_bytes, 1)))
            for memory in forecast.memory
            for term, size in sorted(memory.terms.items(), key=lambda item: (-item[1], item[0]))
            if size
        ),
    )


def host_terms_table(forecast: Forecast) -> Table:
    """Return what lies in the host's memory for one GPU of every pool, beside a GPU's share of its node."""
    return Table(
        columns=columns("Pool", "Term", "#Size", "#Of a GPU's share"),
        rows=tuple(
            (memory.pool, term, show_bytes(size), _share_of_host(size, memory))
            for memory in forecast.memory
            for term, size in sorted(
                memory.host_terms.items(), key=lambda item: (-item[1], item[0])
            )
        ),
    )


def _share_of_host(size: int, memory: MemoryForecast) -> str:
    return percent(size / memory.host_capacity_bytes) if memory.host_capacity_bytes else ""


def layout_table(plan: Plan) -> Table:
    """Return every task's pool, model and layout in words, in the dataflow's order."""
    rows = []
    for task in tasks_of(load_algorithm(plan.job.algorithm), plan.job):
        layout = plan.tasks[task.name]
        model = model_of(plan.job, task.role) if task.has_model else task.kind
        rows.append((task.name, layout.pool, model, layout_words(layout, task.kind)))
    return Table(columns=columns("Task", "Pool", "Model", "How it runs"), rows=tuple(rows))


def pool_table(plan: Plan) -> Table:
    """Return what every pool is made of and who shares it, in which order."""
    return Table(
        columns=columns("Pool", "Made of", "Roles", "Order of its tasks"),
        rows=tuple(
            (
                pool.name,
                pool_words(pool),
                ", ".join(pool.roles),
                ", ".join(plan.order.get(pool.name, ())) or "as they become ready",
            )
            for pool in plan.pools
        ),
    )


def task_table(forecast: Forecast) -> Table:
    """Return every task's forecast with its interval and source, the iteration last."""
    rows = [
        (
            task.name,
            task.pool,
            task.stage,
            show_seconds(task.seconds),
            interval(task.interval_seconds),
            source_words(task.source, outside_range=task.outside_range),
        )
        for task in forecast.costs
    ]
    rows.append(
        (
            "iteration", "", "",
            show_seconds(forecast.iteration_seconds),
            interval(forecast.iteration_seconds_interval),
            "simulated",
        )
    )  # fmt: skip
    return Table(
        columns=columns("Task", "Pool", "Stage", "#Forecast", "#p10 to p90", "Source"),
        rows=tuple(rows),
        strong_rows=frozenset({len(rows) - 1}),
    )


def source_words(source: str, *, outside_range: bool) -> str:
    """Return a source, with a remark where a look-up left the measured range."""
    return f"{source}, outside the measured range" if outside_range else source


def parts_table(forecast: Forecast) -> Table:
    """Return the parts of every task's seconds, the largest first."""
    return Table(
        columns=columns("Task", "Part", "#Seconds", "#Share of the task"),
        rows=tuple(
            (task.name, part, show_seconds(seconds), percent(seconds / task.seconds))
            for task in forecast.costs
            if task.seconds > 0
            for part, seconds in sorted(task.parts.items(), key=lambda item: (-item[1], item[0]))
            if seconds
        ),
    )


def stage_table(forecast: Forecast) -> Table:
    """Return what every stage occupies of the iteration, and what pools stand idle for."""
    whole = forecast.iteration_seconds
    stages = [
        (f"Stage: {stage}", show_seconds(seconds), percent(seconds / whole))
        for stage, seconds in forecast.stage_seconds.items()
    ]
    idle = [
        (f"Idle, all pools: {cause}", show_seconds(seconds), "")
        for cause, seconds in forecast.idle_seconds.items()
    ]
    return Table(
        columns=columns("What", "#Seconds", "#Share of an iteration"), rows=tuple(stages + idle)
    )


def sources_table(plan: Plan, forecast: Forecast) -> Table:
    """Return where the numbers come from: the profile, the models' sheets and the forecast's sources."""
    rows = [("Profile", forecast.profile)]
    for name in dict.fromkeys(model_of(plan.job, role) for role in plan.job.models):
        model = next(
            (each for each in plan.job.models.values()
             if isinstance(each, ModelArchitecture) and each.name == name), None,
        )  # fmt: skip
        rows.append((f"Model {name}", (model.source if model else "") or "named by the job"))
    by_source: dict[str, list[str]] = {}
    for task in forecast.costs:
        words = source_words(task.source, outside_range=task.outside_range)
        by_source.setdefault(words, []).append(task.name)
    rows += [(f"Forecast: {source}", ", ".join(names)) for source, names in by_source.items()]
    return Table(columns=columns("What", "Where it comes from"), rows=tuple(rows))


def machine_table(run: MeasuredRun) -> Table:
    """Return the machine that ran the plan."""
    return Table(
        columns=columns("Machine", "Value"),
        rows=tuple((key, value) for key, value in run.machine.items()),
    )


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
    fullest = max(forecast.memory, key=_filled_share)
    if fullest.fits_host:
        filled = show_filled(fullest.gpu_peak_bytes, fullest.capacity_bytes)
        words = f"{filled} ({percent(_filled_share(fullest))}), during {fullest.peak_task}"
    else:
        filled = show_filled(fullest.host_peak_bytes, fullest.host_capacity_bytes)
        words = (
            f"{filled} of a GPU's share of its host's memory ({percent(_filled_share(fullest))})"
        )
    pools = f" on pool {fullest.pool}" if len(forecast.memory) > 1 else ""
    return f"{verdict}: {words}{pools}"


def _filled_share(memory: MemoryForecast) -> float:
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
        f"rate: {each:,.0f} tokens/s/GPU on {devices_words(plan)}",
        f"MFU:  {utilised}" if utilised else "",
        f"cost: {show_usd(forecast.cost_usd)} and {show_joules(forecast.energy_joules)} a step",
        *effect_lines(forecast),
    )
    return tuple(line for line in lines if line)


def effect_lines(forecast: Forecast) -> tuple[str, ...]:
    """Return what acts on a step beside its tasks, and what a run has beside its steps, where the job speaks of it."""
    lines = (
        _goodput_line(forecast),
        lending_line(forecast),
        *spot_lines(forecast),
        speculation_line(forecast),
        host_cache_line(forecast),
        prefill_line(forecast),
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
        f"guessing makes a token faster with up to the {found.most_running:,} sequences that run at a time"
        if found.break_even_running is None
        else f"guessing makes a token slower from {counted(found.break_even_running, 'running sequence')} a replica on"
    )
    return (
        f"speculation: {found.tokens_per_step:.2f} tokens a step, generation {show_seconds(found.generation_seconds)} in place of "
        f"{show_seconds(found.without_seconds)} ({times:.2f} times as fast); {until}"
    )


def host_cache_line(forecast: Forecast) -> str:
    """Return what a cache that goes on in host memory does to generation; nothing where it does not."""
    found = forecast.host_cache
    if found is None:
        return ""
    times = found.without_seconds / found.generation_seconds
    return (
        f"KV off-load: {show_bytes(found.replica_bytes)} of host memory beside {show_bytes(found.device_bytes)} on the GPUs of a replica, "
        f"generation {show_seconds(found.generation_seconds)} in place of {show_seconds(found.without_seconds)} "
        f"({times:.2f} times as fast)"
    )


def prefill_line(forecast: Forecast) -> str:
    """Return what replicas that read prompts alone do to generation; nothing where all do both."""
    found = forecast.prefill
    if found is None:
        return ""
    times = found.without_seconds / found.generation_seconds
    replicas = counted(found.reading + found.writing, "replica")
    return (
        f"prefill apart: {found.reading} of {replicas} read prompts, {show_bytes(found.handed_bytes)} of cache handed on for each, generation "
        f"{show_seconds(found.generation_seconds)} in place of {show_seconds(found.without_seconds)} where all do both ({times:.2f} times "
        f"as fast), {show_seconds(found.handed_seconds)} of it waits for caches"
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
        usd = whole_usd(beside.run_usd or 0.0)
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


def lending_line(forecast: Forecast) -> str:
    """Return for how long GPUs are lent in a step; nothing where none are."""
    found = forecast.overlap
    if found is None or not (found.lent_fraction or found.helped_fraction):
        return ""
    words = [
        f"training's GPUs generate in {percent(found.lent_fraction)} of a step"
        if found.lent_fraction
        else "",
        f"idle generators shorten training by {percent(found.helped_fraction)} of a step"
        if found.helped_fraction
        else "",
    ]
    return f"lending: {listed(word for word in words if word)}"


def spot_lines(forecast: Forecast) -> tuple[str, ...]:
    """Return what losses of spot nodes leave of the steps, and what they cost then; nothing without spot nodes."""
    left = forecast.spot
    if left is None:
        return ()
    pools = "pool" if len(left.pools) == 1 else "pools"
    loses = "loses" if len(left.pools) == 1 else "lose"
    where = (
        f"{pools} {listed(left.pools)} {loses} a node every {show_seconds(left.loss_every_seconds)}"
    )
    if left.iteration_seconds is None or left.cost_usd is None:
        return (f"spot: {where}: the run would not get on",)
    saved = 1 - left.cost_usd / left.steady_usd if left.steady_usd else 0.0
    than = f"{percent(abs(saved))} {'less' if saved >= 0 else 'more'} than without losses at list prices"
    lines = [
        f"spot: {where}: {show_seconds(left.iteration_seconds)} and {show_usd(left.cost_usd)} a step, {than}",
        (
            f"      {percent(left.fraction)} of the time goes into steps; generators make "
            f"{percent(left.generating_fraction)} of what they would"
        ),
    ]
    if left.goodput is not None:
        lines.append(
            f"      a stop every {show_seconds(left.goodput.failure_every_seconds)}, a checkpoint every "
            f"{counted(left.goodput.checkpoint_every, 'step')}: {percent(left.goodput.fraction)} is left"
        )
    if left.run_seconds is not None and left.run_usd is not None:
        lines.append(
            f"      the whole run: {show_seconds(left.run_seconds)} and {whole_usd(left.run_usd)}"
        )
    return tuple(lines)


def devices_words(plan: Plan) -> str:
    """Return a plan's devices by kind, each with its number."""
    numbers: dict[str, int] = {}
    for pool in plan.pools:
        if not pool.is_host:
            numbers[pool.device] = numbers.get(pool.device, 0) + pool.gpus
    return " + ".join(f"{number} {TIMES} {device}" for device, number in numbers.items())


def training_words(forecast: Forecast, training: MemoryMoment) -> str:
    """Return how full the fullest training stage is, where something else fills more, on whatever pool; empty where `fit_words` has it."""
    if training.during == max(forecast.memory, key=_filled_share).peak_task:
        return ""
    needed = sum(training.terms.values())
    filled = show_filled(needed, training.capacity_bytes)
    return f"      training at most: {filled} ({percent(needed / training.capacity_bytes)}), during {training.during}"


def gpus_of(plan: Plan) -> int:
    """Return the devices of all of a plan's pools."""
    return sum(pool.gpus for pool in plan.pools if not pool.is_host)


# Sizes of a layout that have columns.
SHOWN_SIZES = (*SIZES, "ep")


def answer_table(plan: Plan, forecast: Forecast, mfu: Mapping[str, float]) -> Table:
    """Return every task and transition: where and how it runs, what it takes; the step last."""
    kinds = {task.name: task for task in _tasks(plan)}
    rows, no_layout = [], ("",) * (len(SHOWN_SIZES) + 2)
    for cost in forecast.costs:
        if cost.activity == "transfer":  # of data between pools: small, and beside other work
            continue
        layout, task = plan.tasks.get(cost.name), kinds.get(cost.name)
        is_run = layout is not None and task is not None and task.has_model
        how = _layout_cells(layout, task) if is_run and layout and task else no_layout
        pool = plan.pool(cost.pool) if layout is not None else None
        gpus = "" if pool is None or pool.is_host else str(pool.gpus)  # a host's are CPU cores
        times = (show_seconds(cost.seconds), _short_interval(cost.interval_seconds))
        used = percent(mfu[cost.name]) if cost.name in mfu else ""
        rows.append((cost.name, cost.pool, gpus, *how, *times, used))
    whole = show_seconds(forecast.iteration_seconds), interval(forecast.iteration_seconds_interval)
    rows.append(("step", "", "", *no_layout, *whole, ""))
    return Table(
        columns=columns(
            "Task", "Pool", "#GPUs", *(f"#{size.upper()}" for size in SHOWN_SIZES), "#Batch", "Recompute",
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
    sizes = (str(getattr(layout, size)) for size in SHOWN_SIZES)
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
