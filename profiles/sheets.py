"""Sheets: one YAML file for each model, device, engine and so on; its name is what users type.

Transitions that their sheets alone describe, methods of frameworks to sync weights, are among those that
`rlplan.transfers` looks up, beside the transitions that have a formula of their own.

What a job leaves open about its nodes are the figures of its device's usual node.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from rlplan.errors import NEAREST_SHOWN, UnknownNameError, nearest_names
from rlplan.files.decoding import decode, load_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.files.kept_sheets import kept
from rlplan.framework import FrameworkSheet
from rlplan.job import Job, NodeGroup
from rlplan.models import ModelArchitecture
from rlplan.networks import NetworkSheet
from rlplan.profiles import frameworks
from rlplan.profiles.frameworks import DataPart, data_files
from rlplan.rentals import RentalSheet
from rlplan.results.measurement import LogSheet
from rlplan.sheets import DeviceSheet, EngineSheet
from rlplan.transfers import Transition, own_copy
from rlplan.weight_syncs import TransitionSheet

T = TypeVar("T")
Kind = Literal[
    "models",
    "devices",
    "engines",
    "networks",
    "transitions",
    "families",
    "frameworks",
    "logs",
    "rentals",
]

# Sheets of these kinds stand in the folders of frameworks, as this part; transitions of no framework in their own.
PARTS: Final[Mapping[Kind, DataPart]] = {
    "frameworks": "steps",
    "transitions": "sync",
    "logs": "log",
}

_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")
_CACHED: Final = re.compile(r"(^|/)models--(?P<id>[^/]+)")
_BETWEEN_WORDS: Final = re.compile(r"[._-]+")
# The point of a version (`qwen2.5-7b`, not of a size), which folders' names leave out: `qwen25-7b`.
_POINT: Final = re.compile(r"(?<=\d)\.(?=\d+-)")

# The hint for a model without a sheet.
NO_SHEET: Final = "a job names a model without a sheet by the path of its config.json"

# The key by which a sheet names another of its kind, whose fields it takes over except for those that it gives.
VARIANT_KEY: Final = "variant_of"

# The line that tells a sheet's other names, found without reading the sheet: there are many sheets.
ALIASES = re.compile(r"^aliases: \[(.*)\]$", re.MULTILINE)


def sheet_names(kind: Kind) -> tuple[str, ...]:
    """Return the names of a kind's sheets, sorted; no sheet is opened."""
    return tuple(sheet_files(kind))


def sheet_files(kind: Kind) -> Mapping[str, Path]:
    """Return the file of every sheet of a kind by its name, sorted; no sheet is opened."""
    return _files(kind, tuple(frameworks.__path__))


@cache
def _files(kind: Kind, _folders: tuple[str, ...]) -> Mapping[str, Path]:
    """Return the sheets' files; folders, those of frameworks among them, are listed once."""
    found = {path.stem: path for path in _path(kind).glob("*.yaml")}
    if kind in PARTS:
        found |= data_files(PARTS[kind])
    return FrozenDict(sorted(found.items()))


def canonical_name(kind: Kind, name: str) -> str:
    """Return the name of the sheet that is meant, whatever its case; sheets tell their other names.

    A model may be named by its Hugging Face id, with or without the organisation, where a sheet lists it, and by a
    folder that is called so, whichever signs stand between its words (`/models/Qwen2_5-7B`).
    """
    name = name.lower()
    files = sheet_files(kind)
    if name in files:
        return name
    if kind != "models":
        return _aliases(files).get(name, name)
    return _sheet_of_id().get(name) or _sheet_of_words().get(_words(name), name)


@cache
def _aliases(files: FrozenDict[str, Path]) -> Mapping[str, str]:
    """Return the aliases that sheets tell, those of digits alone in quotes; each is read once."""
    found: dict[str, str] = {}
    for name, path in files.items():
        line = ALIASES.search(path.read_text(encoding="utf-8"))
        names = line.group(1).split(",") if line else ()
        found |= dict.fromkeys((name.strip().strip('"') for name in names), name)
    return found


@cache
def _sheet_of_id() -> FrozenDict[str, str]:
    """Return the model sheet of every Hugging Face id in small letters, and of ids without organisation.

    Ids stand at the end of a sheet; reading all sheets whole would take half a second.
    """
    whole: dict[str, str] = {}
    for sheet in model_names():
        text = sheet_files("models")[sheet].read_text(encoding="utf-8")
        for listed in _ID.findall(text.partition("\nhugging_face:")[2]):
            whole[listed.lower()] = sheet
    bare = {each.rpartition("/")[2]: sheet for each, sheet in whole.items()}
    return FrozenDict(bare | whole)


@cache
def _sheet_of_words() -> FrozenDict[str, str]:
    """Return the sheet of every model's name and bare id as words; words that two sheets share mean neither."""
    found: dict[str, set[str]] = {}
    for listed, sheet in _sheet_of_id().items():
        for name in (listed, sheet):
            for each in {name, _POINT.sub("", name.lower())}:
                found.setdefault(_words(each), set()).add(sheet)
    return FrozenDict({words: sheets.pop() for words, sheets in found.items() if len(sheets) == 1})


def _words(name: str) -> str:
    """Return the last part of a path in small letters, with one sign between its words.

    In Hugging Face's cache the part that counts is the folder that is called after the id.
    """
    cached = _CACHED.search(name)
    name = cached["id"].replace("--", "/") if cached else name
    return _BETWEEN_WORDS.sub("-", name.lower().rstrip("/").rpartition("/")[2])


def nearest_models(name: str) -> tuple[str, ...]:
    """Return the three sheets of models whose names or ids are most like a name or the last part of a path."""
    sheets = {each: each for each in model_names()} | _sheet_of_words()
    # Several ids may be of one sheet.
    like = nearest_names(_words(name), sheets, 4 * NEAREST_SHOWN)
    return tuple(dict.fromkeys(sheets[each] for each in like))[:NEAREST_SHOWN]


model_names = partial(sheet_names, "models")
device_names = partial(sheet_names, "devices")
engine_names = partial(sheet_names, "engines")


def _sheet_data(kind: Kind, name: str, files: list[Path]) -> dict[str, Any]:
    """Return what a sheet holds: what it says, over all that the sheet has that it is a variant of.

    Args:
        files: Gets the files of both.
    """
    files.append(sheet_files(kind)[name])
    data = load_yaml(files[-1])
    if not isinstance(data, dict) or VARIANT_KEY not in data:
        return cast(dict[str, Any], data)  # `decode` refuses what is no mapping
    base = _sheet_data(kind, _known_name(kind, str(data.pop(VARIANT_KEY))), files)
    merged = {
        key: {**base[key], **value} if isinstance(value, dict) and key in base else value
        for key, value in data.items()
    }
    return {**base, **merged}


def _load_sheet(decoded: type[T], kind: Kind, name: str) -> T:
    """Return the sheet of that name, which may be a variant of another; no other sheet is opened.

    Raises:
        UnknownNameError: No sheet has that name.
    """
    known = _known_name(kind, name)
    path = sheet_files(kind)[known]

    def read() -> tuple[T, list[Path]]:
        files: list[Path] = []
        return decode(decoded, _sheet_data(kind, known, files), str(path)), files

    return kept(decoded, path, read)


def _known_name(kind: Kind, name: str) -> str:
    """Return the name of the sheet that is meant.

    Raises:
        UnknownNameError: No sheet has that name.
    """
    known = canonical_name(kind, name)
    if known in sheet_files(kind):
        return known
    if kind == "models":
        near = nearest_models(name)
        raise UnknownNameError("model", name, sheet_names(kind), hint=NO_SHEET, nearest=near)
    raise UnknownNameError(kind.removesuffix("s"), name, sheet_names(kind))


# Each returns the sheet of a name or of one of its aliases, and raises an UnknownNameError where there is none.
load_device = cache(partial(_load_sheet, DeviceSheet, "devices"))
load_rentals = cache(partial(_load_sheet, RentalSheet, "rentals"))
load_log_sheet = cache(partial(_load_sheet, LogSheet, "logs"))
load_engine = cache(partial(_load_sheet, EngineSheet, "engines"))
load_network = cache(partial(_load_sheet, NetworkSheet, "networks"))
load_transition = cache(partial(_load_sheet, TransitionSheet, "transitions"))
load_framework = cache(partial(_load_sheet, FrameworkSheet, "frameworks"))


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


def sheet_of_board(board: str, memory_bytes: int) -> DeviceSheet:
    """Return the sheet of a GPU by the name that its driver gives it, such as `NVIDIA H100 80GB HBM3`.

    Sheets whose names start with one of the board's words fit, such as `h100`; where there are none, the one whose
    name or alias is the longest among the board's words, whole: an L40 is no L4.

    Args:
        memory_bytes: What the driver reports; of sheets that fit, that of the nearest memory.

    Raises:
        UnknownNameError: No sheet's name, or other name, is in the board's.
    """
    words = "-".join(board.lower().split())
    chips = [word for word in words.split("-") if any(letter.isdigit() for letter in word)]
    sheets = [load_device(name) for name in device_names()]
    fitting = [sheet for sheet in sheets if sheet.name.split("-")[0] in chips]
    named = {
        name: sheet
        for sheet in sheets
        for name in (sheet.name, *sheet.aliases)
        if f"-{name}-" in f"-{words}-"
    }
    if not fitting and named:
        fitting = [named[max(named, key=len)]]
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


def _path(kind: Kind) -> Path:
    return Path(__file__).parent / kind


# Behind all others where a usual transition is looked for.
METHOD_PLACE: Final = 10


class WeightSyncs(Mapping[str, Transition]):
    """Give the transition of every sheet that has a method; a sheet is opened when it is asked for."""

    def __getitem__(self, name: str) -> Transition:
        """Return a method as a transition: it reaches every cut and is tried only where it is named."""
        method = load_transition(name).method if name in sheet_names("transitions") else None
        if method is None:
            raise KeyError(name)
        return Transition(
            words=method.words,
            volume=partial(own_copy, collective="stream", group_ranks=1),
            on_one_pool="one" in method.pools,
            between_pools="two" in method.pools,
            method=True,
            reaches=lambda *_: True,
            place=METHOD_PLACE,
        )

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all sheets of transitions, sorted, also of those that have no method."""
        return iter(sheet_names("transitions"))

    def __len__(self) -> int:
        """Return how many sheets there are."""
        return len(sheet_names("transitions"))


MEMBERS: Final = WeightSyncs()


def on_usual_nodes(
    group: NodeGroup, sheet: DeviceSheet, *, keeps_domains: bool = True
) -> NodeGroup:
    """Return a group with the figures of its device's usual node where the job says nothing.

    A node with more or fewer GPUs than the sheet's has its network, cores and memory in proportion.

    Args:
        keeps_domains: Whether the job's framework places ranks by domains of nodes on a fast link.
    """
    share = group.gpus_per_node / sheet.gpus_per_node
    return replace(
        group,
        gpu=sheet.name,
        nvlink_domain_gpus=group.nvlink_domain_gpus or _domain_gpus(group, sheet, keeps_domains),
        inter_node_gbps=group.inter_node_gbps or sheet.inter_node_gbps * share,
        cpu_cores=group.cpu_cores or max(1, int(sheet.cpu_cores * share)),
        host_memory_bytes=group.host_memory_bytes or int(sheet.host_memory_bytes * share),
    )


def taken_from_sheet(
    group: NodeGroup, sheet: DeviceSheet, *, keeps_domains: bool = True
) -> tuple[str, ...]:
    """Return the fields of a resolved group that are as its device's sheet has them."""
    bare = NodeGroup(gpu=group.gpu, gpus_per_node=group.gpus_per_node, nodes=group.nodes)
    usual = on_usual_nodes(bare, sheet, keeps_domains=keeps_domains)
    fields = ("nvlink_domain_gpus", "inter_node_gbps", "cpu_cores", "host_memory_bytes")
    return tuple(name for name in fields if getattr(group, name) == getattr(usual, name))


def left_to_framework(job: Job) -> tuple[NodeGroup, ...]:
    """Return a resolved job's groups without the domains of a fast link that its framework decided on."""
    kept = load_framework(job.framework).keeps_domains
    return tuple(
        replace(group, nvlink_domain_gpus=None)
        if group.nvlink_domain_gpus == _domain_gpus(group, sheet_of(job, group.gpu), kept)
        else group
        for group in job.cluster
    )


def _domain_gpus(group: NodeGroup, sheet: DeviceSheet, keeps_domains: bool) -> int | None:
    """Return the GPUs of a domain, so that the group takes equal parts of as few as it needs.

    Where ranks are placed without regard to domains, two nodes of any group may be of different ones.
    """
    if sheet.nvlink_domain_gpus is None:
        return None
    most = sheet.nvlink_domain_gpus // group.gpus_per_node
    if group.nodes > most and not keeps_domains:
        return group.gpus_per_node
    sizes = (nodes for nodes in range(most, 0, -1) if group.nodes % nodes == 0)
    nodes = next(sizes, None)
    return nodes and nodes * group.gpus_per_node
