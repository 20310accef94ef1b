"""Check this machine, and start the worker groups of a plan's pools, all at once."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from rlplan.dataflow import Task
from rlplan.errors import DivergedError, PlanError, RlplanError, UserError, WorkerLostError
from rlplan.executor.control.capabilities import CPU
from rlplan.executor.control.weights import end_ids_of
from rlplan.executor.data.workload import PromptBatches, job_of_batches
from rlplan.executor.rollout.vllm_limits import VLLM, check_vllm_is_here
from rlplan.executor.workers.calls import HostSetup, PoolSetup, RankInPool
from rlplan.executor.workers.cluster.looking import clock_offsets
from rlplan.executor.workers.cluster.nodes import Placed
from rlplan.executor.workers.host_worker import HostWorker
from rlplan.executor.workers.pools import (
    LOSS_SHOWS_SECONDS,
    KeptWorkers,
    WorkerGroup,
    end_placed_groups,
    fetched,
    start_group,
    start_placed_group,
)
from rlplan.executor.workers.processes.ray_session import DEVICE, HOST, end_workers
from rlplan.executor.workers.replicas import ReplicaGroup
from rlplan.executor.workers.wanted import Wanted
from rlplan.executor.workers.worker import Worker
from rlplan.plan import Plan, ResourcePool
from rlplan.replicas import GENERATE, with_replicas


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """Name what may only take so long, and the option that says how long."""

    what: str
    option: str


START = TimeLimit("the start of workers and their models", "--start-limit")
ITERATION = TimeLimit("an iteration, or its checkpoint,", "--iteration-limit")


def device_type(device: str) -> str:
    """Return torch's name of a device sheet's kind: every sheet but the host's own core is a GPU."""
    return CPU if device == CPU else "cuda"


def gpu_names() -> tuple[str, ...]:
    """Return the names of this machine's GPUs, in their order."""
    return tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))


def check_machine(plan: Plan) -> None:
    """Refuse a plan that wants more GPUs than this machine has, or an engine that it has not.

    Raises:
        PlanError: Says what is wanted and here.
    """
    check_vllm_is_here(plan)
    wanted = sum(
        pool.gpus for pool in plan.pools if not pool.is_host and device_type(pool.device) != CPU
    )
    if not wanted:
        return
    here = torch.cuda.device_count()
    if wanted > here:
        raise PlanError(f"pools want {wanted} GPUs, this machine has {here}; run a plan for `cpu`")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComingReplicas:
    """Say that replicas of the generating pool come and go.

    Attributes:
        schedule: How many are wanted.
        iteration: With which the run begins.
    """

    schedule: Wanted
    iteration: int


@contextmanager
def started_groups(  # noqa: PLR0913, PLR0917 -- all that a start is made of
    plan: Plan,
    tasks: tuple[Task, ...],
    prompts: PromptBatches,
    seed: int,
    limit_seconds: float | None = None,
    placed: Placed | None = None,
    limited: TimeLimit = START,
    kept: KeptWorkers | None = None,
    coming: ComingReplicas | None = None,
) -> Iterator[Mapping[str, WorkerGroup]]:
    """Start the workers of all pools with their models; end them afterwards.

    Args:
        limit_seconds: Of the start; None: there is none.
        placed: Where they start in a cluster that was joined; None: on slots of a Ray of the run's own.
        limited: Who says how long the start may take.
        kept: Takes workers back where all goes well, for the next plan, and has those of the plan before; None: all are
            started, and ended.
        coming: Replicas that come and go; None: all stay.

    Raises:
        WorkerLostError: Names the workers that have ended where something failed, at the start or later.
    """
    groups: dict[str, WorkerGroup] = {}
    try:
        if placed is None:
            _check_slots(plan)
        with within(limit_seconds, limited) as is_late:
            if kept is not None:
                _clear(kept, is_late)
            if coming is not None:
                groups[plan.tasks[GENERATE].pool] = started_replicas(plan, coming, placed=placed)
            _start_pools(plan, prompts.folder, placed, kept, groups)
            offsets = clock_offsets(placed.nodes) if placed is not None else {}
            prepare_groups(plan, tasks, prompts, seed, groups, offsets)
        yield groups
    except (RlplanError, RayError) as error:
        told = isinstance(error, (UserError, WorkerLostError, DivergedError))
        lost = "" if told else _lost(groups, placed.addresses if placed is not None else {})
        _stop(groups)
        if not lost:
            raise
        raise WorkerLostError(f"{lost} ended: killed, out of memory or crashed") from error
    except Exception:
        _stop(groups)
        raise
    else:  # an interruption ends Ray and all workers with it, or Ray has ended and would not answer
        if kept is None:
            _stop(groups)
        else:
            kept.take_back(_without_replicas(groups))


def _without_replicas(groups: Mapping[str, WorkerGroup]) -> list[WorkerGroup]:
    """Return the groups that the next plan may have, and end replicas that come and go: each starts its own processes."""
    for group in groups.values():
        if isinstance(group, ReplicaGroup):
            group.stop()
    return [group for group in groups.values() if not isinstance(group, ReplicaGroup)]


def _clear(kept: KeptWorkers, is_late: Callable[[], bool]) -> None:
    """Let kept workers drop what they hold; where one cannot all are ended, and new ones may start if there is time left.

    Raises:
        WorkerLostError: There is none: they were ended for it, and what starts now nobody would end.
    """
    kept.clear()
    if is_late():
        raise WorkerLostError("workers of the plan before did not leave it")


def _start_pools(
    plan: Plan,
    folder: Path,
    placed: Placed | None,
    kept: KeptWorkers | None,
    groups: dict[str, WorkerGroup],
) -> None:
    """Start the workers of all pools, and note each pool's as soon as they start.

    Where they are kept they are waited for: what takes no time under the next plan is told from what is done with every plan.

    Args:
        folder: Of the job's files.
    """
    for pool in (each for each in plan.pools if not each.is_host and each.name not in groups):
        groups[pool.name] = _started(pool, placed, kept)
    for pool in (each for each in plan.pools if each.is_host):
        groups[pool.name] = _started(pool, placed, kept)
    if kept is not None:
        kept.wait(plan.job, folder)


def _started(pool: ResourcePool, placed: Placed | None, kept: KeptWorkers | None) -> WorkerGroup:
    """Start a pool's workers, or take those that were kept."""
    worker = HostWorker if pool.is_host else Worker
    if placed is not None:
        return start_placed_group(worker, placed.of_pool(pool.name, pool.gpus))
    if pool.is_host:
        if kept is not None:
            return kept.start_group(pool.gpus, host=True)
        return start_group(worker, pool.gpus, HOST)
    cuda = device_type(pool.device) != CPU
    if kept is not None:
        return kept.start_group(pool.gpus, cuda=cuda)
    return start_group(worker, pool.gpus, DEVICE, cuda=cuda)


def started_replicas(
    plan: Plan,
    coming: ComingReplicas,
    start: Callable[[], WorkerGroup] | None = None,
    placed: Placed | None = None,
) -> ReplicaGroup:
    """Start the replicas with which a run begins.

    Args:
        start: Starts the processes of one; None: on slots of this machine's Ray, or where they are placed.
        placed: Where they start in a cluster that was joined; None: here.

    Raises:
        WorkerLostError: The nodes of all of them are lost meanwhile.
    """
    generate, pool = plan.tasks[GENERATE], plan.pool_of(GENERATE)
    size, cuda = generate.tp * generate.pp, device_type(pool.device) != CPU
    places = None if placed is None else placed.replicas

    def begun(number: int) -> WorkerGroup | None:
        if start is not None:
            return start()
        if places is None:
            return start_group(Worker, size, DEVICE, cuda=cuda)
        options = places.find(number)
        return None if options is None else start_placed_group(Worker, options)

    group = ReplicaGroup(Worker, begun, coming.schedule, generate.dp, size, places)
    first = range(coming.schedule.at(coming.iteration)) if places is None else places.placed
    for number in first:
        if group.begin(number) is not None:
            group.admit(number)
    if not group.members:
        raise WorkerLostError("no replica starts: the nodes that were found for them are lost")
    return group


def may_keep_workers(plan: Plan) -> bool:
    """Tell whether the workers of a plan drop all that they hold: neither an engine of its own, nor environments that play on."""
    return plan.tasks["actor.generate"].engine != VLLM and not plan.job.environments


def _check_slots(plan: Plan) -> None:
    """Refuse pools that a Ray of this machine has too few slots for: their workers would wait for ever.

    Raises:
        PlanError: Says what is wanted and there.
    """
    session: Any = ray
    there = session.cluster_resources()
    for slot, on_hosts in ((DEVICE, False), (HOST, True)):
        wanted = sum(pool.gpus for pool in plan.pools if pool.is_host == on_hosts)
        if wanted > there.get(slot, 0):
            have = f"{there.get(slot, 0):g}"
            raise PlanError(
                f"pools want {wanted} workers of kind {slot}, this Ray has places for {have}"
            )


@contextmanager
def within(limit_seconds: float | None, limited: TimeLimit) -> Iterator[Callable[[], bool]]:
    """End all workers if the block takes longer than its limit: a hanging worker would be waited for for ever.

    Yields:
        A function that tells whether it did; ask it before going on without workers that ended.

    Raises:
        WorkerLostError: It took longer; says what.
    """
    if limit_seconds is None:
        yield lambda: False
        return
    late = threading.Event()

    def end() -> None:
        late.set()
        if not end_placed_groups():
            end_workers()

    timer = threading.Timer(limit_seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield late.is_set
    except (RlplanError, RayError) as error:
        if isinstance(error, UserError) or not late.is_set():
            raise
        what = f"{limited.what} took longer than {limit_seconds:g} s ({limited.option})"
        raise WorkerLostError(f"{what}: a worker hangs") from error
    finally:
        timer.cancel()


def _stop(groups: Mapping[str, WorkerGroup]) -> None:
    for group in groups.values():
        group.stop()


def _lost(groups: Mapping[str, WorkerGroup], addresses: Mapping[tuple[str, int], str]) -> str:
    """Name the workers of the first pool that has lost some, with their nodes; empty where all are there."""
    for pool, group in groups.items():
        ranks = group.lost_ranks(LOSS_SHOWS_SECONDS)
        if ranks:
            words = f"pool {pool}: {', '.join(f'worker {rank}' for rank in ranks)}"
            nodes = dict.fromkeys(addresses[pool, rank] for rank in ranks if addresses)
            return f"{words} on node {', '.join(nodes)}" if nodes else words
    return ""


def join_all(groups: Mapping[WorkerGroup, str]) -> None:
    """Let the ranks of every group meet; `groups` maps each to its device type."""
    points = fetched({group: group.start("rendezvous")[0] for group in groups})
    waiting: dict[Any, Any] = {}
    for group, device in groups.items():
        members = [
            RankInPool(rank=rank, ranks=group.ranks, address=points[group], device=device)
            for rank in range(group.ranks)
        ]
        waiting |= {(group, rank): ref for rank, ref in group.start("join", members).items()}
    fetched(waiting)


def prepare_groups(
    plan: Plan,
    tasks: tuple[Task, ...],
    prompts: PromptBatches,
    seed: int,
    groups: Mapping[str, WorkerGroup],
    clock_offsets: Mapping[str, float] | None = None,
) -> None:
    """Let the workers of all pools meet and build their models.

    Args:
        clock_offsets: By node's id, the seconds that its clock is ahead of this process's.
    """
    devices = {pool.name: device_type(pool.device) for pool in plan.pools if not pool.is_host}
    parts = {
        name: list(group.members.values()) if isinstance(group, ReplicaGroup) else [group]
        for name, group in groups.items()
    }
    join_all({each: device for name, device in devices.items() for each in parts[name]})
    waiting: dict[Any, Any] = {}
    folder = prompts.folder.resolve()
    for pool in plan.pools:
        here = tuple(task for task in tasks if plan.tasks[task.name].pool == pool.name)
        request: Any = PoolSetup(
            plan=plan,
            tasks=here,
            seed=seed,
            end_ids=end_ids_of(plan.job, prompts.tokenizer.eos_id),
            rows=prompts.rows
            if any(task.generates for task in here) and plan.job.environments
            else [],
            folder=folder,
            clock_offsets=clock_offsets or {},
        )
        if pool.is_host:
            job = job_of_batches(plan)
            request = HostSetup(
                job=job,
                tasks=here,
                rows=prompts.rows,
                folder=folder,
                held_out=prompts.held_out.rows if prompts.held_out is not None else (),
                clock_offsets=clock_offsets or {},
            )
        group = groups[pool.name]
        if isinstance(group, ReplicaGroup):
            request = replace(request, plan=with_replicas(plan, 1))
            group.setup, group.device = request, devices[pool.name]
        for number, part in enumerate(parts[pool.name]):
            references = part.start("prepare", request)
            waiting |= {(pool.name, number, rank): each for rank, each in references.items()}
    fetched(waiting)


def slowest_loop(groups: Sequence[WorkerGroup]) -> float:
    """Return what the slowest device does in the fixed loop, in FLOP/s, while all of them are in it."""
    started = [(group, group.start("time_loop")) for group in groups]
    return min(float(each) for group, sent in started for each in group.answers(sent).values())
