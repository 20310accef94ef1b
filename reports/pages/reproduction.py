"""The page of a reproduced evaluation: claims, figures with published values beside them, every point."""

from collections.abc import Sequence
from pathlib import Path

from reports.pages.report import as_markdown
from reports.pictures.reproduction import figure_picture
from reports.tables.plans import Table
from reports.tables.reproduction import claims_table, points_table, series_table
from rlplan.files.writing import write_text
from rlplan.results.reproduced import Point, Reproduction


def write_reproduction_page(folder: Path, found: Reproduction, command: str) -> Path:
    """Write the page and its pictures into a folder, and return the page's path.

    Args:
        command: What made the page, for whoever wants to make it again.
    """
    lines = _head(found, command)
    for figure in dict.fromkeys(point.figure for point in found.points):
        points = [point for point in found.points if point.figure == figure]
        lines += [f"## {figure}", ""]
        if any(point.forecast is not None for point in points) and _is_drawn(points):
            drawn = figure_picture(figure, points)
            write_text(folder / found.name / drawn.file_name, drawn.file_text)
            lines += [f"![{drawn.title}]({found.name}/{drawn.file_name})", ""]
        lines += [*_folded(f"All points of {figure}", points_table(points)), ""]
    path = folder / f"{found.name}.md"
    write_text(path, "\n".join(lines).rstrip() + "\n")
    return path


def _is_drawn(points: Sequence[Point]) -> bool:
    return points[0].quantity != "bytes"


def _head(found: Reproduction, command: str) -> list[str]:
    held = sum(claim.holds for claim in found.claims)
    return [
        f"# {found.title}",
        "",
        f"Made by `{command}`. {found.source}.",
        "",
        f"{held} of {len(found.claims)} claims of the paper hold in the forecasts.",
        "",
        "## Claims",
        "",
        *_markdown(claims_table(found.claims)),
        "",
        "## What to know before judging",
        "",
        *(f"- {_cell(note)}" for note in found.notes),
        "",
        "## Errors against published values",
        "",
        *_markdown(series_table(found.points)),
        "",
    ]


def _folded(title: str, table: Table) -> list[str]:
    return ["<details>", f"<summary>{title}</summary>", "", *_markdown(table), "", "</details>"]


def _markdown(table: Table) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_cell(cell) for cell in cells) + " |"

    rules = ["---:" if column.is_figure else "---" for column in table.columns]
    titles = [column.title for column in table.columns]
    return [line(titles), "| " + " | ".join(rules) + " |", *map(line, table.rows)]


def _cell(text: str) -> str:
    return str(as_markdown(text))
