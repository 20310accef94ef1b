"""What a page says, before it becomes HTML or Markdown: a head of facts, and sections."""

from dataclasses import dataclass

from rlplan.algorithms import load_algorithm
from rlplan.plan import Plan
from rlplan.reports.panels import Section, Subject, sections_of
from rlplan.reports.pictures.picture import Picture
from rlplan.reports.tables import wording
from rlplan.reports.tables.answers import fit_words, gpus_of
from rlplan.results.forecast import Forecast
from rlplan.units import show_joules, show_seconds, show_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Hold one labelled fact of the head.

    Attributes:
        note: Smaller, below the value of a tile.
        is_bad: Whether it is why nothing runs.
    """

    name: str
    value: str
    note: str = ""
    is_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Hold a whole report.

    Attributes:
        facts: What the report is about: job, cluster, profile.
        figures: The few numbers that one looks for first, as tiles.
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


def content_of(subject: Subject) -> Content:
    """Return what the report of a plan says."""
    return Content(
        title=subject.plan.job.name,
        verdict=wording.verdict(subject.forecast, subject.comparison),
        is_good=subject.forecast.feasible,
        facts=_facts(subject),
        figures=_figures(subject),
        sections=sections_of(subject),
    )


def _facts(subject: Subject) -> tuple[Fact, ...]:
    plan, job = subject.plan, subject.plan.job
    return (
        Fact(name="Algorithm", value=f"{job.algorithm}: {load_algorithm(job.algorithm).title}"),
        Fact(name="Models", value=wording.models(job)),
        Fact(name="Work of an iteration", value=wording.workload(job)),
        Fact(name="Cluster", value=wording.cluster(job)),
        Fact(name="Placement", value=f"{plan.placement} (made by {plan.made_by})"),
        Fact(name="Profile", value=subject.forecast.profile),
    )


def _figures(subject: Subject) -> tuple[Fact, ...]:
    memory, step, *others = answer_tiles(subject.plan, subject.forecast)
    if subject.comparison is None:
        return (memory, step, *others)
    row = subject.comparison.iteration
    note = f"forecast {wording.signed_percent(row.error_fraction)}"
    if row.as_run_seconds is not None and (error := row.error_at()) is not None:
        note += f", {wording.signed_percent(error)} at its lengths"
    measured = show_seconds(row.measured_median_seconds)
    return (memory, step, Fact(name="Step, measured median", value=measured, note=note), *others)


def answer_tiles(plan: Plan, forecast: Forecast) -> tuple[Fact, ...]:
    """Return what one looks for first: memory, step, tokens per second and GPU, cost."""
    gpus = gpus_of(plan)
    verdict, _, memory = fit_words(forecast).partition(": ")
    interval = wording.interval(forecast.iteration_seconds_interval)
    rate = f"{forecast.tokens_per_second:,.0f} tokens/s on {gpus} of {plan.job.gpus} devices"
    energy = f"{show_joules(forecast.energy_joules)} a step" if forecast.energy_joules > 0 else ""
    cost = show_usd(forecast.cost_usd) if forecast.cost_usd > 0 else "unknown"
    return (
        Fact(name="Memory", value=verdict, note=memory, is_bad=not forecast.feasible),
        Fact(
            name="Step, forecast",
            value=show_seconds(forecast.iteration_seconds),
            note=f"p10 to p90: {interval}",
        ),
        Fact(name="Tokens/s/GPU", value=f"{forecast.tokens_per_second / gpus:,.0f}", note=rate),
        Fact(name="Cost of a step", value=cost, note=energy),
    )
