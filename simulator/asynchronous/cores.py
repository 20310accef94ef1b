"""Cores of a host that pools share with the calls between them, where devices are cores."""

import math
from collections.abc import Generator
from dataclasses import dataclass

import simpy

Steps = Generator[simpy.Event, object, None]


def begin(steps: Steps) -> None:
    """Take steps at once until they wait, and go on with them as what they wait for happens.

    Nobody waits for their end or interrupts them: so they need no events of their own, as a SimPy process has.
    """

    def go_on(_: object) -> None:
        for event in steps:
            if event.callbacks is not None:
                event.callbacks.append(go_on)
                return

    go_on(None)


# What is left of a work when it ends, by rounding, as a share of what it takes.
ROUNDING = 1e-9


@dataclass(slots=True, eq=False)
class _Work:
    left_seconds: float
    rounding_seconds: float
    done: simpy.Event


class Cores:
    """Let works go on at once, each on a core of its own, or all more slowly where there are more works than cores.

    Args:
        count: Of cores; infinite where devices have processors of their own.
    """

    def __init__(self, environment: simpy.Environment, count: float = math.inf) -> None:
        self.environment, self.count = environment, count
        self.are_own = count == math.inf  # no work waits for another one's core
        self._works: list[_Work] = []
        self._seen_seconds = 0.0
        self._changes = 0

    def work(self, seconds: float) -> simpy.Event:
        """Return the end of what takes so many seconds of a core, or of a device of its own, from now on."""
        if self.are_own:
            return self.environment.timeout(seconds)
        self._go_on()
        work = _Work(seconds, ROUNDING * seconds, self.environment.event())
        self._works.append(work)
        self._await_next()
        return work.done

    def _rate(self) -> float:
        return min(1.0, self.count / len(self._works)) if self._works else 1.0

    def _go_on(self) -> None:
        """Note what was done since works last came or went."""
        now = self.environment.now
        done_seconds, self._seen_seconds = (now - self._seen_seconds) * self._rate(), now
        for work in self._works:
            work.left_seconds -= done_seconds

    def _await_next(self) -> None:
        self._changes += 1
        if self._works:
            begin(self._end_next(self._changes))

    def _end_next(self, change: int) -> Steps:
        """Wait until the next work ends, unless another one comes before that."""
        least = min(work.left_seconds for work in self._works)
        yield self.environment.timeout(max(0.0, least) / self._rate())
        if change != self._changes:
            return
        self._go_on()
        # The first of them ends in any case, or rounding could keep it for ever.
        first = min(self._works, key=lambda work: work.left_seconds)
        ended = [w for w in self._works if w is first or w.left_seconds <= w.rounding_seconds]
        self._works = [work for work in self._works if work not in ended]
        for work in ended:
            work.done.succeed()
        self._await_next()
