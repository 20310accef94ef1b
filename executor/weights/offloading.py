"""Tensors that are off-loaded to host memory between uses."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class HostOffload:
    """Keep tensors on the host between uses; the tensors themselves, and views of them, stay valid.

    Args:
        tensors: Returns what is off-loaded, each with a storage of its own; it may grow between uses.
    """

    def __init__(self, tensors: Callable[[], Sequence[Tensor]]) -> None:
        self._tensors = tensors
        self._held: list[tuple[Tensor, Tensor]] = []

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Hold the tensors on the device inside the context."""
        self.reload()
        try:
            yield
        finally:
            self.offload()

    def offload(self) -> None:
        """Copy the tensors to the host and give their device memory back."""
        for tensor in self._tensors():
            whole = _storage_of(tensor)
            host = torch.empty_like(whole, device="cpu", pin_memory=whole.is_cuda)
            host.copy_(whole)
            whole.untyped_storage().resize_(0)
            self._held.append((whole, host))

    def reload(self) -> None:
        """Take device memory again and copy the tensors back; nothing where nothing is off-loaded."""
        for whole, host in self._held:
            whole.untyped_storage().resize_(host.untyped_storage().nbytes())
            whole.copy_(host)
        self._held.clear()


def _storage_of(tensor: Tensor) -> Tensor:
    """Return all of a tensor's storage as one flat tensor."""
    with torch.no_grad():
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
            tensor.untyped_storage()
        )
