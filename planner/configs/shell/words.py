"""Expansion of a script's words: variables with their defaults, arrays, arithmetic, substitutions."""

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase, translate
from typing import TYPE_CHECKING, Final

from rlplan.planner.configs.shell.arithmetic import UnknownNumberError, number_of
from rlplan.planner.configs.shell.programs import unescaped
from rlplan.planner.configs.shell.text import Gap, Text, joined

if TYPE_CHECKING:
    from tree_sitter import Node

Value = Text | tuple[Text, ...]

# What the parser counts among a variable, or the last quote, though it stands before it in quotes.
_BLANKS_BEFORE: Final = re.compile(rb"(?:\s|\\\n)*")
# What a backslash takes its meaning from, inside double quotes and outside.
_IN_QUOTES: Final = re.compile(r'\\(\n|["$`\\])')
_OUTSIDE: Final = re.compile(r"\\(\n|.)", re.DOTALL)
# A whole number that a place in a text can be.
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_ALL: Final = ("@", "*")
ARITHMETIC: Final = "$(("
# What could not be evaluated stands in a text as it is written, without spaces.
UNKNOWN: Final = "$"


class RefusedError(Exception):
    """Say that a script refuses to go on, as `${NAME:?message}` and `exit 1` do."""

    def __init__(self, line: int, message: str) -> None:
        self.line, self.message = line, message
        super().__init__(message)


class Words:
    """Expand words over a script's variables.

    Args:
        variables: By name; an array is a tuple.
        arguments: The script's own: `$1`, `$@`.
        run: Returns what a command substitution prints.
        parse: Returns the tree of a piece of script.

    Attributes:
        read: Arguments that the script has looked at.
        maps: Arrays whose items have names (`declare -A`); each item is a variable `ARRAY[NAME]` beside.
    """

    def __init__(
        self,
        variables: dict[str, Value],
        arguments: tuple[Text, ...],
        run: Callable[["Node"], Text],
        parse: Callable[[str], "Node"],
    ) -> None:
        self.variables, self.arguments = variables, arguments
        self.read: list[Text] = []
        self.maps: set[str] = set()
        self._run, self._parse = run, parse

    def text(self, node: "Node") -> Text:
        """Return a word that stays one word, as in an assignment."""
        return joined(self._pieces(node, quoted=True), " ", line_of(node))

    def fields(self, node: "Node") -> list[Text]:
        """Return the words that one becomes: unquoted variables are split, arrays are spread out."""
        pieces = self._pieces(node, quoted=False)
        solid = _has_quotes(node)
        return [piece for piece in pieces if piece.value or solid]

    def document(self, node: "Node") -> Text:
        """Return what the body of a `<<END` becomes."""
        read = joined(self._joined_parts(node, quoted=True), "", line_of(node))
        end = node.children[-1].end_byte if node.children else node.start_byte
        left = (node.text or b"")[end - node.start_byte :].decode("utf-8", "replace")
        return read + Text(_IN_QUOTES.sub(lambda at: at[1].replace("\n", ""), left))

    def _pieces(self, node: "Node", *, quoted: bool) -> list[Text]:
        line = line_of(node)
        if node.type in {"string", "concatenation", "command_name", "translated_string"}:
            return self._joined_parts(node, quoted=quoted or node.type == "string")
        if node.type == "simple_expansion":
            return self._variable(_bare(node)[1:], node, quoted=quoted)
        if node.type == "expansion":
            return self._expansion(node, quoted=quoted)
        if node.type == "arithmetic_expansion":
            return [self._arithmetic(node)]
        if node.type == "command_substitution":
            found = self._inner_arithmetic(node) or self._run(node)
            return [found] if quoted else _split(found)
        return [Text(_plain(node, quoted=quoted), line)]

    def _joined_parts(self, node: "Node", *, quoted: bool) -> list[Text]:
        """Return the words of parts that stand together without a space."""
        words = [Text("", line_of(node))]
        for part, between in _parts(node):
            pieces = self._pieces(part, quoted=quoted) if part is not None else []
            if between:
                plain = _IN_QUOTES.sub(lambda at: at[1].replace("\n", ""), between)
                words[-1] += Text(plain, words[-1].line)
            if pieces:
                words[-1] += pieces[0]
                words.extend(pieces[1:])
            elif part is not None and len(node.named_children) == 1 and not between:
                return []  # "${EMPTY[@]}" is no word at all
        return words

    def _variable(self, name: str, node: "Node", *, quoted: bool) -> list[Text]:
        if name in _ALL:
            self.read.extend(self.arguments)
            return self._all(name, self.arguments, node, quoted=quoted)
        value = self._value(name)
        if value is None:
            return [self._unset(name, node)]
        first = _first(value)
        return [first] if quoted else _split(first)

    def _all(self, sign: str, items: tuple[Text, ...], node: "Node", *, quoted: bool) -> list[Text]:
        """Return the words of an array; a quoted `*` joins all of them into one word."""
        if not quoted:
            return [each for item in items for each in _split(item)]
        if sign != "*":
            return list(items)
        between = self.variables.get("IFS")
        separator = " " if between is None else _first(between).value[:1]
        return [joined(items, separator, line_of(node))]

    def _unset(self, name: str, node: "Node") -> Text:
        reason = f"argument {name} is not given" if name.isdecimal() else f"{name} is not set"
        written = _bare(node)
        gap = Gap(line=line_of(node), source=written, reason=reason, unset=True)
        return Text("".join(written.split()), line_of(node), (gap,))

    def _value(self, name: str) -> Value | None:
        if _WHOLE.fullmatch(name) and name != "0":
            place = int(name)
            if not 0 < place <= len(self.arguments):
                return None
            self.read.append(self.arguments[place - 1])
            return self.arguments[place - 1]
        if name == "#":
            return Text(str(len(self.arguments)))
        if name == "?":
            return Text("0")  # a training follows where what stands above went well
        return self.variables.get(name)

    def _expansion(self, node: "Node", *, quoted: bool) -> list[Text]:
        """Return what `${...}` becomes."""
        parts = [part for part in node.children if part.type not in {"${", "}"}]
        if parts and parts[0].type in {"#", "!"} and len(parts) > 1:
            return [self._measured(parts[0].type, parts[1], node)]
        if not parts:
            return [self._gap(node, "is not understood")]
        name, index = _named(parts[0])
        value = self._value(name) if name not in _ALL else self.arguments
        if index in _ALL or name in _ALL:
            items = () if value is None else value if isinstance(value, tuple) else (value,)
            if len(parts) > 1 and parts[1].type == ":":
                sliced = _slice(items, [self.text(part).value for part in parts[2:]], name)
                self.read.extend(sliced if name in _ALL else ())
                return list(sliced)
            self.read.extend(items if name in _ALL else ())
            if len(parts) == 1:
                return self._all(index or name, items, node, quoted=quoted)
            value = joined(items, " ", line_of(node)) if items else None
        elif index is not None and name in self.maps:
            value = self.variables.get(f"{name}[{self.index(parts[0]).value}]")
        elif index is not None:
            value = self._item(value, index)
        return self._operated(name, value, parts[1:], node, quoted=quoted)

    def _operated(
        self, name: str, value: Value | None, parts: list["Node"], node: "Node", *, quoted: bool
    ) -> list[Text]:
        """Return a variable's value after the operator that follows its name."""
        known = _first(value) if value is not None else None
        if not parts:
            found = known if known is not None else self._unset(name, node)
            return [found] if quoted else _split(found)
        operator, words = parts[0].type, parts[1:]
        empty = known is None or (operator.startswith(":") and not known.value)
        if operator in {":-", "-", ":=", "="}:
            found = self._default(words, node, parts[0]) if empty or known is None else known
            if empty and "=" in operator:
                self.variables[name] = found
            return [found] if quoted or any(map(_has_quotes, words)) else _split(found)
        if operator in {":+", "+"}:
            return [Text("", line_of(node))] if empty else [self._default(words, node, parts[0])]
        if operator in {":?", "?"} and empty:
            self.variables[name] = self._unset(name, node)
            return [self._unset(name, node)]
        if operator in {":?", "?"}:
            assert known is not None
            return [known]
        if known is None:
            return [self._unset(name, node)]
        part = self._cut(known, operator, words, node)
        return [part] if quoted else _split(part)

    def _default(self, words: list["Node"], node: "Node", sign: "Node") -> Text:
        """Return the word that follows an operator inside `${...}`."""
        found = Text("", line_of(node))
        if ARITHMETIC in source(node):
            # The grammar takes arithmetic for a substitution there: read the word by itself.
            written = (node.text or b"")[sign.end_byte - node.start_byte : -1].decode()
            value = self._parse(f"x={written}").children[0].child_by_field_name("value")
            if value is not None and ARITHMETIC in written:
                text = self.text(value)
                return Text(text.value, line_of(node), text.gaps)
        for word in words:
            found += self.text(word)
        return found

    def _cut(self, value: Text, operator: str, words: list["Node"], node: "Node") -> Text:
        """Return a value without a prefix or suffix, with a pattern replaced, in other case, or a part."""
        given = [self.text(word).value for word in words if word.type not in {"/", ":"}]
        pattern = given[0] if given else ""
        text = value.value
        if operator in {"%", "%%", "#", "##"}:
            return value.with_value(_trimmed(text, operator, pattern))
        if operator in {"/", "//"}:
            other = given[1] if len(given) > 1 else ""
            return value.with_value(_replaced(text, pattern, other, operator == "//"))
        if operator in {"^^", ",,"}:
            return value.with_value(text.upper() if operator == "^^" else text.lower())
        if operator == ":" and given and all(each.strip().isdecimal() for each in given):
            start = int(given[0])
            return value.with_value(text[start : start + int(given[1]) if len(given) > 1 else None])
        return self._gap(node, "is not understood")

    def _measured(self, operator: str, part: "Node", node: "Node") -> Text:
        """Return how long a variable or array is, or the variable that another names."""
        name, index = _named(part)
        value = self._value(name)
        if value is None:
            return Text("0", line_of(node)) if operator == "#" else self._unset(name, node)
        many = index in _ALL and isinstance(value, tuple)
        # A word that is known in part is one; one of which nothing is known may be none, or several.
        uncounted = (each for each in _items(value) if not many or each.value.startswith(UNKNOWN))
        unknown = next((each for each in uncounted if each.gaps), None)
        if operator == "#" and unknown is not None:
            return Text("".join(source(node).split()), line_of(node), unknown.gaps)
        if operator == "#":
            return Text(str(len(value if many else _first(value).value)), line_of(node))  # type: ignore[arg-type]
        named = self._value(_first(value).value)
        return self._gap(node, "names no variable") if named is None else _first(named)

    def index(self, node: "Node") -> Text:
        """Return what stands between an array's brackets."""
        between = [part for part in node.children if part.is_named][1:]
        return joined([self.text(part) for part in between], "", line_of(node))

    def _item(self, value: Value | None, index: str) -> Text | None:
        items = value if isinstance(value, tuple) else () if value is None else (value,)
        place = (
            index if index.lstrip("-").isdigit() else _first(self._value(index) or Text("0")).value
        )
        try:
            return items[int(place)]
        except (IndexError, ValueError):
            return None

    def _arithmetic(self, node: "Node") -> Text:
        gaps: list[Gap] = []
        try:
            parts = [part for part in node.children if part.is_named]
            if node.has_error or len(parts) > 1:
                raise UnknownNumberError("is not understood")
            number = number_of(parts[0], self.number, gaps, self.assign) if parts else 0
        except UnknownNumberError as error:
            return self._gap(node, str(error))
        return Text(str(number), line_of(node), tuple(gaps))

    def _inner_arithmetic(self, node: "Node") -> Text | None:
        """Return the number of `$((...))` inside of another, which the grammar takes for a command; None of any other command."""
        text = _bare(node)
        if node.parent is None or not text.startswith("$((") or not text.endswith("))"):
            return None
        found = self._parse(f"N={text}").children
        value = found[0].child_by_field_name("value") if found else None
        if value is None or value.type != "arithmetic_expansion":
            return None
        number = self._arithmetic(value)
        return Text(number.value, line_of(node), number.gaps)

    def assign(self, name: str, number: int, gaps: tuple[Gap, ...]) -> None:
        """Give a variable a number."""
        self.variables[name] = Text(str(number), 0, gaps)

    def number(self, node: "Node") -> Text:
        """Return a variable of an arithmetic expression, with or without its `$`."""
        if node.type in {"variable_name", "word"}:
            value = self._value(source(node))
            return Text("0") if value is None else _first(value)
        return self.text(node)

    def _gap(self, node: "Node", reason: str) -> Text:
        gap = Gap(line=line_of(node), source=source(node), reason=reason)
        return Text("".join(source(node).split()), line_of(node), (gap,))


def _plain(node: "Node", *, quoted: bool) -> str:
    """Return what a word or part without variables means."""
    text = source(node)
    if node.type == "raw_string":
        return text[1:-1]
    if node.type == "ansi_c_string":
        return unescaped(text[2:-1])
    pattern = _IN_QUOTES if node.type == "string_content" else _OUTSIDE
    plain = pattern.sub(lambda at: at[1].replace("\n", ""), text)
    return plain if quoted else _at_home(plain)


def source(node: "Node") -> str:
    """Return a part of a script as it is written."""
    return (node.text or b"").decode("utf-8", "replace")


def line_of(node: "Node") -> int:
    """Return the line on which a part of a script begins, from 1."""
    return node.start_point[0] + 1


def lines_of(node: "Node") -> range:
    """Return the lines of a part of a script, from 1."""
    return range(node.start_point[0] + 1, node.end_point[0] + 2)


def _bare(node: "Node") -> str:
    """Return a part of a word without the blanks that the parser counts among it."""
    return _BLANKS_BEFORE.sub(b"", node.text or b"", count=1).decode("utf-8", "replace").strip()


def _parts(node: "Node") -> Iterator[tuple["Node | None", str]]:
    """Yield the parts of a word, each with the plain text between it and the part before."""
    text, start = node.text or b"", node.start_byte
    at = start
    for part in node.children:
        begins = part.start_byte
        if node.type == "string" and part.type != "string_content":
            begins += len(_BLANKS_BEFORE.match(part.text or b"")[0])  # type: ignore[index]
        between = text[at - start : begins - start].decode("utf-8", "replace")
        if part.type == '"':
            yield None, between
        else:
            yield part, between
        at = part.end_byte


def _slice(items: tuple[Text, ...], bounds: list[str], name: str) -> tuple[Text, ...]:
    """Return `${items[@]:start:count}`; arguments are counted from 1."""
    given = [int(bound) for bound in bounds if _WHOLE.fullmatch(bound.strip())]
    start = max(0, (given[0] if given else 0) - (name in _ALL))
    return items[start : start + given[1] if len(given) > 1 else None]


def _named(node: "Node") -> tuple[str, str | None]:
    """Return a variable's name and, of an array's item, its index."""
    if node.type != "subscript":
        return source(node), None
    name, _, index = source(node).partition("[")
    return name, index.removesuffix("]").lstrip("$").strip("{}")


def _first(value: Value) -> Text:
    if isinstance(value, Text):
        return value
    return value[0] if value else Text("")


def _items(value: Value) -> tuple[Text, ...]:
    return (value,) if isinstance(value, Text) else value


def _split(text: Text) -> list[Text]:
    return [
        Text(word, text.line, text.gaps if UNKNOWN in word else ()) for word in text.value.split()
    ]


def _has_quotes(node: "Node") -> bool:
    return node.type in {"string", "raw_string", "ansi_c_string"} or (
        node.type == "concatenation" and any(_has_quotes(part) for part in node.children)
    )


def _at_home(word: str) -> str:
    return "$HOME" + word[1:] if word == "~" or word.startswith("~/") else word


def _replaced(text: str, pattern: str, other: str, everywhere: bool) -> str:
    """Return a text with what a pattern fits replaced: `*`, `?` and `[...]` have their meaning in it."""
    if not any(sign in pattern for sign in "*?["):
        return text.replace(pattern, other, -1 if everywhere else 1) if pattern else text
    fitting = translate(pattern.replace("[^", "[!")).removesuffix("\\Z").removesuffix("\\z")
    return re.sub(fitting, lambda _: other, text, count=0 if everywhere else 1)


def _trimmed(text: str, operator: str, pattern: str) -> str:
    """Return a text without the shortest or longest prefix or suffix that a pattern fits."""
    places = range(len(text) + 1)
    if operator.startswith("#"):
        ends = [at for at in places if fnmatchcase(text[:at], pattern)]
        return text[(max(ends) if operator == "##" else min(ends)) :] if ends else text
    starts = [at for at in places if fnmatchcase(text[at:], pattern)]
    return text[: (min(starts) if operator == "%%" else max(starts))] if starts else text
