"""Read configurations: scripts, YAML files with what they inherit from, and command lines."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from rlplan.errors import FileError, unreadable
from rlplan.files.decoding import text_of
from rlplan.planner.configs.reading.composed import (
    composed,
    composed_yaml,
    config_option,
    read_inherited,
    without_other_names,
)
from rlplan.planner.configs.reading.given import (
    NOT_THERE,
    Flat,
    GivenValue,
    renamed,
)
from rlplan.planner.configs.reading.launched import (
    as_named,
    launcher_keys,
    service_keys,
    with_files,
    with_launchers_files,
    with_underscores,
    words_that_start,
)
from rlplan.planner.configs.reading.python.arguments import arguments_of, overrides_of
from rlplan.planner.configs.reading.python.handing import is_handing
from rlplan.planner.configs.reading.python.launcher import STARTS, is_launcher
from rlplan.planner.configs.reading.python.literals import (
    CONFIGS,
    OwnTrainer,
    has_start,
    own_trainer_of,
    program_that_starts,
    python_keys,
    refused_call,
)
from rlplan.planner.configs.reading.python.syntax import NOTEBOOK, commands_of_notebook
from rlplan.planner.configs.reading.python.values import Unknown
from rlplan.planner.configs.reading.scripts import (
    OVERRIDE,
    SCRIPTS,
    assigned,
    file_of,
    is_quoted,
    launched_as_script,
    lost_below,
    notes_of_place,
    programs_of,
    refuse_unknown_program,
    started_launcher,
    started_script,
)
from rlplan.planner.configs.reading.settings import Settings, fits_any, is_on
from rlplan.planner.configs.reading.sheet import (
    NO_LAUNCH,
    ConfigSheet,
    own_file,
    own_values,
)
from rlplan.planner.configs.reading.skypilot import script_of_task
from rlplan.planner.configs.reading.toml_files import is_toml, part_keys, part_notes, toml_keys
from rlplan.planner.configs.shell.commands import NOT_AT_HAND, Command, Evaluated, above, ends_near
from rlplan.planner.configs.shell.script import evaluate
from rlplan.planner.configs.shell.text import Gap, Text

# How command lines are written whose keys are flags.
FLAGGED: Final = ("flags", "toml")
# How many keys that no other program has tell a start whose name says nothing.
TELLING: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Hold what starts a training.

    Attributes:
        name: The module or script.
        arguments: What stands behind it.
        is_own: Whether it is the framework's own, not one that is taken as it.
        before: What stands in front of it.
        program: Its file, where that is a Python program whose calls give keys; else the module beside it that it calls for that.
        entry: Its own file; None where it has none that counts.
    """

    name: str
    arguments: tuple[Text, ...]
    is_own: bool
    before: tuple[Text, ...] = ()
    program: Path | None = None
    entry: Path | None = None

    @property
    def folder(self) -> Path:
        """Return the folder of the module or script, from where it is started."""
        is_script = self.name.endswith(".py")
        return Path(self.name if is_script else self.name.replace(".", "/")).parent


def start_of(
    sheet: ConfigSheet, words: Sequence[Text], taken_as: str = "", folder: Path | None = None
) -> Start | None:
    """Return what of a framework's training a command starts; None where it is none.

    Args:
        taken_as: A module or script that is taken as the framework's; its name takes whatever Python program there is.
        folder: Where Python programs are looked for whose calls start a training; None does not look.
    """
    for place in range(len(words)):
        behind = tuple(words[place + 1 :])
        number = words_that_start(sheet.starts, words, place)
        if fits_any(words[place].value, sheet.plain_starts) and telling_keys(sheet, behind):
            number = 1
        if number:
            name = " ".join(word.value for word in words[place : place + number])
            behind, before = tuple(words[place + number :]), tuple(words[:place])
            return Start(name=name, arguments=behind, is_own=True, before=before)
    for name, arguments in programs_of(words):
        before = tuple(words[: len(words) - len(arguments) - 1])
        if folder is not None and refused_call(sheet.launch, file_of(name, folder)) is not None:
            continue
        if refusal_of(sheet, name) is None and folder is not None:
            program = _program(sheet, name, folder)
            if program is not None:
                return Start(
                    name=name,
                    arguments=arguments,
                    is_own=True,
                    before=before,
                    program=program,
                    entry=file_of(name, folder),
                )
        handed = next((each for each, _ in programs_of(arguments)), name)
        is_refused = any(refusal_of(sheet, each) is not None for each in (name, handed))
        if _is_taken(sheet, name, taken_as) or (
            not is_refused and _is_of_fork(sheet, name, arguments)
        ):
            return Start(name=name, arguments=arguments, is_own=False, before=before)
    return None


def _program(sheet: ConfigSheet, name: str, folder: Path) -> Path | None:
    """Return the file of a Python program that calls what starts a training; None where none is at hand."""
    found = file_of(name, folder) if sheet.launch.starts else None
    return None if found is None else program_that_starts(sheet.launch, found)


def _is_of_fork(sheet: ConfigSheet, name: str, arguments: tuple[Text, ...]) -> bool:
    """Return whether a program is a fork's start: by its keys, or by its name and one of them or a file of them."""
    telling = telling_keys(sheet, arguments)
    if len(telling) >= TELLING:
        return True
    files = ("--config", f"{sheet.file_key}=") if sheet.file_key else ("--config",)
    has_file = any(word.value.startswith(files) for word in arguments)
    return fits_any(name, sheet.fork_starts) and (bool(telling) or has_file)


def refusal_of(sheet: ConfigSheet, name: str) -> str | None:
    """Return what else than training with RL a module or script does; None where that is not known."""
    return next(
        (what for each, what in sheet.refused_starts.items() if fnmatchcase(name, each)), None
    )


def telling_keys(sheet: ConfigSheet, arguments: Iterable[Text]) -> set[str]:
    """Return the keys among arguments that no other program has than a framework's training with RL."""
    keys = {_key_of(sheet, word.value) for word in arguments} - {""}
    return {key for key in keys if fits_any(key, sheet.start_keys)}


def chosen(
    sheet: ConfigSheet, starts: Sequence[tuple[int, Start]], taken_as: str
) -> tuple[int, Start]:
    """Return the start that is read: the last; of whatever Python programs there are, the last with most keys."""
    if taken_as != sheet.name:
        return starts[-1]
    keys = [sum(bool(_key_of(sheet, word.value)) for word in each.arguments) for _, each in starts]
    return max(zip(keys, starts, strict=True), key=lambda each: (each[0], each[1][0]))[1]


def _key_of(sheet: ConfigSheet, word: str) -> str:
    if sheet.arguments in FLAGGED:
        return word.removeprefix("--").partition("=")[0] if word.startswith("--") else ""
    found = OVERRIDE.match(word)
    return "" if found is None else found[2]


def _is_taken(sheet: ConfigSheet, name: str, taken_as: str) -> bool:
    if taken_as == sheet.name:
        return True
    return bool(taken_as) and (name == taken_as or name.endswith(f"/{taken_as.removeprefix('./')}"))


YAML_SUFFIXES = (".yaml", ".yml")
PYTHON = ".py"
PROGRAMS: Final = (PYTHON, NOTEBOOK)
# Why a word of a command line is not known to the program that it starts.
UNREAD: Final = "is given by what is known where it runs"
# What stands before a mapping of arguments in a call of Python's.
SPREAD = "**"
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
    is_task = path.suffix in YAML_SUFFIXES and path.is_file() and _is_task(path)
    if path.suffix in YAML_SUFFIXES and not is_task:
        return _of_yaml(sheet, path, [Text(word) for word in given[1:]])
    if is_toml(path) and sheet.arguments == "toml":
        flat = part_keys(sheet, given, "the command line")
        return Settings(sheet, flat, str(path), notes=part_notes(sheet, given))
    is_program = path.suffix in PROGRAMS
    if path.suffix == NOTEBOOK and path.is_file() and not has_start(sheet.launch, path):
        is_program = not script_text(path).strip()  # its commands of a shell are a script
    hands = is_program and is_handing(path) and program_that_starts(sheet.launch, path) is None
    if is_program and sheet.launch.starts and path.is_file() and not hands:
        return _of_program(sheet, path, [Text(word) for word in given[1:]], environment)
    if path.is_file() and (not is_program or hands or is_launcher(path)):
        script = _Script(sheet, taken_as, environment)
        return script.settings(path, given[1:], evaluated)
    if path.suffix == ".sh":
        raise FileError(str(path), "no such file")
    command = Command(line=0, words=tuple(Text(word) for word in given))
    file = "the command line"
    bare = Settings(sheet, arguments_of(sheet, list(command.words), file), file)
    start = start_of(sheet, command.words, taken_as, Path())
    if start is None:
        _refuse(sheet, [command], file)
        refuse_unknown_program(command.words, sheet.launch.launchers, sheet.title)
        if is_program and path.is_file():
            problem = "is a Python program, of which nothing is run to see what it starts"
            raise FileError(
                str(path), problem, allowed="a script, or behind -- the command that it prints"
            )
        return bare
    settings = _of_start(sheet, start, file, Path(), ())
    return _with_launch(settings, start, Path(), command, ())


def _of_yaml(sheet: ConfigSheet, path: Path, arguments: list[Text]) -> Settings:
    """Return what a YAML file amounts to, with the overrides behind it.

    Raises:
        FileError: It is missing or broken.
    """
    if not path.is_file():
        raise FileError(str(path), "no such file")
    flat = arguments_of(sheet, arguments, str(path))
    if sheet.own_files:
        return Settings(sheet, composed_yaml(sheet, path, arguments, flat), str(path))
    flat = with_underscores(flat) if sheet.launch.files else flat
    read = read_inherited(path, flat, repeats=sheet.arguments == "flags")
    flat, notes = with_files(sheet, renamed(read, sheet.name_of), path.parent)
    return Settings(sheet, flat, str(path), notes=notes)


def _of_program(
    sheet: ConfigSheet, path: Path, arguments: list[Text], environment: Mapping[str, str]
) -> Settings:
    """Return what a Python program trains with that is named itself.

    Raises:
        FileError: It starts no training of the framework's.
    """
    program = program_that_starts(sheet.launch, path)
    if program is None:
        what = refused_call(sheet.launch, path)
        problem = f"starts no RL training of {sheet.title}" if what is None else what
        allowed = f"a program that calls {', '.join(sheet.launch.starts[:MOST_NAMED])}"
        raise FileError(str(path), problem, allowed=allowed)
    start = Start(
        name=path.name, arguments=tuple(arguments), is_own=True, program=program, entry=path
    )
    settings = _of_start(sheet, start, str(path), path.parent, ())
    if program != path:
        settings.notes += (f"{path} calls {program}, which is read in its place",)
    variables = tuple((name, Text(value)) for name, value in environment.items())
    command = Command(line=0, words=(), variables=variables)
    return _with_launch(settings, start, path.parent, command, ())


def _is_task(path: Path) -> bool:
    """Tell whether a YAML file is a task of SkyPilot's."""
    try:
        return script_of_task(text_of(path)) is not None
    except (OSError, UnicodeDecodeError):
        return False


def script_text(path: Path) -> str:
    """Return a script's text; of a notebook what it gives to a shell, of a task of SkyPilot's what it runs.

    Raises:
        FileError: It cannot be read.
    """
    try:
        text = text_of(path)
        if path.suffix in YAML_SUFFIXES:
            return script_of_task(text) or text
        return commands_of_notebook(text) if path.suffix == NOTEBOOK else text
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(path), error) from None
    except ValueError:
        raise FileError(str(path), "is no notebook") from None


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
            if (start := start_of(sheet, command.words, self.taken_as, path.parent)) is not None
        ]
        if starts:
            place, start = chosen(sheet, starts, self.taken_as)
            settings = _of_start(sheet, start, str(path), path.parent, tuple(found.gaps))
            exported = (*found.exported.items(), *commands[place].variables)
            command = replace(commands[place], variables=exported)
            beside = (*found.inside, *commands)
            settings = _with_launch(settings, start, path.parent, command, beside)
            many = 1 if self.taken_as == sheet.name else len({each.arguments for _, each in starts})
            if many > 1:
                line = commands[place].line
                note = f"the script starts {many} trainings; this is the last, of line {line}"
                settings.notes += (note,)
            is_shell = path.suffix != PYTHON
            settings.lost = (
                lost_below(commands, place, path, script_text(path)) if is_shell else None
            )
            settings.notes, settings.written = settings.notes + found.notes, found.written
            settings.keep_played(path, found.played if is_shell else None)
            settings.notes += tuple(
                f"{gap.source} (line {gap.line}) {NOT_AT_HAND}: what it sets is not known"
                for gap in found.gaps
                if gap.reason == NOT_AT_HAND
            )
            return settings
        if found.refusal is not None:
            line, message = found.refusal
            raise FileError(f"{path}:{line}", f"the script stops here: {message}")
        return self._of_others(path, found, environment, scripts)

    def _of_others(
        self, path: Path, found: Evaluated, environment: Mapping[str, str | Text], scripts: int
    ) -> Settings | None:
        """Return what the last of the scripts and programs starts that a script starts; a program that only speaks of it none."""
        unread: FileError | None = None
        for command in reversed(list(self._all_of(found)) if scripts < MOST_SCRIPTS else ()):
            other, arguments = started_script(command.words, path.parent)
            if other is None:
                other, arguments = started_launcher(command.words, path.parent)
            if other is None:
                continue
            own = {name: text for word in command.words for name, text in assigned(word)}
            given = {**environment, **found.exported, **dict(command.variables), **own}
            try:
                inner = self._evaluated(other, [replace(word, line=0) for word in arguments], given)
            except FileError as error:
                if other.suffix != PYTHON or f"{STARTS}(" in script_text(other):
                    raise
                unread = unread or error
                continue
            started = self._of_commands(other, inner, given, scripts + 1)
            if started is not None:
                started.keep_played(path, found.played if path.suffix != PYTHON else None)
                _hand_on(path, command, arguments, inner, started)
                return started
        if unread is not None:
            raise unread
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
            return any(
                start_of(self.sheet, each.words, self.taken_as, path.parent)
                or started_script(each.words, path.parent)[0] is not None
                or started_launcher(each.words, path.parent)[0] is not None
                for each in self._all_of(Evaluated(commands=[command]))
            )

        if path.suffix == PYTHON:
            return launched_as_script(path, arguments, environment, self.sheet.probes, starts)
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
        usual = ", ".join((*self.sheet.plain_starts, *self.sheet.starts)[:MOST_NAMED])
        allowed = f"a script that starts {usual}, or --as MODULE for a start of another name"
        if any("it stops here" in str(gap) for gap in found.gaps):
            allowed = f"the arguments that it asks for, behind it after --; {allowed}"
        return FileError(str(path), problem, allowed=allowed)


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
                    allowed=", ".join((*sheet.plain_starts, *sheet.starts)[:MOST_NAMED]),
                )
        for name, _ in programs_of(command.words):
            program = file_of(name, Path(file).parent)
            what = refused_call(sheet.launch, program)
            if what is not None:
                calls = ", ".join(sheet.launch.starts[:MOST_NAMED])
                raise FileError(str(program), what, allowed=f"a program that calls {calls}")


def _of_start(
    sheet: ConfigSheet, start: Start, file: str, folder: Path, gaps: tuple[Gap, ...]
) -> Settings:
    """Return what a training starts with.

    Raises:
        FileError: A switch makes it something else than training with RL.
    """
    words, doubts = list(start.arguments), dict[str, str]()
    if sheet.arguments == "toml":
        program = re.split(r"[ ./]", start.name.removesuffix(PYTHON))[-1]
        flat = toml_keys(sheet, words, folder, file, program)
    elif sheet.own_files:
        flat = arguments_of(sheet, words, file)
        flat, doubts = composed(sheet, start.name, words, folder, flat)
    else:
        flat = arguments_of(sheet, words, file)
        flat, doubts = _over_file(sheet, words, folder, flat, start.folder)
    settings = Settings(sheet, flat, file, start.name, gaps, doubts=doubts)
    settings.is_partial = any(each.where.endswith(NOT_THERE) for each in flat.values())
    settings.guesses = tuple(_assumed_values(sheet, flat, doubts))
    for key, what in sheet.refused_switches.items():
        if key in flat and not flat[key].gaps and is_on(flat[key].value):
            raise settings.refused_key(key, what, "a configuration that trains")
    if not start.is_own:
        settings.taken_as = Path(sheet.starts[0]).name
    return settings


def _with_launch(
    settings: Settings, start: Start, folder: Path, command: Command, commands: Sequence[Command]
) -> Settings:
    """Return settings with the keys that stand beside the start's command line, as far as its framework has such.

    Args:
        command: The start's.
        commands: All of its script's.
    """
    sheet, file = settings.sheet, settings.file
    if sheet.launch == NO_LAUNCH:
        return settings
    launched = launcher_keys(sheet, start.before, command.variables, file)
    flat = {**service_keys(sheet, commands, file), **launched, **as_named(sheet, settings.flat)}
    if start.program is not None:
        found = python_keys(
            start.program,
            sheet.launch.calls,
            settings.flat,
            starts=sheet.launch.starts,
            library=sheet.launch.library,
            words=[
                Unknown(UNREAD, each.value) if each.gaps else each.value for each in start.arguments
            ],
            environment={name: text.value for name, text in command.variables if not text.gaps},
            entry=start.entry,
        )
        own = found.options - set(sheet.named())
        flat = {key: given for key, given in flat.items() if key not in own}
        if "config" in found.options or start.entry not in {None, start.program}:
            flat, own_file = _without_own_file(sheet, flat, start.arguments)
            settings.notes += own_file
        flat = {**found.defaults, **flat, **found.flat}
        starts = [each for each in found.callees if fits_any(each, sheet.launch.starts)]
        settings.start = next(iter(starts), start.name)
        settings.notes, settings.elsewhere = settings.notes + found.notes, found.elsewhere
        settings.notes += tuple(notes_of_place(start.name, start.entry))
        if found.own is not None:
            _take_own(settings, found.own)
        settings.guesses += tuple(_of_defaults(sheet, starts, flat))
        settings.doubts |= {
            key: "what it holds is not known" for key in found.flat if SPREAD in key
        }
    elif start.name.endswith(PYTHON):
        _look_at(settings, start, folder)
    settings.flat, notes = with_launchers_files(sheet, flat, launched, folder)
    settings.notes += notes
    return settings


def _without_own_file(
    sheet: ConfigSheet, flat: Flat, words: Sequence[Text]
) -> tuple[Flat, tuple[str, ...]]:
    """Return keys without those that a program reads itself of its `--config` and that are none of its framework's; a note names these."""
    named = config_option(list(words), "--config")
    if named is None:
        return flat, ()
    known, file = sheet.named_patterns(), Path(named.value).name
    left = {
        key
        for key, given in flat.items()
        if Path(given.where.rpartition(":")[0]).name == file and not fits_any(key, known)
    }
    note = f"{len(left)} keys of {named.value} are the program's own: what it makes of them is read in it"
    return {key: given for key, given in flat.items() if key not in left}, (note,) if left else ()


def _look_at(settings: Settings, start: Start, folder: Path) -> None:
    """Look into a program that is known by its name for a trainer of its project's own."""
    program = file_of(start.name, folder)
    launch = settings.sheet.launch
    if program is not None and launch.starts and has_start(launch, program):
        own = own_trainer_of(program, launch, settings.flat)
        if own is not None:
            _take_own(settings, own)


def _take_own(settings: Settings, own: OwnTrainer) -> None:
    """Say that a trainer is of a project's own, and as which version's it counts batches where it is an older copy."""
    launch, title = settings.sheet.launch, settings.sheet.title
    kind = "is made of" if own.extends else "stands in place of"
    if not own.is_of(launch.library, launch.starts):
        settings.notes += (
            f"{own.name} ({own.path.name}) {kind} {title}'s trainer: what it does otherwise is not known",
        )
    if launch.copied and own.copies and not re.search(launch.repeats, script_text(own.path)):
        reason = f"since {own.path.name} repeats no prompts: a batch counts them, each with all its completions"
        settings.copied = (launch.copied, reason)


def _of_defaults(sheet: ConfigSheet, starts: Sequence[str], flat: Flat) -> Iterator[str]:
    """Yield what is assumed where a program takes its settings from its command line, and nothing is given to it."""
    configured = any(fnmatchcase(each, CONFIGS) for each in starts)
    if not configured and not any(fits_any(key, sheet.start_keys) for key in flat):
        yield (
            f"nothing is given to the program, which takes its settings from its command line: all are {sheet.title}'s "
            "defaults; put what it is started with behind it, after --"
        )


def _hand_on(
    path: Path,
    command: Command,
    arguments: Sequence[Text],
    inner: Evaluated,
    settings: Settings,
) -> None:
    """Note which arguments a script passes to another one that does not read them."""
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
    if sheet.arguments in FLAGGED:
        return
    words = [word for word in given if not word.value.startswith("-")]
    for key, each in overrides_of(words, "").items():
        held = settings.flat.get(sheet.name_of(key))
        if each.value is None or "." not in key:
            continue
        if held is None or (held.value != each.value and held.where != each.where):
            why = "reaches no training" if held is None else f"is given again at {held.where}"
            problem = f"{why}: `{key}={each.value}` would have no effect"
            raise FileError(str(path), problem, field=key, allowed=allowed)


def _over_file(
    sheet: ConfigSheet, words: list[Text], folder: Path, arguments: Flat, beside: Path
) -> tuple[Flat, dict[str, str]]:
    """Return a command line's arguments over the values of the YAML file that it names, and what of that is not known.

    Hydra looks beside the started program. Where it is not at hand, the framework's own stands for it, without its models.

    Raises:
        FileError: It is not known which file that is, or it is not at hand and nothing stands for it.
    """
    field = sheet.file_key or "--config"
    named = _file_of_key(sheet.file_key, words) or config_option(words, "--config")
    if named is None and sheet.launch.named_file:
        named = _named_file(words)
    if named is None and sheet.launch.positional_file and words:
        named = words[0] if words[0].value.endswith(YAML_SUFFIXES) else None
    if named is None:
        return arguments, {}
    if named.gaps and not Path(named.value).is_file():
        allowed = "a file; set the variable, or use --run"
        problem = f"cannot be evaluated: {named.gaps[0]}"
        raise FileError(named.value, problem, field=field, allowed=allowed)
    bases = (Path(), folder, *above(folder))
    repeats = sheet.arguments == "flags"
    for wanted in (named.value, str(beside / named.value), Path(named.value).name):
        for path in (base / wanted for base in bases):
            if path.is_file():
                return renamed(read_inherited(path, arguments, repeats=repeats), sheet.name_of), {}
    near = next((each for each in ends_near(Path(named.value), folder) if each.is_file()), None)
    if near is not None:
        return renamed(read_inherited(near, arguments, repeats=repeats), sheet.name_of), {}
    if not sheet.own_yaml:
        allowed = f"the file, looked for from here and beside the script: run this in the folder of {sheet.title}, or copy the file"
        raise FileError(named.value, "no such file", field=field, allowed=allowed)
    own = own_file(sheet, named.value)
    left = set() if own else {key for name in MODELS for key in _keys_of(sheet, name)}
    flat = {
        key: GivenValue(value=value, where=f"{named.value}{NOT_THERE}")
        for key, value in own_values(sheet, named.value).items()
        if key not in left
    }
    flat = without_other_names(sheet, {**flat, **arguments}, arguments)
    what = f"its file is not at hand, and {sheet.title}'s own {next(iter(sheet.own_yaml)).lstrip('*')} stands for it"
    return flat, {} if own else {field: what}


def _named_file(words: list[Text]) -> Text | None:
    """Return the YAML file that a folder and a name stand for; the name alone where the folder cannot be evaluated."""
    name, path = config_option(words, "--config-name"), config_option(words, "--config-path")
    if name is None:
        return None
    file = name.with_value(f"{name.value.removesuffix(YAML_SUFFIXES[0])}{YAML_SUFFIXES[0]}")
    known = path is not None and not path.gaps
    return file.with_value(f"{path.value}/{file.value}") if known else file  # type: ignore[union-attr]


# Settings that name models: nobody knows those of a file that is not at hand.
MODELS: Final = ("model", "critic_model", "reward_model")


def _keys_of(sheet: ConfigSheet, name: str) -> tuple[str, ...]:
    setting = sheet.settings.get(name)
    return () if setting is None else setting.keys


def _file_of_key(key: str, words: Sequence[Text]) -> Text | None:
    """Return the value of the last word that gives a key; None where none does, or there is no such key."""
    found = [word for word in words if key and word.value.startswith(f"{key}=")]
    return found[-1].with_value(found[-1].value.partition("=")[2]) if found else None


def _assumed_values(sheet: ConfigSheet, flat: Flat, doubts: Mapping[str, str]) -> Iterator[str]:
    """Yield what is assumed where the framework's own values stand for a file of its own that is not at hand."""
    place = next((each.where for each in flat.values() if each.where.endswith(NOT_THERE)), None)
    if place is not None and not doubts:
        name = place.removesuffix(NOT_THERE)
        yield f"{name}, which is not at hand, has {sheet.title}'s own values: put it beside the script"
