"""What an iteration takes in the long run, from those that were counted."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlplan.results.forecast import OverlapForecast
from rlplan.simulator.asynchronous.playing import Count, Stream, Streamed
from rlplan.simulator.asynchronous.samples import batch_tokens
from rlplan.simulator.asynchronous.setting import StreamSetting
from rlplan.simulator.timeline.pool_memory import TRANSITION
from rlplan.trace import IterationSpan, Span, Trace

# Generators that begin by no more than this more than is learnt from are as fast as training.
FILLING_FRACTION = 0.01


@dataclass(frozen=True, slots=True)
class LongRun:
    """Hold an iteration of the long run.

    Attributes:
        learnt_share: Tokens that it learns from, as a share of those of a batch; below 1 where the last
            responses are dropped.
        stage_seconds: Seconds in which each stage is what it waits for; they sum to the whole.
        busy_seconds: By pool, seconds in which it computes; of generators, of the mean replica.
        idle_seconds: By stage, pool-seconds in which pools have nothing to do.
        waited_fraction: Share of the time in which training waits for samples.
        held: Whether generators begin all that the bound lets them whenever they get weights.
        filling: Whether they do, or begin more than is learnt from.
    """

    learnt_share: float
    stage_seconds: Mapping[str, float]
    busy_seconds: Mapping[str, float]
    idle_seconds: Mapping[str, float]
    overlap: OverlapForecast
    waited_fraction: float
    held: bool
    filling: bool

    @property
    def seconds(self) -> float:
        """Return how long it lasts."""
        return sum(self.stage_seconds.values())

    def as_old_as(self, bound: int) -> "LongRun":
        """Return the same with samples that wait to be learnt from until they are so many updates old.

        Generators that are faster than training fill any bound. Then they begin a batch whenever one is learnt from,
        and a larger bound makes samples wait for longer, nothing else.
        """
        ages = self.overlap
        mean = ages.staleness_mean + bound - ages.staleness_max
        return replace(self, overlap=replace(ages, staleness_mean=mean, staleness_max=float(bound)))


def long_run(stream: Stream, streamed: Streamed) -> LongRun:
    """Return the mean of the iterations that were counted.

    While finished responses pile up before training, those under way get fewer and it is the longest that end: then
    iterations learn from more tokens than they will in the long run. What they take beside the transition of
    weights is taken to be in proportion.
    """
    setting = stream.setting
    first, last = streamed.counts[setting.warm_up - 1], streamed.counts[-1]
    spent, count = last.reading.since(first.reading), setting.counted
    mean = batch_tokens(stream.workload, setting)
    share = (last.taken - first.taken) / (count * mean)
    drops = setting.begun > setting.learnt
    each = 1 / count if drops else 1 / (count * share)
    held = last.held - first.held == count // setting.sync_every
    idle: dict[str, float] = {}
    for (_, stage), seconds in spent.idle_seconds.items():
        idle[stage] = idle.get(stage, 0.0) + seconds * each
    stages = {
        stage: seconds * (1 / count if stage == TRANSITION else each)
        for stage, seconds in spent.stage_seconds.items()
    }
    return LongRun(
        share if drops else 1.0,
        stages,
        {pool: seconds * each for pool, seconds in spent.busy_seconds.items()},
        idle,
        _overlap(stream, first, last),
        waited_fraction=(last.waited_seconds - first.waited_seconds) / spent.at_seconds,
        held=held,
        filling=held or last.begun - first.begun > (1 + FILLING_FRACTION) * count * setting.begun,
    )


def shown(streamed: Streamed, setting: StreamSetting, iterations: int) -> Trace:
    """Return the trace of what was played, its counted iterations shown again as often as it takes.

    They are the long run already: playing on would show the same lengths in other orders. So an iteration later than
    the last one played has the works of the one that stands in its place among the counted, so many rounds of
    all of them later. A work that begins in one round and ends in the next is not in it.

    Args:
        iterations: How many there are at least, beside those that fill the pools.
    """
    spans, ends = list(streamed.spans), list(streamed.iterations)
    counted, since = ends[setting.warm_up :], ends[setting.warm_up].start_seconds
    again = [span for span in spans if span.start_seconds >= since]
    round_seconds = counted[-1].end_seconds - since
    for number in range(setting.counted, iterations):
        rounds, place = divmod(number, setting.counted)
        each = counted[place]
        ends.append(
            IterationSpan(
                iteration=each.iteration + rounds * setting.counted,
                start_seconds=each.start_seconds + rounds * round_seconds,
                end_seconds=each.end_seconds + rounds * round_seconds,
            )
        )
    until = ends[-1].end_seconds
    for rounds in range(1, -(-iterations // setting.counted)):
        later_seconds = rounds * round_seconds
        spans += [
            Span(
                name=span.name,
                pool=span.pool,
                iteration=span.iteration + rounds * setting.counted,
                start_seconds=span.start_seconds + later_seconds,
                end_seconds=span.end_seconds + later_seconds,
                activity=span.activity,
            )
            for span in again
            if span.end_seconds + later_seconds <= until
        ]
    return Trace(origin="simulated", spans=tuple(spans), iterations=tuple(ends))


def _overlap(stream: Stream, first: Count, last: Count) -> OverlapForecast:
    spent = last.reading.since(first.reading)
    learning = next(work.entry.work.pool for work in stream.works if work.learns)
    ages = Counter(last.ages)
    ages.subtract(first.ages)
    generated = last.generated - first.generated
    restarted = last.restarted - first.restarted
    dropped = last.dropped - first.dropped
    return OverlapForecast(
        staleness_mean=sum(age * number for age, number in ages.items()) / sum(ages.values()),
        staleness_max=float(max(age for age, number in ages.items() if number)),
        trainer_waits_fraction=_waiting(spent.busy_seconds.get(learning, 0.0), spent.at_seconds),
        generator_waits_fraction=_waiting(
            spent.busy_seconds.get(stream.generate.pool, 0.0), spent.at_seconds
        ),
        dropped_fraction=dropped / max(1, generated),
        recomputed_fraction=restarted / max(1, restarted + dropped + last.taken - first.taken),
    )


def _waiting(busy_seconds: float, seconds: float) -> float:
    return max(0.0, 1 - busy_seconds / seconds)
