"""Settings of the whole suite: how much of it runs and where, kept forecasts, what needs a GPU."""

import gc
import importlib.util
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rlplan.files import kept_sheets
from tests.cases import FEW_EXAMPLES, FULL_EXAMPLES

# Where vLLM is installed (`make test-vllm`), its scheduler is what the simulator is checked against.
collect_ignore = [] if importlib.util.find_spec("vllm") else ["vllm"]

# No deadline: a busy machine is no finding. Derandomized, so that the same code gives the same
# verdict anywhere; `HYPOTHESIS_PROFILE=explore` looks for new counterexamples.
settings.register_profile("few", derandomize=True, deadline=None, max_examples=FEW_EXAMPLES)
settings.register_profile("full", derandomize=True, deadline=None, max_examples=FULL_EXAMPLES)
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


def part_of(text):
    """Return the number of a part and how many there are."""
    number, parts = (int(each) for each in text.split("/"))
    if not 1 <= number <= parts:
        raise ValueError(text)
    return number, parts


def pytest_addoption(parser):
    """Offer the whole suite, and to renew the kept forecasts after a meant change of costs."""
    parser.addoption(
        "--full",
        action="store_true",
        help="run every case and many examples of each property, as `make test-all` does",
    )
    parser.addoption(
        "--part",
        type=part_of,
        default=(1, 1),
        metavar="K/N",
        help="with --full: of what only --full runs the Kth of N parts without slow ones, and fewer examples",
    )
    parser.addoption(
        "--rewrite-golden", action="store_true", help="keep the forecasts of now as the golden ones"
    )


def pytest_configure(config):
    """Choose how many examples of each property are tried; collect no garbage among what stays."""
    gc.disable()
    # Sheets are read, not taken from what was kept of them; commands that tests start keep them as a user's do.
    kept_sheets.folder = lambda: Path(os.devnull)
    # Who is started in a shell's background ignores it, and so would all commands that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))
    profile, (_, parts) = "full" if config.getoption("full") else "few", config.getoption("part")
    if parts > 1:
        examples = max(FEW_EXAMPLES, FULL_EXAMPLES // parts)
        settings.register_profile("full", derandomize=True, deadline=None, max_examples=examples)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", profile))


def pytest_collection_finish(session):
    """Collect garbage again, but never among modules and tests, which took a quarter of their reading."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config, items):
    """Leave out what only `--full` runs, and skip what needs a CUDA device where there is none."""
    more = [item for item in items if item.get_closest_marker("full")]
    number, parts = config.getoption("part")
    left_out = set(more)
    if config.getoption("full"):
        left_out -= set(more[number - 1 :: parts])
    if (
        parts > 1
    ):  # slow ones, such as lost nodes of whole clusters, are for who has the time for all
        left_out |= {item for item in items if item.get_closest_marker("slow")}
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))
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
    number, parts = config.getoption("part")
    if config.getoption("full") and parts > 1:
        terminalreporter.write_line(
            f"Left out: all but part {number} of {parts} of what only `make test-all` runs."
        )
    if not config.getoption("full"):
        terminalreporter.write_line(
            "Left out: most cases of full matrices, most seeds and examples. "
            "`make test-all` (pytest --full) runs them."
        )
