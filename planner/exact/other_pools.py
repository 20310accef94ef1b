"""Level 2 of the search: how the pools beside the one that generates share the rest of the cluster.

A choice gives every one of these sets a share and layouts. Only those choices matter that no other beats
in the GPUs it takes and in the stages, each of which ends when its slowest pool ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from planner.exact.score import Score
from planner.layouts.pareto import Places, front_rows
from simulator.placed.columns import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class OtherPools:
    """Hold choices of shares and layouts for some sets, one row each.

    Attributes:
        used: GPUs by device; shape (rows, devices).
        prepare, train: Seconds until the stage's slowest pool is done.
        sender_prepare, sender_train: Seconds of the stages' work on the pool that sends new weights to
            a copy, where iterations overlap; else zero.
        work: Of the pools, by figure that counts it (`planner.exact.score`); shape (rows, figures).
        sending: What each second adds to it in which new weights go to a copy. Shape as `work`.
        picks: For each set its share's place and its row; shape (rows, sets, 2).
    """

    used: Ints
    prepare: Floats
    train: Floats
    sender_prepare: Floats
    sender_train: Floats
    work: Floats
    sending: Floats
    picks: Ints

    def __len__(self) -> int:
        return len(self.prepare)

    def rows(self, chosen: Places) -> "OtherPools":
        """Return the chosen rows."""
        return OtherPools(
            self.used[chosen],
            self.prepare[chosen],
            self.train[chosen],
            self.sender_prepare[chosen],
            self.sender_train[chosen],
            self.work[chosen],
            self.sending[chosen],
            self.picks[chosen],
        )


def empty(score: Score, rows: int, sets: int) -> OtherPools:
    """Return choices that take nothing, such as the one of no sets."""
    seconds, figures = np.zeros(rows), np.zeros((rows, score.computing.shape[1]))
    return OtherPools(
        np.zeros((rows, len(score.devices)), dtype=np.int64),
        seconds,
        seconds,
        seconds,
        seconds,
        figures,
        figures,
        np.zeros((rows, sets, 2), dtype=np.int64),
    )


def joined(
    left: OtherPools,
    right: OtherPools,
    limits: Ints,
    least_generation_seconds: float,
    cutoff: float,
    score: Score,
) -> OtherPools:
    """Return the choices for both sides' sets that can still be worth something.

    Args:
        limits: GPUs of each device that they may take together.
        least_generation_seconds: No iteration generates faster.
        cutoff: Values that are no less are of no use.
    """
    first = np.repeat(np.arange(len(left)), len(right))
    second = np.tile(np.arange(len(right)), len(left))
    used = left.used[first] + right.used[second]
    fits = np.all(used <= limits, axis=1)
    first, second, used = first[fits], second[fits], used[fits]
    prepare = np.maximum(left.prepare[first], right.prepare[second])
    train = np.maximum(left.train[first], right.train[second])
    sender_prepare = np.maximum(left.sender_prepare[first], right.sender_prepare[second])
    sender_train = np.maximum(left.sender_train[first], right.sender_train[second])
    work = left.work[first] + right.work[second]
    sending = left.sending[first] + right.sending[second]
    values = score.values(least_generation_seconds + prepare + train, used, work)
    kept = np.flatnonzero(values < cutoff)
    seconds = np.stack([prepare, train, sender_prepare, sender_train], axis=1)
    keys = [used[kept], seconds[kept], work[kept], sending[kept]]
    kept = kept[front_rows(np.concatenate(keys, axis=1))]
    first, second = first[kept], second[kept]
    return OtherPools(
        used[kept],
        prepare[kept],
        train[kept],
        sender_prepare[kept],
        sender_train[kept],
        work[kept],
        sending[kept],
        np.concatenate([left.picks[first], right.picks[second]], axis=1),
    )


def stacked(parts: Iterable[OtherPools], score: Score) -> OtherPools:
    """Return the rows of all parts, each of one set, together."""
    some = [empty(score, 0, 1), *parts]
    return OtherPools(
        *(
            np.concatenate([getattr(each, name) for each in some])
            for name in (field.name for field in fields(OtherPools))
        )
    )
