"""Runs on a Ray cluster of two nodes that lose processes or a node: they go on, and leave the cluster as it was.

A third node comes where one is lost for good. Faults, modes and moments are drawn as those of one machine
(`tests.hard.faults`), and what counts as well is the same.
"""

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from rlplan.executor.control.metrics import read_metrics
from rlplan.job import NodeGroup
from rlplan.results.stored import write_plan
from tests.executor.plans import make_plan
from tests.executor.test_joined_cluster import (
    COMMAND,
    HEAD,
    NEIGHBOUR,
    SECOND,
    STATE,
    THIRD,
    Raylets,
    answer,
    program,
)
from tests.hard import faults
from tests.hard.faults import DETERMINISTIC, HUNG_SECONDS, ITERATIONS, MODES, POOLS

CORES = 2
NODE_WAIT_SECONDS = 200
PATIENCE_SECONDS = 500
# Ray counts a node that is gone until it has missed several of its heartbeats.
MISSED_SECONDS = 60
AS_IT_WAS = {"alive": ["neighbour"], "groups": [], "free": 4.0, "total": 4.0}
NODE = "node"


@dataclass(frozen=True)
class Loss:
    """Hold what is done to a run: which process gets which signal; a node is ended as a whole."""

    name: str
    process: str
    number: int = signal.SIGKILL


LOSSES = (
    Loss("worker killed", "ray::Worker"),
    Loss("worker hangs", "ray::Worker", signal.SIGSTOP),
    Loss("host worker killed", "ray::HostWorker"),
    Loss("driver killed", "driver"),
    Loss("node killed, another one comes", NODE),
)


def plan_of(mode, folder):
    """Write a plan of two pools, each on a node of its own, and what it needs; return its path."""
    faults.plan_of(mode, folder)
    plan = faults.load_written(folder)
    nodes = (NodeGroup(gpu="cpu", gpus_per_node=1, inter_node_gbps=200.0, cpu_cores=CORES),) * 2
    spread = make_plan(replace(plan.job, cluster=nodes), POOLS, transition="two-copies")
    write_plan(folder / "plan.yaml", replace(spread, mode=plan.mode, staleness=plan.staleness))
    return folder / "plan.yaml"


def start(folder, *options):
    """Start a run of the folder's plan."""
    given = ("--out", folder / "out", "--iterations", ITERATIONS, "--warmup", 1)
    return program(
        COMMAND, "execute", folder / "plan.yaml", *given, "--checkpoint-every", 1, *options, cwd=folder,
        start_new_session=True,
    )  # fmt: skip


def undisturbed(mode, kept):
    """Return the digests of the weights that a run on one machine ends with; each mode is run once."""
    if mode not in kept:
        with tempfile.TemporaryDirectory(prefix="rl") as name:
            folder = Path(name)
            plan_of(mode, folder)
            run = start(folder, "--simulate-nodes")
            _, said = run.communicate(timeout=PATIENCE_SECONDS)
            assert run.returncode == 0, said[-2000:]
            kept[mode] = faults.weights(folder / "out")
    return kept[mode]


def struck(raylets, run, out, loss, dice):
    """Wait for the moment, and strike; return whether the run was still there."""
    after = dice.randrange(ITERATIONS - 1)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while run.poll() is None and time.monotonic() < deadline:
        if faults.iterations_done(out) >= after and (found := _processes(raylets, run, loss)):
            time.sleep(dice.random() * 0.2)
            if loss.process == NODE:
                raylets.kill(SECOND)
                raylets.add(THIRD, CORES)
                return True
            with suppress(psutil.NoSuchProcess):
                dice.choice(found).send_signal(loss.number)
                return True
        time.sleep(0.02)
    return False


def _processes(raylets, run, loss):
    if loss.process == "driver":
        return [psutil.Process(run.pid)]
    found = []
    name = "ray::Worker" if loss.process == NODE else loss.process
    for process in psutil.Process(raylets.pid).children(recursive=True):
        with suppress(psutil.Error):
            command = process.cmdline()
            if command and Path(command[0]).name.startswith(name):
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def broken(raylets, mode, loss, dice, kept):
    """Run once with a loss; return what is wrong with how it ended, as sentences, and whether it was hit."""
    with tempfile.TemporaryDirectory(prefix="rl") as name:
        folder = Path(name)
        out = folder / "out"
        plan_of(mode, folder)
        options = ["--address", raylets.address, "--node-wait", NODE_WAIT_SECONDS]
        if loss.number == signal.SIGSTOP:
            options += ["--iteration-limit", HUNG_SECONDS]
        run = start(folder, *options)
        hit = struck(raylets, run, out, loss, dice)
        found = list(_ending(run, loss, folder, options))
        if hit and loss.process == NODE:
            raylets.kill(THIRD)
            raylets.add(SECOND, CORES, "big")
        if not found:
            found += _result(mode, out, kept)
        found += _left(raylets)
    return found, hit


def _ending(run, loss, folder, options):
    """Wait for the end, go on where the driver was killed, and yield what is wrong."""
    try:
        _, said = run.communicate(timeout=PATIENCE_SECONDS)
        if loss.process == "driver" and run.returncode == -signal.SIGKILL:
            resume = ("--resume", folder / "out") if faults.has_checkpoints(folder / "out") else ()
            run = start(folder, *options, *resume)
            _, said = run.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        yield f"did not end; {(run.communicate()[1] or '').strip()[-300:]!r}"
        return
    if run.returncode or "Traceback" in said:
        yield f"ended with {run.returncode}: {said.strip()[-300:]!r}"


def _result(mode, out, kept):
    rows = [row["iteration"] for row in read_metrics(out)]
    if rows != list(range(ITERATIONS)):
        yield f"has the iterations {rows}"
    yield from faults.unlearnt(out)
    if mode in DETERMINISTIC and faults.weights(out) != undisturbed(mode, kept):
        yield "ends with other weights"


def _left(raylets):
    """Yield what the cluster has that it did not have before, once Ray has missed the nodes that were ended."""
    deadline = time.monotonic() + MISSED_SECONDS
    while True:
        code, printed, said = answer(STATE, raylets.address)
        if code:
            yield f"the cluster does not answer: {said[-300:]!r}"
            return
        state = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
        left = [name for name, before in AS_IT_WAS.items() if state[name] != before]
        if not left or time.monotonic() > deadline:
            break
    yield from (f"left {name} {state[name]} in the cluster" for name in left)


def lost(runs, seed=0, say=lambda line: print(line, flush=True)):
    """Strike runs on a cluster, every loss so many times in each mode; return counts and failures."""
    failures, counts, kept = [], {}, {}
    missed = 0
    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp", ignore_cleanup_errors=True) as folder:
        raylets = Raylets(folder)
        raylets.add(HEAD, CORES)
        raylets.add(SECOND, CORES, "big")
        assert answer(NEIGHBOUR, raylets.address)[1].strip() == "7"
        for loss in LOSSES:
            for mode in MODES:
                done = counts.setdefault(loss.name, {}).setdefault(mode, {"runs": 0, "failed": 0})
                for number in range(runs):
                    started = time.monotonic()
                    dice = random.Random(f"{seed}/{loss.name}/{mode}/{number}")
                    found, hit = broken(raylets, mode, loss, dice, kept)
                    missed += not hit
                    done["runs"] += 1
                    done["failed"] += bool(found)
                    seconds = time.monotonic() - started
                    say(
                        f"{loss.name}, {mode}, run {number}: {'; '.join(found) or 'well'} ({seconds:.0f} s)"
                    )
                    if found:
                        about = {"fault": loss.name, "mode": mode, "seed": seed, "run": number}
                        failures.append({**about, "faults": found})
        raylets.stop()
    return {
        "cases": sum(each["runs"] for by_mode in counts.values() for each in by_mode.values()),
        "runs_each": runs,
        "seed": seed,
        "missed": missed,
        "counts": counts,
        "failures": failures,
    }
