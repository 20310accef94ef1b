"""Limits of searches: by the wall, or by what their process computes."""

import math
import subprocess
import sys
import time

from rlplan.planner.exact.deadlines import deadline_in, is_past, now_seconds


def test_without_a_limit_no_search_ends_early():
    assert deadline_in(None) == math.inf
    assert not is_past(deadline_in(None))


def test_by_the_wall_waiting_counts():
    deadline = deadline_in(0.01)
    assert not is_past(deadline_in(60.0))
    time.sleep(0.02)
    assert is_past(deadline)
    assert now_seconds() > deadline


def test_by_the_core_waiting_counts_nothing_and_computing_does():
    program = (
        "import time\n"
        "from rlplan.planner.exact.deadlines import count_core_seconds, deadline_in, is_past\n"
        "count_core_seconds()\n"
        "deadline = deadline_in(0.1)\n"
        "time.sleep(0.15)\n"
        "print(is_past(deadline))\n"
        "while not is_past(deadline):\n"
        "    pass\n"
        "print(time.process_time() >= 0.1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]
