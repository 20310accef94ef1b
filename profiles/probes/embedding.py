"""Token embedding: the look-up, and the dense gradient of the whole table in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rlplan.job import Job
from rlplan.profiles.probes.bench.contract import DeviceProbe, Keys, Settings
from rlplan.profiles.probes.bench.shapes import architectures, distinct, token_counts

if TYPE_CHECKING:
    from rlplan.profiles.probes.bench.clock import TorchBench

_TABLES_WITHOUT_JOB = ((64, 256), (1024, 32000))


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return the embedding tables of the job's models, or general ones, for numbers of tokens."""
    tables: tuple[tuple[int, int], ...] = _TABLES_WITHOUT_JOB
    if job is not None:
        tables = tuple((model.hidden_size, model.vocab_size) for model in architectures(job))
    return distinct(
        {
            "direction": direction,
            "precision": settings.precision,
            "tokens": tokens,
            "hidden": hidden,
            "vocab": vocab,
        }
        for hidden, vocab in tables
        for tokens in token_counts(job, settings)
        for direction in ("forward", "backward")
        if 4 * hidden * max(tokens, vocab) <= settings.memory_bytes // 16
    )


def prepare(bench: TorchBench, keys: Keys) -> Callable[[], object]:
    """Return the look-up, or the backward pass alone over a graph that is kept."""
    import torch
    from torch.nn.functional import embedding

    from rlplan.profiles.probes.bench.clock import one_way

    backward = keys["direction"] == "backward"
    vocab = int(keys["vocab"])
    table = bench.tensor(
        vocab, int(keys["hidden"]), precision=str(keys["precision"]), with_gradient=backward
    )
    # A stride prime to most sizes walks over the whole table, as text does.
    tokens = (torch.arange(int(keys["tokens"]), device=bench.device) * 7919) % vocab
    return one_way(lambda: embedding(tokens, table), (table,), backward=backward)


PROBE = DeviceProbe(name="embedding", table="embedding", points=points, prepare=prepare)
