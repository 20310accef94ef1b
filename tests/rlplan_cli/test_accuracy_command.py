"""`rlplan accuracy`: its JSON, its rows as CSV, its page, and what it says of wrong files."""

import csv
import os
from pathlib import Path

import pytest

from rlplan.evals.reading import HELD
from rlplan_cli import checkout

REAL = (
    "case,gen_len,batch,actor_B,critic_B,ref_B,reward_B,gpus,system,PFLOPs_per_s,iter_s,prompt_len"
)
ROWS = (
    "scale_actor,128,512,7,7,7,7,8,ReaL-Heuristic,0.6837,31.3,128",
    "scale_actor,128,512,7,7,7,7,8,ReaL,0.9172,23.33,128",
)
KEYS = {
    "table",
    "rows",
    "skipped",
    "median_error",
    "mean_error",
    "p90_error",
    "worst_error",
    "bias",
}


@pytest.fixture
def wheel(monkeypatch):
    """Let the product stand without its sources: no wheel has evaluations."""
    monkeypatch.setattr(checkout, "find_spec", lambda _: None)


@pytest.fixture
def steps(tmp_path):
    """Write the steps of a site of one's own: published settings, in other seconds."""
    path = tmp_path / "steps.csv"
    with (HELD / "rl_steps.csv").open(newline="") as stream:
        table = csv.DictReader(stream)
        records = {record["id"]: record for record in table}
    with path.open("w", newline="") as stream:
        written = csv.DictWriter(stream, table.fieldnames)
        written.writeheader()
        for seconds in (10.0, 11.0):
            written.writerow(records["n959_8b_mg"] | {"step_s": seconds})
    return path


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("\n".join((REAL, *ROWS)) + "\n")
    return path


def test_json_holds_every_table_with_errors_as_fractions(rlplan, table):
    answer = rlplan("accuracy", table, "--json")
    assert answer.code == 0
    (summary,) = answer.json["tables"]
    assert summary.keys() >= KEYS
    assert (summary["table"], summary["rows"], summary["skipped"]) == ("mine", 1, 1)
    assert summary["median_error"] == summary["worst_error"] == abs(summary["bias"])
    assert 0 <= summary["median_error"] < 0.2
    assert summary["stages"] == {}
    assert summary["after_calibration"] == {
        "rows": 0, "median_error": None, "mean_error": None, "p90_error": None, "worst_error": None,
    }  # fmt: skip


def test_two_tables_of_one_name_are_told_apart(rlplan, table, tmp_path):
    other = tmp_path / "other" / "mine.csv"
    other.parent.mkdir()
    other.write_text(table.read_text())
    names = [each["table"] for each in rlplan("accuracy", table, other, "--json").json["tables"]]
    assert names == [f"{tmp_path.name}/mine", "other/mine"]


def test_an_option_without_its_path_is_told_and_nothing_is_written(rlplan, table):
    answer = rlplan("accuracy", table, "--rows", "--json")
    assert answer.code == 2
    assert "--rows: has no path; found '--json'; allowed: --rows PATH --json" in answer.err
    assert not Path("--json").exists()


def test_rows_are_written_with_their_forecasts_and_reasons(rlplan, table, tmp_path):
    assert rlplan("accuracy", table, "--rows", tmp_path / "rows.csv").code == 0
    with (tmp_path / "rows.csv").open() as stream:
        forecast, skipped = csv.DictReader(stream)
    assert float(forecast["measured_seconds"]) == 31.3
    assert float(forecast["p10_seconds"]) < float(forecast["forecast_seconds"])
    assert skipped["forecast_seconds"] == ""
    assert skipped["skipped"] == "its parallel sizes are not published"


def test_rows_that_no_table_of_the_project_has_are_unseen_and_never_fitted_on(rlplan, tmp_path):
    fitted = "scale_actor,128,512,13,7,13,7,16,ReaL-Heuristic,1.0412,30.09,128"
    path = tmp_path / "mine.csv"
    found = []
    for seconds in ("30.09", "30.090", "30.1"):
        path.write_text(f"{REAL}\n{fitted.replace('30.09', seconds)}\n")
        (summary,) = rlplan("accuracy", path, "--json").json["tables"]
        found.append((summary["fitted_rows"], summary["unseen_rows"]))
    assert found == [(1, 0), (1, 0), (0, 1)]


def test_the_page_shows_rows_held_back_and_a_picture(rlplan, table, tmp_path):
    assert rlplan("accuracy", table, "--report", tmp_path / "page").code == 0
    text = (tmp_path / "page" / "accuracy.md").read_text()
    assert "## Rows held back" in text
    assert "its parallel sizes are not published" in text
    assert "(accuracy/accuracy-mine.svg)" in text
    assert (tmp_path / "page" / "accuracy" / "accuracy-mine.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "has the columns of no table that rlplan knows"),
        (f"{REAL}\n1,2\n", "line 2: does not have as many cells as the header"),
        (f"{REAL}\n{ROWS[0].replace('31.3', 'x')}\n", "line 2: cannot be read as realhf_iteration"),
    ],
)
def test_a_wrong_table_is_a_mistake_of_the_user(rlplan, tmp_path, content, said):
    path = tmp_path / "wrong.csv"
    path.write_text(content)
    answer = rlplan("accuracy", path)
    assert answer.code == 2
    assert len(answer.lines) == 1
    assert "wrong.csv" in answer.err
    assert said in answer.err


def test_a_missing_table_or_device_is_a_mistake_of_the_user(rlplan, table, tmp_path):
    assert rlplan("accuracy", tmp_path / "nothing.csv").code == 2
    answer = rlplan("accuracy", table, "--device", "a1000")
    assert answer.code == 2
    assert "a100" in answer.err


@pytest.mark.parametrize("cell", ["inf", "-1", "9" * 30, "1e308", "\x1b[31m", "8" * 100_000])
@pytest.mark.parametrize("column", ["gen_len", "gpus", "iter_s"])
def test_an_impossible_cell_leaves_its_row_out_or_is_named(rlplan, table, column, cell):
    cells = dict(zip(REAL.split(","), ROWS[0].split(","), strict=True)) | {column: cell}
    table.write_text("\n".join((REAL, ",".join(cells.values()))) + "\n")
    answer = rlplan("accuracy", table, "--json")
    assert answer.code in (0, 2)
    assert len(answer.lines) == (answer.code == 2)
    assert len(answer.err) < 5000
    assert "\x1b" not in answer.err + answer.out
    if answer.code == 0:
        assert answer.json["tables"][0]["skipped"] == 1


def test_a_table_is_a_regular_file(rlplan, tmp_path):
    os.mkfifo(tmp_path / "rows.csv")
    for path in (tmp_path / "rows.csv", "/dev/zero"):
        answer = rlplan("accuracy", path)
        assert answer.code == 2
        assert "is a device, pipe or socket" in answer.err


def test_reported_runs_of_ones_own_are_checked_and_written_as_a_page(rlplan, tmp_path):
    folder = tmp_path / "mine"
    (folder / "small").mkdir(parents=True)
    words = (
        "python3 -m verl.trainer.main_ppo data.train_batch_size=256 data.max_prompt_length=512",
        "data.max_response_length=512 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct",
        "actor_rollout_ref.actor.ppo_mini_batch_size=64 algorithm.adv_estimator=grpo",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 trainer.n_gpus_per_node=1",
        "actor_rollout_ref.rollout.name=vllm trainer.nnodes=1",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    )
    (folder / "small" / "run.sh").write_text(" ".join(words) + "\n")
    table = folder / "cases.csv"
    table.write_text(
        "case,framework,file,arguments,outcome,source\n"
        "small,verl,run.sh,--gpu a100-40gb-sxm --mean-response 200 --mean-prompt 100,oom,mine\n"
    )
    answer = rlplan("accuracy", "--fit", table, "--report", tmp_path / "out", "--json")
    assert answer.code == 0
    assert answer.json["totals"]["collected"] == {
        "rows": 1, "right": 1, "may": 0, "wrong": 0, "oom": 1, "oom_seen": 1, "peaks": 0,
    }  # fmt: skip
    page = (tmp_path / "out" / "fit.md").read_text()
    assert "| collected | 1 | 1 (100%) | 1 (100%) | 0 | 1 | 1 (100%) | 0 | - | - |" in page
    assert "| small run.sh | ran out | does not fit | right |" in page
    printed = rlplan("accuracy", "--fit", table)
    assert "What is said of reported runs" in printed.out


@pytest.mark.full
def test_steps_of_ones_own_are_forecast_without_a_checkout_as_with_one(
    rlplan, steps, tmp_path, request
):
    with_evals = rlplan("accuracy", steps, "--json").json
    calibrate = ("calibrate", steps, "--out", tmp_path / "site.yaml", "--json")
    site = rlplan(*calibrate).json
    request.getfixturevalue("wheel")
    without = rlplan("accuracy", steps, "--json").json
    assert without == with_evals
    assert (without["tables"][0]["rows"], without["tables"][0]["unseen_rows"]) == (2, 2)
    assert without["tables"][0]["after_calibration"]["rows"] == 2
    assert rlplan(*calibrate).json == site


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (("accuracy",), "published measurements are"),
        (("accuracy", "--fit"), "reported runs are"),
        (("reproduce", "srl"), "published evaluations are"),
        (("accuracy", "mine.csv"), "the columns of: rl_steps, rl_steps_more; readers of published tables are"),
    ],
)  # fmt: skip
def test_without_a_checkout_it_is_said_where_published_tables_are(
    rlplan, table, wheel, tmp_path, monkeypatch, asked, wanted
):
    monkeypatch.chdir(tmp_path)
    answer = rlplan(*asked)
    assert answer.code == 2
    assert len(answer.lines) == 1
    where = "in the folder evals/ of the sources of rlplan, which an installed wheel does not have"
    assert f"{wanted} {where}: run the command of a checkout" in answer.err
