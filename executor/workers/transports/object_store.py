"""Ray's object store: weights for another pool, bucket by bucket.

The train pool puts a bucket out once for all replicas, and the next one when every rank of the
generate pool has written it: more than a bucket is never under way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from torch import Tensor

from rlplan.executor.parallel.meshes import wait_for_device
from rlplan.executor.weights.flat import FlatParameters
from rlplan.executor.weights.transition import (
    WEIGHT_BYTES,
    Block,
    ShardLayout,
    buckets_of,
    export_slices,
    shard_layout_of,
    write_slice,
)
from rlplan.executor.workers.calls import CallReport, now_seconds, wait_for
from rlplan.executor.workers.pools import WorkerGroup
from rlplan.executor.workers.worker import PoolModels, as_array


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketExport:
    """Ask a rank of the train pool for its part of a bucket.

    Attributes:
        number: Of the bucket, from 0.
        bucket_bytes: Of a bucket, over all positions of the generate pool together.
        targets: What the generate pool's ranks hold.
        before: Reports of the bucket before, for which it waits.
    """

    number: int
    bucket_bytes: int
    targets: Sequence[ShardLayout]
    before: Sequence[Any] = ()

    @property
    def is_last(self) -> bool:
        """Tell whether no bucket comes after it."""
        return self.number + 1 == num_buckets(self.targets, self.bucket_bytes)

    def blocks(self, target: ShardLayout) -> list[Block]:
        """Return what the bucket holds of a rank's shard; nothing where that has fewer buckets."""
        buckets = _buckets(target, self.targets, self.bucket_bytes)
        return buckets[self.number] if self.number < len(buckets) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketImport:
    """Tell a rank of the generate pool where its part of a bucket is.

    Attributes:
        number: Of the bucket, from 0.
        holders: References to what `send_weights` of the train pool's ranks returned.
    """

    number: int
    holders: Sequence[Any]


class Endpoint:
    """Put buckets into the object store, or write those that arrive."""

    def __init__(self, models: PoolModels) -> None:
        self._models = models
        self._start_seconds = 0.0
        self._values: Tensor | None = None
        self._bytes = self._most_bytes = 0

    def send(self, request: BucketExport) -> tuple[Any, CallReport]:
        """Put out this rank's part of a bucket for each shard of another pool, if it leads a copy.

        Fully sharded weights are gathered with the first bucket and kept until the last one.
        """
        wait_for(request.before)
        given: dict[tuple[int, int], Any] = {}
        shard = self._models.shards["actor"]
        if request.number == 0:
            self._start_seconds = now_seconds()
            self._values = shard.flat.whole_values()
        assert self._values is not None, "buckets come in their order"
        if shard.mesh.copies.position == 0:
            for target in request.targets:
                if (target.pp, target.tp) not in given:
                    slices, message = export_slices(
                        shard_layout_of(shard),
                        self._values,
                        request.blocks(target),
                        target_head_is_tied=shard.tied,
                    )
                    given[target.pp, target.tp] = ray.put((slices, as_array(message)))
        if request.is_last:
            self._values = None
        return given, CallReport(start_seconds=self._start_seconds, end_seconds=now_seconds())

    def receive(self, request: BucketImport) -> CallReport:
        """Write a bucket of the generate shard from what another pool's ranks gave for it.

        Returns:
            When the first bucket began, the bytes of all buckets so far, and the most in one.
        """
        generator = self._models.generator
        flat, place = generator.flat, (generator.mesh.pp, generator.mesh.tp)
        assert isinstance(flat, FlatParameters), "a copy on another pool is a whole one"
        wait_for(request.holders)
        if request.number == 0:
            self._start_seconds, self._bytes, self._most_bytes = now_seconds(), 0, 0
        given = ray.get([each[place] for each in ray.get(list(request.holders))])
        came = sum(message.nbytes for _, message in given)
        self._bytes, self._most_bytes = self._bytes + came, max(self._most_bytes, came)
        entries = {entry.name: entry for entry in flat.entries}
        with torch.no_grad():
            for slices, message in given:
                values = self._models.tensor(message)
                for piece in slices:
                    write_slice(piece, values, flat.view_of(entries[piece.name]))
        wait_for_device(generator.device)
        return CallReport(
            start_seconds=self._start_seconds,
            end_seconds=now_seconds(),
            metrics={
                "received_bytes_max": float(self._bytes),
                "buffer_bytes_max": float(self._most_bytes),
            },
        )


def num_buckets(targets: Sequence[ShardLayout], bucket_bytes: int) -> int:
    """Return how many buckets bring all shards of a generate pool."""
    return max(len(_buckets(target, targets, bucket_bytes)) for target in targets)


def _buckets(
    target: ShardLayout, targets: Sequence[ShardLayout], bucket_bytes: int
) -> list[list[Block]]:
    positions = len({(each.pp, each.tp) for each in targets})
    return buckets_of(target.entries, bucket_bytes // (WEIGHT_BYTES * positions))


def send(
    source: WorkerGroup,
    target: WorkerGroup,
    leaders: Sequence[int],
    shards: Sequence[ShardLayout],
    bucket_bytes: int,
) -> tuple[dict[int, Any], dict[int, Any]]:
    """Send the calls that bring weights to another pool, bucket after bucket.

    Returns:
        By rank, reports of what was exported of the last bucket, and of what was imported of all.
    """
    exports: dict[int, Any] = {}
    imports: dict[int, Any] = {}
    for number in range(num_buckets(shards, bucket_bytes)):
        order = BucketExport(
            number=number, bucket_bytes=bucket_bytes, targets=shards, before=tuple(imports.values())
        )
        results = source.send(
            "send_weights", dict.fromkeys(range(source.ranks), (order,)), num_returns=2
        )
        exports = {rank: result[1] for rank, result in results.items()}
        holders = tuple(results[rank][0] for rank in leaders)
        imports = target.start("receive_weights", BucketImport(number=number, holders=holders))
    return exports, imports
