"""Tell torch's distributed tensors, which take a worker more than a second to load, without loading them."""

import sys
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def is_distributed(tensor: Tensor) -> "TypeIs[DTensor]":
    """Tell whether a tensor is one of torch's distributed ones: where these are not loaded, there is none."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)
