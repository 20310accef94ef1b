"""A message from one device to its neighbour: half of the way there and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rlplan.job import Job
from rlplan.profiles.probes.bench.contract import DeviceProbe, Keys, Settings
from rlplan.profiles.probes.bench.shapes import message_bytes

if TYPE_CHECKING:
    from rlplan.profiles.probes.bench.clock import TorchBench

_PAIR = 2


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return messages of many sizes between two ranks, of one node or two; none for a lone device."""
    del job
    if settings.nodes == 1 and settings.devices < _PAIR:
        return []
    per_node = _PAIR if settings.nodes == 1 else 1
    return [
        {"kind": "send_recv", "ranks": _PAIR, "ranks_per_node": per_node, "num_bytes": num_bytes}
        for num_bytes in message_bytes(settings)
    ]


def prepare(bench: TorchBench, keys: Keys) -> Callable[[], object]:
    """Return the message there and back; a sender that does not wait would time its own queue."""
    import torch.distributed as dist

    group = bench.groups.get((_PAIR, int(keys["ranks_per_node"])))
    if group is None:
        return lambda: None
    message = bench.buffer(int(keys["num_bytes"]))
    first, second = dist.get_global_rank(group, 0), dist.get_global_rank(group, 1)

    def there_and_back() -> None:
        if bench.rank == first:
            dist.send(message, dst=second, group=group)
            dist.recv(message, src=second, group=group)
        else:
            dist.recv(message, src=first, group=group)
            dist.send(message, dst=first, group=group)

    return there_and_back


PROBE = DeviceProbe(
    name="send_recv",
    table="collective",
    points=points,
    prepare=prepare,
    collective=True,
    operations=2,
)
