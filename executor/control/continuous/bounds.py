"""How far generation may run ahead, and which prompts an iteration learns from.

A version is an iteration's update: weights of version v have learnt from v batches. A response that
began with version v may be learnt from in iterations up to v + staleness.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePrompt:
    """Hold a prompt whose responses are begun and not learnt from.

    Attributes:
        number: In the stream of prompts.
        version: Of the weights that began the first of its responses.
        is_ready: Whether all of them are there, prepared.
    """

    number: int
    version: int
    is_ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessBound:
    """Say how old samples may be.

    Attributes:
        prompts: That are begun for an iteration; those beyond what it learns from are dropped when they are due.
        staleness: Most updates that the weights which began a response may lack when it is learnt from. A
            fraction lets that share of a batch be another update older.
    """

    prompts: int
    staleness: float

    @property
    def most_updates(self) -> int:
        """Return the most whole updates that any sample lacks."""
        return math.ceil(self.staleness)

    def most_begun(self, synced: int) -> int:
        """Return how many prompts may have been begun in all, with weights of a version in use.

        (v + n + eta) batches, with n iterations between two syncs and eta = staleness - (n - 1) batches begun
        ahead: whatever began with version v can then be learnt from by iteration v + staleness.
        """
        return math.floor((synced + 1 + self.staleness) * self.prompts)

    def is_due(self, version: int, iteration: int) -> bool:
        """Tell whether what began with a version is too old after an iteration."""
        return version + self.most_updates <= iteration

    def chosen(
        self, live: Sequence[LivePrompt], count: int, *, gone: int
    ) -> list[LivePrompt] | None:
        """Return what an update learns from: what is ready, the oldest version first; or None to wait.

        It waits for what would come too late afterwards: up to iteration w + staleness there is room for so
        many prompts of versions up to w, and all that are live must find some.

        Args:
            count: Prompts of the update.
            gone: Prompts that were learnt from, or dropped, before it.
        """
        ready = sorted(
            (each for each in live if each.is_ready), key=lambda each: (each.version, each.number)
        )[:count]
        if len(ready) < count:
            return None
        for version in {each.version for each in live}:
            older = sum(each.version <= version for each in live)
            room_later = (version + self.most_updates + 1) * self.prompts - gone - count
            if older - sum(each.version <= version for each in ready) > room_later:
                return None
        return ready
