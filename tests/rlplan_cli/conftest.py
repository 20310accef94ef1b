"""A small finished project to work on: a job, its plan, a profile, a run and a search."""

import json
import random
import shutil
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_json, write_yaml
from rlplan.planner.answers.completion import load_plan
from rlplan.profiles import frameworks
from rlplan.profiles.tables.table import new_profile
from rlplan.results.measurement import MeasuredRun
from rlplan.simulator.simulate import simulate
from rlplan_cli.main import run as run_cli

JOB: dict[str, Any] = {
    "name": "small",
    "algorithm": "ppo",
    "models": dict.fromkeys(("actor", "critic", "reference", "reward"), "tiny"),
    "workload": {"prompts": 16, "prompt_tokens": 8, "response_tokens": 8, "updates": 2},
    "cluster": [{"gpu": "cpu", "gpus_per_node": 2}],
    "rewards": {"function": "digits", "function_seconds_per_sample": 0.0001},
    "prompts_file": "prompts.jsonl",
    "weights": "random",
}
DRAFT = {
    "job": "job.yaml",
    "pools": [
        {"name": "p0", "device": "cpu", "gpus": 2, "roles": list(JOB["models"])},
    ],
}


@dataclass(frozen=True)
class Answer:
    """Hold what a command line answered with."""

    code: int
    out: str
    err: str

    @property
    def lines(self):
        return self.err.splitlines()

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Return a folder with job.yaml, draft.yaml, plan.yaml, profile/, run/ and search.json."""
    home = tmp_path_factory.mktemp("project")
    rows = [json.dumps({"prompt": f"say {number}"}) for number in range(32)]
    (home / "prompts.jsonl").write_text("\n".join(rows) + "\n")
    write_yaml(home / "job.yaml", JOB)
    write_yaml(home / "draft.yaml", DRAFT)
    plan, facts = load_plan(home / "draft.yaml")
    write_yaml(home / "plan.yaml", plan)
    write_profile(home / "profile", "cpu")
    write_run(home / "run", plan, simulate(plan, facts, iterations=5))
    assert run_cli(["search", str(home / "job.yaml"), "--result", str(home / "search.json")]) == 0
    return home


def write_profile(folder, device):
    profile = new_profile("small", device, {"fingerprint": "abc"}, {"torch": "2"})
    for size in (64, 128):
        keys = {"precision": "fp32", "m": size, "k": 64, "n": 64}
        profile.add("gemm", keys, [1e-5, 2e-5, 3e-5])
    profile.finish()
    profile.write(folder)


def write_run(folder, plan, forecast):
    """Write a run that took what was forecast: its spans begin behind the calls."""
    trace = replace(forecast.work_trace, origin="measured")
    done = MeasuredRun(
        plan=plan,
        trace=trace,
        warmup_iterations=1,
        memory_peak_bytes=FrozenDict({"p0": 300 * 1024**2}),
        machine=FrozenDict({"fingerprint": "abc"}),
    )
    write_yaml(folder / "plan.yaml", plan)
    write_json(folder / "measured.json", done)
    write_json(folder / "forecast.json", forecast)
    dice = random.Random(0)
    rows = [
        {"iteration": number, "rule_reward": dice.random(), "actor_loss": 1 / (number + 1)}
        for number in range(len(forecast.iterations))
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def project(finished, tmp_path, monkeypatch):
    """Return a copy of the project that a test may change; it is the working folder."""
    folder = tmp_path / "project"
    shutil.copytree(finished, folder)
    change(folder / "plan.yaml", "job", "prompts_file", to="prompts.jsonl")
    monkeypatch.chdir(folder)
    return folder


@cache
def _built(make, app, _commands, _groups):
    return make(app)


BARE = """
name: bare-rl
title: Bare-RL
engines: {train: megatron-core, generate: vllm}
sources: {engines: invented}
"""


@pytest.fixture
def bare_rl(tmp_path, monkeypatch):
    """Let there be a framework, `bare-rl`, of which nothing but its steps is known."""
    steps = tmp_path / "frameworks" / "bare-rl" / "steps"
    steps.mkdir(parents=True)
    (steps / "bare-rl.yaml").write_text(BARE)
    folders = [*frameworks.__path__, str(steps.parents[1])]
    monkeypatch.setattr(frameworks, "__path__", folders)


@pytest.fixture
def rlplan(capsys, monkeypatch):
    """Return a function that runs a command line in this process.

    Typer builds all commands anew at every call; here those of the last call serve again.
    """
    make = typer.main.get_command
    # What a library that another test loaded in this process took for a terminal's width.
    monkeypatch.delenv("COLUMNS", raising=False)

    def built(app):
        return _built(make, app, len(app.registered_commands), len(app.registered_groups))

    monkeypatch.setattr(typer.main, "get_command", built)

    def call(*arguments):
        capsys.readouterr()
        code = run_cli([str(each) for each in arguments])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


def change(path, *keys, to):
    """Set a value deep inside a YAML or JSON file; `to=None` at the end removes nothing."""
    path = Path(path)
    read, write = (json.loads, json.dumps) if path.suffix == ".json" else (load, dump)
    data = read(path.read_text())
    at = data
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = to
    path.write_text(write(data))


def remove(path, *keys):
    """Remove a key deep inside a YAML file."""
    data = load(Path(path).read_text())
    at = data
    for key in keys[:-1]:
        at = at[key]
    del at[keys[-1]]
    Path(path).write_text(dump(data))


def load(text):
    """Return what a text of YAML holds, by the fast reader."""
    return yaml.load(text, Loader=yaml.CSafeLoader)


def dump(data):
    return yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False)
