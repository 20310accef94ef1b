"""What runs need on every node: files that travel, and storage that all of them see."""

import hashlib
import importlib.metadata
import importlib.util
import platform
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlplan.errors import FileError, RlplanError, WorkerLostError
from rlplan.executor.data.remote_folders import RemoteFolder, child_url
from rlplan.executor.data.user_files import is_in_a_file
from rlplan.executor.workers.cluster.nodes import RayNode
from rlplan.executor.workers.pools import fetched
from rlplan.files.decoding import is_url
from rlplan.files.frozen import FrozenDict
from rlplan.fingerprint import read_fingerprint
from rlplan.job import Job

LIBRARIES = ("rlplan", "ray", "torch", "transformers", "safetensors", "vllm")
# Of larger files their length is compared: weights of a model are of gigabytes.
READ_BYTES = 4 * 2**20
# A machine's clock goes on while it is up; its processes and containers share it.
BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
CLOCK_LOOKS = 5
SHARED = "a path on storage that all nodes share"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeQuery:
    """Ask a node what it sees.

    Attributes:
        paths: Files and folders whose contents count.
        token: File of this run in a folder, or behind a URL, that every node writes into; None: none is asked for.
    """

    paths: tuple[str, ...] = ()
    token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """Hold what a node answers.

    Attributes:
        versions: Of Python and libraries, without those that it lacks.
        fingerprint: Of its machine.
        signatures: By path, what stands for its contents; empty where nothing is there.
        token: What is in the run's file; empty where it is not there.
        problem: Why this node could not write beside it; empty where it could.
    """

    versions: FrozenDict[str, str]
    fingerprint: FrozenDict[str, str]
    signatures: FrozenDict[str, str] = field(default_factory=FrozenDict)
    token: str = ""
    problem: str = ""


def look(asked: NodeQuery, name: str) -> NodeAnswer:
    """Return what this machine has and sees.

    Args:
        name: Of the node, for the file that it writes.
    """
    versions = {"python": platform.python_version()}
    for library in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    token, problem = "", ""
    if asked.token is not None:
        answers = _answer_remote_token if is_url(asked.token) else _answer_token
        token, problem = answers(asked.token, name)
    return NodeAnswer(
        versions=FrozenDict(versions),
        fingerprint=read_fingerprint(),
        signatures=FrozenDict({path: signature(Path(path)) for path in asked.paths}),
        token=token,
        problem=problem,
    )


def _answer_remote_token(url: str, name: str) -> tuple[str, str]:
    there, _, file = url.rpartition("/")
    try:
        folder = RemoteFolder(there)
        token = folder.read(file)
        folder.write(f"{file}-{name}", name)
    except FileError as error:
        return "", error.problem
    return token, ""


def _answer_token(file: str, name: str) -> tuple[str, str]:
    path = Path(file)
    try:
        token = path.read_text(encoding="ascii")
        path.with_name(f"{path.name}-{name}").write_text(name, encoding="ascii")
    except OSError as error:
        return "", error.strerror or str(error)
    return token, ""


def signature(path: Path) -> str:
    """Return what stands for a file's, or a folder's, contents; empty where it is not there.

    Of files that are large it is their length.
    """
    try:
        if path.is_dir():
            inside = [each for each in sorted(path.rglob("*")) if each.is_file()]
            parts = [f"{each.relative_to(path)} {_of_file(each)}" for each in inside]
            return hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return _of_file(path)
    except OSError:
        return ""


def _of_file(path: Path) -> str:
    size = path.stat().st_size
    if size > READ_BYTES:
        return str(size)
    return f"{size} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def looked_at(nodes: Sequence[RayNode], asked: NodeQuery) -> dict[str, NodeAnswer]:
    """Return what each node sees, by its id.

    Raises:
        WorkerLostError: Code does not run on a node; names it.
    """
    waiting = {node.id: on_node(look, node, asked, node.id) for node in nodes}
    found: dict[str, NodeAnswer] = {}
    for node in nodes:
        try:
            found |= fetched({node.id: waiting[node.id]})
        except RlplanError as error:
            words = " ".join(str(error).split())
            problem = f"node {node.address} does not run what it is given: {words}"
            raise WorkerLostError(problem) from error
    return found


def on_node(function: Callable[..., Any], node: RayNode, *arguments: Any) -> Any:
    """Call a function on a node; return the reference of its answer at once."""
    strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
    remote = ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
    return remote.remote(*arguments)


def check_seen(
    nodes: Sequence[RayNode], paths: Mapping[str, Path], written: Mapping[str, Path]
) -> dict[str, NodeAnswer]:
    """Refuse nodes that do not see what workers read, or cannot share what they write; return what they see.

    Args:
        paths: By what people call them, files and folders that workers read.
        written: By what people call them, folders into which workers and this process write.

    Raises:
        FileError: Names the folder, the node, and what is wrong.
    """
    seen = looked_at(nodes, NodeQuery(paths=tuple(str(path) for path in paths.values())))
    for name, path in paths.items():
        own = signature(path)
        for node in nodes:
            there = seen[node.id].signatures[str(path)]
            if there != own:
                problem = "has other contents on" if there else "is not there on"
                _refuse(path, name, f"{problem} node {node.address}")
    for name, path in written.items():
        _check_shared(nodes, path, name)
    return seen


def _check_shared(nodes: Sequence[RayNode], folder: Path, name: str) -> None:
    """Write a token that every node is to read, and read what every node writes beside it."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    token = folder / f".rlplan-{secrets.token_hex(8)}"
    text = secrets.token_hex(16)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        token.write_text(text, encoding="ascii")
        seen = looked_at(nodes, NodeQuery(token=str(token)))
        for node in nodes:
            if seen[node.id].token != text:
                reason = seen[node.id].problem or "another file is there"
                _refuse(folder, name, f"is not shared with node {node.address}: {reason}")
            answer = token.with_name(f"{token.name}-{node.id}")
            if not answer.exists() or answer.read_text(encoding="ascii") != node.id:
                _refuse(folder, name, f"does not show here what node {node.address} writes there")
    except OSError as error:
        raise FileError(str(folder), f"cannot be written: {error.strerror}", field=name) from None
    finally:
        for left in folder.glob(f"{token.name}*"):
            left.unlink(missing_ok=True)
        for each in made:
            with suppress(OSError):
                each.rmdir()


def check_reached(nodes: Sequence[RayNode], url: str, name: str) -> None:
    """Refuse a folder behind a URL that this process, or a node, cannot write into and read from.

    Args:
        name: What people call it.

    Raises:
        FileError: Names the URL, the node, and what is wrong.
    """
    folder = RemoteFolder(url, name)
    token, text = f".rlplan-{secrets.token_hex(8)}", secrets.token_hex(16)
    answers = [f"{token}-{node.id}" for node in nodes]
    try:
        folder.write(token, text)
        if folder.read(token) != text:
            raise FileError(url, "does not give back what is written there", field=name)
        seen = looked_at(nodes, NodeQuery(token=child_url(url, token)))
        for node, answer in zip(nodes, answers, strict=True):
            if seen[node.id].token != text or folder.read(answer) != node.id:
                problem = seen[node.id].problem or "another file is there"
                words = f"is not reached by node {node.address}: {problem}"
                raise FileError(url, words, field=name)
    finally:
        for each in (token, *answers):
            with suppress(FileError):
                folder.remove(each)


def _refuse(path: Path, name: str, problem: str) -> None:
    raise FileError(str(path), problem, field=name, allowed=SHARED)


def clock_offsets(nodes: Sequence[RayNode]) -> dict[str, float]:
    """Return by node's id the seconds that its clock is ahead of this process's; nothing for this machine's nodes.

    Of several questions the one that was answered first is taken: half of the time that it took is how far off it may be.
    """
    own, _ = _clock()
    found: dict[str, tuple[float, float]] = {}
    for _ in range(CLOCK_LOOKS):
        for node in nodes:
            begin = time.monotonic()
            (answer,) = fetched({node.id: on_node(_clock, node)}).values()
            end = time.monotonic()
            boot, seconds = answer
            if boot != own or not boot:
                took, ahead = end - begin, seconds - (begin + end) / 2
                found[node.id] = min(found.get(node.id, (took, ahead)), (took, ahead))
    return {node: ahead for node, (_, ahead) in found.items()}


def _clock() -> tuple[str, float]:
    """Return what says whose monotonic clock a process has, and its seconds."""
    boot = BOOT_FILE.read_text(encoding="ascii") if BOOT_FILE.exists() else ""
    return boot, time.monotonic()


PACKAGE, BYTES = "rlplan_carried", "bytes"
# Largest file that is sent to nodes: modules beside a reward function are smaller, weights beside a tokenizer are larger.
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
    """Return the paths outside of the job's folder that a job names, which every node must see, by field."""
    return {
        name: (folder / path).resolve()
        for name, path in _named(job).items()
        if _leaves(inner_path(path, folder))
    }


def inner_path(path: Path, folder: Path) -> Path:
    """Return a path relative to a folder if it is inside the folder, else unchanged."""
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
