"""What a worker keeps beside its tasks: its part of a checkpoint, its random generators, and the peak of its memory."""

import ctypes
import hashlib
import json
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlplan.errors import FileError
from rlplan.executor.data.remote_folders import RemoteFolder, checksums, fetch_whole, fetched_once
from rlplan.executor.workers.calls import RANDOM_FOLDER, StoreCall
from rlplan.files.decoding import load_json
from rlplan.files.writing import write_text
from rlplan.units import KIB


def random_states() -> dict[str, Any]:
    """Return the states of this process's generators, as JSON has them; torch's where this process has loaded it."""
    version, inner, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    states: dict[str, Any] = {
        "python": [version, list(inner), gauss],
        "numpy": [name, keys.tolist(), position, has_gauss, cached],  # type: ignore[union-attr]
    }
    torch = sys.modules.get("torch")  # workers of host pools do without it
    if torch is not None:
        states["torch"] = bytes(torch.get_rng_state().tolist()).hex()
        if torch.cuda.is_initialized():
            states["cuda"] = bytes(torch.cuda.get_rng_state().tolist()).hex()
    return states


def write_random_states(path: Path) -> None:
    """Write the states of this process's generators."""
    write_text(path, json.dumps(random_states()) + "\n")


def read_random_states(path: Path) -> None:
    """Set this process's generators to what a file holds.

    Raises:
        FileError: The file is missing or broken.
    """
    try:
        set_random_states(load_json(path))
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise FileError(str(path), f"holds no random states: {error}") from None


def set_random_states(states: Any) -> None:
    """Set this process's generators to states that `random_states` has returned.

    Raises:
        LookupError, TypeError, ValueError, OverflowError, RuntimeError: They are no such states.
    """
    version, inner, gauss = states["python"]
    random.setstate((version, tuple(inner), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if "torch" in states:
        torch.set_rng_state(_as_bytes(torch, states["torch"]))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(_as_bytes(torch, states["cuda"]))


def _as_bytes(torch: Any, text: str) -> Any:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)


def peak_bytes(device: str) -> int:
    """Return the peak of this process in bytes: allocated on `cuda`, else resident on the host."""
    if device == "cuda":
        import torch  # noqa: PLC0415  # rule workers do without

        return int(torch.cuda.max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes (getrusage(2)).
    return peak if sys.platform == "darwin" else peak * KIB


def give_memory_back() -> None:
    """Give freed memory of the host back to the system: glibc's (`malloc_trim(3)`), and what torch has pinned for CUDA.

    What is freed stays with the process else: `ray_session.ENVIRONMENT` lets malloc keep it from task to task, and torch
    keeps pinned blocks for the next offload of the same size.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        # torch names it for this, and builds without CUDA have none.
        getattr(torch._C, "_host_emptyCache", lambda: None)()  # noqa: SLF001
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def forget_peak() -> None:
    """Let the peak of this process's memory be what it holds now; of the host's on Linux alone (proc(5), `clear_refs`)."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


# A rank's part of a checkpoint: written into a folder or sent to a URL, fetched once a node.


def store(call: StoreCall, write: Callable[[StoreCall], None]) -> Mapping[str, str]:
    """Write a rank's part of a checkpoint.

    Returns:
        Checksums of the files that were sent to a URL, by their paths; none of what lies in a folder.

    Raises:
        FileError: It cannot be written.
    """
    if not call.url:
        write(call)
        return {}
    with tempfile.TemporaryDirectory(prefix="rlplan-stored-") as made:
        folder = Path(made)
        (folder / RANDOM_FOLDER).mkdir()
        write(replace(call, folder=folder, url=""))
        RemoteFolder(call.url).send(folder)
        return checksums(folder)


def fetch(call: StoreCall) -> None:
    """Fetch a checkpoint from its URL to this node, if no other rank has done so.

    Raises:
        FileError: It cannot be read, or a file of it is not as it was written.
    """
    if not call.url:
        return
    fetched_once(_copy(call.url), partial(fetch_whole, call.url))


def fetched(call: StoreCall) -> StoreCall:
    """Return a call whose folder is on this node."""
    return replace(call, folder=_copy(call.url), url="") if call.url else call


def clear(call: StoreCall) -> None:
    """Clear away what was fetched."""
    if call.url:
        shutil.rmtree(_copy(call.url), ignore_errors=True)


def _copy(url: str) -> Path:
    """Return where this node keeps what it fetches from a URL."""
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"rlplan-fetched-{os.getuid()}", name)
