"""Panels of a report, one file each: `section(subject)` makes its part of the page, and `ORDER` places it.

What several panels draw or tabulate stands in `rlplan.reports.pictures` and `rlplan.reports.tables`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlplan.plan import Plan
from rlplan.plug_ins import PlugIns
from rlplan.reports.pictures.picture import Picture
from rlplan.reports.tables.plans import Table
from rlplan.reports.widgets import Widget
from rlplan.results.forecast import Forecast, PlanDetails, SearchResult
from rlplan.results.measurement import Comparison, MeasuredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Hold what a report is about.

    Attributes:
        run: What the plan did; without it the report is one of a forecast.
        comparison: Forecast against the run.
        search: Why this plan was chosen.
        details: What is worked out of the plan beside its forecast, where there was time for it.
        unplayed: Why there are no such details, where the facts that the forecast rests on are not there.
        as_run: Forecast at the lengths that the run had, where they are others than the plan's.
        metrics: One mapping per iteration, as in `metrics.jsonl`.
        evaluations: One mapping per evaluation, as in `evaluations.jsonl`.
        samples: Responses that these kept, as in `samples.jsonl`.
    """

    plan: Plan
    forecast: Forecast
    run: MeasuredRun | None = None
    comparison: Comparison | None = None
    search: SearchResult | None = None
    details: PlanDetails | None = None
    unplayed: str = ""
    as_run: Forecast | None = None
    metrics: Sequence[Mapping[str, float]] = ()
    evaluations: Sequence[Mapping[str, float]] = ()
    samples: Sequence[Mapping[str, Any]] = ()


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
        picture: In the Markdown version, and on the page unless that has widgets.
    """

    key: str
    title: str
    short: str
    words: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    picture: Picture | None = None
    widgets: tuple[Widget, ...] = ()
    parts: tuple[Part, ...] = ()


class Panel(Protocol):
    """Be one panel of a report.

    Attributes:
        ORDER: Panels with smaller numbers come first.
    """

    ORDER: int

    def section(self, subject: Subject) -> Section | None:
        """Return the panel's part of the page; None where the subject gives it nothing to show."""
        ...


PANELS = PlugIns[Panel](__name__, __path__, kind="panel")


def sections_of(subject: Subject) -> tuple[Section, ...]:
    """Return the sections of all panels that have something to show, in their order."""
    panels = sorted(PANELS.all(), key=lambda panel: panel.ORDER)
    found = (panel.section(subject) for panel in panels)
    return tuple(section for section in found if section is not None)
