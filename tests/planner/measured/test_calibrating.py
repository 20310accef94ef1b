"""What tables and logs tell of a site, and errors of rows after calibration on one other row."""

import json
import math
from dataclasses import replace

import pytest

from rlplan.calibration import NO_CALIBRATION, STAGE_TASKS, STEP_STAGES, WorkKind
from rlplan.errors import FileError
from rlplan.estimate import Estimate
from rlplan.files.frozen import FrozenDict
from rlplan.planner.measured.calibrating import CalibrationInputs, measured_at, row_of_log
from rlplan.planner.measured.logs import read_log
from rlplan.planner.measured.reading import with_partners
from rlplan.planner.measured.rows import TableReader, findings_of, forecast_row, summarise
from rlplan.profiles.sheets import load_log_sheet, sheet_names
from rlplan.reports.pages.accuracy import write_accuracy_page
from rlplan.results.accuracy import StageSeconds
from rlplan.simulator.calibration import calibrate
from rlplan.simulator.observations import observations_of
from rlplan.simulator.simulate import simulate
from rlplan.workload import Empirical, Lognormal, Uniform, mean_length, with_mean
from tests.golden.kept import kept_plans

FORECAST_SECONDS = 100.0


def rows_of(record, site=NO_CALIBRATION):
    """Yield a step that generates only: 100 s times the site's factor."""
    factor = site.factor("generation")
    forecast = FORECAST_SECONDS * (factor.value if factor else 1.0)
    measured = float(record["seconds"])
    stage = StageSeconds(measured_seconds=measured, forecast_seconds=forecast)
    yield forecast_row(
        record["name"],
        measured,
        Estimate(forecast),
        group=record["group"],
        stages=FrozenDict({"generation": stage}),
    )


READER = TableReader(
    about="", columns=frozenset({"seconds"}), rows_of=rows_of, calibrated_rows_of=rows_of
)


def judged(*seconds, group="a"):
    records = [
        {"name": str(place), "group": group, "seconds": str(each)}
        for place, each in enumerate(seconds)
    ]
    return with_partners(READER, records, list(READER.rows(records)))


def test_a_row_is_judged_after_calibration_on_each_other_row_of_its_group():
    one, other, alike = judged(200.0, 150.0, 200.0)
    assert [len(row.calibrated_errors) for row in (one, other, alike)] == [2, 2, 2]
    # Calibrated on its like, what is left of 1/2 is the shrinkage; on the other, 150 against 200 s more.
    on_other, on_alike = one.calibrated_errors
    assert -0.15 < on_alike < 0
    assert on_other < on_alike
    assert one.calibrated_error == pytest.approx((abs(on_other) + abs(on_alike)) / 2)
    assert one.error_fraction == pytest.approx(-0.5)


def test_what_was_measured_of_a_row_never_moves_its_own_forecast():
    first, _ = judged(200.0, 150.0)
    again, _ = judged(400.0, 150.0)
    predicted = [each.measured_seconds * (1 + each.calibrated_errors[0]) for each in (first, again)]
    assert predicted[0] == pytest.approx(predicted[1])


def test_rows_without_a_partner_are_left_out_of_the_errors_after_calibration():
    (alone,) = judged(200.0)
    assert alone.calibrated_error is None
    assert summarise([alone]).after_calibration.rows == 0
    pair = summarise(judged(200.0, 200.0))
    assert pair.after_calibration.rows == 2
    assert pair.after_calibration.worst_error < pair.worst_error / 3
    assert pair.stages["generation"].median_error == pytest.approx(0.5)
    unlike = judged(200.0, 200.0, group="")
    assert all(not row.calibrated_errors for row in unlike)


def test_large_groups_are_judged_on_partners_all_over_the_group():
    rows = judged(*range(100, 140))
    assert {len(row.calibrated_errors) for row in rows} == {8}


def console(figures, step):
    return f"step:{step} - " + " - ".join(f"{key}:{value}" for key, value in figures.items())


FIGURES = {
    "timing_s/gen": 45.87,
    "timing_s/old_log_prob": 52.36,
    "timing_s/update_actor": "np.float64(108.94)",
    "timing_s/step": 211.12,
    "response_length/mean": 156.5,
    "prompt_length/mean": 9.37e1,
}


def test_a_console_of_verl_is_read_whatever_stands_before_its_steps(tmp_path):
    path = tmp_path / "run.log"
    lines = ["\x1b[36m(TaskRunner pid=7)\x1b[0m " + console(FIGURES, step) for step in (1, 2, 3)]
    lines[0] = lines[0].replace("45.87", "300")
    path.write_text("\n".join(["Training Progress: 1%", *lines, "(WorkerDict pid=8) step"]) + "\n")
    log = read_log(path)
    assert (log.sheet.name, log.steps, log.step_seconds) == ("verl", 2, 211.12)
    assert log.stage_seconds == {"generation": 45.87, "old_log_prob": 52.36, "update_actor": 108.94}
    assert (log.prompt_tokens, log.response_tokens) == (93.7, 156.5)


@pytest.mark.parametrize("width", [24, 61, 80])
def test_steps_that_a_terminal_has_wrapped_are_whole_again(tmp_path, width):
    path = tmp_path / "run.log"
    timers = {key: value for key, value in FIGURES.items() if key.startswith("timing")}
    lengths = {key: value for key, value in FIGURES.items() if key not in timers}
    figures = lengths | timers | {"perf/throughput": 812.5}
    whole = [console(figures, step) for step in (1, 2, 3)]
    wrapped = [line[at : at + width] for line in whole for at in range(0, len(line), width)]
    path.write_text("\n".join(wrapped) + "\n")
    log = read_log(path)
    assert (log.steps, log.step_seconds, log.prompt_tokens) == (2, 211.12, 93.7)
    assert log.stage_seconds == {"generation": 45.87, "old_log_prob": 52.36, "update_actor": 108.94}


def test_json_lines_of_verl_are_read_too(tmp_path):
    path = tmp_path / "run.jsonl"
    figures = {"timing_s/gen": 40.0, "timing_s/step": 90.0, "note": "x", "flag": True}
    rows = [{"step": step, "data": figures} for step in range(4)]
    path.write_text("\n".join(map(json.dumps, rows)) + '\n{"step": 4, "da')
    log = read_log(path)
    assert (log.steps, log.step_seconds, log.stage_seconds) == (3, 90.0, {"generation": 40.0})
    assert log.response_tokens is None


def test_json_columns_of_nemo_rl_are_read_too(tmp_path):
    path = tmp_path / "metrics.json"
    keys = {
        "timing/train/generation": 58.0,
        "timing/train/policy_and_reference_logprobs": 18.0,
        "timing/train/policy_training": 28.0,
        "timing/train/prepare_for_generation/total": 5.0,
        "timing/train/total_step_time": 112.0,
        "train/mean_gen_tokens_per_sample": 795.0,
    }
    columns = {key: {str(step): value for step in range(1, 6)} for key, value in keys.items()}
    path.write_text(json.dumps(columns))
    log = read_log(path)
    assert (log.sheet.name, log.steps, log.step_seconds) == ("nemo-rl", 4, 112.0)
    assert log.stage_seconds == {
        "generation": 58.0, "old_log_prob": 18.0, "update_actor": 28.0, "weight_sync": 5.0,
    }  # fmt: skip
    assert log.response_tokens == 795.0


SLIME = {
    "perf": {"rollout/response_len/mean": 1000.0, "rollout/response_len/max": 8192, "rollout/truncated_ratio": 0.01, "perf/rollout_time": 40.5},
    "rollout": {"rollout/response_lengths": 1000.5, "rollout/total_lengths": 1200.5},
    "train": {
        "perf/update_weights_time": 3.1, "perf/sleep_time": 1.5, "perf/train_wait_time": 50.0, "perf/train_time": 27.0,
        "perf/ref_log_probs_time": 5.5, "perf/actor_train_time": 20.5, "perf/ref_log_probs_tflops": 300.0,
        "perf/step_time": 77.0, "perf/wait_time_ratio": 0.6,
    },
}  # fmt: skip


def lines_of_slime(step):
    """Return the lines of a step: one of what was generated, one of its lengths, one of the update."""
    yield f"(RolloutManager pid=31) [2026-08-21 10:00:00] rollout_metrics.py:268 - perf {step}: {SLIME['perf']}"
    yield f"(MegatronTrainRayActor pid=7) train_metric_utils.py:131 - rollout {step}: {SLIME['rollout']}"
    yield f"\x1b[36m(MegatronTrainRayActor pid=7)\x1b[0m train_metric_utils.py:401 - perf {step}: {SLIME['train']}"


@pytest.mark.parametrize(
    ("save", "name"), [("", "slime"), ("saving to /models/Qwen3-4B_miles/", "miles")]
)
def test_lines_of_one_step_of_slime_s_console_are_one_step(tmp_path, save, name):
    path = tmp_path / "run.log"
    path.write_text(
        "\n".join([save, *(line for step in range(3) for line in lines_of_slime(step))])
    )
    log = read_log(path)
    assert (log.sheet.name, log.steps, log.step_seconds) == (name, 2, 77.0)
    assert log.stage_seconds == {
        "generation": 40.5, "reference": 5.5, "update_actor": 20.5, "weight_sync": 4.6,
    }  # fmt: skip
    assert (log.prompt_tokens, log.response_tokens) == (200.0, 1000.5)
    assert (log.longest_response, log.clip_ratio) == (8192.0, 0.01)
    assert log.other_seconds == {}


def test_slime_s_lines_of_what_was_generated_alone_say_how_long_responses_are(tmp_path):
    """As of a console of which the lines `perf` were kept."""
    path = tmp_path / "run.log"
    lines = (line for step in range(3) for line in lines_of_slime(step) if "rollout " not in line)
    path.write_text("\n".join(lines))
    log = read_log(path)
    assert (log.prompt_tokens, log.response_tokens) == (None, 1000.0)


def test_rows_of_one_step_that_a_tracker_of_slime_s_has_are_one_step(tmp_path):
    path = tmp_path / "run.jsonl"
    rows = [
        {**figures, "rollout/step": step, "_step": 3 * step + place}
        for step in range(3)
        for place, figures in enumerate(SLIME.values())
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    log = read_log(path)
    assert (log.steps, log.step_seconds, log.stage_seconds["generation"]) == (2, 77.0, 40.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing\n", "holds no steps of a framework whose log is known"),
        (console(FIGURES, 1) + "\n", "holds 1 steps, of which the first 1 are left out"),
    ],
)
def test_a_log_without_steps_is_refused(tmp_path, text, said):
    path = tmp_path / "run.log"
    path.write_text(text)
    with pytest.raises(FileError, match=said):
        read_log(path)


def test_a_log_without_its_plan_is_refused(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("\n".join(console(FIGURES, step) for step in (1, 2)))
    with pytest.raises(FileError, match="with --plan"):
        measured_at([path], CalibrationInputs())


@pytest.mark.parametrize("name", sheet_names("logs"))
def test_sheets_of_logs_speak_of_known_stages(name):
    sheet = load_log_sheet(name)
    assert set(sheet.stages.values()) <= set(STEP_STAGES)
    assert set(sheet.stages.values()) <= set(STAGE_TASKS) | set(sheet.holds)
    assert {each for held in sheet.holds.values() for each in held} <= set(STAGE_TASKS)
    assert sheet.sources


def test_a_log_of_a_slower_site_gives_its_factors(tmp_path):
    plan, facts = next(iter(kept_plans()))
    forecast = simulate(plan, facts)
    seconds = {each.name: each.seconds for each in forecast.costs}
    gen = 1.4 * (seconds["actor.generate"] + seconds.get("transition", 0.0))
    update = 0.8 * seconds["actor.update"]
    figures = {"timing_s/gen": gen, "timing_s/update_actor": update, "timing_s/step": 2 * gen}
    path = tmp_path / "run.log"
    path.write_text("\n".join(console(figures, step) for step in (1, 2, 3)))
    row = row_of_log("run.log", read_log(path), plan, forecast)
    assert "weight_sync" not in row.stages  # inside the timer of generation
    found = calibrate(observations_of(row)).calibration.stages
    factors: dict[WorkKind, float] = {"generation": 1.4, "training": 0.8}
    for kind, factor in factors.items():
        expected = (1 - found[kind].shrinkage) * math.log(factor)
        assert math.log(found[kind].value) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    "lengths",
    [
        100,
        Uniform(low=10, high=300),
        Empirical(values=(5, 50, 500)),
        Lognormal(mean=120, std=90, max=400),
    ],
)
@pytest.mark.parametrize("mean", [60, 130.0, 350])
def test_lengths_are_brought_to_a_mean(lengths, mean):
    assert mean_length(with_mean(lengths, mean)) == pytest.approx(mean, rel=0.01)
    assert type(with_mean(lengths, mean)) is type(lengths)


def test_the_page_shows_rows_unseen_stages_and_errors_after_calibration(tmp_path):
    rows = [replace(row, table="steps", unseen=True) for row in judged(200.0, 200.0, 150.0)]
    page = write_accuracy_page(tmp_path, [findings_of("steps", rows, "Steps.")], "rlplan accuracy")
    text = page.read_text()
    assert "## Rows unseen" in text
    assert "| steps, unseen | 3 |" in text
    assert "## Rows after calibration" in text
    assert "Stages of the step, before calibration:" in text
    assert "| generation | 3 |" in text
    assert "## Rows fitted on\n\n| Table" in text
    shown = page.with_suffix(".html").read_text()
    for words in ("Rows unseen", "Rows after calibration", "Stages of the step", "<svg"):
        assert words in shown
