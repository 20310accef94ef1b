"""How an installed rlplan differs from a checkout: its rooms stand below `rlplan._rooms` (decision 21).

In a checkout, and in an editable install of one, import names are folder names. A wheel has to live beside whatever
else its user imports: in it `planner` is `rlplan._rooms.planner`, and so on, and every import of them says so.
A checkout has `evals` beside its rooms, a wheel has not (decision 27).
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

# `rlplan` and `rlplan_cli` keep their names: nobody else has them.
ROOMS = ("planner", "simulator", "executor", "profiles", "reports")
BELOW = "rlplan._rooms"

ROOM = rf"({'|'.join(ROOMS)})\b"
PLACES = (
    re.compile(rf"^(\s*from ){ROOM}(?=[\w.]* import )", re.MULTILINE),
    re.compile(rf"^(\s*import ){ROOM}(?=\.)", re.MULTILINE),
    re.compile(rf"""(\b(?:PackageLoader|files)\(["']){ROOM}(?=["'])"""),  # folders of data
    re.compile(rf"""(["']){ROOM}(?=\.[a-z_.]+["'])"""),  # modules that are looked up by name
)


class BuildBelow(build_py):
    """Build as always, then put the rooms below the vocabulary's package."""

    def run(self) -> None:
        """Build the packages."""
        super().run()
        if not self.editable_mode:
            put_below(Path(self.build_lib))


class WheelBelow(bdist_wheel):
    """Say in a wheel which names it really takes; an editable install only borrows this command's description."""

    holds_rooms = False

    def run(self) -> None:
        """Build a wheel with everything in it."""
        self.holds_rooms = True
        super().run()

    def write_wheelfile(self, wheelfile_base: str, *arguments: str) -> None:
        """Write the wheel's own description."""
        super().write_wheelfile(wheelfile_base, *arguments)
        if self.holds_rooms:
            names = Path(wheelfile_base, "top_level.txt")
            names.write_text("rlplan\nrlplan_cli\n", encoding="utf-8")


class EditableBeside(editable_wheel):
    """Let an editable install give `evals` by its name too, which commands and benchmarks of a checkout ask for."""

    def run(self) -> None:
        """Install the packages and what stands beside them."""
        self.distribution.packages = [*(self.distribution.packages or ()), "evals"]
        super().run()


def put_below(built: Path) -> None:
    """Move the rooms of a built tree below `rlplan._rooms`, and let every import say so."""
    home = built.joinpath(*BELOW.split("."))
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    (home / "__init__.py").write_text('"""The rooms of rlplan."""\n', encoding="utf-8")
    for room in ROOMS:
        shutil.move(built / room, home / room)
    for package in (built / "rlplan", built / "rlplan_cli"):
        for file in (*package.rglob("*.py"), *package.rglob("*.pyi")):
            text = file.read_text(encoding="utf-8")
            file.write_text(renamed(text), encoding="utf-8")


def renamed(text: str) -> str:
    """Return a module's text with the names that its rooms have in a wheel."""
    for place in PLACES:
        text = place.sub(rf"\1{BELOW}.\2", text)
    return text


if __name__ == "__main__":  # as builds run it
    setup(
        cmdclass={
            "build_py": BuildBelow,
            "bdist_wheel": WheelBelow,
            "editable_wheel": EditableBeside,
        }
    )
