"""Read configurations: scripts, YAML files with what they inherit from, and command lines."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.configs.reading.composed import (
    CONFIG_FLAGS,
    composed,
    composed_yaml,
    config_option,
)
from planner.configs.reading.given import Flat, Given, leaves, place_of, scalar
from planner.configs.reading.inherited import read_inherited
from planner.configs.reading.settings import Lost, Settings, fits_any, is_on
from planner.configs.reading.sheet import ConfigSheet, load_config_sheet
from planner.configs.reading.starts import (
    OVERRIDE,
    SCRIPTS,
    TELLING,
    Start,
    chosen,
    is_quoted,
    lost_words,
    programs_of,
    refusal_of,
    start_of,
    started_script,
    telling_keys,
)
from planner.configs.shell.commands import NOT_AT_HAND, Command, Evaluated
from planner.configs.shell.script import evaluate
from planner.configs.shell.text import Gap, Text
from rlplan.errors import FileError, unreadable

YAML_SUFFIXES = (".yaml", ".yml")
# How many scripts start one another at most.
MOST_SCRIPTS = 4
# How deep commands stand in quotes in one another.
MOST_QUOTES = 3
# How many starts, and lost words, a message names.
MOST_NAMED, MOST_LOST = 3, 6


def read_configuration(
    sheet: ConfigSheet,
    words: Iterable[str],
    environment: Mapping[str, str],
    *,
    evaluated: Evaluated | None = None,
    taken_as: str = "",
) -> Settings:
    """Return the settings that a file and what follows it, or a command line, amount to.

    Args:
        words: A script or YAML file and its arguments, or the arguments alone.
        environment: Variables of a script.
        evaluated: What a script does, if that is known already.
        taken_as: A module or script that is taken as what starts the framework's training; the framework's name takes
            whatever Python program is started.

    Raises:
        FileError: The file cannot be read, starts no RL training, or stops before.
    """
    given = list(words)
    path = Path(given[0]) if given else Path()
    if not given:
        raise FileError(
            "FILE|ARGS", "is missing", allowed="a script, a YAML file, or a command line"
        )
    if path.suffix in YAML_SUFFIXES:
        if not path.is_file():
            raise FileError(str(path), "no such file")
        arguments = [Text(word) for word in given[1:]]
        flat = _arguments(sheet, arguments, str(path))
        if sheet.own_files:
            return Settings(sheet, composed_yaml(sheet, path, arguments, flat), str(path))
        return Settings(sheet, read_inherited(path, flat), str(path))
    if path.is_file():
        script = _Script(sheet, taken_as, environment)
        return script.settings(path, given[1:], evaluated)
    if path.suffix == ".sh":
        raise FileError(str(path), "no such file")
    command = Command(line=0, words=tuple(Text(word) for word in given))
    file = "the command line"
    bare = Settings(sheet, _arguments(sheet, list(command.words), file), file)
    start = start_of(sheet, command.words, taken_as)
    if start is None:
        _refuse(sheet, [command], file)
        return bare
    return _of_start(sheet, start, file, Path(), ())


def laid_over(settings: Settings, words: Iterable[str]) -> Settings:
    """Return settings with the values that more words of their command line would give; nothing of them is used yet."""
    more = _arguments(settings.sheet, [Text(word) for word in words], settings.file)
    return replace(settings, flat={**settings.flat, **more}, used=set())


def starts_of(framework: str, words: Iterable[str]) -> bool:
    """Tell whether a script's text, or a command line, names what starts a framework's training."""
    sheet, given = load_config_sheet(framework), list(words)
    path = Path(given[0])
    text = script_text(path).split() if path.is_file() else given
    plain = [Text(word.strip("\"'")) for word in text]
    named = any(fits_any(word.value, sheet.starts) for word in plain)
    return named or len(telling_keys(sheet, plain)) >= TELLING


def script_text(path: Path) -> str:
    """Return a script's text.

    Raises:
        FileError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(path), error) from None


@dataclass(frozen=True, slots=True)
class _Script:
    """Read what scripts start.

    Attributes:
        sheet: The framework's.
        taken_as: A module or script that is taken as what starts its training.
        environment: Variables of a script.
    """

    sheet: ConfigSheet
    taken_as: str
    environment: Mapping[str, str | Text]

    def settings(
        self, path: Path, arguments: Sequence[str], evaluated: Evaluated | None
    ) -> Settings:
        """Return what a script starts training with.

        Raises:
            FileError: It starts none, stops before, or what stands behind it has no effect.
        """
        given = [Text(word) for word in arguments]
        found = evaluated or self._evaluated(path, given, self.environment)
        settings = self._of_commands(path, found, self.environment, 1)
        if settings is None:
            raise self._without_start(path, found)
        _check_arguments(self.sheet, path, [] if evaluated else found.unread, given, settings)
        return settings

    def _of_commands(
        self, path: Path, found: Evaluated, environment: Mapping[str, str | Text], scripts: int
    ) -> Settings | None:
        """Return what a script starts training with, by itself or by another script; None where it starts none."""
        sheet, commands = self.sheet, list(self._all_of(found))
        starts = [
            (place, start)
            for place, command in enumerate(commands)
            if (start := start_of(sheet, command.words, self.taken_as)) is not None
        ]
        if starts:
            place, start = chosen(sheet, starts, self.taken_as)
            settings = _of_start(sheet, start, str(path), path.parent, tuple(found.gaps))
            many = 1 if self.taken_as == sheet.name else len({each.arguments for _, each in starts})
            if many > 1:
                line = commands[place].line
                note = f"the script starts {many} trainings; this is the last, of line {line}"
                settings.notes += (note,)
            settings.lost = _lost(commands, place, path)
            settings.notes += tuple(
                f"{gap.source} (line {gap.line}) {NOT_AT_HAND}: what it sets is not known"
                for gap in found.gaps
                if gap.reason == NOT_AT_HAND
            )
            return settings
        if found.refusal is not None:
            line, message = found.refusal
            raise FileError(f"{path}:{line}", f"the script stops here: {message}")
        for command in reversed(commands if scripts < MOST_SCRIPTS else ()):
            other, arguments = started_script(command.words, path.parent)
            if other is None:
                continue
            own = {name: text for word in command.words for name, text in _assigned(word)}
            given = {**environment, **found.exported, **dict(command.variables), **own}
            inner = self._evaluated(other, [replace(word, line=0) for word in arguments], given)
            started = self._of_commands(other, inner, given, scripts + 1)
            if started is not None:
                _hand_on(path, command, arguments, inner, started)
                return started
        return None

    def _all_of(self, found: Evaluated, quotes: int = 0) -> Iterator[Command]:
        """Yield a script's commands, each with those that stand in it in quotes, or in quotes in these."""
        for command in found.commands:
            yield command
            texts = [*command.words, *(text for _, text in command.variables)]
            if command.words and command.words[0].value == "sbatch":
                texts += found.exported.values()  # what is submitted finds the command there
            for word in texts if quotes < MOST_QUOTES else ():
                if is_quoted(word.value):
                    inner = list(self._quoted(word, command, found.exported))
                    yield from self._all_of(replace(found, commands=inner), quotes + 1)

    def _quoted(
        self, word: Text, command: Command, exported: Mapping[str, Text]
    ) -> Iterator[Command]:
        """Yield the commands that stand in a word, as `bash -c` gets it; their line is the word's."""
        environment = {**self.environment, **exported, **dict(command.variables)}
        for inner in evaluate(word.value, (), environment, self.sheet.probes).commands:
            words = tuple(
                replace(each, line=word.line, gaps=word.gaps or each.gaps if each.gaps else ())
                for each in inner.words
            )
            yield replace(inner, line=word.line, words=words)

    def _evaluated(
        self,
        path: Path,
        arguments: Sequence[Text],
        environment: Mapping[str, str | Text],
    ) -> Evaluated:
        """Return what a script would do, for its start of training."""

        def starts(command: Command) -> bool:
            commands = self._all_of(Evaluated(commands=[command]))
            if any(start_of(self.sheet, each.words, self.taken_as) for each in commands):
                return True
            return started_script(command.words, path.parent)[0] is not None

        text = script_text(path)
        return evaluate(text, arguments, environment, self.sheet.probes, starts, path)

    def _without_start(self, path: Path, found: Evaluated) -> FileError:
        """Return the error of a script that starts no training of the framework's."""
        commands = list(self._all_of(found))
        try:
            _refuse(self.sheet, commands, str(path))
        except FileError as error:
            return error
        problem = f"starts no RL training of {self.sheet.title}"
        if self.taken_as:
            problem += f" and no {self.taken_as}"
        names = dict.fromkeys(
            f"{name} (line {command.line})"
            for command in commands
            for name, _ in programs_of(command.words)
        )
        missing = dict.fromkeys(
            f"{word.value} (line {command.line})"
            for command in commands
            for word in command.words
            if word.value.endswith(SCRIPTS)
            and started_script(command.words, path.parent)[0] is None
        )
        if missing and not names:
            problem += f"; not at hand: {', '.join(list(missing)[-MOST_NAMED:])}"
        if names:
            last = list(names)[-MOST_NAMED:]
            problem += f"; nothing tells that this is one: {', '.join(last)}"
        if found.gaps:
            problem += f"; not evaluated: {found.gaps[0]}"
        usual = ", ".join(self.sheet.starts[:MOST_NAMED])
        allowed = f"a script that starts {usual}, or --as MODULE for a start of another name"
        return FileError(str(path), problem, allowed=allowed)


def _assigned(word: Text) -> Iterator[tuple[str, Text]]:
    """Yield a variable that a word sets, as those of `env` do."""
    name, equals, value = word.value.partition("=")
    if equals and name.isidentifier():
        yield name, word.with_value(value)


def _refuse(sheet: ConfigSheet, commands: Sequence[Command], file: str) -> None:
    """Refuse commands of which one does something else than training with RL that is known.

    Raises:
        FileError: It is named.
    """
    for command in reversed(commands):
        for word in command.words:
            what = refusal_of(sheet, word.value)
            if what is not None:
                raise FileError(
                    f"{file}:{command.line}" if command.line else file,
                    f"{what}; rlplan reads {sheet.title}'s training with RL",
                    value=word.value,
                    allowed=", ".join(sheet.starts[:MOST_NAMED]),
                )


def _of_start(
    sheet: ConfigSheet, start: Start, file: str, folder: Path, gaps: tuple[Gap, ...]
) -> Settings:
    """Return what a training starts with.

    Raises:
        FileError: A switch makes it something else than training with RL.
    """
    words = list(start.arguments)
    flat = _arguments(sheet, words, file)
    doubts: dict[str, str] = {}
    if sheet.own_files:
        flat, doubts = composed(sheet, start.name, words, folder, flat)
    else:
        flat = _over_file(words, folder, flat)
    settings = Settings(sheet, flat, file, start.name, gaps, doubts=doubts)
    for key, what in sheet.refused_switches.items():
        if key in flat and not flat[key].gaps and is_on(flat[key].value):
            raise settings.refused_key(key, what, "a configuration that trains")
    if not start.is_own:
        settings.taken_as = Path(sheet.starts[0]).name
    return settings


def _lost(commands: Sequence[Command], place: int, path: Path) -> Lost | None:
    """Return what stands below the end of a command, and is no part of it."""
    first, words = lost_words(commands, place)
    if not words:
        return None
    ends = _end_above(script_text(path).splitlines(), first)
    return Lost(words=words, where=f"{path}:{first}", ends=ends, line=commands[place].line)


def _end_above(lines: Sequence[str], first: int) -> str:
    """Return the line that ends a command above words which are no part of it, and what ends it there."""
    for number in range(first - 1, 0, -1):
        text = lines[number - 1].strip() if number <= len(lines) else ""
        if text.startswith("#"):
            return f"{number}, a comment"
        if not text:
            return f"{number}, which is empty"
        if text.endswith("\\"):
            return f"{number}, where a space stands behind the backslash"
        if re.search(r"\\\s+#", text):
            return f"{number}, where a comment stands behind the backslash"
        break
    return str(first - 1)


def _hand_on(
    path: Path,
    command: Command,
    arguments: Sequence[Text],
    inner: Evaluated,
    settings: Settings,
) -> None:
    """Note which words one script gives another one that it looks at nowhere."""
    if inner.unread and arguments:
        named = ", ".join(word.value for word in inner.unread[:MOST_LOST])
        other = next((word.value for word in command.words if word.value.endswith(".sh")), "")
        settings.notes += (
            f"{named} ({path}:{command.line}) has no effect: {other} hands no such argument on",
        )


def _check_arguments(
    sheet: ConfigSheet,
    path: Path,
    unread: Sequence[Text],
    given: Sequence[Text],
    settings: Settings,
) -> None:
    """Refuse words behind a script that have no effect.

    Raises:
        FileError: It hands none on, or gives their key another value.
    """
    allowed = 'the key in the script itself, or a script that hands its arguments on by "$@"'
    if unread:
        on = "arguments" if len(unread) == len(given) else "such argument"
        problem = f"hands no {on} on: `{unread[0].value}` would have no effect"
        raise FileError(str(path), problem, allowed=allowed)
    if sheet.arguments == "flags":
        return
    words = [word for word in given if not word.value.startswith("-")]
    for key, each in _overrides(words, "").items():
        held = settings.flat.get(sheet.older.get(key, key))
        if each.value is None or "." not in key:
            continue
        if held is None or (held.value != each.value and held.where != each.where):
            why = "reaches no training" if held is None else f"is given again at {held.where}"
            problem = f"{why}: `{key}={each.value}` would have no effect"
            raise FileError(str(path), problem, field=key, allowed=allowed)


def _over_file(words: list[Text], folder: Path, arguments: Flat) -> Flat:
    """Return a command line's arguments over the values of the YAML file that it names."""
    named = config_option(words, "--config")
    if named is None:
        return arguments
    if named.gaps and not Path(named.value).is_file():
        allowed = "a file; set the variable, or use --run"
        problem = f"cannot be evaluated: {named.gaps[0]}"
        raise FileError(named.value, problem, field="--config", allowed=allowed)
    for base in (Path(), folder, *folder.resolve().parents):
        for path in (base / named.value, base / Path(named.value).name):
            if path.is_file():
                return read_inherited(path, arguments)
    raise FileError(named.value, "no such file", field="--config")


def _arguments(sheet: ConfigSheet, words: list[Text], file: str) -> Flat:
    given = _flags(words, file) if sheet.arguments == "flags" else _overrides(words, file)
    return {
        sheet.older.get(key, key): replace(each, older=key) if key in sheet.older else each
        for key, each in given.items()
    }


def _overrides(words: list[Text], file: str) -> Flat:
    """Return the values of hydra's overrides."""
    flat: Flat = {}
    flag = ""
    for word in words:
        if flag or word.value in CONFIG_FLAGS:
            if flag and flag != "--config":
                flat[flag] = _given(word, word.value, file)
            flag = "" if flag else CONFIG_FLAGS[word.value]
            continue
        found = OVERRIDE.match(word.value)
        if word.value.startswith("-"):
            name, _, value = word.value.partition("=")
            long = CONFIG_FLAGS.get(name, f"--{name.lstrip('-')}")
            flat[long] = _given(word, value or "true", file)
        elif found is None:
            if word.value.startswith("~"):
                flat.pop(word.value[1:], None)
            elif word.value.strip():
                flat[word.value] = _given(word, "", file)
        elif found[1] == "~":
            flat.pop(found[2], None)
        else:
            for key, leaf in leaves(found[2], found[3]):
                given = replace(_given(word, "", file), value=leaf)
                flat[key] = replace(given, added=bool(found[1]))
    return flat


def _flags(words: list[Text], file: str) -> Flat:
    """Return the values of argparse's flags: one word, several, or none for a switch."""
    flat: Flat = {}
    name, values = "", list[Text]()

    def keep() -> None:
        if not name:
            return
        found = [scalar(word.value) for word in values]
        value = True if not found else found[0] if len(found) == 1 else found
        first = values[0] if values else None
        gaps = tuple(gap for word in values for gap in word.gaps)
        where = place_of(first or flag, file)
        flat[name] = Given(value=value, where=where, gaps=gaps)

    flag = Text("")
    for word in words:
        if word.value.startswith("--"):
            keep()
            head, equals, tail = word.value.removeprefix("--").partition("=")
            flag, name, values = word, head, [word.with_value(tail)] if equals else []
        elif word.value.strip() and word.value != "\\":
            values.append(word)
    keep()
    return flat


def _given(word: Text, value: str, file: str) -> Given:
    return Given(value=scalar(value), where=place_of(word, file), gaps=word.gaps)
