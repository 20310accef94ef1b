"""Steps as people paste and export them: one key a line, summaries and histories of W&B."""

import csv
import json
import math

import pytest

from rlplan.errors import FileError
from rlplan.planner.measured.logs import read_log

STEP = {
    "timing_s/gen": 40.5,
    "timing_s/old_log_prob": 5.0,
    "timing_s/update_actor": 30.25,
    "timing_s/step": 80.0,
    "response_length/mean": 812.0,
    "prompt_length/mean": 155.0,
}
PASTED = {
    "colons": "".join(f"{key}: {value}\n" for key, value in STEP.items()),
    "a list with equal signs": "".join(f"- {key} = {value} s\n" for key, value in STEP.items()),
    "a table": "| key | value |\n|---|---|\n" + "".join(f"| {key} | {value} |\n" for key, value in STEP.items()),
    "tabs": "".join(f"{key}\t{value}\n" for key, value in STEP.items()),
    "blanks": "wandb: Run summary:\n" + "".join(f"wandb:  {key} {value}\n" for key, value in STEP.items()),
    "Markdown": "".join(f"- `{key}`: **{value}s**\n" for key, value in STEP.items()),
    "bold keys": "".join(f"* **{key}**: `{value}` s\n" for key, value in STEP.items()),
    "a dict": "{\n" + "".join(f"  '{key}': np.float64({value}),\n" for key, value in STEP.items()) + "}\n",
    "among words": "My step is slow:\n\n" + "".join(f"> {key}: {value}\n" for key, value in STEP.items()) + "\nWhy?\n",
    "wandb-summary.json": json.dumps({**STEP, "_step": 42, "_wandb": {"runtime": 9000}}),
    "an indented summary": json.dumps({**STEP, "_step": 42, "samples": {"_type": "table-file"}}, indent=2),
}  # fmt: skip


def logged(tmp_path, text, name="log.txt", **options):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_log(path, **options)


@pytest.mark.parametrize("kind", PASTED)
def test_one_step_that_is_handed_on_is_the_one_that_is_meant(kind, tmp_path):
    found = logged(tmp_path, PASTED[kind])
    assert (found.sheet.name, found.steps, found.step_seconds) == ("verl", 1, 80.0)
    assert found.stage_seconds == {"generation": 40.5, "old_log_prob": 5.0, "update_actor": 30.25}
    assert (found.prompt_tokens, found.response_tokens) == (155.0, 812.0)


def test_a_key_that_comes_again_begins_a_step(tmp_path):
    text = "".join(
        f"{key}: {value * times}\n" for times in (9.0, 1.0, 1.0) for key, value in STEP.items()
    )
    found = logged(tmp_path, text)
    assert (found.steps, found.step_seconds) == (2, 80.0)  # the first one warms up


def test_histories_are_read_as_w_and_b_exports_them(tmp_path):
    rows = [
        {"_step": step, **dict.fromkeys(STEP), **(STEP if step % 2 else {"val/reward": 0.5})}
        for step in range(1, 8)
    ]
    exported = {
        "history.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows),
        "history.json": json.dumps(rows),
        "nan.jsonl": "".join(
            json.dumps({key: math.nan if value is None else value for key, value in row.items()})
            + "\n"
            for row in rows
        ),
    }
    for name, text in exported.items():
        found = logged(tmp_path, text, name)
        assert (found.steps, found.step_seconds) == (3, 80.0), name
    table = tmp_path / "history.csv"
    with table.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, ["", "_step", "val/reward", *STEP])
        writer.writeheader()
        writer.writerows({"": at, **row} for at, row in enumerate(rows))
    assert read_log(table).steps == 3


def test_shares_in_which_a_side_stands_still_are_read(tmp_path):
    idle = {"fully_async/trainer/idle_ratio": 0.4, "fully_async/rollouter/idle_ratio": 0.05}
    found = logged(tmp_path, json.dumps({**STEP, **idle}))
    assert (found.trainer_idle_fraction, found.generator_idle_fraction) == (0.4, 0.05)
    nemo = {
        "timing/train/total_step_time": 100.0,
        "timing/train/policy_training": 40.0,
        "timing/train/exposed_generation": 35.0,
    }
    assert logged(tmp_path, json.dumps(nemo)).trainer_idle_fraction == pytest.approx(0.35)


LINE = " - ".join(f"{key}:{value}" for key, value in STEP.items())
NEMO = """\
📊 Training Results:
  • Loss: 0.0010
  • Mean Generation Length: 201.2197

⏱️  Timing:
  • Total step time: {}s
  • policy_training: 25.05s (37.6%)
  • policy_and_reference_logprobs: 4.78s (7.2%)
  • {}

🔍 Performance Metrics:
  • Mean Total Tokens per Sample: 204.01
  • Throughputs (per GPU):
    - E2E (Samples/sec/gpu): 3.59
"""


def test_a_line_of_a_later_step_that_is_handed_on_alone_is_the_one_that_is_meant(tmp_path):
    found = logged(tmp_path, f"(TaskRunner pid=7) step:3 - {LINE}\n")
    assert (found.steps, found.step_seconds) == (1, 80.0)
    with pytest.raises(FileError, match="--warmup 0"):
        logged(tmp_path, f"step:1 - {LINE}\n")
    assert logged(tmp_path, f"step:1 - {LINE}\n", warmup=0).step_seconds == 80.0
    two = f"step:3 - {LINE}\nstep:4 - {LINE.replace('80.0', '90.0')}\n"
    assert logged(tmp_path, two).step_seconds == 90.0


def test_one_line_of_verls_file_logger_is_read_and_knows_its_number(tmp_path):
    found = logged(tmp_path, json.dumps({"step": 3, "data": STEP}) + "\n")
    assert (found.sheet.name, found.steps, found.step_seconds) == ("verl", 1, 80.0)
    with pytest.raises(FileError, match="--warmup 0"):
        logged(tmp_path, json.dumps({"step": 1, "data": STEP}) + "\n")


def test_nemo_rl_s_block_is_read_without_the_line_that_begins_it(tmp_path):
    generation = "generation: 4.95s (13.9%)\n  • prepare_for_generation/total: 2.20s (6.2%)"
    found = logged(tmp_path, NEMO.format("35.70", generation))
    assert (found.sheet.name, found.steps, found.step_seconds) == ("nemo-rl", 1, 35.7)
    assert found.stage_seconds == {
        "generation": 4.95,
        "old_log_prob": 4.78,
        "update_actor": 25.05,
        "weight_sync": 2.2,
    }
    assert found.response_tokens == 201.2197
    two = NEMO.format("90.00", generation) + NEMO.format("40.00", generation)
    assert (logged(tmp_path, two).steps, logged(tmp_path, two).step_seconds) == (1, 40.0)


def test_nemo_rl_s_sync_beside_generation_is_the_sync_of_weights(tmp_path):
    beside = "exposed_generation: 32.52s (48.9%)\n  • weight_sync: 0.13s (0.2%)"
    found = logged(tmp_path, NEMO.format("66.55", beside))
    assert found.stage_seconds == {"old_log_prob": 4.78, "update_actor": 25.05, "weight_sync": 0.13}
    assert found.trainer_idle_fraction == pytest.approx(32.52 / 66.55)


def test_what_holds_no_step_is_still_refused(tmp_path):
    for text in ("loss: 0.5\nacc: 0.8\n", "{}", "[]", "[1, 2]", '{"a": {"b": 1}}'):
        with pytest.raises(FileError, match="holds no steps"):
            logged(tmp_path, text)


def test_slime_s_line_of_a_later_step_is_the_one_that_is_meant(tmp_path):
    line = "train_metric_utils.py:44 - perf {}: {{'perf/actor_train_time': 30.0, 'perf/step_time': 80.0}}\n"
    assert logged(tmp_path, line.format(2)).step_seconds == 80.0
    with pytest.raises(FileError, match="--warmup 0"):
        logged(tmp_path, line.format(0))
