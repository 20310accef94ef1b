"""A user's files that go to all nodes with a run: reward functions, environments, the tokenizer.

They travel as a package of Ray's `runtime_env`, which every worker can import and Ray clears away.
"""

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rlplan.executor.data.user_files import is_in_a_file
from rlplan.job import Job

PACKAGE, BYTES = "rlplan_carried", "bytes"
# What lies beside a reward function and is imported by it goes along; weights beside a tokenizer do not.
MOST_BYTES = 32 * 2**20


@contextmanager
def carried_files(job: Job, folder: Path) -> Iterator[Path | None]:
    """Yield a package with what a job's workers read in its folder; None where there is nothing."""
    found = sorted(
        {each for path in carried_paths(job, folder).values() for each in _files(folder, path)}
    )
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


def carried_paths(job: Job, folder: Path) -> dict[str, Path]:
    """Return what a job names inside its folder, relative to it, by the field that names it."""
    found = {name: inner_path(path, folder) for name, path in _named(job).items()}
    return {name: path for name, path in found.items() if not _leaves(path)}


def outside_paths(job: Job, folder: Path) -> dict[str, Path]:
    """Return what a job names elsewhere, which every node has to see, by the field that names it."""
    return {
        name: (folder / path).resolve()
        for name, path in _named(job).items()
        if _leaves(inner_path(path, folder))
    }


def inner_path(path: Path, folder: Path) -> Path:
    """Return a path relative to a folder where it lies in it, else as it is."""
    whole = folder.resolve()
    return path.relative_to(whole) if path.is_relative_to(whole) else path


def _named(job: Job) -> dict[str, Path]:
    named = {}
    if job.rewards is not None:
        for field in ("function", "cost_function"):
            named[f"rewards.{field}"] = getattr(job.rewards, field)
    if job.evaluation is not None:
        named["evaluation.function"] = job.evaluation.function
    for at, environment in enumerate(job.environments):
        named[f"workload.environments.{at}.source"] = environment.source
    found = {
        name: Path(_file(spec))
        for name, spec in named.items()
        if spec is not None and is_in_a_file(spec)
    }
    return found if job.tokenizer == BYTES else {**found, "tokenizer": Path(job.tokenizer)}


def _file(spec: str) -> str:
    return spec.rpartition(":")[0] if ":" in spec else spec


def _leaves(path: Path) -> bool:
    return path.is_absolute() or ".." in path.parts


def _files(folder: Path, path: Path) -> Iterator[Path]:
    """Yield a file with the Python files beside it, or the files of a folder, those of weights left out."""
    whole = folder / path
    inside = whole.rglob("*") if whole.is_dir() else (whole, *whole.parent.glob("*.py"))
    for each in inside:
        if each.is_file() and each.stat().st_size <= MOST_BYTES:
            yield each.relative_to(folder)


def seen_job(job: Job, folder: Path) -> tuple[Job, Path]:
    """Return a job and the folder of its files as this node sees them: as they are, or those that went along."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        return job, folder
    carried = Path(next(iter(package.submodule_search_locations)))
    files = [each.relative_to(carried) for each in carried.rglob("*") if each.is_file()]
    if all(_same(folder / each, carried / each) for each in files):
        return job, folder
    return _named_inside(job, folder), carried


def _named_inside(job: Job, folder: Path) -> Job:
    """Return a job whose files in its folder are named relative to it."""

    def moved(spec: str | None) -> str | None:
        if spec is None or not is_in_a_file(spec):
            return spec
        file = _file(spec)
        return f"{inner_path(Path(file), folder)}{spec.removeprefix(file)}"

    rewards, work = job.rewards, job.workload
    if rewards is not None:
        function, cost_function = moved(rewards.function), moved(rewards.cost_function)
        rewards = replace(rewards, function=function, cost_function=cost_function)
    evaluation = job.evaluation
    if evaluation is not None:
        evaluation = replace(evaluation, function=moved(evaluation.function))
    if work.environments:
        played = tuple(replace(each, source=moved(each.source)) for each in work.environments)
        work = replace(work, environments=played)
    tokenizer = job.tokenizer
    if tokenizer != BYTES:
        tokenizer = str(inner_path(Path(tokenizer), folder))
    return replace(job, rewards=rewards, evaluation=evaluation, workload=work, tokenizer=tokenizer)


def _same(first: Path, second: Path) -> bool:
    return first.is_file() and first.read_bytes() == second.read_bytes()
