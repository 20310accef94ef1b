"""Reported runs with a known outcome: what is said of some, how answers are counted, files that are all there."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from rlplan.errors import FileError
from rlplan.evals.reading import HELD_CASES
from rlplan.planner.measured.reported_runs import check_cases, checked_row, read_cases
from rlplan.reports.tables.accuracy import (
    GROUPS,
    fit_table,
    fit_totals_table,
    fit_trainers_table,
    totals_by_group,
)
from rlplan.reports.tables.plans import markdown_lines
from rlplan.results.accuracy import FitRow, Group, totals_of
from rlplan.units import GB, GIB
from tests.house.tree import ROOT

CASES = read_cases(HELD_CASES)
FOLDER = HELD_CASES.parent
HEADER = "case,framework,file,arguments,outcome"


def case(name, file="run.sh", outcome=None):
    return next(
        each
        for each in CASES
        if (each.case, each.file) == (name, file) and outcome in {None, each.outcome}
    )


def row(said, outcome="runs", measured_bytes=None, forecast_bytes=None):
    mine = replace(case("verl-tune-7b"), outcome=outcome, peak_bytes=measured_bytes)
    return FitRow(case=mine, said=said, forecast_bytes=forecast_bytes)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "file", "outcome", "said"),
    [
        ("mem-03", "run-offload-False.sh", "runs", "fits"),  # 32B on 8 H20, share 0.15
        ("mem-05", "run-mini32.sh", "oom", "does not fit"),
        ("mem-10", "grpo_sliding_puzzle.yaml", "oom", "does not fit"),
        ("mem-10", "grpo_sliding_puzzle.yaml", "runs", "fits"),
        ("mem-24", "plan.yaml", "runs", "fits"),
        ("openrlhf-908", "run-micro-2.sh", "oom", "does not fit"),
    ],
)
def test_a_reported_run_is_called_what_it_was(name, file, outcome, said):
    reported = case(name, file, outcome)
    assert checked_row(reported, FOLDER / name).said == said


@pytest.mark.full
def test_host_memory_that_ran_out_in_a_small_node_is_enough_in_a_large_one():
    small, large = (
        checked_row(each, FOLDER / each.case) for each in CASES if each.case == "verl-224"
    )
    assert (small.case.host_memory_bytes, small.said) == (96 * GB, "does not fit")
    assert (large.case.host_memory_bytes, large.said) == (1000 * GB, "fits")


def test_rows_of_every_group_are_shown():
    assert set(GROUPS) == set(get_args(Group))


def test_every_case_has_its_files_its_source_and_a_known_outcome():
    assert len(CASES) == 435
    for each in CASES:
        assert (FOLDER / each.case / each.file).is_file(), each.label
        assert each.source, each.label
        words = shlex.split(each.arguments)
        assert each.framework == "plan" or "--gpu" in words, each.label
    counted = [each.group for each in CASES]
    assert {name: counted.count(name) for name in dict.fromkeys(counted)} == {
        "shown": 22, "collected": 83, "host": 11, "bug": 6, "later": 74, "newer": 29, "newest": 30,
        "latest": 31, "added": 26, "gathered": 21, "blind": 30, "drawn": 12, "further": 24, "forked": 17,
        "sought": 19,
    }  # fmt: skip


def test_every_folder_of_cases_is_in_the_table_and_no_script_has_comments():
    folders = {path.name for path in FOLDER.iterdir() if path.is_dir()} - {"bases"}
    assert folders == {each.case for each in CASES}
    for path in FOLDER.rglob("*.sh"):
        assert "#" not in path.read_text(), path


@pytest.mark.full
def test_every_case_is_answered_and_the_published_page_has_their_totals():
    rows = check_cases(CASES, FOLDER, lambda *_: None)
    assert [each.case.label for each in rows if each.said == "no answer"] == []
    page = (ROOT / "reports" / "published" / "fit.md").read_text(encoding="utf-8")
    assert "\n".join(markdown_lines(fit_totals_table(totals_by_group(rows)))) in page


def test_answers_are_counted_as_right_unsure_and_wrong():
    rows = [
        row("fits", "runs", 40 * GIB, 42 * GIB),
        row("does not fit", "runs"),
        row("may not fit", "oom", 50 * GIB, 40 * GIB),
        row("does not fit", "oom"),
        row("fits", "oom"),
        row("no answer", "oom"),
    ]
    totals = totals_of(rows)
    assert (totals.rows, totals.right, totals.may, totals.wrong) == (6, 2, 1, 3)
    assert (totals.oom, totals.oom_seen) == (4, 2)
    assert (totals.peaks, totals.median_error, totals.worst_error) == (2, 0.125, 0.2)


def test_totals_leave_out_hosts_and_faults_of_versions_and_are_those_that_are_printed():
    bug = replace(case("verl-tune-7b"), group="bug", outcome="oom")
    shown = replace(case("verl-tune-7b"), group="shown")
    rows = [row("fits"), row("fits", "oom"), FitRow(case=shown, said="fits")]
    totals = totals_by_group([*rows, FitRow(case=bug, said="fits")])
    assert {name: each.rows for name, each in totals.items()} == {
        "shown": 1, "collected": 2, "all": 3,
    }  # fmt: skip
    printed = fit_totals_table(totals).rows
    assert printed[2][:7] == ("all", "3", "2 (67%)", "2 (67%)", "1", "1", "0 (0%)")


def test_a_row_shows_the_peak_of_what_there_is_and_its_error():
    shown = FitRow(
        case=replace(case("verl-tune-7b"), peak_bytes=50 * GIB),
        said="fits",
        forecast_bytes=40 * GIB,
        capacity_bytes=80 * GIB,
    )
    (cells,) = fit_table([shown]).rows
    assert cells[1:7] == (
        "ran",
        "fits",
        "right",
        "40.0 of 80.0 GiB",
        "50.0 GiB",
        "\N{MINUS SIGN}20.0 %",
    )


def test_what_a_trainer_allocates_is_held_against_what_was_measured_without_what_pytorch_does_not_count():
    """Qwen3-8B on 8 cards with FSDP2: 3.8 GiB of weights, as much of gradients and 7.6 of moments, and what is whole for a while."""
    reported = next(each for each in CASES if each.case == "npu-qwen3-8b" and each.trainer_bytes)
    found = checked_row(reported, FOLDER / reported.case)
    states = 8_190_735_360 / 8 * 16
    assert found.trainer_bytes is not None
    assert found.forecast_bytes is not None
    assert states < found.trainer_bytes < found.forecast_bytes
    assert found.trainer_error == pytest.approx(found.trainer_bytes / (20.825 * GIB) - 1)
    (cells,) = fit_trainers_table([found, FitRow(case=case("verl-tune-7b"), said="fits")]).rows
    assert cells[:2] == ("npu-qwen3-8b gspo.sh", "20.8 GiB")


def table(folder: Path, *lines: str) -> Path:
    path = folder / "mine.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_of_ones_own_needs_but_five_columns(tmp_path):
    path = table(tmp_path, HEADER, "a,verl,run.sh,--gpu h20 --mean-response 300,oom")
    (read,) = read_cases(path)
    assert (read.case, read.outcome, read.group, read.peak_bytes) == (
        "a", "oom", "collected", None,
    )  # fmt: skip


def test_a_configuration_that_is_not_there_gets_no_answer_and_says_why(tmp_path):
    (read,) = read_cases(table(tmp_path, HEADER, "a,verl,run.sh,--gpu h20,oom"))
    found = checked_row(read, tmp_path / "a")
    assert (found.said, found.score) == ("no answer", "wrong")
    assert "run.sh" in found.why


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("case,file",), "framework: is missing"),
        ((HEADER + ",colour", "a,verl,run.sh,,oom,red"), "colour: is no column"),
        ((HEADER, "a,verl,run.sh,,burst"), "line 2"),
        ((HEADER + ",peak_gib", "a,verl,run.sh,,oom,many"), "peak_gib: is no number; found 'many'"),
    ],
)
def test_a_wrong_table_is_told_with_its_place(tmp_path, lines, message):
    with pytest.raises(FileError, match=message):
        read_cases(table(tmp_path, *lines))
