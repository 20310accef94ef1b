"""Settings of the whole suite: how much of it runs and where, kept forecasts, what needs a GPU."""

import gc
import importlib.util
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# Where vLLM is installed (`make test-vllm`), its scheduler is what the simulator is checked against.
collect_ignore = [] if importlib.util.find_spec("vllm") else ["vllm"]

# No deadline: a busy machine is no finding. Derandomized, so that the same code gives the same
# verdict anywhere; `HYPOTHESIS_PROFILE=explore` looks for new counterexamples.
settings.register_profile("few", derandomize=True, deadline=None, max_examples=20)
settings.register_profile("full", derandomize=True, deadline=None, max_examples=120)
settings.register_profile(
    "explore",
    deadline=None,
    max_examples=1000,
    suppress_health_check=[HealthCheck.too_slow],
)


class FailuresAtOnce:
    """Show a failure when it happens: a suite that is stopped before its end says why as well."""

    def __init__(self, config):
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.write_sep("_", f"{report.nodeid} ({report.when})")
            reporter.write_line(report.longreprtext)


def pytest_addoption(parser):
    """Offer the whole suite, and to renew the kept forecasts after a meant change of costs."""
    parser.addoption(
        "--full",
        action="store_true",
        help="run every case and many examples of each property, as `make test-all` does",
    )
    parser.addoption(
        "--rewrite-golden", action="store_true", help="keep the forecasts of now as the golden ones"
    )


def pytest_configure(config):
    """Choose how many examples of each property are tried; collect no garbage among what stays."""
    gc.disable()
    # Who is started in a shell's background ignores it, and so would all commands that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))
    profile = "full" if config.getoption("full") else "few"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", profile))


def pytest_collection_finish(session):
    """Collect garbage again, but never among modules and tests, which took a quarter of their reading."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config, items):
    """Leave out what only `--full` runs, and skip what needs a CUDA device where there is none."""
    if not config.getoption("full"):
        left_out = [item for item in items if item.get_closest_marker("full")]
        items[:] = [item for item in items if not item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left_out)
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each process whole files, and all of the executor's to the one process that has Ray."""
    from xdist.scheduler import LoadFileScheduling

    class OneForRay(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "executor" if file.startswith("tests/executor/") else file

    return OneForRay(config, log)


def pytest_terminal_summary(terminalreporter, config):
    """Say what was left out."""
    if not config.getoption("full"):
        terminalreporter.write_line(
            "Left out: most cases of full matrices, most seeds and examples. "
            "`make test-all` (pytest --full) runs them."
        )
