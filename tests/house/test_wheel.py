"""A wheel takes the names `rlplan` and `rlplan_cli` only: a user's own `reports` or `planner` stays the user's."""

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.house.tree import ROOT, own_modules, project_files
from tests.planner.configs.test_importing import VERL

USERS_FOLDERS = ("planner", "simulator", "executor", "profiles", "reports")

NOTEBOOK = """
import reports, planner
assert reports.MINE and planner.MINE
import rlplan
found = rlplan.search("job.yaml", seconds=2)
assert "step" in found._repr_html_()
assert rlplan.simulate(found.plans[0].plan).iteration_seconds > 0
print(rlplan.__file__)
"""


def test_rooms_are_imported_as_members_of_the_package():
    room = rf"({'|'.join((*USERS_FOLDERS, 'evals'))})\b"
    imports = re.compile(
        rf"^\s*(from {room}[\w.]* import |import ([\w.]+, )*{room})|[\"']{room}(\.[a-z_]+)+[\"']",
        re.MULTILINE,
    )
    faults = [
        f"{path}: {found.group().strip()}"
        for path in own_modules()
        for found in imports.finditer((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not faults, faults


@pytest.mark.full
def test_an_installed_wheel_lives_beside_a_users_own_folders(tmp_path):
    source, user = tmp_path / "source", tmp_path / "user"
    for path in project_files():
        target = source / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
    for link in (each for each in (ROOT / "rlplan").iterdir() if each.is_symlink()):
        (source / "rlplan" / link.name).symlink_to(link.readlink())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheels, installed = tmp_path / "wheels", tmp_path / "installed"
    run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source],
        tmp_path,
    )
    (wheel,) = wheels.glob("*.whl")
    run([*pip, "install", "--no-deps", "--target", installed, wheel], tmp_path)
    assert {each.name for each in installed.iterdir() if each.is_dir()} - {"bin"} == {
        "rlplan", "rlplan_cli", wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }  # fmt: skip
    for name in USERS_FOLDERS:
        (user / name).mkdir(parents=True)
        (user / name / "__init__.py").write_text("MINE = True\n")
    shutil.copyfile(ROOT / "examples" / "ppo-7b-16xa100.yaml", user / "job.yaml")
    # An interpreter that knows nothing of an editable install; third parties come by path.
    run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    paths = f"{installed}:{sysconfig.get_paths()['purelib']}"
    assert str(installed) in run([python, "-c", NOTEBOOK], user, paths)
    assert "memory: " in run([python, "-m", "rlplan", "check", "job.yaml"], user, paths)
    start = ["check", "verl", "--gpu", "h100", "--mean-response", "300", "--", *VERL]
    assert "the command line: runs" in run([python, "-m", "rlplan", *start], user, paths)
    search = ["search", "job.yaml", "--seconds", "2", "--out", "plan.yaml"]
    assert "fits" in run([python, "-m", "rlplan", *search], user, paths)
    run([python, "-m", "rlplan", "report", "plan.yaml", "--out", "page"], user, paths)
    assert (user / "page" / "report.html").is_file()
    head, *published = (ROOT / "evals/held/rl_steps.csv").read_text().splitlines()
    (user / "steps.csv").write_text("\n".join((head, published[-1])) + "\n")
    assert "steps" in run([python, "-m", "rlplan", "accuracy", "steps.csv"], user, paths)
    said = run([python, "-m", "rlplan", "reproduce", "srl"], user, paths, code=2)
    assert "in the folder evals/ of the sources of rlplan" in said


def run(command: list, folder: Path, paths: str = "", code: int = 0) -> str:
    """Run a command in a folder and return what it prints: the answer, or why there is none."""
    answer = subprocess.run(
        [str(each) for each in command],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": paths, "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == code, answer.stderr[-2000:]
    return answer.stderr if code else answer.stdout
