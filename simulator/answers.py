"""Numbers of layouts that tables of tasks share: on sites and at lengths that make no difference to them."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rlplan.job import Job
from rlplan.profiles.tables.remembered import LeastRecentlyUsed

Floats = npt.NDArray[np.float64]
Placed = TypeVar("Placed")  # a task in one of its layouts

# In place of a job's lengths where they decide nothing.
ANY_TOKENS = 1


@lru_cache(maxsize=64)
def job_of_any_lengths(job: Job) -> Job:
    """Return a job with lengths that jobs which differ in theirs have in common.

    One whose work has more than prompts and responses stays as it is.
    """
    work = job.workload
    if job.environments or work.texts is not None or work.drops_responses:
        return job
    work = replace(work, prompt_tokens=ANY_TOKENS, response_tokens=ANY_TOKENS)
    return replace(job, workload=work)


# Answers for a task's layouts by the columns that decide them, of the questions asked last.
_ANSWERS: LeastRecentlyUsed[Hashable, Mapping[tuple[int, ...], Floats]] = LeastRecentlyUsed(512)


def answers_of(
    numbers: Callable[[Placed], Sequence[float] | Floats],
    decides: Hashable,
    asked: Sequence[tuple[int, ...]],
    placed_at: Callable[[list[int]], Sequence[Placed]],
) -> list[Floats]:
    """Return the numbers of layouts, in the order asked.

    Args:
        numbers: Answers for a layout.
        decides: What decides its answers beside the columns.
        asked: For each layout the values of the columns.
        placed_at: Resolves the layouts at places of `asked` whose answers are not known.
    """
    question = (numbers, decides)
    known = _ANSWERS.get(question) or {}
    new = [place for place, values in enumerate(asked) if values not in known]
    if new:
        found = {
            asked[place]: np.asarray(numbers(each), dtype=np.float64)
            for place, each in zip(new, placed_at(new), strict=True)
        }
        known = {**known, **found}
        _ANSWERS.keep(question, known)
    return [known[values] for values in asked]
