"""What runs on the node that is measured, in a process of Ray's: the same session as on one's own machine."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplan.errors import FileError

if TYPE_CHECKING:
    from rlplan.job import Job
    from rlplan.profiles.probes.bench.contract import JobRules
    from rlplan.profiles.probes.session import Progress

# Between two looks at the files: a session writes some of them many times a second.
FILES_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProfileRequest:
    """Say what to measure on a node.

    Attributes:
        name: Of the profile.
        folder: What paths in the job are relative to, where the command runs.
        rows: Prompts on which reward functions are timed; None times none.
        places: Options with which a process of each device starts.
        files: What an earlier session has left of the profile, by name.
        shown: Folder of the profile, as the user gave it.
    """

    name: str
    device: str
    kind: str
    job: Job | None
    folder: Path
    rows: Sequence[dict[str, Any]] | None
    places: Sequence[Mapping[str, Any]]
    quick: bool
    files: Mapping[str, str]
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Hold how far a session is, and the files of its profile by name where they were looked at."""

    done: int
    total: int
    label: str
    files: Mapping[str, str] | None = None


def measure_here(
    tell: Callable[[Measured], object], asked: NodeProfileRequest
) -> Mapping[str, str]:
    """Measure this node, and return the files of its profile by name.

    Raises:
        FileError: The earlier session's profile is of another machine, or other conditions.
    """
    with tempfile.TemporaryDirectory(prefix="rlplan-profile-") as made:
        out = Path(made, asked.name)
        if asked.files:
            out.mkdir()
        for name, text in asked.files.items():
            (out / name).write_text(text, encoding="utf-8")
        try:
            with _without_main_program():
                _measure(asked, out, _told(tell, out))
        except FileError as error:
            raise _of_users_folder(error, str(out), asked.shown) from None
        return files_of(out)


@contextmanager
def _without_main_program() -> Iterator[None]:
    """Keep processes of devices from running this process's main program first: it is Ray's, and takes a second."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    main.__file__ = None
    try:
        yield
    finally:
        main.__file__ = path


def _measure(asked: NodeProfileRequest, out: Path, progress: Progress) -> None:
    from rlplan.executor.pass_runner import RayPassRunner
    from rlplan.executor.workers.cluster.looking import seen_job
    from rlplan.profiles.probes.session import profile_machine
    from rlplan_cli.profiling.rules import rules_on

    job, rules = asked.job, None
    if job is not None:
        job, folder = seen_job(job, asked.folder)
        if asked.rows is not None:
            rules = _named_as_asked(rules_on(asked.rows, job, folder), job, asked.job)
    torch_name = "cpu" if asked.kind == "cpu" else "cuda"
    with RayPassRunner(len(asked.places), torch_name, job, asked.places) as runner:
        if asked.kind != "cpu":  # those that Ray has given to the runner's workers, and no others
            os.environ["CUDA_VISIBLE_DEVICES"] = runner.visible_gpus
        profile_machine(
            name=asked.name,
            device=asked.device,
            job=asked.job,
            runner=None if job is None else runner,
            out=out,
            devices=len(asked.places),
            quick=asked.quick,
            progress=progress,
            rules=rules,
        )


def _named_as_asked(rules: JobRules, seen: Job, asked: Job | None) -> JobRules:
    """Return rules under the names that the user's job has for them: files that went along lie elsewhere."""
    assert asked is not None, "a job has rules"
    pairs = [
        (getattr(asked.rewards, field, None), getattr(seen.rewards, field, None))
        for field in ("function", "cost_function")
    ]
    names = {own: there for own, there in pairs if own is not None and there is not None}
    functions = {own: rules.functions[there] for own, there in names.items()}
    judge = rules.judge
    if judge is None:
        return replace(rules, functions=functions)
    return replace(rules, functions=functions, judge=lambda name: judge(names[name]))


def _told(tell: Callable[[Measured], object], out: Path) -> Progress:
    looked = time.monotonic()

    def progress(done: int, total: int, label: str) -> None:
        nonlocal looked
        files = None
        if time.monotonic() - looked > FILES_SECONDS:
            files, looked = files_of(out), time.monotonic()
        tell(Measured(done=done, total=total, label=label, files=files))

    return progress


def files_of(folder: Path) -> dict[str, str]:
    """Return the texts of a profile's files by name, its header last; nothing where there is none."""
    from rlplan.profiles.tables.table import HEADER_FILE

    header = folder / HEADER_FILE
    if not header.is_file():
        return {}
    paths = (*sorted(folder.glob("*.csv")), header)
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def _of_users_folder(error: FileError, here: str, shown: str) -> FileError:
    """Return an error about a profile's file under the name of the user's folder."""
    return FileError(
        error.file.replace(here, shown),
        error.problem,
        field=error.field,
        value=error.value,
        allowed=error.allowed,
        nearest=error.nearest,
    )
