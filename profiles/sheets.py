"""Sheets: one YAML file for each model, device and engine; its name is what users type."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from rlplan.errors import UnknownNameError
from rlplan.files.decoding import decode, load_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.framework import FrameworkSheet
from rlplan.job import Job
from rlplan.models.model import ModelArchitecture
from rlplan.results.step_log import LogSheet
from rlplan.sheets.hardware import DeviceSheet, EngineSheet, TransitionSheet

T = TypeVar("T")
Folder = Literal["models", "devices", "engines", "transitions", "families", "frameworks", "logs"]

_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")

# The key by which a sheet names another of its folder, from which it differs in what it says only.
VARIANT_KEY: Final = "variant_of"

# The line that tells a sheet's other names, found without reading the sheet: there are many sheets.
ALIASES = re.compile(r"^aliases: \[(.*)\]$", re.MULTILINE)


@cache
def sheet_names(folder: Folder) -> tuple[str, ...]:
    """Return the names of a folder's sheets, sorted; no sheet is opened."""
    return tuple(sorted(path.stem for path in _path(folder).glob("*.yaml")))


def canonical_name(folder: Folder, name: str) -> str:
    """Return the name of the sheet that is meant, whatever its case; sheets tell their other names.

    A model may be named by its Hugging Face id, with or without the organisation, where a sheet lists it.
    """
    name = name.lower()
    if name in sheet_names(folder):
        return name
    names = _sheet_of_id() if folder == "models" else aliases_of(_path(folder))
    return names.get(name, name)


@cache
def aliases_of(folder: Path) -> dict[str, str]:
    """Return the sheet of every other name that a folder's sheets tell in their line `aliases`."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.yaml")):
        line = ALIASES.search(path.read_text(encoding="utf-8"))
        names = line.group(1).split(",") if line else ()
        found |= dict.fromkeys((name.strip() for name in names), path.stem)
    return found


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


model_names = partial(sheet_names, "models")
device_names = partial(sheet_names, "devices")
engine_names = partial(sheet_names, "engines")


@cache
def hugging_face_ids(name: str) -> tuple[str, ...]:
    """Return the Hugging Face ids that the sheet of a model lists; none where no sheet has the name."""
    if name not in model_names():
        return ()
    return _load_sheet(ModelArchitecture, "models", name).hugging_face or ()


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


def sheet_of_board(board: str, memory_bytes: int) -> DeviceSheet:
    """Return the sheet of a GPU by the name that its driver gives it, such as `NVIDIA H100 80GB HBM3`.

    Args:
        memory_bytes: What the driver reports; of sheets whose name fits, that of the nearest memory.

    Raises:
        UnknownNameError: No sheet's name, or other name, is in the board's.
    """
    words = "-".join(board.lower().split())
    chips = [word for word in words.split("-") if any(letter.isdigit() for letter in word)]
    fitting = [
        sheet
        for sheet in map(load_device, device_names())
        if sheet.name.split("-")[0] in chips
        or any(name in words for name in (sheet.name, *sheet.aliases))
    ]
    if not fitting:
        raise UnknownNameError("device", board, device_names())
    return min(fitting, key=lambda sheet: abs(sheet.memory_bytes - memory_bytes))


def sheet_of(job: Job | None, device: str) -> DeviceSheet:
    """Return the sheet of a device: that of a job, or the catalog's.

    Raises:
        UnknownNameError: Neither has one of that name.
    """
    if job is not None and job.devices is not None and device in job.devices:
        return job.devices[device]
    return load_device(device)


@cache
def load_log_sheet(name: str) -> LogSheet:
    """Return the sheet of a framework's log.

    Raises:
        UnknownNameError: There is no such log.
    """
    return _load_sheet(LogSheet, "logs", name)


@cache
def load_engine(name: str) -> EngineSheet:
    """Return the sheet of a known engine.

    Raises:
        UnknownNameError: No engine has that name.
    """
    return _load_sheet(EngineSheet, "engines", name)


def _sheet_data(folder: Folder, name: str) -> dict[str, Any]:
    """Return what a sheet holds: what it says, over all that the sheet has that it is a variant of."""
    data = load_yaml(_path(folder) / f"{name}.yaml")
    if not isinstance(data, dict) or VARIANT_KEY not in data:
        return cast(dict[str, Any], data)  # `decode` refuses what is no mapping
    base = _sheet_data(folder, _known_name(folder, str(data.pop(VARIANT_KEY))))
    merged = {
        key: {**base[key], **value} if isinstance(value, dict) and key in base else value
        for key, value in data.items()
    }
    return {**base, **merged}


@cache
def load_transition(name: str) -> TransitionSheet:
    """Return the sheet of a transition's software.

    Raises:
        UnknownNameError: No transition of that name has a sheet.
    """
    return _load_sheet(TransitionSheet, "transitions", name)


@cache
def load_framework(name: str) -> FrameworkSheet:
    """Return the sheet of a framework; aliases are understood.

    Raises:
        UnknownNameError: No framework has that name.
    """
    return _load_sheet(FrameworkSheet, "frameworks", name)


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
    """Return the sheet of that name, which may be a variant of another; no other sheet is opened.

    Raises:
        UnknownNameError: No sheet has that name.
    """
    known = _known_name(folder, name)
    return decode(kind, _sheet_data(folder, known), str(_path(folder) / f"{known}.yaml"))


def _known_name(folder: Folder, name: str) -> str:
    """Return the name of the sheet that is meant.

    Raises:
        UnknownNameError: No sheet has that name.
    """
    known = canonical_name(folder, name)
    if known not in sheet_names(folder):
        raise UnknownNameError(folder.removesuffix("s"), name, sheet_names(folder))
    return known


def _path(folder: Folder) -> Path:
    return Path(__file__).parent / folder
