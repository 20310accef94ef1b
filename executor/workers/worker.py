"""The worker: one process a rank, with the models of its pool."""

import importlib
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import torch
import torch.distributed as dist
from torch import Tensor

from rlplan.dataflow import Task
from rlplan.errors import UserError
from rlplan.executor.data.batches import Columns
from rlplan.executor.data.finite import in_task
from rlplan.executor.model.building import causal_lm_class, model_config, weights_folder
from rlplan.executor.parallel.meshes import RankMesh, make_mesh, wait_for_device
from rlplan.executor.parallel.positions import (
    RankPositions,
    generation_positions,
    shares_weights,
    task_positions,
)
from rlplan.executor.probing import PassBench, loop_flops_per_second, work_a_while
from rlplan.executor.weights.shard import ModelShard, build_shard, freeze_collector, thaw_collector
from rlplan.executor.weights.transition import PoolTransition, ShardLayout, shard_layout_of
from rlplan.executor.workers.calls import (
    GENERATOR_FOLDER,
    CallReport,
    EvaluationCall,
    PoolSetup,
    RankInPool,
    RollCall,
    Segment,
    SegmentCall,
    StoreCall,
    TaskCall,
    now_seconds,
    set_clock,
)
from rlplan.executor.workers.cluster.looking import seen_job
from rlplan.executor.workers.processes.process_state import (
    clear,
    fetch,
    fetched,
    forget_peak,
    give_memory_back,
    peak_bytes,
    random_states,
    read_random_states,
    set_random_states,
    store,
    write_random_states,
)
from rlplan.executor.workers.protocols import registered
from rlplan.executor.workers.stages import STAGES
from rlplan.executor.workers.transports import TRANSPORTS
from rlplan.job import Job
from rlplan.probing import ModelPass


class PoolModels:
    """Build and hold a rank's shards of all models of its pool.

    Every rank of the pool builds its own at the same time, since groups of ranks are made together.

    Attributes:
        shards: By role, the shard in the layout in which the model is trained or infers.
        transition: What brings the weights to the generate layout inside this pool, if they differ.
    """

    def __init__(self, setup: PoolSetup, rank: int, ranks: int, device: torch.device) -> None:
        self.setup, self.device = setup, device
        self.shards: dict[str, ModelShard] = {}
        self.transition: PoolTransition | None = None
        self._rank, self._ranks = rank, ranks
        self._meshes: dict[tuple[RankPositions, int], RankMesh] = {}
        self._generator: ModelShard | None = None

    @property
    def generator(self) -> ModelShard:
        """Return the shard that generates."""
        assert self._generator is not None, "this pool generates nothing"
        return self._generator

    @property
    def generates_behind(self) -> bool:
        """Tell whether this pool generates with weights older than those that are trained."""
        return self._generator is not None and self.setup.plan.flow.is_batch_ahead

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Return a copy on the device; arrays of the object store are read-only."""
        return torch.tensor(array, device=self.device)

    def shard_of(self, task: Task) -> ModelShard:
        """Return the shard of a task's role, adapters off where it wants that; built in the task's layout if need be."""
        if task.role not in self.shards:
            positions = task_positions(self.setup.plan.tasks[task.name], self._ranks)
            self.shards[task.role] = self._build(task, positions)
        shard = self.shards[task.role]
        return shard.without_adapters() if task.without_adapter else shard

    def build_generator(self, task: Task) -> None:
        """Build the shard that generates, and what brings the weights to it; or share a shard."""
        plan, shard = self.setup.plan, self.shards.get(task.role)
        if shard is not None and shares_weights(plan):
            self._generator = shard
            return
        # Within a pool its weights come from those that are trained.
        positions, filled = generation_positions(plan), shard is None
        self._generator = self._build(task, positions, filled=filled)
        if shard is not None:
            self.transition = PoolTransition(plan, shard, self._generator)
            self.transition.release()

    def _build(self, task: Task, positions: RankPositions, *, filled: bool = True) -> ModelShard:
        job, layout = self.setup.plan.job, self.setup.plan.tasks[task.name]
        rate, settings = None, job.hyperparameters
        if task.trains:
            rate = settings.learning_rate if task.head == "lm" else settings.critic_learning_rate
        shard = build_shard(
            job.architecture(task.role),
            task.head,
            self._mesh(positions, layout.ep),
            role=task.role,
            seed=self.setup.seed,
            precision=job.precision or "fp32",
            adapter=job.adapter(task.role) if task.trains else None,
            folder=weights_folder(job, task.role),
            filled=filled,
            learning_rate=rate,
            layout=layout,
        )
        if shard.trainer is not None:
            shard.trainer.configure(settings, job.workload.updates * job.workload.epochs)
        if layout.offload and not task.generates:
            shard.offload()
        return shard

    def _mesh(self, positions: RankPositions, ep: int) -> RankMesh:
        if (positions, ep) not in self._meshes:
            made = make_mesh(positions, self._rank, self.device, ep)
            self._meshes[positions, ep] = made
        return self._meshes[positions, ep]


def as_array(values: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor's values on the host, in the form that calls pass."""
    return values.detach().cpu().numpy()


# Of gloo and NCCL: over which interface the ranks of a pool reach each other.
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
# Ranks that may knock at the meeting point at once.
LARGEST_POOL = 1024


class Worker:
    """Run the tasks of a pool on one device; measure what its passes, calls and payloads take."""

    def __init__(self) -> None:
        self._bench: PassBench | None = None
        self._job: Job | None = None
        self._begun: dict[str, Any] | None = None  # random states, as they were before any plan

    @registered("rank-zero")
    def rendezvous(self, _: None) -> str:
        """Return an address at which the pool's ranks can meet, and begin to listen there alone."""
        host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._listener = socket.create_server((host, 0), backlog=LARGEST_POOL)
        return f"{host}:{self._listener.getsockname()[1]}"

    @registered("all-to-all")
    def join(self, place: RankInPool) -> None:
        """Join the pool's process group."""
        self._place = place
        self._device = torch.device(place.device)
        if place.device == "cpu":
            torch.set_num_threads(1)  # one device is one core
        else:
            torch.cuda.set_device(0)  # the one GPU that Ray lets this process see
            torch.cuda.init()  # type: ignore[no-untyped-call]
        if self._begun is None:
            self._begun = random_states()
        if place.ranks > 1:
            _take_interface()
            dist.init_process_group(
                "gloo" if place.device == "cpu" else "nccl",
                store=self._meeting_point(place),
                rank=place.rank,
                world_size=place.ranks,
            )

    def _meeting_point(self, place: RankInPool) -> Any:
        """Return the store of the pool's ranks; torch's own would listen on all interfaces."""
        host, _, port = place.address.rpartition(":")
        leads = place.rank == 0
        return dist.TCPStore(  # type: ignore[attr-defined]
            host,
            int(port),
            place.ranks,
            is_master=leads,
            master_listen_fd=self._listener.detach() if leads else None,
        )

    @registered("one-to-all")
    def load(self, given: tuple[Job, Path]) -> None:
        """Load the code of a job's models, of what works with them and of checkpoints, which a first plan would load on its way.

        What is wrong with a model `prepare` says.
        """
        job, _ = seen_job(*given)
        for role in job.models:
            with suppress(UserError):
                causal_lm_class(model_config(job, role))
        for kind in STAGES.names():
            STAGES.load(kind)
        importlib.import_module("rlplan.executor.weights.stored_shards")

    @registered("one-to-all")
    def leave(self, _: None) -> None:
        """Drop the models and leave the pool's process group: a pool of another plan takes this process.

        Random numbers, the peak of memory and Python's collector are then as in a process that has just started.
        """
        begun = self._begun
        vars(self).clear()  # models, stages and what moves weights
        self._begun, self._bench, self._job = begun, None, None
        leave_process_group()
        thaw_collector()
        give_memory_back()
        forget_peak()
        if begun is not None:  # else it has joined no pool yet
            set_random_states(begun)

    @registered("one-to-all")
    def measure_for(self, job: Job) -> None:
        """Take the job whose experience passes make."""
        self._job = job

    @registered("one-to-all")
    def run_pass(self, request: tuple[ModelPass, int]) -> tuple[float, ...]:
        """Time a pass of a model on this rank; return the seconds of each repeat."""
        return self._passes().run(*request)

    def _passes(self) -> PassBench:
        if self._bench is None:
            self._bench = PassBench(self._place.rank, self._place.ranks, self._device, self._job)
        return self._bench

    @registered("one-to-all")
    def visible_gpus(self, _: None) -> str:
        """Return the GPUs that this process sees, as Ray has named them."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

    @registered("one-to-all")
    def time_loop(self, _: None) -> float:
        """Return the floating-point operations a second that this device does in the fixed loop."""
        return loop_flops_per_second(self._device)

    @registered("one-to-all")
    def export_pass(self, model_pass: ModelPass) -> tuple[list[Any], float]:
        """Export this rank's shard of a probed model; return its reference and the start time."""
        return self._passes().export_weights(model_pass)

    @registered("all-to-all")
    def import_pass(self, request: tuple[ModelPass, list[Any]]) -> float:
        """Import another rank's shard of a probed model; return the end time."""
        return self._passes().import_weights(*request)

    @registered("all-to-all")
    def forward_payload(
        self, values: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], CallReport]:
        """Work a while on the output of the previous call, and return as many bytes, as tasks do."""
        start = now_seconds()
        work_a_while()
        return np.zeros_like(values), CallReport(start_seconds=start, end_seconds=now_seconds())

    @registered("rank-zero")
    def put_payload(self, num_bytes: int) -> list[Any]:
        """Put a payload into the object store; return its reference."""
        return [ray.put(np.zeros(num_bytes, dtype=np.uint8))]

    @registered("rank-zero")
    def fetch_payload(self, holder: list[Any]) -> float:
        """Return the seconds to fetch another worker's payload."""
        start = time.perf_counter()
        torch.tensor(ray.get(holder[0]), device=self._device)
        wait_for_device(self._device)
        return time.perf_counter() - start

    @registered("one-to-all")
    def peak(self, _: None) -> int:
        """Return the peak of this process's memory on its device, in bytes."""
        return peak_bytes(self._device.type)

    @registered("one-to-all")
    def prepare(self, setup: PoolSetup) -> None:
        """Build this rank's shards of the pool's models, and the groups of ranks that tasks need."""
        set_clock(setup.clock_offsets)
        job, folder = seen_job(setup.plan.job, setup.folder)
        setup = replace(setup, plan=replace(setup.plan, job=job), folder=folder)
        self._setup = setup
        self._models = PoolModels(setup, self._place.rank, self._place.ranks, self._device)
        self._endpoint = TRANSPORTS.load(setup.plan.transport).Endpoint(self._models)
        # What is trained is built first, and what generates last: others take over their shards.
        tasks = sorted(setup.tasks, key=lambda task: (task.generates, not task.trains))
        self._stages = {
            task.name: STAGES.load(task.kind).Stage(self._models, task) for task in tasks
        }
        freeze_collector()

    def run(self, call: TaskCall, *pieces: Columns) -> Any:
        """Run a task on this rank's rows."""
        with in_task(call.task):
            return self._stages[call.task].run(call, pieces)

    def roll(self, call: RollCall, *prompts: Columns) -> Any:
        """Continue the responses that this rank's replica generates."""
        with in_task(call.task):
            return self._stages[call.task].roll(call, prompts)  # type: ignore[attr-defined]

    def play_segment(self, call: SegmentCall, *prompts: Columns) -> Segment:
        """Continue the batch that this rank's replica generates, and keep ended responses."""
        played: Segment = self._stages[call.task].play_segment(call, prompts)  # type: ignore[attr-defined]
        return played

    def evaluate(self, call: EvaluationCall, prompts: Columns) -> Any:
        """Return this replica's responses to held-out prompts, and a report."""
        with in_task(call.task):
            return self._stages[call.task].evaluate(call, prompts)  # type: ignore[attr-defined]

    @registered("one-to-all")
    def reshard(self, _: None) -> CallReport:
        """Gather the generate shard from the training weights of this pool."""
        assert self._models.transition is not None
        start = now_seconds()
        self._models.transition.run()
        wait_for_device(self._device)
        moved = {
            "received_bytes_max": float(self._models.transition.received_bytes),
            "redundant_bytes_max": float(self._models.transition.redundant_bytes),
            "buffer_bytes_max": float(self._models.transition.buffer_bytes),
        }
        return CallReport(start_seconds=start, end_seconds=now_seconds(), metrics=moved)

    @registered("one-to-all")
    def shard_layout(self, _: None) -> ShardLayout:
        """Return the layout of this rank's generate shard, without the values."""
        return shard_layout_of(self._models.generator)

    @registered("one-to-all")
    def send_weights(self, request: Any) -> tuple[Any, CallReport]:
        """Hand out this rank's part of the trained weights for another pool."""
        return self._endpoint.send(request)

    @registered("one-to-all")
    def receive_weights(self, request: Any) -> CallReport:
        """Write this rank's generate shard from what another pool's ranks sent."""
        return self._endpoint.receive(request)

    @registered("one-to-all")
    def weights(self, role: str) -> dict[str, np.ndarray[Any, Any]]:
        """Return this rank's parts of a role's weights by name (`generator`: those it generates with)."""
        shard = self._models.generator if role == "generator" else self._models.shards[role]
        values = as_array(shard.flat.whole_values().clone())  # what numpy sees cannot be given back
        return {
            e.name: values[e.start : e.stop].reshape(e.shape).copy() for e in shard.flat.entries
        }

    @registered("one-to-all")
    def save_checkpoint(self, call: StoreCall) -> Mapping[str, str]:
        """Write this rank's parts of the models that are trained here, and its random states.

        Where what generates is an update behind, its weights too.

        Returns:
            Checksums of what was sent to a URL, by its path; none of what lies in a folder.
        """
        return store(call, self._write_parts)

    def _write_parts(self, call: StoreCall) -> None:
        from rlplan.executor.weights.stored_shards import save_shard  # noqa: PLC0415  # slow import

        write_random_states(call.random_file)
        for role, shard in self._trained():
            with shard.states_on_device():
                save_shard(shard, call.folder / role)
        if self._models.generates_behind:
            save_shard(self._models.generator, call.folder / GENERATOR_FOLDER)

    @registered("one-to-all")
    def fetch_checkpoint(self, call: StoreCall) -> None:
        """Fetch a checkpoint to this node."""
        fetch(call)

    @registered("one-to-all")
    def clear_checkpoint(self, call: StoreCall) -> None:
        """Remove what this node has fetched of a checkpoint."""
        clear(call)

    @registered("one-to-all")
    def load_checkpoint(self, call: StoreCall) -> bool:
        """Load this rank's parts of the models, and its random states if there are any.

        Returns:
            Whether it now has the weights, an update behind, with which the next batch is generated.
        """
        from rlplan.executor.weights.stored_shards import load_shard  # noqa: PLC0415  # slow import

        call = fetched(call)
        for role, shard in self._trained():
            with shard.states_on_device():
                load_shard(shard, call.folder / role)
        if call.random_file.exists():
            read_random_states(call.random_file)
        folder = call.folder / GENERATOR_FOLDER
        if not (self._models.generates_behind and folder.exists()):
            return False
        load_shard(self._models.generator, folder)
        return True

    def _trained(self) -> list[tuple[str, ModelShard]]:
        shards = self._models.shards.items()
        return [(role, shard) for role, shard in shards if shard.trainer is not None]


def leave_process_group() -> None:
    """Leave the pool's process group, and what torch's distributed tensors remember of its meshes."""
    if dist.is_initialized():
        dist.destroy_process_group()
    if "torch.distributed.tensor" in sys.modules:  # else nothing is remembered
        from torch.distributed.tensor.debug import (  # noqa: PLC0415  # slow import
            _clear_sharding_prop_cache,  # torch names it for this, and has no other
        )

        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


def _take_interface() -> None:
    """Let collectives meet on the interface of the node's address, where the environment names none."""
    address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    found = [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if address in [each.address for each in addresses]
    ]
    for variable in INTERFACES if found else ():
        os.environ.setdefault(variable, found[0])
