"""The text of a user's script or recipe with one key's value: in its place, or added beside other keys of the same command.

Nothing here knows what a shell or a framework makes of a text: places are proposed, the best first, and whoever asks reads each new text
as the framework's configuration, and takes the first that says what is wanted and nothing else.
"""

import re
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from rlplan.planner.configs.changes import Assignment, argument
from rlplan.planner.configs.reading.settings import Settings

# A value as shells have it: up to a blank, parts of it quoted.
VALUE: Final = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s\\"'()])+"""
# What hands a script's own arguments on, behind which nothing else is said.
HANDED_ON: Final = re.compile(
    r'^(?P<before>[ \t]*|[^#\n]*=[^#\n]*[ \t])"?\$(?:@|\{@[^}\n]*\})"?', re.MULTILINE
)
WRITTEN_YAML: Final = frozenset({".yaml", ".yml"})
LINE: Final = re.compile(r":(\d+)$")
# Of places that are alike so many are tried.
MOST_PLACES: Final = 6


class _Words(NamedTuple):
    """Hold how a command line says a key: its name, how that is joined to the value, and the value; a switch has none."""

    name: str
    joint: str
    value: str

    @property
    def text(self) -> str:
        return self.name + (self.joint + quoted(self.value) if self.joint else "")


def texts_with(text: str, path: Path, settings: Settings, assignment: Assignment) -> Iterator[str]:
    """Yield a script's or recipe's text with a key's value, in the places that may do, the best first.

    Args:
        path: Its file, whose ending says whether it is YAML.
        settings: What the configuration says as it is.
    """
    key, value = assignment
    if path.suffix.lower() in WRITTEN_YAML:
        given = settings.flat.get(key)
        yield from _in_yaml(text, given.older if given is not None and given.older else key, value)
        return
    words = _words(settings, key, value)
    if words is None:
        yield from _without_switch(text, settings, key)
        return
    yield from _in_place(text, words)
    yield from _before_what_is_handed_on(text, words)
    yield from _beside_others(text, words, settings, key)


def texts_without(text: str, path: Path, settings: Settings, key: str) -> Iterator[str]:
    """Yield a script's or recipe's text in which a key is not said, in the places that may do, the best first."""
    if path.suffix.lower() in WRITTEN_YAML:
        yield from _in_yaml(text, key, None)
        return
    words = _words(settings, key, settings.given(key))
    if words is not None:
        yield from _without(text, _place_of(words))


def quoted(value: str) -> str:
    """Return a value as a shell takes it for one word."""
    return value if re.fullmatch(r"[\w./:+-]*", value) else "'" + value.replace("'", "'\\''") + "'"


def _words(settings: Settings, key: str, value: object) -> _Words | None:
    """Return the words that say a key; None where there are none, as for a switch that is off."""
    words = argument(settings, key, value)
    if words is None:
        return None
    if len(words) > 1:
        return _Words(words[0], " ", words[1])
    name, joint, given = words[0].partition("=")
    return _Words(name, joint, given)


def _place_of(words: _Words) -> re.Pattern[str]:
    """Return what finds a key with its value: behind a flag a blank or `=`, else `=` alone, with hydra's plus signs before the key."""
    bare = re.escape(words.name.lstrip("+"))
    if not words.joint:
        return re.compile(rf"(?<![\w.\-]){bare}(?![\w.\-=])")
    before = rf"{bare}(?:[ \t]+|=)" if words.joint == " " else rf"\+{{0,2}}{bare}="
    return re.compile(rf"(?<![\w.\-])(?P<name>{before}){VALUE}")


def _in_place(text: str, words: _Words) -> Iterator[str]:
    """Yield a text with a value wherever it gives the key one, or in one of these places alone."""
    if not words.joint:
        return
    place, value = _place_of(words), quoted(words.value)
    found = list(place.finditer(text))
    if found:
        yield place.sub(lambda match: match["name"] + value, text)
    if len(found) > 1:
        for each in found[:MOST_PLACES]:
            yield text[: each.start()] + each["name"] + value + text[each.end() :]


def _without_switch(text: str, settings: Settings, key: str) -> Iterator[str]:
    """Yield a text without a switch, which has no word for off."""
    on = _words(settings, key, True)
    if on is not None:
        yield from _without(text, re.compile(_place_of(on).pattern + r"(?:(?:[ \t]+|=)[Tt]rue)?"))


def _without(text: str, place: re.Pattern[str]) -> Iterator[str]:
    """Yield a text without words, in one of their places; a line that holds nothing else goes with them."""
    place = re.compile(f"(?:{place.pattern})[ \\t]*")
    for each in islice(place.finditer(text), MOST_PLACES):
        start, end = each.span()
        alone = re.compile(r"^[ \t]*\Z", re.MULTILINE).search(text[:start])
        line_ends = re.compile(r"\\?\n").match(text, end)
        if alone and line_ends:
            start, end = alone.start(), line_ends.end()
        yield text[:start] + text[end:]


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


def _in_yaml(text: str, key: str, value: object) -> Iterator[str]:
    """Yield a YAML text in which a dotted key has a value, where one mapping or none on its way has it."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return
    if not isinstance(root, yaml.MappingNode):
        return
    holder, rest = _holder(root, key)
    scalar = yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()
    there = _child(holder, rest[0])
    if isinstance(there, yaml.ScalarNode) and len(rest) == 1:
        start, end = there.start_mark.index, there.end_mark.index
        space = " " if start == end and text[start - 1 : start] == ":" else ""
        yield text[:start] + space + scalar + text[end:]
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
