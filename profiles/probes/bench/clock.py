"""The clock of one device process: prepared inputs, warm-up, seconds of each repeat."""

from __future__ import annotations

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
