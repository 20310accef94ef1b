"""Count what a command of `rlplan` visits: how many of our files, and how deep it is in our functions.

    python tests/house/visited.py simulate plan.yaml

A file counts where a function of it is entered (importing it is not enough), a frame where it is one of ours: library
frames between them, and what runs while a module is imported, are left out. The last line that it prints is JSON.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
# Loaded before counting begins, to count in a third of the time; every command that forecasts loads them.
BEFORE = ("rlplan.simulator.simulate", "rlplan.planner.answers.completion", "rlplan_cli.main")


class Visits:
    """Hold the files that were visited, and the deepest stack of functions that was seen."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.deepest: list[str] = []
        self._stack: list[str] = []
        self._importing = 0
        self._names: dict[str, str] = {}

    def see(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count a call or a return, as `sys.setprofile` has it."""
        if event not in ("call", "return"):
            return
        file = self._own(frame.f_code.co_filename)
        if not file:
            return
        body = frame.f_code.co_name == "<module>"
        if event == "return":
            if self._stack:
                self._stack.pop()
            self._importing -= body
            return
        self._importing += body
        self._stack.append(f"{file}:{frame.f_code.co_firstlineno} {frame.f_code.co_name}")
        if not self._importing:
            self.files.add(file)
            if len(self._stack) > len(self.deepest):
                self.deepest = list(self._stack)

    def _own(self, file: str) -> str:
        """Return the path of a file of ours below the root, an empty text of any other."""
        if file not in self._names:
            path = "" if file.startswith("<") else os.path.realpath(file)
            own = path.startswith(f"{ROOT}/") and not path.startswith((f"{ROOT}/.", __file__))
            self._names[file] = path[len(str(ROOT)) + 1 :] if own else ""
        return self._names[file]


def count(arguments: list[str]) -> Visits:
    """Return what a command line visits; what it prints goes to stdout and stderr as ever."""
    sys.path.insert(0, str(ROOT))
    for name in BEFORE:
        importlib.import_module(name)
    from rlplan_cli.main import main

    sys.argv = ["rlplan", *arguments]
    visits, code = Visits(), None
    sys.setprofile(visits.see)
    try:
        main()
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.setprofile(None)
    if code:
        sys.exit(code)
    return visits


if __name__ == "__main__":
    found = count(sys.argv[1:])
    told = {"files": sorted(found.files), "deepest": found.deepest, "modules": sorted(sys.modules)}
    sys.stdout.write(f"{len(found.files)} files, {len(found.deepest)} frames deep\n")
    sys.stdout.write(f"{json.dumps(told)}\n")
