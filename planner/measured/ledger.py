"""The ledger of advice: JSON lines, one a decision or outcome, always written whole."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlplan.errors import FileError
from rlplan.files.decoding import check_version, decode, read_text
from rlplan.files.writing import plain, write_text
from rlplan.results.advice import ADVICE_VERSION, AdviceLine, Barred, Decision, NoSearch, Outcome

KINDS = {"decision": Decision, "outcome": Outcome, "barred": Barred, "no search": NoSearch}


def read_ledger(path: Path) -> tuple[AdviceLine, ...]:
    """Return the lines of a ledger, oldest first; none where there is no file.

    A last line that was cut off, as by whoever copies a file while it grows, is left out.

    Raises:
        FileError: The file cannot be read, or a line is none of a ledger of this release.
    """
    return tuple(_lines(path)) if path.exists() else ()


def _lines(path: Path) -> Iterator[AdviceLine]:
    text = read_text(path)
    whole, _, torn = text.rpartition("\n")
    for number, line in enumerate(whole.split("\n") if whole else (), 1):
        if line.strip():
            yield _line(line, f"{path}:{number}")
    if torn.strip():
        try:
            json.loads(torn)
        except ValueError:
            return
        yield _line(torn, f"{path}:last")


def _line(text: str, where: str) -> AdviceLine:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise FileError(where, "is no line of a ledger: no JSON") from None
    check_version(data, ADVICE_VERSION, where, "ledger")
    kind = KINDS.get(str(data.get("kind")))
    if kind is None:
        problem = "is no line of a ledger"
        raise FileError(
            where, problem, field="kind", value=str(data.get("kind")), allowed=", ".join(KINDS)
        )
    found: AdviceLine = decode(kind, data, where)
    return found


def write_line(path: Path, line: AdviceLine) -> None:
    """Write a ledger with one more line; the same line is not written again.

    Raises:
        FileError: The file cannot be read or written.
    """
    known = read_ledger(path)
    if line not in known:
        write_text(path, "".join(f"{text_of(each)}\n" for each in (*known, line)))


def text_of(line: AdviceLine) -> str:
    """Return a line as JSON on one line."""
    return json.dumps(plain(line), allow_nan=False)


def open_decisions(lines: Sequence[AdviceLine]) -> tuple[Decision, ...]:
    """Return the changes that were advised since the last outcome, the newest first."""
    last = max((at for at, each in enumerate(lines, 1) if isinstance(each, Outcome)), default=0)
    return tuple(
        each
        for each in reversed(lines[last:])
        if isinstance(each, Decision) and each.answer == "change"
    )
