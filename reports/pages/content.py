"""What a page says, before it becomes HTML or Markdown: a head of facts, and sections."""

from dataclasses import dataclass

from reports.panels import Section, Subject, sections_of
from reports.pictures.picture import Picture
from reports.tables import wording
from rlplan.algorithms import load_algorithm
from rlplan.units import show_joules, show_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Hold one labelled fact of the head."""

    name: str
    value: str


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
    plan, forecast, comparison = subject.plan, subject.forecast, subject.comparison
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
