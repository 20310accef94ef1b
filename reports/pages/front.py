"""The page of `rlplan search --pareto --report`: plans that no other beats, what each is worth, and its whole run where that was asked."""

from collections.abc import Mapping
from pathlib import Path

from rlplan.reports.pages.report import Content, Fact, write_content
from rlplan.reports.panels import Part, Section
from rlplan.reports.pictures.frontier import frontier_picture
from rlplan.reports.tables import wording
from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.run import duration_interval, usd_interval
from rlplan.reports.tables.searches import front_words, frontier_table, pools_words
from rlplan.results.forecast import Frontier
from rlplan.results.stored import write_plan
from rlplan.units import ShownAs, show_duration, show_seconds, whole_usd

PAGE_NAME = "front"


def write_front_page(out: Path, front: Frontier, shown_as: Mapping[str, ShownAs]) -> Path:
    """Write `front.html`, its Markdown and picture, and the plan of each point (`plan-1.yaml`) into a folder; return the page's path.

    Plans of a longer front that was written there before are removed: the page says that its own plans stand beside it.
    """
    had_front = (out / f"{PAGE_NAME}.html").is_file()
    for number, point in enumerate(front.points, 1):
        write_plan(out / f"plan-{number}.yaml", point.candidate.plan)
    number = len(front.points) + 1
    while had_front and (old := out / f"plan-{number}.yaml").is_file():
        old.unlink()
        number += 1
    return write_content(out, front_content(front, shown_as), PAGE_NAME)


def front_content(front: Frontier, shown_as: Mapping[str, ShownAs]) -> Content:
    """Return what the page says.

    Args:
        shown_as: By objective, how its values are shown.
    """
    job = front.points[0].candidate.plan.job
    named = " and ".join(front.objectives)
    runs = runs_table(front)
    sections = [
        Section(
            key="front",
            title=f"Plans that no other beats in {named}",
            short="Front",
            words=("Each point is a plan, numbered as in the table; plan-1.yaml and the others stand beside this page.",),
            picture=frontier_picture(front, shown_as),
            parts=(Part(table=frontier_table(front, shown_as)),),
        )
    ]  # fmt: skip
    if runs.rows:
        words = ("What a run of so many steps takes and costs with each plan, with p10 to p90.",)
        sections.append(
            Section(
                key="runs", title="Whole runs", short="Runs", words=words, parts=(Part(table=runs),)
            )
        )
    return Content(
        title=f"{job.name}: the front of {named}",
        verdict=f"{front_words(front)}.",
        is_good=front.unfinished == 0,
        facts=(
            Fact(name="Algorithm", value=job.algorithm),
            Fact(name="Models", value=wording.models(job)),
            Fact(name="Work of a step", value=wording.workload(job)),
            Fact(name="Cluster", value=wording.cluster(job)),
        ),
        figures=_ends(front, shown_as),
        sections=tuple(sections),
    )


def _ends(front: Frontier, shown_as: Mapping[str, ShownAs]) -> tuple[Fact, ...]:
    """Return the best plan in each objective."""
    found = []
    for name, shown in shown_as.items():
        number, best = min(enumerate(front.points, 1), key=lambda pair: pair[1].values[name])
        seconds = show_seconds(best.candidate.forecast.iteration_seconds)
        found.append(
            Fact(
                name=f"Best in {name}",
                value=f"{shown.words(best.values[name])} {shown.unit}",
                note=f"plan {number}: {pools_words(best.candidate.plan)}, {seconds} a step",
            )
        )
    return tuple(found)


def runs_table(front: Frontier) -> Table:
    """Return the whole run of each point; no rows where none was asked for."""
    rows = []
    for number, point in enumerate(front.points, 1):
        run = point.candidate.forecast.run
        if run is not None:
            rows.append(
                (
                    str(number),
                    pools_words(point.candidate.plan),
                    f"{run.steps:,}",
                    show_duration(run.seconds),
                    duration_interval(run.interval_seconds),
                    whole_usd(run.usd),
                    usd_interval(run.interval_usd),
                )
            )
    return Table(
        columns=columns(
            "##", "Pools", "#Steps", "#Time", "#p10 to p90", "#Cost", "#Cost, p10 to p90"
        ),
        rows=tuple(rows),
    )
