"""Tables in a terminal: figures stay whole, words break at spaces, and nothing is wider than it."""

import json
import re

import pytest
from rich.console import Console

from rlplan.reports.tables.plans import Table, columns
from rlplan.units import show_seconds
from rlplan_cli.terminal import grid_of, left_out, say_assumed

WORDS = Table(
    columns=columns("Task", "#Measured median", "#Error", "Source of the forecast"),
    rows=(
        ("reference.compute_log_prob", "1.25 s to 1.75 s", "-1.6 %", "datasheet, outside the range"),
        ("iteration", "2 min 49 s", "+12.0 %", "simulated"),
    ),
    strong_rows=frozenset({1}),
)  # fmt: skip


def drawn(table, width, spare=()):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(grid_of(table, width, spare))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_wide_terminal_shows_every_row_on_one_line():
    assert drawn(WORDS, 120) == [
        "Task                         Measured median    Error  Source of the forecast",
        "reference.compute_log_prob  1.25 s to 1.75 s   -1.6 %  datasheet, outside the range",
        "iteration                         2 min 49 s  +12.0 %  simulated",
    ]


def test_a_narrower_one_breaks_titles_and_words_at_spaces_and_no_figure():
    assert drawn(WORDS, 70) == [
        "                                                       Source of the",
        "Task                         Measured median    Error  forecast",
        "reference.compute_log_prob  1.25 s to 1.75 s   -1.6 %  datasheet,",
        "                                                       outside the",
        "                                                       range",
        "iteration                         2 min 49 s  +12.0 %  simulated",
    ]


def test_columns_that_can_be_spared_go_where_even_that_is_too_wide():
    lines = drawn(WORDS, 56, spare=("Source of the forecast",))
    assert lines[-2:] == [
        "reference.compute_log_prob  1.25 s to 1.75 s   -1.6 %",
        "iteration                         2 min 49 s  +12.0 %",
    ]
    assert "forecast" not in " ".join(lines)


@pytest.mark.full
@pytest.mark.parametrize("columns_of_terminal", [None, 80, 120])
def test_the_runners_up_fit_the_terminal_and_keep_their_figures(
    project, rlplan, monkeypatch, columns_of_terminal
):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns_of_terminal:
        monkeypatch.setenv("COLUMNS", str(columns_of_terminal))
    plans = json.loads((project / "search.json").read_text())["plans"]
    lines = rlplan("search", "job.yaml", "--all").out.splitlines()
    assert max(map(len, lines)) <= (columns_of_terminal or 120)
    for number, each in enumerate(plans, 1):
        seconds = show_seconds(each["forecast"]["iteration_seconds"])
        (row,) = [line for line in lines if re.match(rf" *{number} +{{", line)]
        assert seconds in row
        assert "+" in row or "best" in row
    assert any("Mainly in" in line for line in lines)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", ["simulate plan.yaml", "validate run", "profile show profile"])
def test_every_table_fits_the_terminal(project, rlplan, monkeypatch, width, command):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = rlplan(*command.split()).out.splitlines()
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if "…" in line]


def test_results_go_to_stdout_and_remarks_to_stderr(project, rlplan):
    answer = rlplan("simulate", "plan.yaml", "--json", "--out", "f.json")
    assert json.loads(answer.out)["feasible"] is True
    assert answer.err == "written: f.json\n"


def test_columns_without_room_stand_below_with_the_first_one():
    table = Table(
        columns=columns("Task", "Batch", "#Time", "#p10 to p90", "#MFU"),
        rows=(
            ("actor.generate", "256 seqs", "15.36 s", "11.43 to 19.30 s", ""),
            ("actor.update", "16 seqs", "11.99 s", "9.84 to 14.15 s", "52 %"),
        ),
        strong_rows=frozenset({1}),
    )
    assert left_out(table, 120, ("Batch", "MFU")) == []
    (below,) = left_out(table, 44, ("Batch", "MFU"))
    assert [column.title for column in below.columns] == ["Task", "Batch", "MFU"]
    assert below.rows == (
        ("actor.generate", "256 seqs", ""),
        ("actor.update", "16 seqs", "52 %"),
    )
    assert below.strong_rows == {1}


def test_no_more_than_three_assumptions_are_said_unless_all_are_asked_for(capsys):
    said = [f"number {each}" for each in range(6)]
    say_assumed(said, why=False)
    assert capsys.readouterr().err.splitlines() == [
        *(f"assumed: number {each}" for each in range(3)),
        "assumed: 3 more; --why says them",
    ]
    say_assumed(said, why=True)
    assert len(capsys.readouterr().err.splitlines()) == 6
    say_assumed(said[:4], why=False)
    assert "more" not in capsys.readouterr().err
