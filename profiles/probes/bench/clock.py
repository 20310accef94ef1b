"""The clock of one device process: prepared inputs, warm-up, seconds of each repeat, and how many repeats."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

# The first call loads kernels and grows the allocator's pools, the second fills caches. A fixed
# number, since all members of a collective must make the same number of calls.
WARM_UP_CALLS: Final = 2
TORCH_NAMES: Final = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBench:
    """Hold what operators are measured with in one device process.

    Attributes:
        device: Where tensors live.
        rank: Number of this process among those of all devices.
        groups: By ranks and ranks of one node, this process's group; absent where it has none.
    """

    device: torch.device
    rank: int = 0
    groups: Mapping[tuple[int, int], ProcessGroup]

    def tensor(self, *shape: int, precision: str, with_gradient: bool = False) -> torch.Tensor:
        """Return a tensor of normal draws, the same on every call."""
        import torch

        generator = torch.Generator(self.device).manual_seed(0)
        drawn = torch.randn(shape, generator=generator, device=self.device)
        return drawn.to(dtype_of(precision)).requires_grad_(with_gradient)

    def buffer(self, num_bytes: int, *, on_host: bool = False) -> torch.Tensor:
        """Return a float32 buffer of about `num_bytes`; on the host it is pinned for a GPU."""
        import torch

        count = max(1, num_bytes // 4)
        if not on_host:
            return torch.ones(count, device=self.device)
        return torch.ones(count, pin_memory=self.device.type == "cuda")

    def measure(self, operation: Callable[[], object], repeats: int) -> tuple[float, ...]:
        """Return the seconds of each repeat of an operation, after a warm-up."""
        for _ in range(WARM_UP_CALLS):
            operation()
        if self.device.type == "cuda":
            return _by_events(operation, repeats)
        seconds = []
        for _ in range(repeats):
            start_seconds = time.perf_counter()
            operation()
            seconds.append(time.perf_counter() - start_seconds)
        return tuple(seconds)


def one_way(
    forward: Callable[[], torch.Tensor], inputs: Sequence[torch.Tensor], *, backward: bool
) -> Callable[[], object]:
    """Return a forward pass, or its backward pass alone over a graph that is kept."""
    import torch

    if not backward:
        return forward
    output = forward()
    arriving = torch.ones_like(output)
    return lambda: torch.autograd.grad(output, inputs, arriving, retain_graph=True)


def dtype_of(precision: str) -> torch.dtype:
    """Return torch's type of a number format."""
    import torch

    dtype = getattr(torch, TORCH_NAMES[precision])
    assert isinstance(dtype, torch.dtype)
    return dtype


def _by_events(operation: Callable[[], object], repeats: int) -> tuple[float, ...]:
    """Return the seconds between events on the device's own stream, so that no launch waits count."""
    import torch

    from rlplan.units import seconds_from_ms

    def event() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    pairs = [(event(), event()) for _ in range(repeats)]
    torch.cuda.synchronize()
    for start, end in pairs:
        start.record()
        operation()
        end.record()
    torch.cuda.synchronize()
    return tuple(seconds_from_ms(start.elapsed_time(end)) for start, end in pairs)


FEWEST_REPEATS: Final = 3
MOST_REPEATS: Final = 15
POINT_BUDGET_SECONDS: Final = 0.2


def measure_within_budget(measure: Callable[[int], tuple[float, ...]]) -> tuple[float, ...]:
    """Return the seconds of each repeat of a point: 3 repeats, then up to 15 within 0.2 s.

    Args:
        measure: Returns the seconds of as many repeats as it is asked for.
    """
    first = measure(FEWEST_REPEATS)
    left_seconds = POINT_BUDGET_SECONDS - sum(first)
    typical_seconds = statistics.median(first)
    most = MOST_REPEATS - len(first)
    fitting = most if typical_seconds == 0 else min(most, int(left_seconds / typical_seconds))
    # Fewer would cost another warm-up and tell next to nothing.
    return first if fitting < FEWEST_REPEATS else first + measure(fitting)


# Passes of models come in rounds: what disturbs the machine for a second then disturbs one round of
# a point and not the point, and between two rounds other models fill the caches, as in a job.
ROUNDS: Final = 8
ROUND_BUDGET_SECONDS: Final = 0.03
MOST_ROUND_REPEATS: Final = 3
# Beyond it a second repeat costs more than it tells: caches that were full of another model's data
# slow no more than the first milliseconds.
LONG_PASS_SECONDS: Final = 0.2


def rounds_of(rounds: int, typical_seconds: float) -> int:
    """Return of how many rounds a pass that takes so long is in: of half of them where it is long.

    What disturbs the machine for a moment is a smaller part of it.
    """
    return rounds if typical_seconds < LONG_PASS_SECONDS else max(1, rounds // 2)


def fewest_of_round(typical_seconds: float) -> int:
    """Return the repeats that a round has at least, of a pass that takes so long."""
    return 1 if typical_seconds >= LONG_PASS_SECONDS else 2


def measure_round(
    measure: Callable[[int], tuple[float, ...]], known: tuple[float, ...]
) -> tuple[float, ...]:
    """Return the seconds of a point's repeats with one more round: 2 or 3, or 1 of a long pass.

    Args:
        measure: Returns the seconds of as many repeats as it is asked for.
        known: Of earlier rounds.
    """
    typical_seconds = statistics.median(known) if known else ROUND_BUDGET_SECONDS
    repeats = int(ROUND_BUDGET_SECONDS / max(typical_seconds, 1e-6))
    return known + measure(min(max(repeats, fewest_of_round(typical_seconds)), MOST_ROUND_REPEATS))
