"""Environments and the host cores that their steps wait for."""

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlplan.errors import MissingFactError
from rlplan.job import Job
from rlplan.workload import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSlots:
    """Hold what the steps of one environment hold, and how many of them run at a time.

    Attributes:
        cores: Host cores of a running step.
        workers: Steps that run at a time, cores apart; infinite without a limit.
        slowdown: How many times as long a step takes where several replicas share one worker.
        instances: Episodes that are under way at a time; infinite without a limit.
        sharing: How many times as long an episode has its instance where several replicas share one.
        limit_seconds: After which an episode gets no further turn; infinite without a limit.
    """

    cores: float
    workers: float
    slowdown: float
    instances: float
    sharing: float
    limit_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """Hold what one of several replicas has of the host: cores, and seats by environment."""

    cores: float
    seats: tuple[InstanceSlots, ...]


def host_share(job: Job, replicas: int) -> HostShare:
    """Return what each of so many replicas has of all nodes' cores and of the environments' workers.

    Raises:
        MissingFactError: Steps hold cores, and nobody says how many a node has.
    """
    if job.host_cores is None and any(each.cpu_cores for each in job.environments):
        raise MissingFactError(
            "job.cluster: how many cores has a node? Steps of environments hold them: set cpu_cores"
        )
    cores = (job.host_cores or 0) / replicas
    return HostShare(
        cores=cores,
        seats=tuple(_seats(each, cores, replicas) for each in job.environments),
    )


def _seats(environment: Environment, cores: float, replicas: int) -> InstanceSlots:
    """Return a replica's part of an environment's seats: one at least, which several replicas may share.

    Replicas that wait for an instance of another one run no steps, which leaves more workers to the others.
    """
    held = environment.cpu_cores
    by_cores = cores / held if held else math.inf
    workers = math.inf if environment.workers is None else environment.workers / replicas
    whole = min(by_cores, workers)
    each = environment.instances_each(replicas)
    share = math.inf if environment.instances is None else environment.instances / replicas
    return InstanceSlots(
        cores=min(held, cores),
        workers=max(1.0, math.floor(workers)) if workers < math.inf else workers,
        slowdown=max(1.0, min(1.0, share) / whole),
        instances=math.inf if each is None else max(1, each),
        sharing=max(1.0, 1 / share),
        limit_seconds=environment.episode_limit_seconds or math.inf,
    )


class Call(NamedTuple):
    """Hold a step or reset that asks for its cores.

    Attributes:
        number: In the order of asking.
        asked_seconds: When it asks.
        environment: Its index.
        seconds: Its duration once it runs.
        episode: Number of its episode.
        turn: The turn that may begin when it ends; the number of turns for the last step of an episode; `OVER` for the
            time in which other replicas use the episode's instance, which takes no cores.
    """

    number: int
    asked_seconds: float
    environment: int
    seconds: float
    episode: int
    turn: int


OVER = -1


class HostQueue:
    """Run steps on host cores, first come first served, as far as cores and workers reach.

    Attributes:
        running: Calls that run, as a heap of (end in seconds, number, call).
    """

    def __init__(self, share: HostShare) -> None:
        self.share, self.cores = share, share.cores
        self.workers = [seats.workers for seats in share.seats]
        self.queues: list[deque[Call]] = [deque() for _ in share.seats]
        self.running: list[tuple[float, int, Call]] = []
        self.asked = 0

    def ask(self, now: float, environment: int, seconds: float, episode: int, turn: int) -> None:
        """Add a step or reset, to begin as soon as it gets its cores."""
        seconds *= self.share.seats[environment].slowdown
        self.asked += 1
        call = Call(self.asked, now, environment, seconds, episode, turn)
        self.queues[environment].append(call)
        self._start(now)

    @property
    def next_end(self) -> float:
        """Return when the next call ends, in seconds; infinite where none runs."""
        return self.running[0][0] if self.running else math.inf

    def end_next(self) -> tuple[float, Call]:
        """End the next call: return when it ends, and the call; start the calls that waited for its cores."""
        end, _, call = heapq.heappop(self.running)
        if call.turn == OVER:
            return end, call
        self.cores += self.share.seats[call.environment].cores
        self.workers[call.environment] += 1
        self._start(end)
        return end, call

    def ends(self, call: Call, turns: int, end: float, begun: float) -> bool:
        """Tell whether an episode ends with a call.

        Args:
            turns: That it has.
            end: Of the call, in seconds.
            begun: When the episode began, in seconds.
        """
        late = call.turn > 0 and end - begun > self.share.seats[call.environment].limit_seconds
        return late or call.turn in (turns, OVER)

    def shares(self, call: Call, end: float, begun: float) -> bool:
        """Tell whether other replicas use an ended episode's instance next, each for as long as it did; if so, schedule its return."""
        others = self.share.seats[call.environment].sharing - 1
        if call.turn == OVER or not others:
            return False
        self.asked += 1
        after = end + others * (end - begun)
        heapq.heappush(self.running, (after, self.asked, call._replace(turn=OVER)))
        return True

    def _start(self, now: float) -> None:
        """Start waiting calls in the order in which they asked; an environment without free workers does not block the others."""
        waiting = [queue for queue in self.queues if queue]
        for queue in sorted(waiting, key=_first) if len(waiting) > 1 else waiting:
            seats = self.share.seats[queue[0].environment]
            while queue and self._has_room(seats, queue[0].environment):
                call = queue.popleft()
                self.cores -= seats.cores
                self.workers[call.environment] -= 1
                begin = max(now, call.asked_seconds)
                heapq.heappush(self.running, (begin + call.seconds, call.number, call))

    def _has_room(self, seats: InstanceSlots, environment: int) -> bool:
        return self.workers[environment] >= 1 and self.cores >= seats.cores - ROUNDING


def _first(queue: Sequence[Call]) -> int:
    return queue[0].number


# Cores that are given and taken back add up to what they were but for the last digits.
ROUNDING = 1e-9


class Instances:
    """Give instances to episodes, first come first served; a full environment does not block the others.

    Args:
        most: Limit on the episodes of all environments that are under way at a time.
    """

    def __init__(self, seats: Sequence[InstanceSlots], most: float) -> None:
        self._free = [each.instances for each in seats]
        self._lines: list[deque[int]] = [deque() for _ in seats]
        self._left = most

    def ask(self, episode: int, environment: int) -> None:
        """Let an episode wait for an instance."""
        self._lines[environment].append(episode)

    def given(self) -> Iterator[int]:
        """Yield the episodes that have been given what is free."""
        while self._left >= 1:
            heads = [
                (line[0], environment)
                for environment, line in enumerate(self._lines)
                if line and self._free[environment] >= 1
            ]
            if not heads:
                return
            episode, environment = min(heads)
            self._lines[environment].popleft()
            self._free[environment] -= 1
            self._left -= 1
            yield episode

    def give_back(self, environment: int) -> None:
        """Take the instance of an episode back that is over."""
        self._free[environment] += 1
        self._left += 1

    def leave(self, episode: int, environment: int) -> None:
        """Let an episode wait no longer."""
        self._lines[environment].remove(episode)
