"""What follows from a list of operators: its backward pass, what is computed again, its FLOPs."""

from rlplan.models.operators import (
    Attention,
    Collective,
    CollectiveKind,
    Elementwise,
    Gemm,
    Operator,
    Operators,
    Scan,
)

# Forward reads an input and writes an output; backward reads the saved input and the gradient and
# writes a gradient: three tensors for two.
BACKWARD_BYTES_RATIO = 1.5

NARROW_BYTES = 1  # of a value that is quantised for a product

TRANSPOSED_COLLECTIVE: dict[CollectiveKind, CollectiveKind] = {
    "all_reduce": "all_reduce",
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_to_all": "all_to_all",
}


def backward_operators(forward: Operators) -> Operators:
    """Return the backward operators of a forward list; attention and scans keep their shape.

    Every matrix product has two, the gradient of its input and of its weight; frozen weights have no
    gradient. A row-parallel
    output's all-reduce has its counterpart at the column-parallel input (Shoeybi et al. 2019,
    section 3), so that their number is the same in both directions.
    """
    return tuple(operator for each in forward for operator in _backward(each))


def _backward(operator: Operator) -> Operators:
    if isinstance(operator, Gemm):
        m, k, n = operator.m, operator.k, operator.n
        of_input = Gemm(f"{operator.name} input gradient", m, n, k, operator.count)
        if operator.frozen:
            return (of_input,)
        return (of_input, Gemm(f"{operator.name} weight gradient", k, m, n, operator.count))
    if isinstance(operator, Elementwise):
        num_bytes = operator.num_bytes * BACKWARD_BYTES_RATIO
        return (Elementwise(operator.name, num_bytes, operator.kernels, operator.permutes),)
    if isinstance(operator, Collective):
        kind = TRANSPOSED_COLLECTIVE[operator.kind]
        return (Collective(operator.name, kind, operator.num_bytes, operator.group),)
    return (operator,)


def with_casts(forward: Operators, value_bytes: int) -> Operators:
    """Return a forward list in which kernels of their own quantise every product's input.

    Scaling dynamically reads it twice, for its largest value and for the quotient, and writes it once in
    8 bits (torchao, `torchao.float8`, README: dynamic scaling). Weights change once an update only.
    """
    found: list[Operator] = []
    for operator in forward:
        if isinstance(operator, Gemm):
            values = operator.m * operator.k * operator.count
            num_bytes = values * (2 * value_bytes + NARROW_BYTES)
            found.append(Elementwise(f"{operator.name} cast", num_bytes, kernels=2))
        found.append(operator)
    return tuple(found)


def gradient_accumulation(forward: Operators, bytes_per_weight: float) -> Operators:
    """Return the adding up of the weight gradients of all matrix products, if there are any."""
    weights = sum(
        each.k * each.n * each.count
        for each in forward
        if isinstance(each, Gemm) and not each.frozen
    )
    if not weights:
        return ()
    return (Elementwise("gradient accumulation", weights * bytes_per_weight),)


def recomputed_operators(forward: Operators, recompute: str, *, fused_attention: bool) -> Operators:
    """Return what the backward pass of a layer computes again.

    `full` repeats the whole layer from its input, wherever that is kept, and so does `alternate` for
    every other layer. `selective` repeats what is cheap to compute and big to keep: the memory-bound
    operators, and the attention core unless the kernel is fused and does so by itself (Korthikanti et
    al. 2022, section 5).
    """
    if recompute == "none":
        return ()
    if recompute in ("full", "full-offload", "alternate"):
        return forward
    return tuple(
        operator
        for operator in forward
        if isinstance(operator, Elementwise | Scan)
        or (isinstance(operator, Attention) and not fused_attention)
    )


def flops_of(operators: Operators) -> float:
    """Return the floating point operations of the matrix products, of (causal) attention and of scans.

    A scan writes each token into its states and reads them for it, however it goes about that.
    """
    count = 0.0
    for operator in operators:
        if isinstance(operator, Gemm):
            count += 2.0 * operator.m * operator.k * operator.n * operator.count
        elif isinstance(operator, Attention):
            seen_tokens = operator.cached_tokens + (operator.query_tokens + 1) / 2
            pairs = operator.batch * operator.query_tokens * seen_tokens
            count += 4.0 * pairs * operator.q_heads * operator.head_dim
        elif isinstance(operator, Scan):
            tokens = operator.sequences * operator.query_tokens * operator.heads
            count += 4.0 * tokens * operator.key_dim * operator.value_dim
    return count


def kernels_of(operators: Operators) -> int:
    """Return how many kernels the operators launch; grouped products and fused kernels are one."""
    return sum(each.kernels if isinstance(each, Elementwise) else 1 for each in operators)
