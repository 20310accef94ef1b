"""Rows of the tables that set plans side by side: systems of the field beside ours, and one job's steps by several frameworks."""

from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import (
    TIMES,
    interval,
    kinds,
    layout_words,
    percent,
    pool_sizes,
    pool_words,
    signed_seconds,
)
from rlplan.results.accuracy import SystemForecast, SystemsComparison
from rlplan.results.differences import (
    ComparedStep,
    FrameworksComparison,
    StageDifference,
    StepDifference,
)
from rlplan.units import show_bytes, show_seconds

_NOTHING = "-"

# A stage below this share of both steps is left out of what is shown; JSON has all of them.
LEAST_SHOWN = 0.001
# Causes and parts of a stage that are shown.
MOST_CAUSES, MOST_PARTS = 3, 2


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


# Rows of the tables that set the steps of one job by several frameworks side by side, with what their difference is
# made of.


def steps_table(compared: FrameworksComparison) -> Table:
    """Return a row for each step that can be run: seconds, interval, rate, and how many times the other's it is."""
    return Table(
        columns=columns(
            "Framework",
            "Settings",
            "#Step",
            "#p10 to p90",
            "#Tokens/s",
            "#Times",
            "Against",
            "#Gap",
        ),
        rows=tuple(_step_row(step) for step in compared.steps if step.forecast is not None),
    )


def _step_row(step: ComparedStep) -> tuple[str, ...]:
    forecast, difference = step.forecast, step.difference
    assert forecast is not None, "steps without one have no row"
    return (
        step.title,
        step.kind,
        show_seconds(forecast.iteration_seconds),
        interval(forecast.iteration_seconds_interval),
        f"{forecast.tokens_per_second:,.0f}",
        _NOTHING if difference is None else f"{difference.ratio:.2f}{TIMES}",
        _NOTHING if difference is None else difference.against,
        _NOTHING if step.gap is None else percent(step.gap),
    )


def refused_table(compared: FrameworksComparison) -> Table:
    """Return what no framework runs so, each with the reason."""
    return Table(
        columns=columns("Framework", "Settings", "Why not"),
        rows=tuple(
            (step.title, step.kind, step.reason) for step in compared.steps if step.forecast is None
        ),
    )


def difference_table(difference: StepDifference) -> Table:
    """Return what a difference is made of, stage by stage, its sum last."""
    other = sum(each.base_seconds for each in difference.stages)
    own = sum(each.seconds for each in difference.stages)
    least = LEAST_SHOWN * max(own, other)
    shown = [
        each
        for each in difference.stages
        if max(abs(each.seconds), abs(each.base_seconds)) >= least
    ]
    rows = [
        (
            each.stage,
            _seconds(each.base_seconds),
            _seconds(each.seconds),
            *_otherwise(each, least),
        )
        for each in shown
    ]
    total = ("step", _seconds(other), _seconds(own), signed_seconds(difference.seconds), "", "")
    return Table(
        columns=columns("Stage", "#There", "#Here", "#Difference", "Mainly in", "Otherwise here"),
        rows=(*rows, total),
        strong_rows=frozenset({len(rows)}),
    )


def _otherwise(stage: StageDifference, least: float) -> tuple[str, str, str]:
    """Return a stage's difference, its parts and causes; nothing where the difference is as good as none."""
    seconds = stage.difference_seconds
    if abs(seconds) < least:
        return _NOTHING, "", ""
    return signed_seconds(seconds), _parts(stage), ", ".join(stage.causes[:MOST_CAUSES])


def difference_words(step: ComparedStep) -> str:
    """Say in a sentence how much longer or shorter a step is, by what, and whether that may be nothing."""
    difference = step.difference
    assert difference is not None, "only steps that are compared are said"
    times = f"{difference.ratio:.2f} times"
    words = f"{step.title}, {step.kind}: {times} the step of {difference.against}"
    if not difference.seconds:
        return f"{words}: the same"
    # What goes the way the whole difference goes.
    along = [each for each in difference.stages if each.difference_seconds * difference.seconds > 0]
    largest = max(along, key=lambda each: abs(each.difference_seconds), default=None)
    if largest is not None:
        words += f", most of it in {largest.stage} ({signed_seconds(largest.difference_seconds)})"
    if difference.may_be_nothing:
        words += "; p10 to p90 of both overlap: the difference may be nothing"
    return words


def _seconds(seconds: float) -> str:
    return show_seconds(seconds) if seconds >= 0 else signed_seconds(seconds)


def _parts(stage: StageDifference) -> str:
    parts = list(stage.main_parts.items())[:MOST_PARTS]
    return ", ".join(f"{name} {signed_seconds(seconds)}" for name, seconds in parts)
