"""The catalog: models, devices and engines by name, and jobs that name them."""

from rlplan.profiles.jobs.config.reading import read_hf_config
from rlplan.profiles.jobs.resolve import load_job, resolve_job, usual_engines
from rlplan.profiles.sheets import (
    ENGINES,
    device_names,
    engine_names,
    load_device,
    load_engine,
    load_model,
    model_names,
)

__all__ = [
    "ENGINES",
    "device_names",
    "engine_names",
    "load_device",
    "load_engine",
    "load_job",
    "load_model",
    "model_names",
    "read_hf_config",
    "resolve_job",
    "usual_engines",
]
