"""A user's files that go to all nodes with a run: reward functions, environments, the tokenizer.

They travel as a package of Ray's `runtime_env`, which every worker can import and Ray clears away.
"""

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from executor.data.user_files import is_in_a_file
from rlplan.job import Job

PACKAGE = "rlplan_carried"
# What lies beside a reward function and is imported by it goes along; weights beside a tokenizer do not.
MOST_BYTES = 32 * 2**20


@contextmanager
def carried_files(job: Job, folder: Path) -> Iterator[Path | None]:
    """Yield a package with what a job's workers read in its folder; None where there is nothing."""
    found = sorted({each for path in carried_paths(job).values() for each in _files(folder, path)})
    if not found:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="rlplan-carried-") as made:
        package = Path(made, PACKAGE)
        for path in found:
            target = package / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / path, target)
        yield package


def carried_paths(job: Job) -> dict[str, Path]:
    """Return what a job names inside its folder, by the field that names it."""
    return {name: path for name, path in _named(job).items() if not _leaves(path)}


def outside_paths(job: Job, folder: Path) -> dict[str, Path]:
    """Return what a job names elsewhere, which every node has to see, by the field that names it."""
    return {name: (folder / path).resolve() for name, path in _named(job).items() if _leaves(path)}


def _named(job: Job) -> dict[str, Path]:
    named = {}
    if job.rewards is not None:
        for field in ("function", "cost_function"):
            named[f"rewards.{field}"] = getattr(job.rewards, field)
    for at, environment in enumerate(job.environments):
        named[f"workload.environments.{at}.source"] = environment.source
    found = {
        name: Path(spec.rpartition(":")[0] if ":" in spec else spec)
        for name, spec in named.items()
        if spec is not None and is_in_a_file(spec)
    }
    return found if job.tokenizer == "bytes" else {**found, "tokenizer": Path(job.tokenizer)}


def _leaves(path: Path) -> bool:
    return path.is_absolute() or ".." in path.parts


def _files(folder: Path, path: Path) -> Iterator[Path]:
    """Yield a file with the Python files beside it, or the files of a folder, those of weights left out."""
    whole = folder / path
    inside = whole.rglob("*") if whole.is_dir() else (whole, *whole.parent.glob("*.py"))
    for each in inside:
        if each.is_file() and each.stat().st_size <= MOST_BYTES:
            yield each.relative_to(folder)


def seen_folder(folder: Path) -> Path:
    """Return the folder of a job's files on this node: its own where it sees it as it is, else what went along."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        return folder
    carried = Path(next(iter(package.submodule_search_locations)))
    files = [each.relative_to(carried) for each in carried.rglob("*") if each.is_file()]
    same = all(_same(folder / each, carried / each) for each in files)
    return folder if same else carried


def _same(first: Path, second: Path) -> bool:
    return first.is_file() and first.read_bytes() == second.read_bytes()
