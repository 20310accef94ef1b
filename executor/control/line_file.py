"""Files of a JSON object a line that a run appends to: whole lines, also after it was killed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rlplan.errors import FileError
from rlplan.files.writing import check_replaceable, write_text


class LineFile:
    """Append objects to a file; a context manager that closes itself.

    A line that a killed run left half-written is removed before the first new one.

    Args:
        path: Its folder is made if it is missing.

    Raises:
        FileError: The file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_replaceable(str(path), path)
        _drop_cut_line(path)
        # Unbuffered: one write is one line, whole in the file when `append` returns.
        self._lines = path.open("ab", buffering=0)

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a line.

        Raises:
            FileError: It cannot be written, or not as a whole.
        """
        line = json.dumps(row, allow_nan=False, ensure_ascii=False).encode() + b"\n"
        try:
            written = self._lines.write(line)
        except OSError as error:
            problem = f"cannot be written: {error.strerror}"
            raise FileError(str(self._lines.name), problem) from None
        if written != len(line):
            raise FileError(str(self._lines.name), "cannot be written: the disk is full")

    def close(self) -> None:
        """Close the file; closing twice does no harm."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def drop_iterations(path: Path, first: int) -> None:
    """Remove the lines of an iteration and all later ones from a file, for they are done again."""
    if not path.exists():
        return
    _drop_cut_line(path)
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    kept = [f"{line}\n" for line in lines if json.loads(line)["iteration"] < first]
    write_text(path, "".join(kept))


def _drop_cut_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("r+b") as stream:
        content = stream.read()
        stream.truncate(content.rfind(b"\n") + 1)
