"""The same forecasts bit for bit, whatever the hash seed, locale, time zone, number of cores or Python."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.house.tree import ROOT

COMMANDS = (
    "simulate examples/ppo-7b-16xa100.plan.yaml --json",
    "check examples/ppo-13b-h100-l40s.yaml --json",
    "search examples/grpo-qwen2.5-7b-8xh100.yaml --json",
    "search examples/turns/job.yaml --json",
)
# Those of them that the machine has; what planning needs is installed beside the checkout (`set_up`).
PYTHONS = ("python3.11", "python3.12", "python3.13")
# What differs from one call to the next by itself.
ELAPSED = re.compile(r'"(search_seconds|elapsed_seconds|seconds_searched)": [\d.e+-]+')


def settings():
    """Yield names of surroundings with the variables and the number of cores that make them; None: all."""
    yield "as it is", {}, None
    for seed in ("0", "1", "4242"):
        yield f"hash seed {seed}", {"PYTHONHASHSEED": seed}, None
    for locale in ("C", "POSIX", "de_DE.UTF-8", "tr_TR.UTF-8", "C.UTF-8"):
        yield f"locale {locale}", {"LC_ALL": locale, "LANG": locale}, None
    for zone in ("UTC", "Asia/Kathmandu", "America/St_Johns"):
        yield f"time zone {zone}", {"TZ": zone}, None
    yield "one core", {}, 1
    yield "one thread", {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}, None


def digest_of(command, python=sys.executable, variables=None, cores=None):
    """Return a digest of what a command prints, and its complaint where it fails."""
    environment = {
        k: v
        for k, v in os.environ.items()
        if k not in {"OPENBLAS_NUM_THREADS", "LC_ALL", "LANG", "TZ"}
    }
    environment |= {"PYTHONPATH": str(ROOT), **(variables or {})}
    program = "from rlplan_cli.main import main; main()"
    first = ["taskset", "-c", ",".join(map(str, range(cores)))] if cores else []
    with tempfile.TemporaryDirectory(prefix="rlplan-hard-") as folder:
        shutil.copytree(ROOT / "examples", Path(folder) / "examples")
        answer = subprocess.run(
            [*first, python, "-c", program, *command.split()],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if answer.returncode:
        return f"ended with {answer.returncode}: {answer.stderr[-300:]}"
    told = answer.stdout.replace(str(Path(folder).resolve()), "")
    return hashlib.sha256(ELAPSED.sub("", told).encode()).hexdigest()


def pythons():
    """Return the other Pythons that can plan, by name, and why some are left out."""
    found, left_out = {}, {}
    for name in PYTHONS:
        if name == f"python{sys.version_info[0]}.{sys.version_info[1]}":
            continue
        own = environment_of(name) / "bin" / "python"
        if own.exists():
            found[name] = str(own)
        else:
            left_out[name] = "has no environment: `make pythons`"
    return found, left_out


def environment_of(name):
    """Return the folder of a Python's environment."""
    return ROOT / f".venv-{name}"


def set_up():
    """Make an environment with what planning needs, in the versions of our pins, for each Python that is here."""
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for name in PYTHONS[1:]:
        folder, interpreter = environment_of(name), interpreter_of(name)
        if interpreter is None:
            print(f"{name}: is not installed")
            continue
        subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True)
        pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, "-q", "-c", ROOT / "requirements" / "dev.txt", *needs], check=True)
        print(f"{name}: {folder}")


def interpreter_of(name):
    """Return a Python that runs: the one of that name, or the newest that pyenv holds."""
    kept = Path.home() / ".pyenv" / "versions"
    held = sorted(kept.glob(f"{name.removeprefix('python')}.*/bin/python"))
    for path in filter(None, (shutil.which(name), *map(str, reversed(held)))):
        if not subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode:
            return path
    return None


def alike(commands=COMMANDS, surroundings=None):
    """Compare every command in every surrounding with the first; return counts and failures."""
    failures, cases = [], 0
    others, left_out = pythons()
    tried = [
        (name, sys.executable, variables, cores)
        for name, variables, cores in surroundings or settings()
    ]
    tried += [(name, path, {}, None) for name, path in others.items()]
    for command in commands:
        expected = None
        for name, python, variables, cores in tried:
            got = digest_of(command, python, variables, cores)
            expected = expected or got
            cases += 1
            if got != expected or got.startswith("ended"):
                failures.append({"command": command, "surroundings": name, "found": got})
    names = [name for name, *_ in tried]
    return {"cases": cases, "surroundings": names, "left_out": left_out, "failures": failures}


if __name__ == "__main__":
    set_up()
