"""Sheets of configurations: which key of a framework means what of a job and plan. `profiles/frameworks/NAME/keys.yaml`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from rlplan.files.decoding import decode, load_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.files.kept_sheets import kept
from rlplan.job import Role
from rlplan.plan import Recompute
from rlplan.planner.configs.frameworks import check_parts
from rlplan.planner.placements.arrangements import Arrangement, Fixed
from rlplan.profiles.frameworks import data_files

Scalar = bool | int | float | str | None

ROLE = "{role}"
# The key by which a sheet names the framework that its own was forked from.
FORK_KEY: Final = "forked_from"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Say which key gives a setting.

    Attributes:
        keys: The first that a configuration gives counts; `{role}` stands for the role's prefix.
        over: Keys that the framework lays over those: the first that is given, and not empty, counts instead.
        default: The framework's own, where none is given.
        of_roles: Defaults of roles that have others.
        follows: The setting whose value it takes where none is given.
        values: What its words mean here; without any they mean themselves. An unknown one is refused.
        otherwise: The word for which an unknown one is taken, which is said; none refuses it.
        written: The key that an export writes, by role (`any` for all others); else the first.
        example: A value that a message names where nothing says one, and no default or word would do.
        least: The smallest number that the framework takes, where its name's range begins elsewhere (`amounts.py`).
    """

    keys: tuple[str, ...]
    over: tuple[str, ...] = ()
    default: Scalar = None
    of_roles: FrozenDict[str, Scalar] = FrozenDict()
    follows: str | None = None
    values: FrozenDict[str, Scalar] = FrozenDict()
    otherwise: str | None = None
    written: FrozenDict[str, str] = FrozenDict()
    example: Scalar = None
    least: float | None = None

    def of(self, prefix: str) -> "Setting":
        """Return it with a role's prefix in its keys."""
        written = {role: key.replace(ROLE, prefix) for role, key in self.written.items()}
        keys = tuple(key.replace(ROLE, prefix) for key in self.keys)
        return replace(self, keys=keys, written=FrozenDict(written))

    def word_for(self, meant: Scalar) -> Scalar:
        """Return the first word that means something; what is meant itself where no word does."""
        return next((word for word, means in self.values.items() if means == meant), meant)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmWords:
    """Say which words name an algorithm.

    Attributes:
        words: Settings and the values that they have; where others are left out, they may have any.
        losses: What its losses have whatever a configuration says, by the names of `rlplan.job.Hyperparameters`.
    """

    words: FrozenDict[str, Scalar]
    losses: FrozenDict[str, Scalar] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSheet:
    """Say where one of a framework's trainers has its sizes.

    Attributes:
        framework: Name of the framework sheet whose steps are forecast.
        engine: Its engine sheet, where that is not the framework's usual one.
        tokens_of_all_ranks: Whether token budgets are of all context-parallel ranks together, not of each.
        sizes: Settings by the names of `rlplan.planner.plans.trained.TrainerSizes`, and a few of the plug-in's own.
        allocates: Sizes that it has in a key of several, as an allocation, and by none of their own.
        exports: Engines, as patterns, whose plans are exported as this trainer's.
        recompute: What its backward passes may compute again; none means whatever the engine may.
        written_modules: How an export names a layer's experts among what is computed again; None where it cannot.
        layouts: Fields of layouts that are fixed, by kind of task or by role; sizes that it has no key for are 1.
        fixed: Keys, and values, that an export gives every role of the actor's and critic's pool beside.
        padded: Its engine sheet where sequences are padded; none where they never are.
        in_common: Sizes that the roles of a process share, since it has one layout.
        layout_of: Roles whose engines may start first in a process; the first that there is lays it out.
        actors_sizes: Sizes that the reference has by the actor's keys, and by none of its own.
        against: Settings that go down as a size goes up, and up as it goes down, so that a step's batch stays as it is.
    """

    framework: str
    engine: str | None = None
    tokens_of_all_ranks: bool = False
    sizes: FrozenDict[str, Setting]
    allocates: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    recompute: tuple[Recompute, ...] = ()
    written_modules: str | None = None
    layouts: Fixed = FrozenDict()
    fixed: FrozenDict[str, Scalar] = FrozenDict()
    padded: str | None = None
    in_common: tuple[str, ...] = ()
    layout_of: tuple[Role, ...] = ()
    actors_sizes: tuple[str, ...] = ()
    against: FrozenDict[str, tuple[str, ...]] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChange:
    """Say what a framework had otherwise up to a version, and with it.

    Attributes:
        defaults: Of settings and losses, by name.
        sizes: Defaults of sizes, by trainer and name.
        values: What words of settings meant, by setting and word.
        frameworks: Framework sheets, by trainer.
        engines: Sheets of generation engines, by those that are in their place today.
        engine_versions: Engine sheets by the first version of an engine that they are of, by its name; others stay.
        padded: Engine sheets where sequences are padded, by trainer.
        layout_of: Whose layout a process had, by trainer.
        own_yaml: Values of the framework's own YAML files, by the patterns of their paths; none for what they lacked.
        of_starts: Defaults of settings by the pattern of a start or of a configuration's name, as the sheet's own.
    """

    defaults: FrozenDict[str, Scalar] = FrozenDict()
    sizes: FrozenDict[str, FrozenDict[str, Scalar]] = FrozenDict()
    values: FrozenDict[str, FrozenDict[str, Scalar]] = FrozenDict()
    frameworks: FrozenDict[str, str] = FrozenDict()
    engines: FrozenDict[str, str] = FrozenDict()
    engine_versions: FrozenDict[str, FrozenDict[str, str]] = FrozenDict()
    padded: FrozenDict[str, str | None] = FrozenDict()
    layout_of: FrozenDict[str, tuple[Role, ...]] = FrozenDict()
    own_yaml: FrozenDict[str, FrozenDict[str, Scalar]] = FrozenDict()
    of_starts: FrozenDict[str, FrozenDict[str, Scalar]] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRange:
    """Say in which versions a key, or its value, was there.

    Attributes:
        since, until: The first and the last version; none where it was there from the start, or still is.
        values: The values that are meant; none means any.
        lacks: Keys that whole configurations of later versions give beside these: in a file without any of them, these
            say something.
        beside: Values of those keys, and of `lacks`, that say nothing.
        usual: Whether later versions take it all the same, and what it was replaced by is usual there.
        starts: Modules and scripts, as patterns, that only these versions start by.
    """

    keys: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    values: tuple[Scalar, ...] = ()
    lacks: tuple[str, ...] = ()
    beside: tuple[Scalar, ...] = ()
    usual: bool = False
    starts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFile:
    """Say what a key brings that names a file of more keys.

    Attributes:
        prefix: What stands before the file's keys.
        words: Values that name no file, and what the framework's own file of that name holds.
        presets: What files hold that are not at hand, by patterns of their names without an ending: the framework's own,
            and those that are called as they are.
    """

    prefix: str = ""
    words: FrozenDict[str, FrozenDict[str, Scalar]] = FrozenDict()
    presets: FrozenDict[str, FrozenDict[str, Scalar]] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCall:
    """Say what the arguments of a call in a Python program are.

    Attributes:
        prefix: What stands before their keys.
        first: The key of the first argument, where that stands without its name; empty where it is none.
    """

    prefix: str = ""
    first: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSheet:
    """Say where keys stand beside the command line behind the start. What stands there counts first.

    Attributes:
        launchers: Programs in front of the start whose flags are keys too.
        apart: Flags of launchers that mean something else than the keys of their names.
        of_launchers: Keys that only what launches reads, or its own file: what a file behind the start says of them counts last.
        in_front: Flags of launchers that the start itself refuses, so that no file of its own may say them either.
        fronted: Words that start a launcher which takes those, right behind them.
        variables: Variables of the start's command, or of its Ray job, that are keys.
        services: Commands of their own whose flags are keys: what stands before these, by the words that start one.
        sections: Beginnings of keys that a file gives in a section of its own, and what stands in their place; the first that
            a key begins with counts.
        positional_file: Whether the first word behind a start may name its YAML file.
        named_file: Whether `--config_path` and `--config_name` do, beside the program or the script that starts it.
        files: Keys that name files of more keys; those of the first file count before those of the next.
        over_flags: Flags that name files whose values are laid over the others, and how each is read (`configs/megatron/over_flags.py`).
        calls: Calls of a Python program that give keys, by patterns of the callee's name.
        starts: Those of them that start a training.
        library: Module of the framework, which programs import these from; empty looks at no imports.
        refused: Calls of programs that train otherwise, by patterns of the callee's name, and what they do.
        repeats: A word (a regular expression) that copies of the framework's trainer have since its batches count as they do now.
        copied: The version as which a copy without that word counts its batches.
    """

    launchers: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    of_launchers: tuple[str, ...] = ()
    in_front: tuple[str, ...] = ()
    fronted: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    services: FrozenDict[str, str] = FrozenDict()
    sections: FrozenDict[str, str] = FrozenDict()
    positional_file: bool = False
    named_file: bool = False
    files: FrozenDict[str, KeyFile] = FrozenDict()
    over_flags: FrozenDict[str, Literal["flags", "defaults", "roles", "engines"]] = FrozenDict()
    calls: FrozenDict[str, PythonCall] = FrozenDict()
    starts: tuple[str, ...] = ()
    library: str = ""
    refused: FrozenDict[str, str] = FrozenDict()
    repeats: str = ""
    copied: str = ""


NO_LAUNCH = LaunchSheet()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConfigSheet:
    """Say what a framework's keys mean.

    In `without_influence`, `not_modelled`, `changes_work` and `usual` names in braces are alternatives
    (`trainer.{save,test}_freq`), and `{role}` stands for the prefixes of all roles.

    Attributes:
        version: The framework's, whose keys and defaults these are.
        versions: Those that are known, the oldest first; the last is the one whose keys these are.
        earlier: What earlier ones had otherwise, by the last version that had it.
        of_starts: Defaults of settings where a start of another name than the usual trains, or a configuration of that name, by its pattern.
        ranges: Keys that only some versions have: by them a configuration says of which it is.
        images: What says a version in names of container images and packages, as regular expressions: the group
            `version` is of the framework, one with an engine's name of that, `NAME_minor` what follows its `0.`.
        engines: Sheets of generation engines in this version, by those that are in their place today.
        version_files: Files of a checkout that hold nothing but the version, or give it as `__version__`.
        version_marks: Files of a checkout, and a text in each that only checkouts of that version or behind it have, whatever
            number they say, by version.
        mirrors: Keys of a program beside the framework's own, by each the framework's key that it is given when it starts.
        mirrored_switches: Those of them that also turn a key of the framework's on where they are above 0.
        package: Name under which its own setup.py or pyproject.toml gives its version beside it; empty where that is none.
        packages: Names that it had otherwise, by each what stands before the numbers of those versions.
        engine_versions: Engine sheets by the first version of an engine that they are of, by its name.
        engine_switches: Engine sheets in the place of others where a script sets an environment variable so, by `NAME=value`.
        arguments: How its command line is written: `hydra` overrides, `flags` of argparse, or `toml` files with flags.
        valued_switches: Whether a switch takes a value behind it, by which a word says that it is off: `--bf16 False`, as
            transformers' HfArgumentParser reads it (`string_to_bool`, hf_argparser.py).
        parts: Of a configuration in several TOML files: how a part's files are called, as patterns, by its keys' prefix.
        unsure_versions: Numbers in version files that later checkouts have too.
        refuses_unknown: Whether its start stops at keys that it does not know, so that a configuration which has some
            is of a copy that has more.
        refused_later_until: The last version whose start stops at keys of later ones, where scripts may have keys of their own.
        first_is_apart: Whether its oldest known version is a system of its own, at whose keys all later ones stop.
        refused_in_files_since: The first one that stops at such keys in YAML files too.
        file_key: Key whose value names the YAML file of a configuration; empty where the flag `--config` does.
        starts: Modules and scripts that train with RL, as patterns; what follows one is its command line. One of two
            words is a program and its command.
        launch: Where keys stand beside that command line.
        plain_starts: Those whose names say nothing, as patterns: they count where one of `start_keys` follows.
        fork_starts: Those of frameworks that are built on it, as patterns; they are taken as its own.
        start_keys: Keys, as patterns, that no other program has: a Python program with two of them is such a fork's.
        refused_starts: Those that train otherwise, and what they do.
        refused_switches: Keys that, where they are on, make it do otherwise, and what.
        refused_keys: Keys of configurations that train otherwise, as patterns, and what they do.
        own_files: Configurations of the framework's own that hydra composes, as patterns; none where it composes none.
        own_folders: Where they stand, as patterns.
        kept_defaults: Settings, losses and sizes whose defaults stand whatever a checkout's own files say: names of models, of
            files and of what trains, what runs for so long, and what its code does not read.
        told_by_code: Values of keys by a text in a checkout's code, by its file: what forks changed there.
        own_yaml: Values of YAML files of the framework's own, by patterns of their paths: they stand for one that is
            named and not at hand.
        older: Keys by the names that they had in earlier versions.
        later: Beginnings of keys as checkouts after the newest known version have them, and what they are here.
        models: What stands in place of a model's name in the framework's own files, and the sheet that is meant.
        roles: Prefix of the keys of each role.
        role_follows: Roles that take another's size where they give none of their own.
        steps_are_updates: Whether steps from one validation or checkpoint to the next are updates, of which an iteration may
            have several.
        steps_below_one_are_shares: Whether a number of steps from one of these to the next that is below 1 is a share of all.
        settings: What is no role's.
        algorithms: Those for which the `estimator` alone does not stand; the first counts whose words are all said.
        losses: Settings by the names of `rlplan.job.Hyperparameters`; the job gets what a configuration gives.
        added: Keys, as patterns, that hydra only takes with a `+` before them.
        files_are_whole: Whether its files hold all keys, so that hydra takes one that they lack only with a `+`.
        arrangements: The ways in which its roles can share GPUs and follow each other.
        searched_alike: Sheets of steps that no trainer has and whose jobs are searched as what its trainers run.
        trainers: By the name that the plug-in finds.
        only_where: Beginnings of keys that count only where a setting has one of some words.
        switches: Last parts of keys in `not_modelled` that turn on what stands beside them, which alone takes nothing.
        without_influence: Keys that change neither time nor memory, by the reason why.
        not_modelled: Keys that may, and for which job and plan have no field: what is not counted. Where such
            a key is off, empty or its usual value, nothing is.
        changes_work: Keys that change how much is done in a step, and for which job and plan have no field: what
            they change. Where such a key is off, empty or its usual value, nothing is.
        spares: Keys, as patterns, that keep something off the GPUs which the forecast counts there where they are
            on, and the end of its term's name.
        usual: Values of keys that stand for what is forecast anyway, one or several of each.
        probes: Words of commands by which scripts ask what machine they are on, and whether they succeed on one
            with GPUs.
        sources: Origin of keys and defaults.
    """

    name: str
    title: str
    version: str
    versions: tuple[str, ...]
    earlier: FrozenDict[str, VersionChange] = FrozenDict()
    of_starts: FrozenDict[str, FrozenDict[str, Scalar]] = FrozenDict()
    ranges: tuple[VersionRange, ...] = ()
    images: tuple[str, ...] = ()
    engines: FrozenDict[str, str] = FrozenDict()
    version_files: tuple[str, ...] = ()
    version_marks: FrozenDict[str, FrozenDict[str, str]] = FrozenDict()
    package: str = ""
    packages: FrozenDict[str, str] = FrozenDict()
    engine_versions: FrozenDict[str, FrozenDict[str, str]] = FrozenDict()
    engine_switches: FrozenDict[str, FrozenDict[str, str]] = FrozenDict()
    arguments: Literal["hydra", "flags", "toml"]
    valued_switches: bool = False
    parts: FrozenDict[str, tuple[str, ...]] = FrozenDict()
    unsure_versions: tuple[str, ...] = ()
    mirrors: FrozenDict[str, str] = FrozenDict()
    mirrored_switches: FrozenDict[str, str] = FrozenDict()
    refuses_unknown: bool = False
    refused_later_until: str | None = None
    first_is_apart: bool = False
    refused_in_files_since: str | None = None
    file_key: str = ""
    starts: tuple[str, ...]
    launch: LaunchSheet = NO_LAUNCH
    plain_starts: tuple[str, ...] = ()
    fork_starts: tuple[str, ...] = ()
    start_keys: tuple[str, ...] = ()
    refused_starts: FrozenDict[str, str] = FrozenDict()
    refused_switches: FrozenDict[str, str] = FrozenDict()
    refused_keys: FrozenDict[str, str] = FrozenDict()
    own_files: tuple[str, ...] = ()
    own_folders: tuple[str, ...] = ()
    kept_defaults: tuple[str, ...] = ()
    told_by_code: FrozenDict[str, FrozenDict[str, FrozenDict[str, Scalar]]] = FrozenDict()
    own_yaml: FrozenDict[str, FrozenDict[str, Scalar]] = FrozenDict()
    older: FrozenDict[str, str] = FrozenDict()
    later: FrozenDict[str, str] = FrozenDict()
    models: FrozenDict[str, str] = FrozenDict()
    roles: FrozenDict[str, str] = FrozenDict()
    role_follows: FrozenDict[str, str] = FrozenDict()
    steps_are_updates: bool = False
    steps_below_one_are_shares: bool = False
    settings: FrozenDict[str, Setting]
    algorithms: FrozenDict[str, AlgorithmWords] = FrozenDict()
    losses: FrozenDict[str, Setting] = FrozenDict()
    added: tuple[str, ...] = ()
    files_are_whole: bool = False
    arrangements: tuple[Arrangement, ...] = ()
    searched_alike: tuple[str, ...] = ()
    trainers: FrozenDict[str, TrainerSheet]
    only_where: FrozenDict[str, FrozenDict[str, tuple[Scalar, ...]]] = FrozenDict()
    switches: tuple[str, ...] = ()
    without_influence: FrozenDict[str, tuple[str, ...]]
    not_modelled: FrozenDict[str, str] = FrozenDict()
    changes_work: FrozenDict[str, str] = FrozenDict()
    spares: FrozenDict[str, str] = FrozenDict()
    usual: FrozenDict[str, Scalar | tuple[Scalar, ...]] = FrozenDict()
    probes: FrozenDict[str, bool] = FrozenDict()
    sources: FrozenDict[str, str]

    def every_setting(self) -> Sequence[Setting]:
        """Return all settings: sizes of every trainer, by the keys of every role, and then those of all."""
        return _settings_of(self)

    def name_of(self, key: str) -> str:
        """Return what a key is called here, by any name that it has had."""
        of_later = (
            known + key.removeprefix(name)
            for name, known in self.later.items()
            if key.startswith(name)
        )
        return self.older.get(key) or next(of_later, key)

    def harmless(self) -> frozenset[str]:
        """Return the keys, and patterns of keys, that change neither time nor memory."""
        return _harmless_of(self)

    def named(self) -> Iterator[str]:
        """Yield every key that it names, patterns of keys left out."""
        yield from (key for key in self.every_key() if not set("*?") & set(key))

    def named_patterns(self) -> Iterator[str]:
        """Yield every pattern of keys that it has."""
        yield from (key for key in self.every_key() if set("*?") & set(key))

    def every_key(self) -> Iterator[str]:
        """Yield every key that it has, patterns of keys among them."""
        said = (*self.not_modelled, *self.changes_work)
        written = (name for key in said for name in spelled(key, self.roles))
        settings = (key for each in self.every_setting() for key in (*each.keys, *each.over))
        yield from dict.fromkeys((*settings, *self.refused_switches, *self.harmless(), *written))

    def of(self, version: str) -> "ConfigSheet":
        """Return it as one of the known versions has it."""
        is_newest = version in {self.version, self.versions[-1]}
        return self if is_newest else _as_of(self, version)


def of_start(sheet: ConfigSheet, start: str) -> ConfigSheet:
    """Return a sheet with the defaults that a start, or a configuration by its name, has which is not the usual one."""
    for pattern, defaults in sheet.of_starts.items():
        if fnmatchcase(start.lower(), pattern):
            return _changed(sheet, VersionChange(defaults=defaults))
    return sheet


def _changed(sheet: ConfigSheet, earlier: VersionChange) -> ConfigSheet:
    """Return a sheet with what was otherwise earlier."""
    settings, losses = (
        {
            name: replace(
                each,
                default=earlier.defaults.get(name, each.default),
                values=FrozenDict({**each.values, **earlier.values.get(name, {})}),
            )
            for name, each in section.items()
        }
        for section in (sheet.settings, sheet.losses)
    )
    trainers = {
        name: replace(
            each,
            framework=earlier.frameworks.get(name, each.framework),
            sizes=_sized(each.sizes, earlier.sizes.get(name, FrozenDict())),
            padded=earlier.padded.get(name, each.padded),
            layout_of=earlier.layout_of.get(name, each.layout_of),
        )
        for name, each in sheet.trainers.items()
    }
    return replace(
        sheet,
        settings=FrozenDict(settings),
        losses=FrozenDict(losses),
        trainers=FrozenDict(trainers),
        engines=FrozenDict({**sheet.engines, **earlier.engines}),
        of_starts=FrozenDict({**sheet.of_starts, **earlier.of_starts}),
        engine_versions=FrozenDict(
            {
                name: FrozenDict({**firsts, **earlier.engine_versions.get(name, {})})
                for name, firsts in sheet.engine_versions.items()
            }
        ),
        own_yaml=FrozenDict(
            {
                name: FrozenDict({**values, **earlier.own_yaml.get(name, {})})
                for name, values in sheet.own_yaml.items()
            }
        ),
    )


# A sheet is asked the same by all that is read with it, and is itself alone equal to it. Starts and engines change sheets
# anew with each configuration: a process that reads many keeps the last ones.
REMEMBERED_SHEETS: Final = 64


@lru_cache(maxsize=REMEMBERED_SHEETS)
def _as_of(sheet: ConfigSheet, version: str) -> ConfigSheet:
    place, changed = sheet.versions.index(version), replace(sheet, version=version)
    for until in reversed(sheet.versions[place:]):
        if until in sheet.earlier:
            changed = _changed(changed, sheet.earlier[until])
    return changed


@lru_cache(maxsize=REMEMBERED_SHEETS)
def _settings_of(sheet: ConfigSheet) -> tuple[Setting, ...]:
    sizes = (
        setting.of(prefix)
        for trainer in sheet.trainers.values()
        for setting in trainer.sizes.values()
        for prefix in sheet.roles.values()
    )
    return (*sizes, *sheet.settings.values(), *sheet.losses.values())


@lru_cache(maxsize=REMEMBERED_SHEETS)
def _harmless_of(sheet: ConfigSheet) -> frozenset[str]:
    return frozenset(
        name
        for keys in sheet.without_influence.values()
        for key in keys
        for name in spelled(key, sheet.roles)
    )


def _sized(
    sizes: Mapping[str, Setting], defaults: Mapping[str, Scalar]
) -> FrozenDict[str, Setting]:
    return FrozenDict(
        {
            name: replace(each, default=defaults.get(name, each.default))
            for name, each in sizes.items()
        }
    )


def spelled(key: str, roles: Mapping[str, str]) -> Sequence[str]:
    """Return the keys that one with alternatives in braces stands for; `{role}` is one of the roles' prefixes."""
    return _spelled(key, tuple(roles.values()))


@lru_cache(maxsize=65536)
def _spelled(key: str, prefixes: tuple[str, ...]) -> tuple[str, ...]:
    head, brace, rest = key.partition("{")
    if not brace:
        return (key,)
    inner, _, tail = rest.partition("}")
    alternatives = prefixes if brace + inner + "}" == ROLE else inner.split(",")
    return tuple(
        name for each in alternatives for name in _spelled(f"{head}{each}{tail}", prefixes)
    )


def own_file(sheet: ConfigSheet, named: str) -> str | None:
    """Return the pattern of a framework's own YAML file that a path is of; None where it is of none."""
    return next((each for each in sheet.own_yaml if fnmatchcase(f"/{named}", each)), None)


def own_values(sheet: ConfigSheet, named: str) -> Mapping[str, Scalar]:
    """Return what a framework's own YAML file has, by the path of one that is not at hand; else what its first one has."""
    values = sheet.own_yaml[own_file(sheet, named) or next(iter(sheet.own_yaml))]
    return {key: value for key, value in values.items() if value is not None}


@cache
def load_config_sheet(name: str) -> ConfigSheet:
    """Return the sheet of a framework's keys.

    Raises:
        UnknownNameError: No such framework is known.
        MissingPartError: Its keys are not known.
    """
    check_parts(name, "keys")
    path = data_files("keys")[name]

    def read() -> tuple[ConfigSheet, list[Path]]:
        files: list[Path] = []
        return decode(ConfigSheet, _keys_of(path, files), str(path)), files

    return kept(ConfigSheet, path, read)


def is_library(name: str) -> bool:
    """Tell whether programs of one's own start a framework's training, by calls."""
    return bool(load_config_sheet(name).launch.starts)


def _keys_of(path: Path, files: list[Path]) -> Any:  # noqa: ANN401 -- as a file has it; `decode` refuses what is no sheet
    """Return what a sheet of keys holds: what it says, over all that the framework's has which it was forked from.

    Of a section that both have, what the fork says counts, key by key; null takes a key away.

    Args:
        files: Gets the files of both.
    """
    files.append(path)
    data = load_yaml(path)
    if not isinstance(data, dict) or FORK_KEY not in data:
        return data
    base = _keys_of(data_files("keys")[data.pop(FORK_KEY)], files)
    merged = dict(base)
    for key, value in data.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        over = {**base[key], **value} if both else value
        merged[key] = (
            {name: each for name, each in over.items() if each is not None} if both else over
        )
    return merged
