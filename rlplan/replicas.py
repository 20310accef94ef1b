"""Replicas that come and go: how many of a generating pool's there are from which iteration on."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rlplan.errors import FileError
from rlplan.files.decoding import read_text
from rlplan.files.frozen import FrozenDict
from rlplan.plan import FLOWS, Plan
from rlplan.units import show_seconds
from rlplan.workload import Environment

OPTION = "--replicas"
SCHEDULE_FORM = "first iterations with numbers (0:1,40:3)"
FORM = (
    f"a number, a range that forecasts choose from (1..4), {SCHEDULE_FORM}, or a file of such lines"
)
GENERATE = "actor.generate"
# Within a file of a schedule, what stands behind it is a remark.
REMARK = "#"
# What is written like a schedule is one, whatever files are called.
_SCHEDULE = re.compile(r"[\d\s:,]*")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDevices:
    """Say how many devices replicas have from which iteration on, whatever plan of a run they are of.

    Attributes:
        schedule: In replicas of the plan that it was written for.
        gpus_each: Of such a replica.
        gpus: Of all of that plan's replicas.
    """

    schedule: ReplicaSchedule
    gpus_each: int
    gpus: int

    def at(self, iteration: int) -> int:
        """Return how many devices there are for replicas in an iteration."""
        return self.schedule.at(iteration) * self.gpus_each

    def spans(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first iteration, first one behind it, devices) of each stretch with as many devices, between two iterations."""
        starts = [each for each, _ in self.schedule.counts if first < each < last]
        for begin, end in pairwise((first, *starts, last)):
            yield begin, end, self.at(begin)

    def least(self, first: int, last: int) -> int:
        """Return the fewest devices of any iteration between two, the second one left out."""
        return min(gpus for _, _, gpus in self.spans(first, last))

    def schedule_of(self, plan: Plan, done: int = 0) -> ReplicaSchedule:
        """Return how many replicas of a plan these devices hold from which iteration on, no more than it has.

        Args:
            done: Iterations before those by this plan, of which it is not asked how many they hold.

        Raises:
            FileError: At some later time not one.
        """
        size, counts = replica_gpus(plan), dict[int, int]()
        ends = [*(each for each, _ in self.schedule.counts[1:]), None]
        for (first, count), end in zip(self.schedule.counts, ends, strict=True):
            fits = min(plan.tasks[GENERATE].dp, count * self.gpus_each // size)
            if end is not None and end <= done:
                fits = max(1, fits)
            if not fits:
                problem = f"leaves {count * self.gpus_each} devices from iteration {first} on, and a replica of the plan takes"
                raise FileError(OPTION, problem, value=size, allowed="replicas that fit")
            counts[first] = fits
        return ReplicaSchedule(counts=tuple(counts.items()))

    def filled_by(self, plan: Plan) -> Plan:
        """Return a plan with as many replicas as all these devices hold."""
        return with_replicas(plan, self.gpus // replica_gpus(plan))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRange:
    """Say between which numbers of replicas forecasts choose, both included."""

    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRow:
    """Hold how many replicas pay for responses of some lengths.

    Attributes:
        above_tokens: Mean response tokens from which on this holds, up to those of the next row.
        tokens: Mean that the forecasts are of.
        replicas: That pay.
        seconds: Of an iteration by number of replicas, losses of spot nodes counted; of numbers that fit.
    """

    above_tokens: float
    tokens: float
    replicas: int
    seconds: FrozenDict[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTable:
    """Say by forecasts how many replicas pay at which lengths of responses.

    Attributes:
        rows: Shortest lengths first.
        begins: Mean response tokens with which a run begins.
    """

    rows: tuple[LengthRow, ...]
    begins: float

    @property
    def most(self) -> int:
        """Return the largest number of replicas."""
        return max(row.replicas for row in self.rows)

    @property
    def words(self) -> str:
        """Return for people where the number changes, with the forecasts there."""
        said = []
        for before, row in zip((None, *self.rows), self.rows, strict=False):
            if before is not None and before.replicas == row.replicas:
                continue
            times = ", ".join(
                f"{show_seconds(row.seconds[each])} with {each}" for each in sorted(row.seconds)
            )
            since = "" if before is None else f" from {row.above_tokens:,.0f} tokens a response on"
            said.append(
                f"{row.replicas}{since} (of {row.tokens:,.0f} tokens an iteration takes {times})"
            )
        return f"replicas that pay, by forecasts: {'; '.join(said)}"

    def row_of(self, tokens: float) -> LengthRow:
        """Return what holds for responses of a mean length; for shorter ones than any, the first row."""
        found = (row for row in reversed(self.rows) if row.above_tokens <= tokens)
        return next(found, self.rows[0])


class ReplicaChoice:
    """Say how many replicas pay at which lengths by forecasts, whatever plan of a run they are of: between two numbers of devices.

    Args:
        asked: Between which numbers of replicas of the plan that it was written for.
        written_for: That plan.
        table: Returns how many replicas of a plan pay at which lengths, between two numbers of them.
    """

    def __init__(
        self,
        asked: ReplicaRange,
        written_for: Plan,
        table: Callable[[Plan, ReplicaRange], ReplicaTable],
    ) -> None:
        self._asked, self._table = asked, table
        self.devices = devices_of(ReplicaSchedule(counts=((0, asked.most),)), written_for)
        self._tables = list[tuple[Plan, ReplicaTable]]()

    def range_of(self, plan: Plan) -> ReplicaRange:
        """Return between which numbers of a plan's replicas forecasts choose: those that as many devices hold.

        Raises:
            FileError: The most devices hold none.
        """
        each, size = self.devices.gpus_each, replica_gpus(plan)
        most = min(plan.tasks[GENERATE].dp, self._asked.most * each // size)
        if not most:
            problem = (
                f"leaves {self._asked.most * each} devices at most, and a replica of the plan takes"
            )
            raise FileError(OPTION, problem, value=size, allowed="replicas that fit")
        return ReplicaRange(least=min(most, ceil(self._asked.least * each / size)), most=most)

    def table_of(self, plan: Plan) -> ReplicaTable:
        """Return how many replicas of a plan pay at which lengths; what was found once is kept.

        Raises:
            UserError: No number of them fits, or has a forecast.
        """
        for known, table in self._tables:
            if known == plan:
                return table
        table = self._table(plan, self.range_of(plan))
        self._tables.append((plan, table))
        return table


Event = Literal["wanted", "joined", "left", "lost", "not started", "no place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChange:
    """Say how the replicas that generate changed.

    Attributes:
        replica: Its number, from 0.
        generate: How many generate now.
        begins_again: Of one that is lost, its responses that begin again on others.
        gives_up: Whether none is started any more.
    """

    event: Event
    replica: int
    generate: int
    begins_again: int = 0
    gives_up: bool = False

    @property
    def words(self) -> str:
        """Return it for people."""
        left = "1 replica generates" if self.generate == 1 else f"{self.generate} replicas generate"
        if self.event == "lost":
            return (
                f"replica {self.replica} ended: killed, out of memory or crashed; {self.begins_again} of its responses begin "
                f"again: {left}"
            )
        if self.event == "not started":
            gives_up = "; none is started any more" if self.gives_up else ""
            return f"replica {self.replica} did not start{gives_up}"
        if self.event == "no place":
            return f"replica {self.replica} is wanted, and no free node of the cluster has its devices: {left}"
        return f"replica {self.replica} has {self.event}: {left}"

    @property
    def line(self) -> Mapping[str, Any]:
        """Return it as a ledger's line."""
        found: dict[str, Any] = {
            "event": self.event,
            "replica": self.replica,
            "replicas": self.generate,
        }
        return {**found, "begins_again": self.begins_again} if self.event == "lost" else found


# How many replicas there are when, as a run is told.
Replicas: TypeAlias = ReplicaSchedule | ReplicaDevices | ReplicaTable | ReplicaChoice


def read_replicas(words: str) -> ReplicaSchedule | ReplicaRange:
    """Return what a command line says of replicas: a range such as `1..4`, a schedule, or the file of one of these.

    Raises:
        FileError: It is none of these; says the form.
    """
    if not _SCHEDULE.fullmatch(words) and not _range_ends(words) and _is_file(words):
        lines = [line.partition(REMARK)[0].strip() for line in read_text(Path(words)).splitlines()]
        return _read(",".join(filter(None, lines)), words)
    return _read(words, OPTION)


def _read(words: str, file: str) -> ReplicaSchedule | ReplicaRange:
    ends = _range_ends(words)
    if ends is None:
        return read_schedule(words, file)
    least, most = ends
    if not 1 <= least <= most:
        allowed = "two numbers from 1 on, the smaller one first"
        raise FileError(file, "is no range of replicas", value=words, allowed=allowed)
    return ReplicaRange(least=least, most=most)


def _range_ends(words: str) -> tuple[int, int] | None:
    """Return the ends of what is written like a range; None of anything else."""
    least, dots, most = (part.strip() for part in words.partition(".."))
    is_range = dots and least.isdecimal() and most.isdecimal()
    return (int(least), int(most)) if is_range else None


def _is_file(words: str) -> bool:
    try:
        return Path(words).is_file()
    except OSError:  # longer than any name of a file
        return False


def read_schedule(words: str, file: str = OPTION) -> ReplicaSchedule:
    """Return a schedule as it is written on a command line: `2`, or `0:1,40:3`.

    Args:
        file: Where it stands, for messages.

    Raises:
        FileError: It is none; says the form.
    """
    parts = [part.strip() for part in words.split(",")]
    if any(_range_ends(part.rpartition(":")[2]) for part in parts):
        problem = "has a range, which holds for a whole run, beside other numbers of replicas"
        allowed = f"a range alone (1..4), or {SCHEDULE_FORM}"
        raise FileError(file, problem, value=words, allowed=allowed)
    pairs = [part.split(":") if ":" in part else ["0", part] for part in parts]
    if any(len(pair) != 2 or not all(each.strip().isdecimal() for each in pair) for pair in pairs):  # noqa: PLR2004 -- a pair
        raise FileError(file, "is no schedule of replicas", value=words, allowed=FORM)
    counts = tuple((int(first), int(count)) for first, count in pairs)
    if counts[0][0] != 0:
        raise FileError(file, "does not say how many there are at first", value=words, allowed=FORM)
    if any(one[0] >= other[0] for one, other in pairwise(counts)):
        raise FileError(file, "does not go forward in iterations", value=words, allowed=FORM)
    if not all(count for _, count in counts):
        raise FileError(
            file, "leaves nothing that generates", value=words, allowed="1 or more at a time"
        )
    return ReplicaSchedule(counts=counts)


def check_schedule(
    schedule: ReplicaSchedule | ReplicaRange | ReplicaTable, plan: Plan, file: str = "plan"
) -> None:
    """Refuse a schedule, a range or a table that a plan has no replicas for, or whose replicas cannot come and go.

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


def replica_gpus(plan: Plan) -> int:
    """Return how many devices a replica of a plan's generating pool has."""
    generate = plan.tasks[GENERATE]
    return generate.tp * generate.pp


def devices_of(schedule: ReplicaSchedule, plan: Plan) -> ReplicaDevices:
    """Return the devices of a schedule that was written for a plan."""
    each = replica_gpus(plan)
    return ReplicaDevices(schedule=schedule, gpus_each=each, gpus=plan.tasks[GENERATE].dp * each)


def with_replicas(plan: Plan, replicas: int) -> Plan:
    """Return the plan whose generating pool has so many replicas, and no other GPUs; each has as many instances of environments."""
    generate, work = plan.tasks[GENERATE], plan.job.workload
    environments = tuple(_of_replicas(each, generate.dp, replicas) for each in work.environments)
    pools = tuple(
        replace(pool, gpus=replicas * generate.tp * generate.pp)
        if pool.name == generate.pool
        else pool
        for pool in plan.pools
    )
    layout = replace(generate, dp=replicas)
    job = replace(plan.job, workload=replace(work, environments=environments))
    return replace(plan, job=job, pools=pools, tasks=plan.tasks.with_item(GENERATE, layout))


def _of_replicas(environment: Environment, before: int, replicas: int) -> Environment:
    """Return an environment with the instances of so many replicas, of those that it has for others."""
    each = environment.instances_each(before)
    return environment if each is None else replace(environment, instances=each * replicas)
