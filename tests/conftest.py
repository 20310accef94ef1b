"""Settings of the whole suite: hypothesis profiles, kept forecasts, what runs only on a GPU."""

import importlib.util
import os

import pytest
from hypothesis import HealthCheck, settings

# Where vLLM is installed (`make test-vllm`), its scheduler is what the simulator is checked against.
collect_ignore = [] if importlib.util.find_spec("vllm") else ["vllm"]

# No deadline: a busy machine is no finding. Derandomized, so that the same code gives the same
# verdict anywhere; `HYPOTHESIS_PROFILE=explore` looks for new counterexamples.
settings.register_profile("check", derandomize=True, deadline=None, max_examples=60)
settings.register_profile(
    "explore",
    deadline=None,
    max_examples=1000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "check"))


def pytest_addoption(parser):
    """Offer to renew the kept forecasts (tests/simulator/golden) after a meant change of costs."""
    parser.addoption(
        "--rewrite-golden", action="store_true", help="keep the forecasts of now as the golden ones"
    )


def pytest_collection_modifyitems(items):
    """Skip what needs a CUDA device where there is none; ask torch only if a test needs one."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
