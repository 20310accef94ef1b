"""A plan, played in simulated time; what the simulator has no playing for, of what valid plans ask for, by name.

Iterations of whole batches are played here, one after another, or overlapping until their lengths repeat; samples that
are handed on one by one in `rlplan.simulator.asynchronous`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import simpy

from rlplan.errors import CapabilityError
from rlplan.job import TIME_TO_SCORE
from rlplan.plan import FLOWS, WHOLE_BATCH_MODES, Mode, Plan
from rlplan.profiles.catalog import ENGINES
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Forecast, MemoryForecast
from rlplan.rules import check_plan
from rlplan.rules.rule import Capability, refuse_first
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.agenda import Entry, agenda_of, learnt_plan
from rlplan.simulator.timeline.assemble import assemble, batch_tokens, device_pools
from rlplan.simulator.timeline.beside import with_beside
from rlplan.simulator.timeline.engine import Engine, Steps, Work, WorkRun
from rlplan.simulator.timeline.generation_needs import (
    environments_of,
    with_host_cache,
    with_prefill_apart,
    with_speculation,
)
from rlplan.simulator.timeline.pool_memory import pool_memory
from rlplan.simulator.timeline.progress import with_progress
from rlplan.trace import Trace
from rlplan.workload import Workload

HERE = "the simulator"
DROPPED_EPISODES = Capability("more episodes begun than are learnt from")
READS_APART = Capability("replicas of the engine that read prompts alone while responses stream")
STREAMED_TEXTS = Capability("texts at hand among responses that are handed on one by one")
OVER_SAMPLED_STREAMS = Capability(
    "more responses of a prompt than are learnt from, handed on one by one"
)

# Iterations are simulated until their lengths repeat. A cyclic schedule does so early: after the first iteration, which fills
# the pools, its cycles are at most as long as the number of pools that wait for each other.
LONGEST_CYCLE = 4
ITERATIONS_PLAYED = 4 * LONGEST_CYCLE
# The last iterations have no successors to share the pools with: they are simulated, but not counted.
EMPTYING_ITERATIONS = 2
ROUNDING = 1e-9


def simulate(
    plan: Plan, facts: Facts, *, iterations: int = 1, mean_of: int = 1, brief: bool = False
) -> Forecast:
    """Return what a plan is expected to take, to need and to cost.

    Everything is an expectation, nothing is drawn: the same plan gives the same forecast. A plan
    that does not fit is simulated all the same, as if memory were larger: its forecast says that
    it is infeasible, and why.

    Where iterations overlap, the figures are those of the long run: they are played until their
    lengths repeat. What a run does beside its iterations, validation and checkpoints, has figures of its own.

    Args:
        iterations: How many iterations the trace shows, beside those in which overlapping ones fill
            the pools; the figures are the last one's.
        mean_of: Iterations whose mean the intervals are of. Chance in the lengths averages out over many; that operators are
            not known better does not.
        brief: Whether of a plan that hands samples on one by one about a quarter is played, for an estimate within a second;
            its intervals are wider by what that may move.

    Raises:
        FileError: The plan breaks a rule of `rlplan.rules`.
        CapabilityError: The plan asks for what has no playing.
        MissingFactError: A cost is known neither from the profile nor from a sheet, or what a loss of spot nodes that
            train costs is not said.
    """
    check_plan(plan, ENGINES)
    assert iterations >= 1
    assert mean_of >= 1
    check_played(plan)
    placed = PlacedPlan(plan, facts, mean_of)
    memory = [pool_memory(placed, pool) for pool in device_pools(plan)]
    if plan.flow.by_sample:
        from rlplan.simulator.asynchronous import setting  # noqa: PLC0415 -- only there
        from rlplan.simulator.asynchronous.forecasting import stream_forecast  # noqa: PLC0415

        effort = setting.BRIEF_EFFORT if brief else setting.USUAL_EFFORT
        forecast = stream_forecast(placed, memory, iterations, effort)
    else:
        forecast = batch_forecast(placed, agenda_of(placed), memory, iterations)
    job = plan.job
    if job.speculation is not None:
        forecast = with_speculation(forecast, placed)
    if job.kv_offload is not None:
        forecast = with_host_cache(forecast, placed)
    if job.prefill is not None:
        forecast = with_prefill_apart(forecast, placed)
    if job.environments:
        forecast = replace(forecast, environments=environments_of(forecast, placed))
    if (job.evaluation, job.checkpoints, job.iterations) != (None, None, None):
        forecast = with_beside(forecast, placed)
    if job.objective == TIME_TO_SCORE:
        forecast = with_progress(forecast, plan)
    if job.has_spot:
        from rlplan.simulator.timeline.spot import with_spot  # noqa: PLC0415 -- only there

        forecast = with_spot(forecast, placed, simulate)
    return forecast


def batch_forecast(
    placed: PlacedPlan,
    agenda: Sequence[Entry],
    memory: Sequence[MemoryForecast],
    iterations: int,
) -> Forecast:
    """Return the forecast of a plan whose generation hands on whole batches.

    Args:
        agenda: The works of an iteration with their costs.
        iterations: How many iterations the trace shows, beside those in which overlapping ones fill
            the pools; the figures are the last one's.
    """
    plan, facts = placed.plan, placed.facts
    seconds = {entry.work.key: entry.cost.total.seconds for entry in agenda}
    works = [entry.work for entry in agenda]
    tokens = batch_tokens(learnt_plan(placed).plan.job)
    if not plan.flow.overlaps:
        trace = play(works, seconds, plan.order, iterations=iterations)
        return assemble(plan, facts, agenda, trace, memory, tokens=tokens)
    played = max(iterations, ITERATIONS_PLAYED)
    with_rest = played + EMPTYING_ITERATIONS
    trace = play(works, seconds, plan.order, iterations=with_rest, overlapping=True)
    full = first_of(trace, played)
    cycle = cycle_of(full)
    forecast = assemble(plan, facts, agenda, trace, memory, full.iterations[-cycle:], tokens)
    part = shown(full, cycle, iterations)
    return replace(forecast, tasks=part.spans, iterations=part.iterations)


def play(
    works: Sequence[Work],
    seconds: Mapping[str, float],
    order: Mapping[str, Sequence[str]],
    *,
    iterations: int = 1,
    overlapping: bool = False,
) -> Trace:
    """Return the spans in seconds of iterations, each from the end of the one before to its own.

    Iterations follow each other. Overlapping ones are all there from the start, and what their works wait for of
    earlier iterations alone keeps them apart.

    Args:
        seconds: By key, how long each work takes.
        order: By pool, names in the order in which they get the pool when several wait; names
            that are not listed come first, as what prepares a pool's listed tasks does.
        overlapping: Whether an iteration may begin before the last one ended.
    """
    engine = Engine()
    starts = _starts(engine, works, seconds, order, iterations)

    def run() -> Steps:
        for ended in list(starts) if overlapping else starts:
            yield ended
            engine.end_iteration()

    return engine.run(run())


def _starts(
    engine: Engine,
    works: Sequence[Work],
    seconds: Mapping[str, float],
    order: Mapping[str, Sequence[str]],
    iterations: int,
) -> Iterator[simpy.Event]:
    """Start one iteration after another; yield what happens when all works of each have ended."""
    ranks = [(work.place_in(order), index) for index, work in enumerate(works)]
    ended: list[Mapping[str, simpy.Event]] = []
    for iteration in range(iterations):
        runs = [
            WorkRun(
                work=work,
                iteration=iteration,
                seconds=seconds[work.key],
                rank=(iteration - work.ahead, *rank),
                after=work.after,
                earlier=[
                    ended[iteration - lag][parent]
                    for parent, lag in work.earlier
                    if iteration >= lag
                ],
            )
            for work, rank in zip(works, ranks, strict=True)
        ]
        ended.append(engine.start(runs))
        yield engine.environment.all_of(ended[-1].values())


def cycle_of(trace: Trace) -> int:
    """Return after how many iterations their lengths repeat; half of those played if they never do."""
    seconds = [each.seconds for each in trace.iterations]
    for length in range(1, LONGEST_CYCLE + 1):
        last, before = seconds[-length:], seconds[-2 * length : -length]
        if len(before) == length and all(map(_close, last, before)):
            return length
    return max(1, len(seconds) // 2)


def shown(trace: Trace, cycle: int, iterations: int) -> Trace:
    """Return the trace's first iterations: until their lengths repeat, and `iterations` of these.

    Spans that later iterations begin in that time are shown as well.
    """
    seconds = [each.seconds for each in trace.iterations]
    settled = len(seconds) - cycle
    while settled > 0 and _close(seconds[settled - 1], seconds[settled - 1 + cycle]):
        settled -= 1
    kept = trace.iterations[: min(len(seconds), settled + max(cycle, iterations))]
    end = kept[-1].end_seconds
    return replace(
        trace,
        spans=tuple(span for span in trace.spans if span.start_seconds < end),
        iterations=kept,
    )


def first_of(trace: Trace, iterations: int) -> Trace:
    """Return the trace's first iterations."""
    return replace(
        trace,
        spans=tuple(span for span in trace.spans if span.iteration < iterations),
        iterations=trace.iterations[:iterations],
    )


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= ROUNDING * max(one, other)


def check_played(plan: Plan, file: str = "plan") -> None:
    """Refuse what has no playing.

    Args:
        file: What to call the plan in messages.

    Raises:
        CapabilityError: Names the file, what is lacked, and the field that asks for it.
    """
    refuse_first(_lacks(plan), file)


def dropped_episodes(work: Workload) -> dict[str, float]:
    """Return the workload's fields that would drop episodes, with their values; this is not simulated in any plan."""
    return work.begun_beyond if work.environments else {}


def over_samples_streams(work: Workload, mode: Mode) -> bool:
    """Tell whether samples of a prompt would be dropped while responses stream, which is not played."""
    return FLOWS[mode].by_sample and work.over_sampling > 1


def streams_texts(work: Workload, mode: Mode) -> bool:
    """Tell whether texts at hand would come between responses that stream, which is not played."""
    return FLOWS[mode].by_sample and work.texts is not None


def _lacks(plan: Plan) -> Iterator[CapabilityError]:
    work = plan.job.workload
    for name, value in dropped_episodes(work).items():
        field, instead = f"job.workload.{name}", "it plays all that begin: 1"
        yield DROPPED_EPISODES.lacked_by(HERE, field, value, instead)
    if plan.lending is not None:
        from rlplan.simulator.asynchronous.lending import lacks_of_lending  # noqa: PLC0415 -- only there

        yield from lacks_of_lending(plan)
    if work.texts is not None and streams_texts(work, plan.mode):
        instead = f"it takes them in modes {' and '.join(WHOLE_BATCH_MODES)}"
        field = "job.workload.texts.share"
        yield STREAMED_TEXTS.lacked_by(HERE, field, work.texts.share, instead)
    if plan.job.prefill is not None and (plan.flow.by_sample or plan.lending is not None):
        instead = f"it plays them in modes {' and '.join(WHOLE_BATCH_MODES)}, without lending"
        yield READS_APART.lacked_by(
            HERE, "job.prefill.replicas", plan.job.prefill.replicas, instead
        )
    if over_samples_streams(work, plan.mode):
        modes = " and ".join(WHOLE_BATCH_MODES)
        instead = f"it drops samples of a prompt in modes {modes}, in others none: 1"
        field = "job.workload.over_sampling"
        yield OVER_SAMPLED_STREAMS.lacked_by(HERE, field, work.over_sampling, instead)
