"""The forecast of a plan whose generation hands responses on as they end."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlplan.estimate import Estimate
from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.results.forecast import Forecast, MemoryForecast, OverlapForecast
from rlplan.trace import Trace
from simulator.asynchronous.meter import GENERATION
from simulator.asynchronous.playing import Count, Stream, Streamed, play_stream
from simulator.asynchronous.setting import StreamSetting, setting_of
from simulator.asynchronous.training import piece_work
from simulator.costs.calibrated import times_of
from simulator.generation.generating import clock_of, replica_limits, replica_of
from simulator.placed.plan import PlacedPlan
from simulator.placed.task import PlacedTask
from simulator.timeline.agenda import Entry, agenda_of
from simulator.timeline.assemble import (
    STAGES,
    Figures,
    device_pools,
    forecast_of,
)
from simulator.timeline.expenses import PoolLoad, rates_of
from simulator.timeline.pool_memory import TRANSITION, kv_bytes_left

# Below this share of an iteration, what training waits for generation is the end of a piece, not a lack of samples.
WAITING_FRACTION = 0.01


def stream_forecast(
    placed: PlacedPlan, memory: Sequence[MemoryForecast], iterations: int
) -> Forecast:
    """Return the forecast of a plan in mode `streaming` or `async`: means of the long run.

    Args:
        iterations: How many iterations the trace shows at least, beside those that fill the pools.
    """
    plan, agenda = placed.plan, agenda_of(placed)
    stream = stream_of(placed, agenda, iterations)
    streamed = play_stream(stream)
    trace = Trace(
        origin="simulated", spans=tuple(streamed.spans), iterations=tuple(streamed.iterations)
    )
    figures = _figures(placed, agenda, stream.setting, streamed)
    return forecast_of(plan, placed.facts, agenda, trace, memory, figures)


def stream_of(placed: PlacedPlan, agenda: Sequence[Entry], iterations: int) -> Stream:
    """Return what streams in a plan."""
    plan = placed.plan
    task = next(each for each in placed.tasks.values() if each.task.kind == "generate")
    setting = setting_of(plan, task, iterations)
    steps, limits = replica_limits(_begun(task, plan), max(0.0, kv_bytes_left(placed)))
    limits = replace(limits, prompt_samples=min(limits.prompt_samples, setting.bundle))
    entries = {entry.work.key: entry for entry in agenda}
    transition = entries.pop(TRANSITION, None)
    generate = entries.pop(task.task.name)
    return Stream(
        workload=plan.job.workload,
        setting=setting,
        replica=replica_of(clock_of(steps), limits),
        time_factor=times_of(task),
        generate=generate.work,
        works=[
            piece_work(
                entry,
                tuple(key for key in entry.work.after if key in entries),
                learns=key in placed.tasks and placed.tasks[key].trains,
            )
            for key, entry in entries.items()
        ],
        transition=transition.work if transition else None,
        transition_seconds=transition.cost.total.seconds if transition else 0.0,
        pools=[pool.name for pool in device_pools(plan)],
        order=plan.order,
    )


def _begun(task: PlacedTask, plan: Plan) -> PlacedTask:
    """Return the generate task with all the prompts in its batch that can be under way at a time."""
    work = plan.job.workload
    prompts = math.ceil(work.prompts * work.over_provisioning * (plan.staleness + 1))
    return replace(task, job=replace(task.job, workload=replace(work, prompts=prompts)))


def _figures(
    placed: PlacedPlan, agenda: Sequence[Entry], setting: StreamSetting, streamed: Streamed
) -> Figures:
    first, last = streamed.counts[setting.warm_up - 1], streamed.counts[-1]
    spent, count = last.reading.since(first.reading), setting.counted
    seconds = spent.at_seconds / count
    stages = FrozenDict({stage: spent.stage_seconds.get(stage, 0.0) / count for stage in STAGES})
    idle: dict[str, float] = {}
    for (_, stage), each in spent.idle_seconds.items():
        idle[f"waiting in {stage}"] = idle.get(f"waiting in {stage}", 0.0) + each / count
    busy = {pool: each / count for pool, each in spent.busy_seconds.items()}
    whole = setting.whole_replicas / setting.replicas
    return Figures(
        iteration=Estimate(seconds, _spread(agenda, seconds, stages)),
        tokens=whole * (last.taken - first.taken) / count,
        stage_seconds=stages,
        idle_seconds=FrozenDict(idle),
        loads=_loads(placed, busy, stages),
        overlap=_overlap(placed.plan, first, last, busy, seconds),
    )


def _spread(agenda: Sequence[Entry], seconds: float, stages: Mapping[str, float]) -> float:
    """Return the spread of an iteration: of generation where training waits for it, else of training."""
    total = {entry.work.key: entry.cost.total for entry in agenda}
    generating = next(entry for entry in agenda if entry.stage == GENERATION)
    cost = total[generating.work.key]
    others = sum(each.spread_seconds for key, each in total.items() if key != generating.work.key)
    if stages[GENERATION] <= WAITING_FRACTION * seconds or not cost.seconds:
        return others
    return max(others, cost.spread_seconds / cost.seconds * (seconds - stages[TRANSITION]))


def _loads(
    placed: PlacedPlan, busy: Mapping[str, float], stages: Mapping[str, float]
) -> tuple[PoolLoad, ...]:
    """Return the seconds of one iteration in which each pool works, by what limits the work."""
    rates = rates_of(placed.plan, placed.facts)
    generating = placed.plan.tasks["actor.generate"].pool
    trained = placed.plan.tasks["actor.update"].pool
    loads = []
    for pool, each in rates.items():
        moving = stages[TRANSITION] if pool in {generating, trained} else 0.0
        seconds = busy.get(pool, 0.0)
        computing = 0.0 if pool == generating else seconds - moving
        loads.append(PoolLoad(each, computing, seconds if pool == generating else moving))
    return tuple(loads)


def _overlap(
    plan: Plan, first: Count, last: Count, busy: Mapping[str, float], seconds: float
) -> OverlapForecast:
    ages = Counter(last.ages)
    ages.subtract(first.ages)
    samples = sum(ages.values())
    generated = last.generated - first.generated
    restarted = last.restarted - first.restarted
    dropped = last.dropped - first.dropped
    trained = plan.tasks["actor.update"].pool
    generating = plan.tasks["actor.generate"].pool
    return OverlapForecast(
        staleness_mean=sum(age * number for age, number in ages.items()) / samples,
        staleness_max=float(max(age for age, number in ages.items() if number)),
        trainer_waits_fraction=max(0.0, 1 - busy.get(trained, 0.0) / seconds),
        generator_waits_fraction=max(0.0, 1 - busy.get(generating, 0.0) / seconds),
        dropped_fraction=dropped / max(1, generated),
        recomputed_fraction=restarted / max(1, restarted + dropped + last.taken - first.taken),
    )
