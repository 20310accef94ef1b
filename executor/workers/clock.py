"""The clock of a run's reports: that of the controller's machine, on every node."""

import time
from collections.abc import Mapping

import ray

_ahead = {"seconds": 0.0}


def set_clock(offsets: Mapping[str, float]) -> None:
    """Take what this node's monotonic clock is ahead of the controller's, by node's id; 0 where none is given."""
    if offsets:
        _ahead["seconds"] = offsets.get(ray.get_runtime_context().get_node_id(), 0.0)


def now_seconds() -> float:
    """Return the seconds of the controller's monotonic clock."""
    return time.monotonic() - _ahead["seconds"]
