"""One command line in a process of its own, forked from one that has imported everything: its limits, its verdict."""

import contextlib
import faulthandler
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import typer

# How many times as slow as usual the machine may be: 1 where the limits are judged, more where they only end what would
# run for ever (`tests/hard/test_short.py`: no test's verdict depends on a clock).
SLOWNESS = int(os.environ.get("RLPLAN_HARD_SLOWNESS", "1"))
CPU_SECONDS = 10 * SLOWNESS
GROWTH_BYTES = 2**30
# Of time that passes: a command that waits for something uses no CPU.
WALL_SECONDS = 60 * SLOWNESS
LONGEST_ANSWER = 2**21
LONGEST_COMPLAINT = 20_000


@dataclass(frozen=True)
class Answer:
    """Hold what a command did: `code` is its exit code, or minus the signal that ended it."""

    code: int
    out: str
    err: str
    cpu_seconds: float
    growth_bytes: int


def prepare():
    """Import what commands import, and build the command line once, so that forked processes share them."""
    os.environ["COLUMNS"] = "120"
    # Arrow's own allocators take gigabytes of addresses, which limits count, and no memory.
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    from rlplan_cli import application
    from rlplan_cli.commands import COMMANDS

    for name in COMMANDS.names():
        COMMANDS.load(name)
    for name in (
        "matplotlib.pyplot", "pandas", "scipy.optimize", "jinja2", "rich.console", "rich.table", "rich.progress",
        "rlplan.reports.pages.report", "rlplan.reports.pages.accuracy", "rlplan.reports.pages.systems", "rlplan.reports.pictures.profile_plots",
        "rlplan.planner.answers.best_plans", "rlplan.planner.systems.comparing", "rlplan.planner.configs.checking",
        "rlplan.planner.measured.checking", "rlplan.planner.measured.calibrating", "rlplan.planner.answers.fitting",
        "rlplan.planner.searchers.exact", "rlplan.evals.annealing", "rlplan.simulator.calibration", "rlplan.executor.learning.rules",
        "rlplan.planner.requests.starter", "rlplan.profiles.tables.summary", "rlplan.profiles.imports.csv",
    ):  # fmt: skip
        __import__(name)
    application._register("")
    built = typer.main.get_command(application.app)
    typer.main.get_command = lambda _: built


def run_isolated(arguments, folder):
    """Return the answer of a command line that runs in `folder`, in a forked process with limits."""
    out, err = folder.with_suffix(".out"), folder.with_suffix(".err")
    sys.stdout.flush()
    sys.stderr.flush()
    before = _resident_bytes()
    process = os.fork()
    if process == 0:
        _become(arguments, folder, out, err)
    status, usage = _waited(process)
    code = os.waitstatus_to_exitcode(status)
    texts = [path.read_bytes().decode(errors="replace") for path in (out, err)]
    out.unlink()
    err.unlink()
    growth = max(0, usage.ru_maxrss * 1024 - before)
    seconds = usage.ru_utime + usage.ru_stime
    return Answer(code, texts[0], texts[1], cpu_seconds=seconds, growth_bytes=growth)


def _waited(process):
    deadline = time.monotonic() + WALL_SECONDS
    pause = 0.001
    while True:
        done, status, usage = os.wait4(process, os.WNOHANG)
        if done:
            return status, usage
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
        time.sleep(pause)
        pause = min(0.02, pause * 1.5)


def _resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _virtual_bytes():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _become(arguments, folder, out, err):
    """Be the process of a command from here on; never return."""
    code = 70
    try:
        for path, number in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        faulthandler.register(signal.SIGXCPU)  # says where the seconds went
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS + 1, CPU_SECONDS + 2))
        most = _virtual_bytes() + GROWTH_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        from rlplan_cli.main import run

        code = run(arguments)
    except BaseException:  # noqa: BLE001 -- whatever comes out of a command is what is looked for
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def contents(folder):
    """Return the bytes of every file of a folder, the target of every link, and the names of folders."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            found[path.relative_to(folder)] = path.read_bytes()
        else:
            found[path.relative_to(folder)] = None
    return found


# What only a mistake of ours puts before a user.
TRACES = re.compile(
    r"Traceback|Error\(|<class |object at 0x|Warning: |site-packages|\.py:\d+|\[type="
)
# Commands whose answer may be no, and that then end with 1.
MAY_SAY_NO = ("check", "doctor")


def faults(arguments, answer, before, after):
    """Return what an answer breaks of what every command promises, as sentences."""
    lines, code = answer.err.splitlines(), answer.code
    told = [line for line in lines if line.startswith("rlplan: ")]
    verdict = answer.out or "does not fit" in answer.err
    printed = all(each.isprintable() or each in "\n\t" for each in answer.err + answer.out)
    long = len(answer.err) > LONGEST_COMPLAINT or len(answer.out) > LONGEST_ANSWER
    checks = {
        f"ended with {code}": code not in {0, 1, 2},
        "ended with 1": code == 1 and (arguments[0] not in MAY_SAY_NO or told),
        "ended with 0 and a complaint": code == 0 and told,
        f"ended with 2 and {len(told)} messages": code == 2 and len(told) != 1 and not verdict,
        f"has {len(lines)} lines where one was due": code == 2 and told and len(lines) > 1,
        "speaks of our code": TRACES.search(answer.err),
        "sends control characters": not printed,
        f"says {len(answer.err)} + {len(answer.out)} characters": long,
        f"took {answer.cpu_seconds:.1f} s": answer.cpu_seconds > CPU_SECONDS,
        f"took {answer.growth_bytes / 2**20:.0f} MiB": answer.growth_bytes > GROWTH_BYTES,
        "prints no JSON": code == 0 and "--json" in arguments and not _is_json(answer.out),
    }
    return [*(name for name, broken in checks.items() if broken), *_of_files(told, before, after)]


def _is_json(text):
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        return False
    return True


def _refuse(constant):
    raise ValueError(f"{constant} is no JSON")


def _of_files(told, before, after):
    changed = [str(path) for path in before if path not in after or after[path] != before[path]]
    added = [str(path) for path in after if path not in before]
    if changed:
        yield f"changed {', '.join(changed)}"
    if added and told:
        yield f"wrote {', '.join(added)} beside a complaint"
    if any(Path(name).name.startswith(".") for name in added):
        yield f"left {', '.join(added)}"
