"""Runs in every mode that lose processes, hang or have a bad reward function: they go on, or end with a message.

A fault comes at a moment drawn from the seed: after an iteration that is drawn, and so many milliseconds later.
Every run's driver is a process of its own, as a user's is.
"""

import hashlib
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from safetensors.numpy import load_file

from rlplan.executor.control.checkpoints import find_checkpoint
from rlplan.executor.control.metrics import read_metrics
from rlplan.files.decoding import load_yaml, read_yaml
from rlplan.files.writing import write_yaml
from rlplan.job import Rewards
from rlplan.plan import Plan, PlanDraft
from rlplan.profiles.catalog import load_job
from rlplan.results.stored import PLAN_FILE, write_plan
from tests.executor.plans import make_job, make_plan
from tests.house.tree import ROOT

ITERATIONS = 5
# Of a run on a machine with other work; one takes about ten seconds.
PATIENCE_SECONDS = 300
HUNG_SECONDS = 30
# What clears up behind a killed run takes a few seconds.
SETTLING_SECONDS = 20
MARK = "RLPLAN_HARD_RUN"
POOLS = {"p0": (1, ("actor", "reference")), "generator": (1, ("actor",))}
MODES = ("sync", "one-step-off", "streaming", "async")
# What is struck where it is no process by its name: a node of a device beside the first, or the clock of the day.
OTHER_NODE, CLOCK = "another node", "clock"
CLOCK_SOURCE = Path(__file__).with_name("shifted_clock.c")
JUMPS_SECONDS = (-86_400, -3_600, -60, 60, 3_600, 86_400)
# Modes in which weights are the same to the last bit, whatever order processes answer in. A streamed run learns
# from a prompt's samples as soon as they are there, in an order of its own.
DETERMINISTIC = ("sync", "one-step-off")
JUDGE = """
import os, time
from pathlib import Path
from typing import Any


def judge(prompt, response, row):
    calls = Path(__file__).with_name("calls")
    with calls.open("ab") as stream:
        stream.write(b".")
    if calls.stat().st_size == {at}:
        {deed}
    return float(len(response) % 3)
"""
DEEDS = {
    "raises": "raise ValueError('no such word')",
    "hangs": "time.sleep(3600)",
    "forks": "os.fork() or time.sleep(3600)",
    "eats memory": "bytearray(8 * 2**30)",
    "exits": "os._exit(7)",
}
# Ends with the user's mistake named; all other runs end well.
ENDS = {"reward raises": 2}


@dataclass(frozen=True)
class Fault:
    """Hold what is done to a run: which process gets which signal, or what the reward function does.

    Attributes:
        ends: Codes with which a run may end beside 0: with one message, and to be resumed.
    """

    name: str
    process: str = ""
    number: int = signal.SIGKILL
    deed: str = "pass"
    modes: tuple[str, ...] = MODES
    ends: tuple[int, ...] = ()


FAULTS = (
    Fault("worker killed", "ray::Worker"),
    Fault("driver killed", "driver"),
    Fault("worker hangs", "ray::Worker", signal.SIGSTOP),
    Fault("storage killed", "ray::Storage", modes=("streaming", "async")),
    Fault("host worker killed", "ray::HostWorker"),
    Fault("environment worker killed", "ray::LocalHost", modes=("environments",)),
    # Ray itself ends a process that writes to the store of a node that is gone, at once.
    Fault("Ray node killed", "raylet", ends=(1,)),
    Fault("Ray's control server killed", "gcs_server"),
    Fault("one of several Ray nodes killed", OTHER_NODE),
    Fault("the clock jumps", CLOCK),
    *(Fault(f"reward {name}", deed=deed) for name, deed in DEEDS.items()),
)


def plan_of(mode, folder, deed="pass", at=0):
    """Write a plan of two small pools and what it needs; return its path."""
    if mode == "environments":
        return _played(folder)
    (folder / "rule.py").write_text(JUDGE.format(at=at, deed=deed))
    job = make_job("grpo", samples_per_prompt=2)
    # A limit, so that functions run in processes of their own.
    limits: dict[str, Any] = {"limit_seconds": 2.0, "limit_bytes": 2**30} if deed != "pass" else {}
    job = replace(job, rewards=Rewards(function="rule.py:judge", **limits))
    plan = make_plan(job, POOLS, transition="two-copies")
    staleness = {"one-step-off": 1, "async": 2}.get(mode, 0)
    plan = replace(plan, mode=mode, staleness=staleness)
    write_plan(folder / "plan.yaml", plan)
    return folder / "plan.yaml"


def load_written(folder):
    """Return the plan that was written into a folder."""
    return read_yaml(Plan, folder / "plan.yaml")


def _played(folder):
    """Write the draft of a job whose turns are answered by processes of their own."""
    example = ROOT / "examples" / "turns"
    (folder / "prompts.jsonl").write_bytes((example / "prompts.jsonl").read_bytes())
    job = load_job(example / "job.yaml")
    apart = tuple(replace(each, workers=2) for each in job.workload.environments)
    (node,) = job.cluster
    job = replace(
        job,
        workload=replace(job.workload, environments=apart),
        prompts_file="prompts.jsonl",
        cluster=(replace(node, cpu_cores=4),),
    )
    write_yaml(folder / "plan.yaml", PlanDraft(job=job))
    return folder / "plan.yaml"


def start(plan, out, *options, struck=""):
    """Start a run, in a group of its own, marked by the folder of its plan, where it keeps temporary files."""
    several = struck == OTHER_NODE
    program = f"from {'tests.hard.several_nodes import run as main' if several else 'rlplan_cli.main import main'}; main()"
    arguments = [
        "execute",
        plan,
        "--out",
        out,
        "--iterations",
        ITERATIONS,
        "--warmup",
        1,
        "--checkpoint-every",
        1,
    ]
    folder = str(plan.parent)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": folder, MARK: folder}
    if struck == CLOCK:
        environment |= shifted_clock(plan.parent)
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, (*arguments, *options))], cwd=plan.parent, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def shifted_clock(folder):
    """Return the environment in which the clock of the day is ahead by what a file says, which is 0 so far."""
    library, shift = folder / "shifted_clock.so", folder / "shift"
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", library, CLOCK_SOURCE, "-ldl"]
    subprocess.run(command, check=True)
    shift.write_bytes(struct.pack("q", 0))
    return {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(shift)}


def left_out():
    """Return the faults that cannot be injected here, and why."""
    here = shutil.which("cc") and sys.platform == "linux"
    return (
        {} if here else {fault.name: "no C compiler" for fault in FAULTS if fault.process == CLOCK}
    )


def strike(run, out, fault, dice):
    """Wait for the moment, and signal the process; return its name, empty where the run was over before."""
    after = dice.randrange(ITERATIONS - 1)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while run.poll() is None and time.monotonic() < deadline:
        if iterations_done(out) >= after and (found := _processes(run, fault.process)):
            time.sleep(dice.random() * 0.2)
            chosen = dice.choice(found)
            if fault.process == CLOCK:
                jump = dice.choice(JUMPS_SECONDS)
                with (out.parent / "shift").open(
                    "r+b"
                ) as stream:  # in place: processes have the file mapped
                    stream.write(struct.pack("q", jump))
                return f"{jump:+} s"
            with suppress(psutil.NoSuchProcess):
                name = chosen.name() or fault.process
                chosen.send_signal(fault.number)
                return name
        time.sleep(0.02)
    return ""


def iterations_done(out):
    """Return how many iterations a run has done; -1 before it keeps metrics."""
    metrics = out / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else -1


def _processes(run, name):
    if name in {"driver", CLOCK}:
        return [psutil.Process(run.pid)]
    if name == OTHER_NODE:
        workers = [process.parent() for process in _processes(run, "ray::Worker")]
        return [node for node in workers if node and "--head" not in node.cmdline()]
    found = []
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(run.pid).children(recursive=True):
            with suppress(psutil.Error):
                command = process.cmdline()
                if command and Path(command[0]).name.startswith(name):
                    found.append(process)
    return sorted(found, key=lambda process: process.pid)


def left_behind(folder):
    """Return what runs left: processes that carry their mark, and folders of sessions."""
    deadline = time.monotonic() + SETTLING_SECONDS
    while (found := [*_marked(folder), *map(str, folder.glob("rlplan-ray-*"))]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.1)
    return sorted(found)


def _marked(folder):
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == str(folder):
                yield f"{process.pid} {' '.join(process.cmdline()[:1])}"


@cache
def undisturbed(mode):
    """Return the digests of the weights that a run without a fault ends with."""
    with tempfile.TemporaryDirectory(prefix="rl") as name:
        folder = Path(name)
        run = start(plan_of(mode, folder), folder / "out")
        _, said = run.communicate(timeout=PATIENCE_SECONDS)
        assert run.returncode == 0, said[-2000:]
        return weights(folder / "out")


def weights(out):
    """Return digests of the actor's tensors in a run's last checkpoint, by name; files order them as they like."""
    folder = find_checkpoint(out).folder / "actor"
    return {
        f"{path.name} {name}": hashlib.sha256(tensor.tobytes()).hexdigest()
        for path in sorted(folder.rglob("*.safetensors"))
        for name, tensor in sorted(load_file(path).items())
    }


def broken(mode, fault, dice):
    """Run once with a fault; return what is wrong with how it ended, as sentences, and what was hit."""
    with tempfile.TemporaryDirectory(prefix="rl") as name:  # short, for Ray's sockets lie in it
        folder, out = Path(name), Path(name) / "out"
        at = dice.randrange(1, 16 * (ITERATIONS - 1)) if fault.deed != "pass" else 0
        plan = plan_of(mode, folder, fault.deed, at)
        limit = ("--iteration-limit", HUNG_SECONDS) if fault.number == signal.SIGSTOP else ()
        run = start(plan, out, *limit, struck=fault.process)
        hit = strike(run, out, fault, dice) if fault.process else fault.deed
        found = list(_ending(run, fault, plan, out, hit, limit))
        expected = {ENDS.get(fault.name, 0), *fault.ends}
        if not found and run.returncode not in expected and fault.process != "driver":
            found.append(f"ended with {run.returncode}")
        if not found and fault.name not in ENDS:
            found += _result(mode, fault, out)
        found += [f"left {each}" for each in left_behind(folder)]
    return found, hit


def _ending(run, fault, plan, out, hit, limit):
    """Wait for the end, go on where the driver was killed, and yield what is wrong with the messages."""
    try:
        _, said = run.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        yield f"did not end; {(run.communicate()[1] or '').strip()[-300:]!r}"
        return
    if "Traceback" in said:
        yield f"shows a traceback: {said.strip()[-300:]!r}"
    told = [line for line in said.splitlines() if line.startswith("rlplan: ")]
    if run.returncode not in {0, -signal.SIGKILL} and len(told) != 1:
        yield f"ended with {run.returncode} and {len(told)} messages: {said[-300:]!r}"
    if run.returncode in {-signal.SIGKILL, *fault.ends} and hit and not _is_complete(out):
        again = (
            start(plan, out, "--resume", out, *limit) if has_checkpoints(out) else start(plan, out)
        )
        try:
            _, said = again.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(again.pid, signal.SIGKILL)
            yield "does not end once resumed"
            return
        if again.returncode:
            yield f"does not go on: {said[-300:]!r}"


def _is_complete(out):
    """Tell whether a run's last checkpoint has all its iterations: nothing of it is left to be resumed."""
    return has_checkpoints(out) and find_checkpoint(out).state.iteration == ITERATIONS


def has_checkpoints(out):
    """Tell whether a run has a whole checkpoint."""
    return any((out / "checkpoints").glob("*/manifest.json"))


def _result(mode, fault, out):
    rows = [row["iteration"] for row in read_metrics(out)]
    if rows != list(range(ITERATIONS)):
        yield f"has the iterations {rows}"
    yield from unlearnt(out)
    if not (out / "measured.json").exists() and fault.process != "driver":
        yield "has no measurement"
    if mode in DETERMINISTIC and fault.deed == "pass" and weights(out) != undisturbed(mode):
        yield "ends with other weights"


def unlearnt(out):
    """Yield a complaint if a run has not learnt from each prompt once by its last checkpoint."""
    checkpoint = find_checkpoint(out)
    state, plan = checkpoint.state, load_yaml(checkpoint.folder / PLAN_FILE)
    prompts = plan["job"]["workload"]["prompts"]
    learnt, expected = state.next_prompt - len(state.left_prompts), prompts * state.iteration
    if learnt != expected:
        yield f"learnt from {learnt} prompts in {state.iteration} iterations, not {expected}"


def injected(runs, seed=0, only=None, say=lambda line: print(line, flush=True)):
    """Inject every fault so many times in each of its modes; return counts and failures.

    Args:
        only: Part of the names of the faults that are injected; None: all.
    """
    failures, counts, missed = [], {}, 0
    for fault in FAULTS:
        if fault.name in left_out() or (only and only not in fault.name):
            continue
        for mode in fault.modes:
            for number in range(runs):
                dice = random.Random(f"{seed}/{fault.name}/{mode}/{number}")
                started = time.monotonic()
                found, hit = broken(mode, fault, dice)
                missed += not hit
                done = counts.setdefault(fault.name, {}).setdefault(mode, {"runs": 0, "failed": 0})
                done["runs"] += 1
                done["failed"] += bool(found)
                say(
                    f"{fault.name}, {mode}, run {number}: {'; '.join(found) or 'well'} ({time.monotonic() - started:.0f} s)"
                )
                if found:
                    failures.append(
                        {
                            "fault": fault.name,
                            "mode": mode,
                            "seed": seed,
                            "run": number,
                            "faults": found,
                        }
                    )
    cases = sum(each["runs"] for by_mode in counts.values() for each in by_mode.values())
    return {
        "cases": cases,
        "runs_each": runs,
        "seed": seed,
        "missed": missed,
        "counts": counts,
        "left_out": left_out(),
        "failures": failures,
    }
