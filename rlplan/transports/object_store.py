"""Ray's object store, bucket by bucket: what `weight_sync` passes of a profile measure."""

from rlplan.transports import Transport, serves_all

TRANSPORT = Transport(
    words="through Ray's object store, bucket by bucket", probed=True, lacks=serves_all
)
