"""What a report says, before it becomes HTML or Markdown: sections of words, pictures and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.pictures.curves import curves_picture
from reports.pictures.memory_chart import memory_picture
from reports.pictures.parts_chart import parts_picture
from reports.pictures.picture import Picture
from reports.pictures.plan_drawing import plan_picture
from reports.pictures.timelines import median_iteration, timelines_picture
from reports.tables import plans as tables
from reports.tables import searches as search_tables
from reports.tables import wording
from reports.tables.plans import Table
from rlplan.algorithms import load_algorithm
from rlplan.plan import Plan
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import Comparison, MeasuredRun
from rlplan.results.searched import SearchResult
from rlplan.units import show_joules, show_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Hold one labelled fact of the head."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Hold a table of a section, with a heading if it needs one.

    Attributes:
        is_folded: Whether the page shows it only on request.
    """

    table: Table
    heading: str = ""
    is_folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Hold one section; what is empty is left out.

    Attributes:
        key: Its anchor.
        short: Its name in the navigation.
        words: Paragraphs.
        points: Items of a list.
    """

    key: str
    title: str
    short: str
    words: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    picture: Picture | None = None
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Hold a whole report.

    Attributes:
        facts: What the report is about: job, cluster, profile.
        figures: The few numbers that one looks for first.
    """

    title: str
    verdict: str
    is_good: bool
    facts: tuple[Fact, ...]
    figures: tuple[Fact, ...]
    sections: tuple[Section, ...]

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """Return the pictures of all sections."""
        return tuple(section.picture for section in self.sections if section.picture)


def content_of(
    *,
    plan: Plan,
    forecast: Forecast,
    run: MeasuredRun | None,
    comparison: Comparison | None,
    search: SearchResult | None,
    metrics: Sequence[Mapping[str, float]],
) -> Content:
    """Return what the report of a plan says."""
    sections = (
        _plan_section(plan),
        _timeline_section(plan, forecast, run),
        _error_section(comparison) if comparison else None,
        _memory_section(forecast, run) if forecast.memory else None,
        _search_section(plan, search) if search else None,
        _parts_section(forecast) if forecast.costs else None,
        _learning_section(metrics),
        _warnings_section(forecast),
        _sources_section(plan, forecast, run),
    )
    return Content(
        title=plan.job.name,
        verdict=wording.verdict(forecast, comparison),
        is_good=forecast.feasible,
        facts=_facts(plan, forecast),
        figures=_figures(plan, forecast, comparison),
        sections=tuple(section for section in sections if section),
    )


def _facts(plan: Plan, forecast: Forecast) -> tuple[Fact, ...]:
    job = plan.job
    return (
        Fact(name="Algorithm", value=f"{job.algorithm}: {load_algorithm(job.algorithm).title}"),
        Fact(name="Models", value=wording.models(job)),
        Fact(name="Work of an iteration", value=wording.workload(job)),
        Fact(name="Cluster", value=wording.cluster(job)),
        Fact(name="Placement", value=f"{plan.placement} (made by {plan.made_by})"),
        Fact(name="Profile", value=forecast.profile),
    )


def _figures(plan: Plan, forecast: Forecast, comparison: Comparison | None) -> tuple[Fact, ...]:
    used = sum(pool.gpus for pool in plan.pools if not pool.is_host)
    figures = [("Forecast of an iteration", show_seconds(forecast.iteration_seconds))]
    if comparison:
        row = comparison.iteration
        figures.append(("Measured median", show_seconds(row.measured_median_seconds)))
        figures.append(("Error", wording.signed_percent(row.error_fraction)))
    figures.append(("Tokens per second", f"{forecast.tokens_per_second:,.0f}"))
    figures.append(("Devices used", f"{used} of {plan.job.gpus}"))
    if forecast.cost_usd > 0:
        figures.append(("Cost of an iteration", f"{forecast.cost_usd:,.2f} USD"))
    if forecast.energy_joules > 0:
        figures.append(("Energy of an iteration", show_joules(forecast.energy_joules)))
    return tuple(Fact(name=name, value=value) for name, value in figures)


def _plan_section(plan: Plan) -> Section:
    return Section(
        key="plan",
        title="The plan on its devices",
        short="Plan",
        words=("Every box is a node, every cell a device, every colour a pool.",),
        picture=plan_picture(plan),
        parts=(
            Part(table=tables.pool_table(plan), heading="Pools"),
            Part(table=tables.layout_table(plan), heading="Tasks"),
        ),
        points=(
            wording.transition_words(plan),
            f"Mode: {plan.mode}"
            + (f", samples up to {plan.staleness} updates old." if plan.staleness else "."),
        ),
    )


def _timeline_section(plan: Plan, forecast: Forecast, run: MeasuredRun | None) -> Section:
    words = "Pools are rows, tasks are bars; the dashed line is the iteration's end. "
    if run and median_iteration(run):
        left_out = wording.counted(run.warmup_iterations, "warm-up iteration")
        words += (
            "Both timelines have the same scale. The legend tells each task's seconds, forecast / "
            f"measured. The measured iteration is the one of median length, {left_out} left out."
        )
    else:
        words += "The legend tells each task's forecast seconds."
    return Section(
        key="timelines",
        title="Timeline: forecast and measured" if run else "Timeline: forecast",
        short="Timeline",
        words=(words,),
        picture=timelines_picture(plan, forecast, run),
    )


def _error_section(comparison: Comparison) -> Section:
    return Section(
        key="errors",
        title="How right the forecast was",
        short="Errors",
        words=(
            wording.compared_iterations(comparison),
            "The error is (forecast \N{MINUS SIGN} measured) / measured.",
            *([unlike] if (unlike := wording.other_lengths(comparison)) else []),
        ),
        parts=(Part(table=tables.error_table(comparison)),),
    )


def _memory_section(forecast: Forecast, run: MeasuredRun | None) -> Section:
    return Section(
        key="memory",
        title="Memory against capacity",
        short="Memory",
        words=(
            "One row for the fullest device of every pool, at the moment of its peak.",
            *forecast.infeasible_reasons,
        ),
        picture=memory_picture(forecast, run),
        parts=(
            Part(table=tables.memory_table(forecast, run)),
            Part(table=tables.memory_terms_table(forecast), heading="All terms", is_folded=True),
        ),
    )


def _search_section(plan: Plan, search: SearchResult) -> Section:
    words = [search_tables.search_words(search)]
    if search.plans and not _is_winner(plan, search):
        words.append(
            "The plan of this report is not the best of this search; it was made by "
            f"{plan.made_by}."
        )
    parts = [
        Part(table=search_tables.runners_up_table(search), heading="Best plan of every placement"),
        Part(
            table=search_tables.why_table(search),
            heading="What the others lose, and to what",
            is_folded=True,
        ),
        Part(table=search_tables.infeasible_table(search), heading="Placements that do not fit"),
        Part(table=search_tables.search_counts_table(search), heading="What was considered"),
    ]
    return Section(
        key="search",
        title="Why this plan won" if _is_winner(plan, search) else "What the search found",
        short="Search",
        words=tuple(words),
        parts=tuple(part for part in parts if part.table.rows),
    )


def _is_winner(plan: Plan, search: SearchResult) -> bool:
    if not search.plans:
        return False
    best = search.plans[0].plan
    return (best.pools, best.tasks, best.order, best.transition) == (
        plan.pools, plan.tasks, plan.order, plan.transition,
    )  # fmt: skip


def _parts_section(forecast: Forecast) -> Section:
    return Section(
        key="parts",
        title="Where the time goes",
        short="Time",
        words=("What the forecast seconds of every task are made of.",),
        picture=parts_picture(forecast),
        parts=(
            Part(table=tables.stage_table(forecast), heading="By stage"),
            Part(table=tables.parts_table(forecast), heading="All parts", is_folded=True),
        ),
    )


def _learning_section(metrics: Sequence[Mapping[str, float]]) -> Section | None:
    picture = curves_picture(metrics) if metrics else None
    if picture is None:
        return None
    return Section(
        key="learning",
        title="Learning curves",
        short="Learning",
        words=("Each legend tells the first and the last value.",),
        picture=picture,
    )


def _warnings_section(forecast: Forecast) -> Section:
    return Section(
        key="warnings",
        title="Warnings",
        short="Warnings",
        words=() if forecast.warnings else ("None.",),
        points=forecast.warnings,
    )


def _sources_section(plan: Plan, forecast: Forecast, run: MeasuredRun | None) -> Section:
    parts = [
        Part(table=tables.task_table(forecast), heading="Every forecast with its source"),
        Part(table=tables.sources_table(plan, forecast), heading="Profile, models and sources"),
    ]
    if run and run.machine:
        parts.append(Part(table=tables.machine_table(run), heading="Where it ran"))
    return Section(
        key="sources",
        title="Where the numbers come from",
        short="Sources",
        words=("A forecast's source is that of its weakest part, the last of these:",),
        points=(
            "measured: a point of the profile",
            "interpolated: between points of the profile",
            "fitted: a coefficient that was fitted to measurements",
            "datasheet: rates of the device's sheet",
        ),
        parts=tuple(parts),
    )
