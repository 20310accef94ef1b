"""Settings: a configuration's values by what they mean, as a framework's sheet says."""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from rlplan.errors import FileError, MissingValueError, nearest_names
from rlplan.planner.configs.reading.amounts import AMOUNTS, ENDED_BY_STEPS, LOOKED_AT_FIRST, STEPS
from rlplan.planner.configs.reading.given import Flat, GivenValue
from rlplan.planner.configs.reading.python.values import NOT_GIVEN
from rlplan.planner.configs.reading.sheet import ConfigSheet, Scalar, Setting, spelled
from rlplan.planner.configs.shell.text import OF_THE_RUN, Gap

EMPTY: tuple[object, ...] = (None, "", [], {})
# What settings are called that name a model, and one that an example names.
MODEL = "model"
EXAMPLE_MODEL = "Qwen/Qwen2.5-7B-Instruct"
# What estimators of somebody's own mostly are made of: group-relative advantages, whose passes all others of groups have.
ESTIMATOR, USUAL_ESTIMATOR = "estimator", "grpo"
# Tokens that an example names where a framework has no default of its own, by setting: a prompt and a response fit in.
EXAMPLE_TOKENS = {
    "max_prompt": 1024, "max_response": 1024, "max_total": 4096, "server_model_len": 4096, "longest_text": 4096,
}  # fmt: skip
OFF: tuple[object, ...] = (None, False, 0, 0.0, "", "null", "none", "disabled", [], {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Hold the words that stand below the end of the command which starts a training.

    Attributes:
        words: As they are written.
        where: File and line of the first.
        ends: The line that ends the command, and what ends it there.
        line: Where the command begins.
    """

    words: tuple[str, ...]
    where: str
    ends: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldModel:
    """Hold a model that words beside a model's own path name.

    Attributes:
        sheet: The model's.
        by: Which words do, and where they stand.
    """

    sheet: str
    by: str


@dataclass(slots=True)
class Settings:
    """Answer what a configuration sets; keys that were asked for are remembered.

    Attributes:
        sheet: What its keys mean.
        flat: Its values by key.
        file: Its name, for messages.
        start: The module or script that it starts; empty for a bare configuration.
        gaps: Parts of a script that could not be evaluated.
        taken_as: The framework's own start that the start is taken as, where it is another's; else empty.
        lost: What its script has below the end of the command; None where there is nothing.
        notes: What is to be said of how it was read.
        guesses: What was assumed of the amount of work as it was read.
        is_partial: Whether a file that it names is not at hand, and other values stand for it.
        model: Takes the place of the actor's model, where somebody says so.
        tells: Models that other words name, where what names the actor's says none that is known.
        used: Keys whose values went into the job or plan.
        left_out: Keys whose values job and plan cannot hold: what is not counted.
        doubts: Keys that change how much is done in a step, in a way that job and plan do not hold: what of it.
        version_reason: Why the sheet is of its version.
        switched: What a script's line says that asks for another engine of that version, and where; empty where none does.
        copied: The version as which a copy of the framework's trainer counts, and why; empty for none.
        elsewhere: Calls that mean something in modules beside the program, as `PythonKeys` holds them.
        written: Texts of files that its script writes, by their paths.
        played: Lines of scripts that are played, from 1, by the scripts' paths; of others all are.
    """

    sheet: ConfigSheet
    flat: Flat
    file: str
    start: str = ""
    gaps: tuple[Gap, ...] = ()
    taken_as: str = ""
    lost: Lost | None = None
    notes: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()
    is_partial: bool = False
    model: str | None = None
    tells: tuple[ToldModel, ...] = ()
    used: set[str] = field(default_factory=set)
    left_out: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)
    version_reason: str = ""
    switched: str = ""
    copied: tuple[str, ...] = ()
    elsewhere: tuple[tuple[str, str, str], ...] = ()
    written: Mapping[str, str] = field(default_factory=dict)
    played: dict[str, frozenset[int]] = field(default_factory=dict)

    @property
    def told(self) -> ToldModel | None:
        """Return the model that other words name; None where they name none, or several."""
        return self.tells[0] if len(self.tells) == 1 else None

    def value(self, name: str) -> object:
        """Return a setting's value; the framework's default where none is given."""
        return self.value_of(self.sheet.settings[name], name)

    def unmapped(self, name: str) -> object:
        """Return a setting's value that goes into no job or plan: its key stays among those that do not."""
        used = set(self.used)
        value = self.value(name)
        self.used.intersection_update(used)
        return value

    def loss(self, name: str) -> object:
        """Return what the losses or optimizers need; None where it is not given."""
        return self.value_of(self.sheet.losses[name], name)

    def is_given(self, name: str) -> bool:
        """Return whether a configuration gives a setting, whatever its value; one that no key gives never is."""
        if not self.sheet.settings[name].keys:
            return False
        given = self.flat.get(self.key_of(name))
        if given is not None:
            self.used.add(self.key_of(name))
        return given is not None and (bool(given.gaps) or given.value is not None)

    def given(self, key: str) -> object:
        """Return the value that a configuration gives a key, whether it means anything or not; else None."""
        found = self.flat.get(key)
        return None if found is None else found.value

    def called(self, key: str) -> str:
        """Return what a key is called in the configuration: by the name that it has there, or that others of its section have."""
        given = self.flat.get(key)
        if given is not None:
            return given.older or key
        named = (
            name + key.removeprefix(known)
            for name, known in self.sheet.later.items()
            if key.startswith(known)
            and any(each.older.startswith(name) for each in self.flat.values())
        )
        return next(named, key)

    def keep_played(self, script: Path, lines: Iterable[int] | None) -> None:
        """Keep which lines of a script are played; None where that is not known."""
        if lines is not None:
            self.played[str(script)] = frozenset(lines)

    def later_names(self) -> Iterator[str]:
        """Yield a note where keys have names that checkouts after the newest known version gave them."""
        for name, known in self.sheet.later.items():
            if any(each.older.startswith(name) for each in self.flat.values()):
                before = f"as {self.sheet.title} called it before"
                yield f"{name.rstrip('.')} is read as {known.rstrip('.')}, {before}"

    def whole(self, name: str) -> int:
        """Return a setting that is a whole number."""
        return self.as_whole(self.sheet.settings[name], self._needed(name))

    def optional_whole(self, name: str) -> int | None:
        """Return a setting that is a whole number, or None."""
        return None if self.value(name) is None else self.whole(name)

    def number(self, name: str) -> float:
        """Return a setting that is a number."""
        value = self._needed(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(name, "is no number", "a number")
        try:
            return float(value)
        except OverflowError:
            raise self.refused(name, "is larger than a number can be", "a number") from None

    def _needed(self, name: str) -> object:
        """Return a setting's value.

        Raises:
            MissingValueError: None is given, and the framework has no default.
        """
        value, key = self.value(name), self.key_of(name)
        if value is None and key not in self.flat:
            raise self.missing(self.sheet.settings[name], key, "is missing", "a number")
        return value

    def on(self, name: str) -> bool:
        """Return whether a switch is on."""
        return is_on(self.value(name))

    def positions(self) -> int | None:
        """Return the longest sequence that a configuration gives the actor: outright, or by scaled rotations."""
        most = self.optional_whole("positions")
        factor, original = self.value("rope_factor"), self.optional_whole("rope_original")
        scaled = isinstance(factor, int | float) and original is not None
        return round(factor * original) if most is None and scaled else most  # type: ignore[operator]

    def word(self, name: str) -> str:
        """Return a setting that is a word.

        Raises:
            FileError: None is given, and the framework has no default.
        """
        value = self.value(name)
        if value is None:
            raise self.missing(
                self.sheet.settings[name], self.key_of(name), "is missing", "a value"
            )
        return str(value)

    def path(self, name: str) -> str:
        """Return a setting that is an id or a path; what leads to its last part may be unknown.

        Raises:
            FileError: None is given, or its last part cannot be evaluated.
        """
        given = self.flat.get(self.key_of(name))
        if given is not None and given.gaps and isinstance(given.value, str):
            *_, known = re.split(r"[^/]*[$`)][^/]*/", given.value)
            if known not in {"", given.value} and not any(sign in known for sign in "$`)"):
                self.used.add(self.key_of(name))
                return known
            problem = f"cannot be evaluated: {given.gaps[0]}"
            allowed = f"{_remedy(given.gaps[0])}; or the model by --model"
            raise self.missing(self.sheet.settings[name], self.key_of(name), problem, allowed)
        return self.word(name)

    def has(self, pattern: str) -> Iterator[str]:
        """Yield the given keys that fit a pattern."""
        return (key for key in self.flat if fnmatchcase(key, pattern))

    def of(self, trainer: str, role: str, layout_of: str | None = None) -> "RoleSettings":
        """Return what is set of a role's model, as its trainer has it.

        Args:
            layout_of: The role whose layout all of a process have.
        """
        return RoleSettings(self, trainer, role, layout_of)

    def key_of(self, name: str) -> str:
        """Return the key that gives a setting, or would give it."""
        return self.key_giving(self.sheet.settings[name])

    def key_giving(self, setting: Setting) -> str:
        """Return the key that gives what a sheet's setting stands for, or would give it."""
        given = (*self._laid_over(setting), *(key for key in setting.keys if key in self.flat))
        return next(iter((*given, *setting.keys, "")))

    def doubt(self, name: str, what: str) -> None:
        """Say that a setting, where it is given, changes how much is done in a way that is not counted."""
        if self.key_of(name) in self.flat:
            self.doubts[self.key_of(name)] = what

    def leave_out(self, name: str, what: str) -> None:
        """Say that a setting, where it is given, may take time or memory and is not counted."""
        if self.key_of(name) in self.flat:
            self.left_out[self.key_of(name)] = what

    def counts(self, key: str) -> bool:
        """Return whether a key counts in this configuration: others of its settings may turn it off."""
        for beginning, conditions in self.sheet.only_where.items():
            if key.startswith(beginning) and not all(
                self._has_word(self.sheet.settings[name], words)
                for name, words in conditions.items()
            ):
                return False
        return True

    def _has_word(self, setting: Setting, words: Collection[object]) -> bool:
        """Return whether a setting is one of some words, or may be as it cannot be evaluated."""
        given = next((self.flat[key] for key in setting.keys if key in self.flat), None)
        if given is not None and given.gaps:
            return True
        value = setting.default if given is None else given.value
        return value in words or (True in words and is_on(value))

    def _laid_over(self, setting: Setting) -> Iterator[str]:
        """Yield the given keys that the framework lays over a setting's own."""
        for key in setting.over:
            given = self.flat.get(key)
            if given is not None and (given.gaps or given.value is not None) and self.counts(key):
                yield key

    def refused(self, name: str, problem: str, allowed: str) -> FileError:
        """Return the error of a setting that cannot be imported."""
        return self.refused_key(self.key_of(name), problem, allowed)

    def refused_key(
        self,
        key: str,
        problem: str,
        allowed: str,
        nearest: Sequence[str] = (),
    ) -> FileError:
        """Return the error of a key that cannot be imported.

        Args:
            nearest: What may have been meant, the likeliest first.
        """
        given = self.flat.get(key)
        file = given.where if given is not None else self.file
        value = None if given is None or given.value is None else given.value
        field = key if given is None else given.older or key
        return FileError(
            file,
            problem,
            field=field,
            value=value,
            allowed=allowed,
            nearest=nearest[0] if nearest else None,
            others=nearest[1:],
        )

    def missing(self, setting: Setting, key: str, problem: str, allowed: str) -> MissingValueError:
        """Return the error of a key whose value nothing at hand says, with the option that would say it."""
        named = next((name for name, each in self.sheet.settings.items() if each == setting), "")
        if named.endswith(MODEL):
            role = "" if named == MODEL else f"{named.removesuffix(f'_{MODEL}')}="
            example: object = EXAMPLE_MODEL
            options = ("--model", f"{role}{EXAMPLE_MODEL}")
        else:
            example = _example(setting, named)
            options = ("--set", f"{key}={example}")
        given = self.flat.get(key)
        return MissingValueError(
            self.file if given is None else given.where,
            problem,
            options=options,
            key=key,
            example=example,
            field=key if given is None else given.older or key,
            allowed=f"{allowed}, as {shlex.join(options)}",
        )

    def refuse_others(self, allowed: str) -> None:
        """Refuse a configuration that trains otherwise, by the sheet's keys of such ones.

        Raises:
            FileError: It has one of them.
        """
        for pattern, what in self.sheet.refused_keys.items():
            found = next(self.has(pattern), None)
            if found is not None:
                raise self.refused_key(found, what, allowed)

    def check_amounts(self) -> None:
        """Refuse numbers without sense of what nothing is made of, or much is divided by, before anything is.

        Raises:
            FileError: Names the first key.
        """
        for name in LOOKED_AT_FIRST:
            setting = self.sheet.settings.get(name)
            if setting is None or (name in ENDED_BY_STEPS and self._has_steps()):
                continue
            for key in (*setting.over, *setting.keys):
                given = self.flat.get(key)
                if given is not None and not given.gaps and self.counts(key):
                    self._check_amount(name, setting, key, given.value)

    def _has_steps(self) -> bool:
        """Tell whether a number of steps ends the training."""
        known = (name for name in STEPS if name in self.sheet.settings)
        given = (self.given(self.key_of(name)) for name in known)
        return any(isinstance(each, int | float) and each > 0 for each in given)

    def _check_amount(self, name: str, setting: Setting, key: str, value: object) -> None:
        """Refuse a number that makes no sense for a setting of that name.

        Raises:
            FileError: It does not.
        """
        amount = AMOUNTS.get(name)
        # A flag with nothing behind it, as where a script's variable is empty, is told where a number is asked for.
        if amount is None or (value is True and self.sheet.arguments == "flags"):
            return
        fault = amount.fault(value, setting.least)
        if fault is not None:
            raise self.refused_key(key, *fault)

    def value_of(self, setting: Setting, name: str = "") -> object:
        """Return the value of what a sheet's setting stands for.

        Args:
            name: The setting's or the size's, by which numbers make sense or not.

        Raises:
            FileError: Its value cannot be evaluated, is not known, or makes no sense.
        """
        for key in (*self._laid_over(setting), *setting.keys):
            given = self.flat.get(key)
            if given is None:
                continue
            self.used.add(key)
            if given.gaps:
                problem = f"cannot be evaluated: {given.gaps[0]}"
                raise self.missing(setting, key, problem, _remedy(given.gaps[0]))
            if not setting.values:
                self._check_amount(name, setting, key, given.value)
            return self._meant(setting, key, given)
        if setting.follows:
            return self.value(setting.follows)
        usual = setting.default
        return setting.values.get(usual, usual) if isinstance(usual, str) else usual

    def _meant(self, setting: Setting, key: str, given: GivenValue) -> object:
        """Return what a word means; an unknown word of a fork (`fsdp_turbo`) is taken as the known word that is part of it."""
        if not setting.values or (given.value is None and setting.default is None):
            return given.value
        word = str(given.value)
        if word not in setting.values:
            known = setting.values.keys()
            part = next((each for each in word.split("_") if each in known), setting.otherwise)
            if part is not None:
                note = f"{key}={word} is not of {self.sheet.title} {self.sheet.version}: taken as {part}"
                self.notes = tuple(dict.fromkeys((*self.notes, note)))
                return setting.values[part]
            nearest = nearest_names(word, known, 1)
            if setting == self.sheet.settings.get(ESTIMATOR):
                raise self._unknown_estimator(setting, key, given, nearest)
            raise self.refused_key(key, "is not known", ", ".join(known), nearest)
        return setting.values[word]

    def _unknown_estimator(
        self, setting: Setting, key: str, given: GivenValue, nearest: Sequence[str]
    ) -> MissingValueError:
        """Return the error of an estimator of somebody's own, with the option that takes a known one in its place."""
        meant = str(given.value).replace("_", "-")
        of_that_name = (word for word, means in setting.values.items() if means == meant)
        usual = (word for word, means in setting.values.items() if means == USUAL_ESTIMATOR)
        example = (*of_that_name, *nearest, *usual, *setting.values)[0]
        return MissingValueError(
            given.where,
            "is not known",
            options=("--set", f"{key}={example}"),
            key=key,
            example=example,
            field=given.older or key,
            value=given.value,
            allowed=", ".join(setting.values),
            nearest=nearest[0] if nearest else None,
        )

    def as_whole(self, setting: Setting, value: object) -> int:
        """Return the value of what a sheet's setting stands for, a whole number."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            key = self.key_giving(setting)
            if value is True and self.sheet.arguments == "flags":
                # A flag with nothing behind it, as where a script's variable is empty, which argparse refuses.
                raise self.missing(setting, key, "is given no number", "a whole number")
            raise self.refused_key(key, "is no whole number", "a whole number")
        return value


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """Answer what a configuration sets of one role's model, by the names of its trainer's sizes.

    Attributes:
        layout_of: The role whose keys count for sizes that all roles of a process have in common; None for none.
    """

    settings: Settings
    trainer: str
    role: str
    layout_of: str | None = None

    @property
    def names(self) -> Collection[str]:
        """Return the sizes that the trainer has keys for."""
        return self.settings.sheet.trainers[self.trainer].sizes

    def value(self, name: str) -> object:
        """Return a size; a role without a size of its own takes that of the role it follows."""
        if name not in self.names:
            return None
        setting, settings = self._setting(name), self.settings
        followed = settings.sheet.role_follows.get(self._role(name))
        if followed is not None and not any(key in settings.flat for key in setting.keys):
            return replace(self, role=followed, layout_of=None).value(name)
        if not settings.counts(settings.key_giving(setting)):
            return setting.default
        return settings.value_of(setting, name)

    def optional_whole(self, name: str) -> int | None:
        """Return a size that is a whole number, or None."""
        value = self.value(name)
        return None if value is None else self.settings.as_whole(self._setting(name), value)

    def share(self, name: str, usual: float) -> float:
        """Return a size that is a share; `usual` where none is given.

        Raises:
            FileError: It is no number from 0 to 1.
        """
        value = self.value(name)
        if value is None:
            return usual
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.settings.refused_key(self.key_of(name), "is no share", "from 0 to 1")
        return float(value)

    def whole(self, name: str, usual: int = 1) -> int:
        """Return a size that is a whole number; `usual` where none, or 0, is given."""
        return self.optional_whole(name) or usual

    def on(self, name: str) -> bool:
        """Return whether a switch is on."""
        return is_on(self.value(name))

    def is_given(self, name: str) -> bool:
        """Return whether a configuration gives a size, other than none, by a key of the role's own."""
        given = (self.settings.flat.get(key) for key in self._setting(name).keys)
        return any(each is not None and each.value is not None for each in given)

    def key_of(self, name: str) -> str:
        """Return the key that gives a size, or would give it."""
        return self.settings.key_giving(self._setting(name))

    def word_for(self, name: str, meant: Scalar) -> Scalar:
        """Return the first word by which a size means something; what is meant itself where words mean themselves."""
        return self._setting(name).word_for(meant)

    def _setting(self, name: str) -> Setting:
        sheet, role = self.settings.sheet, self._role(name)
        setting = sheet.trainers[self.trainer].sizes[name].of(sheet.roles[role])
        if role not in setting.of_roles:
            return setting
        return replace(setting, default=setting.of_roles[role])

    def _role(self, name: str) -> str:
        """Return the role whose keys give a size."""
        trainer = self.settings.sheet.trainers[self.trainer]
        if self.layout_of is not None and name in trainer.in_common:
            return self.layout_of
        return "actor" if self.role == "reference" and name in trainer.actors_sizes else self.role


def _example(setting: Setting, named: str) -> object:
    """Return a value that a setting may have: its example, the framework's default, the first word that means something, else a number."""
    if setting.example is not None:
        return setting.example
    if setting.default is not None:
        return setting.default
    number = EXAMPLE_TOKENS.get(named, 1)
    return next((each for each in setting.values if each not in {"None", "null"}), number)


def _remedy(gap: Gap) -> str:
    """Return how a value can be given that could not be evaluated."""
    if gap.is_argument():
        return "a value: the script's arguments behind it"
    if gap.unset:
        name = gap.source.strip("${}").partition(":")[0]
        return (
            f"a value: {name}=... before the command, or the key behind a script that hands it on"
        )
    if gap.reason.endswith(NOT_GIVEN):
        return "a value: what the program is started with behind it, after --"
    if gap.reason.endswith(OF_THE_RUN):
        return "a value in the script, the key behind it where it hands arguments on, or --run on such a machine"
    return "a value; set the variable, give the key behind a script that hands it on, or use --run"


def is_on(value: object) -> bool:
    """Return whether a switch's value is on."""
    return value.lower() in {"true", "yes", "on", "1"} if isinstance(value, str) else bool(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Sort a configuration's keys by what became of them.

    Attributes:
        mapped: Their values went into the job or plan.
        without_influence: They change neither time nor memory, or not in this configuration.
        not_modelled: They may, and are not counted: what is not, by key.
        changes_work: They change how much is done in a step, and are not counted: what they change, by key.
        unknown: Nothing is known of them.
        unevaluated: Values that could not be evaluated, and why, by key; none of them is mapped.
    """

    mapped: tuple[str, ...]
    without_influence: tuple[str, ...]
    not_modelled: dict[str, str]
    changes_work: dict[str, str]
    unknown: tuple[str, ...]
    unevaluated: dict[str, str]


def keys_of(settings: Settings) -> Keys:
    """Return what became of each key."""
    sheet, flat = settings.sheet, settings.flat
    harmless = sheet.harmless()
    without = [each for each in harmless if _is_pattern(each)]
    known = {*_known(sheet), *harmless}
    work = _KeyIndex(sheet, sheet.changes_work, harmless)
    uncounted = _KeyIndex(sheet, sheet.not_modelled, harmless)
    silent, unknown = list[str](), list[str]()
    apart, doubtful = dict[str, str](), dict[str, str]()
    for key, given in flat.items():
        if key in settings.doubts:
            doubtful[key] = settings.doubts[key]
        elif key in settings.left_out:
            apart[key] = settings.left_out[key]
        if key in settings.used or key in doubtful or key in apart:
            continue
        section, there = (work, doubtful) if work.of(key) is not None else (uncounted, apart)
        why = section.of(key)
        usual = why is None or section.is_usual(key, given.value) or uncounted.is_off(key, flat)
        if why is not None and not usual and settings.counts(key):
            there[key] = why
        elif why is not None or key in known or fits_any(key, without):
            silent.append(key)
        else:
            unknown.append(key)
    mapped = settings.used - doubtful.keys() - apart.keys()
    return Keys(
        mapped=tuple(key for key in flat if key in mapped),
        without_influence=tuple(silent),
        not_modelled=apart,
        changes_work=doubtful,
        unknown=tuple(unknown),
        unevaluated={key: str(given.gaps[0]) for key, given in flat.items() if given.gaps},
    )


class _KeyIndex:
    """Answer what a sheet says of a key: by its name, or else, unless another says it, by the first pattern it fits."""

    def __init__(
        self, sheet: ConfigSheet, section: Mapping[str, str], others: Collection[str]
    ) -> None:
        spelt = {each: why for key, why in section.items() for each in spelled(key, sheet.roles)}
        self._sheet, self._named, self._others = sheet, spelt, others
        self._patterns = {each: why for each, why in spelt.items() if _is_pattern(each)}

    def of(self, key: str) -> str | None:
        """Return what is said of a key; None where nothing is."""
        if key in self._named or key in self._others:
            return self._named.get(key)
        return next((why for each, why in self._patterns.items() if fnmatchcase(key, each)), None)

    def is_usual(self, key: str, value: object) -> bool:
        """Return whether a key's value stands for what is forecast anyway: its usual one, or off.

        Of a key that only a pattern knows nobody knows what its framework does unless it is given.
        """
        usual = [
            word
            for each, words in self._sheet.usual.items()
            for name in spelled(each, self._sheet.roles)
            if fnmatchcase(key, name)
            for word in (words if isinstance(words, tuple) else (words,))
        ]
        return value is None or value in (usual or (OFF if key in self._named else EMPTY))

    def is_off(self, key: str, flat: Flat) -> bool:
        """Return whether a switch beside a key is off, so that the key takes nothing."""
        beside = (f"{key.rpartition('.')[0]}.{each}" for each in self._sheet.switches)
        switch = next((each for each in beside if each in self._named and each != key), None)
        given = None if switch is None else flat.get(switch)
        switched_on = given is not None and (bool(given.gaps) or is_on(given.value))
        return switch is not None and not switched_on


def _is_pattern(key: str) -> bool:
    return any(sign in key for sign in "*?")


def fits_any(key: str, patterns: Iterable[str]) -> bool:
    """Return whether a key fits one of some patterns."""
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def _known(sheet: ConfigSheet) -> Iterator[str]:
    for setting in sheet.every_setting():
        yield from (*setting.keys, *setting.over)
