"""Round trip of a remote call that does nothing, by the bytes that it passes, as the executor calls."""

from rlplan.profiles.probes.bench.shapes import call_probe

PROBE = call_probe("actor_call", "call")
