"""What an iteration takes in the long run, from those that were counted."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rlplan.results.forecast import OverlapForecast
from simulator.asynchronous.playing import Count, Stream, Streamed
from simulator.asynchronous.samples import batch_tokens
from simulator.timeline.pool_memory import TRANSITION


@dataclass(frozen=True, slots=True)
class LongRun:
    """Hold an iteration of the long run.

    Attributes:
        learnt_share: Tokens that it learns from, as a share of those of a batch; below 1 where the last
            responses are dropped.
        stage_seconds: Seconds in which each stage is what it waits for; they sum to the whole.
        busy_seconds: By pool, seconds in which it computes; of generators, of the mean replica.
        idle_seconds: By stage, pool-seconds in which pools have nothing to do.
    """

    learnt_share: float
    stage_seconds: Mapping[str, float]
    busy_seconds: Mapping[str, float]
    idle_seconds: Mapping[str, float]
    overlap: OverlapForecast

    @property
    def seconds(self) -> float:
        """Return how long it lasts."""
        return sum(self.stage_seconds.values())


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
    )


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
