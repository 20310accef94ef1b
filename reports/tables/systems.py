"""Rows of the tables that set systems of the field beside our plan."""

from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import TIMES, kinds, layout_words, pool_sizes, pool_words
from rlplan.results.accuracy import SystemForecast, SystemsComparison
from rlplan.units import show_bytes, show_seconds

_NOTHING = "-"


def throughput_table(comparison: SystemsComparison) -> Table:
    """Return iteration, throughput and our speed-up over every system, ours first."""
    return Table(
        columns=columns("System", "Placement", "#Devices", "#Step", "#Tokens/s", "#Our speed-up"),
        rows=tuple(_throughput_row(comparison, system) for system in _all(comparison)),
        strong_rows=frozenset({0}),
    )


def _throughput_row(comparison: SystemsComparison, system: SystemForecast) -> tuple[str, ...]:
    plan, forecast = system.plan, system.forecast
    if plan is None or forecast is None:
        return (system.name, "no plan of it fits", *[_NOTHING] * 4)
    speed_up = comparison.speed_up(system)
    ours = system is comparison.ours
    return (
        system.name,
        plan.placement,
        pool_sizes(plan),
        show_seconds(forecast.iteration_seconds),
        f"{forecast.tokens_per_second:,.0f}",
        "" if ours or speed_up is None else f"{speed_up:.2f}{TIMES}",
    )


def stages_table(comparison: SystemsComparison) -> Table:
    """Return what every stage occupies of an iteration, system by system."""
    stages = stage_names(comparison)
    return Table(
        columns=columns("System", *(f"#{stage.capitalize()}" for stage in stages), "#Step"),
        rows=tuple(
            (
                system.name,
                *(_shown(forecast.stage_seconds.get(stage, 0.0)) for stage in stages),
                show_seconds(forecast.iteration_seconds),
            )
            for system in _all(comparison)
            if (forecast := system.forecast) is not None
        ),
        strong_rows=frozenset({0} if comparison.ours.forecast else ()),
    )


def _shown(seconds: float) -> str:
    return show_seconds(seconds) if seconds else _NOTHING


def stage_names(comparison: SystemsComparison) -> tuple[str, ...]:
    """Return the stages of an iteration in their order."""
    known = [system.forecast for system in _all(comparison) if system.forecast]
    return tuple(dict.fromkeys(stage for forecast in known for stage in forecast.stage_seconds))


def systems_memory_table(comparison: SystemsComparison) -> Table:
    """Return the peak of every pool's fullest device, system by system."""
    return Table(
        columns=columns("System", "Pool", "#Peak", "#Capacity", "Peak during", "Largest term"),
        rows=tuple(
            (
                system.name,
                memory.pool,
                show_bytes(memory.gpu_peak_bytes),
                show_bytes(memory.capacity_bytes),
                memory.peak_task,
                _largest(dict(memory.terms)),
            )
            for system in _all(comparison)
            if system.forecast is not None
            for memory in system.forecast.memory
        ),
    )


def _largest(terms: dict[str, int]) -> str:
    if not terms:
        return ""
    name, size = max(terms.items(), key=lambda item: (item[1], item[0]))
    return f"{name}, {show_bytes(size)}"


def systems_layout_table(comparison: SystemsComparison) -> Table:
    """Return how every system's plan runs every task."""
    return Table(
        columns=columns("System", "Task", "On", "How it runs"),
        rows=tuple(
            (
                system.name,
                name,
                pool_words(plan.pool_of(name)),
                layout_words(plan.tasks[name], kind),
            )
            for system in _all(comparison)
            if (plan := system.plan) is not None
            for name, kind in kinds(plan.job).items()
        ),
    )


def misfits_table(comparison: SystemsComparison) -> Table:
    """Return the systems that cannot run the job, each with its reason."""
    return Table(
        columns=columns("System", "Why it cannot run the job"),
        rows=tuple(
            (system.name, system.reason or "")
            for system in _all(comparison)
            if system.forecast is None
        ),
    )


def about_table(comparison: SystemsComparison) -> Table:
    """Return how every system runs a job, and how many of its plans were looked at."""
    return Table(
        columns=columns("System", "How it runs a job", "#Plans considered"),
        rows=tuple(
            (system.name, system.about, f"{system.considered:,}") for system in _all(comparison)
        ),
    )


def _all(comparison: SystemsComparison) -> tuple[SystemForecast, ...]:
    return (comparison.ours, *comparison.systems)
