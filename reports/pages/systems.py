"""The page of `rlplan compare`: throughput, stages and memory of systems beside our plan."""

from pathlib import Path

from rlplan.files.writing import write_json
from rlplan.job import Job
from rlplan.reports.pages.report import Content, Fact, answer_tiles, write_content
from rlplan.reports.panels import Part, Section
from rlplan.reports.pictures.picture import Picture, picture
from rlplan.reports.pictures.stacked_bars import Bar, seconds_figure
from rlplan.reports.tables import wording
from rlplan.reports.tables.comparisons import (
    about_table,
    misfits_table,
    stage_names,
    stages_table,
    systems_layout_table,
    systems_memory_table,
    throughput_table,
)
from rlplan.reports.widgets import Widget, memory_bars
from rlplan.results.accuracy import SystemForecast, SystemsComparison
from rlplan.results.forecast import MemoryMoment
from rlplan.results.stored import write_plan
from rlplan.units import show_seconds

PAGE_NAME = "compare"
DOCUMENT_FILE = "compare.json"
PLANS = "plans"
UNEXPLAINED = "waiting between stages"


def write_systems_page(out: Path, comparison: SystemsComparison, job: Job) -> Path:
    """Write the page with its picture, the document and every plan into a folder.

    Returns:
        The path of `compare.html`.
    """
    for system in (comparison.ours, *comparison.systems):
        if system.plan is not None:
            write_plan(out / PLANS / f"{system.name}.yaml", system.plan)
    write_json(out / DOCUMENT_FILE, comparison_document(comparison))
    return write_content(out, systems_content(comparison, job), PAGE_NAME)


def comparison_document(found: SystemsComparison) -> dict[str, object]:
    """Return what `--json` prints: every system with its forecast's figures, plan and our speed-up."""
    return {
        "version": found.version,
        "job": found.job,
        "note": found.note,
        "ours": _document(found, found.ours),
        "systems": [_document(found, system) for system in found.systems],
    }


def _document(found: SystemsComparison, system: SystemForecast) -> dict[str, object]:
    forecast = system.forecast
    document: dict[str, object] = {
        "name": system.name,
        "about": system.about,
        "feasible": forecast is not None,
        "reason": system.reason,
        "considered": system.considered,
        "speed_up": found.speed_up(system),
    }
    if forecast is not None:
        document |= {
            "iteration_seconds": forecast.iteration_seconds,
            "iteration_seconds_interval": forecast.iteration_seconds_interval,
            "tokens_per_second": forecast.tokens_per_second,
            "stage_seconds": forecast.stage_seconds,
            "memory": forecast.memory,
            "plan": system.plan,
        }
    return document


def systems_content(comparison: SystemsComparison, job: Job) -> Content:
    """Return what the page says."""
    sections = (
        Section(
            key="throughput",
            title="Throughput",
            short="Throughput",
            words=("Every system runs the best plan that it can express, in the same simulator.",),
            picture=stages_picture(comparison),
            parts=_parts(throughput_table(comparison), misfits_table(comparison)),
        ),
        Section(
            key="stages",
            title="Iteration by stage",
            short="Stages",
            parts=_parts(stages_table(comparison)),
        ),
        Section(
            key="memory",
            title="Memory",
            short="Memory",
            words=("One row for the fullest device of every pool, at the moment of its peak.",),
            widgets=_memory_widgets(comparison),
            parts=_parts(systems_memory_table(comparison)),
        ),
        Section(
            key="systems",
            title="How the systems run",
            short="Systems",
            parts=(
                Part(table=about_table(comparison)),
                Part(table=systems_layout_table(comparison), heading="Every task", is_folded=True),
            ),
        ),
    )
    return Content(
        title=f"{job.name}: systems compared",
        verdict=verdict(comparison),
        is_good=comparison.ours.forecast is not None,
        facts=(
            Fact(name="Algorithm", value=job.algorithm),
            Fact(name="Models", value=wording.models(job)),
            Fact(name="Work of an iteration", value=wording.workload(job)),
            Fact(name="Cluster", value=wording.cluster(job)),
        ),
        figures=_tiles(comparison),
        sections=sections,
    )


def _memory_widgets(comparison: SystemsComparison) -> tuple[Widget, ...]:
    """Return bars of every system's pools; none where nothing fits."""
    moments = tuple(
        MemoryMoment(
            pool=system.name,
            during=f"{memory.pool}, {memory.peak_task}",
            terms=memory.terms,
            capacity_bytes=memory.capacity_bytes,
        )
        for system in (comparison.ours, *comparison.systems)
        if system.forecast is not None
        for memory in system.forecast.memory
        if memory.terms and memory.capacity_bytes
    )
    return (memory_bars(moments, heading="{}"),) if moments else ()


def _tiles(comparison: SystemsComparison) -> tuple[Fact, ...]:
    """Return our plan's figures, and the nearest other system's speed beside it."""
    ours = comparison.ours
    if ours.plan is None or ours.forecast is None:
        return ()
    found = answer_tiles(ours.plan, ours.forecast)
    ratios = [(comparison.speed_up(each), each.name) for each in comparison.systems]
    known = sorted((ratio, name) for ratio, name in ratios if ratio is not None)
    if known:
        value, name = known[0]
        found = (
            *found,
            Fact(name="Nearest system", value=f"{value:.2f} {wording.TIMES}", note=name),
        )
    return found


def verdict(comparison: SystemsComparison) -> str:
    """Return one sentence that says how our plan compares."""
    ours = comparison.ours
    if ours.forecast is None:
        return f"No plan of ours fits: {ours.reason}."
    others = [system for system in comparison.systems if system.seconds is not None]
    seconds = show_seconds(ours.forecast.iteration_seconds)
    note = f" {comparison.note}." if comparison.note else ""
    if not others:
        return f"Our plan takes {seconds} an iteration; none of the other systems fits."
    nearest = min(others, key=lambda each: (each.seconds or 0.0, each.name))
    farthest = max(others, key=lambda each: (each.seconds or 0.0, each.name))
    words = f"Our plan takes {seconds} an iteration: {_times(comparison, nearest)}"
    compared = words if farthest is nearest else f"{words}, {_times(comparison, farthest)}"
    return f"{compared}.{note}"


def _times(comparison: SystemsComparison, system: SystemForecast) -> str:
    return f"{comparison.speed_up(system) or 0.0:.2f} times as fast as {system.name}"


def stages_picture(comparison: SystemsComparison) -> Picture | None:
    """Return every system's iteration as a bar of its stages; None when nothing fits."""
    systems = [each for each in (comparison.ours, *comparison.systems) if each.forecast]
    if not systems:
        return None
    bars = [_bar(comparison, system) for system in systems]
    told = "; ".join(f"{bar.name}: {bar.remark}" for bar in bars)
    return picture(
        seconds_figure(bars),
        name="systems",
        title="Iteration seconds of every system by stage",
        description=f"{told}.",
    )


def _bar(comparison: SystemsComparison, system: SystemForecast) -> Bar:
    forecast = system.forecast
    assert forecast is not None, "only systems with a plan are drawn"
    pieces = {stage: forecast.stage_seconds.get(stage, 0.0) for stage in stage_names(comparison)}
    rest = forecast.iteration_seconds - sum(pieces.values())
    if rest > 0.001 * forecast.iteration_seconds:
        pieces[UNEXPLAINED] = rest
    return Bar(name=system.name, pieces=pieces, remark=show_seconds(forecast.iteration_seconds))


def _parts(*tables: object) -> tuple[Part, ...]:
    return tuple(Part(table=table) for table in tables if table.rows)  # type: ignore[attr-defined,arg-type]
