"""What a command loads before it answers."""

import subprocess
import sys

from tests.house.tree import ROOT


def test_the_version_is_told_without_commands():
    program = (
        "import sys\n"
        "from rlplan_cli.main import run\n"
        "assert run(['--version']) == 0\n"
        "print([m for m in sys.modules if m.startswith(('rlplan.planner', 'rlplan_cli.commands.'))])\n"
    )
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    version, loaded = answer.stdout.splitlines()
    assert version.startswith("rlplan ")
    assert loaded == "[]"
