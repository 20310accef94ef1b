"""Carry out a plan: start its pools, run iterations, and answer with what was measured."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from executor.controller import Controller, Finished
from executor.machine import machine_fingerprint
from executor.metrics import METRICS_FILE, MetricsWriter
from executor.pools import running_ray
from executor.runnable import check_runnable
from executor.start import check_machine, gpu_names, started_groups
from executor.summary import iteration_metrics, progress_line
from executor.workload import PromptBatches
from rlplan.dataflow import Task
from rlplan.frozen import FrozenDict
from rlplan.measurement import MeasuredRun
from rlplan.plan import Plan
from rlplan.trace import Trace, sorted_spans
from rlplan.writing import write_json, write_yaml

PLAN_FILE = "plan.yaml"
MEASURED_FILE = "measured.json"

# Called as progress(iterations done, iterations in all, what is done).
Progress = Callable[[int, int, str], None]

_log = logging.getLogger(__name__)


def execute(
    plan: Plan,
    out: Path,
    *,
    iterations: int,
    seed: int,
    warmup: int = 2,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> MeasuredRun:
    """Run a plan for some iterations and return the measured trace.

    Writes `plan.yaml`, `metrics.jsonl` (a line per iteration, at once), TensorBoard events and, at
    the end, `measured.json`. However it ends, no process and no half-written file is left.

    Args:
        plan: A complete plan of a resolved job.
        out: Folder of the run; metrics of an earlier run in it are replaced.
        seed: Of the weights and the samples.
        warmup: First iterations that comparisons leave out.
        folder: What relative paths in the job are relative to; None: where the process runs.
        progress: Called after the start and after every iteration.

    Raises:
        PlanError: This engine or this machine cannot run the plan.
        FileError: The prompts cannot be read.
    """
    tasks = check_runnable(plan)
    check_machine(plan)
    prompts = PromptBatches(plan.job, folder or Path())
    tell = progress or _say_nothing
    write_yaml(out / PLAN_FILE, plan)
    for stale in (METRICS_FILE, MEASURED_FILE):
        (out / stale).unlink(missing_ok=True)
    begin = time.monotonic()
    devices = sum(pool.gpus for pool in plan.pools if not pool.is_host)
    hosts = sum(pool.gpus for pool in plan.pools if pool.is_host)
    with (
        running_ray(devices, hosts),
        started_groups(plan, tasks, prompts, seed) as groups,
    ):
        start_seconds = time.monotonic() - begin
        _log.info("workers started in %.1f s", start_seconds)
        left_out = (
            f"; {prompts.dropped} prompts left out for their length" if prompts.dropped else ""
        )
        tell(0, iterations, f"workers started in {start_seconds:.1f} s{left_out}")
        controller = Controller(plan, tasks, groups, prompts.columns)
        finished = _run(controller, plan, tasks, out, iterations, tell)
        peaks = {name: max(group.call("peak")) for name, group in groups.items()}
    run = MeasuredRun(
        plan=plan,
        trace=Trace(
            origin="measured",
            spans=sorted_spans([span for record in finished for span in record.spans]),
            iterations=tuple(record.span for record in finished),
        ),
        warmup_iterations=min(warmup, iterations),
        memory_peak_bytes=FrozenDict(peaks),
        machine=machine_fingerprint(gpu_names()),
    )
    write_json(out / MEASURED_FILE, run)
    return run


def _run(
    controller: Controller,
    plan: Plan,
    tasks: tuple[Task, ...],
    out: Path,
    iterations: int,
    tell: Progress,
) -> list[Finished]:
    """Run all iterations; the metrics of one are written while the workers are busy with the next."""
    finished: list[Finished] = []
    with MetricsWriter(out) as writer:
        for iteration in range(iterations):
            running = controller.send(iteration)
            if finished:
                _write(writer, plan, tasks, finished[-1])
            finished.append(controller.finish(running))
            metrics = iteration_metrics(plan, tasks, finished[-1])
            tell(iteration + 1, iterations, progress_line(iteration, metrics))
        if finished:
            _write(writer, plan, tasks, finished[-1])
    return finished


def _write(writer: MetricsWriter, plan: Plan, tasks: tuple[Task, ...], record: Finished) -> None:
    writer.write(record.span.iteration, iteration_metrics(plan, tasks, record))


def _say_nothing(_: int, __: int, ___: str) -> None:
    return None
