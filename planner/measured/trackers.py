"""Read the scalars that trackers keep in files of their own: TensorBoard's events and W&B's runs, without either.

A file of events is a sequence of records: the length of the data (8 bytes, little-endian), a checksum of it (4 bytes), the
data, a checksum (4 bytes). The data is a protocol buffer `Event` (tensorboard/compat/proto/event.proto and
summary.proto): the step is field 2, a summary field 5; of a summary's values (field 1) the tag is field 1 and
a plain scalar field 2. Scalars that newer writers keep as tensors (field 8) are their `float_val` (field 5) or
four bytes of `tensor_content` (field 4).

A file of W&B's (`run-*.wandb`) is a log of LevelDB's (google/leveldb, doc/log_format.md) behind seven bytes: in blocks of
32,768 bytes, records of a checksum (4 bytes), the length (2 bytes, little-endian) and the kind (1 byte: whole, first,
middle, last), whose parts make a protocol buffer `Record` (wandb/proto/wandb_internal.proto). Its history is field 2, of
which each item (field 1) has its name in field 1 or, part by part, in field 2, and its value as JSON in field 16; newer
schemas have whole numbers in field 5 (zigzag) and others in field 6 too. Read back from a run of W&B 0.31.0.
"""

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path

from rlplan.errors import FileError, unreadable
from rlplan.files.decoding import check_regular

MARK = ".tfevents."
VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 0, 1, 2, 5
FLOAT_BYTES = 4
# Of the longest number that the protocol has: ten bytes of seven bits.
VARINT_BITS = 70
# Of a record: what stands before its data and behind it.
HEAD_BYTES, TAIL_BYTES, LENGTH_BYTES = 12, 4, 8

# Of W&B's logs: the first bytes, a block, what stands before a record's data, and kinds of records.
WANDB_MARK, WANDB_HEAD_BYTES, WANDB_SUFFIX = b":W&B", 7, ".wandb"
BLOCK_BYTES, PART_HEAD_BYTES = 2**15, 7
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
# Fields of its messages.
HISTORY, ITEM, KEY, KEY_PART, INTEGER, NUMBER, VALUE_JSON = 2, 1, 1, 2, 5, 6, 16
# What it calls the number of a record, and the link to the folder of the newest run.
WANDB_STEP, LATEST = "_step", "latest-run"

Fields = Iterator[tuple[int, int | bytes]]


def tracked_files(path: Path) -> tuple[Path, ...]:
    """Return the files of a tracker that a path names, or that lie in a folder; none where it is another log."""
    run = wandb_file(path)
    return event_files(path) if run is None else (run,)


def tracked_steps(path: Path) -> list[dict[str, float]]:
    """Return the scalars of each step by name, in the order of steps.

    Raises:
        FileError: A file cannot be read.
    """
    run = wandb_file(path)
    return events_by_step(path) if run is None else wandb_steps(run)


def wandb_file(path: Path) -> Path | None:
    """Return W&B's file of a run: the path itself, or that of a run's folder, or of the newest run in a folder of runs."""
    if path.is_file():
        return path if path.suffix == WANDB_SUFFIX else None
    for folder in (path, path / LATEST, *_run_folders(path)):
        found = sorted(folder.glob(f"run-*{WANDB_SUFFIX}"))
        if found:
            return found[-1]
    return None


def _run_folders(path: Path) -> list[Path]:
    """Return the folders of runs, the newest first: `run-DATE-ID` and `offline-run-DATE-ID`."""
    found = [each for each in path.glob("*run-*") if each.is_dir()]
    return sorted(found, key=lambda each: each.name.rpartition("run-")[2], reverse=True)


def wandb_steps(file: Path) -> list[dict[str, float]]:
    """Return the scalars of each step of W&B's history by name; records of one step are taken together.

    A record that is still being written ends the file.

    Raises:
        FileError: It cannot be read, or is none of W&B's.
    """
    check_regular(file)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise unreadable(str(file), error) from None
    if content and not content.startswith(WANDB_MARK[: len(content)]):
        allowed = f"a file that begins with {WANDB_MARK.decode()}"
        raise FileError(str(file), "is no file of W&B's", allowed=allowed)
    steps: list[dict[str, float]] = []
    for record in _log_records(content):
        for field, history in _fields(record):
            if field != HISTORY or not isinstance(history, bytes):
                continue
            figures = dict(_history_figures(history))
            number = figures.get(WANDB_STEP)
            if steps and number is not None and steps[-1].get(WANDB_STEP) == number:
                steps[-1] |= figures
            elif figures:
                steps.append(figures)
    return steps


def _log_records(content: bytes) -> Iterator[bytes]:
    """Yield the data of a LevelDB log's whole records; one without its end, or of a kind that there is not, ends it."""
    at, held = WANDB_HEAD_BYTES, b""
    while at + PART_HEAD_BYTES <= len(content):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < PART_HEAD_BYTES:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", content, at + 4)
        start = at + PART_HEAD_BYTES
        at = start + size
        if at > len(content) or size > left - PART_HEAD_BYTES or not WHOLE <= kind <= LAST:
            return
        held = content[start:at] if kind in {WHOLE, FIRST} else held + content[start:at]
        if kind in {WHOLE, LAST}:
            yield held
            held = b""


def _history_figures(history: bytes) -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of a record of the history by name."""
    for field, item in _fields(history):
        if field != ITEM or not isinstance(item, bytes):
            continue
        parts, value = list[str](), None
        for inner, held in _fields(item):
            if inner in {KEY, KEY_PART} and isinstance(held, bytes):
                parts.append(held.decode("utf-8", "replace"))
            else:
                found = _item_value(inner, held)
                value = value if found is None else found
        if parts and value is not None and math.isfinite(value):
            yield ".".join(each for each in parts if each), value


def _item_value(field: int, held: int | bytes) -> float | None:
    """Return the number that a field of an item holds; None where it holds none."""
    if field == INTEGER and isinstance(held, int):
        return float(held >> 1 ^ -(held & 1))
    if not isinstance(held, bytes):
        return None
    if field == NUMBER and len(held) == 2 * FLOAT_BYTES:
        return float(struct.unpack("<d", held)[0])
    if field == VALUE_JSON:
        try:
            value = json.loads(held)
        except (ValueError, RecursionError):
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return _as_float(value) if is_number else None
    return None


def _as_float(value: float) -> float | None:
    """Return a number as a float; None where it is larger than one can be."""
    try:
        return float(value)
    except OverflowError:
        return None


def event_files(path: Path) -> tuple[Path, ...]:
    """Return the event files that a path names, or that lie below a folder, by name."""
    if path.is_dir():
        return tuple(sorted(each for each in path.rglob(f"*{MARK}*") if each.is_file()))
    return (path,) if MARK in path.name and path.is_file() else ()


def events_by_step(path: Path) -> list[dict[str, float]]:
    """Return the scalars of each step by tag, in the order of steps.

    Raises:
        FileError: A file cannot be read.
    """
    steps: dict[int, dict[str, float]] = {}
    for file in event_files(path):
        check_regular(file)
        try:
            content = file.read_bytes()
        except OSError as error:
            raise unreadable(str(file), error) from None
        for step, tag, value in _scalars(content):
            if math.isfinite(value):
                steps.setdefault(step, {})[tag] = value
    return [steps[step] for step in sorted(steps)]


def _scalars(content: bytes) -> Iterator[tuple[int, str, float]]:
    for record in _records(content):
        fields = list(_fields(record))
        step = next((value for field, value in fields if field == 2), 0)  # noqa: PLR2004 -- of the protocol
        for field, summary in fields:
            if field == 5 and isinstance(summary, bytes):  # noqa: PLR2004
                for inner, value in _fields(summary):
                    scalar = _scalar(value) if inner == 1 and isinstance(value, bytes) else None
                    if scalar is not None and isinstance(step, int):
                        yield step, *scalar


def _records(content: bytes) -> Iterator[bytes]:
    """Yield the data of whole records; one that is still being written ends the file."""
    at = 0
    while at + HEAD_BYTES <= len(content):
        size = int.from_bytes(content[at : at + LENGTH_BYTES], "little")
        start = at + HEAD_BYTES
        if start + size > len(content):
            return
        yield content[start : start + size]
        at = start + size + TAIL_BYTES


def _scalar(value: bytes) -> tuple[str, float] | None:
    fields = dict(_fields(value))
    tag, plain, tensor = fields.get(1), fields.get(2), fields.get(8)
    if not isinstance(tag, bytes):
        return None
    if not isinstance(plain, bytes) and isinstance(tensor, bytes):
        inner = dict(_fields(tensor))
        plain = inner.get(5, inner.get(4))
    if not isinstance(plain, bytes) or len(plain) != FLOAT_BYTES:
        return None
    return tag.decode("utf-8", "replace"), float(struct.unpack("<f", plain)[0])


def _fields(message: bytes) -> Fields:
    """Yield the fields of a protocol buffer: numbers as they are, all else as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind, field = key & 7, key >> 3
        if kind == VARINT:
            number, at = _varint(message, at)
            yield field, number
            continue
        if kind == DELIMITED:
            size, at = _varint(message, at)
        elif kind in {FOUR_BYTES, EIGHT_BYTES}:
            size = FLOAT_BYTES if kind == FOUR_BYTES else 2 * FLOAT_BYTES
        else:
            return  # no field that these files have
        yield field, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, seven bits a byte, and where it ends."""
    number, shift = 0, 0
    while at < len(message) and shift < VARINT_BITS:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 -- the highest bit says that another byte follows
            break
    return number, at
