"""Weights for another pool, bucket by bucket: what one call asks for, and what arrives.

The train pool puts a bucket out once for all replicas, and the next one when every rank of the
generate pool has written it: more than a bucket is never under way.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from executor.weights.buckets import WEIGHT_BYTES, Block, buckets_of
from executor.weights.reshard import ShardLayout
from executor.workers.calls import CallReport
from executor.workers.pools import WorkerGroup


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
        holders: References to what `export_weights` of the train pool's ranks returned.
    """

    number: int
    holders: Sequence[Any]


class ImportedBytes:
    """Count what a rank has received since the first bucket of a sync.

    Args:
        start_seconds: When that was there, on the host's clock.
    """

    def __init__(self, start_seconds: float) -> None:
        self._start_seconds = start_seconds
        self._bytes = self._most = 0

    def count(self, sizes: Iterable[int]) -> None:
        """Add the messages of a bucket, in bytes."""
        came = sum(sizes)
        self._bytes, self._most = self._bytes + came, max(self._most, came)

    def report(self) -> CallReport:
        """Return when it began and what came, the most in a bucket as well."""
        return CallReport(
            start_seconds=self._start_seconds,
            end_seconds=time.time(),
            metrics={
                "received_bytes_max": float(self._bytes),
                "buffer_bytes_max": float(self._most),
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


def send_weights(
    source: WorkerGroup,
    target: WorkerGroup,
    leaders: Sequence[int],
    shards: Sequence[ShardLayout],
    bucket_bytes: int,
) -> tuple[dict[int, Any], dict[int, Any]]:
    """Send the calls that bring weights to another pool, bucket after bucket.

    Args:
        leaders: Ranks of the train pool that hold one copy of the model between them.
        shards: What the generate pool's ranks hold.

    Returns:
        By rank, reports of what was exported of the last bucket, and of what was imported of all.
    """
    exports: dict[int, Any] = {}
    imports: dict[int, Any] = {}
    for number in range(num_buckets(shards, bucket_bytes)):
        order = BucketExport(
            number=number,
            bucket_bytes=bucket_bytes,
            targets=shards,
            before=tuple(imports.values()),
        )
        results = source.send(
            "export_weights", dict.fromkeys(range(source.ranks), (order,)), num_returns=2
        )
        exports = {rank: result[1] for rank, result in results.items()}
        holders = tuple(results[rank][0] for rank in leaders)
        imports = target.start("import_weights", BucketImport(number=number, holders=holders))
    return exports, imports
