"""A wheel in an environment of its own, as a new user has it: no home, spaces in paths, nothing of the checkout."""

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from tests.house.tree import ROOT

COMMANDS = (
    "--help", "--version", "init job.yaml", "check job.yaml", "search job.yaml --out plan.yaml", "simulate plan.yaml",
    "report plan.yaml --out report", "schema job", "fit --model qwen2.5-7b --gpus 8xh100", "search absent.yaml",
)  # fmt: skip
# Ends with a message, as it should.
REFUSED = {"search absent.yaml": 2}


def installed():
    """Build, install, use and uninstall a wheel; return the steps, what audits say, and failures."""
    failures, steps = [], []

    def note(step, answer, expected=0):
        steps.append(step)
        if answer.returncode != expected or "Traceback" in answer.stderr:
            failures.append(
                {"step": step, "code": answer.returncode, "said": answer.stderr.strip()[-400:]}
            )

    with tempfile.TemporaryDirectory(prefix="rlplan hard ") as name:
        base = Path(name)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        build = [
            *pip,
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            str(base / "wheels"),
            str(ROOT),
        ]
        note("a wheel is built", _run(build, base))
        python = _environment(base / "an environment")
        before = _contents(python)
        wheels = list(map(str, (base / "wheels").glob("*.whl")))
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        note(
            "it is installed",
            _run([*pip, "install", "-q", "--no-deps", "--no-index", *wheels], base),
        )
        work, home = base / "read only" / "my work", base / "home"
        work.mkdir(parents=True)
        home.mkdir()
        work.parent.chmod(0o555)
        program = str(python.with_name("rlplan"))
        for command in COMMANDS:
            answer = _run([program, *command.split()], work, home)
            note(f"`rlplan {command}`", answer, REFUSED.get(command, 0))
        work.parent.chmod(0o755)
        left = sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())
        # Libraries keep caches there (matplotlib its list of fonts), where they belong.
        left = [each for each in left if not each.startswith(".cache/")]
        failures += [{"step": "nothing of ours is in the home", "left": each} for each in left]
        note("it is uninstalled", _run([*pip, "uninstall", "-q", "-y", "rlplan"], base))
        after = _contents(python)
        failures += [
            {"step": "uninstalling leaves nothing", "left": each} for each in sorted(after - before)
        ]
        steps += ["nothing of ours is in the home", "uninstalling leaves nothing"]
    return {"cases": len(steps), "steps": steps, "audit": _audit(), "failures": failures}


def _environment(folder):
    """Make an environment that finds this one's other packages, but not the checkout; return its Python."""
    venv.create(folder, with_pip=True)
    (found,) = folder.glob("lib/python*/site-packages")
    # A path in such a file is looked through, and what is installed there for editing is not followed.
    (found / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def _contents(python):
    folders = (python.parent, *python.parent.parent.glob("lib/python*/site-packages"))
    return {
        str(path)
        for folder in folders
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def _run(command, folder, home=None):
    kept = {
        name: os.environ[name]
        for name in ("PATH", "LANG", "TMPDIR", "PIP_CONFIG_FILE")
        if name in os.environ
    }
    environment = kept | {"HOME": str(home or os.environ.get("HOME", folder))}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def _audit():
    """Return in words what is known of the installed packages' faults."""
    answer = _run([sys.executable, "-m", "pip_audit", "--progress-spinner", "off"], ROOT)
    if "No module named" in answer.stderr:
        return "not asked for, pip-audit is not installed"
    lines = (answer.stdout + answer.stderr).strip().splitlines() or [""]
    return lines[-1][:200] if answer.returncode == 0 else f"not answered ({lines[-1][:200]})"
