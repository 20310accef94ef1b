"""A worker of a host pool: one process on a CPU core, without torch, that runs the pool's stages."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlplan.executor.data.batches import Columns
from rlplan.executor.data.finite import in_task
from rlplan.executor.workers.calls import HostSetup, JudgeCall, StoreCall, TaskCall, set_clock
from rlplan.executor.workers.cluster.looking import seen_job
from rlplan.executor.workers.processes.process_state import (
    clear,
    fetch,
    fetched,
    peak_bytes,
    read_random_states,
    store,
    write_random_states,
)
from rlplan.executor.workers.protocols import registered
from rlplan.executor.workers.stages import STAGES


class HostWorker:
    """Run the tasks of a host pool."""

    def __init__(self) -> None:
        self._given: HostSetup | None = None

    @registered("one-to-all")
    def prepare(self, setup: HostSetup) -> None:
        """Load what the pool's tasks need; of a process that goes on under another plan, nothing that it has."""
        set_clock(setup.clock_offsets)
        if setup == self._given:
            return
        self._given = setup
        job, folder = seen_job(setup.job, setup.folder)
        setup = replace(setup, job=job, folder=folder)
        self._stages = {
            task.name: STAGES.load(task.kind).Stage(setup, task) for task in setup.tasks
        }

    def run(self, call: TaskCall, *pieces: Columns) -> Any:
        """Run a task on this worker's rows."""
        with in_task(call.task):
            return self._stages[call.task].run(call, pieces)

    def judge(self, call: JudgeCall) -> list[float]:
        """Return the scores of responses to held-out prompts."""
        scores: list[float] = self._stages[call.task].judge(call)  # type: ignore[attr-defined]
        return scores

    @registered("one-to-all")
    def peak(self, _: None) -> int:
        """Return the largest resident bytes of this process."""
        return peak_bytes("cpu")

    @registered("one-to-all")
    def save_checkpoint(self, call: StoreCall) -> Mapping[str, str]:
        """Write this process's random states: rules may use random numbers."""
        return store(call, lambda here: write_random_states(here.random_file))

    @registered("one-to-all")
    def fetch_checkpoint(self, call: StoreCall) -> None:
        """Have a checkpoint on this node."""
        fetch(call)

    @registered("one-to-all")
    def load_checkpoint(self, call: StoreCall) -> bool:
        """Take over the random states of this rank, if there are any; nothing generates here."""
        call = fetched(call)
        if call.random_file.exists():
            read_random_states(call.random_file)
        return False

    @registered("one-to-all")
    def clear_checkpoint(self, call: StoreCall) -> None:
        """Clear away what this node has fetched of a checkpoint."""
        clear(call)
