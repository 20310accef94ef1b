"""What low-rank adapters add to a model's layers, and what freezing the model takes out of them."""

from dataclasses import replace
from itertools import pairwise

from rlplan.models.adapter import Adapter
from rlplan.models.operators import Elementwise, Gemm, Operators

# Matrices that choose experts stay as they are: neither trainers nor engines have adapters for them.
UNTOUCHED = ("router",)

SUMMED_TENSORS = 2  # an adapter's product, and the same scaled


def with_adapters(operators: Operators, adapter: Adapter, value_bytes: int) -> Operators:
    """Return frozen operators of a part with adapters beside each linear layer: x W + x A B.

    A matrix that is split by columns has its A on every rank and its B split by columns; one that is split
    by rows has its A split by rows and its B on every rank: no exchange more than without them. What they
    add is read, added and written.
    """
    found: list[Operators] = []
    for operator in operators:
        found.append(frozen((operator,)))
        if isinstance(operator, Gemm) and operator.name not in UNTOUCHED:
            m, k, n, count = operator.m, operator.k, operator.n, operator.count
            found.append(
                (
                    Gemm(
                        f"{operator.name} adapter in", m, k, operator.matrices * adapter.rank, count
                    ),
                    Gemm(f"{operator.name} adapter out", m, adapter.rank, n, count),
                    Elementwise(f"{operator.name} adapter sum", 3 * m * n * count * value_bytes),
                )
            )
    return tuple(operator for some in found for operator in some)


def sums_bytes(operators: Operators, value_bytes: int) -> int:
    """Return the bytes of what adapters add where a layer with them is widest: products and scaled copies.

    Both lie beside a matrix's own output until they are added to it (PEFT, `peft/tuners/lora/layer.py`,
    `Linear.forward`).

    Args:
        operators: Of a layer, as `with_adapters` has them.
    """
    widest = 0
    for own, next_one in pairwise(each for each in operators if isinstance(each, Gemm)):
        if own.frozen and not next_one.frozen:
            widest = max(widest, own.m * own.n // own.matrices * own.count)
    return SUMMED_TENSORS * widest * value_bytes


def frozen(operators: Operators) -> Operators:
    """Return the operators of weights without gradients."""
    return tuple(
        replace(operator, frozen=True) if isinstance(operator, Gemm) else operator
        for operator in operators
    )
