"""Replicas that come and go: how many of a generating pool's there are from which iteration on."""

from dataclasses import dataclass, replace
from itertools import pairwise

from rlplan.errors import FileError
from rlplan.plan import FLOWS, Plan

OPTION = "--replicas"
FORM = "a number, or first iterations with numbers, such as 0:1,40:3"
GENERATE = "actor.generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSchedule:
    """Say how many replicas of the generating pool are wanted from which iteration on.

    Attributes:
        counts: (first iteration, replicas), in the order of iterations; the first is of iteration 0.
    """

    counts: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        """Check that it begins with the run, and goes forward."""
        assert self.counts, "a schedule says something"
        assert self.counts[0][0] == 0, "it begins with the run"
        assert all(one[0] < other[0] for one, other in pairwise(self.counts)), "it goes forward"

    @property
    def most(self) -> int:
        """Return the largest number of replicas."""
        return max(replicas for _, replicas in self.counts)

    def at(self, iteration: int) -> int:
        """Return how many replicas are wanted in an iteration."""
        return next(count for first, count in reversed(self.counts) if first <= iteration)

    def shares(self, iterations: int) -> dict[int, int]:
        """Return how many of so many iterations have each number of replicas."""
        found: dict[int, int] = {}
        ends = [first for first, _ in self.counts[1:]] + [iterations]
        for (first, count), end in zip(self.counts, ends, strict=True):
            steps = max(0, min(end, iterations) - first)
            if steps:
                found[count] = found.get(count, 0) + steps
        return found


def read_schedule(words: str) -> ReplicaSchedule:
    """Return a schedule as it is written on a command line: `2`, or `0:1,40:3`.

    Raises:
        FileError: It is none; says the form.
    """
    parts = [part.strip() for part in words.split(",")]
    pairs = [part.split(":") if ":" in part else ["0", part] for part in parts]
    if any(len(pair) != 2 or not all(each.strip().isdecimal() for each in pair) for pair in pairs):  # noqa: PLR2004 -- a pair
        raise FileError(OPTION, "is no schedule of replicas", value=words, allowed=FORM)
    counts = tuple((int(first), int(count)) for first, count in pairs)
    if counts[0][0] != 0:
        raise FileError(
            OPTION, "does not say how many there are at first", value=words, allowed=FORM
        )
    if any(one[0] >= other[0] for one, other in pairwise(counts)):
        raise FileError(OPTION, "does not go forward in iterations", value=words, allowed=FORM)
    if not all(count for _, count in counts):
        raise FileError(
            OPTION, "leaves nothing that generates", value=words, allowed="1 or more at a time"
        )
    return ReplicaSchedule(counts=counts)


def check_schedule(schedule: ReplicaSchedule, plan: Plan, file: str = "plan") -> None:
    """Refuse a schedule that a plan has no replicas for, or whose replicas cannot come and go.

    Raises:
        FileError: Names the field of the plan, or the option.
    """
    generate, home = plan.tasks[GENERATE], plan.tasks[GENERATE].pool
    if not plan.flow.by_sample:
        modes = " and ".join(name for name, flow in FLOWS.items() if flow.by_sample)
        problem = f"hands on whole batches, whose replicas stay ({OPTION})"
        raise FileError(file, problem, field="mode", value=plan.mode, allowed=modes)
    others = [name for name, task in plan.tasks.items() if task.pool == home and name != GENERATE]
    if others:
        problem = f"holds {', '.join(others)} beside replicas that come and go ({OPTION})"
        raise FileError(file, problem, field=f"pools.{home}", allowed="a pool that only generates")
    if plan.lending is not None:
        problem = f"is not for replicas that come and go ({OPTION})"
        raise FileError(file, problem, field="lending", allowed="no lending")
    if schedule.most > generate.dp:
        problem = f"asks for more replicas than the plan's pool {home} has"
        raise FileError(OPTION, problem, value=schedule.most, allowed=f"at most {generate.dp}")


def with_replicas(plan: Plan, replicas: int) -> Plan:
    """Return the plan whose generating pool has so many replicas, and no other GPUs."""
    generate = plan.tasks[GENERATE]
    pools = tuple(
        replace(pool, gpus=replicas * generate.tp * generate.pp)
        if pool.name == generate.pool
        else pool
        for pool in plan.pools
    )
    layout = replace(generate, dp=replicas)
    return replace(plan, pools=pools, tasks=plan.tasks.with_item(GENERATE, layout))
