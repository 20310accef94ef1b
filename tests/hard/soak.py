"""All modes in turn for a time: what the driver, Ray and the workers hold, and whether it grows.

Alone: `python -m tests.hard --parts soak --minutes 60`.
"""

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.workers.processes.ray_session import LOG_BYTES
from rlplan.units import MIB
from tests.hard import faults

MODES = (*faults.MODES, "environments")
# Of a run: workers start, caches fill.
WARM_UP_FRACTION = 0.25
SAMPLE_SECONDS = 2.0
# What counts as growth, in a soak that is long enough to tell it from noise.
FLAT_FRACTION, LONG_MINUTES = 0.02, 60.0
# Ray's servers write down how they are every minute, into files that are rotated at a size: no file may be larger,
# nor may they get more.
LOGS, LOG_FILES, LARGEST_LOG = "Ray's logs, MiB", "Ray's logs, files", "Ray's largest log, MiB"
LARGEST_LOG_MIB = LOG_BYTES / MIB
MANY_ITERATIONS = 10_000_000
INTERRUPTED = 128 + signal.SIGTERM


def soaked(minutes):
    """Run every mode for its share of the minutes; return growth, counts and failures."""
    failures, growth, iterations = [], {}, 0
    for mode in MODES:
        with tempfile.TemporaryDirectory(prefix="rl") as name:
            folder, out = Path(name), Path(name) / "out"
            samples, said, code = sampled(
                faults.plan_of(mode, folder), out, 60 * minutes / len(MODES)
            )
            rows = [row["iteration"] for row in read_metrics(out)]
            lost = list(faults.unlearnt(out))
            left = faults.left_behind(folder)
        iterations += len(rows)
        if code != INTERRUPTED or left or lost or rows != list(range(len(rows))):
            told = {"mode": mode, "code": code, "said": said[-300:], "left": left, "lost": lost}
            failures.append(told)
        for what, found in grown(samples).items():
            growth[f"{mode}: {what}"] = found
            if minutes >= LONG_MINUTES and grows(what, found):
                failures.append({"mode": mode, "what": what, "growth": found["growth"]})
    return {"cases": iterations, "minutes": minutes, "growth": growth, "failures": failures}


def sampled(plan, out, seconds):
    """Run a plan for so many seconds after its first iteration; return samples, its complaint and code."""
    faults.ITERATIONS, kept = MANY_ITERATIONS, faults.ITERATIONS
    try:
        run = faults.start(plan, out)
    finally:
        faults.ITERATIONS = kept
    samples, begun = [], time.monotonic()
    try:
        while (
            run.poll() is None
            and faults.iterations_done(out) < 1
            and time.monotonic() < begun + faults.PATIENCE_SECONDS
        ):
            time.sleep(0.1)
        end = time.monotonic() + seconds
        while run.poll() is None and time.monotonic() < end:
            samples.append(_sample(run, out))
            time.sleep(SAMPLE_SECONDS)
    finally:  # a sample that cannot be taken leaves no run behind
        run.send_signal(signal.SIGTERM)
    _, said = run.communicate(timeout=faults.PATIENCE_SECONDS)
    return samples, said, run.returncode


def _sample(run, out):
    """Return what is held now, by name: memory in MiB, handles, disk in MiB."""
    driver = psutil.Process(run.pid)
    found = {
        "driver, MiB": driver.memory_info().rss / MIB,
        "driver, open handles": driver.num_fds(),
    }
    workers = 0.0
    for process in driver.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            name = Path((process.cmdline() or [""])[0]).name
            if name in {"gcs_server", "raylet"}:
                found[f"{name}, MiB"] = process.memory_info().rss / MIB
            elif name.startswith(("ray::Worker", "ray::Host", "ray::Storage")):
                workers += process.memory_info().rss / MIB
    found["workers, MiB"] = workers
    logs = [
        size
        for folder in out.parent.glob("rlplan-ray-*/session_[0-9]*/logs")
        for size in _sizes(folder)
    ]
    whole = sum(size for folder in out.parent.glob("rlplan-ray-*") for size in _sizes(folder))
    found[LOGS], found[LOG_FILES] = sum(logs) / MIB, len(logs)
    found[LARGEST_LOG] = max(logs, default=0) / MIB
    found["Ray's other files, MiB"] = (whole - sum(logs)) / MIB
    found["checkpoints, MiB"] = sum(_sizes(out / "checkpoints")) / MIB
    return found


def _sizes(folder):
    """Yield the bytes of each of a folder's files, but of those that the run removes meanwhile."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                yield (Path(parent) / name).lstat().st_size


def grows(what, found):
    """Tell whether a figure grows; logs may, as far as their files are rotated."""
    if what == LOGS:
        return False
    if what == LARGEST_LOG:
        return found["last"] > LARGEST_LOG_MIB
    return found["growth"] > FLAT_FRACTION


def grown(samples):
    """Return by name the medians of the first and the last third after the warm-up, and the growth."""
    steady = samples[int(len(samples) * WARM_UP_FRACTION) :]
    third = max(1, len(steady) // 3)
    found = {}
    for what in sorted({name for sample in steady for name in sample}):
        first, last = (
            median([sample.get(what, 0.0) for sample in part])
            for part in (steady[:third], steady[-third:])
        )
        found[what] = {"first": first, "last": last, "growth": last / first - 1 if first else 0.0}
    return found
