"""Sheets: one YAML file for each model, device and engine; its name is what users type."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeVar

from rlplan.errors import UnknownNameError
from rlplan.files.decoding import read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.hardware import DeviceSheet, EngineSheet, TransitionSheet
from rlplan.model import ModelArchitecture

T = TypeVar("T")
Folder = Literal["models", "devices", "engines", "transitions", "families"]

_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")

# Other names under which a sheet is known. Where the form is left out, SXM is the one in the catalog.
ALIASES = {
    "a100-40gb": "a100-40gb-sxm",
    "a100-80gb": "a100-80gb-sxm",
    "a800-80gb-sxm": "a800-80gb",
    "h100-80gb": "h100-80gb-sxm",
    "h200-141gb-sxm": "h200",
}


@cache
def sheet_names(folder: Folder) -> tuple[str, ...]:
    """Return the names of a folder's sheets, sorted; no sheet is opened."""
    return tuple(sorted(path.stem for path in _path(folder).glob("*.yaml")))


def canonical_name(folder: Folder, name: str) -> str:
    """Return the name of the sheet that is meant: aliases and capital letters are understood.

    A model may be named by its Hugging Face id, with or without the organisation, where a sheet lists it.
    """
    name = name.lower()
    alias = ALIASES.get(name, name)
    if alias in sheet_names(folder):
        return alias
    return _sheet_of_id().get(name, name) if folder == "models" else name


@cache
def _sheet_of_id() -> FrozenDict[str, str]:
    """Return the model sheet of every Hugging Face id in small letters, and of ids without organisation.

    Ids stand at the end of a sheet; reading all sheets whole would take half a second.
    """
    whole: dict[str, str] = {}
    for sheet in model_names():
        text = (_path("models") / f"{sheet}.yaml").read_text(encoding="utf-8")
        for listed in _ID.findall(text.partition("\nhugging_face:")[2]):
            whole[listed.lower()] = sheet
    bare = {each.rpartition("/")[2]: sheet for each, sheet in whole.items()}
    return FrozenDict(bare | whole)


def model_names() -> tuple[str, ...]:
    """Return the names of all known models, sorted."""
    return sheet_names("models")


def device_names() -> tuple[str, ...]:
    """Return the names of all known devices, sorted."""
    return sheet_names("devices")


def engine_names() -> tuple[str, ...]:
    """Return the names of all known engines, sorted."""
    return sheet_names("engines")


@cache
def load_model(name: str) -> ModelArchitecture:
    """Return the architecture of a known model.

    Raises:
        UnknownNameError: No model has that name.
    """
    return replace(_load_sheet(ModelArchitecture, "models", name), hugging_face=None)


@cache
def load_device(name: str) -> DeviceSheet:
    """Return the sheet of a known device; aliases are understood.

    Raises:
        UnknownNameError: No device has that name.
    """
    return _load_sheet(DeviceSheet, "devices", name)


@cache
def load_engine(name: str) -> EngineSheet:
    """Return the sheet of a known engine.

    Raises:
        UnknownNameError: No engine has that name.
    """
    return _load_sheet(EngineSheet, "engines", name)


@cache
def load_transition(name: str) -> TransitionSheet:
    """Return the sheet of a transition's software.

    Raises:
        UnknownNameError: No transition of that name has a sheet.
    """
    return _load_sheet(TransitionSheet, "transitions", name)


class EngineSheets(Mapping[str, EngineSheet]):
    """Give the sheet of every known engine by name; each is opened when it is asked for."""

    def __getitem__(self, name: str) -> EngineSheet:
        """Return an engine's sheet."""
        if name not in engine_names():
            raise KeyError(name)
        return load_engine(name)

    def __iter__(self) -> Iterator[str]:
        """Yield the names, sorted."""
        return iter(engine_names())

    def __len__(self) -> int:
        """Return how many engines there are."""
        return len(engine_names())


ENGINES = EngineSheets()


def _load_sheet(kind: type[T], folder: Folder, name: str) -> T:
    """Return the sheet of that name; no other sheet is opened.

    Raises:
        UnknownNameError: No sheet has that name.
    """
    known = canonical_name(folder, name)
    if known not in sheet_names(folder):
        raise UnknownNameError(folder.removesuffix("s"), name, sheet_names(folder))
    return read_yaml(kind, _path(folder) / f"{known}.yaml")


def _path(folder: Folder) -> Path:
    return Path(__file__).parent / folder
