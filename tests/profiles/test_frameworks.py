"""Framework sheets: every choice has a source, and jobs take from them what they leave open."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.framework import FrameworkSheet
from rlplan.job import Engines, Hyperparameters, Job, NodeGroup, Rewards
from rlplan.profiles.frameworks import data_files, framework_of_sheet, frameworks_with_data
from rlplan.profiles.jobs.resolve import resolve_job
from rlplan.profiles.sheets import engine_names, load_framework, sheet_names
from rlplan.workload import Workload
from tests.house.tree import ROOT

USUAL = FrameworkSheet(name="", title="", sources=FrozenDict())
NOT_CHOICES = {"name", "title", "aliases", "runs", "sources"}
NAMES = sheet_names("frameworks")


def job(**changes):
    """Return a job of GRPO without a reference model, resolved."""
    fields: dict[str, Any] = {
        "algorithm": "grpo",
        "models": FrozenDict({"actor": "qwen3-4b", "reference": "qwen3-4b"}),
        "workload": Workload(prompts=8, samples_per_prompt=4, prompt_tokens=64, response_tokens=64),
        "cluster": (NodeGroup(gpu="h100", gpus_per_node=8),),
        "rewards": Rewards(function="digits"),
    }
    return resolve_job(Job(**(fields | changes)), Path())


@pytest.mark.parametrize("name", NAMES)
def test_every_choice_of_a_framework_has_a_source(name):
    sheet = load_framework(name)
    chosen = {
        field.name
        for field in dataclasses.fields(sheet)
        if field.name not in NOT_CHOICES
        and getattr(sheet, field.name) != getattr(USUAL, field.name)
    }
    assert chosen <= set(sheet.sources)
    assert all(len(source) > 10 for source in sheet.sources.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_frameworks_engines_are_known(name):
    engines = load_framework(name).engines
    assert {engines.train, engines.generate} <= {None, *engine_names()}


@pytest.mark.parametrize("part", ["steps", "sync"])
def test_sheets_begin_with_their_frameworks_name_and_no_two_have_one(part):
    paths = [*(ROOT / "profiles" / "frameworks").glob(f"*/{part}/*.yaml")]
    assert paths
    assert {path.stem: path for path in paths} == {
        name: path.resolve() for name, path in data_files(part).items()
    }
    assert len({path.stem for path in paths}) == len(paths)
    assert all(path.stem.startswith(path.parent.parent.name) for path in paths)
    own = {path.stem for path in (ROOT / "profiles" / "transitions").glob("*.yaml")}
    assert not own & {path.stem for path in paths}


def test_what_is_known_of_a_framework_as_data_is_found_by_its_folder():
    assert set(frameworks_with_data("log")) >= {"nemo-rl", "openrlhf", "verl"}
    assert set(frameworks_with_data("steps")) > {"areal", "rlplan", "skyrl", "slime", "verl"}
    assert "miles" in frameworks_with_data("sync")
    assert framework_of_sheet("steps", "verl-fsdp-0.6") == "verl"
    assert framework_of_sheet("sync", "miles-p2p") == "miles"
    assert framework_of_sheet("sync", "two-copies") is None


def test_one_framework_is_run_by_rlplan_itself():
    assert [name for name in NAMES if load_framework(name).runs] == ["rlplan"]


def test_a_job_takes_from_its_framework_what_it_leaves_open():
    usual, verl = job(), job(framework="verl-FSDP")
    assert (usual.framework, usual.old_log_prob) == ("rlplan", "engine")
    assert usual.engines == Engines(train="megatron-core", generate="vllm")
    assert (verl.framework, verl.old_log_prob) == ("verl-fsdp", "trainer")
    assert verl.engines.train == load_framework("verl-fsdp").engines.train
    assert job(framework="verl", engines=Engines(train="fsdp2-hopper")).engines.train == (
        "fsdp2-hopper"
    )
    assert job(framework="nemo-rl", old_log_prob="engine").old_log_prob == "engine"


def test_a_step_of_one_update_takes_its_own_log_probabilities_where_its_framework_does_so():
    two = replace(job().workload, updates=2)
    penalised = Hyperparameters(kl_in="reward", kl_coefficient=0.1)
    assert job(framework="slime").old_log_prob == "engine"
    assert job(framework="slime", old_log_prob="trainer").old_log_prob == "trainer"
    assert job(framework="slime", workload=two).old_log_prob == "trainer"
    assert job(framework="slime", hyperparameters=penalised).old_log_prob == "trainer"
    alone = FrozenDict({"actor": "qwen3-4b"})
    assert job(framework="slime", algorithm="gspo", models=alone).old_log_prob == "trainer"
    assert job(framework="miles").old_log_prob == "trainer"


def test_an_unknown_framework_is_one_message():
    with pytest.raises(FileError, match=r"framework: unknown framework.*verl-megatron"):
        job(framework="verl-megatro")


def test_the_trainers_own_pass_stands_behind_generation_and_before_the_update():
    found = job(framework="verl")
    tasks = {task.name: task for task in tasks_of(load_algorithm("grpo"), found)}
    assert list(tasks)[:2] == ["actor.generate", "actor.compute_log_prob"]
    assert tasks["actor.generate"].outputs == ("sequences",)
    assert tasks["actor.compute_log_prob"].outputs == ("log_probs",)
    assert "log_probs" in tasks["actor.update"].inputs
