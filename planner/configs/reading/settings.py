"""Settings: a configuration's values by what they mean, as a framework's sheet says."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from planner.configs.reading.given import Flat, Given
from planner.configs.reading.sheet import ROLE, ConfigSheet, Setting
from rlplan.errors import FileError, nearest_name

OFF: tuple[object, ...] = (None, False, 0, 0.0, "", "null", "none", "disabled", [], {})


@dataclass(slots=True)
class Settings:
    """Answer what a configuration sets; keys that were asked for are remembered.

    Attributes:
        sheet: What its keys mean.
        flat: Its values by key.
        file: Its name, for messages.
        used: Keys whose values went into the job or plan.
    """

    sheet: ConfigSheet
    flat: Flat
    file: str
    used: set[str] = field(default_factory=set)

    def value(self, name: str) -> object:
        """Return a setting's value; the framework's default where none is given."""
        return self._value(self.sheet.settings[name], "")

    def unmapped(self, name: str) -> object:
        """Return a setting's value that goes into no job or plan: its key stays among those that do not."""
        used = set(self.used)
        value = self.value(name)
        self.used.intersection_update(used)
        return value

    def loss(self, name: str) -> object:
        """Return what the losses or optimizers need; None where it is not given."""
        return self._value(self.sheet.losses[name], "")

    def is_given(self, name: str) -> bool:
        """Return whether a configuration gives a setting, whatever its value."""
        given = self.flat.get(self.key_of(name))
        if given is not None:
            self.used.add(self.key_of(name))
        return given is not None and (bool(given.gaps) or given.value is not None)

    def whole(self, name: str) -> int:
        """Return a setting that is a whole number."""
        return self._whole(self.sheet.settings[name], "", self.value(name))

    def optional_whole(self, name: str) -> int | None:
        """Return a setting that is a whole number, or None."""
        return None if self.value(name) is None else self.whole(name)

    def number(self, name: str) -> float:
        """Return a setting that is a number."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(name, "is no number", "a number")
        try:
            return float(value)
        except OverflowError:
            raise self.refused(name, "is larger than a number can be", "a number") from None

    def on(self, name: str) -> bool:
        """Return whether a switch is on."""
        return _is_on(self.value(name))

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
            raise self.refused(name, "is missing", "a value")
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
        return self.word(name)

    def has(self, pattern: str) -> Iterator[str]:
        """Yield the given keys that fit a pattern."""
        return (key for key in self.flat if fnmatchcase(key, pattern))

    def size(self, trainer: str, role: str, name: str) -> object:
        """Return a size of a role's model, as its trainer has it."""
        setting = self.sheet.trainers[trainer].sizes.get(name)
        if setting is None:
            return None
        prefix = self.sheet.roles[role]
        followed = self.sheet.role_follows.get(role)
        if followed is not None and not self._given(setting, prefix):
            return self.size(trainer, followed, name)
        return self._value(setting, prefix)

    def whole_size(
        self, trainer: str, role: str, name: str, usual: int | None = None
    ) -> int | None:
        """Return a size that is a whole number; `usual` where none is given."""
        value = self.size(trainer, role, name)
        if value is None:
            return usual
        return self._whole(self.sheet.trainers[trainer].sizes[name], self.sheet.roles[role], value)

    def size_is_given(self, trainer: str, role: str, name: str) -> bool:
        """Return whether a configuration gives a size of a role's model, other than none, by a key of its own."""
        setting, prefix = self.sheet.trainers[trainer].sizes[name], self.sheet.roles[role]
        keys = (key.replace(ROLE, prefix) for key in setting.keys)
        return any(key in self.flat and self.flat[key].value is not None for key in keys)

    def size_is_on(self, trainer: str, role: str, name: str) -> bool:
        """Return whether a switch of a role's model is on."""
        return _is_on(self.size(trainer, role, name))

    def key_of(self, name: str) -> str:
        """Return the key that gives a setting, or would give it."""
        return _key(self.sheet.settings[name], "", self.flat)

    def key_of_size(self, trainer: str, role: str, name: str) -> str:
        """Return the key that gives a size of a role's model, or would give it."""
        return _key(self.sheet.trainers[trainer].sizes[name], self.sheet.roles[role], self.flat)

    def refused(
        self, name: str, problem: str, allowed: str, nearest: str | None = None
    ) -> FileError:
        """Return the error of a setting that cannot be imported."""
        return self.refused_key(self.key_of(name), problem, allowed, nearest)

    def refused_key(
        self, key: str, problem: str, allowed: str, nearest: str | None = None
    ) -> FileError:
        """Return the error of a key that cannot be imported."""
        given = self.flat.get(key)
        file = given.where if given is not None else self.file
        value = None if given is None or given.value is None else given.value
        field = key if given is None else given.older or key
        return FileError(file, problem, field=field, value=value, allowed=allowed, nearest=nearest)

    def _given(self, setting: Setting, prefix: str) -> bool:
        return any(key.replace(ROLE, prefix) in self.flat for key in setting.keys)

    def _value(self, setting: Setting, prefix: str) -> object:
        for key in (each.replace(ROLE, prefix) for each in setting.keys):
            given = self.flat.get(key)
            if given is None:
                continue
            self.used.add(key)
            if given.gaps:
                problem = f"cannot be evaluated: {given.gaps[0]}"
                raise FileError(
                    given.where,
                    problem,
                    field=given.older or key,
                    allowed="a value; set the variable, give the key after the file, or use --run",
                )
            return self._meant(setting, key, given)
        if setting.follows:
            return self.value(setting.follows)
        usual = setting.default
        return setting.values.get(usual, usual) if isinstance(usual, str) else usual

    def _meant(self, setting: Setting, key: str, given: Given) -> object:
        if not setting.values:
            return given.value
        word = str(given.value)
        if word not in setting.values:
            known = setting.values.keys()
            nearest = nearest_name(word, known)
            raise self.refused_key(key, "is not known", ", ".join(known), nearest)
        return setting.values[word]

    def _whole(self, setting: Setting, prefix: str, value: object) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            key = _key(setting, prefix, self.flat)
            raise self.refused_key(key, "is no whole number", "a whole number")
        return value


def _is_on(value: object) -> bool:
    return value.lower() in {"true", "yes", "on", "1"} if isinstance(value, str) else bool(value)


def _key(setting: Setting, prefix: str, flat: Flat) -> str:
    keys = [key.replace(ROLE, prefix) for key in setting.keys]
    return next((key for key in keys if key in flat), keys[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Sort a configuration's keys by what became of them.

    Attributes:
        mapped: Their values went into the job or plan.
        without_influence: They change neither time nor memory, or not in this configuration.
        not_modelled: They may, and are not counted: what is not, by key.
        unknown: Nothing is known of them.
        unevaluated: Values that could not be evaluated, and why, by key; none of them is mapped.
    """

    mapped: tuple[str, ...]
    without_influence: tuple[str, ...]
    not_modelled: dict[str, str]
    unknown: tuple[str, ...]
    unevaluated: dict[str, str]


def keys_of(settings: Settings) -> Keys:
    """Return what became of each key."""
    sheet, flat = settings.sheet, settings.flat
    mapped = tuple(key for key in flat if key in settings.used)
    known = set(_known(sheet))
    silent, unknown = [], []
    apart: dict[str, str] = {}
    for key, given in flat.items():
        if key in settings.used:
            continue
        uncounted = next(
            (why for each, why in sheet.not_modelled.items() if fnmatchcase(key, each)), None
        )
        if uncounted is not None:
            if _is_usual(sheet, key, given.value):
                silent.append(key)
            else:
                apart[key] = uncounted
        elif key in known or fits_any(key, sheet.without_influence):
            silent.append(key)
        else:
            unknown.append(key)
    return Keys(
        mapped=mapped,
        without_influence=tuple(silent),
        not_modelled=apart,
        unknown=tuple(unknown),
        unevaluated={key: str(given.gaps[0]) for key, given in flat.items() if given.gaps},
    )


def fits_any(key: str, patterns: Iterable[str]) -> bool:
    """Return whether a key fits one of some patterns."""
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def _is_usual(sheet: ConfigSheet, key: str, value: object) -> bool:
    usual = [word for each, word in sheet.usual.items() if fnmatchcase(key, each)]
    return value in usual or (not usual and value in OFF)


def _known(sheet: ConfigSheet) -> Iterator[str]:
    for setting in (*sheet.settings.values(), *sheet.losses.values()):
        yield from setting.keys
    for trainer in sheet.trainers.values():
        for setting in trainer.sizes.values():
            for key in setting.keys:
                yield from (key.replace(ROLE, prefix) for prefix in sheet.roles.values())
