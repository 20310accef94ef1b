"""Rule tasks: a reward function on CPU workers, or a service that is called, after generation or streamed behind it."""

import math
from dataclasses import replace

import numpy as np

from rlplan.estimate import ZERO, Estimate, Source
from rlplan.plan import HOST_DEVICE
from rlplan.profiles.analytic.efficiencies import load_host_costs
from rlplan.profiles.facts import DeviceFacts
from rlplan.results.forecast import CALL
from rlplan.simulator.columns import Floats
from rlplan.simulator.costs.taskcost import TaskCost, cost_of, data_bytes, times
from rlplan.simulator.memory.terms import TaskMemory
from rlplan.simulator.placed import PlacedTask


def rule_cost(placed: PlacedTask) -> TaskCost:
    """Return what the job's functions cost: seconds per sample, samples spread over the workers.

    A function sees one response at a time, so that the samples of a prompt may be on several workers. Where a service
    answers, as many calls run as it takes at once, whatever the cores.
    Streamed ones cost at least the call of the response that ends last; what others are still waiting
    for is `with_backlog`'s.
    """
    job, workers = placed.job, _workers(placed)
    assert job.rewards is not None, "a rule task comes with rewards"
    samples = 1 if job.rewards.streamed else math.ceil(job.workload.sequences / workers)
    num_bytes = data_bytes(placed.task.inputs, job.workload) // workers
    overhead = _device(placed).call(num_bytes)
    return cost_of({"reward function": _call(placed) * samples, CALL: overhead})


def with_backlog(
    cost: TaskCost, placed: PlacedTask, finish_seconds: Floats, generations: float
) -> TaskCost:
    """Return the cost of streamed rewards with the calls that still wait when generation ends.

    Args:
        cost: What `rule_cost` said of the task's batches.
        finish_seconds: When each response that is generated at once ends. Shape (sequences,).
        generations: How often so many are.
    """
    call = _call(placed)
    waiting = streamed_seconds(call.seconds, finish_seconds, _workers(placed)) - call.seconds
    if waiting <= 0:
        return cost
    backlog = call * (generations * waiting / call.seconds)
    return TaskCost((*cost.parts, ("backlog of calls", backlog)))


def _device(placed: PlacedTask) -> DeviceFacts:
    """Return what calls cost: it is known of the cluster's devices, the host's cores have no sheet."""
    name = placed.site.device
    return placed.facts.device(placed.job.cluster[0].gpu if name == HOST_DEVICE else name)


def _workers(placed: PlacedTask) -> int:
    """Return how many calls run at a time: one on each core of the pool, or as many as a service takes at once."""
    rewards = placed.job.rewards
    assert rewards is not None, "a rule task comes with rewards"
    service = rewards.service
    return placed.site.gpus if service is None else service.concurrency


def _call(placed: PlacedTask) -> Estimate:
    """Return what the calls for one response take, with a service's answer."""
    rewards, device = placed.job.rewards, _device(placed)
    assert rewards is not None, "a rule task comes with rewards"
    functions = (rewards.function, rewards.cost_function)
    calls = (device.call(kind=f"rule:{name}") for name in functions if name)
    service = rewards.service
    waits = ZERO
    if service is not None:
        spread = service.seconds_per_call * load_host_costs().spread.value
        waits = Estimate(service.seconds_per_call, spread, Source.DATASHEET)
    return sum((_within(each, rewards.limit_seconds) for each in calls), waits)


def _within(call: Estimate, limit_seconds: float | None) -> Estimate:
    """Return a call that is ended at a limit; one that would take longer takes exactly that."""
    if limit_seconds is None or call.seconds <= limit_seconds:
        return call
    return replace(call, seconds=limit_seconds, spread_seconds=0.0)


def streamed_seconds(call_seconds: float, finish_seconds: Floats, workers: int) -> float:
    """Return how long after the last response the last call ends, in seconds; at least one call.

    Calls take equally long and begin in the order in which responses end, each on the first free
    worker: call i begins when call i - workers has ended, or its response. So the last one ends at
    the largest, over i, of the end of response i and the calls of its worker from then on.

    Args:
        finish_seconds: When each response ends. Shape (sequences,).
    """
    ends = np.sort(finish_seconds)
    behind = np.ceil((len(ends) - np.arange(len(ends))) / workers)
    return float((ends - ends[-1] + call_seconds * behind).max())


def cost(placed: PlacedTask, kv_bytes: float | None = None) -> TaskCost:
    """Return what the job's functions cost on all batches, one after another."""
    assert kv_bytes is None, "nothing is generated"
    return times(rule_cost(placed), placed.task.batches)


def memory(placed: PlacedTask) -> TaskMemory:
    """Return that it holds nothing on GPUs."""
    del placed
    return TaskMemory()
