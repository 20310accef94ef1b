"""`rlplan watch`: steps of a log beside their forecasts, as it grows, in TensorBoard and for Prometheus."""

import json
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.planner.answers.completion import load_plan
from rlplan.planner.configs.importing import ImportOptions
from rlplan.planner.measured.following import followed
from rlplan.planner.measured.trackers import events_by_step
from rlplan.planner.measured.watching import Watch
from rlplan.reports.tables.advice import prometheus_text, watched_words
from rlplan.results.measurement import WatchedStage, WatchedStep
from rlplan.simulator.simulate import simulate
from rlplan_cli.commands import watch
from tests.planner.measured.test_advising import OPTIONS, VERL, line_of, log_of
from tests.planner.measured.test_logs_of_wandb import run_folder
from tests.rlplan_cli.test_check_step_command import write_log

STEP = WatchedStep(
    step=1204,
    starts=False,
    measured_seconds=52.0,
    forecast_seconds=45.0,
    interval_seconds=(40.0, 50.0),
    prompt_tokens=64.0,
    response_tokens=1536.0,
    stages=(
        WatchedStage(name="generation", measured_seconds=30.0, forecast_seconds=24.0),
        WatchedStage(name="update_actor", measured_seconds=12.0, forecast_seconds=13.0),
    ),
)
SAMPLE = re.compile(
    r'(?P<name>rlplan_\w+)\{log="(?P<log>(?:[^"\\\n]|\\.)*)"(?P<more>,.*)?\} (?P<value>\S+)'
)


def test_a_step_in_words():
    assert watched_words(STEP) == (
        "step 1,204: measured 52.00 s, forecast 45.00 s (40.00 s to 50.00 s): above; 1,536 response tokens; "
        "furthest: generation 30.00 s (forecast 24.00 s)"
    )


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_step_lies_in_one_place_beside_its_forecast(measured, one, other):
    step = WatchedStep(
        step=1,
        starts=True,
        measured_seconds=measured,
        forecast_seconds=one,
        interval_seconds=(min(one, other), max(one, other)),
        prompt_tokens=None,
        response_tokens=None,
        stages=(),
    )
    low, high = step.interval_seconds
    assert (step.place == "within") == (low <= measured <= high)
    assert (step.place == "above") == (measured > high)
    assert watched_words(step).startswith("step 1: measured ")


@given(st.text())
def test_prometheus_reads_every_line_whatever_the_log_is_called(log):
    text = prometheus_text(STEP, log)
    assert text.endswith("\n")
    told = {}
    for line in text.removesuffix("\n").split("\n"):
        if not line.startswith("# "):
            found = SAMPLE.fullmatch(line)
            unescaped = re.sub(
                r"\\(.)", lambda each: {"n": "\n"}.get(each[1], each[1]), found["log"]
            )
            assert unescaped == log
            told[found["name"] + (found["more"] or "")] = float(found["value"])
    assert told["rlplan_step_measured_seconds"] == 52.0
    assert told["rlplan_step_within_forecast"] == 0.0
    assert told['rlplan_stage_forecast_seconds,stage="generation"'] == 24.0


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(f"python3 {shlex.join(VERL)}\n")
    return "run.sh"


def test_steps_of_a_script_in_words_and_for_both_collectors(script, rlplan):
    Path("train.log").write_text(log_of())
    places = ("--prometheus", "a.prom", "--tensorboard", "curves")
    answer = rlplan("watch", "train.log", script, "--gpu", "h100", "--once", "--last", "3", *places)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["step 10", "step 11", "step 12"]
    assert all("128 response tokens; furthest: generation" in line for line in lines)
    assert 'rlplan_step{log="train.log"} 12.0\n' in Path("a.prom").read_text()
    for name in ("measured", "forecast", "forecast-p10", "forecast-p90"):
        assert len(events_by_step(Path("curves", name))) == 3
    measured, forecast = (
        events_by_step(Path("curves", name))[-1] for name in ("measured", "forecast")
    )
    assert measured["rlplan/step_seconds"] == pytest.approx(5.353)
    assert measured.keys() == forecast.keys()
    assert "rlplan/stage_seconds/generation" in measured


def test_a_watched_log_is_shown_as_it_grows_to_its_last_step(script, rlplan, monkeypatch):
    log = Path("train.log")
    rows = [line_of(number) for number in range(1, 6)]
    rows[2] = line_of(3, times=9.0)
    parts = [rows[0], rows[1][:30], rows[1][30:] + rows[2], "".join(rows[3:])]

    def grows(seconds):
        assert seconds == 5.0
        with log.open("a") as file:
            file.write(parts.pop(0))

    monkeypatch.setattr(watch, "sleep", grows)
    answer = rlplan("watch", "train.log", script, "--gpu", "h100", "--steps", "5", "--json")
    assert answer.code == 0, answer.err
    assert answer.err == "watching train.log; Ctrl-C ends it\n"
    found = [json.loads(line) for line in answer.out.splitlines()]
    assert [each["step"] for each in found] == [1, 2, 3, 4, 5]
    assert [each["starts"] for each in found] == [True, False, False, False, False]
    assert found[2]["place"] == "above"
    assert len({each["forecast_seconds"] for each in found}) == 1
    assert parts == []


def test_ctrl_c_ends_and_a_restart_is_shown_again(script, rlplan, monkeypatch):
    log = Path("train.log")
    log.write_text(log_of(1, 4))
    parts = [log_of(3, 2)]

    def grows(_):
        if not parts:
            raise KeyboardInterrupt
        with log.open("a") as file:
            file.write(parts.pop())

    monkeypatch.setattr(watch, "sleep", grows)
    answer = rlplan("watch", "train.log", script, "--gpu", "h100", "--last", "2")
    assert answer.code == 0
    numbers = [line.split(":")[0] for line in answer.out.splitlines()]
    assert numbers == ["step 3", "step 4", "step 3", "step 4"]
    assert "the first of a start" in answer.out.splitlines()[2]


def test_a_plan_is_watched_at_the_lengths_of_each_step(project, rlplan):
    write_log(1.0)
    found = [
        json.loads(line)
        for line in rlplan("watch", "train.log", "plan.yaml", "--once", "--json").out.splitlines()
    ]
    forecast = simulate(*load_plan(Path("plan.yaml")))
    assert len(found) == 4
    assert found[-1]["forecast_seconds"] == pytest.approx(forecast.iteration_seconds)
    generation = next(each for each in found[-1]["stages"] if each["name"] == "generation")
    assert generation["measured_seconds"] == pytest.approx(generation["forecast_seconds"])


def test_longer_responses_have_a_longer_forecast_and_like_ones_the_same(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(line_of(1) + line_of(2, response=129.0) + line_of(3, response=200.0))
    options = ImportOptions(gpu=OPTIONS.gpu, environment={})
    found = Watch.of_configuration("verl", VERL, options)
    assert (found.all_steps, found.updates) == (100, 1)
    first, second, third = found.steps(followed(log), 0)
    assert first.forecast_seconds == second.forecast_seconds < third.forecast_seconds


def test_a_folder_of_wandb_s_is_watched(script, rlplan):
    run_folder(Path("wandb"), **{"response_length/mean": 128, "prompt_length/mean": 64})
    answer = rlplan("watch", "wandb", script, "--gpu", "h100", "--once")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[-1].startswith("step 4: measured 50.00 s, forecast ")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("train.log", "run.sh", "--once"), "--gpu: is missing"),
        (
            ("train.log", "plan.yaml", "--mean-response", "9", "--once"),
            "--mean-response: is said of frameworks' configurations, and plan.yaml is a job or a plan",
        ),
        (("gone.log", "run.sh", "--gpu", "h100", "--once"), "gone.log: no such file"),
        (("run.sh", "run.sh", "--gpu", "h100", "--once"), "holds no steps of a framework"),
        (
            ("train.log", "run.sh", "--gpu", "h100", "--prometheus", "a.txt"),
            "--prometheus: is of another name than is collected",
        ),
        (
            ("train.log", "run.sh", "--gpu", "h100", "--tensorboard", "run.sh"),
            "--tensorboard: cannot be written",
        ),
        (
            (".", "run.sh", "--gpu", "h100", "--tensorboard", "curves"),
            "--tensorboard: lies in the folder of the log",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_words_get_one_complaint(script, rlplan, words, complaint):
    Path("train.log").write_text(log_of())
    Path("plan.yaml").write_text("job: job.yaml\n")
    answer = rlplan("watch", *words)
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert complaint in answer.err
