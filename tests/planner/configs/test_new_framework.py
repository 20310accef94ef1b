"""A framework is two folders: a small invented one, put where the registry looks, is imported, checked and exported."""

import json
import subprocess
import sys

import pytest

from rlplan.errors import MissingPartError, UnknownNameError
from rlplan.planner import frameworks as code
from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.frameworks import (
    check_parts,
    framework_of_steps,
    frameworks_with,
    load_part,
    names_in_words,
)
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.profiles import frameworks as data
from rlplan.profiles.sheets import canonical_name, load_framework, load_log_sheet, load_transition
from rlplan.transfers import TRANSFERS, transitions_on_a_pool
from tests.house.tree import ROOT

STEPS = """
name: pocket-fsdp
title: Pocket-RL
aliases: [pocket]
engines: {train: fsdp2-hf, generate: vllm-0.11}
weight_sync: {shared_pool: pocket-ipc, between_pools: two-copies}
driver: {seconds_per_sequence: 1.0e-03}
sources: {driver: invented, engines: invented, weight_sync: invented}
"""
SYNC = """
name: pocket-ipc
method:
  words: handed over in one bucket
  pools: one
  sender: one rank
  transport: process
  fixed_seconds: 0.25
sources: {fixed_seconds: invented}
"""
BARE = """
name: bare-rl
title: Bare-RL
sources: {}
"""
LOG = """
name: pocket-rl
step: pocket/step
stages: {pocket/generate: generation, pocket/train: training}
holds: {training: [update_actor]}
response_tokens: pocket/response
prompt_tokens: pocket/prompt
sources: {stages: invented}
"""
KEYS = """
name: pocket-rl
title: Pocket-RL
version: "1.0"
versions: ["1.0"]
arguments: flags
starts: [pocket.train]
roles: {actor: actor}
settings:
  gpus: {keys: [gpus], default: 8}
  prompts: {keys: [prompts], default: 64}
  samples: {keys: [samples], default: 8}
  max_prompt: {keys: [max_prompt], default: 512}
  max_response: {keys: [max_response], default: 1024}
  model: {keys: [model]}
  rollout_tp: {keys: [rollout_tp], default: 1}
  memory_fraction: {keys: [memory], default: 0.6}
  estimator: {keys: [estimator], default: grpo, values: {grpo: grpo}}
losses:
  learning_rate: {keys: [lr], default: 1.0e-06}
trainers:
  fsdp:
    framework: pocket-fsdp
    exports: ["fsdp2*"]
    sizes:
      tp: {keys: [train_tp], default: 1}
      micro_batch: {keys: [micro_batch], default: 2}
without_influence:
  its readers are logs, which take no time that a step waits for: [log_every]
sources: {keys: invented}
"""
READING = '''
"""Pocket-RL: one pool, one trained model."""

from rlplan.planner.configs.losses import given_losses, kl_place
from rlplan.planner.configs.run import TRAIN_POOL, Run, RunPool, Work
from rlplan.planner.configs.sizes import divided, models_of, role_sizes
from rlplan.job import Hyperparameters
from rlplan.plan import TaskPlan


def run_of(settings):
    gpus, tp = settings.whole("gpus"), settings.whole("rollout_tp")
    models, keys = models_of(settings, {"actor": "model"})
    return Run(
        framework=settings.sheet.trainers["fsdp"].framework,
        trainer="fsdp",
        algorithm=settings.word("estimator"),
        models=models,
        model_keys=keys,
        work=Work(
            prompts=settings.whole("prompts"),
            samples=settings.whole("samples"),
            max_prompt=settings.whole("max_prompt"),
            max_response=settings.whole("max_response"),
        ),
        groups=((gpus, 1),),
        pools=(RunPool(name=TRAIN_POOL, gpus=gpus, roles=("actor",)),),
        generate=TaskPlan(
            pool=TRAIN_POOL,
            engine="vllm-0.11",
            tp=tp,
            dp=divided(settings, settings.key_of("rollout_tp"), gpus, tp),
            memory_fraction=settings.number("memory_fraction"),
        ),
        trainers={"actor": role_sizes(settings.of("fsdp", "actor"), gpus, TRAIN_POOL)},
        loss=Hyperparameters(**given_losses(settings, "grpo"), **kl_place("none", 0.0)),
    )
'''
WRITING = '''
"""Pocket-RL: a launch script with one flag a line."""

from rlplan.planner.configs.writing.export import UPDATE
from rlplan.planner.configs.writing.export import launch_script


def write(export):
    export.check_roles(("actor",))
    work = export.plan.job.workload
    nodes, gpus = export.nodes(export.pool("actor"))
    export.values["model"] = export.model("actor")
    export.put("gpus", nodes * gpus)
    export.put("prompts", work.prompts)
    export.put("samples", work.samples_per_prompt)
    export.put("max_prompt", export.longest_prompt)
    export.put("max_response", export.longest_response)
    export.put("rollout_tp", export.generate.tp)
    export.put("memory_fraction", export.generate.memory_fraction)
    export.put_cut("actor")
    export.put_size("actor", "micro_batch", export.plan.tasks[UPDATE].micro_batch)
    export.put_losses()
    return "python3 -m pocket.train"


def text_of(export, start):
    return launch_script(export, start, lambda key, value: f"--{key} {value}")
'''
RULES = '''
"""What Pocket-RL finds only when it starts."""

from rlplan.planner.configs.broken import Rule, unless


def memory_is_left(settings):
    """Leave training a tenth."""
    share = settings.number("memory_fraction")
    return unless(share <= 0.9, "memory_fraction", "leaves training nothing", "at most 0.9")


RULES = (Rule(memory_is_left, "pocket/train.py:1"),)
'''
SCRIPT = """
python3 -m pocket.train --model Qwen/Qwen2.5-7B-Instruct --gpus 8 --rollout_tp 2 --micro_batch 1 --log_every 1 "$@"
"""
CALLED = """
import sys
import rlplan.planner.frameworks, rlplan.profiles.frameworks
rlplan.profiles.frameworks.__path__.append(sys.argv[1])
rlplan.planner.frameworks.__path__.append(sys.argv[2])
from rlplan_cli.main import run
sys.exit(run(sys.argv[3:]))
"""
FACTS = ("--gpu", "h100-80gb-sxm", "--mean-response", "300")


def written(folder, files):
    """Write texts into files of a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip(), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    """Return folders with the data and the code of an invented framework, but for rules, and of one with steps only."""
    data = written(tmp_path_factory.mktemp("data"), {
        "pocket-rl/steps/pocket-fsdp.yaml": STEPS,
        "pocket-rl/sync/pocket-ipc.yaml": SYNC,
        "pocket-rl/log.yaml": LOG,
        "pocket-rl/keys.yaml": KEYS,
        "bare-rl/steps/bare-rl.yaml": BARE,
    })  # fmt: skip
    code = written(tmp_path_factory.mktemp("code"), {
        "pocket_rl/__init__.py": "", "pocket_rl/reading.py": READING, "pocket_rl/writing.py": WRITING,
    })  # fmt: skip
    return data, code


@pytest.fixture
def found(homes, monkeypatch):
    """Let the registry look into these folders too."""
    for package, home in zip((data, code), homes, strict=True):
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(home)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a user's folder with a script of the framework."""
    return written(tmp_path_factory.mktemp("user"), {"run.sh": SCRIPT})


@pytest.fixture(scope="module")
def rlplan(homes, folder):
    """Return a function that runs a command line there, where the framework is looked for in its folders too."""

    def call(*words, code=0):
        arguments = [sys.executable, "-c", CALLED, *map(str, homes), *words]
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)}
        answer = subprocess.run(
            arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert answer.returncode == code, answer.stdout + answer.stderr
        return answer

    return call


@pytest.fixture(scope="module")
def imported(rlplan, folder):
    """Return the folder with the job and plan of the framework's script."""
    rlplan("import", "pocket-rl", "run.sh", *FACTS, "--out", "job.yaml", "--plan", "plan.yaml")
    return folder


@pytest.mark.full
def test_a_framework_is_imported_checked_and_exported_by_two_folders(rlplan, imported):
    checked = json.loads(rlplan("check", "run.sh", *FACTS, "--json").stdout)
    assert (checked["will_run"], checked["findings"]) == (True, [])
    assert checked["remarks"] == ["no rules of pocket-rl are known: settings are not checked"]
    assert checked["configuration"]["plan"]["tasks"]["actor.generate"]["tp"] == 2
    assert "--micro_batch" in " ".join(each["words"] for each in checked["better"])

    exported = rlplan("export", "plan.yaml", "--to", "pocket-rl", "--out", "again.sh")
    assert "note: no rules of pocket-rl are known: settings are not checked" in exported.stderr
    assert "--rollout_tp 2" in (imported / "again.sh").read_text()
    again = json.loads(rlplan("import", "pocket-rl", "again.sh", *FACTS, "--json").stdout)
    assert again["plan"] == checked["configuration"]["plan"]
    assert again["keys"]["not_understood"] == {}


@pytest.mark.full
def test_its_log_is_read_and_help_names_it(rlplan, imported):
    step = {"pocket/step": 30.0, "pocket/generate": 10.0, "pocket/train": 18.0,
            "pocket/response": 300.0, "pocket/prompt": 200.0}  # fmt: skip
    (imported / "log.jsonl").write_text("".join(f"{json.dumps(step)}\n" for _ in range(4)))
    told = rlplan("check-step", "log.jsonl", "--plan", "plan.yaml", "--job", "job.yaml", "--json")
    stages = {each["name"]: each for each in json.loads(told.stdout)["stages"]}
    assert stages["generation"]["measured_seconds"] == 10.0
    assert "pocket-rl" in rlplan("import", "--help").stdout


@pytest.mark.full
def test_rules_that_come_later_are_one_more_file(homes, rlplan):
    rules = homes[1] / "pocket_rl" / "rules.py"
    rules.write_text(RULES)
    words = ("--", "run.sh", "--memory", "0.95")
    try:
        answer = rlplan("check", "pocket-rl", *FACTS, *words, code=1)
    finally:
        rules.unlink()
    assert "memory=0.95: leaves training nothing; allowed: at most 0.9" in answer.stdout
    assert "not checked" not in answer.stdout


def test_sheets_are_found_in_a_framework_s_folder(found):
    assert load_framework("bare-rl").title == "Bare-RL"
    assert canonical_name("frameworks", "Pocket") == "pocket-fsdp"
    assert load_log_sheet("pocket-rl").step == "pocket/step"
    assert load_config_sheet("pocket-rl").starts == ("pocket.train",)
    assert load_transition("pocket-ipc").method.fixed_seconds == 0.25
    assert TRANSFERS.load("pocket-ipc").words == "handed over in one bucket"
    assert transitions_on_a_pool((1, 1), (1, 1), named=("pocket-ipc",))[-1] == "pocket-ipc"


def test_one_function_answers_which_frameworks_have_which_parts(found):
    assert set(frameworks_with("log")) >= {"nemo-rl", "openrlhf", "pocket-rl", "slime", "verl"}
    assert "pocket-rl" in frameworks_with("steps", "sync", "log", "keys", "reading", "writing")
    assert "pocket-rl" not in frameworks_with("rules")
    assert {"bare-rl", "pocket-rl", "miles"} <= set(frameworks_with())
    assert "bare-rl" not in frameworks_with("keys")
    *others, last = frameworks_with("keys", "reading")
    assert names_in_words("keys", "reading") == f"{', '.join(others)} or {last}"
    assert (
        load_part("pocket-rl", "reading").__name__ == "rlplan.planner.frameworks.pocket_rl.reading"
    )
    assert rules_of("pocket-rl") == ()


def test_without_its_folders_it_is_gone():
    assert "pocket-rl" not in frameworks_with()
    with pytest.raises(UnknownNameError, match=r"unknown framework 'pocket-rl'"):
        load_part("pocket-rl", "reading")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("sync", "no weight sync of bare-rl is known: no way of its own is forecast"),
        (
            "log",
            "no log of bare-rl is known: its logs are not read; known of: .*nemo-rl, open-instruct, openrlhf",
        ),
        ("keys", "no keys of bare-rl are known: its configurations are neither read nor written"),
        ("reading", "no reading of bare-rl is known: its configurations are not imported"),
        ("writing", "no writing of bare-rl is known: plans are not exported to it"),
        ("rules", "no rules of bare-rl are known: settings are not checked"),
    ],
)
def test_a_part_that_is_not_known_is_said_by_name(found, part, words):
    check_parts("bare-rl", "steps")
    with pytest.raises(MissingPartError, match=words):
        check_parts("bare-rl", "steps", part)


@pytest.mark.parametrize(
    ("steps", "framework"),
    [
        ("verl", "verl"),
        ("verl-fully-async", "verl"),
        ("ms-swift-transformers-sharded", "ms-swift"),
        ("nemo-rl-megatron-0.3", "nemo-rl"),
        ("unheard-of", "unheard-of"),
    ],
)
def test_a_sheet_of_steps_is_of_a_framework(steps, framework):
    assert framework_of_steps(steps) == framework
