"""Number formats: bytes a value, and what an optimizer keeps per parameter."""

from dataclasses import dataclass
from typing import Literal

TrainingPrecision = Literal["fp32", "bf16", "fp16"]
Precision = TrainingPrecision | Literal["fp8"]


MOMENT_BYTES = 8  # Adam's two, in fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionPlan:
    """Say how many bytes weights, gradients and optimizer states take per parameter.

    Attributes:
        weight_bytes: One weight as the forward pass reads it.
        gradient_bytes: One gradient as it is accumulated.
        optimizer_bytes: Master weight and Adam's two moments.
    """

    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int

    @property
    def master_bytes(self) -> int:
        """Return the bytes of the master weight; 0 where the weight itself is stepped."""
        return self.optimizer_bytes - MOMENT_BYTES


# Mixed-precision Adam: 2 + 2 bytes and 12 of fp32 master weight and moments, or gradients
# accumulated in fp32 (Rajbhandari et al. 2020, ZeRO, section 3.1). Full fp32 keeps no master copy.
# An engine that multiplies in fp8 holds nothing but the weights in it; training keeps its own formats.
PRECISIONS: dict[Precision, PrecisionPlan] = {
    "fp32": PrecisionPlan(weight_bytes=4, gradient_bytes=4, optimizer_bytes=8),
    "bf16": PrecisionPlan(weight_bytes=2, gradient_bytes=4, optimizer_bytes=12),
    "fp16": PrecisionPlan(weight_bytes=2, gradient_bytes=2, optimizer_bytes=12),
    "fp8": PrecisionPlan(weight_bytes=1, gradient_bytes=4, optimizer_bytes=12),
}
