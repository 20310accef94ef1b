"""Settings of the tests with a real vLLM, and the workers that they share."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Compute on one thread, as a worker does: a device is one core.

    On more, with the OpenMP that torch brings, every small product of vLLM's waits for threads that
    the machine runs late: seconds for what takes 20 ms.
    """
    torch.set_num_threads(1)
