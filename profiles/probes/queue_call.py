"""Calls of a storage actor that write rows, or read them, by their bytes: how streamed samples go between tasks."""

from rlplan.profiles.probes.bench.shapes import call_probe
from rlplan.profiles.tables.table import QUEUE_CALL

PROBE = call_probe(QUEUE_CALL, "queue_call")
