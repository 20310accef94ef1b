"""Every command of README and docs: its options are known; under `--full` it runs, in the order of its page.

A command whose comment says what it needs (`# needs Ray`) is not run. What a page takes for granted (a job, a log)
is put there when a command first reads it.
"""

import importlib
import importlib.util
import json
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.core

from rlplan.planner.answers.completion import load_plan
from rlplan.simulator.simulate import simulate
from rlplan_cli import application
from rlplan_cli.commands import COMMANDS
from rlplan_cli.main import run
from tests.house.tree import ROOT
from tests.planner.configs.test_importing import VERL
from tests.planner.measured.test_trajectories import CHAT

PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md")))
COMMAND = re.compile(r"^(?: {4,}|\$ )rlplan (?P<words>[a-z].*)$", re.MULTILINE)
NEEDS = re.compile(r"\bneeds (?P<reason>.+)$")
WRITES = {"--out", "--trace", "--plot", "--plots", "--out-plan", "--report", "--result"}
TIMERS = {
    "actor.generate": "timing_s/gen",
    "reference.compute_log_prob": "timing_s/ref",
    "critic.compute_values": "timing_s/values",
    "critic.update": "timing_s/update_critic",
    "actor.update": "timing_s/update_actor",
}


@dataclass(frozen=True)
class Documented:
    """Hold a command as a page has it."""

    page: str
    words: tuple[str, ...]
    needs: str | None

    def __str__(self):
        return f"{self.page}: rlplan {shlex.join(self.words)}"


def documented(page):
    """Yield the commands of a page, in order."""
    for found in COMMAND.finditer((ROOT / page).read_text(encoding="utf-8")):
        words, _, comment = found["words"].partition(" #")
        needs = NEEDS.search(comment)
        shell = shlex.split(words)
        if ">" in shell:
            shell = shell[: shell.index(">")]
        yield Documented(page, tuple(shell), needs["reason"] if needs else None)


ALL = [each for page in PAGES for each in documented(page)]


@pytest.fixture(scope="module")
def commands():
    application._register("")
    group = typer.main.get_command(application.app)
    return group, group.make_context("rlplan", ["doctor"])


def parse(group, context, words):
    """Read a command line's options as the command does, without running it."""
    name, command, rest = group.resolve_command(context, list(words))
    own = command.make_context(name, rest, parent=context)
    left = [*own._protected_args, *own.args]
    if isinstance(command, typer.core.TyperGroup) and left:
        parse(command, own, left)


def test_pages_have_commands_and_few_cannot_be_run():
    assert len(ALL) > 40
    assert sum(each.needs is not None for each in ALL) < len(ALL) / 6


@pytest.mark.parametrize("command", ALL, ids=str)
def test_a_documented_command_is_understood(commands, command):
    parse(commands[0], commands[1], command.words)


@pytest.mark.parametrize("name", COMMANDS.names())
def test_the_example_of_every_commands_help_is_understood(commands, name):
    example = getattr(COMMANDS.load(name), "EXAMPLE", "")
    found = re.findall(r"rlplan ([a-z].*?)(?=; | > | # |$)", example, re.MULTILINE)
    assert found
    for words in found:
        parse(commands[0], commands[1], shlex.split(words))


@pytest.mark.full
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_in_its_order(page, finished, tmp_path, monkeypatch, rlplan):
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(finished / "prompts.jsonl", "prompts.jsonl")
    for command in documented(page):
        if command.needs is None:
            bring_what_is_read(command, finished)
            answer = rlplan(*command.words)
            assert answer.code == 0, f"{command}\n{answer.out[-500:]}{answer.err[-1500:]}"


def bring_what_is_read(command, finished):
    """Put the files there that a command reads and that no command before it has written."""
    name, *words = command.words
    writes = WRITES | ({"--plan"} if name == "import" else set())
    pairs = zip([name, *words[:-1]], words, strict=True)
    reads = [word for option, word in pairs if option not in writes and name != "init"]
    for word in reads:
        if Path(word).exists() or not (seed := SEEDS.get(word)):
            continue
        Path(word).parent.mkdir(parents=True, exist_ok=True)
        seed(Path(word), finished)


def bring_file(name):
    def seed(path, finished):
        source = finished / name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, path)

    return seed


def bring_plan(path, finished):
    if not Path("job.yaml").exists():
        bring_file("job.yaml")(Path("job.yaml"), finished)
    bring_file("plan.yaml")(path, finished)


def bring_script(path, _finished):
    path.write_text(f'python3 {shlex.join(VERL)} "$@"\n')


def bring_log(path, finished):
    """Write a log of verl whose stages took what is forecast of `plan.yaml`."""
    if not Path("plan.yaml").exists():
        bring_plan(Path("plan.yaml"), finished)
    plan, facts = load_plan(Path("plan.yaml"))
    forecast = simulate(plan, facts)
    figures = {TIMERS[cost.name]: cost.seconds for cost in forecast.costs if cost.name in TIMERS}
    figures["timing_s/step"] = forecast.iteration_seconds
    figures |= {"response_length/mean": 8.0, "prompt_length/mean": 8.0}
    line = " - ".join(f"{key}:{value:.9f}" for key, value in figures.items())
    path.write_text("".join(f"step:{step} - {line}\n" for step in range(1, 5)))


def bring_site(path, finished):
    bring_log(Path("train.log"), finished)
    assert run(["calibrate", "train.log", "--plan", "plan.yaml", "--out", str(path)]) == 0


def bring_text(text):
    return lambda path, _: path.write_text(text)


# Of a small run of TRL beside a server of vLLM, and of what launches it.
RECIPE = """model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
dataset_name: open-r1/OpenR1-Math-220k
bf16: true
use_vllm: true
gradient_accumulation_steps: 4
gradient_checkpointing: true
max_prompt_length: 512
max_completion_length: 1024
num_generations: 16
per_device_train_batch_size: 16
output_dir: data/run
"""
ACCELERATE = """distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 2}
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""


def bring_trajectories(path, _finished):
    path.mkdir(exist_ok=True)
    (path / "step_1.jsonl").write_text(json.dumps({"messages": CHAT, "task": "swe"}) + "\n")


SEEDS = {
    "examples/grpo-qwen3-8b-verl.sh": lambda path, _: shutil.copyfile(
        ROOT / "examples" / path.name, path
    ),
    "rollouts/": bring_trajectories,
    "recipe.yaml": bring_text(RECIPE),
    "zero2.yaml": bring_text(ACCELERATE),
    "job.yaml": bring_file("job.yaml"),
    "plan.yaml": bring_plan,
    "best.yaml": bring_plan,
    "rented/plan-1.yaml": bring_plan,
    "prices.yaml": bring_text(
        "{provider: ours, instances: [{name: node, gpu: cpu, gpus: 2, usd_per_hour: 1}]}\n"
    ),
    "run.sh": bring_script,
    "train.log": bring_log,
    "curve.csv": bring_text("step,response_tokens\n1,4\n400,8\n"),
    "site.yaml": bring_site,
    "runs/first": bring_file("run"),
    "profiles/mine": bring_file("profile"),
    "steps.csv": lambda path, _: shutil.copyfile(ROOT / "evals/held/rl_steps.csv", path),
    "evals/held/trainer_memory.csv": lambda path, _: shutil.copyfile(ROOT / path, path),
}


def test_the_tables_of_the_site_are_made_of_every_sheet(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))
    tables = importlib.import_module("tables")
    page = (ROOT / "docs" / "supported.md").read_text(encoding="utf-8")
    made = tables.filled(page + (ROOT / "docs" / "expected-error.md").read_text(encoding="utf-8"))
    assert "<!-- table" not in made
    assert all(f"<!-- table: {name} -->" not in made for name in tables.TABLES)
    folders = {
        "devices": "profiles/devices",
        "models": "profiles/models",
        "algorithms": "rlplan/algorithms",
    }
    for folder in folders.values():
        for sheet in (ROOT / folder).glob("[a-z]*.*"):
            assert f"`{sheet.stem.replace('_', '-')}`" in made, sheet


def test_every_page_of_the_docs_has_a_place_in_the_sites_contents():
    contents = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page for page in PAGES[1:] if f": {Path(page).name}\n" not in contents] == []


@pytest.mark.full
@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="`make docs` installs mkdocs"
)
def test_the_site_is_built_without_a_warning(tmp_path):
    config = importlib.import_module("mkdocs.config")
    build = importlib.import_module("mkdocs.commands.build").build
    build(config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    assert (tmp_path / "supported.html").is_file()
