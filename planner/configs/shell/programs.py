"""What small programs print, computed from their words and what they read: filters, `printf`, `seq`, `expr`.

Each knows the forms that launch scripts have; of any other form it says that it does not know.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from rlplan.planner.configs.shell.arithmetic import OPERATORS, UnknownNumberError

# Numbers that `seq` counts, which launch scripts stay far below.
MOST_COUNTED: Final = 1000
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{1,2}|0?[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED: Final = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "f": "\f",
    "v": "\v",
}
_CLASSES: Final = {
    "[:space:]": " \t\n\r\f\v",
    "[:blank:]": " \t",
    "[:upper:]": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "[:lower:]": "abcdefghijklmnopqrstuvwxyz",
    "[:digit:]": "0123456789",
}
_FORMAT: Final = re.compile(r"%(%|[-+ 0#]*\d*(?:\.\d+)?[sdifgbc])")
_TOKEN: Final = re.compile(r"\s*(\d+|[-+*/%()])")
_AWK_FIELD: Final = re.compile(r"\{\s*print\s+(\$(\d+|NF)|NF)\s*;?\s*\}")
_SED: Final = re.compile(r"s([/|#,:@])(.*?)(?<!\\)\1(.*?)(?<!\\)\1([gI]*)", re.DOTALL)


class UnknownFormError(Exception):
    """Say that a program is used in a form that is not known."""


def printed_by(words: Sequence[str], given: str) -> str | None:
    """Return what a program prints; None where the program, or the form in which it is used, is not known.

    Args:
        words: Its name and arguments.
        given: What it reads.
    """
    program = PROGRAMS.get(words[0])
    if program is None:
        return None
    try:
        return program(list(words[1:]), given)
    except (UnknownFormError, UnknownNumberError, ValueError, IndexError, re.error):
        return None


def unescaped(text: str) -> str:
    """Return a text with its backslashes read, as `$'...'` and `printf` have them."""
    return _ESCAPE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPED.get(code, code)


def formatted(words: Sequence[str]) -> str:
    """Return what `printf` makes of a format and its values; the format is used again while values are left.

    Raises:
        ValueError: A value is no number where one belongs.
    """
    template, values = words[0], list(words[1:])

    def filled(found: re.Match[str]) -> str:
        if found[1] == "%":
            return "%"
        value = values.pop(0) if values else ""
        if found[0][-1] in "sbc":
            text = unescaped(value) if found[0][-1] == "b" else value
            return (found[0][:-1] + "s") % text
        if found[0][-1] in "di":
            return found[0] % int(value or 0)
        return found[0] % float(value or 0)

    text = _FORMAT.sub(filled, unescaped(template))
    while values:
        left = len(values)
        text += _FORMAT.sub(filled, unescaped(template))
        if len(values) == left:
            break
    return text


def computed(text: str) -> int:
    """Return the value of an expression of whole numbers, `+ - * / %` and parentheses.

    Raises:
        UnknownNumberError: It is none, or divides by zero.
    """
    tokens = _TOKEN.findall(text)
    if not tokens or _TOKEN.sub("", text).strip():
        raise UnknownNumberError("is no expression of whole numbers")
    value = _sum(tokens)
    if tokens:
        raise UnknownNumberError("is no expression of whole numbers")
    return value


def _sum(tokens: list[str]) -> int:
    return _chained(tokens, "+-", lambda left: _chained(left, "*/%", _factor))


def _chained(tokens: list[str], signs: str, part: Callable[[list[str]], int]) -> int:
    """Return the value of parts between which signs of one rank stand, from left to right."""
    value = part(tokens)
    while tokens and tokens[0] in signs:
        sign = tokens.pop(0)
        value = OPERATORS[sign](value, part(tokens))
    return value


def _factor(tokens: list[str]) -> int:
    if not tokens:
        raise UnknownNumberError("ends too early")
    first = tokens.pop(0)
    if first == "-":
        return -_factor(tokens)
    if first == "(":
        value = _sum(tokens)
        if not tokens or tokens.pop(0) != ")":
            raise UnknownNumberError("has a parenthesis that is not closed")
        return value
    if not first.isdecimal():
        raise UnknownNumberError(f"has {first} where a number belongs")
    return int(first)


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _unlined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _options(words: list[str], valued: str) -> tuple[dict[str, str], list[str]]:
    """Return a program's options of one letter, and its other words.

    Args:
        valued: Letters of options that have a value, in the same word or in the next.
    """
    found: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            raise UnknownFormError
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in valued:
                found[letter] = letters or rest.pop(0)
                break
            found[letter] = ""
    return found, rest


def _only(options: dict[str, str], letters: str) -> None:
    if not options.keys() <= set(letters):
        raise UnknownFormError


def _characters(text: str) -> str:
    """Return the characters of a set, as `tr` is given it."""
    if text in _CLASSES:
        return _CLASSES[text]
    if "[:" in text:
        raise UnknownFormError
    plain = unescaped(text)
    return re.sub(r"(.)-(.)", _range, plain, flags=re.DOTALL) if len(plain) > 2 else plain  # noqa: PLR2004


def _range(found: re.Match[str]) -> str:
    return "".join(map(chr, range(ord(found[1]), ord(found[2]) + 1)))


def _tr(words: list[str], given: str) -> str:
    options, sets = _options(words, "")
    _only(options, "dscC")
    first = _characters(sets[0])
    chosen = {
        each
        for each in set(given) | set(first)
        if (each in first) != bool({"c", "C"} & options.keys())
    }
    if "d" in options:
        return "".join(each for each in given if each not in chosen)
    if "s" in options and len(sets) == 1:
        return re.sub(
            r"(.)\1+",
            lambda at: at[1] if at[1] in chosen else at[0],
            given,
            flags=re.DOTALL,
        )
    if "s" in options or {"c", "C"} & options.keys():
        raise UnknownFormError
    second = _characters(sets[1])
    second += second[-1:] * max(0, len(first) - len(second))
    return given.translate(str.maketrans(first, second[: len(first)]))


def _wc(words: list[str], given: str) -> str:
    options, files = _options(words, "")
    if files or len(options) != 1:
        raise UnknownFormError
    counted = {
        "l": given.count("\n"),
        "w": len(given.split()),
        "c": len(given.encode()),
        "m": len(given),
    }
    _only(options, "lwcm")
    return f"{counted[next(iter(options))]}\n"


def _awk(words: list[str], given: str) -> str:
    options, rest = _options(words, "F")
    _only(options, "F")
    found = _AWK_FIELD.fullmatch(rest[0].strip()) if len(rest) == 1 else None
    if found is None:
        raise UnknownFormError
    separator = options.get("F", " ")
    if len(separator) != 1:
        raise UnknownFormError
    rows = [line.split() if separator == " " else line.split(separator) for line in _lines(given)]
    if found[1] == "NF":
        counts = [len(row) if line else 0 for row, line in zip(rows, _lines(given), strict=True)]
        return _unlined(list(map(str, counts)))
    if found[2] == "0":
        return _unlined(_lines(given))
    places = [len(row) if found[2] == "NF" else int(found[2]) for row in rows]
    return _unlined(
        [row[at - 1] if 0 < at <= len(row) else "" for row, at in zip(rows, places, strict=True)]
    )


def _cut(words: list[str], given: str) -> str:
    options, rest = _options(words, "dfc")
    if rest or not ("f" in options) ^ ("c" in options):
        raise UnknownFormError
    separator = options.get("d", "\t")
    rows = []
    for line in _lines(given):
        parts = list(line) if "c" in options else line.split(separator)
        if "f" in options and len(parts) == 1:
            rows.append(line)
            continue
        joint = "" if "c" in options else separator
        rows.append(
            joint.join(parts[at] for at in _places(options.get("f") or options["c"], len(parts)))
        )
    return _unlined(rows)


def _places(text: str, count: int) -> list[int]:
    """Return which of some parts a list like `1,3-` names, from 0."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        start = int(first or 1)
        end = int(last or count) if dash else start
        found |= set(range(start - 1, min(end, count)))
    return sorted(found)


def _sed(words: list[str], given: str) -> str:
    options, rest = _options(words, "e")
    _only(options, "eErn")
    if "n" in options or len(rest) != ("e" not in options):
        raise UnknownFormError
    found = _SED.fullmatch(options.get("e") or rest[0])
    if found is None or re.search(r"\\[()+?|{}]|\[\[:", found[2]) or "&" in found[3]:
        raise UnknownFormError
    extended = bool({"E", "r"} & options.keys())
    if not extended and re.search(r"[()+?|{}]", found[2]):
        raise UnknownFormError  # plain characters there, signs here
    count = 0 if "g" in found[4] else 1
    other = found[3].replace(f"\\{found[1]}", found[1])
    return _unlined(
        [
            re.sub(found[2].replace(f"\\{found[1]}", found[1]), other, line, count=count)
            for line in _lines(given)
        ]
    )


def _head(words: list[str], given: str) -> str:
    if words and re.fullmatch(r"-\d+", words[0]):
        words = ["-n", words[0][1:]]
    options, rest = _options(words, "n")
    _only(options, "n")
    if rest or int(options.get("n", 10)) < 0:
        raise UnknownFormError
    return _unlined(_lines(given)[: int(options.get("n", 10))])


def _tail(words: list[str], given: str) -> str:
    if words and re.fullmatch(r"-\d+", words[0]):
        words = ["-n", words[0][1:]]
    options, rest = _options(words, "n")
    _only(options, "n")
    if rest:
        raise UnknownFormError
    lines, count = _lines(given), options.get("n", "10")
    if count.startswith("+"):
        return _unlined(lines[max(0, int(count) - 1) :])
    return _unlined(lines[max(0, len(lines) - int(count)) :])


def _sort(words: list[str], given: str) -> str:
    options, rest = _options(words, "")
    _only(options, "nru")
    if rest:
        raise UnknownFormError
    lines = _lines(given)
    lines = sorted(set(lines) if "u" in options else lines)
    if "n" in options:
        lines.sort(key=float)
    return _unlined(lines[::-1] if "r" in options else lines)


def _uniq(words: list[str], given: str) -> str:
    if words:
        raise UnknownFormError
    lines = _lines(given)
    return _unlined([line for at, line in enumerate(lines) if at == 0 or line != lines[at - 1]])


def _grep(words: list[str], given: str) -> str:
    options, rest = _options(words, "")
    _only(options, "ocvEFi")
    if len(rest) != 1 or (re.search(r"[\\(){}+?|\[]", rest[0]) and not {"E", "F"} & options.keys()):
        raise UnknownFormError
    flags = re.IGNORECASE if "i" in options else 0
    pattern = re.compile(re.escape(rest[0]) if "F" in options else rest[0], flags)
    lines = [line for line in _lines(given) if (pattern.search(line) is None) == ("v" in options)]
    if "c" in options:
        return f"{len(lines)}\n"
    return _unlined(
        [each[0] for line in lines for each in pattern.finditer(line)] if "o" in options else lines
    )


def _rev(words: list[str], given: str) -> str:
    del words
    return _unlined([line[::-1] for line in _lines(given)])


def _cat(words: list[str], given: str) -> str:
    if [word for word in words if word != "-"]:
        raise UnknownFormError
    return given


def _tee(words: list[str], given: str) -> str:
    del words
    return given


def _xargs(words: list[str], given: str) -> str:
    if (words and words != ["echo"]) or re.search(r"[\"'\\]", given):
        raise UnknownFormError
    return " ".join(given.split()) + "\n"


def _bc(words: list[str], given: str) -> str:
    if words:
        raise UnknownFormError
    return _unlined([str(computed(line)) for line in _lines(given)])


def _expr(words: list[str], given: str) -> str:
    del given
    rest = iter(words)
    numbers = (str(len(next(rest, ""))) if word == "length" else word for word in rest)
    return f"{computed(' '.join(numbers))}\n"


def _seq(words: list[str], given: str) -> str:
    del given
    separator = "\n"
    if words[0].startswith("-s"):
        attached = words[0][2:]
        separator, words = (attached, words[1:]) if attached else (words[1], words[2:])
    numbers = [int(word) for word in words]
    first = numbers[0] if len(numbers) > 1 else 1
    step = numbers[1] if len(numbers) == 3 else 1  # noqa: PLR2004 -- first, step, last
    counted = range(first, numbers[-1] + (1 if step > 0 else -1), step)
    if len(counted) > MOST_COUNTED:
        raise UnknownFormError
    return separator.join(map(str, counted)) + "\n" if counted else ""


def _printf(words: list[str], given: str) -> str:
    del given
    return formatted(words[1:] if words[0] == "--" else words)


def _mktemp(words: list[str], _: str) -> str:
    """Print a template as it stands: only who makes the file and who reads it know its letters, and both have its name."""
    if len(words) != 1 or words[0].startswith("-"):
        raise UnknownFormError
    return f"{words[0]}\n"


PROGRAMS: Final[dict[str, Callable[[list[str], str], str]]] = {
    "tr": _tr,
    "wc": _wc,
    "awk": _awk,
    "gawk": _awk,
    "cut": _cut,
    "sed": _sed,
    "head": _head,
    "tail": _tail,
    "sort": _sort,
    "uniq": _uniq,
    "grep": _grep,
    "egrep": _grep,
    "rev": _rev,
    "cat": _cat,
    "tee": _tee,
    "xargs": _xargs,
    "bc": _bc,
    "expr": _expr,
    "seq": _seq,
    "printf": _printf,
    "mktemp": _mktemp,
}
# Those that read nothing.
WITHOUT_INPUT: Final = frozenset({"expr", "seq", "printf", "mktemp"})
