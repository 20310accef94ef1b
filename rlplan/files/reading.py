"""Read a user's file whole: a regular file of a bounded size, as text."""

import stat
from pathlib import Path

from rlplan.errors import FileError, nearest_name, unreadable

# Far more than any file that people or frameworks write for a command to read whole: the logs of ten
# thousand steps or the measurements of a million tasks are below it.
LARGEST_FILE_BYTES = 2**28


def check_regular(path: Path, most_bytes: int | None = LARGEST_FILE_BYTES) -> None:
    """Refuse what is no regular file (a device would not end, a pipe would wait), or a huge one.

    Args:
        most_bytes: None: however large, for what is read in pieces.

    Raises:
        FileError: Says what is there instead, or how large it is.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileError(
            str(path), "no such file", nearest=nearest_name(path.name, siblings)
        ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError):  # a name with a zero byte
            raise FileError(str(path), f"cannot be read: {error}") from None
        raise unreadable(str(path), error) from None
    if stat.S_ISDIR(found.st_mode):
        raise FileError(str(path), "is a folder, not a file")
    if not stat.S_ISREG(found.st_mode):
        raise FileError(
            str(path), "is a device, pipe or socket", allowed="a regular file; copy into one first"
        )
    if most_bytes is not None and found.st_size > most_bytes:
        problem = f"is too large to be read: {found.st_size:,} bytes"
        raise FileError(str(path), problem, allowed=f"at most {most_bytes:,} bytes")


def read_text(
    path: Path, *, most_bytes: int | None = LARGEST_FILE_BYTES, errors: str = "strict"
) -> str:
    """Return the text of a regular file.

    Args:
        most_bytes: Largest size that is read; None reads however much there is.
        errors: What becomes of bytes that are no text, as `open` has it.

    Raises:
        FileError: The file is missing, is none, is too large, or holds no text in UTF-8.
    """
    check_regular(path, most_bytes)
    try:
        return path.read_text(encoding="utf-8", errors=errors)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(path), error) from None
