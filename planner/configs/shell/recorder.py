"""Run a script with its launchers replaced by a recorder, for scripts that compute more than is evaluated."""

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rlplan.errors import FileError
from rlplan.planner.configs.shell.commands import Command, Evaluated
from rlplan.planner.configs.shell.programs import Text

# What starts a training, or a process of one; each writes down its words and succeeds at once.
LAUNCHERS: Final = (
    "python3", "python", "ray", "torchrun", "uv", "srun", "sbatch", "deepspeed", "accelerate", "mpirun",
    "nohup", "docker", "kubectl",
)  # fmt: skip
RUN_SECONDS: Final = 60.0
RECORD: Final = "RLPLAN_RECORD"
INTERPRETER: Final = "RLPLAN_INTERPRETER"
# A short program in the script (`python3 -c`) is the script's own computing: it runs.
RECORDER: Final = """#!{python} -S
import json, os, sys
words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
if words[0].startswith("python") and (len(words) < 2 or words[1] in ("-c", "-")):
    os.execv(os.environ["{interpreter}"], [words[0], *words[1:]])
with open(os.environ["{record}"], "a", encoding="utf-8") as stream:
    stream.write(json.dumps(words) + "\\n")
"""


def run_recorded(path: Path, arguments: Iterable[str]) -> Evaluated:
    """Run a script with `bash` and return what it would have started.

    Its launchers are replaced; everything else in it runs.

    Raises:
        FileError: It does not end in time, or nothing was started.
    """
    with tempfile.TemporaryDirectory(prefix="rlplan-") as folder:
        record = Path(folder) / "commands.jsonl"
        bin_folder = Path(folder) / "bin"
        bin_folder.mkdir()
        text = RECORDER.format(python=sys.executable, interpreter=INTERPRETER, record=RECORD)
        for name in LAUNCHERS:
            launcher = bin_folder / name
            launcher.write_text(text, encoding="utf-8")
            launcher.chmod(stat.S_IRWXU)
        given = os.environ | {RECORD: str(record), INTERPRETER: sys.executable}
        given["PATH"] = f"{bin_folder}{os.pathsep}{given.get('PATH', os.defpath)}"
        command = ["bash", str(path.resolve()), *arguments]
        try:
            done = subprocess.run(  # noqa: S603 -- the user asked for it to run
                command, env=given, timeout=RUN_SECONDS, check=False, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            problem = f"did not end within {RUN_SECONDS:g} s with its launchers replaced"
            raise FileError(str(path), problem) from None
        except OSError as error:
            raise FileError(str(path), f"cannot be run: {error.strerror or error}") from None
        lines = record.read_text(encoding="utf-8").splitlines() if record.is_file() else []
    if not lines and done.returncode:
        said = done.stderr.strip().splitlines()
        problem = f"ended with code {done.returncode} before it started anything"
        raise FileError(str(path), f"{problem}: {said[-1] if said else 'it said nothing'}")
    commands = [Command(line=0, words=tuple(map(Text, json.loads(line)))) for line in lines]
    return Evaluated(commands=commands)
