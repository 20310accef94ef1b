"""`rlplan advise`: a log that grows is followed to its last step, with decisions in text, JSON and a ledger."""

import json
from pathlib import Path

import pytest

from rlplan_cli.commands import advise
from tests.planner.measured.test_advising import RUNNING, VERL, line_of, log_of

CONFIG = ("--gpu", "h100-80gb-sxm", "--log", "train.log", "--ledger", "advice.jsonl")


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = " ".join(f"'{word}'" for word in VERL)
    Path("run.sh").write_text(f'python3 {words} "$@"\n')
    return "run.sh"


def grow(monkeypatch, pieces):
    """Let the log grow by a piece at each look that finds nothing new; return how many looks there were."""
    left = list(pieces)

    def sleep(seconds):
        assert seconds == 0.01
        with Path("train.log").open("a") as log:
            log.write(left.pop(0))

    monkeypatch.setattr(advise, "sleep", sleep)
    return left


def test_a_log_that_grows_is_followed_to_its_last_step(script, rlplan, monkeypatch):
    whole = line_of(4)
    left = grow(monkeypatch, (log_of(1, 3), whole[:-9], whole[-9:], log_of(5, 2)))
    answer = rlplan(
        "advise", script, *CONFIG, "--follow", "--steps", "6", "--poll-seconds", "0.01", "--restart-seconds", "1", "--json"
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert not left
    (line,) = map(json.loads, answer.out.splitlines())
    assert (line["step"], line["steps"], line["steps_left"], line["answer"]) == (4, 3, 2, "change")
    assert RUNNING in {each["key"] for each in line["changes"]}
    assert [json.loads(each) for each in Path("advice.jsonl").read_text().splitlines()] == [line]


def test_keys_that_words_behind_a_script_do_not_reach_are_said_to_stand_in_it(script, rlplan):
    words = Path(script).read_text().replace(' "$@"', "")
    Path(script).write_text(words)
    Path("train.log").write_text(log_of(count=6))
    answer = rlplan("advise", script, *CONFIG, "--restart-seconds", "1")
    assert "\nin the configuration: actor_rollout_ref" in answer.out
    assert "behind the configuration:" not in answer.out


def test_what_lacks_and_what_contradicts_is_said_in_one_line(script, rlplan):
    asked = ("advise", script, *CONFIG)
    for more, words in (
        (("--steps", "9", "--steps-left", "3"), "--steps-left: says the same as --steps"),
        ((), "train.log: no such file"),
    ):
        answer = rlplan(*asked, *more)
        assert (answer.code, len(answer.lines)) == (2, 1)
        assert words in answer.err
    Path("train.log").write_text("nothing\n")
    assert "holds no steps of a framework whose log is known" in rlplan(*asked).err
    Path("job.yaml").write_text("name: small\n")
    assert "names keys of a framework's configuration" in rlplan("advise", "job.yaml", *CONFIG).err


@pytest.mark.full
def test_an_unknown_cost_of_a_restart_is_asked_for_and_ctrl_c_ends(script, rlplan, monkeypatch):
    Path("train.log").write_text(log_of(30))

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(advise, "sleep", interrupted)
    answer = rlplan("advise", script, *CONFIG, "--follow", "--every", "8")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("step 41, 59 left: a change would gain ")
    assert "say it by --restart-seconds" in answer.err
    assert "it pays where a restart costs up to" in answer.err
