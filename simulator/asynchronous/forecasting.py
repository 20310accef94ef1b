"""The forecast of a plan whose generation hands responses on as they end."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlplan.estimate import Estimate
from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.profiles.tables.table import QUEUE_CALL
from rlplan.results.forecast import CALL, Forecast, MemoryForecast
from rlplan.rules.batches import handed_over_parts
from rlplan.simulator.asynchronous.lending import LentPlan
from rlplan.simulator.asynchronous.meter import GENERATION
from rlplan.simulator.asynchronous.playing import LongRun, Stream, long_run, play_stream, shown
from rlplan.simulator.asynchronous.setting import (
    LARGEST_BOUND,
    LONGEST_WARM_UP,
    MOST_PIECES,
    OWN,
    USUAL_EFFORT,
    Effort,
    StreamSetting,
    prepared_share,
    setting_of,
)
from rlplan.simulator.asynchronous.training import PieceWork, in_passes, piece_work
from rlplan.simulator.costs.taskcost import TaskCost, data_bytes, step_spread, times_of
from rlplan.simulator.environments import host_share
from rlplan.simulator.generation.batching.joining import Calls
from rlplan.simulator.generation.generating import begun, clock_of, replica_limits, replica_of
from rlplan.simulator.generation.replica import ReplicaLimits
from rlplan.simulator.placed import PlacedPlan, PlacedTask
from rlplan.simulator.stages import task_cost
from rlplan.simulator.timeline.agenda import Entry, agenda_of
from rlplan.simulator.timeline.assemble import (
    STAGES,
    IterationFigures,
    batch_tokens,
    device_pools,
    forecast_of,
)
from rlplan.simulator.timeline.expenses import PoolLoad, rates_of
from rlplan.simulator.timeline.pool_memory import TRANSITION, kv_bytes_left
from rlplan.workload import longest

# In this project's executor: tokens of each response between two checks for ended ones, and most checks in a call.
LOOK_TOKENS, LOOKS_OF_CALL = 16, 2
# Below this share of an iteration, what training waits for generation is the end of a piece, not a lack of samples.
WAITING_FRACTION = 0.01


def stream_forecast(
    placed: PlacedPlan,
    memory: Sequence[MemoryForecast],
    iterations: int,
    effort: Effort = USUAL_EFFORT,
) -> Forecast:
    """Return the forecast of a plan whose generation hands samples on one by one: means of the long run.

    Args:
        iterations: How many iterations the trace shows at least, beside those that fill the pools. What is counted
            has nothing to do with it: beyond those that were played, they are shown again.
        effort: How much is played; of less, the spread has what that may move.
    """
    plan, agenda = placed.plan, agenda_of(placed)
    memory = with_lent(placed, memory)
    most = LONGEST_WARM_UP
    stream = stream_of(placed, agenda, most, effort)
    streamed = play_stream(stream)
    found = long_run(stream, streamed)
    more = _largest_bound(placed, stream)
    if found.held and found.waited_fraction > WAITING_FRACTION and more > LONGEST_WARM_UP:
        most = more
        stream = stream_of(placed, agenda, most, effort)
        streamed = play_stream(stream)
        found = long_run(stream, streamed)
    if stream.setting.beyond and found.filling and found.waited_fraction <= WAITING_FRACTION:
        found = found.as_old_as(math.ceil(plan.staleness))
    trace = shown(streamed, stream.setting, iterations)
    figures = _figures(placed, agenda, found)
    if effort.spread_fraction and stream.setting != _setting(placed, most):
        known = figures.iteration
        played = effort.spread_fraction * known.seconds
        known = replace(known, spread_seconds=math.hypot(known.spread_seconds, played))
        figures = replace(figures, iteration=known)
    return forecast_of(plan, placed.facts, agenda, trace, memory, figures)


def with_lent(placed: PlacedPlan, memory: Sequence[MemoryForecast]) -> Sequence[MemoryForecast]:
    """Return the pools' memory at their peaks where the training pool generates too, if it does."""
    lending = placed.plan.lending
    if lending is None or "generation" not in lending.to:
        return memory
    lent = LentPlan(placed)
    both = {lent.pool.name: lent.memory}
    return [
        max(each, both.get(each.pool, each), key=lambda one: (not one.fits, one.gpu_peak_bytes))
        for each in memory
    ]


def _largest_bound(placed: PlacedPlan, stream: Stream) -> int:
    """Return the largest bound that is played beyond the usual one.

    With it all replicas are as full as they get; twice the usual one at least, since training may wait for what must
    not get older though replicas are full.
    """
    setting = stream.setting
    if not setting.beyond:
        return LONGEST_WARM_UP
    together = begun(placed.generate, placed.plan.staleness + 1)
    _, limits = replica_limits(together, max(0.0, kv_bytes_left(placed)))
    full = limits.max_running * setting.replicas / (setting.begun * setting.unit)
    largest = max(2 * LONGEST_WARM_UP, min(math.ceil(full), LARGEST_BOUND))
    return min(LONGEST_WARM_UP + setting.beyond, largest)


def _setting(placed: PlacedPlan, most: int, effort: Effort = USUAL_EFFORT) -> StreamSetting:
    """Return what is played of a plan, with the replicas that it is lent."""
    lending = placed.plan.lending
    helps = lending is not None and "generation" in lending.to
    helpers = LentPlan(placed).layout.dp if helps else 0
    return setting_of(placed.plan, placed.generate, most, helpers, effort)


def stream_of(
    placed: PlacedPlan,
    agenda: Sequence[Entry],
    most: int = LONGEST_WARM_UP,
    effort: Effort = USUAL_EFFORT,
) -> Stream:
    """Return what streams in a plan.

    Args:
        most: Updates of the largest bound that is played, beside those within an interval of syncs.
        effort: How much is played.
    """
    plan, task = placed.plan, placed.generate
    lent = LentPlan(placed) if plan.lending else None
    to = plan.lending.to if plan.lending else ()
    setting = _setting(placed, most, effort)
    together = begun(task, setting.staleness + 1)
    steps, limits = replica_limits(together, max(0.0, kv_bytes_left(placed)))
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
        works=[_work_of(placed, entry, tuple(entries), setting) for entry in entries.values()],
        transition=transition.work if transition else None,
        transition_seconds=transition.cost.total.seconds if transition else 0.0,
        pools=[pool.name for pool in device_pools(plan)],
        order=plan.order,
        host=host_share(plan.job, task.layout.dp) if plan.job.environments else None,
        calls=_calls_of(placed, limits, generate.cost),
        in_step=_is_own_waves(plan, limits) and plan.learns_in_order,
        call_seconds=generate.cost.seconds_of(CALL),
        write_seconds=_queue_seconds(placed, task, setting),
        cores=task.device.shared_cores if plan.job.framework == OWN else math.inf,
        lent_trainers=lent.trainers(setting) if lent and "generation" in to else None,
        lent_generators=lent.generators(setting) if lent and "training" in to else None,
    )


def _work_of(
    placed: PlacedPlan, entry: Entry, keys: Sequence[str], setting: StreamSetting
) -> PieceWork:
    """Return a work of an iteration as its pieces go through it."""
    plan, key = placed.plan, entry.work.key
    own, task = plan.job.framework == OWN, placed.tasks.get(key)
    after = tuple(each for each in entry.work.after if each in keys)
    if task is None:  # data on their way do not wait for others of their batch
        return piece_work(entry, after, learns=False, share=setting.learnt * setting.unit)
    share = prepared_share(plan, task, setting) if task.task.has_model else 0
    work = piece_work(
        entry,
        after,
        learns=task.task.trains,
        together=own and key in _with_updates(placed),
        calls_each=own,
        queue_seconds=_queue_seconds(placed, task, setting) if own else 0.0,
        share=share,
        # What is dropped would be missing in a share of others.
        fixed=share > 0 and task.layout.meets_in_passes and setting.begun == setting.learnt,
    )
    if not (setting.ahead and share) or work.together:
        return work  # whole micro-batches, with all that their passes take
    passes = -(-setting.learnt * setting.unit // share)
    return in_passes(work, _pass_seconds(task), passes)


def _pass_seconds(task: PlacedTask) -> float:
    """Return what a pass takes beside what grows with its responses: by passes of one prompt a rank and of a whole share.

    Responses that go through a model as they end are often fewer than a micro-batch.
    """
    samples = task.workload.samples_per_prompt
    few, many = task.layout.dp, task.layout.share_rows(samples) // samples
    if many <= few:
        return 0.0
    small, whole = (_seconds_of(task, prompts) for prompts in (few, many))
    return max(0.0, (small * many - whole * few) / (many - few))


def _seconds_of(task: PlacedTask, prompts: int) -> float:
    """Return what a task takes on a batch of so many prompts, without its call."""
    work = replace(task.workload, prompts=prompts, updates=1)
    cost = task_cost(replace(task, job=replace(task.job, workload=work)))
    return cost.total.seconds - cost.seconds_of(CALL)


def _queue_seconds(placed: PlacedPlan, task: PlacedTask, setting: StreamSetting) -> float:
    """Return what a call takes that writes a piece's samples to the transfer queue, or reads them."""
    plan, parts = placed.plan, MOST_PIECES if setting.ahead else len(setting.pieces)
    keys = task.task.outputs if task.task.generates else task.task.inputs
    num_bytes = data_bytes(keys, plan.job.workload, plan.job.top_tokens) / parts
    generates = placed.tasks["actor.generate"].device  # a host's cores have no sheet
    return generates.call(num_bytes, QUEUE_CALL).seconds


def _with_updates(placed: PlacedPlan) -> frozenset[str]:
    """Return what infers with a model that trains: where generation never stops, this project's executor does so before an update."""
    if not placed.plan.flow.is_endless:
        return frozenset()
    trained = {each.task.role for each in placed.tasks.values() if each.trains}
    return frozenset(
        name
        for name, each in placed.tasks.items()
        if each.task.role in trained and each.task.kind == "infer"
    )


def _is_own_waves(plan: Plan, limits: ReplicaLimits) -> bool:
    """Tell whether this project's executor runs the waves of its own engine."""
    return plan.job.framework == OWN and limits.batching == "static"


def _calls_of(placed: PlacedPlan, limits: ReplicaLimits, generate: TaskCost) -> Calls | None:
    """Return the calls of this project's executor, in which its static waves go on.

    Where generation never stops, new responses join them as others end. Turns of episodes join at any look, and end none.
    """
    plan, work = placed.plan, placed.plan.job.workload
    if not _is_own_waves(plan, limits):
        return None
    looks = LOOKS_OF_CALL
    if plan.learns_in_order:  # neither new weights nor new responses wait for a call's end
        looks = -(-longest(work.response_tokens) // LOOK_TOKENS)
    seconds = generate.seconds_of(CALL)
    if work.environments:
        return Calls(look_tokens=LOOK_TOKENS, looks=1, enough=1, call_seconds=seconds / looks)
    parts = handed_over_parts(plan, (each.task for each in placed.tasks.values()))
    return Calls(
        look_tokens=LOOK_TOKENS,
        looks=looks,
        enough=-(-work.sequences // (parts * plan.tasks["actor.generate"].dp)),
        call_seconds=seconds,
        joins=plan.flow.is_endless,
    )


def _figures(placed: PlacedPlan, agenda: Sequence[Entry], found: LongRun) -> IterationFigures:
    seconds, stages = found.seconds, {name: found.stage_seconds.get(name, 0.0) for name in STAGES}
    return IterationFigures(
        iteration=Estimate(seconds, _spread(placed, agenda, seconds, stages)),
        tokens=batch_tokens(placed.plan.job) * found.learnt_share,
        stage_seconds=FrozenDict(stages),
        idle_seconds=FrozenDict(
            {f"waiting in {stage}": idle for stage, idle in found.idle_seconds.items() if idle}
        ),
        loads=_loads(placed, found.busy_seconds, stages, found.overlap.lent_fraction * seconds),
        overlap=found.overlap,
    )


def _spread(
    placed: PlacedPlan, agenda: Sequence[Entry], seconds: float, stages: Mapping[str, float]
) -> float:
    """Return the spread of an iteration: of generation where training waits for it, else of training."""
    total = {entry.work.key: entry.cost.total for entry in agenda}
    generating = next(entry for entry in agenda if entry.stage == GENERATION)
    cost = total[generating.work.key]
    spreads = [each.spread_seconds for key, each in total.items() if key != generating.work.key]
    framework = placed.facts.framework(placed.plan.job.framework)
    others = step_spread(seconds, spreads, framework, placed.facts)
    if stages[GENERATION] <= WAITING_FRACTION * seconds or not cost.seconds:
        return others
    return max(others, cost.spread_seconds / cost.seconds * (seconds - stages[TRANSITION]))


def _loads(
    placed: PlacedPlan,
    busy: Mapping[str, float],
    stages: Mapping[str, float],
    lent_seconds: float,
) -> tuple[PoolLoad, ...]:
    """Return the seconds of one iteration in which each pool works, by what limits the work."""
    rates = rates_of(placed.plan, placed.facts)
    generating = placed.plan.tasks["actor.generate"].pool
    trained = placed.plan.tasks["actor.update"].pool
    loads = []
    for pool, each in rates.items():
        moving = stages[TRANSITION] if pool in {generating, trained} else 0.0
        seconds = busy.get(pool, 0.0)
        if pool == generating:  # which counts as busy only while a response is under way
            loads.append(PoolLoad(each, 0.0, moving + seconds))
            continue
        if pool == trained:  # while it generates
            moving += lent_seconds
        loads.append(PoolLoad(each, seconds - moving, moving))
    return tuple(loads)
