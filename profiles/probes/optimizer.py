"""AdamW's step over so many parameters: read and write of weight, gradient and two moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rlplan.job import Job
from rlplan.models import PRECISIONS, Head
from rlplan.parts import num_parameters
from rlplan.profiles.probes.bench.contract import DeviceProbe, Keys, Settings
from rlplan.profiles.probes.bench.shapes import architectures, geometric, operator_tp_sizes

if TYPE_CHECKING:
    from rlplan.profiles.probes.bench.clock import TorchBench

_FEWEST, _MOST_ON_CPU, _MOST_ON_GPU = 2**12, 2**24, 2**28
_HEADS: tuple[Head, ...] = ("lm", "scalar")


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return a general grid, and the parameters of the job's models on each shard."""
    plan = PRECISIONS[settings.precision]
    held_bytes = plan.weight_bytes + plan.gradient_bytes + plan.optimizer_bytes
    most = _MOST_ON_CPU if settings.kind == "cpu" else _MOST_ON_GPU
    most = min(most, settings.memory_bytes // (4 * held_bytes))
    counts = set(geometric(_FEWEST, most, 4 * settings.step))
    if job is not None:
        for model in architectures(job):
            for tp in operator_tp_sizes(model, job, settings):
                counts |= {num_parameters(model, head) // tp for head in _HEADS}
    return [
        {"precision": settings.precision, "parameters": count}
        for count in sorted(counts)
        if count <= most
    ]


def prepare(bench: TorchBench, keys: Keys) -> Callable[[], object]:
    """Return one step; with 16-bit weights, of the fp32 master copy and the copy back to them.

    In one kernel on a GPU, and operation by operation on a CPU: as the executor steps.
    """
    import torch

    count, precision = int(keys["parameters"]), str(keys["precision"])
    master = torch.nn.Parameter(bench.tensor(count, precision="fp32"))
    master.grad = bench.tensor(count, precision="fp32")
    optimizer = torch.optim.AdamW([master], lr=1e-6, foreach=False, fused=master.is_cuda)
    if precision == "fp32":
        return optimizer.step
    weights = bench.tensor(count, precision=precision)

    def step() -> None:
        optimizer.step()
        weights.copy_(master.detach())

    return step


PROBE = DeviceProbe(name="optimizer", table="optimizer", points=points, prepare=prepare)
