"""Measure what the controller costs: the demo's job on 8 workers.

    python benchmarks/controller_cost.py [--iterations 30] [--workers 8] [--out reports/published]

An iteration's cost is the time in which no worker has a task in hand, from when the controller
begins to send to when it has all reports, plus the CPU time of the controller's process in that
time. Time of the first kind is read from what the ranks report of each call; handing calls over,
waiting for Ray and the controller's own arithmetic all fall into it. Where no worker runs, the
controller usually does, so some seconds are counted twice: against the controller, never for it.

Eight workers on fewer cores take turns on them, which makes an iteration longer and the cost look
small. So the page gives the cost twice: as a share of the measured iteration, and of the one that
workers with a core each would have: idle time as it is, and the rest divided by workers per core.
That takes work for perfectly divisible: a real iteration on eight cores is longer, and the share
between the two.
"""

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ray
from executor_page import cores_in_use, publish_controller

from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.controller import Controller
from rlplan.executor.control.start import started_groups
from rlplan.executor.data.workload import PromptBatches
from rlplan.executor.workers.calls import CallReport
from rlplan.executor.workers.processes.ray_session import running_ray
from rlplan.plan import Plan
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import load_facts

DEMO = Path(__file__).parents[1] / "rlplan_cli" / "demo_job" / "job.yaml"
WARMUP = 5


def main() -> None:
    """Measure, and publish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("reports/published"))
    options = parser.parse_args()
    load, cores = cores_in_use(), min(len(os.sched_getaffinity(0)), options.workers)
    measured = measured_iterations(planned(options.workers), options.iterations)
    whole, idle, cpu = (statistics.median(column) for column in zip(*measured, strict=True))
    spread = idle + (whole - idle) * cores / options.workers
    costs = {
        "workers": options.workers,
        "cores": cores,
        "iterations": options.iterations,
        "load": load,
        "iteration_seconds": whole,
        "idle_seconds": idle,
        "cpu_seconds": cpu,
        "spread_seconds": spread,
        "fraction": (idle + cpu) / spread,
        "measured_fraction": (idle + cpu) / whole,
    }
    publish_controller(costs, options.out)
    print({name: round(value, 4) for name, value in costs.items()})


def planned(workers: int) -> Plan:
    """Return the best plan of the demo's job that uses all of that many devices."""
    job = load_job(DEMO)
    rewards = job.rewards
    assert rewards is not None
    priced = replace(rewards, function_seconds_per_sample=1e-5)
    cluster = (replace(job.cluster[0], gpus_per_node=workers),)
    job = replace(job, rewards=priced, cluster=cluster)
    for candidate in search(job, load_facts(job)).plans:
        if sum(pool.gpus for pool in candidate.plan.pools if not pool.is_host) == workers:
            return candidate.plan
    raise RuntimeError(f"no plan uses all {workers} devices")


def measured_iterations(plan: Plan, iterations: int) -> list[tuple[float, float, float]]:
    """Return of each iteration its seconds, those in which no worker ran, and the controller's CPU."""
    tasks = check_runnable(plan)
    prompts = PromptBatches(plan.job, DEMO.parent)
    devices = sum(pool.gpus for pool in plan.pools if not pool.is_host)
    hosts = sum(pool.gpus for pool in plan.pools if pool.is_host)
    found = []
    with (
        running_ray(devices, hosts),
        started_groups(plan, tasks, prompts, seed=0) as groups,
    ):
        controller = Controller(plan, tasks, groups, prompts.columns)
        for iteration in range(WARMUP + iterations):
            cpu = time.process_time()
            running = controller.send(iteration)
            controller.finish(running)
            cpu, end = time.process_time() - cpu, time.monotonic()
            reports = ray.get([ref for call in running.calls for ref in call.reports.values()])
            found.append(
                (
                    end - running.start_seconds,
                    idle_seconds(reports, running.start_seconds, end),
                    cpu,
                )
            )
    return found[WARMUP:]


def idle_seconds(reports: Sequence[CallReport], start: float, end: float) -> float:
    """Return the seconds between two times in which none of the reported calls ran."""
    idle, free_since = 0.0, start
    for report in sorted(reports, key=lambda report: report.start_seconds):
        idle += max(0.0, report.start_seconds - free_since)
        free_since = max(free_since, report.end_seconds)
    return idle + max(0.0, end - free_since)


if __name__ == "__main__":
    main()
