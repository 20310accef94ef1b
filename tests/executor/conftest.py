"""The suite's one Ray, and workers that tests share."""

import logging
import tempfile
from contextlib import ExitStack

import pytest

# Ray gives up a start after thirty seconds, which a machine that is busy with other work may need.
ATTEMPTS = 5


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Take new shared workers after a failure: one that is lost or waits for a lost one fails what follows."""
    report = yield
    if report.failed and "worker_pool" in getattr(item, "funcargs", {}):
        item.funcargs["worker_pool"].renew()
    return report


@pytest.fixture
def logged():
    """Return the messages that the test's process logs."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    yield messages
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="session")
def ray_slots():
    """Start the suite's one Ray, with slots for the shared workers and for runs of their own."""
    from rlplan.errors import RlplanError
    from rlplan.executor.workers.processes.ray_session import running_ray

    with ExitStack() as stack:
        for left in reversed(range(ATTEMPTS)):
            try:
                # Eight for the shared workers at their most, and four for a run that starts its own.
                stack.enter_context(running_ray(devices=12, hosts=4))
                break
            except RlplanError:
                if not left:
                    raise
        yield


@pytest.fixture(scope="session")
def worker_pool(ray_slots):
    """Keep device workers, eight at most, and a host worker for all tests that run plans."""
    from tests.executor.harness import WorkerPool

    worker_pool = WorkerPool()
    yield worker_pool
    worker_pool.stop()


@pytest.fixture
def temporary():
    """Return a folder for a run's temporary files; its name is short, for sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="rl") as folder:
        yield folder


@pytest.fixture(scope="module")
def shared_workers(worker_pool):
    """Let whole runs of a module take the shared workers; other modules' runs start their own."""
    with pytest.MonkeyPatch.context() as patch:
        for user in ("control.start", "pass_runner"):
            patch.setattr(f"rlplan.executor.{user}.start_group", worker_pool.lend)
        yield


@pytest.fixture(scope="module")
def raylets():
    """Start a cluster of two nodes of two cores, with addresses of their own."""
    from tests.executor.test_joined_cluster import HEAD, SECOND, Raylets

    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp", ignore_cleanup_errors=True) as folder:
        started = Raylets(folder)
        started.add(HEAD, 2)
        started.add(SECOND, 2, "big")
        yield started
        started.stop()
