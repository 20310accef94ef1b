"""`rlplan mcp`: each tool called by the SDK's own client, in this process and over stdio; mistakes as values."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters

from rlplan.errors import FileError, SeveralMistakesError, UnknownNameError
from rlplan_cli import mcp
from rlplan_cli.interface import simulate
from rlplan_cli.mcp import make_server
from rlplan_cli.typed.tool import mistakes_of
from rlplan_cli.typed.tools import TOOLS
from tests.house.tree import ROOT
from tests.rlplan_cli.conftest import change
from tests.rlplan_cli.test_check_step_command import write_log


async def asked(server, *calls):
    async with Client(server) as client:
        return [await client.call_tool(name, arguments) for name, arguments in calls]


def ask(name, **arguments):
    """Return what a tool replies, by the SDK's client, which checks it by the tool's schema."""
    return asyncio.run(asked(make_server(), (name, arguments)))[0]


def answer(name, **arguments):
    found = ask(name, **arguments)
    assert not found.is_error, found.content[0].text
    assert found.structured_content["mistakes"] == []
    return found.structured_content["answer"], found.content[0].text


def mistake(name, **arguments):
    found = ask(name, **arguments)
    assert found.is_error
    assert found.structured_content["answer"] is None
    (one,) = found.structured_content["mistakes"]
    assert found.content[0].text == one["message"]
    return one


def test_every_file_is_a_tool_with_schemas_of_what_it_takes_and_answers():
    async def listed():
        async with Client(make_server()) as client:
            return (await client.list_tools()).tools, client.instructions

    tools, instructions = asyncio.run(listed())
    assert [tool.name for tool in tools] == list(TOOLS.names())
    assert set(TOOLS.names()) >= {"fit", "check", "search", "check-step", "export", "explain"}
    assert "exit" not in instructions
    for tool in tools:
        assert len(tool.description) < 200
        assert tool.input_schema["additionalProperties"] is False
        assert all("description" in each for each in tool.input_schema["properties"].values())
        assert set(tool.output_schema["properties"]) == {"answer", "mistakes"}
        assert tool.annotations.read_only_hint is (tool.name != "export")
    by_name = {tool.name: tool for tool in tools}
    assert by_name["fit"].input_schema["required"] == ["model", "gpus", "gpu"]
    modes = by_name["search"].input_schema["properties"]["mode"]["anyOf"][0]["enum"]
    assert modes == ["sync", "streaming", "one-step-off", "async"]


def test_clients_of_the_older_handshake_are_served_too(project):
    async def called():
        async with Client(make_server(), mode="legacy") as client:
            await client.list_tools()
            return await client.call_tool("check", {"file": "gone.yaml"})

    found = asyncio.run(called())
    assert found.is_error
    assert found.structured_content["mistakes"][0]["file"] == "gone.yaml"


def test_fit_says_whether_where_and_how_long():
    found, text = answer("fit", model="tiny", gpus=1, gpu="cpu")
    assert found["fits"] is True
    assert found["fewest_gpus"] == 1
    assert found["step"]["memory"][0]["peak_bytes"] <= found["step"]["memory"][0]["capacity_bytes"]
    assert text.startswith("fits: ")
    assert text.endswith(f", of {found['work']}")


def test_fit_takes_the_work_of_a_step():
    asked = {"prompts": 8, "samples_per_prompt": 2, "prompt_tokens": 16, "response_tokens": 32}
    found, _ = answer("fit", model="tiny", gpus=1, gpu="cpu", **asked, mean_response_tokens=16)
    expected = "8 prompts, 2 samples each; 16 prompt and 16 on average (at most 32) response tokens"
    assert found["work"].startswith(expected)


def test_check_says_of_a_plan_what_is_forecast_of_it(project):
    found, text = answer("check", file="plan.yaml")
    forecast = simulate("plan.yaml")
    assert found["will_run"] is True
    assert found["step"]["step_seconds"] == forecast.iteration_seconds
    assert tuple(found["step"]["interval_seconds"]) == forecast.iteration_seconds_interval
    assert text.startswith("plan.yaml: runs; memory: fits\n")


SCRIPT = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.n_gpus_per_node=2 trainer.nnodes=1 \\\n"
    "  actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B \\\n"
    "  actor_rollout_ref.rollout.tensor_model_parallel_size=3 actor_rollout_ref.rollout.name=vllm \\\n"
    "  data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8 data.max_prompt_length=64 \\\n"
    "  data.max_response_length=64 actor_rollout_ref.actor.use_dynamic_bsz=True\n"
)


def test_check_names_the_line_of_a_broken_rule(project):
    Path("run.sh").write_text(SCRIPT)
    found, text = answer("check", file="run.sh", gpu="h100", mean_response_tokens=32)
    rule = next(each for each in found["findings"] if each["rule"] == "replicas-divide-the-gpus")
    assert (rule["where"], rule["stops"], found["will_run"]) == ("run.sh:3", True, False)
    assert "run.sh: will not run" in text
    assert "[replicas-divide-the-gpus]" in text


def test_values_of_keys_stand_in_place_of_what_the_script_says(project):
    Path("run.sh").write_text(SCRIPT)
    known = {"file": "run.sh", "gpu": "h100", "mean_response_tokens": 32}
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    rules = []
    for values in ([], [f"{key}=2"]):
        found, _ = answer("check", **known, values=values)
        rules.append((found["will_run"], [each["rule"] for each in found["findings"]]))
    assert not rules[0][0]
    assert "replicas-divide-the-gpus" in rules[0][1]
    assert rules[1][0]
    assert "replicas-divide-the-gpus" not in rules[1][1]
    assert answer("explain", **known, values=[f"{key}=2"])[0]["step"]["tasks"]
    wrong = mistake("check", **known, values=[key])
    assert (wrong["argument"], wrong["value"], wrong["allowed"]) == ("values", key, "KEY=VALUE")
    of_plan = mistake("check", file="plan.yaml", values=[f"{key}=2"])
    assert of_plan["argument"] == "values"
    assert "is said of frameworks' configurations" in of_plan["problem"]


def test_a_searched_plan_is_explained_and_exported_without_a_file(project):
    before = sorted(Path().rglob("*"))
    found, text = answer("search", job="job.yaml", limits={"gpus": 1})
    assert text.startswith(f"best: {found['placement']}; a step takes ")
    assert found["gap"] >= 0
    why, told = answer("explain", plan=found["plan"])
    assert why["step"]["step_seconds"] == found["step"]["step_seconds"]
    parts = why["step"]["tasks"][0]
    assert sum(parts["parts"].values()) == pytest.approx(parts["seconds"])
    assert told.startswith(f"{found['placement']}: a step takes ")
    assert sorted(Path().rglob("*")) == before
    Path("again.json").write_text(json.dumps(found["plan"]))
    assert simulate("again.json").iteration_seconds == found["step"]["step_seconds"]


def test_a_search_without_time_says_what_it_did_not_look_at(project):
    whole, told = answer("search", job="job.yaml")
    assert whole["unseen"] == []
    assert "not looked at" not in told
    found, told = answer("search", job="job.yaml", seconds=0)
    assert found["unseen"]
    assert "not looked at in time: more seconds may find better plans" in told


def test_explain_says_why_a_step_is_slower_than_another(project):
    Path("other.yaml").write_text(Path("plan.yaml").read_text())
    change("other.yaml", "job", "workload", "response_tokens", to=4)
    why, told = answer("explain", file="plan.yaml", against="other.yaml")
    longer = why["step"]["step_seconds"] - why["against_seconds"]
    assert longer > 0
    assert sum(each["seconds"] for each in why["differences"]) == pytest.approx(longer)
    assert "slower than the other's step\n  generation: +" in told


def test_check_step_names_the_slow_stage(project):
    write_log(9.0)
    found, text = answer("check-step", log="train.log", plan="plan.yaml")
    slow = [each["name"] for each in found["stages"] if each["verdict"] == "slow"]
    assert (found["verdict"], slow) == ("slow", ["generation"])
    assert "slow: generation takes 9.00 times its forecast" in text


def test_export_writes_only_where_it_is_told(project, rlplan):
    Path("run.sh").write_text(SCRIPT.replace("size=3", "size=1"))
    given = ("--gpu", "h100", "--mean-response", "32", "--plan", "own.yaml")
    assert rlplan("import", "verl", "run.sh", *given).code == 0
    before = sorted(Path().rglob("*"))
    found, text = answer("export", file="own.yaml", to="verl")
    assert found["text"].rstrip("\n") in text
    assert (found["written"], sorted(Path().rglob("*"))) == (None, before)
    found, text = answer("export", file="own.yaml", to="verl", out="new.sh")
    assert Path("new.sh").read_text() == found["text"]
    assert text.startswith("written: new.sh")


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("fit", {"model": "tiny", "gpu": "cpu"}, {"argument": "gpus", "problem": "is missing"}),
        (
            "fit",
            {"model": "tiny", "gpu": "cpu", "gpus": "many"},
            {"argument": "gpus", "value": "many"},
        ),
        ("fit", {"model": "tiny", "gpu": "cpu", "gpus": 0}, {"argument": "gpus", "value": 0}),
        ("check", {"fil": "plan.yaml"}, {"argument": "fil", "hint": "did you mean 'file'?"}),
        ("check", {}, {"argument": "file", "problem": "is missing"}),
        (
            "search",
            {"job": "jobb.yaml"},
            {
                "argument": "job",
                "file": "jobb.yaml",
                "problem": "no such file",
                "hint": "did you mean 'job.yaml'?",
            },
        ),
        ("check", {"file": "run.sh", "framework": "verl"}, {"argument": "gpu", "file": None}),
        ("check", {"file": "plan.yaml", "gpu": "h100"}, {"argument": "gpu", "value": "h100"}),
        (
            "check",
            {"plan": {"job": "job.yaml"}, "mean_response_tokens": 9},
            {"argument": "mean_response_tokens", "allowed": "without it"},
        ),
        (
            "check",
            {"file": "run.sh", "gpu": "h100", "host_memory_bytes": -5},
            {"argument": "host_memory_bytes", "value": -5, "allowed": "1 or more"},
        ),
        (
            "search",
            {"job": "job.yaml", "limits": {"gpu": 3}},
            {"argument": "limits", "field": "gpu", "hint": "did you mean 'gpus'?"},
        ),
        ("search", {"job": "broken.yaml"}, {"file": "broken.yaml", "field": "algorithm"}),
        ("search", {"job": "job.yaml", "mode": "fast"}, {"argument": "mode", "value": "fast"}),
        (
            "search",
            {"job": "job.yaml", "objective": "speed"},
            {
                "argument": "objective",
                "value": "speed",
                "allowed": "cost, energy, throughput, time-to-score",
            },
        ),
        (
            "search",
            {"job": "job.yaml", "limits": {"gpus": -3}},
            {"argument": "limits", "field": "gpus", "value": -3.0, "allowed": "at least 1"},
        ),
        (
            "fit",
            {"model": "tinny", "gpu": "cpu", "gpus": 2},
            {"argument": "model", "value": "tinny"},
        ),
        ("fit", {"model": "tiny", "gpu": "cqu", "gpus": 2}, {"argument": "gpu", "value": "cqu"}),
        ("export", {"to": "verl"}, {"argument": "file", "allowed": "one of file and plan"}),
        ("export", {"to": "vrel", "file": "plan.yaml"}, {"hint": "did you mean 'verl'?"}),
        (
            "export",
            {"to": "verl", "file": "plan.yaml", "out": "plan.yaml"},
            {"argument": "out", "problem": "would replace what the command reads"},
        ),
        ("explain", {"plan": {"jobs": 1}}, {"argument": "plan", "field": "jobs"}),
        ("check-step", {"log": "gone.log", "plan": "plan.yaml"}, {"file": "gone.log"}),
        ("plan", {}, {"kind": "UnknownNameError", "value": "plan"}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_input_gets_a_typed_mistake(project, name, arguments, expected):
    broken = Path("job.yaml").read_text().replace("algorithm: ppo", "algorithm: pppo")
    Path("broken.yaml").write_text(broken)
    Path("run.sh").write_text(SCRIPT)
    found = mistake(name, **arguments)
    assert {key: found[key] for key in expected} == expected


def test_a_call_that_its_caller_left_is_not_worked_on_beside_the_next_one(monkeypatch):
    """A thread goes on when nobody waits for it any more; tables that searches share are of one at a time."""
    working, most = [], []

    def slow(name, _arguments):
        working.append(name)
        most.append(len(working))
        time.sleep(0.5)
        working.remove(name)
        return answered(name)

    def answered(name):
        content = {"answer": None, "mistakes": []}
        text: list[Any] = [types.TextContent(type="text", text=name)]
        return types.CallToolResult(content=text, structured_content=content)

    async def left():
        async with Client(make_server()) as client:
            await client.list_tools()
            with anyio.move_on_after(0.1):
                await client.call_tool("fit", {})
            return await client.call_tool("check", {})

    monkeypatch.setattr(mcp, "answer", slow)
    assert asyncio.run(left()).content[0].text == "check"
    assert most == [1, 1]


def test_several_mistakes_are_said_one_by_one():
    error = SeveralMistakesError(
        (
            FileError("job.yaml", "is odd", field="a.b", value=[1], allowed="2", nearest="c"),
            FileError("--mean-response", "is missing"),
            UnknownNameError("model", "tinny", ["tiny", "large"]),
        )
    )
    first, second, third = mistakes_of(error)
    assert (first.file, first.field, first.value, first.allowed) == ("job.yaml", "a.b", "[1]", "2")
    assert (second.argument, second.file) == ("mean_response_tokens", None)
    assert (third.allowed, third.hint) == ("large, tiny", "did you mean 'tiny'?")


@pytest.mark.full
def test_the_command_serves_over_stdio_and_says_on_stderr_what_it_does(project):
    server = StdioServerParameters(
        command=sys.executable,
        args=["-c", "from rlplan_cli.main import main; main()", "mcp"],
        env={"PYTHONPATH": str(ROOT)},
    )
    calls = (("check", {"file": "plan.yaml"}), ("check", {"file": "gone.yaml"}))
    sound, wrong = asyncio.run(asked(server, *calls))
    assert sound.structured_content["answer"]["will_run"] is True
    assert wrong.is_error


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_the_client_is_still_there(number):
    command = [sys.executable, "-c", "from rlplan_cli.main import main; main()", "mcp"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT
    ) as server:
        assert server.stderr.readline().startswith("serving tools")
        time.sleep(1.0)  # until it waits for what a client says
        server.send_signal(number)
        assert server.wait(20) == 128 + number
        assert server.stderr.read() == "rlplan: interrupted\n"
        assert server.stdout.read() == ""
