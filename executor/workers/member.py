"""A member of a pool: one process on one device, which meets its neighbours and times passes."""

import socket
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from torch import Tensor

from executor.probing.passes import PassBench, work_a_while
from executor.workers.calls import CallReport
from executor.workers.process_state import peak_bytes
from executor.workers.protocols import ALL_TO_ALL, ONE_TO_ALL, RANK_ZERO, registered
from rlplan.job import Job
from rlplan.probing import ModelPass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInPool:
    """Tell a worker who it is in its pool.

    Attributes:
        address: `host:port` at which the pool's ranks meet.
        device: `cpu` or `cuda`.
    """

    rank: int
    ranks: int
    address: str
    device: str


class Member:
    """Meet the ranks of a pool; measure what its passes, calls and payloads take."""

    def __init__(self) -> None:
        self._bench: PassBench | None = None
        self._job: Job | None = None

    @registered(RANK_ZERO)
    def rendezvous(self, _: None) -> str:
        """Return an address at which the pool's ranks can meet."""
        host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"{host}:{probe.getsockname()[1]}"

    @registered(ALL_TO_ALL)
    def join(self, place: RankInPool) -> None:
        """Join the pool's process group."""
        self._place = place
        self._device = torch.device(place.device)
        if place.device == "cpu":
            torch.set_num_threads(1)  # one device is one core
        else:
            torch.cuda.set_device(0)  # the one GPU that Ray lets this process see
        if place.ranks > 1:
            dist.init_process_group(
                "gloo" if place.device == "cpu" else "nccl",
                init_method=f"tcp://{place.address}",
                rank=place.rank,
                world_size=place.ranks,
            )

    @registered(ONE_TO_ALL)
    def measure_for(self, job: Job) -> None:
        """Take the job whose experience passes make."""
        self._job = job

    @registered(ONE_TO_ALL)
    def run_pass(self, request: tuple[ModelPass, int]) -> tuple[float, ...]:
        """Time a pass of a model on this rank; return the seconds of each repeat."""
        return self._passes().run(*request)

    def _passes(self) -> PassBench:
        if self._bench is None:
            self._bench = PassBench(self._place.rank, self._place.ranks, self._device, self._job)
        return self._bench

    @registered(ONE_TO_ALL)
    def export_pass(self, model_pass: ModelPass) -> tuple[list[Any], float]:
        """Put this rank's shard of a probed model out; return its reference and when that began."""
        return self._passes().export_weights(model_pass)

    @registered(ALL_TO_ALL)
    def import_pass(self, request: tuple[ModelPass, list[Any]]) -> float:
        """Take over another rank's shard of a probed model; return when that was done."""
        return self._passes().import_weights(*request)

    @registered(ALL_TO_ALL)
    def forward_payload(
        self, values: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], CallReport]:
        """Work a while on what the call before made, and hand as many bytes on, as tasks do."""
        start = time.time()
        work_a_while()
        return np.zeros_like(values), CallReport(start_seconds=start, end_seconds=time.time())

    @registered(RANK_ZERO)
    def put_payload(self, num_bytes: int) -> list[Any]:
        """Put a payload into the object store; return its reference."""
        return [ray.put(np.zeros(num_bytes, dtype=np.uint8))]

    @registered(RANK_ZERO)
    def fetch_payload(self, holder: list[Any]) -> float:
        """Return the seconds in which another worker's payload comes here."""
        start = time.perf_counter()
        torch.tensor(ray.get(holder[0]), device=self._device)
        self._finish()
        return time.perf_counter() - start

    @registered(ONE_TO_ALL)
    def peak(self, _: None) -> int:
        """Return the largest bytes that this process has held on its device."""
        return peak_bytes(self._device.type)

    def _tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Return a copy on the device; arrays of the object store cannot be written."""
        return torch.tensor(array, device=self._device)

    def _finish(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
