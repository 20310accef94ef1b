"""The page of a step that was checked: measured stages on the range in which they are normal."""

from pathlib import Path

from rlplan.plan import Plan
from rlplan.reports.pages.report import Content, Fact, write_content
from rlplan.reports.panels import Part, Section
from rlplan.reports.tables import wording
from rlplan.reports.tables.accuracy import measured_words, step_check_table, verdict_lines
from rlplan.reports.tables.plans import fit_words, gpus_of
from rlplan.reports.widgets import ranges_of_check
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import StepCheck
from rlplan.units import show_seconds, show_usd

PAGE_NAME = "check-step"


def write_step_check_page(out: Path, found: StepCheck, plan: Plan, forecast: Forecast) -> Path:
    """Write `check-step.html`, and the Markdown version, into a folder; return the HTML's path.

    Args:
        forecast: Of the plan at the lengths of its job.
    """
    return write_content(out, step_check_content(found, plan, forecast), PAGE_NAME)


def step_check_content(found: StepCheck, plan: Plan, forecast: Forecast) -> Content:
    """Return what the page says."""
    verdict, *details = verdict_lines(found)
    sections = [
        Section(
            key="stages",
            title="Measured stages beside the forecast at these lengths",
            short="Stages",
            words=(
                (
                    "Each row has a scale of its own. A stage is normal where 19 of 20 sites have it; `rlplan "
                    "calibrate` narrows that to a site."
                ),
            ),
            widgets=(ranges_of_check(found),),
            parts=(Part(table=step_check_table(found)),),
        ),
        *([_causes(details, verdict)] if found.verdict != "normal" else []),
        *(
            [Section(key="notes", title="Notes", short="Notes", points=found.notes)]
            if found.notes
            else []
        ),
    ]
    return Content(
        title=f"{plan.job.name}: a step checked",
        verdict=verdict,
        is_good=found.verdict != "slow",
        facts=(
            Fact(name="Measured", value=measured_words(found)),
            Fact(name="Models", value=wording.models(plan.job)),
            Fact(name="Work of an iteration", value=wording.workload(plan.job)),
            Fact(name="Cluster", value=wording.cluster(plan.job)),
            Fact(name="Placement", value=plan.placement),
        ),
        figures=_tiles(found, plan, forecast),
        sections=tuple(sections),
    )


def _causes(details: list[str], verdict: str) -> Section:
    return Section(
        key="causes",
        title="What is not normal, likely causes, and what to try",
        short="Causes",
        points=tuple(line.strip() for line in (verdict, *details)),
    )


def _tiles(found: StepCheck, plan: Plan, forecast: Forecast) -> tuple[Fact, ...]:
    verdict, _, memory = fit_words(forecast).partition(": ")
    tiles = [
        Fact(name="Verdict", value=found.verdict, is_bad=found.verdict == "slow"),
        Fact(name="Memory, forecast", value=verdict, note=memory, is_bad=not forecast.feasible),
    ]
    if found.step is None:
        return tuple(tiles)
    seconds, expected = found.step.measured_seconds, found.step.forecast_seconds
    note = f"forecast {show_seconds(expected)} at these lengths: {found.step.times:.2f} times that"
    tiles.append(Fact(name="Step, measured", value=show_seconds(seconds), note=note))
    if found.prompt_tokens is not None and found.response_tokens is not None:
        gpus = gpus_of(plan)
        tokens = plan.job.workload.sequences * (found.prompt_tokens + found.response_tokens)
        each = f"{tokens / seconds / gpus:,.0f}"
        tiles.append(Fact(name="Tokens/s/GPU, measured", value=each, note=f"on {gpus} devices"))
    if forecast.cost_usd > 0:
        cost = forecast.cost_usd * seconds / forecast.iteration_seconds
        tiles.append(Fact(name="Cost of a measured step", value=show_usd(cost)))
    return tuple(tiles)
