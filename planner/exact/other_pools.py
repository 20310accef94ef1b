"""Level 2 of the search: how the pools beside the one that generates share the rest of the cluster.

A choice gives every one of these sets a share and layouts. Only those choices matter that no other beats
in the GPUs it takes and in the stages, each of which ends when its slowest pool ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from rlplan.planner.exact.score import Score
from rlplan.planner.layouts.pareto import Places, front_rows
from rlplan.simulator.placed.columns import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class OtherPools:
    """Hold choices of shares and layouts for some sets, one row each.

    Attributes:
        used: GPUs by device; shape (rows, devices).
        stages: Seconds until the slowest pool has prepared, has trained, and of both stages' work on the pool that
            sends new weights to a copy, where iterations overlap, else zero; shape (rows, 4).
        own: Seconds of each set's work where responses stream, else zero: a pool that is not the slowest one may
            have others wait for it all the same; shape (rows, sets).
        work: Of the pools, by figure that counts it (`rlplan.planner.exact.score`); shape (rows, figures).
        sending: What each second adds to it in which new weights go to a copy. Shape as `work`.
        picks: For each set its share's place and its row; shape (rows, sets, 2).
    """

    used: Ints
    stages: Floats
    own: Floats
    work: Floats
    sending: Floats
    picks: Ints

    def __len__(self) -> int:
        return len(self.stages)

    def rows(self, chosen: Places) -> "OtherPools":
        """Return the chosen rows."""
        return OtherPools(*(getattr(self, each.name)[chosen] for each in fields(self)))


def empty(score: Score, rows: int, sets: int) -> OtherPools:
    """Return choices that take nothing, such as the one of no sets."""
    figures = np.zeros((rows, score.computing.shape[1]))
    return OtherPools(
        np.zeros((rows, len(score.devices)), dtype=np.int64),
        np.zeros((rows, 4)),
        np.zeros((rows, sets)),
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
    stages = np.maximum(left.stages[first], right.stages[second])
    work = left.work[first] + right.work[second]
    sending = left.sending[first] + right.sending[second]
    seconds = least_generation_seconds + stages[:, 0] + stages[:, 1]
    own = np.concatenate([left.own[first], right.own[second]], axis=1)
    kept = np.flatnonzero(score.values(seconds, used, work) < cutoff)
    keys = [used[kept], stages[kept], own[kept], work[kept], sending[kept]]
    if score.workers is not None and score.workers.least < score.workers.most:
        keys.append(-score.workers.gaining(used[kept]))  # more GPUs come with more workers
    kept = kept[front_rows(np.concatenate(keys, axis=1))]
    picks = np.concatenate([left.picks[first[kept]], right.picks[second[kept]]], axis=1)
    return OtherPools(used[kept], stages[kept], own[kept], work[kept], sending[kept], picks)


def stacked(parts: Iterable[OtherPools], score: Score) -> OtherPools:
    """Return the rows of all parts, each of one set, together."""
    some = [empty(score, 0, 1), *parts]
    names = (field.name for field in fields(OtherPools))
    return OtherPools(*(np.concatenate([getattr(each, name) for each in some]) for name in names))
