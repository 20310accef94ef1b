"""Instances of environments: an episode has one from its reset to its end, and waits for it behind those before it."""

from collections import deque
from collections.abc import Iterator, Sequence

from rlplan.simulator.environments.host import InstanceSlots


class Instances:
    """Give instances to episodes in the order in which they come; those of one environment hold up no others.

    Args:
        most: Episodes of all environments together that are under way at a time.
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
