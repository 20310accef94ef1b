"""How a generation engine's kernels compute experts, beside what their products and rows take on a device."""

from dataclasses import dataclass

from rlplan.files.limits import Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKernels:
    """Say how kernels in 16 bits compute a layer's experts on an architecture: they read tokens where they lie.

    Attributes:
        untuned_rate: Rate of computing over that of tuned tiles, where a device has none for a layer's experts and a step has more
            tokens than a rank has of them; with fewer, tiles are small and reading decides.
    """

    untuned_rate: Positive = 1.0
