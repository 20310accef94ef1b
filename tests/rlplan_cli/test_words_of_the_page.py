"""Words of the page of `rlplan serve`, which its own script makes: they are those of the command line."""

import json
import shutil
import subprocess

import pytest

from rlplan.units import show_duration
from tests.house.tree import ROOT

NODE = shutil.which("node")
WORDS = ROOT / "rlplan_cli" / "serve" / "assets" / "words.js"
# Seconds on both sides of where the unit changes, and what such a page shows.
SHORT = [0.0, 4.2e-5, 9.9994e-4, 9.99996e-4, 0.0128, 0.99996, 1.0, 59.7, 113.95, 119.994, 119.996]
LONG = [139.0, 479.6, 1023.7, 7199.4, 7199.6, 7200.0, 34_560.0, 171_000.0, 172_800.0, 319_000.0]
TIMES = [*SHORT, *LONG, -3.5, -1023.7]
INTERVALS = {
    (45.616, 77.16): "45.62 to 77.16 s",
    (89.21, 139.0): "89.21 s to 2 min 19 s",
    (139.0, 199.0): "2 min 19 s to 3 min 19 s",
    (0.0045, 0.0208): "4.5 to 20.8 ms",
}


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_the_page_says_times_as_the_command_line_does(tmp_path):
    module = tmp_path / "words.mjs"
    shutil.copy(WORDS, module)
    asked = json.dumps([TIMES, list(INTERVALS)])
    code = (
        f"import {{ interval, seconds }} from '{module.as_uri()}'; const [times, pairs] = {asked};"
        "console.log(JSON.stringify([times.map(seconds), pairs.map(interval)]));"
    )
    command = [NODE, "--input-type=module", "-e", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [list(map(show_duration, TIMES)), list(INTERVALS.values())]
