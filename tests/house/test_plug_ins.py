"""Plug-in folders: the name that a user types is the file's name, and every file keeps the contract."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlplan.algorithms import algorithm_names, load_algorithm
from rlplan.dataflow import DATASET_KEYS, Algorithm
from rlplan.errors import UnknownNameError
from rlplan.executor.parallel.positions import train_positions
from rlplan.executor.workers.protocols import PROTOCOLS
from rlplan.executor.workers.stages import STAGES
from rlplan.files.decoding import read_yaml
from rlplan.models import ModelArchitecture
from rlplan.plan import TaskPlan
from rlplan.plug_ins import PlugIns
from rlplan.profiles.catalog import load_engine
from rlplan.profiles.sheets import load_model, load_transition, sheet_names
from rlplan.sheets import DeviceSheet, EngineSheet
from rlplan.stages import STAGE_KINDS
from rlplan.transfers import TRANSFERS, TransitionShape, transfer_names, transition_volume
from tests.house.tree import ROOT, import_name, own_modules


def folders_of_plug_ins() -> Iterator[PlugIns[Any]]:
    """Yield what every folder of our own declares, as `NAME = PlugIns[...](...)` in its __init__."""
    for path in own_modules():
        if path.name == "__init__.py" and "= PlugIns[" in (ROOT / path).read_text("utf-8"):
            found = vars(importlib.import_module(import_name(path.parent))).values()
            yield next(each for each in found if isinstance(each, PlugIns))


PLUG_INS = {plug_ins.package: plug_ins for plug_ins in folders_of_plug_ins()}

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
    kind = SHEETS[str(path.parent.relative_to(ROOT))]
    # Sheets of engines and models may say how they differ from another.
    load = {EngineSheet: load_engine, ModelArchitecture: load_model}.get(kind)
    sheet: Any = load(path.stem) if load else read_yaml(kind, path)
    assert sheet.name == path.stem
    assert sheet.source if isinstance(sheet, ModelArchitecture) else sheet.sources


def test_the_folders_that_a_user_or_a_developer_adds_to_are_under_this_contract():
    assert PLUG_INS.keys() >= {"rlplan.algorithms", "rlplan.stages", "rlplan.transfers"}
    assert PLUG_INS.keys() >= {
        "rlplan.planner.objectives",
        "rlplan.profiles.probes",
        "rlplan.reports.panels",
    }
    assert PLUG_INS.keys() >= {"rlplan.executor.rollout.engines", "rlplan_cli.commands"}


@pytest.mark.parametrize("package", PLUG_INS)
def test_plug_ins_are_the_files_of_their_folder_and_load_once(package):
    plug_ins = PLUG_INS[package]
    files = {path.stem for path in modules_in(package.replace(".", "/"))}
    own = plug_ins.names_of_files()
    assert plug_ins.package == package
    assert len(own) == len(files) > 0
    assert {name.replace("-", "_").replace(".", "_") for name in own} == files
    for name in set(plug_ins.names()) - {"vllm"}:  # it is not installed everywhere
        assert plug_ins.load(name) is plug_ins.load(name)


def test_a_transition_has_a_formula_in_a_file_or_a_method_in_its_sheet():
    sheets, files = set(sheet_names("transitions")), set(TRANSFERS.names_of_files())
    described = {name for name in sheets if load_transition(name).method is not None}
    assert sheets - described <= files
    assert not described & files
    assert {name for name in transfer_names() if TRANSFERS.load(name).method} == described
    assert set(transfer_names()) == files | described
    assert all(TRANSFERS.load(name).words for name in described)


@pytest.mark.parametrize(
    ("name", "one", "two"),
    [("verl-naive", True, False), ("verl-nccl", False, True), ("checkpoint-engine", True, True)],
)
def test_a_method_serves_the_pools_that_its_sheet_says(name, one, two):
    method = TRANSFERS.load(name)
    assert (method.on_one_pool, method.between_pools) == (one, two)


@pytest.mark.parametrize("package", PLUG_INS)
def test_a_name_that_no_file_has_is_answered_with_the_nearest(package):
    plug_ins = PLUG_INS[package]
    name = plug_ins.names()[0]
    with pytest.raises(UnknownNameError, match=f"unknown {plug_ins.kind} .*did you mean"):
        plug_ins.load(f"{name}x")


def test_names_have_dashes_for_underscores_and_dots_between_figures(tmp_path):
    for file in ("open_system_0_2.py", "__init__.py", "plain.py"):
        (tmp_path / file).write_text("SIZE = 3\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    assert PlugIns[int]("p", [str(tmp_path)], kind="system").names() == ("open-system-0.2", "plain")
    kept = PlugIns[int]("p", [str(tmp_path)], kind="system", dashes=False)
    assert kept.names() == ("open_system_0_2", "plain")


@pytest.mark.parametrize("name", algorithm_names())
def test_every_algorithm_file_exposes_a_well_formed_dataflow(name):
    algorithm = load_algorithm(name)
    assert isinstance(algorithm, Algorithm)
    assert algorithm.name == name
    assert algorithm.paper, "the source of the algorithm"

    names = [task.name for task in algorithm.tasks]
    assert len(names) == len(set(names))
    roles = {*algorithm.required_roles, *algorithm.optional_roles}
    made = {*DATASET_KEYS}
    for task in algorithm.tasks:
        assert task.name.startswith(f"{task.role}."), task.name
        assert task.role in roles, task.name
        assert task.kind in STAGE_KINDS.names(), task.name
        assert set(task.inputs) <= made, f"{task.name} waits for what nobody before it makes"
        assert (task.loss is not None) == task.trains, task.name
        made |= set(task.outputs)


@pytest.mark.parametrize("name", transfer_names())
def test_no_transition_moves_less_than_nothing_nor_keeps_less_than_a_shard(name):
    shape = TransitionShape(tp=4, pp=1, dp=2, tp_gen=4, pp_gen=1)
    volume = transition_volume(name, 1e9, shape)
    assert volume.received_bytes >= 0
    assert volume.redundant_bytes >= 0
    assert volume.peak_weight_bytes >= 1e9 / 4


@pytest.mark.parametrize("name", STAGE_KINDS.names())
def test_every_kind_of_task_uses_fields_that_layouts_have(name):
    kind = STAGE_KINDS.load(name)
    assert kind.layout_fields <= {field.name for field in dataclasses.fields(TaskPlan)}
    assert kind.engine == "train" or not kind.has_gradients


def test_every_kind_of_task_has_a_stage_in_the_executor():
    assert STAGES.names() == STAGE_KINDS.names()


@pytest.mark.parametrize("name", PROTOCOLS.names())
def test_every_transfer_protocol_collects_what_it_distributes(name):
    protocol, positions = PROTOCOLS.load(name), train_positions(2, 8, 2)
    given = {"all-to-all": list("abcdefgh")}.get(name, "abcd")
    by_rank = protocol.distribute(positions, given, lambda whole, parts: [whole] * parts)
    assert set(by_rank) <= set(range(positions.ranks))
    assert protocol.collect(positions, by_rank, list) in (given, [given] * 2, [given] * 8)


def test_a_folder_that_is_being_listed_has_all_its_names_for_others_meanwhile(monkeypatch):
    """A page asks for types in several threads at once, and a type of no names cannot be built."""
    alike = PlugIns[Any](TRANSFERS.package, TRANSFERS._path, kind="transition of weights")
    listed, seen = pkgutil.iter_modules, []

    def slow(folders):
        for place, module in enumerate(listed(folders)):
            if place == 1:
                monkeypatch.setattr(pkgutil, "iter_modules", listed)
                seen.append(alike.names())  # as another thread asks, half way
            yield module

    monkeypatch.setattr(pkgutil, "iter_modules", slow)
    assert alike.names() == TRANSFERS.names_of_files()
    assert seen == [TRANSFERS.names_of_files()]
