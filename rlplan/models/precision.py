"""Number formats: bytes a value, and what an optimizer keeps per parameter."""

from dataclasses import dataclass
from typing import Literal, TypeGuard

TrainingPrecision = Literal["fp32", "bf16", "fp16"]
NarrowPrecision = Literal["fp8", "mxfp8"]
Precision = TrainingPrecision | NarrowPrecision


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionPlan:
    """Say how many bytes weights, gradients and optimizer states take per parameter.

    Attributes:
        weight_bytes: One weight as the forward pass reads it.
        gradient_bytes: One gradient as it is accumulated.
        optimizer_bytes: Master weight and Adam's two moments.
        master_bytes: Of these, the master weight; 0 where the weight itself is stepped.
    """

    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    master_bytes: int


# Mixed-precision Adam: 2 + 2 bytes and 12 of fp32 master weight and moments, or gradients
# accumulated in fp32 (Rajbhandari et al. 2020, ZeRO, section 3.1). Full fp32 keeps no master copy.
# In a narrow format only the inputs of linear layers' products are held; all else keeps a wide one.
PRECISIONS: dict[Precision, PrecisionPlan] = {
    "fp32": PrecisionPlan(weight_bytes=4, gradient_bytes=4, optimizer_bytes=8, master_bytes=0),
    "bf16": PrecisionPlan(weight_bytes=2, gradient_bytes=4, optimizer_bytes=12, master_bytes=4),
    "fp16": PrecisionPlan(weight_bytes=2, gradient_bytes=2, optimizer_bytes=12, master_bytes=4),
    "fp8": PrecisionPlan(weight_bytes=1, gradient_bytes=4, optimizer_bytes=12, master_bytes=4),
    "mxfp8": PrecisionPlan(weight_bytes=1, gradient_bytes=4, optimizer_bytes=12, master_bytes=4),
}

# States of a trainer that keeps no master copy: weights, gradients and both of Adam's moments in one format
# (PyTorch's optimizers keep moments in their parameters' format; EasyR1 README, "BF16" of its table of hardware).
ALONE: dict[TrainingPrecision, PrecisionPlan] = {
    "fp32": PRECISIONS["fp32"],
    "bf16": PrecisionPlan(weight_bytes=2, gradient_bytes=2, optimizer_bytes=4, master_bytes=0),
    "fp16": PrecisionPlan(weight_bytes=2, gradient_bytes=2, optimizer_bytes=4, master_bytes=0),
}

# Optimizers by what they keep. `kahan-bf16`: both of Adam's moments and what rounding takes off every step, all in bf16
# whatever the weights' format (torchdistX, AnyPrecisionAdamW with Kahan summation).
OptimizerKind = Literal["adam", "kahan-bf16"]
KAHAN_BYTES = 6

# Bytes of scales for each narrow weight: one in fp32 for a block of 128 x 128 (DeepSeek-AI 2024,
# arXiv:2412.19437, section 3.3.2), or one of 8 bits for every 32 (OCP Microscaling Formats v1.0, table 1).
SCALE_BYTES: dict[NarrowPrecision, float] = {"fp8": 4 / 128**2, "mxfp8": 1 / 32}


# The format of what is not quantised beside products of each: activations between kernels, attention
# scores, embedding and output head (TensorRT-LLM's, vLLM's and Transformer Engine's recipes leave the
# output matrix out), and in training weights, gradients and optimizer states.
WIDE: dict[Precision, TrainingPrecision] = {
    "fp32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "bf16",
    "mxfp8": "bf16",
}


def is_narrow(precision: Precision) -> TypeGuard[NarrowPrecision]:
    """Tell whether products in a format have inputs that are quantised for them."""
    return precision in SCALE_BYTES
