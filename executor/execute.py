"""Carry out a plan: start its pools, run iterations, and answer with what was measured."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from rlplan.dataflow import Task
from rlplan.executor.control.capabilities import check_coming, check_runnable
from rlplan.executor.control.checkpoints import (
    Checkpoint,
    check_checkpoints_of,
    check_continues,
    checkpoint_folder,
    find_checkpoint,
)
from rlplan.executor.control.cluster import (
    Cluster,
    SharedPaths,
    check_one_machine,
    joined_cluster,
)
from rlplan.executor.control.evaluations import Evaluations, drop_evaluations, read_evaluations
from rlplan.executor.control.export import check_exports, export_actor
from rlplan.executor.control.line_file import drop_iterations
from rlplan.executor.control.metrics import METRICS_FILE, read_metrics
from rlplan.executor.control.moving import Adapter, drop_plans
from rlplan.executor.control.run import REPLICAS_FILE, Progress, Run, Saving
from rlplan.executor.control.services import check_services
from rlplan.executor.control.sole_run import sole_run
from rlplan.executor.control.start import check_machine, gpu_names
from rlplan.executor.control.stopping import Stopping, check_goes_on, stops_at_once
from rlplan.executor.control.summary import REPLICAS, possible_metrics
from rlplan.executor.control.tracking import tracked
from rlplan.executor.control.weights import with_weights
from rlplan.executor.data.workload import PromptBatches, job_of_batches
from rlplan.executor.learning.rules import needed_columns
from rlplan.executor.model.building import weights_folder
from rlplan.executor.workers.cluster.looking import check_reached
from rlplan.files.decoding import decode, is_url, load_json
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_json
from rlplan.fingerprint import read_fingerprint
from rlplan.plan import Plan
from rlplan.replicas import GENERATE, ReplicaDevices, Replicas, ReplicaSchedule
from rlplan.results.measurement import MeasuredRun, ResponseLengths
from rlplan.results.stored import MEASURED_FILE, PLAN_FILE, write_plan
from rlplan.trace import Trace, sorted_spans

# What a run has measured when it writes its last checkpoint: one that is ended behind it can still write its results.
ENDING_FILE = "measured-before-end.json"


def execute(  # noqa: PLR0913 -- what a run is, where it goes, and where it runs
    plan: Plan,
    out: Path,
    *,
    iterations: int,
    seed: int,
    warmup: int = 2,
    folder: Path | None = None,
    progress: Progress | None = None,
    saving: Saving | None = None,
    cluster: Cluster | None = None,
    simulate_nodes: bool = False,
    stopping: Stopping | None = None,
    log_to: Sequence[str] = (),
    adapter: Adapter | None = None,
    schedule: Replicas | None = None,
) -> MeasuredRun:
    """Run a plan for some iterations and return the measured trace.

    Writes `plan.yaml`, `metrics.jsonl` (a line per iteration, at once), TensorBoard events, evaluations and
    checkpoints where they are asked for and, at the end, `measured.json`. However it ends, no
    process and no half-written file is left. A run with checkpoints survives the loss of workers.

    Args:
        plan: A complete plan of a resolved job.
        iterations: Of the run in all: those before a checkpoint with which it begins are counted.
        out: Folder of the run; metrics of an earlier run in it are replaced, but those that a
            run goes on from.
        seed: Of the weights and the samples.
        warmup: First iterations that comparisons leave out.
        folder: What relative paths in the job are relative to; None: where the process runs.
        progress: Called after the start, after every iteration, and when workers were lost.
        saving: What is kept of the run, and with what it begins; None: nothing, and anew.
        cluster: The Ray that it joins; None: one of its own, on this machine.
        simulate_nodes: Whether devices of this machine stand for those of several nodes.
        stopping: When it stops before `iterations`; None: never.
        log_to: Tracking services that get its metrics, by name (`rlplan.executor.control.services`).
        adapter: Decides after which iterations it goes on with another plan, through a checkpoint; None: after none.
        schedule: How many replicas that generate there are from which iteration on; one that is lost is replaced, and the
            run goes on. In devices where the plan is another one than it was written for. None: all of the plan's, and
            the loss of one is that of the workers of an iteration.

    Raises:
        UserError: There is no such service, its package is not installed, or it cannot be started.
        PlanError: This engine, this machine or the cluster cannot run the plan.
        FileError: The prompts, weights or the checkpoint cannot be read, or another job wrote it; another run writes into
            the folder.
        WorkerLostError: Workers were lost, and there are no checkpoints or no retries left.
        DivergedError: Weights or what models say are not finite any more.
    """
    tasks = check_runnable(plan)
    if schedule is not None:
        check_coming(schedule, plan)
        if cluster is not None:  # another plan would have other replicas
            cluster = replace(cluster, replan=None)
    check_services(log_to)
    stopping = stopping or Stopping()
    stopping.check_names(possible_metrics(plan, tasks))
    if cluster is None:
        check_machine(plan)
        if not simulate_nodes:
            check_one_machine(plan)
    saving = saving or Saving()
    plan = _with_weights(plan, tasks, saving)
    prompts = PromptBatches(job_of_batches(plan), folder or Path(), needed_columns(plan.job))
    with sole_run(out):
        start, ended, left = _resumed(saving, plan, out, seed, iterations, stopping)
        first = start.state.iteration if start is not None else 0
        goes_on = check_checkpoints_of(out, start, (saving.checkpoints or "").rstrip("/"))
        paths = _shared_paths(plan, out, saving, start, moves=adapter is not None)
        for field, place in paths.reached.items():
            check_reached((), place, field)
        tell = _phase_progress(progress, first, iterations)
        with (
            tracked(log_to, out, plan, goes_on=goes_on, tell=tell) as tracking,
            joined_cluster(
                plan, cluster, paths, folder or Path(), tell, _first_replicas(schedule, plan, first)
            ) as joined,
        ):
            write_plan(out / PLAN_FILE, plan)
            _drop_earlier(out, first if goes_on else None)
            made_of = (plan, tasks, prompts, out, seed, iterations, saving, start, progress)
            run = Run(*made_of, joined, adapter, schedule)
            run.is_over = left is not None
            evaluations = Evaluations(plan.job.evaluation, out, iterations)

            def measured_now() -> MeasuredRun:
                machine = read_fingerprint(gpu_names()) if joined is None else joined.machine
                return _measured(out, run, first, warmup, machine)

            run.before_last = lambda: write_json(out / ENDING_FILE, measured_now())
            if left is None or evaluations.is_due(first, ends=True):
                run.carry_out(stopping, tracking)
        _export(saving, run.checkpoint, evaluations.best, out, folder)
        left = left or _ended_without_more(ended, run)
        measured = measured_now() if left is None else replace(left, evaluation_seconds=_took(out))
        write_json(out / MEASURED_FILE, measured)
        (out / ENDING_FILE).unlink(missing_ok=True)
        return measured


def _with_weights(plan: Plan, tasks: tuple[Task, ...], saving: Saving) -> Plan:
    """Return a plan that says where its weights are, over none of which the run writes.

    Raises:
        FileError: A model has no weights, a folder does not hold what its configuration says, or an actor is to be written there.
    """
    plan = with_weights(plan, tasks)
    check_exports({"--export": saving.export, "--export-best": saving.export_best}, plan.job)
    return plan


def _resumed(
    saving: Saving, plan: Plan, out: Path, seed: int, iterations: int, stopping: Stopping
) -> tuple[Checkpoint | None, MeasuredRun | None, MeasuredRun | None]:
    """Return the checkpoint with which a run begins, what was measured before it, and the same where nothing but results is left.

    None of none.

    Raises:
        FileError: It cannot be read, another job wrote it, or nothing is left to do.
    """
    if saving.resume is None:
        return None, None, None
    start = find_checkpoint(saving.resume)
    ended = _measured_before(start, plan, out)
    left = ended if ended is None else _left_over(ended, start, iterations, stopping)
    check_continues(start, plan, seed, None if left else iterations)
    if left is None:
        check_goes_on(start.folder, start.run_folder, start.state.iteration, stopping)
    return start, ended, left


def _measured_before(start: Checkpoint, plan: Plan, out: Path) -> MeasuredRun | None:
    """Return what a run of the same plan measured until a checkpoint that may be its last; None where its folder has none."""
    file, done = out / ENDING_FILE, start.state.iteration
    if start.run_folder.resolve() != out.resolve() or not file.exists():
        return None
    found = decode(MeasuredRun, load_json(file), str(file))
    if not found.trace.iterations or found.trace.iterations[-1].iteration + 1 != done:
        return None
    return found if replace(found.plan, made_by=plan.made_by) == plan else None


def _left_over(
    ended: MeasuredRun, start: Checkpoint, iterations: int, stopping: Stopping
) -> MeasuredRun | None:
    """Return what a run measured that was ended behind its last checkpoint, before its results were written.

    None where iterations are left to do.
    """
    done = start.state.iteration
    if done == iterations:
        return replace(ended, stopped="")
    stopped = stops_at_once(start.run_folder, done, stopping)
    return replace(ended, stopped=stopped) if stopped else None


def _ended_without_more(ended: MeasuredRun | None, run: Run) -> MeasuredRun | None:
    """Return what was measured before a run that an evaluation ended which alone was left; None where it did iterations."""
    if ended is None or run.done != ended.trace.iterations[-1].iteration + 1:
        return None
    return replace(ended, stopped=run.stopped)


def _first_replicas(schedule: Replicas | None, plan: Plan, done: int) -> int | None:
    """Return how many replicas a run asks a cluster for before it begins; None where all stay.

    Args:
        done: Iterations before it.
    """
    if schedule is None:
        return None
    if isinstance(schedule, ReplicaDevices):
        schedule = schedule.schedule_of(plan, done)
    return schedule.at(done) if isinstance(schedule, ReplicaSchedule) else 1


def _drop_earlier(out: Path, done: int | None) -> None:
    """Remove what a run's folder has of iterations that are done again.

    Args:
        done: Iterations after which the run that was there goes on; None: it does not.
    """
    drop_iterations(out / METRICS_FILE, done or 0)
    drop_evaluations(out, -1 if done is None else done)
    drop_plans(out, -1 if done is None else done)
    if done is None:
        (out / REPLICAS_FILE).unlink(missing_ok=True)
        (out / ENDING_FILE).unlink(missing_ok=True)
    (out / MEASURED_FILE).unlink(missing_ok=True)


def _measured(
    out: Path, run: Run, first: int, warmup: int, machine: FrozenDict[str, str]
) -> MeasuredRun:
    """Return what a run measured.

    Args:
        out: Its folder, with the metrics of its iterations.
        first: Iterations that were done before it.
        warmup: First ones by its last plan that comparisons leave out.
    """
    begins = max([first, *(each.iteration for each in run.replanned)])
    warmup_iterations = min(begins + warmup, run.done - 1)
    every = read_metrics(out)
    rows = [row for row in every if row["iteration"] >= warmup_iterations]
    tokens = {int(row["iteration"]): row["response_tokens"] for row in every}
    return MeasuredRun(
        plan=run.plan,
        trace=Trace(
            origin="measured",
            spans=sorted_spans([span for record in run.finished for span in record.spans]),
            iterations=tuple(record.span for record in run.finished),
        ),
        warmup_iterations=warmup_iterations,
        memory_peak_bytes=FrozenDict(run.peaks),
        machine=machine,
        response_tokens=mean(row["response_tokens"] for row in rows),
        response_lengths=ResponseLengths.of(rows),
        loop_flops_per_second=run.loop_flops_per_second,
        replanned=run.replanned,
        evaluation_seconds=_took(out),
        stopped=run.stopped,
        replicas=tuple(int(record.metrics[GENERATE].get(REPLICAS, 0)) for record in run.finished)
        if run.comes_and_goes
        else (),
        replica_tokens=tuple(tokens[record.span.iteration] for record in run.finished)
        if run.comes_and_goes
        else (),
    )


def _took(out: Path) -> tuple[float, ...]:
    """Return what each evaluation of a run took, in seconds."""
    return tuple(row["seconds"] for row in read_evaluations(out))


def _export(
    saving: Saving, last: Checkpoint | None, best: int | None, out: Path, folder: Path | None
) -> None:
    """Write the actor as it is at the end, and as it was when an evaluation found it best, where asked for."""
    if saving.export is not None:
        assert last is not None, "a run that is exported ends with a checkpoint"
        export_actor(last, saving.export, folder=folder)
    if saving.export_best is not None:
        assert best is not None, "a run with evaluations ends with one"
        export_actor(
            find_checkpoint(checkpoint_folder(out, best)), saving.export_best, folder=folder
        )


def _shared_paths(
    plan: Plan, out: Path, saving: Saving, start: Checkpoint | None, *, moves: bool
) -> SharedPaths:
    """Return what every node of a cluster must see of a run, beside what travels with it."""
    read = {} if start is None or start.state.url else {"--resume": start.folder}
    for role in plan.job.models:
        source, weights = plan.job.weights_of(role), weights_folder(plan.job, role)
        if weights is not None and not is_url(source or ""):
            read[f"weights.{role}"] = weights.resolve()
    saves = saving.keeps_best or saving.export is not None or moves
    written = {"--out": out.resolve()} if saves and saving.checkpoints is None else {}
    places = {
        "--checkpoints": saving.checkpoints,
        "--export": saving.export,
        "--export-best": saving.export_best,
    }
    reached = {field: each for field, each in places.items() if isinstance(each, str)}
    return SharedPaths(read=read, written=written, reached=reached)


def _phase_progress(progress: Progress | None, done: int, total: int) -> Callable[[str], object]:
    """Return a callback for messages before a run has begun."""
    return lambda message: None if progress is None else progress(done, total, message)
