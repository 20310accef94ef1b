"""Trajectories of runs as environments: turns, tokens, seconds, of every form that is read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.planner.measured.fitted_environments import (
    MOST_VALUES,
    FitOptions,
    fit_environments,
    lengths_of,
    seconds_of,
)
from rlplan.planner.measured.trajectories import read_trajectories
from rlplan.workload import Empirical, EmpiricalSeconds, longest, mean_length

CALL: dict[str, Any] = {
    "id": "1",
    "type": "function",
    "function": {"name": "run", "arguments": '{"a": 1}'},
}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "x" * 40},
    {"role": "user", "content": [{"type": "text", "text": "x" * 40}], "timestamp": 100.0},
    {"role": "assistant", "content": "x" * 29, "tool_calls": [CALL], "timestamp": 105.0},
    {"role": "tool", "content": "x" * 60, "timestamp": 106.0},
    {"role": "tool", "content": "x" * 20, "timestamp": 107.5},
    {"role": "assistant", "content": None, "reasoning_content": "x" * 8, "timestamp": 110.0},
]


def written(tmp_path, *rows, name="a.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [path]


def test_messages_are_turns_steps_and_their_seconds(tmp_path):
    (found,) = read_trajectories(written(tmp_path, {"messages": CHAT, "task": "swe"}))
    assert found.turns == 2
    assert found.prompt_tokens == 20
    assert found.response_tokens == 10 + 2, "29 characters, run and 8 of arguments; 8 of reasoning"
    assert found.observation_tokens == (20,)
    assert found.step_seconds == (2.5,), "from the answer to the last tool's message"
    assert not found.ends_in_step
    assert found.group("task") == "swe"


def test_counts_of_the_file_come_before_characters(tmp_path):
    chat = [
        {"role": "user", "content": "x", "num_tokens": 7},
        {"role": "assistant", "content": "x", "usage": {"completion_tokens": 30}},
        {"role": "tool", "content": "x", "token_ids": [1, 2, 3], "duration_ms": 250},
    ]
    (found,) = read_trajectories(written(tmp_path, chat))
    assert (found.prompt_tokens, found.response_tokens) == (7, 30)
    assert found.counted
    assert found.ends_in_step
    assert found.final_seconds == 0.25
    assert found.observation_tokens == ()


def test_results_of_verifiers_have_their_own_times(tmp_path):
    row = {
        "prompt": CHAT[:2],
        "completion": [{"role": each["role"], "content": each["content"]} for each in CHAT[2:]],
        "timing": {
            "setup": {"start": 10.0, "end": 14.0, "duration": 4.0},
            "scoring": {"start": 30.0, "end": 31.0},
            "env": {"spans": [{"start": 20.0, "end": 20.5}]},
        },
    }
    (found,) = read_trajectories(written(tmp_path, row))
    assert found.step_seconds == (0.5,)
    assert found.reset_seconds == 4.0
    assert found.final_seconds == 1.0
    older = {**row, "timing": {"generation_ms": 9000, "scoring_ms": 1500}}
    (found,) = read_trajectories(written(tmp_path, older))
    assert found.final_seconds == 1.5
    assert found.step_seconds == ()


def test_verls_dumps_tell_tools_by_their_tags(tmp_path):
    output = (
        "aaaa<tool_call>b</tool_call>\nuser\n<tool_response>\nccc\n</tool_response>\n"
        "<tool_response>d</tool_response>\nassistant\neeee"
    )
    row = {"input": "x" * 400, "output": output, "gts": "1", "score": 1.0, "step": 3}
    (found,) = read_trajectories(written(tmp_path, row, name="3.jsonl"))
    assert found.turns == 2
    assert found.prompt_tokens == 100
    assert len(found.observation_tokens) == 1, "two answers to one turn"
    (search,) = read_trajectories(
        written(tmp_path, {**row, "output": "a<information>b</information>"})
    )
    assert (search.turns, search.ends_in_step) == (1, True)
    (alone,) = read_trajectories(written(tmp_path, {**row, "output": "no tool"}))
    assert (alone.turns, alone.observation_tokens) == (1, ())


def test_a_folder_is_all_of_its_files(tmp_path):
    written(tmp_path, {"messages": CHAT}, {"messages": CHAT})
    (tmp_path / "step_2").mkdir()
    written(tmp_path / "step_2", {"messages": CHAT})
    assert len(read_trajectories([tmp_path])) == 3


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"nodes": []}, "is no trajectory in a form that is read"),
        (3, "is no JSON object or list of messages"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no trajectory with a turn"),
    ],
)
def test_what_is_no_trajectory_is_refused(tmp_path, row, said):
    with pytest.raises(FileError, match=said):
        read_trajectories(written(tmp_path, row))


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("[]\n{")
    with pytest.raises(FileError, match="line 2: is not JSON"):
        read_trajectories([path])


def test_environments_are_as_the_episodes_were(tmp_path):
    rows = [{"messages": CHAT, "task": "swe"}] * 3 + [{"messages": CHAT[:3], "task": "qa"}]
    episodes = read_trajectories(written(tmp_path, *rows))
    found = fit_environments(episodes, FitOptions(by="task", cpu_cores=2.0), "a.jsonl")
    swe, other = found.environments
    assert (swe.name, swe.share, other.share) == ("swe", 0.75, 0.25)
    assert (swe.turns, swe.observation_tokens, swe.step_seconds) == (2, 20, 2.5)
    assert swe.final_step_seconds == 0.0, "the last answer calls no tool"
    assert swe.cpu_cores == 2.0
    assert (other.turns, other.observation_tokens) == (1, None)
    assert found.longest_tokens == 20 + 12 + 20
    whole = fit_environments(episodes, FitOptions(name="all of them"), "a.jsonl")
    assert whole.environments[0].turns == Empirical(values=(1, 2, 2, 2))
    assert any("--by task" in note for note in whole.notes)


def test_seconds_that_nothing_says_are_asked_for(tmp_path):
    bare = [{key: each[key] for key in ("role", "content")} for each in CHAT]
    episodes = read_trajectories(written(tmp_path, {"messages": bare}))
    with pytest.raises(FileError, match="--tool-seconds"):
        fit_environments(episodes, FitOptions(), "a.jsonl")
    found = fit_environments(episodes, FitOptions(tool_seconds=1.5), "a.jsonl")
    assert found.environments[0].step_seconds == 1.5
    with pytest.raises(FileError, match="is missing in 1 of 1"):
        fit_environments(episodes, FitOptions(by="task", tool_seconds=1.0), "a.jsonl")


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=3 * MOST_VALUES))
def test_lengths_keep_their_mean_and_seconds_too(values):
    mean = sum(values) / len(values)
    fitted, times = lengths_of(values), seconds_of([value / 8 for value in values])
    assert mean_length(fitted) == pytest.approx(mean, abs=0.5 + 1e-6), "whole tokens"
    drawn: Any = times.values if isinstance(times, EmpiricalSeconds) else (times,)
    assert sum(drawn) / len(drawn) == pytest.approx(mean / 8, abs=1e-6)
    assert longest(fitted) <= max(values)
