"""Calls of a storage actor that write rows, or read them, by their bytes: how streamed samples go between tasks."""

from profiles.probes.bench.calls import call_probe
from profiles.tables.points import QUEUE_CALL

PROBE = call_probe(QUEUE_CALL, "queue_call")
