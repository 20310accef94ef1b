"""What a script's own commands do: print, export, leave; what else would be started is written down."""

import os.path
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rlplan.files.decoding import text_of
from rlplan.planner.configs.shell.conditions import Truth
from rlplan.planner.configs.shell.programs import PROGRAMS, WITHOUT_INPUT, printed_by, unescaped
from rlplan.planner.configs.shell.text import OF_THE_RUN, Gap, Text, joined
from rlplan.planner.configs.shell.words import UNKNOWN, RefusedError, Value, Words, line_of, source

if TYPE_CHECKING:
    from tree_sitter import Node

# Programs that print what they read, or all of it that a script means.
HANDS_ON: Final = frozenset({("cat",), ("tr", "-d", "\\r")})
# Commands that change nothing of what is launched, and succeed.
SILENT: Final = frozenset(
    {"trap", "ulimit", "mkdir", "chmod", "sleep", "wait", "conda", "module", "shopt", "touch"}
    | {"pip", "pip3", "rm", "cp", "mv", "ln", "wget", "curl", "true", ":"}
)
# What is printed depends on the machine, or on the time, and on no word of the script.
OF_THE_MACHINE: Final = frozenset(
    {"nproc", "nvidia-smi", "rocm-smi", "npu-smi", "hostname", "lscpu", "free", "scontrol", "sinfo"}
    | {"date", "whoami", "id", "uname", "ip", "getent", "squeue"}
)
# Files that set up a shell's own programs and paths, and nothing that a training is started with.
SETUP_FILES: Final = frozenset(
    {"activate", ".bashrc", ".bash_profile", ".profile", "conda.sh", "nvm.sh", "setvars.sh"}
)
# Why a file is not read into a script, as a clause.
NOT_AT_HAND: Final = "is not at hand"
# What searches, and says by its success whether it finds something.
SEARCHES: Final = frozenset({"grep", "egrep"})
# What stands between commands in quotes.
_SEVERAL: Final = re.compile(r"\n|;|&&|\|\|")
_QUIET: Final = re.compile("-[a-zA-Z]*q[a-zA-Z]*")
# Folders above a script's in which files of another machine's paths are looked for.
FOLDERS: Final = 3
# Parts of a path of another machine that have to be those of a file near a script: `models/qwen3-4B.sh`.
LEAST_END: Final = 2
# Folders above one that are taken to be of its project, where no repository says it.
MOST_ABOVE: Final = 6
# Characters of a file that a small program is given.
MOST_READ: Final = 2**20
ASSIGNING: Final = frozenset(("export", "declare", "local", "readonly", "typeset"))
# What an `exit` may be: success, failure, or what the last command said.
SUCCESS: Final = ("0", "")


def above(folder: Path) -> Iterator[Path]:
    """Yield the folders above one, as far as they are of its project: up to the root of its repository.

    Outside of a repository they are the nearest ones; the root of the machine is none, since what is found there by a
    name such as `scripts/run.sh` is another's.
    """
    folders = [folder.resolve(), *folder.resolve().parents]
    root = next((at for at, each in enumerate(folders) if (each / ".git").exists()), MOST_ABOVE)
    yield from (each for each in folders[1 : root + 1] if each != each.parent)


def ends_near(path: Path, folder: Path, least: int = 1) -> Iterator[Path]:
    """Yield where a path of another machine may be: its ends, below a folder or one close above, the longest first.

    Args:
        least: Parts of the shortest end.
    """
    near = (folder, *islice(above(folder), FOLDERS))
    for at in range(1, len(path.parts) - least + 1):
        yield from (base / Path(*path.parts[at:]) for base in near)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Hold a command that a script would start.

    Attributes:
        line: Where it is written, from 1.
        words: Its name and arguments.
        variables: That are set for it alone.
    """

    line: int
    words: tuple[Text, ...]
    variables: tuple[tuple[str, Text], ...] = ()


@dataclass(slots=True, kw_only=True)
class Evaluated:
    """Hold what a script would do.

    Attributes:
        commands: What it would start, in order; assignments, output and files left out.
        gaps: What could not be evaluated, and decides what follows it.
        refusal: Why the script stops before its end, with its line.
        exported: Variables that other scripts get which it starts.
        unread: Arguments that it is given and looks at nowhere.
        notes: What is to be said of it.
        inside: What it would start to read what is printed (`$(...)`), in order.
        written: Texts of files that it writes (`cat > FILE <<END`), by their paths.
        played: Its lines that are played, from 1, where a shell's text is: others stand in branches that are not taken.
    """

    commands: list[Command] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    refusal: tuple[int, str] | None = None
    exported: dict[str, Text] = field(default_factory=dict)
    unread: tuple[Text, ...] = ()
    notes: tuple[str, ...] = ()
    inside: list[Command] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)
    played: set[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Hold what a script has come to: all that playing on from there depends on or adds to."""

    commands: tuple[Command, ...]
    gaps: tuple[Gap, ...]
    variables: dict[str, Value]
    arguments: tuple[Text, ...]
    functions: dict[str, "Node"]
    exports: frozenset[str]
    printed: tuple[Text, ...] | None
    given: Text | None
    said: str
    played: frozenset[int]


class ExitError(Exception):
    """Leave the script."""


class ReturnError(Exception):
    """Leave a function."""


class RoundError(Exception):
    """Leave a round of a loop.

    Attributes:
        last: Whether it is the last one.
    """

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.last = last


class Commands:
    """Play commands by their names.

    Attributes:
        found: What the script does.
        words: Its variables.
        exports: Names of variables that other scripts get which it starts.
    """

    words: Words

    def __init__(self, probes: dict[str, bool], wanted: Callable[[Command], bool]) -> None:
        self.found = Evaluated()
        self._probes, self._wanted = probes, wanted
        self._printed: list[Text] | None = None
        self._input: Text | None = None
        self._said = ""
        self._loops = 0
        self._functions: dict[str, Node] = {}
        self.exports: set[str] = set()

    def _state(self) -> State:
        """Return what the script has come to."""
        return State(
            commands=tuple(self.found.commands),
            gaps=tuple(self.found.gaps),
            variables=dict(self.words.variables),
            arguments=self.words.arguments,
            functions=dict(self._functions),
            exports=frozenset(self.exports),
            printed=None if self._printed is None else tuple(self._printed),
            given=self._input,
            said=self._said,
            played=frozenset(self.found.played or ()),
        )

    def _put(self, state: State) -> None:
        """Go on from another state."""
        self.found.commands[:] = state.commands
        self.found.gaps[:] = state.gaps
        self.words.variables.clear()
        self.words.variables.update(state.variables)
        self.words.arguments = state.arguments
        self._functions = dict(state.functions)
        self.exports = set(state.exports)
        self._printed = None if state.printed is None else list(state.printed)
        self._input, self._said = state.given, state.said
        self.found.played = None if self.found.played is None else set(state.played)

    def named(self, name: str, words: list[Text], node: "Node") -> Truth:
        """Play a command by its name; a command without a rule is kept as one that the script starts."""
        players: dict[str, Callable[[list[Text], Node], Truth]] = {
            "echo": self._echo,
            **dict.fromkeys(("basename", "dirname"), self._part_of_path),
            **dict.fromkeys(("realpath", "readlink"), self._real_path),
            **dict.fromkeys(("cd", "pushd"), self._change_folder),
            **dict.fromkeys(("pwd", "popd"), self._folder),
            **dict.fromkeys(("exit", "return"), self._leave),
            **dict.fromkeys(("break", "continue"), self._leave_round),
            **dict.fromkeys(("mapfile", "readarray"), self._read_lines),
            **dict.fromkeys(ASSIGNING, self._export),
            "shift": self._shift,
            "set": self._set,
            "read": self._read,
            "getopts": self._next_option,
            "getopt": self._sorted_options,
        }
        if name in players:
            return players[name](words, node)
        if name in SILENT or name == "false":
            return name != "false"
        searched = self._searched(words) if name in SEARCHES else None
        if searched is not None:
            return searched
        if name == "printf" and len(words) > 3 and words[1].value == "-v":  # noqa: PLR2004 -- -v NAME FORMAT
            return self._print_into(words, node)
        if name in PROGRAMS and self._print_of(words, node):
            return True
        known = self._answer_of(words)
        if known is None or self._wanted(self._command_of(words, node)):
            self._start(words, node)
            return None
        if known and name in OF_THE_MACHINE:
            self._print_unknown(node)
        return known

    def _answer_of(self, words: Sequence[Text]) -> Truth:
        """Return whether a command succeeds that only asks the machine; None for another.

        Several commands in quotes start something, whatever one of them asks; several statements of Python may be one question.
        """
        asks_python = Path(words[0].value).name.startswith("python")
        asked = (word.value for word in words if asks_python or not _SEVERAL.search(word.value))
        text = " ".join(asked)
        return next((answer for probe, answer in self._probes.items() if probe in text), None)

    def _searched(self, words: list[Text]) -> Truth:
        """Return whether a quiet search (`grep -q`) finds something; None where it is none, or that is not known."""
        quiet = [word for word in words[1:] if _QUIET.fullmatch(word.value)]
        given = self._read_by(words)
        if not quiet or given is None or any(word.gaps for word in (*words, given[1])):
            return None
        kept = (re.sub("^(-[a-zA-Z]*)q", r"\1", each.value) for each in given[0])
        found = printed_by([each for each in kept if each != "-"], given[1].value)
        return None if found is None else bool(found)

    def _read_by(self, words: list[Text]) -> tuple[list[Text], Text] | None:
        """Return a small program's words and what it reads: what comes in, or the file at their end; None for nothing.

        Where it is a file, the words are those without it.
        """
        if words[0].value in WITHOUT_INPUT:
            return words, Text("")
        if self._input is not None:
            return words, self._input
        least = 2 if words[0].value == "cat" else 3  # a program or pattern of its own comes first
        if len(words) < least or words[-1].gaps:
            return None
        path = Path(self._at(words[-1]).value)
        try:
            text = text_of(path) if path.is_file() else None
        except (OSError, ValueError):
            return None
        return None if text is None or len(text) > MOST_READ else (words[:-1], Text(text))

    def _print_of(self, words: list[Text], node: "Node") -> bool:
        """Print what a small program does, as far as its words and what it reads are known."""
        read = self._read_by(words)
        if read is None:
            return False
        words, given = read
        gaps = (*(gap for word in words for gap in word.gaps), *given.gaps)
        if gaps and tuple(word.value for word in words) in HANDS_ON:
            self._print(given)
            return True
        if gaps:
            self._print(Text("$(...)", line_of(node), gaps))
            return True
        printed = printed_by([word.value for word in words], given.value)
        if printed is not None:
            self._print(Text(printed, line_of(node)))
        return printed is not None

    def _print_into(self, words: list[Text], node: "Node") -> Truth:
        """Play `printf -v NAME FORMAT ...`: what it prints becomes a variable."""
        text = joined(words[3:], " ", line_of(node))
        printed = printed_by(["printf", *(word.value for word in words[3:])], "")
        if text.gaps or printed is None:
            own = Gap(line=line_of(node), source=short(node), reason="it is not run")
            self.words.variables[words[2].value] = Text(
                "$(...)", line_of(node), text.gaps or (own,)
            )
            return None
        self.words.variables[words[2].value] = Text(printed, line_of(node))
        return True

    def _start(self, words: list[Text], node: "Node") -> None:
        self.found.commands.append(self._command_of(words, node))
        self._print_unknown(node)

    def _command_of(self, words: Sequence[Text], node: "Node") -> Command:
        given = [part for part in node.children if part.type == "variable_assignment"]
        variables = tuple(self._given(part) for part in given)
        return Command(line=line_of(node), words=tuple(words), variables=variables)

    def _print_unknown(self, node: "Node") -> None:
        """Print what only a run knows."""
        name = (short(node).split() or [""])[0]
        of_machine = name in OF_THE_MACHINE
        reason = f"what {name} prints {OF_THE_RUN}" if of_machine else "it is not run"
        gap = Gap(line=line_of(node), source=short(node), reason=reason)
        if self._printed is not None:
            self._print(Text("$(...)", line_of(node), (gap,)))

    def _given(self, node: "Node") -> tuple[str, Text]:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        assert name is not None
        text = self.words.text(value) if value is not None else Text("", line_of(node))
        return source(name), text

    def _echo(self, words: list[Text], node: "Node") -> Truth:
        said, options = words[1:], ""
        while said and said[0].value.startswith("-") and set(said[0].value[1:]) <= set("neE"):
            options += said[0].value[1:] or "-"
            said = said[1:]
        text = joined(said, " ", line_of(node))
        if "e" in options and not text.gaps:
            text = text.with_value(unescaped(text.value))
        self._print(text if "n" in options else text.with_value(text.value + "\n"))
        return True

    def _part_of_path(self, words: list[Text], node: "Node") -> Truth:
        given = [word for word in words[1:] if word.value != "--"]
        if not given:
            return None
        path = given[0].value.rstrip("/") or "/"
        folder, slash, file = path.rpartition("/")
        if words[0].value == "dirname":
            part = folder or slash or "."
        else:
            suffix = given[1].value if len(given) > 1 else ""
            part = file.removesuffix(suffix) if file != suffix else file
        gaps = given[0].gaps if UNKNOWN in part else ()
        self._print(Text(part + "\n", line_of(node), gaps))
        return True

    def _real_path(self, words: list[Text], node: "Node") -> Truth:
        given = [word for word in words[1:] if not word.value.startswith("-")]
        if len(given) == 1:
            path = self._at(given[0])
            self._print(Text(path.value + "\n", line_of(node), path.gaps))
            return True
        self._print_unknown(node)
        return None

    def _at(self, path: Text) -> Text:
        """Return a path from the root, as seen from the folder where the script is by now."""
        if path.value.startswith(("/", UNKNOWN)):
            return path.with_value(os.path.normpath(path.value))
        here = self.words.variables.get("PWD", Text(""))
        assert isinstance(here, Text)
        full = os.path.normpath(os.path.join(here.value, path.value))  # noqa: PTH118 -- `..` of a path as it is written
        return Text(full, path.line, path.gaps + here.gaps)

    def _change_folder(self, words: list[Text], node: "Node") -> Truth:
        given = [word for word in words[1:] if not re.fullmatch(r"-[LPe]+|--", word.value)]
        variables = self.words.variables
        before = variables.get("PWD", Text(""))
        path = given[0] if given else Text("$HOME", line_of(node))
        if path.value == "-":
            variables["PWD"] = variables.get("OLDPWD", before)
        else:
            variables["PWD"] = self._at(path)
        variables["OLDPWD"] = before
        return True

    def _folder(self, words: list[Text], node: "Node") -> Truth:
        variables = self.words.variables
        if words[0].value == "popd":
            variables["PWD"] = variables.get("OLDPWD", Text(""))
            return True
        here = variables.get("PWD", Text(""))
        assert isinstance(here, Text)
        self._print(Text(here.value + "\n", line_of(node), here.gaps))
        return True

    def _export(self, words: list[Text], node: "Node") -> Truth:
        del node
        for word in words[1:]:
            variable, equals, value = word.value.partition("=")
            if equals:
                self.words.variables[variable] = word.with_value(value)
        return True

    def _shift(self, words: list[Text], node: "Node") -> Truth:
        del node
        count = words[1].value if len(words) > 1 else "1"
        if not count.isdecimal() or int(count) > len(self.words.arguments):
            return False
        self.words.arguments = self.words.arguments[int(count) :]
        return True

    def _set(self, words: list[Text], node: "Node") -> Truth:
        """Play `set -- ARGUMENTS`; options of the shell change nothing here."""
        del node
        places = [at for at, word in enumerate(words) if word.value == "--"]
        if places:
            self.words.arguments = tuple(words[places[0] + 1 :])
        elif len(words) > 1 and not words[1].value.startswith(("-", "+")):
            self.words.arguments = tuple(words[1:])
        return True

    def _read(self, words: list[Text], node: "Node") -> Truth:
        """Play `read`: a line of what it reads goes into its variables; what is asked for stays unset."""
        options, names = _read_options(words[1:], "adinNptu")
        variables = self.words.variables
        names = names or ["REPLY"]
        if "a" in options:
            names = [options["a"]]
        if self._input is None:
            for name in names:
                variables.pop(name, None)
            return True if "p" in options else None
        if self._input.gaps and len(names) == 1 and "a" not in options:
            variables[names[0]] = self._input.with_value(self._input.value.rstrip("\n"))
            return None
        if self._input.gaps:
            variables.update(dict.fromkeys(names, self._input.with_value("$(...)")))
            return None
        line, newline, rest = self._input.value.partition(options.get("d", "\n") or "\0")
        if not line and not newline:
            return False
        self._input = Text(rest, self._input.line)
        separators = self._separators(node)
        parts = _divided(line, separators, 0 if "a" in options else len(names))
        found = [Text(part, line_of(node)) for part in parts]
        if "a" in options:
            variables[names[0]] = tuple(found)
        else:
            found += [Text("", line_of(node))] * (len(names) - len(found))
            variables.update(zip(names, found, strict=True))
        return True

    def _separators(self, node: "Node") -> str | None:
        """Return what parts a line that is read, as the command's own IFS or the script's says; None for blanks."""
        own = [self._given(part) for part in node.children if part.type == "variable_assignment"]
        value = next((text for name, text in own if name == "IFS"), None)
        usual = self.words.variables.get("IFS")
        if value is None and isinstance(usual, Text):
            value = usual
        return None if value is None or value.value == " \t\n" else value.value

    def _read_lines(self, words: list[Text], node: "Node") -> Truth:
        options, names = _read_options(words[1:], "dnOsuC")
        name = names[0] if names else "MAPFILE"
        if self._input is None or self._input.gaps:
            gaps = () if self._input is None else self._input.gaps
            own = Gap(line=line_of(node), source=short(node), reason="what it reads is not known")
            self.words.variables[name] = Text(f"${name}", line_of(node), gaps or (own,))
            return None
        lines = self._input.value.split(options.get("d", "\n") or "\0")
        lines = lines[:-1] if lines[-1] == "" else lines
        ends = "" if "t" in options else options.get("d", "\n")
        self.words.variables[name] = tuple(Text(line + ends, line_of(node)) for line in lines)
        return True

    def _next_option(self, words: list[Text], node: "Node") -> Truth:
        """Play `getopts`: the next option of the script goes into a variable, its value into OPTARG."""
        if len(words) < 3:  # noqa: PLR2004 -- the name, its letters, a variable
            return None
        letters, name = words[1].value.lstrip(":"), words[2].value
        variables, arguments = self.words.variables, self.words.arguments
        place = variables.get("OPTIND", Text("1"))
        assert isinstance(place, Text)
        at = int(place.value) - 1
        word = arguments[at] if at < len(arguments) else None
        if word is None or not re.fullmatch(r"-[A-Za-z0-9].*", word.value):
            variables[name] = Text("?", line_of(node))
            return False
        self.words.read.append(word)
        letter, value = word.value[1], word.value[2:]
        takes = f"{letter}:" in letters
        at += 1
        if takes and not value and at < len(arguments):
            self.words.read.append(arguments[at])
            value = arguments[at].value
            at += 1
        variables[name] = word.with_value(letter if letter in letters else "?")
        if takes:
            variables["OPTARG"] = word.with_value(value)
        variables["OPTIND"] = Text(str(at + 1))
        return True

    def _sorted_options(self, words: list[Text], node: "Node") -> Truth:
        """Play `getopt` where the script has no arguments: what is left of them is ` --`."""
        places = [at for at, word in enumerate(words) if word.value == "--"]
        if places and places[0] == len(words) - 1:
            self._print(Text(" --\n", line_of(node)))
            return True
        self._print_unknown(node)
        return None

    def _leave_round(self, words: list[Text], node: "Node") -> Truth:
        del node
        if self._loops:
            raise RoundError(last=words[0].value == "break")
        return True

    def _print(self, text: Text) -> None:
        if self._printed is not None:
            self._printed.append(text)
        self._said = text.value.strip() or self._said

    def _leave(self, words: list[Text], node: "Node") -> Truth:
        code = words[1].value if len(words) > 1 else ""
        if words[0].value == "return":
            raise ReturnError
        if code not in SUCCESS and not self._printed:
            raise RefusedError(line_of(node), self._said or f"exit {code}")
        raise ExitError

    def note(self, node: "Node", reason: str) -> None:
        """Keep what could not be evaluated."""
        self.found.gaps.append(Gap(line=line_of(node), source=short(node), reason=reason))


def _read_options(words: list[Text], valued: str) -> tuple[dict[str, str], list[str]]:
    """Return the options of `read` and its like, and the names behind them."""
    options: dict[str, str] = {}
    rest = [word.value for word in words]
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        letters = rest.pop(0)[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in valued:
                options[letter] = letters or (rest.pop(0) if rest else "")
                break
            options[letter] = ""
    return options, rest


def _divided(line: str, separators: str | None, most: int) -> list[str]:
    """Return the parts of a line, at most so many; 0 for all."""
    if separators is None:
        return line.split(None, most - 1) if most else line.split()
    if not separators:
        return [line]
    parts = re.split(f"[{re.escape(separators)}]", line, maxsplit=max(0, most - 1))
    return parts[:-1] if parts[-1] == "" and (not most or len(parts) < most) else parts


def short(node: "Node") -> str:
    """Return a part of a script as it is written, in one line of at most 60 characters."""
    text = " ".join(source(node).split())
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004
