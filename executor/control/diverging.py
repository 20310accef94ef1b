"""A run whose numbers are not finite any more: when it ends, and what it says then."""

from collections.abc import Mapping
from pathlib import Path

from rlplan.dataflow import Task
from rlplan.errors import DivergedError
from rlplan.executor.control.checkpoints import Checkpoint
from rlplan.executor.control.metrics import METRICS_FILE
from rlplan.executor.control.summary import skipped_updates_of
from rlplan.plan import Plan

# One odd batch has a gradient that is not finite, and the next has not; a model without an update in so many iterations
# after one another learns nothing more, and costs what one that learns does.
MOST_WITHOUT_UPDATE = 3

ADVICE = "a lower learning_rate or max_gradient_norm may help"


class SkippedUpdates:
    """Count the iterations after one another in which a model has had no update, for its gradient was never finite."""

    def __init__(self, plan: Plan, tasks: tuple[Task, ...]) -> None:
        work = plan.job.workload
        self._updates = work.updates * work.epochs
        self._names = {skipped_updates_of(task.role): task.name for task in tasks if task.trains}
        self._without = dict.fromkeys(self._names, 0)

    def note(self, metrics: Mapping[str, float]) -> None:
        """Take an iteration that is done into account.

        Raises:
            DivergedError: A model had no update in several iterations.
        """
        for name, task in self._names.items():
            has_none = metrics[name] >= self._updates
            self._without[name] = self._without[name] + 1 if has_none else 0
            if self._without[name] == MOST_WITHOUT_UPDATE:
                raise DivergedError(
                    f"{task}: no gradient was finite in {MOST_WITHOUT_UPDATE} iterations, and no update was made"
                )


def end_of_diverged(error: DivergedError, last: Checkpoint | None, done: int, out: Path) -> str:
    """Return what is said of a run that ends for numbers that are not finite: what is kept, and what may be done.

    Args:
        last: The checkpoint that was written last; None: there is none.
        done: Iterations.
        out: The run's folder.
    """
    words = [f"{error}"]
    if done:
        words.append(f"metrics until then are in {out / METRICS_FILE}")
    if last is None:
        words.append(f"no checkpoint to go on from (--checkpoint-every); {ADVICE}")
    else:
        words.append(f"{ADVICE}, with --resume {last.folder}, or an earlier one")
    return "; ".join(words)
