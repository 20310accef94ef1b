"""Read the scalars of TensorBoard's event files, without TensorBoard.

A file is a sequence of records: the length of the data (8 bytes, little-endian), a checksum of it (4 bytes), the
data, a checksum (4 bytes). The data is a protocol buffer `Event` (tensorboard/compat/proto/event.proto and
summary.proto): the step is field 2, a summary field 5; of a summary's values (field 1) the tag is field 1 and
a plain scalar field 2. Scalars that newer writers keep as tensors (field 8) are their `float_val` (field 5) or
four bytes of `tensor_content` (field 4).
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path

from rlplan.errors import unreadable
from rlplan.files.reading import check_regular

MARK = ".tfevents."
VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 0, 1, 2, 5
FLOAT_BYTES = 4
# Of the longest number that the protocol has: ten bytes of seven bits.
VARINT_BITS = 70
# Of a record: what stands before its data and behind it.
HEAD_BYTES, TAIL_BYTES, LENGTH_BYTES = 12, 4, 8

Fields = Iterator[tuple[int, int | bytes]]


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
