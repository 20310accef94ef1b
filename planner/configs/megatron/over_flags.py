"""Files that flags of slime and miles name, whose values are laid over the other flags: for all, by role, or by groups of engines.

A file is read as the flags that would say the same; what none says stays with the flag that names the file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rlplan.errors import FileError
from rlplan.planner.configs.reading.composed import marked, read_marked
from rlplan.planner.configs.reading.given import OF_WORK, Flat, GivenValue, scalar
from rlplan.planner.configs.reading.launched import at_hand
from rlplan.planner.configs.reading.settings import Settings, fits_any
from rlplan.planner.configs.sizes import SERVICE

PPO: Final = "ppo"
ACTOR, CRITIC = "actor", "critic"
# What stands before the engine's own arguments among slime's flags, and before those of a server that a script starts.
OF_ENGINE, OF_SERVER = "sglang-", "server."
# What entries of a role are called, and groups of engines; the first that a file has counts (arguments.py, sglang_config.py).
OVERRIDES: Final = ("overrides", "args")
GROUPS: Final = ("server_groups", "engine_groups")
# Groups on whose GPUs nothing is generated.
IDLE: Final = frozenset({"placeholder", "encoder"})
PREFILL: Final = "prefill"
KINDS: Final = ("regular", PREFILL, "decode", *sorted(IDLE))
# Where a role's GPUs are, which slime takes of the flags whatever an entry says.
OF_PLACE: Final = frozenset({"num_nodes", "num_gpus_per_node"})
# What only functions of one's own read.
OF_ONES_OWN: Final = "{}, which only functions of one's own read"
NOT_AT_HAND: Final = "{what} in a file that is not at hand ({where}): {remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """Hold a file as the flags that say the same.

    Attributes:
        doubts: What of it none says that changes how much is done in a step.
        left_out: What of it none says besides.
    """

    flat: Flat
    doubts: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Hold what a file says.

    Attributes:
        file: Its name, for messages.
        data: Its mapping.
        places: Where each of its leaves stands.
    """

    file: str
    data: Mapping[str, Any]
    places: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Say how a file of a kind is read.

    Attributes:
        read: Returns what it says.
        what: What it may change.
        remedy: What says the same where it is not at hand.
    """

    read: Callable[[Settings, Read], Laid]
    what: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Hold engines of one layout.

    Attributes:
        kind: What they do.
        gpus: Of all of them.
        engine: GPUs of each.
        arguments: That they get beyond the flags, by name.
    """

    kind: str
    gpus: int
    engine: int
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Hold a model that engines serve.

    Attributes:
        path: Its checkpoint.
        learns: Whether it gets the trained weights.
    """

    name: str
    path: object
    learns: bool
    groups: tuple[Group, ...]

    @property
    def gpus(self) -> int:
        """Return the GPUs of all of its groups."""
        return sum(group.gpus for group in self.groups)


def lay_files_over(settings: Settings, folder: Path) -> None:
    """Put the values of files that flags name in the place of those that flags give.

    Raises:
        FileError: A file is broken, or has what its framework stops at.
    """
    for key, name in settings.sheet.launch.over_flags.items():
        given, way = settings.flat.get(key), WAYS[name]
        if given is None or given.gaps or not isinstance(given.value, str) or not given.value:
            continue
        read = _read(settings, given.value, folder)
        if read is None:
            settings.doubts[key] = NOT_AT_HAND.format(
                what=way.what, where=given.where, remedy=way.remedy
            )
            continue
        laid = way.read(settings, read)
        settings.flat |= laid.flat
        if laid.doubts:
            settings.doubts[key] = "; ".join((*laid.doubts, *laid.left_out))
        elif laid.left_out:
            settings.left_out[key] = "; ".join(laid.left_out)
        else:
            del settings.flat[key]
        if laid.flat:
            settings.notes += (
                f"values of {Path(given.value).name} ({key}) count before the flags",
            )


def _read(settings: Settings, name: str, folder: Path) -> Read | None:
    """Return what a file says, of the script's own or at hand; None where it is neither."""
    written = settings.written.get(name)
    path = at_hand(name, folder)
    if written is not None:
        file = f"{settings.file} ({name})"
        data, places = marked(written, file, repeats=True)
    elif path is not None:
        file = str(path)
        data, places = read_marked(path, repeats=True)
    else:
        return None
    return Read(file=file, data=data, places=places)


def _flags(settings: Settings, read: Read) -> Laid:
    """Return the values of a mapping whose keys are the flags' names in Python."""
    return _as_flags(settings, read.data, read)


def _defaults(settings: Settings, read: Read) -> Laid:
    """Return the values of such a mapping that no flag gives."""
    laid = _flags(settings, read)
    flat = {key: given for key, given in laid.flat.items() if key not in settings.flat}
    return replace(laid, flat=flat)


def _as_flags(settings: Settings, data: Mapping[str, Any], read: Read) -> Laid:
    sheet = settings.sheet
    known, patterns = {*settings.flat, *sheet.named()}, tuple(sheet.named_patterns())
    laid, own = dict[str, GivenValue](), list[str]()
    for name, value in data.items():
        key = str(name).replace("_", "-")
        if key in known or fits_any(key, patterns):
            laid[key] = GivenValue(value=_plain(value), where=read.places.get(name, read.file))
        else:
            own.append(str(name))
    said = (OF_ONES_OWN.format(", ".join(own)),) if own else ()
    of_work = any(OF_WORK.search(each) for each in own)
    return Laid(flat=laid, doubts=said if of_work else (), left_out=() if of_work else said)


def _plain(value: object) -> object:
    """Return a file's value as a word of a command line would be taken: YAML takes 1e-6 for a word."""
    return scalar(value) if isinstance(value, str) else value


def _roles(settings: Settings, read: Read) -> Laid:
    """Return what a file says of Megatron's flags by role: those of the actor; the critic has its rate of learning."""
    entries = {role: _of_role(read, role) for role in (ACTOR, CRITIC)}
    laid = _as_flags(settings, entries[ACTOR], read)
    critic = entries[CRITIC] if settings.word("estimator") == PPO else {}
    rate = critic.pop("lr", None)
    if rate is not None:
        laid.flat["critic-lr"] = GivenValue(value=_plain(rate), where=read.file)
    of_critic = _as_flags(settings, critic, read)
    flat = settings.flat | laid.flat
    silent = settings.sheet.harmless()
    other = [
        f"{key}={given.value}"
        for key, given in of_critic.flat.items()
        if not fits_any(key, silent) and (key not in flat or flat[key].value != given.value)
    ]
    said = (f"the critic's {', '.join(other)}: it is forecast as the actor",) if other else ()
    doubts = (*laid.doubts, *said, *of_critic.doubts)
    return replace(laid, doubts=doubts, left_out=laid.left_out + of_critic.left_out)


def _of_role(read: Read, role: str) -> dict[str, Any]:
    """Return what a file says of a role.

    Raises:
        FileError: It has no list of roles, or a role twice.
    """
    found = [each for each in _listed(read, "megatron") if each.get("role") == role]
    if len(found) > 1:
        raise FileError(read.file, f"has {role} {len(found)} times", field="role", allowed="once")
    given = (each[name] for each in found for name in OVERRIDES if each.get(name))
    values = _mapping(read, next(given, {}), OVERRIDES[0])
    return {name: value for name, value in values.items() if name not in OF_PLACE}


def _listed(read: Read, key: str) -> list[dict[str, Any]]:
    """Return the mappings in a file's only list.

    Raises:
        FileError: It has none.
    """
    return _mappings(read, read.data.get(key), key)


def _mappings(read: Read, listed: object, key: str) -> list[dict[str, Any]]:
    """Return a list of mappings.

    Raises:
        FileError: It is none.
    """
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise FileError(read.file, "has no list of mappings", field=key, allowed=f"{key}: [...]")
    return listed


def _mapping(read: Read, given: object, key: str) -> dict[str, Any]:
    """Return a mapping.

    Raises:
        FileError: It is none.
    """
    if not isinstance(given, dict):
        raise FileError(read.file, "is no mapping", field=key, allowed="names with values")
    return {str(name): value for name, value in given.items()}


def _engines(settings: Settings, read: Read) -> Laid:
    """Return the flags of a file's engines: those that get the trained weights, and a teacher's."""
    models = [_served(settings, read, each) for each in _listed(read, "sglang")]
    _check_gpus(settings, read, sum(model.gpus for model in models))
    learning = [model for model in models if model.learns]
    if len(learning) != 1:
        problem = f"has {len(learning)} models that get the trained weights"
        raise FileError(read.file, problem, field="update_weights", allowed="one")
    laid = _of_actor(settings, read, learning[0].groups)
    frozen = [model for model in models if not model.learns]
    if len(frozen) == 1 and frozen[0].groups and _asks_a_teacher(settings):
        return replace(laid, flat=laid.flat | _of_teacher(frozen[0], read))
    asked = (
        f"what {model.name} ({model.path}, on {model.gpus} GPUs of its own) is asked: {SERVICE}"
        for model in frozen
    )
    return replace(laid, doubts=(*laid.doubts, *asked))


def _served(settings: Settings, read: Read, model: Mapping[str, Any]) -> Served:
    """Return a model of a file, with what it leaves to the flags (sglang_config.py: resolve)."""
    actor = settings.given(settings.key_of("model"))
    usual = model.get("num_gpus_per_engine") or settings.whole("rollout_tp")
    named = (model[name] for name in GROUPS if model.get(name))
    listed = _mappings(read, next(named, []), GROUPS[0])
    groups = tuple(_group(read, each, usual) for each in listed)
    own = next((group.arguments.get("model_path") for group in groups), None)
    checkpoint = own or model.get("model_path") or actor
    told = model.get("update_weights")
    learns = checkpoint == actor if told is None else bool(told)
    return Served(name=str(model.get("name")), path=checkpoint, learns=learns, groups=groups)


def _group(read: Read, group: Mapping[str, Any], usual: int) -> Group:
    """Return a group of engines.

    Raises:
        FileError: It is of no known kind, or has no GPU.
    """
    kind, gpus = group.get("worker_type"), group.get("num_gpus", 0)
    if kind not in KINDS:
        raise FileError(
            read.file, "is not known", field="worker_type", value=kind, allowed=", ".join(KINDS)
        )
    engine = group.get("num_gpus_per_engine") or usual
    for name, value in (("num_gpus", gpus), ("num_gpus_per_engine", engine)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise FileError(
                read.file, "is no number of GPUs", field=name, value=value, allowed="at least 1"
            )
    arguments = _mapping(read, group.get("overrides") or {}, OVERRIDES[0])
    return Group(kind=kind, gpus=gpus, engine=engine, arguments=arguments)


def _check_gpus(settings: Settings, read: Read, gpus: int) -> None:
    """Refuse groups whose GPUs are not those that generate, as slime does when it starts them."""
    wanted = settings.given(settings.key_of("rollout_gpus"))
    if isinstance(wanted, int) and wanted != gpus:
        problem = f"has groups of {gpus} GPUs together"
        allowed = f"{wanted}, as --{settings.key_of('rollout_gpus')} says"
        raise FileError(read.file, problem, field="num_gpus", allowed=allowed)


def _of_actor(settings: Settings, read: Read, groups: Sequence[Group]) -> Laid:
    """Return the flags of the trained model's engines: of the layout that most GPUs have."""
    working = [group for group in groups if group.kind not in IDLE]
    if not working:
        raise FileError(read.file, "has no engine of the trained model", field="server_groups")
    main = max(working, key=lambda group: group.gpus)
    gpus = sum(group.gpus for group in working)
    values: dict[str, object] = {
        settings.key_of("rollout_tp"): main.engine,
        **{f"{OF_ENGINE}{name.replace('_', '-')}": each for name, each in _own(main)},
    }
    rest = list(_otherwise(settings, working, main))
    if not settings.on("colocate"):
        values[settings.key_of("rollout_gpus")] = gpus
    elif gpus < sum(group.gpus for group in groups):
        rest.append("GPUs on which no engine stands beside the trainer: all are forecast with one")
    reading = sum(group.gpus for group in working if group.kind == PREFILL)
    if reading:
        values[settings.key_of("prefillers")] = max(1, reading // main.engine)
    flat = {key: GivenValue(value=value, where=read.file) for key, value in values.items()}
    return Laid(flat=flat, doubts=tuple(rest))


def _own(group: Group) -> Iterator[tuple[str, object]]:
    """Yield the arguments of a group's engines but for their checkpoint."""
    return ((name, each) for name, each in group.arguments.items() if name != "model_path")


def _otherwise(settings: Settings, groups: Sequence[Group], main: Group) -> Iterator[str]:
    """Yield what of groups is forecast as another one is."""
    counted = {key for each in settings.sheet.settings.values() for key in each.keys}

    def layout(group: Group) -> dict[str, object]:
        own = {f"{OF_ENGINE}{name.replace('_', '-')}": each for name, each in _own(group)}
        return {key: each for key, each in own.items() if key in counted}

    usual = layout(main)
    for group in groups:
        own = layout(group)
        other = sorted(key for key in {**own, **usual} if own.get(key) != usual.get(key))
        if group.engine != main.engine or other:
            by = f" with another {', '.join(other)}" if other else ""
            yield (
                f"{group.kind} engines of {group.engine} GPUs ({group.gpus} in all){by}, which are forecast as the {main.kind} engines "
                f"of {main.engine}"
            )


def _asks_a_teacher(settings: Settings) -> bool:
    return settings.on("distils") and settings.given("opd-type") == "sglang"


def _of_teacher(model: Served, read: Read) -> Flat:
    """Return the arguments of a teacher's server that has the GPUs of all of its groups."""
    main = max(model.groups, key=lambda group: group.gpus)
    values = {
        **{name: each for name, each in _own(main) if name not in {"tp_size", "dp_size"}},
        "model_path": model.path,
        "tp": main.engine,
        "dp": max(1, model.gpus // main.engine),
    }
    return {
        f"{OF_SERVER}{name}": GivenValue(value=each, where=read.file)
        for name, each in values.items()
    }


WAYS: Final[Mapping[str, Way]] = {
    "flags": Way(
        read=_flags, what="values over these flags", remedy="--set KEY=VALUE for each of them"
    ),
    "defaults": Way(
        read=_defaults, what="values for flags", remedy="--set KEY=VALUE for each of them"
    ),
    "roles": Way(
        read=_roles,
        what="values over these flags for one role",
        remedy="--set KEY=VALUE for each of the actor's, --set critic-lr=RATE for the critic's",
    ),
    "engines": Way(
        read=_engines,
        what="engines of several kinds",
        remedy=(
            "--set rollout-num-gpus-per-engine=N, --set prefill-num-servers=N where some only read prompts, and --set "
            "sglang-ARGUMENT=VALUE for what each engine gets"
        ),
    ),
}
