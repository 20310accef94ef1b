"""Tracking services that take a run's metrics, one file each; the name that a user types is the file's name.

Every file has `PACKAGE`, what it imports, and `start(run) -> Service`. Nothing is imported before a run asks for it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from rlplan.errors import UserError
from rlplan.plug_ins import PlugIns

# What a run is filed under where the service's own variables do not say.
PROJECT = "rlplan"
# How long a service may take at the end of a run for what it has not sent by then.
CLOSE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """Say what a service is told of a run at its start.

    Attributes:
        name: For people.
        folder: The run's, for what the service keeps on disk.
        configuration: The plan and its job, as a file would hold them.
        run_id: Of the service's run that is gone on with; None: a new one.
    """

    name: str
    folder: Path
    configuration: Mapping[str, Any]
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRow:
    """Hold the metrics of an iteration, as `metrics.jsonl` has them.

    Attributes:
        time_seconds: When it had ended, since 1970.
    """

    iteration: int
    time_seconds: float
    metrics: Mapping[str, float]


class Service(Protocol):
    """A service's run that takes metrics; each method may raise whatever the service's package does.

    Attributes:
        run_id: With which a later run goes on in it.
        where: Where people find it.
    """

    run_id: str
    where: str

    def log(self, rows: Sequence[TrackedRow]) -> None:
        """Take iterations; after workers were lost, numbers come a second time."""

    def close(self, *, failed: bool) -> None:
        """End the service's run.

        Args:
            failed: Whether the run ended before its time.
        """


SERVICES = PlugIns[Any](__name__, __path__, kind="tracking service")


def check_services(names: Iterable[str]) -> None:
    """Refuse services that there are not, or whose package is not installed.

    Raises:
        UnknownNameError: No file of that name exists.
        UserError: Says how to install the package.
    """
    for name in names:
        package = SERVICES.load(name).PACKAGE
        found = find_spec(package)
        # A folder of that name, such as wandb keeps its files in, is found as well, and has no origin.
        if found is None or found.origin is None:
            raise UserError(
                f"--log-to {name} needs the package {package}; install it with: pip install 'rlplan[{name}]'"
            )
