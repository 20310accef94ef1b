"""One run at a time in a folder: two would drop and overwrite each other's metrics and checkpoints."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlplan.errors import FileError

# Left behind by a run that was killed, and then held by nobody.
LOCK_FILE = "running.lock"


@contextmanager
def sole_run(out: Path) -> Iterator[None]:
    """Keep other runs out of a run's folder, which is made if it is missing, and removed again if nothing came into it.

    The lock is the process's own: it ends with it, however that ends. On a file system without locks nobody is kept out.

    Raises:
        FileError: Another run writes into the folder, or it cannot be written.
    """
    path, is_new = out / LOCK_FILE, not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise FileError(str(path), f"cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(out, held) from None
        except OSError:  # no locks here
            yield
            return
        if not _is_file(held, path):  # of a run that has just ended, and another one may have begun
            raise _in_use(out, held)
        with suppress(OSError):  # of a full disk: the words are for people
            os.ftruncate(held, 0)  # a run that was killed has left its own
            os.pwrite(held, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            if is_new:
                with suppress(OSError):  # it holds a run
                    out.rmdir()
    finally:
        os.close(held)


def _is_file(held: int, path: Path) -> bool:
    """Tell whether a path still names the file that is open."""
    try:
        return os.path.samestat(os.fstat(held), path.stat())
    except FileNotFoundError:
        return False


def _in_use(out: Path, held: int) -> FileError:
    who = os.pread(held, 200, 0).decode(errors="replace").strip()
    return FileError(
        str(out),
        f"another run writes into it now{f' ({who})' if who else ''}",
        allowed="another folder (--out), or --resume once that run has ended",
    )
