"""Results below a notebook's cell, as HTML, and as pandas tables."""

from collections.abc import Sequence
from functools import singledispatch
from html import escape

import pandas as pd

from rlplan.reports.tables.plans import (
    Table,
    answer_table,
    fit_words,
    gpus_of,
    memory_terms_table,
    step_lines,
    task_table,
)
from rlplan.reports.tables.searches import best_of_placements, short_runners_up_table
from rlplan.results.forecast import Forecast, SearchResult
from rlplan.units import show_seconds, show_usd

# Of placements that are shown; `to_pandas` has all.
SHOWN_PLACEMENTS = 5


@singledispatch
def html_of(result: object) -> str:
    """Return a result as HTML: the verdict first, then its tables."""
    raise TypeError(f"no page of a {type(result).__name__}")


@html_of.register
def _(result: Forecast) -> str:
    lines = (
        fit_words(result),
        f"step: {show_seconds(result.iteration_seconds)}",
        f"rate: {result.tokens_per_second:,.0f} tokens/s",
        f"cost: {show_usd(result.cost_usd)} a step",
        *result.infeasible_reasons,
    )
    tables = (("Tasks", task_table(result)), ("Memory", memory_terms_table(result)))
    return _page(lines, tables, result.assumptions)


@html_of.register
def _(result: SearchResult) -> str:
    best = result.plans[0]
    lines = (fit_words(best.forecast), *step_lines(best.plan, best.forecast, {}))
    number = len(best_of_placements(result))
    tables = (
        ("How each task runs", answer_table(best.plan, best.forecast, {})),
        (f"The best of {number} placements", short_runners_up_table(result, SHOWN_PLACEMENTS)),
    )
    return _page(lines, tables, best.forecast.assumptions)


def _page(
    lines: Sequence[str], tables: Sequence[tuple[str, Table]], assumptions: Sequence[str]
) -> str:
    parts = ["<br>".join(escape(line) for line in lines)]
    parts += [f"<h4>{escape(title)}</h4>{html_table(table)}" for title, table in tables]
    parts += [f"<small>assumed: {escape(each)}</small>" for each in assumptions]
    return "<div>" + "<br>".join(parts) + "</div>"


def html_table(table: Table) -> str:
    """Return a table as HTML, figures to the right and outstanding rows bold."""

    def cells(kind: str, texts: Sequence[str]) -> str:
        return "".join(
            f'<{kind} style="text-align:{"right" if column.is_figure else "left"}">{escape(text)}</{kind}>'
            for column, text in zip(table.columns, texts, strict=True)
        )

    head = cells("th", [column.title for column in table.columns])
    bold = ' style="font-weight:bold"'
    rows = "".join(
        f"<tr{bold if index in table.strong_rows else ''}>{cells('td', row)}</tr>"
        for index, row in enumerate(table.rows)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


@singledispatch
def frame_of(result: object) -> pd.DataFrame:
    """Return a result's rows as a table: a forecast's tasks, a search's plans. Seconds, bytes and USD."""
    raise TypeError(f"no table of a {type(result).__name__}")


@frame_of.register
def _(result: Forecast) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "task": cost.name,
                "pool": cost.pool,
                "stage": cost.stage,
                "activity": cost.activity,
                "seconds": cost.seconds,
                "p10_seconds": cost.interval_seconds[0],
                "p90_seconds": cost.interval_seconds[1],
                "source": cost.source,
            }
            for cost in result.costs
        ]
    )


@frame_of.register
def _(result: SearchResult) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "placement": each.plan.placement,
                "gpus": gpus_of(each.plan),
                "iteration_seconds": each.forecast.iteration_seconds,
                "p10_seconds": each.forecast.iteration_seconds_interval[0],
                "p90_seconds": each.forecast.iteration_seconds_interval[1],
                "tokens_per_second": each.forecast.tokens_per_second,
                "cost_usd": each.forecast.cost_usd,
                "energy_joules": each.forecast.energy_joules,
                "free_memory_fraction": each.forecast.free_fraction,
                "loses_seconds": each.loses_seconds,
            }
            for each in result.plans
        ]
    )
