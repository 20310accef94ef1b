"""The report of a plan and what a page says, before it becomes HTML or Markdown: one page that needs nothing else, pictures and Markdown beside it."""

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rlplan.algorithms import load_algorithm
from rlplan.files.writing import write_text
from rlplan.plan import Plan
from rlplan.reports.panels import Section, Subject, sections_of
from rlplan.reports.pictures.picture import FAINT, INK, LINE, MUTED, WARNING, Picture
from rlplan.reports.tables import wording
from rlplan.reports.tables.plans import beside_lines, fit_words, gpus_of
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
        *(
            [
                Fact(
                    name="Beside the steps",
                    value="; ".join(line.strip().removeprefix("beside: ") for line in lines),
                )
            ]
            if (lines := beside_lines(subject.forecast))
            else []
        ),
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


PAGE_NAME = "report"
PICTURE_FOLDER = "pictures"
SCRIPT_FILE = "report.js"

_NEUTRAL_NAMES = {
    INK: "ink", MUTED: "muted", LINE: "line", FAINT: "faint", WARNING: "bad", "#ffffff": "card",
}  # fmt: skip
_STYLE = re.compile(r'style="([^"]*)"')
_NEUTRAL = re.compile(rf"\b(fill|stroke): ({'|'.join(_NEUTRAL_NAMES)})\b")


def write_report(out: Path, subject: Subject) -> Path:
    """Write a report into a folder, made if it is missing, and return the path of its HTML page.

    `report.html` holds its pictures and needs no other file; `report.md` refers to the same ones
    in `pictures/`. Every file is written whole or not at all, the page last.
    """
    return write_content(out, content_of(subject), PAGE_NAME)


def write_content(out: Path, content: Content, name: str) -> Path:
    """Write a page, its Markdown version and its pictures into a folder; return the HTML's path."""
    for picture in content.pictures:
        write_text(out / PICTURE_FOLDER / picture.file_name, picture.file_text)
    write_text(out / f"{name}.md", markdown(content))
    write_text(out / f"{name}.html", html(content))
    return out / f"{name}.html"


def html(content: Content) -> str:
    """Return the page; all text of the user's is escaped, and no other script runs in it than its own."""
    environment = page_environment()
    # The pictures are our own SVG, whose texts matplotlib escaped.
    environment.filters["inline"] = lambda picture: Markup(themed(picture.svg))  # noqa: S704
    script = files("rlplan.reports").joinpath("templates", SCRIPT_FILE).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        content=content,
        script=Markup(script),  # noqa: S704  our own
        script_hash=f"sha256-{digest}",
        scripted=any(section.widgets for section in content.sections),
    )


def page_environment(**settings: Any) -> Environment:  # noqa: ANN401 -- as jinja2 has them
    """Return the templates of pages; what they are given is escaped."""
    return Environment(
        loader=PackageLoader("rlplan.reports"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        **settings,
    )


def themed(svg: str) -> str:
    """Return a picture whose neutral colours are the page's, so that it follows light and dark.

    White texts stand on bars of a colour of their own, and stay white.
    """

    def page_colours(style: re.Match[str]) -> str:
        is_text = "font" in style[1]

        def named(found: re.Match[str]) -> str:
            keeps = is_text and found[2] == "#ffffff"
            return found[0] if keeps else f"{found[1]}: var(--{_NEUTRAL_NAMES[found[2]]})"

        return f'style="{_NEUTRAL.sub(named, style[1])}"'

    return _STYLE.sub(page_colours, svg)


def markdown(content: Content) -> str:
    """Return the Markdown version; all text is escaped so that it shows as it is."""
    environment = page_environment(finalize=as_markdown, keep_trailing_newline=True)
    return environment.get_template("report.md.j2").render(content=content, pictures=PICTURE_FOLDER)


def as_markdown(value: Any) -> Any:  # noqa: ANN401
    """Return text escaped for Markdown (and the HTML inside it), on one line; others as they are."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = " ".join(value.split("\n")).replace("&", "&amp;").replace("<", "&lt;")
    for letter in "\\`*_[]|":
        text = text.replace(letter, f"\\{letter}")
    return Markup(text)  # noqa: S704  escaped in the lines above
