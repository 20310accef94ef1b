"""The text of a user's script or recipe with one key's value: in its place, or added beside other keys of the same command.

Nothing here knows what a shell or a framework makes of a text: places are proposed, the best first, and whoever asks reads each new text
as the framework's configuration, and takes the first that says what is wanted and nothing else.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from rlplan.planner.configs.proposing.changes import Assignment, argument
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.writing.python_texts import in_python

# Of a word of a shell, what is put in: `$(...)` and `$((...))` with parentheses in them, `${...}`, and what stands between backquotes.
INNER: Final = r"(?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*"
PUT_IN: Final = rf"\$\({INNER}\)|\$\{{[^}}\n]*\}}|`[^`\n]*`"
# A value as shells have it: up to a blank or what ends a command, parts of it quoted. Behind its first part a quote with blanks in it is
# the end of a quoted command, and what goes on behind that.
VALUE: Final = (
    rf"""(?:"[^"\n]*"|'[^'\n]*'|{PUT_IN}|[^\s\\"'()`;|&<>])"""
    rf"""(?:"[^"\s;|&<>]*"|'[^'\s;|&<>]*'|{PUT_IN}|[^\s\\"'()`;|&<>])*"""
)
# What Python puts into a string: an expression with brackets of its own at most once.
EXPRESSION: Final = r"\{(?:[^{}\n]|\{[^{}\n]*\})*\}"
# What begins a comment of a shell, behind quotes that are closed.
COMMENT: Final = re.compile(r"""^(?:[^"'\n]|"[^"\n]*"|'[^'\n]*')*?(?<!\S)#""")
# What hands a script's own arguments on, behind which nothing else is said.
HANDED_ON: Final = re.compile(
    r'^(?P<before>[ \t]*|[^#\n]*=[^#\n]*[ \t])"?\$(?:@|\{@[^}\n]*\})"?', re.MULTILINE
)
# Of files that no shell reads, what reads them.
YAML, TOML, PYTHON = "YAML", "TOML", "Python"
WRITTEN_AS: Final = {
    ".yaml": YAML,
    ".yml": YAML,
    ".toml": TOML,
    ".py": PYTHON,
    ".ipynb": PYTHON,
}
ANCHOR: Final = re.compile(r"&[^\s,\[\]{}]+")
LINE: Final = re.compile(r":(\d+)$")
QUOTES: Final = ("'", '"')
# Of places that are alike so many are tried.
MOST_PLACES: Final = 6


class _Words(NamedTuple):
    """Hold how a command line says a key: its name, how that is joined to the value, and the value; a switch has none.

    A flag of argparse may take several values, a word each.
    """

    name: str
    joint: str
    values: tuple[str, ...]

    @property
    def value(self) -> str:
        """Return the value as a shell takes it."""
        return " ".join(map(quoted, self.values))

    @property
    def text(self) -> str:
        return self.name + self.joint + self.value


def texts_with(text: str, path: Path, settings: Settings, assignment: Assignment) -> Iterator[str]:
    """Yield a script's or recipe's text with a key's value, in the places that may do, the best first.

    Args:
        path: Its file, whose ending says whether it is YAML, TOML, Python or a shell's; in a notebook no place is known.
        settings: What the configuration says as it is.
    """
    key, value = assignment
    written = WRITTEN_AS.get(path.suffix.lower())
    if written is not None:
        yield from _in_file(text, written, settings, key, value)
        return
    words = _words(settings, key, value)
    if words is None:
        yield from _without_switch(text, settings, key)
        return
    launch = settings.sheet.launch
    served = {start: each for start, each in launch.services.items() if key.startswith(each)}
    if served:  # a command of its own takes it, by its own name
        own = words.name.replace(next(iter(served.values())), "", 1)
        words = words._replace(name=own)
    yield from _in_place(text, words, settings, key)
    if served or key in launch.in_front:  # the start itself takes it nowhere
        yield from _behind_start(text, words, tuple(served) or launch.fronted)
        return
    yield from _before_what_is_handed_on(text, words)
    yield from _beside_others(text, words, settings, key)


def texts_without(text: str, path: Path, settings: Settings, key: str) -> Iterator[str]:
    """Yield a script's or recipe's text in which a key is not said, in the places that may do, the best first."""
    written = WRITTEN_AS.get(path.suffix.lower())
    if written is not None:
        yield from _in_file(text, written, settings, key, None)
        return
    words = _words(settings, key, settings.given(key))
    if words is not None:
        yield from _without(text, _place_of(words))


def texts_started(text: str, settings: Settings, start: str) -> Iterator[str]:
    """Yield a shell's text in which another module, or a script in the same folder, is started.

    Args:
        start: The command that starts it, whose last word counts; empty yields nothing.
    """
    own, new = settings.start, (start.split() or [""])[-1]
    if not own or not new or own == new or own.endswith(f"/{new}"):
        return
    if own.endswith(".py") and new.endswith(".py"):  # of the same checkout
        own, new = own.rpartition("/")[2], new.rpartition("/")[2]
    place = re.compile(rf"(?<![\w.-]){re.escape(own)}(?![\w.-])")
    found = sorted(place.finditer(text), key=lambda each: _is_comment(text, each.start()))
    for each in found[:MOST_PLACES]:
        yield text[: each.start()] + new + text[each.end() :]


def is_of_shell(path: Path) -> bool:
    """Tell whether a file's text is a shell's: there keys may come from outside, as `"$@"`."""
    return path.suffix.lower() not in WRITTEN_AS


def _in_file(text: str, written: str, settings: Settings, key: str, value: object) -> Iterator[str]:
    given = settings.flat.get(key)
    name = settings.called(key)
    if written == YAML:
        yield from _in_yaml(text, name, value)
    elif written == TOML:
        yield from _in_toml(text, name, value)
    elif written == PYTHON:
        line = None if given is None else LINE.search(given.where)
        launch = settings.sheet.launch
        yield from in_python(text, launch, name, value, None if line is None else int(line[1]))
        yield from _in_commands(text, settings, name, value)


def _in_commands(text: str, settings: Settings, key: str, value: object) -> Iterator[str]:
    """Yield a program's text with a key in the command lines that it puts together in its strings; without it where the value is None."""
    if value is None:
        said = _words(settings, key, settings.given(key))
        yield from () if said is None else _without(text, _place_of(said, PYTHON))
        return
    words = _words(settings, key, value)
    if words is None:
        yield from _without_switch(text, settings, key)
        return
    yield from _in_place(text, words, settings, key, PYTHON)
    others = (_words(settings, other, given.value) for other, given in settings.flat.items())
    found = (_place_of(each, PYTHON).search(text) for each in others if each and each.joint)
    for end in islice((each.end() for each in found if each), MOST_PLACES):
        yield f"{text[:end]} {words.text}{text[end:]}"


def quoted(value: str) -> str:
    """Return a value as a shell takes it for one word."""
    return value if re.fullmatch(r"[\w./:+-]*", value) else "'" + value.replace("'", "'\\''") + "'"


def _words(settings: Settings, key: str, value: object) -> _Words | None:
    """Return the words that say a key; None where there are none, as for a switch that is off."""
    words = argument(settings, key, value)
    if words is None:
        return None
    if len(words) > 1:
        return _Words(words[0], " ", words[1:])
    name, joint, given = words[0].partition("=")
    return _Words(name, joint, (given,) if joint else ())


def _place_of(words: _Words, written: str | None = None, said: object = None) -> re.Pattern[str]:
    """Return what finds a key with its value: behind a flag a blank or `=`, else `=` alone, with hydra's plus signs before the key.

    Args:
        written: What else than a shell reads the text: Python puts expressions into its strings.
        said: What the text gives the key, of which a flag may have several values; None takes as many as the words have.
    """
    bare = re.escape(words.name.lstrip("+"))
    if not words.joint:
        return re.compile(rf"(?<![\w.\-]){bare}(?![\w.\-=])")
    before = rf"{bare}(?:[ \t]+|=)" if words.joint == " " else rf"\+{{0,2}}{bare}="
    value = rf"(?:{EXPRESSION}|{VALUE})" if written == PYTHON else VALUE
    held = words.values if said is None else said
    several = held if words.joint == " " and isinstance(held, list | tuple) else ()
    more = max(0, len(several) - 1)
    return re.compile(rf"(?<![\w.\-])(?P<name>{before}){value}(?:[ \t]+{value}){{{more}}}")


def _in_place(
    text: str, words: _Words, settings: Settings, key: str, written: str | None = None
) -> Iterator[str]:
    """Yield a text with another value in one of the places that give the key one, or in all of them.

    The place that the configuration has it from comes first, and comments come last.
    """
    if not words.joint:
        return
    said, value = settings.flat.get(key), words.value
    place = _place_of(words, written, "" if said is None else said.value)
    line = None if said is None else LINE.search(said.where)

    def likely(match: re.Match[str]) -> tuple[bool, bool]:
        row = text.count("\n", 0, match.start()) + 1
        return _is_comment(text, match.start()), line is None or int(line[1]) != row

    found = sorted(place.finditer(text), key=likely)
    for each in found[:MOST_PLACES]:
        yield text[: each.start()] + each["name"] + value + text[each.end() :]
    if len(found) > 1:
        yield place.sub(
            lambda each: each[0] if _is_comment(text, each.start()) else each["name"] + value, text
        )


def _is_comment(text: str, at: int) -> bool:
    """Tell whether a place of a shell's text is behind what begins a comment."""
    return COMMENT.match(text[text.rfind("\n", 0, at) + 1 : at]) is not None


def _without_switch(text: str, settings: Settings, key: str) -> Iterator[str]:
    """Yield a text without a switch, which has no word for off."""
    on = _words(settings, key, True)
    if on is not None:
        yield from _without(text, re.compile(_place_of(on).pattern + r"(?:(?:[ \t]+|=)[Tt]rue)?"))


def _without(text: str, place: re.Pattern[str]) -> Iterator[str]:
    """Yield a text without words, in one of their places; a line that holds nothing else goes with them."""
    for each in islice(place.finditer(text), MOST_PLACES):
        start, end = each.span()
        if text[end : end + 1] in QUOTES and text[start - 1 : start] == text[end : end + 1]:
            start, end = start - 1, end + 1
        end += len(text[end:]) - len(text[end:].lstrip(" \t"))
        alone = re.compile(r"^[ \t]*\Z", re.MULTILINE).search(text[:start])
        line_ends = re.compile(r"\\?\n").match(text, end)
        if alone and line_ends:
            start, end = alone.start(), line_ends.end()
        yield text[:start] + text[end:]


def _behind_start(text: str, words: _Words, starts: Iterable[str]) -> Iterator[str]:
    """Yield a text with a flag right behind the words that start a launcher, or a server, which takes it."""
    for start in starts:
        own = r"[ \t]+".join(re.escape(each.lstrip("*")) for each in start.split())
        begins = "" if start.startswith("*") else r"(?<![.\w/-])"
        place = re.compile(rf"{begins}{own}(?=\s)")
        for each in islice(place.finditer(text), MOST_PLACES):
            if not _is_comment(text, each.start()):
                yield f"{text[: each.end()]} {words.text}{text[each.end() :]}"


def _before_what_is_handed_on(text: str, words: _Words) -> Iterator[str]:
    handed = HANDED_ON.search(text)
    if handed is None:
        return
    at, before = handed.end("before"), handed["before"]
    new = f"{words.text} " + (f"\\\n{before}" if not before.strip() else "")
    yield text[:at] + new + text[at:]


def _beside_others(text: str, words: _Words, settings: Settings, key: str) -> Iterator[str]:
    """Yield a text with a key behind another of the same command: behind the one whose name is most alike, of such the last."""
    lines = text.split("\n")
    places = list[tuple[int, int, int]]()
    for other, given in settings.flat.items():
        line = LINE.search(given.where)
        spoken = _words(settings, other, given.value)
        if line is None or spoken is None or not 0 < int(line[1]) <= len(lines):
            continue
        found = _place_of(spoken).search(lines[int(line[1]) - 1])
        if found is not None:
            places.append((_parts_alike(other, key), int(line[1]) - 1, found.end()))
    for _, row, end in sorted(places, reverse=True)[:MOST_PLACES]:
        yield from _behind(lines, row, end, words.text)
        if lines[row][end : end + 1] in QUOTES:  # of the word, or of the command
            yield from _behind(lines, row, end + 1, words.text)


def _parts_alike(one: str, other: str) -> int:
    """Return how many parts of two dotted keys are alike from the first one on."""
    pairs = zip(one.split("."), other.split("."), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _behind(lines: list[str], row: int, end: int, word: str) -> Iterator[str]:
    """Yield a text with a word behind a place of a line: in a line of its own, as arrays have it where they have, or lines that go on."""
    line = lines[row]
    indent = line[: len(line) - len(line.lstrip())]
    goes_on = row > 0 and lines[row - 1].rstrip().endswith("\\")
    joints = [f" \\\n{indent if goes_on else indent + '    '}"]
    if not goes_on and not line[end:].strip():
        joints.insert(0, f"\n{indent}")
    for joint in joints:
        new = line[:end] + joint + word + line[end:]
        yield "\n".join((*lines[:row], new, *lines[row + 1 :]))


# YAML, which is changed by the places that its parser knows: comments and order stay.


class _Places(yaml.SafeLoader):
    """Read YAML as it stands: an alias is a scalar in its own place, whatever it names in another."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        event: Any = self.peek_event() if is_alias else None  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        if event is None:
            return node
        return yaml.ScalarNode("alias", event.anchor, event.start_mark, event.end_mark)


def _in_yaml(text: str, key: str, value: object) -> Iterator[str]:
    """Yield a YAML text in which a dotted key has a value, where one mapping or none on its way has it."""
    try:
        root = yaml.compose(text, Loader=_Places)
    except (yaml.YAMLError, ValueError, RecursionError):
        return
    if not isinstance(root, yaml.MappingNode):
        return
    holder, rest = _holder(root, key)
    scalar = yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()
    there = _child(holder, rest[0])
    if isinstance(there, yaml.ScalarNode) and len(rest) == 1:
        start, end = there.start_mark.index, there.end_mark.index
        anchor = ANCHOR.match(text, start, end)  # others may name it
        kept = f"{anchor[0]} " if anchor else ""
        kept = " " if start == end and text[start - 1 : start] == ":" else kept
        yield text[:start] + kept + scalar + text[end:]
        return
    if there is not None or not (holder.value or holder.flow_style):
        return
    yield from _added_to_yaml(text, holder, rest, scalar)


def _holder(node: yaml.MappingNode, key: str) -> tuple[yaml.MappingNode, list[str]]:
    """Return the deepest mapping on a dotted key's way, and what of the key is left behind it."""
    rest = key.split(".")
    while len(rest) > 1 and isinstance(child := _child(node, rest[0]), yaml.MappingNode):
        node, rest = child, rest[1:]
    return node, rest


def _child(node: yaml.MappingNode, name: str) -> yaml.Node | None:
    return next((value for key, value in node.value if key.value == name), None)


def _added_to_yaml(
    text: str, holder: yaml.MappingNode, rest: list[str], scalar: str
) -> Iterator[str]:
    """Yield a YAML text with a new key behind the last of a mapping."""
    if holder.flow_style:
        brace = holder.end_mark.index - 1
        nested = "".join(f"{each}: {{" for each in rest[:-1])
        new = (
            (", " if holder.value else "") + f"{nested}{rest[-1]}: {scalar}" + "}" * (len(rest) - 1)
        )
        yield text[:brace] + new + text[brace:]
        return
    end = _end_of(holder)
    column = holder.value[0][0].start_mark.column
    at = text.find("\n", max(end - 1, 0))
    at = len(text) if at < 0 else at
    new = "".join(f"\n{' ' * (column + 2 * depth)}{each}:" for depth, each in enumerate(rest))
    yield f"{text[:at]}{new} {scalar}{text[at:]}"


def _end_of(node: yaml.Node) -> int:
    """Return where a node's last word ends; the end of a mapping in lines is where the next one begins."""
    if not isinstance(node, yaml.CollectionNode) or not node.value or node.flow_style:
        return node.end_mark.index
    last: Any = node.value[-1]
    return _end_of(last[1] if isinstance(node, yaml.MappingNode) else last)


# TOML, whose tables begin with a line of their own.
TABLE: Final = re.compile(r"^[ \t]*(?P<list>\[)?\[(?P<name>[^\[\]\n]+)\]", re.MULTILINE)
TOML_VALUE: Final = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s#"'\[\]{}]+)"""


class _Table(NamedTuple):
    """Hold a table of TOML: its parts, and where what it says begins and ends."""

    parts: tuple[str, ...]
    start: int
    end: int


def _in_toml(text: str, key: str, value: object) -> Iterator[str]:
    """Yield a TOML text in which a dotted key has a value, or none, in a table that one line opens."""
    parts = tuple(key.split("."))
    text = _without_tables(text, parts)
    tables = [each for each in _tables(text) if each.parts == parts[: len(each.parts)]]
    tables.sort(key=lambda each: len(each.parts), reverse=True)
    for table in tables:
        rest = r"[ \t]*\.[ \t]*".join(
            rf"[\"']?{re.escape(each)}[\"']?" for each in parts[len(table.parts) :]
        )
        line = re.compile(rf"^(?P<name>[ \t]*{rest}[ \t]*=[ \t]*){TOML_VALUE}", re.MULTILINE)
        said = line.search(text, table.start, table.end) if rest else None
        if said is not None and value is None:
            end = text.find("\n", said.end())
            yield text[: said.start()] + (text[end + 1 :] if end >= 0 else "")
            return
        if said is not None:
            yield text[: said.start()] + said["name"] + _toml(value) + text[said.end() :]
            return
    if value is not None:
        yield from _added_to_toml(text, tables, parts, _toml(value))


def _without_tables(text: str, parts: tuple[str, ...]) -> str:
    """Return a text without the tables of a key, and those in them: a key that has a value has no tables."""
    for table in reversed(_tables(text)):
        if table.parts and table.parts[: len(parts)] == parts:
            held = len(_said(text, table)) + 1
            text = text[: text.rfind("[", 0, table.start)] + text[table.start + held :]
    return text


def _said(text: str, table: _Table) -> str:
    """Return what a table says, without empty lines and comments behind it."""
    return re.sub(r"(?:\n[ \t]*(?:#[^\n]*)?)+\Z", "", text[table.start : table.end])


def _tables(text: str) -> list[_Table]:
    """Return the tables of a text, the whole first; those of lists have none of its keys."""
    found = list(TABLE.finditer(text))
    ends = [*(each.start() for each in found), len(text)]
    tables = [_Table((), 0, ends[0])]
    for each, end in zip(found, ends[1:], strict=True):
        parts = tuple(part.strip(" \t\"'") for part in each["name"].split("."))
        if not each["list"]:
            tables.append(_Table(parts, each.end(), end))
    return tables


def _added_to_toml(
    text: str, tables: list[_Table], parts: tuple[str, ...], scalar: str
) -> Iterator[str]:
    """Yield a TOML text with a new key behind the last of the table that has most of its way, and with a table of its own."""
    for table in tables:
        rest = ".".join(parts[len(table.parts) :])
        if not rest or (not table.parts and len(parts) > 1):
            continue
        at = table.start + len(_said(text, table))
        new = f"{rest} = {scalar}\n" if at == 0 else f"\n{rest} = {scalar}"
        yield text[:at] + new + text[at:]
    if len(parts) > 1:
        gap = "" if not text or text.endswith("\n") else "\n"
        yield f"{text}{gap}\n[{'.'.join(parts[:-1])}]\n{parts[-1]} = {scalar}\n"


def _toml(value: object) -> str:
    """Return a value as TOML writes it."""
    return json.dumps(value, ensure_ascii=False)
