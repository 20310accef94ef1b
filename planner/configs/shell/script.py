"""Evaluate a script statement by statement, as a shell would run it, without running anything."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rlplan.files.decoding import text_of
from rlplan.planner.configs.shell.branches import Branches
from rlplan.planner.configs.shell.commands import (
    LEAST_END,
    NOT_AT_HAND,
    SETUP_FILES,
    Command,
    Evaluated,
    ExitError,
    ReturnError,
    ends_near,
    short,
)
from rlplan.planner.configs.shell.conditions import (
    Truth,
    both,
    either,
    inverse,
    number_is_true,
    truth_of,
)
from rlplan.planner.configs.shell.text import Gap, Text, joined
from rlplan.planner.configs.shell.words import (
    UNKNOWN,
    RefusedError,
    Value,
    Words,
    line_of,
    lines_of,
    source,
)

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# What launch scripts stay far below: statements in all, calls inside calls, and characters of a variable.
MOST_STATEMENTS: Final = 20_000
MOST_CALLS: Final = 20
# Commands of a script that the grammar reads together with the line below them.
MOST_TORN: Final = 20
MOST_CHARACTERS: Final = 2**16
MOST_BYTES: Final = 2**20
# Statements that are made of others, of which not all may be played.
OF_STATEMENTS: Final = frozenset(
    {"if_statement", "case_statement", "for_statement", "while_statement", "c_style_for_statement"}
    | {
        "function_definition",
        "compound_statement",
        "subshell",
        "list",
        "pipeline",
        "negated_command",
    }
)
# Those whose last command's files are theirs to the parser.
LISTS: Final = frozenset({"list", "pipeline", "negated_command"})
# Signs that close a file, behind which none is named.
CLOSES: Final = frozenset({">&-", "<&-"})
# What is no words of a command's own.
QUOTED: Final = frozenset({"string", "raw_string", "heredoc_body", "comment"})
# Commands that read statements.
READS_STATEMENTS: Final = frozenset({"bash", "sh", "ssh", "sbatch", "srun"})
# Those that start a shell elsewhere where their last word is one: `kubectl exec -i POD -- /bin/bash`.
STARTS_SHELLS: Final = frozenset({"kubectl", "docker", "podman", "ssh", "srun", "sudo"})
SHELLS: Final = frozenset({"bash", "sh"})

# A variable in the midst of a path, where the parser would end the word: `recipes/$MODEL/$TASK/config_$NAME.yaml`.
_IN_A_PATH: Final = re.compile(r"(?<=[\w}/.:-])\$([A-Za-z_]\w*)(?=[/.-])")
# `...` on one line, with what stands before it.
_BACKTICKS: Final = re.compile(r"(?m)^([^`\n]*)`([A-Za-z$\"/][^`\n]*)`")
# `# words` in backticks, as comments among a command's lines are written: it runs nothing, and is no word.
_REMARKS: Final = re.compile(r"(?m)^((?:[^`\n]*[ \t])?)`[ \t]*#[^`\n]*`(?=\s)")

# Options of `#SBATCH` lines, and the variables that say them to the job.
_SBATCH: Final = re.compile(r"(?:^#SBATCH\s|\s)\s*(?:--([a-z-]+)|-([NnGc]))[=\s]\s*([\w:.,-]+)")
# `8` or `h100:8`, and no range of nodes; of generic resources, of which there may be several, those that are GPUs.
_ASKED: Final = re.compile(r"(?:^|:)(\d+)$")
_OF_GRES: Final = re.compile(r"(?:^|,)gpu(?::[^:,]+)?:(\d+)(?:,|$)")
_SBATCH_SHORT: Final = {"N": "nodes", "n": "ntasks", "G": "gpus", "c": "cpus-per-task"}
_SLURM: Final = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "cpus-per-task": ("SLURM_CPUS_PER_TASK",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gres": ("SLURM_GPUS_ON_NODE",),
    "gpus": ("SLURM_GPUS",),
}

# `[0]*$NAME`, as lists of layers are written: the grammar breaks a word behind such a star where a variable follows.
_STARRED: Final = re.compile(r"\]\*\$(\w+)")

# `NAME=<what to write here>`: a blank that somebody is to fill in, which to a shell is no assignment.
_BLANKS: Final = re.compile(r"(?m)^(\s*(?:export\s+)?\w+=)(<[A-Za-z_][^<>|;&'\n]*>)(?=\s*$)")

# `--root <your_root>`, `path=<your_path>`: such a word anywhere else, in which a shell sees two files.
_TO_FILL_IN: Final = re.compile(r"(?<=[\s=])<([A-Za-z_][\w-]*)>(?=[\s/]|$)")


def evaluate(
    text: str,
    arguments: Iterable[str | Text] = (),
    environment: Mapping[str, str | Text] | None = None,
    probes: Mapping[str, bool] | None = None,
    wanted: Callable[[Command], bool] = lambda _: False,
    path: Path | None = None,
) -> Evaluated:
    """Return what a script would do.

    Args:
        text: The script.
        arguments: Its `$1`, `$2`, ...
        environment: Variables that are set before it starts.
        probes: Whether a command succeeds that has such words in it; others are not known.
        wanted: Tells whether a command is the one the script is read for. Where only a run could decide between two
            branches, the branch with such a command is taken.
        path: Its file: what it knows of its own folder, and beside what other files are looked for.
    """
    import tree_sitter_bash  # noqa: PLC0415 -- only where a script is read
    from tree_sitter import Language, Parser  # noqa: PLC0415

    parser = Parser(Language(tree_sitter_bash.language()))

    def parse(text: str) -> "Node":
        return _root_of(parser, text.encode())

    variables: dict[str, Value] = {name: _text(each) for name, each in (environment or {}).items()}
    for name, value in slurm_variables(text).items():
        variables.setdefault(name, value)
    variables.setdefault("PWD", Text(str(Path.cwd())))
    if path is not None:
        variables |= {"0": Text(str(path)), "BASH_SOURCE": (Text(str(path)),)}
    given = tuple(map(_text, arguments))
    script = _Script(variables, given, dict(probes or {}), wanted, parse)
    script.found.played = set()
    blank = _filled_in(_BLANKS.sub(r"\1'\2'", _unbroken(text)), parse)
    plain = _IN_A_PATH.sub(r"${\1}", blank)
    root = parse(_BACKTICKS.sub(_substitution, _REMARKS.sub(_without_remark, plain)))
    try:
        script.block(root.children)
    except RefusedError as error:
        script.found.refusal = (error.line, error.message)
    except RecursionError:
        script.found.refusal = (1, "is nested too deeply")
    except ExitError:
        pass
    broken = _broken_off(root)
    if broken is not None:
        script.note(broken, f"is not understood, down to line {broken.end_point[0] + 1}")
    for name in script.exports:
        exported = script.words.variables.get(name)
        if isinstance(exported, Text):
            script.found.exported[name] = exported
    read = {id(each) for each in script.words.read}
    script.found.unread = tuple(each for each in given if id(each) not in read)
    return script.found


def _unbroken(text: str) -> str:
    """Return a script's text with words whole that the grammar would break."""
    return _STARRED.sub(r"]*${\1}", text)


def _filled_in(text: str, parse: Callable[[str], "Node"]) -> str:
    """Return a script's text in which a word to be filled in is one, and no pair of files; what stands in quotes stays."""
    if not _TO_FILL_IN.search(text):
        return text
    root = parse(text)
    # The tree is of commands that end with their lines (`_root_of`), which the text may not have.
    whole, parts = text.encode()[: root.start_byte] + (root.text or b""), [root]
    quoted = list[tuple[int, int]]()
    while parts:
        part = parts.pop()
        if part.type in QUOTED:
            quoted.append((part.start_byte, part.end_byte))
        else:
            parts += part.children

    def escaped(found: re.Match[bytes]) -> bytes:
        at = found.start()
        return (
            found[0]
            if any(start <= at < end for start, end in quoted)
            else rb"\<" + found[1] + rb"\>"
        )

    pattern = re.compile(_TO_FILL_IN.pattern.encode())
    return pattern.sub(escaped, whole).decode()


def _substitution(found: re.Match[str]) -> str:
    """Return a substitution in backticks as one in `$(...)`, which the grammar reads better; not one in quotes."""
    return found[0] if found[1].count("'") % 2 or "#" in found[1] else f"{found[1]}$({found[2]})"


def _without_remark(found: re.Match[str]) -> str:
    """Return a line's beginning without the remark in backticks behind it; with it where both stand in quotes."""
    in_quotes = found[1].count("'") % 2 or found[1].count('"') % 2
    return found[0] if in_quotes or "#" in found[1] else found[1]


def _broken_off(node: "Node") -> "Node | None":
    """Return the first part over several lines that is no statement of a shell's: what stands in it is lost."""
    if node.type == "ERROR" and node.end_point[0] > node.start_point[0]:
        return node
    inner = (_broken_off(part) for part in node.children if part.has_error)
    return next((part for part in inner if part is not None), None)


def slurm_variables(text: str) -> dict[str, Text]:
    """Return the variables that Slurm sets for a job, as the `#SBATCH` lines of its script ask for it.

    By `sbatch`(1), "Output environment variables"; a script that is not submitted has none of them.
    """
    asked: dict[str, Text] = {}
    for line, row in enumerate(text.splitlines(), 1):
        for name, short_name, value in _SBATCH.findall(row) if row.startswith("#SBATCH") else ():
            key = name or _SBATCH_SHORT.get(short_name, "")
            count = (_OF_GRES if key == "gres" else _ASKED).search(value)
            if key in _SLURM and count is not None:
                asked |= {each: Text(count[1], line) for each in _SLURM[key]}
    if "SLURM_NNODES" in asked and "SLURM_NTASKS_PER_NODE" in asked:
        nodes, tasks = (asked[each] for each in ("SLURM_NNODES", "SLURM_NTASKS_PER_NODE"))
        asked.setdefault("SLURM_NTASKS", nodes.with_value(str(int(nodes.value) * int(tasks.value))))
    return asked


def _is_script(path: Path) -> bool:
    """Return whether a file is there, and no larger than scripts are."""
    try:
        return path.is_file() and path.stat().st_size <= MOST_BYTES
    except (OSError, ValueError):
        return False


def _is_shell(node: "Node") -> bool:
    """Return whether a command reads statements: `bash <<END`, `ssh node <<END`, `sbatch <<END`."""
    words = source(node).split()
    named = bool(words) and words[0] in READS_STATEMENTS
    return node.type == "command" and (named or _is_bare_shell(words))


def _is_bare_shell(words: Sequence[str]) -> bool:
    """Return whether words start a shell that is given no script: what it reads are its statements."""
    if not words or words[-1].rpartition("/")[2] not in {*SHELLS, "-s"}:
        return False
    first = words[0].rpartition("/")[2]
    return first in STARTS_SHELLS or (first in SHELLS and len(words) <= 2)  # noqa: PLR2004 -- itself and -s


def _at_line(command: Command, line: int) -> Command:
    """Return a command as one that is written on that line."""
    words = tuple(replace(word, line=line) for word in command.words)
    return replace(command, line=line, words=words)


def _text(given: str | Text) -> Text:
    return Text(given) if isinstance(given, str) else given


# What comes of a statement whose parts are not all there: where a script is broken off, or is none.
_SHAPES: Final = (AssertionError, AttributeError, IndexError, StopIteration, ValueError)


def _root_of(parser: "Parser", read: bytes) -> "Node":
    """Return a text's tree, each command of it ended where its line does."""
    root = parser.parse(read).root_node
    for _ in range(MOST_TORN):
        end = next(_run_together(root, read), None)
        if end is None:
            break
        read = read[:end] + b";" + read[end:]
        root = parser.parse(read).root_node
    return root


def _run_together(root: "Node", read: bytes) -> Iterator[int]:
    """Yield where a command ends that the grammar reads on into the next line, as a byte: no shell does without a backslash.

    So it does with `a | b | xargs kill -9` above a command that is redirected and piped.
    """
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.type == "command":
            for word, after in pairwise(node.children):
                between = read[word.end_byte : after.start_byte]
                if b"\n" in between and not between.strip():
                    yield word.end_byte
        waiting.extend(reversed(node.children))


class _Script(Branches):
    """Play a script."""

    def __init__(
        self,
        variables: dict[str, Value],
        arguments: tuple[Text, ...],
        probes: dict[str, bool],
        wanted: Callable[[Command], bool],
        parse: Callable[[str], "Node"],
    ) -> None:
        super().__init__(probes, wanted)
        self.words = Words(variables, arguments, self._substituted, parse)
        self._parse = parse
        self._statements = self._calls = self._elsewhere = 0

    def block(self, nodes: Iterable["Node"]) -> Truth:
        """Play statements; return whether the last one succeeds."""
        truth: Truth = True
        for node in nodes:
            if node.is_named and node.type != "comment":
                truth = self.play(node)
        return truth

    def play(self, node: "Node") -> Truth:
        """Play one statement; return whether it succeeds, None where that is not known."""
        players: dict[str, Callable[[Node], Truth]] = {
            "variable_assignment": self._assign,
            "variable_assignments": self._inside,
            "declaration_command": self._declare,
            "unset_command": self._unset,
            "command": self._command,
            "test_command": lambda test: truth_of(test, self.words),
            "list": self._list,
            "pipeline": self._pipeline,
            "negated_command": lambda node: inverse(self._inside(node)),
            "redirected_statement": self._redirected,
            "compound_statement": self._compound,
            "subshell": self._subshell,
            "if_statement": self._if,
            "case_statement": self._case,
            "for_statement": self._for,
            "while_statement": self._while,
            "c_style_for_statement": self._counted,
            "function_definition": self._define,
        }
        self._statements += 1
        if self._statements > MOST_STATEMENTS:
            raise RefusedError(line_of(node), f"does more than {MOST_STATEMENTS:,} statements")
        if node.type not in OF_STATEMENTS and self.found.played is not None and not self._elsewhere:
            self.found.played.update(lines_of(node))
        player = players.get(node.type)
        if player is not None:
            try:
                return player(node)
            except _SHAPES:
                if not node.has_error:
                    raise
                self._leave_out(node, "is not understood", [node])
                return None
        if node.type not in {
            "heredoc_body",
            "heredoc_redirect",
            "file_redirect",
            "herestring_redirect",
        }:
            named = f"{node.type.replace('_', ' ')} is not evaluated"
            self._leave_out(node, "is not understood" if node.type == "ERROR" else named, [node])
        return None

    def _redirected(self, node: "Node") -> Truth:
        """Play what is redirected; what goes to the error stream explains a stop, and is printed nowhere."""
        body = node.child_by_field_name("body")
        if body is None:
            return True
        text = self._text_for(node)
        if text is not None and not text.gaps and source(body).split() == ["cat"]:
            self._write(node, text.value)
        if text is not None and text.value and _is_shell(body):
            return self._eval(text, node)
        with self._reading(text):
            return self._printing(node, body)

    def _printing(self, node: "Node", body: "Node") -> Truth:
        """Play a redirected command; what it prints to stderr is kept as the script's last message."""
        to_errors = any(">&2" in source(part).replace(" ", "") for part in node.children[1:])
        if not to_errors:
            return self.play(body)
        kept, self._printed = self._printed, []
        truth = self.play(body)
        self._said = joined(self._printed, " ", 0).value.strip() or self._said
        self._printed = kept
        return truth

    def _write(self, node: "Node", text: str) -> None:
        """Keep what goes into files that are named."""
        inner = (part for each in node.children for part in each.children)
        for part in (*node.children, *inner):
            if part.type == "file_redirect" and part.children[0].type in {">", ">|"}:
                path = self.words.text(part.children[1])
                if not path.gaps:
                    self.found.written[path.value] = text

    def _text_for(self, node: "Node") -> Text | None:
        """Return what a statement is given to read: behind `<<<`, `<<` or `< <(...)`; None where it is nothing known."""
        for part in node.children:
            if part.type == "herestring_redirect":
                words = [word for word in part.children if word.is_named]
                return self.words.text(words[-1]) + Text("\n") if words else None
            if part.type == "heredoc_redirect":
                return self._document(part)
            if part.type == "file_redirect" and part.children[0].type == "<":
                inner = part.children[-1]
                return self._substituted(inner) if inner.type == "process_substitution" else None
        return None

    def _document(self, node: "Node") -> Text:
        """Return the text between `<<END` and `END`."""
        start = next((part for part in node.children if part.type == "heredoc_start"), None)
        body = next((part for part in node.children if part.type == "heredoc_body"), None)
        if body is None:
            return Text("", line_of(node))
        is_plain = start is not None and source(start)[:1] in {"'", '"', "\\"}
        return Text(source(body), line_of(body)) if is_plain else self.words.document(body)

    @contextmanager
    def _reading(self, text: Text | None) -> Iterator[None]:
        """Give what is played meanwhile a text to read."""
        kept = self._input
        if text is not None:
            self._input = text
        try:
            yield
        finally:
            self._input = kept

    def _pipeline(self, node: "Node") -> Truth:
        """Play statements of which each reads what the one before it prints."""
        stages = [part for part in node.children if part.is_named and part.type != "comment"]
        kept, self._input = self._input, self._input
        variables = dict(self.words.variables)
        truth: Truth = True
        try:
            for stage in stages:
                if stage is stages[-1]:
                    if self._input is not None and _is_bare_shell(source(stage).split()):
                        return self._eval(self._input, stage)
                    return self.play(stage)
                outer, self._printed = self._printed, []
                truth = self.play(stage)
                printed, self._printed = self._printed, outer
                self._input = joined(printed, "", line_of(stage))
        finally:
            self._input = kept
            self.words.variables.clear()
            self.words.variables.update(variables)
        return truth

    def _compound(self, node: "Node") -> Truth:
        if node.children and node.children[0].type == "((":
            inner = [part for part in node.children if part.is_named]
            truths = [number_is_true(part, self.words) for part in inner]
            return truths[-1] if truths else None
        return self._inside(node)

    def _subshell(self, node: "Node") -> Truth:
        kept = dict(self.words.variables)
        try:
            return self._inside(node)
        finally:
            self.words.variables.clear()
            self.words.variables.update(kept)

    def _list(self, node: "Node") -> Truth:
        left, sign, right = (part for part in node.children if part.type != "comment")
        first = self.play(left)
        goes_on = first if sign.type == "&&" else inverse(first)
        if goes_on is None:
            self._leave_out(right, f"it is not known whether `{short(left)}` succeeds", [right])
            return None
        if not goes_on:
            self.pass_over([right])
            return first
        second = self.play(right)
        return both(first, second) if sign.type == "&&" else either(first, second)

    def _assign(self, node: "Node") -> Truth:
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        assert name_node is not None
        name = source(name_node)
        adds = any(part.type == "+=" for part in node.children)
        variables = self.words.variables
        if name_node.type == "subscript":
            name = name.partition("[")[0]
            if name in self.words.maps:
                return self._assign_item(name, self.words.index(name_node).value, value_node, node)
            adds = True  # an item of its own: as good as one more
        if value_node is not None and value_node.type == "array":
            items = tuple(
                word
                for part in value_node.children
                if part.is_named and part.type != "comment"
                for word in self.words.fields(part)
            )
            if name in self.words.maps:
                return self._assign_items(name, items)
            before = variables.get(name, ()) if adds else ()
            variables[name] = (*((before,) if isinstance(before, Text) else before), *items)
            self._check_size(node, name)
            return True
        text = self.words.text(value_node) if value_node is not None else Text("", line_of(node))
        held = variables.get(name) if adds else None
        if isinstance(held, tuple):
            variables[name] = (*held, text)
        else:
            variables[name] = text if held is None else held + text
        self._check_size(node, name)
        return None if any("$(" in gap.source for gap in text.gaps) else True

    def _assign_items(self, name: str, items: Iterable[Text]) -> Truth:
        """Give an array items that have names: `([one]=1 [two]=2)`."""
        for item in items:
            found = re.fullmatch(r"\[(.*?)\]=(.*)", item.value, re.DOTALL)
            if found is not None:
                self._put_item(name, found[1], item.with_value(found[2]))
        return True

    def _assign_item(self, name: str, key: str, value: "Node | None", node: "Node") -> Truth:
        self._put_item(name, key, self.words.text(value) if value else Text("", line_of(node)))
        return True

    def _put_item(self, name: str, key: str, value: Text) -> None:
        variables = self.words.variables
        variables[f"{name}[{key}]"] = value
        prefix = f"{name}["
        variables[name] = tuple(
            each
            for item, each in variables.items()
            if item.startswith(prefix) and isinstance(each, Text)
        )

    def _check_size(self, node: "Node", name: str) -> None:
        """Refuse a variable that outgrows what a launch script would hold: characters, or an array's words."""
        value = self.words.variables[name]
        size = len(value.value) if isinstance(value, Text) else len(value)
        if size > MOST_CHARACTERS:
            raise RefusedError(line_of(node), f"{name} grows beyond {MOST_CHARACTERS:,} characters")

    def _declare(self, node: "Node") -> Truth:
        exports = source(node.children[0]) == "export"
        has_names = any(re.fullmatch(r"-[a-z]*A[a-z]*", source(part)) for part in node.children)
        for part in node.children:
            named = part.child_by_field_name("name")
            if has_names and part.type in {"variable_assignment", "variable_name"}:
                self.words.maps.add(source(named or part))
            if part.type == "variable_assignment":
                self._assign(part)
            if exports and (named is not None or part.type == "variable_name"):
                self.exports.add(source(named or part))
        return True

    def _unset(self, node: "Node") -> Truth:
        for part in node.children:
            if part.is_named:
                self.words.variables.pop(source(part), None)
        return True

    def _define(self, node: "Node") -> Truth:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        assert name is not None
        assert body is not None
        self._functions[source(name)] = body
        return True

    def _command(self, node: "Node") -> Truth:
        parts = [part for part in node.children if part.is_named and "redirect" not in part.type]
        named = [part for part in parts if part.type != "variable_assignment"]
        if not named:
            return self._inside(node)
        words = [word for part in named for word in self.words.fields(part)]
        words += self._behind_redirects(node)
        if not words:
            return True
        with self._reading(self._text_for(node)):
            return self._named(words, node)

    def _behind_redirects(self, command: "Node") -> Iterator[Text]:
        """Yield the arguments of a command that stand behind files which it reads or writes, where the parser has them."""
        around = command.parent
        while around is not None and around.type in LISTS and around.end_byte == command.end_byte:
            around = around.parent
        if around is None or around.type != "redirected_statement":
            return
        for part in around.children:
            if part.type == "file_redirect" and part.start_byte >= command.end_byte:
                named = [each for each in part.children if each.is_named]
                closes = any(each.type in CLOSES for each in part.children)
                of_file = (part.children[0].type == "file_descriptor") + (not closes)
                for each in named[of_file:]:
                    yield from self.words.fields(each)

    def _named(self, words: list[Text], node: "Node") -> Truth:
        """Play a command by its words: a function of the script, a text or file of statements, or a program."""
        name = words[0].value
        if name in self._functions:
            return self._call(self._functions[name], words[1:])
        if name == "eval":
            return self._eval(joined(words[1:], " ", line_of(node)), node)
        if name in {"source", "."} and len(words) > 1:
            return self._source(words[1], node)
        return self.named(name, words, node)

    def _source(self, word: Text, node: "Node") -> Truth:
        """Play another file's statements in this script, where it is at hand."""
        name = Path(word.value).name
        if name in SETUP_FILES:
            return True
        path = self._at_hand(word)
        if path is None:
            self.note(node, NOT_AT_HAND)
            return None
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise RefusedError(line_of(node), f"reads files {MOST_CALLS} deep")
        variables, before = self.words.variables, len(self.found.commands)
        outer = variables.get("BASH_SOURCE", ())
        variables["BASH_SOURCE"] = (Text(str(path)), *(outer if isinstance(outer, tuple) else ()))
        self._elsewhere += 1
        try:
            text = _unbroken(text_of(path, "replace"))
            return self.block(self._parse(text).children)
        except ReturnError:
            return True
        finally:
            self._calls -= 1
            self._elsewhere -= 1
            variables["BASH_SOURCE"] = outer
            started = self.found.commands[before:]
            self.found.commands[before:] = [_at_line(each, line_of(node)) for each in started]

    def _at_hand(self, word: Text) -> Path | None:
        """Return a file that is there: as it is named, beside the script that names it, or by its path's end near it."""
        script = self.words.variables.get("0")
        places = [Path(self._at(word).value)]
        if isinstance(script, Text):
            places += [
                Path(script.value).parent / word.value,
                Path(script.value).parent / Path(word.value).name,
            ]
            if word.value.startswith(("/", UNKNOWN)):
                places += ends_near(places[0], Path(script.value).parent, LEAST_END)
        return next((each for each in places if _is_script(each)), None)

    def _eval(self, text: Text, node: "Node") -> Truth:
        """Play a text as statements; what is not known of it is not known in them."""
        if text.gaps and text.value.lstrip().startswith(UNKNOWN):
            self._leave_out(node, "is not followed", [node])
            return None
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise RefusedError(line_of(node), f"evaluates texts {MOST_CALLS} deep")
        before = len(self.found.commands)
        self._elsewhere += 1
        try:
            return self.block(self._parse(text.value).children)
        finally:
            self._calls -= 1
            self._elsewhere -= 1
            started = self.found.commands[before:]
            self.found.commands[before:] = [_at_line(each, line_of(node)) for each in started]

    def _call(self, body: "Node", arguments: list[Text]) -> Truth:
        kept, self.words.arguments = self.words.arguments, tuple(arguments)
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise RefusedError(
                line_of(body), f"has functions that call each other {MOST_CALLS} deep"
            )
        try:
            return self.play(body)
        except ReturnError:
            return True
        finally:
            self.words.arguments = kept
            self._calls -= 1

    def _substituted(self, node: "Node") -> Text:
        """Return what `$(...)` prints."""
        kept, self._printed = self._printed, []
        variables, arguments = dict(self.words.variables), self.words.arguments
        commands, gaps = len(self.found.commands), len(self.found.gaps)
        with suppress(ExitError):
            self._inside(node)
        printed, self._printed = self._printed, kept
        self.words.variables.clear()
        self.words.variables.update(variables)
        self.words.arguments = arguments
        self.found.inside += self.found.commands[commands:]
        del self.found.commands[commands:]
        undecided = self.found.gaps[gaps:]
        del self.found.gaps[gaps:]
        if undecided or not printed:
            gap = Gap(line=line_of(node), source=short(node), reason="it is not run")
            return Text("$(...)", line_of(node), (gap,))
        text = joined(printed, "", line_of(node))
        if text.gaps and UNKNOWN in text.value and any(each.value == "$(...)" for each in printed):
            reason = text.gaps[0].reason
            gap = Gap(line=line_of(node), source=short(node), reason=reason)
            return Text("$(...)", line_of(node), (gap,))
        return text.with_value(text.value.rstrip("\n"))
