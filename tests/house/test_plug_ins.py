"""Plug-in folders: the name that a user types is the file's name, and every file keeps the contract."""

import importlib
from pathlib import Path

import pytest

from rlplan.algorithms import algorithm_names, load_algorithm
from rlplan.dataflow import DATASET_KEYS, Algorithm
from rlplan.files.decoding import read_yaml
from rlplan.hardware import DeviceSheet, EngineSheet
from rlplan.model import ModelArchitecture
from rlplan.transfers import TransitionShape, transfer_names, transition_volume
from tests.house.tree import ROOT

SHEETS = {
    "profiles/devices": DeviceSheet,
    "profiles/engines": EngineSheet,
    "profiles/models": ModelArchitecture,
}


def modules_in(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).glob("*.py") if path.stem != "__init__")


def sheets() -> list[Path]:
    return sorted(path for folder in SHEETS for path in (ROOT / folder).glob("*.yaml"))


@pytest.mark.parametrize("folder", SHEETS)
def test_every_folder_of_sheets_has_sheets(folder):
    assert list((ROOT / folder).glob("*.yaml"))


@pytest.mark.parametrize("path", sheets(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_sheet_decodes_bears_its_files_name_and_names_its_source(path):
    sheet = read_yaml(SHEETS[str(path.parent.relative_to(ROOT))], path)
    assert sheet.name == path.stem
    assert sheet.source if isinstance(sheet, ModelArchitecture) else sheet.sources


def test_algorithms_are_the_files_of_their_folder():
    files = sorted(path.stem.replace("_", "-") for path in modules_in("rlplan/algorithms"))
    assert list(algorithm_names()) == files
    assert {"ppo", "grpo", "remax", "safe-rlhf"} <= set(algorithm_names())


@pytest.mark.parametrize("name", algorithm_names())
def test_every_algorithm_file_exposes_a_well_formed_dataflow(name):
    file = name.replace("-", "_")
    algorithm = importlib.import_module(f"rlplan.algorithms.{file}").ALGORITHM
    assert isinstance(algorithm, Algorithm)
    assert load_algorithm(name) is algorithm
    assert algorithm.name == name
    assert algorithm.paper, "the source of the algorithm"

    names = [task.name for task in algorithm.tasks]
    assert len(names) == len(set(names))
    roles = {*algorithm.required_roles, *algorithm.optional_roles}
    made = {*DATASET_KEYS}
    for task in algorithm.tasks:
        assert task.name.startswith(f"{task.role}."), task.name
        assert task.role in roles, task.name
        assert set(task.inputs) <= made, f"{task.name} waits for what nobody before it makes"
        assert (task.loss is not None) == (task.kind == "train"), task.name
        made |= set(task.outputs)


def test_transitions_are_the_files_of_their_folder():
    files = sorted(path.stem.replace("_", "-") for path in modules_in("rlplan/transfers"))
    assert list(transfer_names()) == files


@pytest.mark.parametrize("name", transfer_names())
def test_no_transition_moves_less_than_nothing_nor_keeps_less_than_a_shard(name):
    shape = TransitionShape(tp=4, pp=1, dp=2, tp_gen=4, pp_gen=1)
    volume = transition_volume(name, 1e9, shape)
    assert volume.received_bytes >= 0
    assert volume.redundant_bytes >= 0
    assert volume.peak_weight_bytes >= 1e9 / 4
