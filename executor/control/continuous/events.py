"""What the controller waits for: references, and what is to be done once they are there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError

from rlplan.executor.workers.pools import LOOK_SECONDS, fetched

Then = Callable[[list[Any]], None]
Lost = Callable[[], None]


@dataclass(slots=True, eq=False)
class _Wait:
    references: Sequence[Any]
    then: Then
    lost: Lost | None
    missing: int
    values: dict[Any, Any] = field(default_factory=dict)


class Events:
    """Call functions when references are there, one after another."""

    def __init__(self) -> None:
        self._waits: dict[Any, _Wait] = {}

    def when(self, references: Sequence[Any], then: Then, lost: Lost | None = None) -> None:
        """Call a function with the values of references, all of which are the caller's alone.

        Args:
            lost: Called once instead where the actor that some of them come from has ended; None: the wait
                fails.
        """
        wait = _Wait(references, then, lost, len(references))
        self._waits |= dict.fromkeys(references, wait)

    def wait(self) -> None:
        """Wait for something, and do what is to be done about all that is there.

        Raises:
            UserError: A worker met a mistake of the user's.
            RlplanError: A worker failed or died.
        """
        assert self._waits, "something is under way"
        known = list(self._waits)
        ready: list[Any] = []
        while not ready:
            ready, _ = ray.wait(known, num_returns=1, timeout=LOOK_SECONDS)
        ready, _ = ray.wait(known, num_returns=len(known), timeout=0)
        for reference in ready:
            wait = self._waits.pop(reference, None)
            if wait is not None:
                self._arrived(reference, wait)

    def _arrived(self, reference: Any, wait: _Wait) -> None:
        if wait.lost is None:
            wait.values |= fetched({reference: reference})
        else:
            try:
                wait.values[reference] = ray.get(reference)
            except RayActorError:
                for other in wait.references:
                    self._waits.pop(other, None)
                wait.lost()
                return
        wait.missing -= 1
        if not wait.missing:
            wait.then([wait.values[each] for each in wait.references])
