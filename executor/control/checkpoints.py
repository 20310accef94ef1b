"""Checkpoints of a run: what is needed to go on as if it had never stopped, on any layout.

A checkpoint is a folder that is written under another name and renamed when it is whole:
`checkpoint.json` (where the run is), `plan.yaml` (what wrote it), a folder of each trained model,
`random/` with the random states of every rank, and `manifest.json` with the checksums of all that. Models that are
not trained come from their folders, or from the seed.
Where iterations overlap, `generator/` holds the weights that the next batch is generated with, which
are an update older: a run that goes on makes that batch again.

Of a checkpoint behind a URL the run's folder has the first two and the manifest; the rest is sent from the nodes that
have it, the manifest's other files first (`rlplan.executor.workers.worker`).
"""

import atexit
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlplan.errors import FileError
from rlplan.executor.data.remote_folders import (
    MANIFEST_FILE,
    VERSION,
    Manifest,
    RemoteFolder,
    check_whole,
    checksums,
    child_url,
    fetch_files,
    read_manifest,
)
from rlplan.executor.data.workload import job_of_batches
from rlplan.executor.workers.calls import RANDOM_FOLDER, StoreCall
from rlplan.executor.workers.pools import WorkerGroup
from rlplan.files.decoding import check_version, decode, is_url, load_json, read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_json
from rlplan.job import RANDOM, Job
from rlplan.plan import Plan
from rlplan.results.stored import PLAN_FILE, write_plan

CHECKPOINTS_FOLDER = "checkpoints"
STATE_FILE = "checkpoint.json"
# Of a checkpoint behind a URL, what the run's folder has of it.
SMALL_FILES = (STATE_FILE, PLAN_FILE, MANIFEST_FILE)
# What a run that goes on must share with the one that it continues; layouts may differ.
CONTINUED = ("algorithm", "models", "prompts_file", "prompt_data", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """Say where a run is.

    Attributes:
        iteration: Iterations that are done; the next one has this number.
        next_prompt: Position in the stream of prompts of the next one that is begun.
        left_prompts: Those before it that were not learnt from: they are begun again.
        seed: Of the weights and the samples.
        algorithm_state: What the algorithm carries from iteration to iteration, by name.
        url: Behind which models and random states lie; empty where they are beside.
    """

    version: int = VERSION
    iteration: int
    next_prompt: int
    seed: int
    algorithm_state: FrozenDict[str, float]
    left_prompts: tuple[int, ...] = ()
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Hold a checkpoint's folder and where the run is in it.

    Attributes:
        passed_over: What is wrong with later ones, which were passed over for it; empty without any.
    """

    folder: Path
    state: CheckpointState
    passed_over: str = ""

    @property
    def run_folder(self) -> Path:
        """Return the folder of the run that wrote it, where it still lies there."""
        return self.folder.parent.parent


class CheckpointFolder:
    """Write checkpoints into a folder and keep the last ones.

    Args:
        keep: How many.
        url: Of the folder behind which models and random states go; empty where they go here.

    Attributes:
        best: After how many iterations the one was written that is kept beside; None: there is none.
    """

    def __init__(self, folder: Path, keep: int, best: int | None = None, url: str = "") -> None:
        self._folder, self._keep, self.best = folder.resolve(), keep, best
        self._url = url

    def save(
        self, plan: Plan, groups: Mapping[str, WorkerGroup], state: CheckpointState
    ) -> Checkpoint:
        """Write a checkpoint, whole or not at all, then drop the oldest ones.

        Raises:
            FileError: The folder cannot be written.
        """
        target = self._folder / _name(state.iteration)
        partial = target.with_name(f".{target.name}.partial")
        if self._url:
            state = replace(state, url=child_url(self._url, target.name))
        try:
            for left in self._folder.glob(".iteration-*"):
                shutil.rmtree(left)
            (partial / RANDOM_FOLDER).mkdir(parents=True)
            if state.url:
                RemoteFolder(state.url).remove("")
            sent = _on_all("save_checkpoint", partial, groups, state.url)
            write_plan(partial / PLAN_FILE, plan)
            write_json(partial / STATE_FILE, state)
            sums = {name: each for part in sent for name, each in part.items()}
            manifest = Manifest(sha256=FrozenDict({**checksums(partial), **sums}))
            write_json(partial / MANIFEST_FILE, manifest)
            if state.url:
                RemoteFolder(state.url).send(partial, last=MANIFEST_FILE)
            _discard(target)
            partial.rename(target)
        except (OSError, FileError) as error:
            shutil.rmtree(partial, ignore_errors=True)  # a full disk has room for the rest again
            if isinstance(error, FileError):
                raise
            raise FileError(str(self._folder), f"cannot be written: {error.strerror}") from None
        self._drop_others(target)
        return Checkpoint(folder=target, state=state)

    def _drop_others(self, target: Path) -> None:
        """Keep the newest checkpoints up to this one, and the best; drop others, also later ones of a run that was given up."""
        found = {path.name for path in _complete(self._folder)}
        remote = RemoteFolder(self._url) if self._url else None
        if remote is not None:  # what another machine wrote is there alone
            found |= {
                name.split("/")[0] for name in remote.names() if name.startswith("iteration-")
            }
        names = sorted(found)
        done = names.index(target.name) + 1
        kept = {
            *names[max(0, done - self._keep) : done],
            "" if self.best is None else _name(self.best),
        }
        for name in (each for each in names if each not in kept):
            if remote is not None:
                remote.remove(name)
            _discard(self._folder / name)


def checkpoint_folder(out: Path, iteration: int) -> Path:
    """Return where a run's checkpoint after so many iterations is."""
    return out / CHECKPOINTS_FOLDER / _name(iteration)


def restore(checkpoint: Checkpoint, groups: Mapping[str, WorkerGroup]) -> bool:
    """Let the workers of all pools take over what a checkpoint holds for them.

    Returns:
        Whether those that generate now have the weights of the next batch, an update behind.

    Raises:
        FileError: It does not hold the models that they train.
    """
    folder, url = checkpoint.folder, checkpoint.state.url
    if not url:
        return any(_on_all("load_checkpoint", folder, groups))
    try:
        _on_all("fetch_checkpoint", folder, groups, url)
        return any(_on_all("load_checkpoint", folder, groups, url))
    finally:
        _on_all("clear_checkpoint", folder, groups, url)


@contextmanager
def model_of(checkpoint: Checkpoint, role: str) -> Iterator[Path]:
    """Yield a folder of this machine with one of the models of a checkpoint; of those behind a URL it alone is fetched.

    Raises:
        FileError: It cannot be fetched, or is not as it was written.
    """
    if not checkpoint.state.url:
        yield checkpoint.folder / role
        return
    written = read_manifest(checkpoint.folder)
    own = {name: checksum for name, checksum in written.items() if name.startswith(f"{role}/")}
    with tempfile.TemporaryDirectory(prefix="rlplan-fetched-") as made:
        fetch_files(checkpoint.state.url, Path(made), own)
        yield Path(made) / role


def find_checkpoint(place: Path | str) -> Checkpoint:
    """Return the checkpoint of a folder or behind a URL: itself, or the last one of a run that is whole.

    Raises:
        FileError: There is none, it was written by another release, or it is broken.
    """
    if isinstance(place, str) and is_url(place):
        return _remote_checkpoint(place)
    path = Path(place)
    found = [path] if (path / STATE_FILE).exists() else _complete(path / CHECKPOINTS_FOLDER)
    found = found or _complete(path)
    if not found:
        allowed = "a checkpoint, or the folder of a run with `--checkpoint-every`"
        raise FileError(str(path), "holds no checkpoint", allowed=allowed)
    return _last_whole(found)


def _remote_checkpoint(url: str) -> Checkpoint:
    """Return the checkpoint behind a URL, with its small files in a folder of this machine."""
    folder = RemoteFolder(url, "--resume")
    ends = [name for name in folder.names() if name.rpartition("/")[2] == MANIFEST_FILE]
    if not ends:
        allowed = "a checkpoint, or the folder of checkpoints that `--checkpoints` named"
        raise FileError(url, "holds no checkpoint", field="--resume", allowed=allowed)
    inner = max(ends).removesuffix(MANIFEST_FILE).rstrip("/")
    there = child_url(url, inner) if inner else url.rstrip("/")
    here = Path(tempfile.mkdtemp(prefix="rlplan-checkpoint-"), there.rpartition("/")[2])
    atexit.register(shutil.rmtree, here.parent, ignore_errors=True)
    RemoteFolder(there, "--resume").fetch(here, list(SMALL_FILES))
    data = load_json(here / STATE_FILE)
    check_version(data, VERSION, child_url(there, STATE_FILE), "checkpoint")
    state = decode(CheckpointState, data, child_url(there, STATE_FILE))
    return Checkpoint(folder=here, state=replace(state, url=there))  # it may have been moved


def whole_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint that was written or read before; where it is broken by now, the one before it.

    Raises:
        FileError: It is broken, and there is none before it.
    """
    folder = checkpoint.folder
    before = [each for each in _complete(folder.parent) if each.name < folder.name]
    return _last_whole([*before, folder])


def _last_whole(folders: Sequence[Path]) -> Checkpoint:
    broken: list[FileError] = []
    for folder in reversed(folders):
        try:
            state = _checked_state(folder)
        except FileError as error:
            broken.append(error)
        else:
            passed_over = "; ".join(str(error) for error in broken)
            return Checkpoint(folder=folder.resolve(), state=state, passed_over=passed_over)
    raise broken[0]


def _checked_state(folder: Path) -> CheckpointState:
    """Return where the run is in a checkpoint, of which every file is as it was written.

    Raises:
        FileError: Names the file that is not, or that is missing.
    """
    data = load_json(folder / STATE_FILE)
    check_version(data, VERSION, str(folder / STATE_FILE), "checkpoint")
    state = decode(CheckpointState, data, str(folder / STATE_FILE))
    written, here = read_manifest(folder), checksums(folder)
    names = set(RemoteFolder(state.url).names() if state.url else ())
    # What lies there is compared where it is fetched.
    there = {name: written[name] for name in names & written.keys()}
    check_whole(str(folder), written, {**there, **here})
    return state


def check_continues(checkpoint: Checkpoint, plan: Plan, seed: int, iterations: int | None) -> None:
    """Refuse to go on with another job, or where nothing is left to do.

    Args:
        iterations: Of the run in all, those before the checkpoint included; None: its last checkpoint may be the run's.

    Raises:
        FileError: Names what differs.
    """
    file, state = str(checkpoint.folder), checkpoint.state
    if state.seed != seed:
        raise FileError(
            file, "is of another seed", field="seed", value=seed, allowed=f"{state.seed}"
        )
    if iterations is not None and state.iteration >= iterations:
        allowed = f"more than {state.iteration} iterations in all (--iterations)"
        raise FileError(file, "is done", value=iterations, allowed=allowed)
    before, now = read_yaml(Plan, checkpoint.folder / PLAN_FILE).job, plan.job
    for field in CONTINUED:
        if getattr(before, field) != getattr(now, field):
            _refuse(file, f"job.{field}", getattr(now, field), getattr(before, field))
    for role in now.models:
        started, starts = (job.weights_of(role) or RANDOM for job in (before, now))
        if started != starts:
            _refuse(file, f"job.weights.{role}", starts, started)
    if before.workload.prompts != now.workload.prompts:
        _refuse(file, "job.workload.prompts", now.workload.prompts, before.workload.prompts)
    _check_position(checkpoint, plan, before)


def _check_position(checkpoint: Checkpoint, plan: Plan, before: Job) -> None:
    """Refuse to go on in whole batches where that would repeat prompts or skip some.

    Either the job before began another number of prompts, or its samples were handed on one by one and learnt from in
    another order.
    """
    state, batches = checkpoint.state, job_of_batches(plan).workload
    if plan.flow.by_sample:
        return
    used, count = state.next_prompt - len(state.left_prompts), state.iteration * batches.prompts
    behind = [each for each in state.left_prompts if each < count]
    if used == count and behind:
        was = read_yaml(Plan, checkpoint.folder / PLAN_FILE)
        raise FileError(
            str(checkpoint.folder),
            f"has not learnt from {len(behind)} of the first {count} prompts, but from as many later ones, and whole batches "
            "begin behind them all",
            field="plan.mode",
            value=plan.mode,
            allowed=f"{was.mode}, or another mode that hands on samples one by one",
        )
    if used == count:
        return
    raise FileError(
        str(checkpoint.folder),
        f"has used up {used} prompts in {state.iteration} iterations, and not {batches.prompts} in each",
        field="job.workload.over_provisioning",
        value=plan.job.workload.over_provisioning,
        allowed=f"{before.workload.over_provisioning!r}, in the mode that it was run in",
    )


def check_checkpoints_of(out: Path, start: Checkpoint | None, url: str = "") -> bool:
    """Return whether a run goes on in the folder in which it was; refuse to mix it with another.

    Args:
        out: Folder of the run.
        start: With which it begins.
        url: Behind which its checkpoints go; empty where they go into its folder.

    Raises:
        FileError: The folder, or what is behind the URL, holds checkpoints of another run.
    """
    is_from_there = start is not None and start.state.url.rpartition("/")[0] == url
    if url and not is_from_there:
        names = RemoteFolder(url, "--checkpoints").names()
        if any(name.endswith(f"/{MANIFEST_FILE}") for name in names):
            allowed = f"--resume {url}, or another --checkpoints"
            problem = "holds checkpoints of an earlier run"
            raise FileError(url, problem, field="--checkpoints", allowed=allowed)
    folder = out.resolve() / CHECKPOINTS_FOLDER
    if start is not None and start.folder.parent == folder:
        return True
    if _complete(folder):
        allowed = f"--resume {out}, or another --out"
        raise FileError(str(out), "holds checkpoints of an earlier run", allowed=allowed)
    return False


def _name(iteration: int) -> str:
    return f"iteration-{iteration:06d}"


def _refuse(file: str, field: str, value: Any, before: Any) -> None:
    raise FileError(file, "is of another job", field=field, value=value, allowed=f"{before!r}")


def _on_all(
    method: str, folder: Path, groups: Mapping[str, WorkerGroup], url: str = ""
) -> list[Any]:
    sent: list[tuple[WorkerGroup, dict[int, Any]]] = []
    for pool, group in groups.items():
        calls = {
            rank: (StoreCall(folder=folder, rank=f"{pool}-{rank}", url=url),)
            for rank in range(group.ranks)
        }
        sent.append((group, group.send(method, calls)))
    return [each for group, references in sent for each in group.answers(references).values()]


def _complete(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob(f"iteration-*/{STATE_FILE}"))


def _discard(folder: Path) -> None:
    """Remove a checkpoint; one that is removed in part is none."""
    if folder.exists():
        hidden = folder.with_name(f".{folder.name}.old")
        folder.rename(hidden)
        shutil.rmtree(hidden)
