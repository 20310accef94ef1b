"""What one plan's iteration loses to another's: by stage, and inside a stage by cause."""

from dataclasses import dataclass

from rlplan.results.forecast import Forecast, TaskForecast

# Seconds of a stage that no task of its busiest pool accounts for: transfers, and waiting for others.
WAITING = "transfers and waiting"
# A cause below this share of the stage's loss is not worth telling.
LEAST_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoss:
    """Hold what a stage takes longer (or, below zero, less long) than the winner's.

    Attributes:
        causes: Pairs of cause and seconds, such as (`pipeline bubble`, 4.0), the largest first; they
            sum to `seconds`.
    """

    stage: str
    seconds: float
    causes: tuple[tuple[str, float], ...]

    @property
    def main_causes(self) -> tuple[tuple[str, float], ...]:
        """Return the causes that push the stage the way it went, without the smallest."""
        least = LEAST_SHARE * abs(self.seconds)
        same_way = [(name, seconds) for name, seconds in self.causes if seconds * self.seconds > 0]
        return tuple(each for each in same_way if abs(each[1]) >= least)


def losses(slower: Forecast, faster: Forecast) -> tuple[StageLoss, ...]:
    """Return what every stage of an iteration loses to another plan's, the largest loss first.

    A stage lasts as long as its busiest pool works; the parts of that pool's tasks are compared cause by
    cause, whichever tasks they belong to.
    """
    found = []
    for stage in dict.fromkeys((*slower.stage_seconds, *faster.stage_seconds)):
        seconds = slower.stage_seconds.get(stage, 0.0) - faster.stage_seconds.get(stage, 0.0)
        own, others = _parts(slower, stage), _parts(faster, stage)
        causes = {
            name: own.get(name, 0.0) - others.get(name, 0.0)
            for name in dict.fromkeys((*own, *others))
        }
        ordered = sorted(causes.items(), key=lambda item: (-abs(item[1]), item[0]))
        found.append(
            StageLoss(
                stage=stage,
                seconds=seconds,
                causes=tuple((name, each) for name, each in ordered if each),
            )
        )
    return tuple(sorted(found, key=lambda loss: (-loss.seconds, loss.stage)))


def _parts(forecast: Forecast, stage: str) -> dict[str, float]:
    """Return a stage's seconds by cause on its busiest pool; they sum to what it occupies."""
    pools: dict[str, list[TaskForecast]] = {}
    for task in forecast.costs:
        if task.stage == stage and task.activity != "transfer":
            pools.setdefault(task.pool, []).append(task)
    parts: dict[str, float] = {}
    busiest = max(pools.values(), key=lambda tasks: sum(each.seconds for each in tasks), default=[])
    for task in busiest:
        for name, seconds in task.parts.items():
            parts[name] = parts.get(name, 0.0) + seconds
    rest = forecast.stage_seconds.get(stage, 0.0) - sum(parts.values())
    if rest:
        parts[WAITING] = rest
    return parts
