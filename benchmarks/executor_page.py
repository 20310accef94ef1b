"""The page `executor.md`: throughput beside TRL's, and what the controller costs.

Two benchmarks write it, each its own part; the figures are in `executor.json`.
"""

import json
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlplan.files.writing import write_json, write_text

BAR_RATIO, BAR_FRACTION = 2.0, 0.05
BUSY_LOAD = 0.5  # cores; above it, other processes ran on the machine
LOOK_SECONDS = 3.0


def cores_in_use() -> float:
    """Return how many cores other processes use, on average over some seconds."""
    times = Path("/proc/stat")  # Linux's; elsewhere the average of the last minute has to do
    if not times.exists():
        return os.getloadavg()[0]
    before = _busy_and_all(times)
    time.sleep(LOOK_SECONDS)
    after = _busy_and_all(times)
    return (os.cpu_count() or 1) * (after[0] - before[0]) / max(1, after[1] - before[1])


def _busy_and_all(times: Path) -> tuple[int, int]:
    """Return the clock ticks in which cores worked, and all of them, since the start."""
    ticks = [int(word) for word in times.read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    waiting = ticks[3] + ticks[4]  # idle, and idle while a disk works
    return sum(ticks) - waiting, sum(ticks)


def publish_throughput(compared: Mapping[str, Any], out: Path) -> None:
    """Put a comparison with TRL into the page."""
    figures = known_figures(out)
    figures.setdefault("throughput", {})[compared["algorithm"]] = dict(compared)
    publish(figures, out)


def publish_controller(costs: Mapping[str, Any], out: Path) -> None:
    """Put the controller's cost into the page."""
    publish(known_figures(out) | {"controller": dict(costs)}, out)


def known_figures(out: Path) -> dict[str, Any]:
    """Return the figures that were published before."""
    path = out / "executor.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def publish(figures: Mapping[str, Any], out: Path) -> None:
    """Write the figures and the page."""
    write_json(out / "executor.json", figures)
    lines = ["# The executor, measured", ""]
    for _, compared in sorted(figures.get("throughput", {}).items()):
        lines += throughput_section(compared)
    if "controller" in figures:
        lines += controller_section(figures["controller"])
    write_text(out / "executor.md", "\n".join(lines))


def throughput_section(compared: Mapping[str, Any]) -> list[str]:
    """Return the lines of a comparison with TRL."""
    tokens, pairs = compared["tokens"], compared["pairs"]
    ratio = statistics.median(pair["ratio"] for pair in pairs)
    versions = ", ".join(f"{name} {version}" for name, version in compared["versions"].items())
    return [
        f"## {compared['algorithm'].upper()} beside TRL",
        "",
        (
            f"Made by `make bench-trl`: {tokens:,} response tokens an iteration, on"
            f" {compared['cores']} cores ({versions}). Turns of {compared['turn']} iterations"
            " alternate; medians of a turn, whole iterations. Setting: `benchmarks/executor_vs_trl.py`."
            f" Our plan: {compared['layout']}.{busy_note(compared['load'])}"
        ),
        "",
        "| pair | TRL, tokens/s | rlplan, tokens/s | ratio |",
        "|---:|---:|---:|---:|",
        *(
            f"| {number} | {tokens / pair['trl_seconds']:,.0f} | {tokens / pair['seconds']:,.0f}"
            f" | {pair['ratio']:.2f} |"
            for number, pair in enumerate(pairs, 1)
        ),
        "",
        f"Median ratio: **{ratio:.2f}**; the bar is {BAR_RATIO:g}: {verdict(ratio >= BAR_RATIO, compared['load'])}.",
        "",
        bound_of(compared),
        "",
    ]


def bound_of(compared: Mapping[str, Any]) -> str:
    """Say how often TRL's iteration would hold one of ours that did nothing but its products."""
    rate, flops = compared["flops_per_second"], compared["product_flops"]
    least = flops / rate
    ours = statistics.median(pair["seconds"] for pair in compared["pairs"])
    theirs = statistics.median(pair["trl_seconds"] for pair in compared["pairs"])
    return (
        f"An iteration has {flops / 1e9:.0f} GFLOP of fp32 matrix products, attention's left out; the cores"
        f" multiply large matrices at {rate / 1e9:.0f} GFLOP/s, so that products alone take {least:.2f} s"
        f" of our {ours:.2f} s, and of TRL's {theirs:.2f} s: a ratio of {theirs / least:.2f} would leave no time"
        " for anything else."
    )


def controller_section(costs: Mapping[str, Any]) -> list[str]:
    """Return the lines of the controller's cost."""
    fraction, idle = costs["fraction"], costs["idle_seconds"] / costs["iteration_seconds"]
    return [
        "## What the controller costs",
        "",
        (
            f"Made by `python benchmarks/controller_cost.py`: the demo's job on {costs['workers']}"
            f" workers and {costs['cores']} cores, {costs['iterations']} iterations, medians. How it is"
            f" counted: `benchmarks/controller_cost.py`.{busy_note(costs['load'])}"
        ),
        "",
        "| iteration | no worker runs | controller's CPU | iteration with a core a worker | cost |",
        "|---:|---:|---:|---:|---:|",
        (
            f"| {1e3 * costs['iteration_seconds']:.1f} ms | {1e3 * costs['idle_seconds']:.1f} ms"
            f" | {1e3 * costs['cpu_seconds']:.1f} ms | {1e3 * costs['spread_seconds']:.1f} ms"
            f" | {fraction:.1%} |"
        ),
        "",
        (
            f"The bar is {BAR_FRACTION:.0%}. By what the recorder shows, the time in which no worker has a"
            f" task in hand, it is {idle:.1%} of the iteration: {verdict(idle < BAR_FRACTION, costs['load'])}."
            " With the controller's CPU time, which runs beside the workers', the cost is"
            f" {costs['measured_fraction']:.1%}: {verdict(costs['measured_fraction'] < BAR_FRACTION, costs['load'])}."
            f" Of the one with a core for each worker it is {fraction:.1%}:"
            f" {verdict(fraction < BAR_FRACTION, costs['load'])}."
        ),
        "",
    ]


def verdict(holds: bool, load: float) -> str:
    """Say whether a bar holds; other work on the machine slows both sides, but not alike."""
    if load >= BUSY_LOAD:
        return "not judged on a busy machine"
    return "it holds" if holds else "it is missed"


def busy_note(load: float) -> str:
    """Return a warning where the machine was busy before the run."""
    if load < BUSY_LOAD:
        return ""
    return f" The machine was busy with other work ({load:.1f} cores in use before the run)."
