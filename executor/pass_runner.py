"""Run single passes of a model on this machine as a job would, for profiles."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, Self

import numpy as np
import ray

from rlplan.errors import PlanError
from rlplan.executor.control.capabilities import CPU
from rlplan.executor.control.start import join_all
from rlplan.executor.probing import WORK_SECONDS
from rlplan.executor.queue.ledger import Reader
from rlplan.executor.queue.transfer_queue import HeldPiece, SampleSize, TransferQueue
from rlplan.executor.workers.pools import WorkerGroup, fetched, start_group, start_placed_group
from rlplan.executor.workers.processes.ray_session import DEVICE, INLINE_BYTES, running_ray
from rlplan.executor.workers.worker import Worker
from rlplan.job import Job
from rlplan.probing import GENERATION_PASSES, ModelPass

WARMUP_CALLS = 2
QUEUED_ROWS = 16
HANDED_BYTES_AT_LEAST = INLINE_BYTES + 1  # smaller results go through the controller


class RayPassRunner:
    """Start workers as a job's pool does, and time passes on all of them at once.

    A context manager. While a pass of one rank runs, every device runs a copy of its own, so what
    is measured is a machine whose devices are all busy.

    Args:
        devices: Workers to start; on `cpu` each is one process on one core.
        device: `cpu` or `cuda`.
        job: Whose experience passes make; None where none of them is asked for.
        places: Options with which workers start where a cluster has places for them; None: on slots of a
            Ray of this process's own.
    """

    def __init__(
        self,
        devices: int,
        device: str = CPU,
        job: Job | None = None,
        places: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self._devices, self._device, self._job = devices, device, job
        self._places = places
        self._stack = ExitStack()
        self.start_seconds = 0.0

    def __enter__(self) -> Self:
        begin = time.monotonic()
        try:
            self._stack.enter_context(running_ray(self._devices))
            self._group = self._started()
            self._stack.callback(self._group.stop)
            join_all({self._group: self._device})
            if self._job is not None:
                self._group.call("measure_for", self._job)
        except BaseException:
            self._stack.close()
            raise
        self.start_seconds = time.monotonic() - begin
        return self

    def _started(self) -> WorkerGroup:
        if self._places is not None:
            return start_placed_group(Worker, self._places)
        return start_group(Worker, self._devices, DEVICE, cuda=self._device != CPU)

    @property
    def visible_gpus(self) -> str:
        """Return the GPUs that the workers hold, as `CUDA_VISIBLE_DEVICES` names them, by rank."""
        return ",".join(self._group.call("visible_gpus"))

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, model_pass: ModelPass, repeats: int) -> tuple[float, ...]:
        """Return the seconds of each repeat after a warm-up: of every rank, or the slowest of a group.

        Raises:
            PlanError: The pass needs more devices than there are.
        """
        if model_pass.tp * model_pass.dp > self._devices:
            raise PlanError(
                f"pass {model_pass.name} of tp {model_pass.tp} x dp {model_pass.dp} needs more than"
                f" the {self._devices} devices that were started"
            )
        if model_pass.name == "call":
            return self._time_calls(model_pass.tokens, repeats)
        if model_pass.name == "fetch":
            return self._time_fetches(model_pass.tokens, repeats)
        if model_pass.name == "queue_call":
            return time_queue_calls(model_pass.tokens, repeats)
        if model_pass.name == "weight_sync":
            runs = [self._sync_weights(model_pass) for _ in range(WARMUP_CALLS + repeats)]
            return tuple(runs[WARMUP_CALLS:])
        generates = model_pass.name in GENERATION_PASSES
        by_rank = [
            seconds for seconds in self._group.call("run_pass", (model_pass, repeats)) if seconds
        ]
        alone = model_pass.tp == 1 and (model_pass.dp == 1 or generates)
        if not alone:  # the ranks wait for each other: the slowest counts
            return tuple(max(slowest) for slowest in zip(*by_rank, strict=True))
        # Each rank runs alone, as in a task, where delays of single passes average out.
        return tuple(seconds for rank in by_rank for seconds in rank)

    def held_bytes(self) -> int:
        """Return the largest peak of device memory of any worker so far, in bytes."""
        return int(max(self._group.call("peak")))

    def loop_flops_per_second(self) -> float:
        """Return the rate of the slowest worker in the fixed loop, while all workers run it."""
        return float(min(self._group.call("time_loop")))

    def _time_calls(self, num_bytes: int, repeats: int) -> tuple[float, ...]:
        """Return the overhead of a call in seconds, on each rank, while all ranks are busy.

        All calls are sent at once, each with the output of its rank's previous call as input, as for the tasks of a
        colocated pool. The overhead is the time between the ends of two calls, less the work.
        """
        payload = np.zeros(max(num_bytes, HANDED_BYTES_AT_LEAST), dtype=np.uint8)
        held = dict.fromkeys(range(self._devices), ray.put(payload))
        reports: dict[tuple[int, int], Any] = {}
        calls = range(1 + WARMUP_CALLS + repeats)
        for number in calls:
            arguments = {rank: (reference,) for rank, reference in held.items()}
            made = self._group.send("forward_payload", arguments, num_returns=2)
            held = {rank: values for rank, (values, _) in made.items()}
            reports |= {(rank, number): report for rank, (_, report) in made.items()}
        done = fetched(reports)
        return tuple(
            seconds
            for rank in range(self._devices)
            for seconds in beside_work(
                [done[rank, number].end_seconds for number in calls], WARMUP_CALLS
            )
        )

    def _time_fetches(self, num_bytes: int, repeats: int) -> tuple[float, ...]:
        """Return the seconds in which a worker fetches a payload of another worker from the object store."""
        last = self._devices - 1
        seconds: list[float] = []
        for _ in range(WARMUP_CALLS + repeats):
            (holder,) = fetched(self._group.send("put_payload", {0: (num_bytes,)})).values()
            seconds.extend(fetched(self._group.send("fetch_payload", {last: (holder,)})).values())
        return tuple(seconds[WARMUP_CALLS:])

    def _sync_weights(self, model_pass: ModelPass) -> float:
        """Return the seconds in which every rank takes over its shard from another process."""
        exported = fetched(self._group.start("export_pass", model_pass))
        used = [rank for rank in sorted(exported) if exported[rank][0]]
        requests = []
        for rank in range(self._devices):
            # From the next copy of the model, where there is one: the shard of the same position.
            source = used[(used.index(rank) + model_pass.tp) % len(used)] if rank in used else None
            reference = exported[source][0][0] if source is not None else None
            requests.append((model_pass, [reference] if reference is not None else []))
        done = fetched(self._group.start("import_pass", requests))
        return float(max(done[rank] for rank in used) - min(exported[rank][1] for rank in used))


def time_queue_calls(num_bytes: int, repeats: int) -> tuple[float, ...]:
    """Return what writing rows to the transfer queue and reading them takes, with its ledger, as a share of a task's calls.

    Each time rows are written, read, written again with what was made of them, and read and forgotten: the mean of four.
    """
    width = max(1, num_bytes // QUEUED_ROWS)
    reference = ray.put({"values": np.zeros((QUEUED_ROWS, width), dtype=np.uint8)})
    readers = {
        "makes": Reader(keys=frozenset({"given"}), has_effects=False),
        "learns": Reader(keys=frozenset({"given", "made"}), has_effects=True),
    }
    queue = TransferQueue(readers, 1, 2 * QUEUED_ROWS * width)
    seconds = []
    try:
        for number in range(WARMUP_CALLS + repeats):
            samples = range(number * QUEUED_ROWS, (number + 1) * QUEUED_ROWS)
            queue.ledger.admit(samples, [width] * QUEUED_ROWS)
            queue.sizes |= dict.fromkeys(samples, SampleSize(0, width))
            begin = time.perf_counter()
            for key, task in (("given", "makes"), ("made", "learns")):
                held = HeldPiece(samples=samples, prompt_width=0, reference=reference)
                for write in queue.write({key: [held]}, dict.fromkeys(samples, 0)):
                    fetched({"written": write.done})
                    queue.note(write)
                lease = queue.ledger.take(task, queue.ledger.ready(task))
                fetched(queue.read(lease, 0, width).done)
                queue.ledger.secure(lease)
                queue.finish(lease)
            seconds.append((time.perf_counter() - begin) / 4)
    finally:
        queue.stop()
    return tuple(seconds[WARMUP_CALLS:])


def beside_work(end_seconds: Sequence[float], warmups: int) -> tuple[float, ...]:
    """Return the overheads of consecutive calls in seconds, given when each one ended.

    Args:
        warmups: Number of the first overheads that are left out.
    """
    return tuple(end - start - WORK_SECONDS for start, end in pairwise(end_seconds))[warmups:]
