"""Sheets that were decoded once are used again only while all that decides them is as it was."""

import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from rlplan.errors import FileError
from rlplan.files import kept_sheets
from rlplan.files.kept_sheets import kept, read_sheet
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.profiles import sheets
from rlplan.profiles.frameworks import frameworks_with_data
from rlplan.sheets import DeviceSheet
from tests.house.tree import ROOT


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return the folder of a package with one sheet and the module that reads it, older than this process."""
    folder = tmp_path / "rlplan"
    folder.mkdir()
    (folder / "sheet.yaml").write_text("a: 1\n")
    (folder / "kinds.py").write_text("A = 1\n")
    monkeypatch.setattr(kept_sheets, "PACKAGE", folder)
    monkeypatch.setattr(kept_sheets, "folder", lambda: tmp_path / "kept")
    monkeypatch.setattr(kept_sheets, "_modules_of", lambda _: frozenset({folder / "kinds.py"}))
    monkeypatch.setattr(kept_sheets, "_STARTED_NS", 2**63)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    kept_sheets._digest_of.cache_clear()
    return folder


def read_as(package, value):
    """Return what a sheet is taken to hold by a process of its own, where reading it would give a value."""
    kept_sheets._digest_of.cache_clear()  # each process reads a file once
    path = package / "sheet.yaml"
    return kept(dict, path, lambda: (value, [path]))


def test_what_was_kept_is_not_read_again(package):
    assert read_as(package, {"a": 1}) == {"a": 1}
    assert read_as(package, {"a": "read again"}) == {"a": 1}


@pytest.mark.parametrize("name", ["sheet.yaml", "kinds.py"])
def test_a_sheet_is_read_again_once_a_file_that_decides_it_has_changed(package, name):
    read_as(package, {"a": 1})
    (package / name).write_text("a: 2\n")
    assert read_as(package, {"a": 2}) == {"a": 2}
    assert read_as(package, {"a": 3}) == {"a": 2}


def test_a_file_that_is_gone_is_a_change(package):
    read_as(package, {"a": 1})
    (package / "kinds.py").unlink()
    assert read_as(package, {"a": 2}) == {"a": 2}


def test_what_was_kept_of_another_sheet_is_none_of_this_one(package, tmp_path):
    """Both files are whole, and all that they rest on is as it was."""
    (package / "other.yaml").write_text("a: other\n")
    other = package / "other.yaml"
    read_as(package, {"a": 1})
    (own,) = (tmp_path / "kept").iterdir()
    kept(dict, other, lambda: ({"a": "other"}, [other]))
    (left,) = set((tmp_path / "kept").iterdir()) - {own}
    own.write_bytes(left.read_bytes())
    assert read_as(package, {"a": 2}) == {"a": 2}


@pytest.mark.parametrize(
    "broken",
    [
        lambda _: b"",
        lambda whole: whole[:-1],
        lambda whole: b"[]\n" + whole,
        lambda whole: whole.partition(b"\n")[0] + b"\n" + pickle.dumps({"a": "another"}),
        lambda whole: b"\0" * len(whole),
    ],
)
def test_what_is_broken_is_read_again(package, tmp_path, broken):
    read_as(package, {"a": 1})
    (file,) = (tmp_path / "kept").iterdir()
    file.write_bytes(broken(file.read_bytes()))
    assert read_as(package, {"a": 2}) == {"a": 2}


def test_a_file_that_has_just_changed_is_not_kept(package, monkeypatch):
    monkeypatch.setattr(kept_sheets, "_STARTED_NS", 0)
    read_as(package, {"a": 1})
    assert read_as(package, {"a": 2}) == {"a": 2}


def test_where_nothing_can_be_written_sheets_are_read_each_time(package, tmp_path):
    (tmp_path / "kept").write_text("a file where a folder would be")
    assert read_as(package, {"a": 1}) == {"a": 1}
    assert read_as(package, {"a": 2}) == {"a": 2}


def test_what_cannot_take_its_place_leaves_nothing_behind(package, tmp_path):
    read_as(package, {"a": 1})
    (file,) = (tmp_path / "kept").iterdir()
    file.unlink()
    (file / "in the way").mkdir(parents=True)
    assert read_as(package, {"a": 2}) == {"a": 2}
    assert list((tmp_path / "kept").iterdir()) == [file]


def test_what_is_kept_may_be_read_by_whom_the_code_may_be_read_by(package, tmp_path):
    read_as(package, {"a": 1})
    (file,) = (tmp_path / "kept").iterdir()
    assert file.stat().st_mode & 0o777 == Path(kept_sheets.__file__).stat().st_mode & 0o666


def test_in_a_folder_that_cannot_be_written_nothing_is_worked_out(package, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.delattr(kept_sheets, "_modules_of")
    assert read_as(package, {"a": 1}) == {"a": 1}


def test_the_module_that_puts_a_sheet_together_decides_it_too(package, monkeypatch):
    (package / "reader.py").write_text("A = 1\n")
    of = {__name__: frozenset({package / "reader.py"})}
    monkeypatch.setattr(kept_sheets, "_modules_of", lambda name: of.get(name, frozenset()))
    read_as(package, {"a": 1})
    (package / "reader.py").write_text("A = 2\n")
    assert read_as(package, {"a": 2}) == {"a": 2}


def test_a_file_that_is_put_in_place_with_an_older_time_has_just_changed(package, monkeypatch):
    os.utime(package / "sheet.yaml", ns=(1, 1))
    os.utime(package / "kinds.py", ns=(1, 1))
    monkeypatch.setattr(kept_sheets, "_STARTED_NS", 2)
    read_as(package, {"a": 1})
    assert read_as(package, {"a": 2}) == {"a": 2}


def test_nothing_is_kept_where_python_keeps_no_bytecode(package, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    read_as(package, {"a": 1})
    assert not (tmp_path / "kept").exists()


def test_files_of_others_are_not_kept(package, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("a: 1\n")
    for value in ({"a": 1}, {"a": 2}):
        assert kept(dict, path, lambda value=value: (value, [path])) == value
    assert not (tmp_path / "kept").exists()


def test_a_missing_sheet_is_an_error_as_it_was():
    with pytest.raises(FileError, match="no such file"):
        read_sheet(DeviceSheet, kept_sheets.PACKAGE / "profiles" / "devices" / "none.yaml")


def test_the_modules_that_decide_a_sheet_are_its_types_and_the_decoder():
    found = {
        str(each.relative_to(kept_sheets.PACKAGE))
        for each in kept_sheets._modules_of("rlplan.sheets")
    }
    assert {
        "sheets.py",
        "models.py",
        "files/limits.py",
        "files/decoding.py",
        "files/frozen.py",
    } <= found
    assert not any(each.startswith(("planner/", "simulator/")) for each in found)


def same_once_kept(sheet):
    """Tell whether a sheet comes back as it went, hash included."""
    back = pickle.loads(pickle.dumps(sheet))
    return back == sheet and type(back) is type(sheet) and hash(back) == hash(sheet)


LOADERS = {
    "devices": sheets.load_device,
    "engines": sheets.load_engine,
    "models": sheets.load_model,
    "networks": sheets.load_network,
    "transitions": sheets.load_transition,
    "frameworks": sheets.load_framework,
    "rentals": sheets.load_rentals,
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(each, marks=pytest.mark.full) if each in {"models", "engines"} else each
        for each in LOADERS
    ],
)
def test_every_sheet_comes_back_as_it_was_kept(kind):
    assert all(same_once_kept(LOADERS[kind](name)) for name in sheets.sheet_names(kind))


@pytest.mark.parametrize("name", ["verl", "trl"])
def test_the_keys_of_a_framework_come_back_as_they_were_kept(name):
    assert name in frameworks_with_data("keys")
    sheet = load_config_sheet(name)
    back = pickle.loads(pickle.dumps(sheet))
    names = [each.name for each in dataclasses.fields(sheet)]
    assert [getattr(back, each) for each in names] == [getattr(sheet, each) for each in names]


@pytest.mark.full
def test_a_fresh_process_takes_a_sheet_from_what_another_kept(tmp_path):
    program = (
        "import sys, pathlib\n"
        "from rlplan.files import kept_sheets, decoding\n"
        f"kept_sheets.folder = lambda: pathlib.Path({str(tmp_path)!r})\n"
        "kept_sheets._STARTED_NS = 2**63\n"
        "read = decoding.load_yaml\n"
        "from rlplan.profiles import sheets\n"
        "def counted(path):\n"
        "    print('read', path.name)\n"
        "    return read(path)\n"
        "sheets.load_yaml = counted\n"
        "print(sheets.load_engine('vllm-0.15').name)\n"
    )
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for _ in range(2)
    )
    assert first[0] == "read vllm-0.15.yaml"
    assert second == first[-1:]
