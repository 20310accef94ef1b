"""Matrix products of a layer: (m x k) times (k x n), as a linear layer's forward pass does them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING

from rlplan.job import Job
from rlplan.profiles.probes.bench.contract import DeviceProbe, Keys, Settings
from rlplan.profiles.probes.bench.shapes import (
    architectures,
    distinct,
    layer_matrices,
    operator_tp_sizes,
    token_counts,
)

if TYPE_CHECKING:
    from rlplan.profiles.probes.bench.clock import TorchBench

_WIDTHS_WITHOUT_JOB = (64, 256, 1024, 4096)


def _matrices(job: Job | None, settings: Settings) -> Iterator[tuple[int, int]]:
    if job is None:
        yield from product(_WIDTHS_WITHOUT_JOB[:: 2 if settings.quick else 1], repeat=2)
        return
    for model in architectures(job):
        for tp in operator_tp_sizes(model, job, settings):
            yield from layer_matrices(model, tp)


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return the products of the job's layers, or of a general grid, for many numbers of tokens."""
    return distinct(
        {"precision": settings.precision, "m": m, "k": k, "n": n}
        for k, n in _matrices(job, settings)
        for m in token_counts(job, settings)
        if 2 * m * k * n <= settings.largest_flops
        and 4 * max(m * k, k * n, m * n) <= settings.largest_bytes
    )


def prepare(bench: TorchBench, keys: Keys) -> Callable[[], object]:
    """Return the product; the weight lies as a linear layer keeps it, (n, k)."""
    from torch.nn.functional import linear

    m, k, n = int(keys["m"]), int(keys["k"]), int(keys["n"])
    activations = bench.tensor(m, k, precision=str(keys["precision"]))
    weight = bench.tensor(n, k, precision=str(keys["precision"]))
    return lambda: linear(activations, weight)


PROBE = DeviceProbe(name="gemm", table="gemm", points=points, prepare=prepare)
