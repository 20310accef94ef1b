"""What the controller asks of a feed, and what it gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rlplan.executor.control.dispatcher import Pieces
from rlplan.executor.control.pending_calls import PendingCall
from rlplan.executor.data.batches import Piece
from rlplan.replicas import ReplicaChange
from rlplan.trace import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class SentIteration:
    """Hold an iteration that was sent off.

    Attributes:
        calls: Those with which it ends; none where its samples call for them one by one.
        pieces: By data key, references to what it learns from, the last of them when it has ended.
    """

    iteration: int
    start_seconds: float
    calls: tuple[PendingCall, ...]
    # Keeps the objects of the iteration alive until it is finished.
    pieces: Mapping[str, tuple[Piece, ...]] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedIteration:
    """Hold what an iteration's calls measured.

    Attributes:
        metrics: By task, of all its ranks.
        ages: Of each sample that is learnt from, how many updates the weights lacked that began it.
        dropped: Samples that were begun and got too old: nobody learns from them.
        changes: Of the replicas that come and go, since the iteration before ended.
    """

    spans: tuple[Span, ...]
    metrics: Mapping[str, Mapping[str, float]]
    ages: Sequence[int] = ()
    dropped: int = 0
    changes: tuple[ReplicaChange, ...] = ()


class Feed(Protocol):
    """Generate batches, as far ahead as the plan's flow lets it, and let an iteration learn from each."""

    def begin(self, iteration: int, *, is_last: bool) -> tuple[tuple[PendingCall, ...], Pieces]:
        """Send what can be sent now; return the calls and the pieces of `SentIteration`.

        It waits only where a batch is chosen from what is generated.

        Args:
            is_last: Whether none follows, so that nothing is begun for it.
        """

    def end(self, running: SentIteration, origin_seconds: float) -> EndedIteration:
        """Wait until an iteration has learnt from its batch; return what it measured.

        Args:
            origin_seconds: What span times count from, on the host's clock.
        """

    def bring_newest(self, done: int) -> None:
        """Bring the weights as they are to what generates, for an evaluation.

        Args:
            done: Iterations.
        """

    def position(self, iteration: int) -> tuple[int, tuple[int, ...]]:
        """Return the next prompt of the stream after some iterations, and those before it that are left."""

    def go_on_from(self, iteration: int, next_prompt: int, left: Sequence[int]) -> None:
        """Begin where a run was: prompts that were not learnt from are begun again."""

    def stop(self) -> None:
        """End what the feed itself has started."""
