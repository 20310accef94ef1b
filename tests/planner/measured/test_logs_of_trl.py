"""TRL's logs: the console's dictionaries, trainer_state.json and trackers, several of its steps as one of a plan's."""

import json

import pytest

from rlplan.planner.measured.logs import read_log

STEPS = [
    {"loss": 0.0, "grad_norm": 0.5, "learning_rate": 1e-06, "num_tokens": 5587.0,
     "completions/mean_length": 520.0 + at, "completions/max_length": 1024.0, "completions/clipped_ratio": 0.25,
     "reward": 0.1, "step_time": seconds, "epoch": 0.1 * at}
    for at, seconds in enumerate([90.0, 20.0, 30.0, 20.0, 32.0, 20.0, 34.0])
]  # fmt: skip


def printed(steps, quoted):
    """Return a console's lines, behind a progress bar, with numbers in quotes as transformers 5 prints them."""
    shown = [{key: f"{value}" for key, value in each.items()} if quoted else each for each in steps]
    lines = [f"  3%|3    | {at}/100 [00:10<03:20, 20.3s/it]{each}" for at, each in enumerate(shown)]
    return "\n".join([*lines, "{'train_runtime': 26.87, 'train_loss': 0.03, 'epoch': 10.0}"])


@pytest.mark.parametrize("quoted", [False, True])
def test_the_console_is_read(tmp_path, quoted):
    (tmp_path / "log").write_text(printed(STEPS, quoted), encoding="utf-8")
    log = read_log(tmp_path / "log")
    assert (log.sheet.name, log.steps, log.step_seconds) == ("trl", 6, 25.0)
    assert (log.response_tokens, log.longest_response, log.clip_ratio) == (523.5, 1024.0, 0.25)


def test_the_trainer_s_state_is_read(tmp_path):
    state = {"best_metric": None, "log_history": [*STEPS, {"train_runtime": 300.0}], "max_steps": 7}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state, indent=2), encoding="utf-8")
    log = read_log(tmp_path / "trainer_state.json")
    assert (log.sheet.name, log.steps, log.step_seconds) == ("trl", 6, 25.0)


def test_updates_of_an_iteration_are_taken_together(tmp_path):
    """A step that generates and one that does not: seconds add up, lengths are means."""
    (tmp_path / "log").write_text(printed(STEPS, quoted=False), encoding="utf-8")
    log = read_log(tmp_path / "log", updates=2)
    assert (log.steps, log.step_seconds) == (2, 51.0)  # 30 + 20 and 32 + 20; the last has no second
    assert log.response_tokens == 523.5


def test_seconds_of_calls_that_a_tracker_logs_alone_belong_to_the_next_step(tmp_path):
    rows = []
    for each in STEPS:
        rows += [{"profiling/Time taken: GRPOTrainer.vLLM.generate": each["step_time"] / 2},
                 {"profiling/Time taken: GRPOTrainer.sync_weights": 3.0},
                 {f"train/{key}": value for key, value in each.items()}]  # fmt: skip
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    log = read_log(tmp_path / "log.jsonl")
    assert log.step_seconds == 25.0
    assert dict(log.stage_seconds) == {"generation": 12.5, "weight_sync": 3.0}
