"""Transitions by engine: within 25 % where no constant was fitted, and in the order that was measured."""

from rlplan.evals.reading import held_tables, read_table
from rlplan.evals.tables.hybridflow_transition_generation_search import transition_row
from rlplan.planner.measured.rows import summarise

TABLE = next(path for path in held_tables() if path.stem.startswith("hybridflow_transition"))
HEADER = "figure,model,gpus,series,config,transition,tp,pp,generate_tp,generate_pp,seconds"


def rows_of(path):
    return [row for row in read_table(path) if row.kind.startswith("transition ")]


def test_held_back_transitions_are_within_a_quarter_of_what_was_measured():
    held = [row for row in rows_of(TABLE) if not row.fitted]
    assert len(held) >= 15
    summary = summarise(held)
    assert summary.worst_error < 0.25
    assert summary.median_error < 0.10


def test_engines_stand_in_the_order_that_was_measured():
    found = {}
    for row in rows_of(TABLE):
        found.setdefault(row.label, {})[row.kind.split()[1]] = row
    whole = [each for each in found.values() if len(each) == 4]
    assert len(whole) == 9
    for each in whole:
        seconds = {name: row.forecast.seconds for name, row in each.items()}
        assert seconds["hybridflow"] < seconds["hybridflow-v"] < seconds["all-gather"] + 0.3
        assert max(seconds, key=seconds.get) == "two-copies"


def test_generation_is_within_fifteen_percent_at_every_tp_and_the_best_tp_is_the_measured_one():
    rows = [row for row in read_table(TABLE) if row.kind == "generation"]
    assert [row.fitted for row in rows] == [True, False, True, False]  # TP 8, 4, 2, 1
    assert max(abs(row.error_fraction) for row in rows) < 0.15
    assert min(rows, key=lambda row: row.forecast.seconds) is min(
        rows, key=lambda row: row.measured_seconds
    )


def test_what_took_no_time_or_is_a_search_is_skipped(tmp_path):
    lines = (
        HEADER,
        'Fig15,7B,16,transition,"train 1-8-2, tg=8 pg=1",hybridflow,8,1,8,1,0.0',
        "Fig16,7B,8,Algorithm 1 runtime,CPU,,,,,,11.4",
    )
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    rows = read_table(tmp_path / "t.csv")
    assert [row.skipped is not None for row in rows] == [True, True]


def test_a_transition_knows_its_layouts_and_bytes():
    record = {
        "model": "7B", "gpus": "16", "config": "Tg2 Pg1 T8 P1", "transition": "hybridflow", "seconds": "2.7",
        "tp": "8", "pp": "1", "generate_tp": "2", "generate_pp": "1",
    }  # fmt: skip
    row = transition_row(record)
    assert (row.train.tp, row.train.dp, row.generate.tp, row.generate.dp) == (8, 2, 2, 8)
    assert row.nodes == 2
    # (8 - 2) / (2 * 8) of 13.5 GB.
    assert abs(row.received_bytes / (row.model_bytes * 6 / 16) - 1) < 1e-9
