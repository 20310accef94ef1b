"""RMS norm over the hidden size, forward and backward: what stands for all memory-bound operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rlplan.job import Job
from rlplan.profiles.probes.bench.contract import DeviceProbe, Keys, Settings
from rlplan.profiles.probes.bench.shapes import architectures, distinct, token_counts

if TYPE_CHECKING:
    from rlplan.profiles.probes.bench.clock import TorchBench

_HIDDEN_WITHOUT_JOB = (64, 1024, 4096)


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return the hidden sizes of the job's models, or general ones, for many numbers of tokens."""
    sizes: tuple[int, ...] = _HIDDEN_WITHOUT_JOB
    if job is not None:
        sizes = tuple(model.hidden_size for model in architectures(job))
    return distinct(
        {"direction": direction, "precision": settings.precision, "tokens": tokens, "hidden": size}
        for size in sizes
        for tokens in token_counts(job, settings)
        for direction in ("forward", "backward")
        if 4 * tokens * size <= settings.largest_bytes
    )


def prepare(bench: TorchBench, keys: Keys) -> Callable[[], object]:
    """Return the forward pass, or the backward pass alone over a graph that is kept."""
    from torch.nn.functional import rms_norm

    from rlplan.profiles.probes.bench.clock import one_way

    precision, hidden = str(keys["precision"]), int(keys["hidden"])
    backward = keys["direction"] == "backward"
    activations = bench.tensor(
        int(keys["tokens"]), hidden, precision=precision, with_gradient=backward
    )
    weight = bench.tensor(hidden, precision=precision, with_gradient=backward)
    return one_way(
        lambda: rms_norm(activations, (hidden,), weight, 1e-5),
        (activations, weight),
        backward=backward,
    )


PROBE = DeviceProbe(name="norm", table="norm", points=points, prepare=prepare)
