"""The page of a reproduced evaluation: claims, figures with published values beside them, every point."""

from pathlib import Path

from rlplan.files.writing import write_text
from rlplan.reports.pages.report import as_markdown
from rlplan.reports.pictures.reproduction import figure_picture
from rlplan.reports.tables.plans import Table, markdown_lines
from rlplan.reports.tables.reproduction import claims_table, points_table, series_table
from rlplan.results.reproduced import Reproduction


def write_reproduction_page(folder: Path, found: Reproduction, command: str) -> Path:
    """Write the page and its pictures into a folder, and return the page's path.

    Args:
        command: What made the page, for whoever wants to make it again.
    """
    lines = _head(found, command)
    for figure in dict.fromkeys(point.figure for point in found.points):
        points = [point for point in found.points if point.figure == figure]
        lines += [f"## {figure}", ""]
        if points[0].quantity != "bytes" and any(point.forecast is not None for point in points):
            drawn = figure_picture(figure, points)
            write_text(folder / found.name / drawn.file_name, drawn.file_text)
            lines += [f"![{drawn.title}]({found.name}/{drawn.file_name})", ""]
        lines += ["<details>", f"<summary>All points of {figure}</summary>", ""]
        lines += [*_markdown(points_table(points)), "", "</details>", ""]
    path = folder / f"{found.name}.md"
    write_text(path, "\n".join(lines).rstrip() + "\n")
    return path


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


def _markdown(table: Table) -> list[str]:
    return markdown_lines(table, _cell)


def _cell(text: str) -> str:
    return str(as_markdown(text))
