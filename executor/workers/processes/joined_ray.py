"""A Ray that others started: joined for one run, and left as it was."""

import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import ray
from ray._private import ray_constants, services
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

from rlplan.errors import FileError
from rlplan.executor.workers.processes.ray_session import (
    ENVIRONMENT,
    IGNORES_LOST_ANSWERS,
    LOOPBACK,
    TOKEN,
    TOKEN_FILE,
    TOKEN_MODE,
    signals_answered_by,
    signals_ignored,
    termination_as_interrupt,
)

# What workers compute with, as in a Ray of the run's own: set before their processes start.
WORKER_SETTINGS = (
    "GLIBC_TUNABLES",
    "HF_HUB_OFFLINE",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "OMP_NUM_THREADS",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
    "TOKENIZERS_PARALLELISM",
)
# Of the command's own surroundings, what is meant for collectives and libraries goes to all workers.
CARRIED_PREFIXES = ("GLOO_", "NCCL_", "TORCH_NCCL_", "VLLM_")
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
OPTION = "--address"
ALLOWED = "auto, HOST:PORT of a cluster that `ray start` began, or local for a Ray of the run's own"
# Ray itself tries for a minute and ends the process; who listens answers at once.
CONNECT_SECONDS = 5.0
NOT_LET_IN = "InvalidAuthToken"
TOKEN_VARIABLES = (TOKEN_MODE, TOKEN, TOKEN_FILE)
STANDARD_ERROR = 2
RELEASE = Path(__file__).parents[3]  # the folder of the package, with all rooms


@contextmanager
def joined_ray(address: str, modules: Sequence[Path] = ()) -> Iterator[None]:
    """Join a Ray that is running; leave it running, without anything of this process in it.

    Code of this release goes to all nodes with the run: their own may be another one, or none.

    Args:
        address: `auto`, or `HOST:PORT`.
        modules: Further Python packages that go along.

    Raises:
        FileError: Nobody answers there, or not to this process; says why.
    """
    found = _found_address(address)
    environment: dict[str, object] = {
        "env_vars": worker_environment(),
        "py_modules": [str(each) for each in (RELEASE, *modules)],
    }
    enabled, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, True
    try:
        with termination_as_interrupt() as answer, _ignoring_lost_answers():
            try:
                with signals_answered_by(answer):
                    _connect(found, address, environment)
                yield
            finally:
                with signals_ignored():
                    ray.shutdown()  # disconnects; Ray ends this job's actors and placement groups
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled


@contextmanager
def _ignoring_lost_answers() -> Iterator[None]:
    """Let Ray say nothing of answers that nobody waits for, but where the user has said otherwise."""
    new = {name: each for name, each in IGNORES_LOST_ANSWERS.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


def worker_environment() -> dict[str, str]:
    """Return the variables with which workers of a joined cluster start.

    If this process's environment names network interfaces that reach other nodes, collectives use them; else each
    worker uses the interface of its node's address.
    """
    settings = {name: os.environ.get(name, ENVIRONMENT[name]) for name in WORKER_SETTINGS}
    carried = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(CARRIED_PREFIXES) and not (name in INTERFACES and value == LOOPBACK)
    }
    given = _variables_of_the_job()
    return {name: value for name, value in (settings | carried).items() if name not in given}


def _variables_of_the_job() -> set[str]:
    """Return the variables that `ray job submit` gives this job's processes; Ray refuses to be given them twice."""
    submitted = json.loads(os.environ.get(RAY_JOB_CONFIG_JSON_ENV_VAR, "{}"))
    return set((submitted.get("runtime_env") or {}).get("env_vars") or {})


def _found_address(address: str) -> str:
    """Return the address of the cluster's control server, after checking that it listens."""
    if "://" in address:
        problem = "is of Ray's client, which runs nothing here: start the command on a node of the cluster"
        raise FileError(OPTION, problem, value=address, allowed=ALLOWED)
    found = None
    try:
        found = services.canonicalize_bootstrap_address(address)
        host, _, port = str(found).rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS):
            return str(found)
    except (OSError, ValueError) as error:
        where = (
            "" if address != "auto" else "; `auto` looks for a Ray that was started on this machine"
        )
        problem = f"no Ray answers at {found or address}: {error}{where}"
        raise FileError(OPTION, problem, value=address, allowed=ALLOWED) from None


def _connect(found: str, address: str, environment: dict[str, object]) -> None:
    printed = ""
    try:
        with tempfile.TemporaryFile() as errors:
            try:
                with _printing_to(errors.fileno()):
                    ray.init(
                        address=found,
                        log_to_driver=False,
                        logging_level=logging.ERROR,
                        runtime_env=environment,
                    )
            finally:
                errors.seek(0)
                printed = errors.read().decode(errors="replace")
    # Another version of Ray or Python there, a token that is missing or wrong, no node of the cluster here.
    except Exception as error:
        reason = " ".join(str(error).split())
        if NOT_LET_IN in printed or NOT_LET_IN in reason:
            reason = f"its token is missing here or another one ({', '.join(TOKEN_VARIABLES)})"
        problem = f"the cluster cannot be joined: {reason}"
        raise FileError(OPTION, problem, value=address) from error


@contextmanager
def _printing_to(file: int) -> Iterator[None]:
    """Let this process's standard error go into a file: Ray says there, once a second, why it is not let in."""
    own = os.dup(STANDARD_ERROR)
    os.dup2(file, STANDARD_ERROR)
    try:
        yield
    finally:
        os.dup2(own, STANDARD_ERROR)
        os.close(own)
