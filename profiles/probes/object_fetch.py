"""Fetch of an object that another worker put into the object store, as tasks fetch their inputs."""

from rlplan.profiles.probes.bench.shapes import call_probe

PROBE = call_probe("object_fetch", "fetch")
