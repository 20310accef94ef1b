"""ONE_TO_ALL: all ranks get one argument, and all results count."""

from rlplan.executor.workers.protocols import from_all, to_all

distribute, collect = to_all, from_all
