"""Evaluations of a run on held-out prompts: how often it was right, and what it said."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlplan.reports.panels import Part, Section, Subject
from rlplan.reports.pictures.curves import evaluations_picture
from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import percent
from rlplan.units import show_seconds

ORDER = 72
# Letters of a prompt or response that a cell has room for.
CELL_LETTERS = 400


def section(subject: Subject) -> Section | None:
    """Return what a run's evaluations found; None without any."""
    found = subject.evaluations
    if not found:
        return None
    parts = [Part(table=_table(found))]
    if subject.samples:
        heading = "What was said to the first prompts, at first and at last"
        parts.append(Part(table=_samples(subject.samples), heading=heading, is_folded=True))
    best = max(found, key=lambda row: row["accuracy"])
    words = f"Best after {best['iteration']:.0f} iterations: {percent(best['accuracy'])} of the responses were right."
    return Section(
        key="evaluations",
        title="Held-out prompts",
        short="Held-out",
        words=(words,),
        picture=evaluations_picture(found) if len(found) > 1 else None,
        parts=tuple(parts),
    )


def _table(found: Sequence[Mapping[str, float]]) -> Table:
    """Return a row an evaluation."""
    passing = [name for name in found[0] if name.startswith("pass@")]
    titles = ("#Iterations", "#Right", *(f"#{name}" for name in passing))
    return Table(
        columns=columns(*titles, "#Mean score", "#Tokens a response", "#Cut at the limit", "#Time"),
        rows=tuple(
            (
                f"{row['iteration']:.0f}",
                percent(row["accuracy"]),
                *(percent(row[name]) for name in passing),
                f"{row['score']:.3g}",
                f"{row['response_tokens']:.1f}",
                percent(row["cut"]),
                show_seconds(row["seconds"]),
            )
            for row in found
        ),
    )


def _samples(samples: Sequence[Mapping[str, Any]]) -> Table:
    """Return the responses of the first and of the last evaluation, prompt by prompt."""
    ends = dict.fromkeys((samples[0]["iteration"], samples[-1]["iteration"]))
    shown = [row for row in samples if row["iteration"] in ends]
    places = {
        prompt: place for place, prompt in enumerate(dict.fromkeys(r["prompt"] for r in shown))
    }
    shown.sort(key=lambda row: places[row["prompt"]])
    return Table(
        columns=columns("Prompt", "#Iterations", "Response", "#Score"),
        rows=tuple(
            (
                _cell(row["prompt"]),
                f"{row['iteration']}",
                _cell(row["response"]),
                f"{row['score']:.3g}",
            )
            for row in shown
        ),
    )


def _cell(text: object) -> str:
    whole = str(text)
    return whole if len(whole) <= CELL_LETTERS else f"{whole[:CELL_LETTERS]}..."
