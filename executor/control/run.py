"""A run: iteration after iteration, checkpoints between them, and new workers where some were lost."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.exceptions import RayError

from rlplan.dataflow import Task
from rlplan.errors import (
    DivergedError,
    NodesMissingError,
    RlplanError,
    UserError,
    WorkerLostError,
)
from rlplan.executor.control.capabilities import check_coming, check_runnable
from rlplan.executor.control.checkpoints import (
    CHECKPOINTS_FOLDER,
    Checkpoint,
    CheckpointFolder,
    CheckpointState,
    restore,
    whole_checkpoint,
)
from rlplan.executor.control.cluster import JoinedCluster, places_of
from rlplan.executor.control.controller import Controller, MeasuredIteration
from rlplan.executor.control.diverging import SkippedUpdates, end_of_diverged
from rlplan.executor.control.evaluating import Evaluator, evaluation_line
from rlplan.executor.control.evaluations import (
    EVALUATION,
    Evaluations,
    drop_evaluations,
    evaluation_names,
)
from rlplan.executor.control.line_file import LineFile, drop_iterations
from rlplan.executor.control.metrics import METRICS_FILE, MetricsWriter, read_metrics
from rlplan.executor.control.moving import (
    PLAN_BEFORE,
    Adapter,
    Moving,
    Trial,
    may_be_the_plans,
    plan_began,
)
from rlplan.executor.control.start import (
    ITERATION,
    ComingReplicas,
    may_keep_workers,
    slowest_loop,
    started_groups,
    within,
)
from rlplan.executor.control.stopping import StopCheck, Stopping, rows_before
from rlplan.executor.control.summary import NOT_IN_EVERY_ITERATION, iteration_metrics, progress_line
from rlplan.executor.control.tracking import Tracking
from rlplan.executor.data.finite import in_task
from rlplan.executor.data.workload import PromptBatches
from rlplan.executor.workers.host_worker import HostWorker
from rlplan.executor.workers.pools import KeptWorkers, WorkerGroup
from rlplan.executor.workers.processes.ray_session import DEVICE, HOST, running_ray
from rlplan.executor.workers.wanted import Wanted, WantedByLength
from rlplan.executor.workers.worker import Worker
from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.replicas import (
    ReplicaChoice,
    ReplicaDevices,
    Replicas,
    ReplicaSchedule,
    ReplicaTable,
    devices_of,
)
from rlplan.results.advice import AS_IT_IS, Adaptation
from rlplan.results.measurement import Replanned
from rlplan.results.stored import PLAN_FILE, write_plan

# Called as progress(iterations done, iterations in all, what is done).
Progress = Callable[[int, int, str], None]

# What became of replicas that come and go, and how many were wanted: an event a line, also of iterations that were done again.
REPLICAS_FILE = "replicas.jsonl"

# Of so many iterations a run keeps every span, for its trace: what is compared are their medians, which
# more do not change. A run of any length takes the same memory, and writes a trace of a few megabytes.
KEPT_ITERATIONS = 1000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Say what is kept of a run, and with what it begins.

    Attributes:
        every: Iterations between checkpoints; the last iteration has one too. None: none are written,
            and a run that loses a worker ends.
        keep: Checkpoints that are kept, the last ones.
        retries: How often a run that lost workers goes on from its last checkpoint.
        iteration_seconds: Time limit of an iteration, and of work between two, such as a checkpoint; workers that
            exceed it count as lost. None: no limit.
        start_seconds: Limit of the start of workers and their models, likewise.
        checkpoints: URL behind which models of checkpoints go; None: they go into the run's folder.
        resume: A checkpoint, or a run whose last one it is, to begin with: a folder, or a URL.
        export: Folder, or URL, for the actor at the end, as `transformers` reads it.
        export_best: The same for the actor as it was when an evaluation found it best.
    """

    every: int | None = None
    keep: int = 2
    retries: int = 3
    iteration_seconds: float | None = None
    start_seconds: float | None = None
    checkpoints: str | None = None
    resume: Path | str | None = None
    export: Path | str | None = None
    export_best: Path | str | None = None

    @property
    def keeps_best(self) -> bool:
        """Tell whether every evaluation has a checkpoint, of which the best one is kept."""
        return self.every is not None or self.export_best is not None


class Run:
    """Carry out the iterations of a plan.

    Args:
        iterations: In all, those before `start` included.
        start: Checkpoint with which it begins; None: it begins with new weights.
        joined: The cluster whose nodes it takes; None: a Ray of its own.
        adapter: Decides where it goes on with another plan; None: nowhere.
        schedule: How many replicas that generate there are when, in those of the plan or in devices, or at which lengths, by this
            plan or by any; None: all of them, all the time.

    Attributes:
        plan: The one that is carried out now.
        replanned: Where another one followed.
        done: Iterations that are done, those before `start` included.
        stopped: Why it stopped before the last iteration; empty where it did not.
        finished: What the last iterations measured; of all of them `metrics.jsonl` has the numbers.
        peaks: Largest bytes of a device's process, by pool.
        loop_flops_per_second: How fast the slowest device is, at the start and at the end.
        checkpoint: The last one that was written or begun with.
        before_last: Called before the last checkpoint is written, when all but evaluations is measured.
        is_over: Whether all iterations are done, and an evaluation alone is left.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- all that a run is made of
        self,
        plan: Plan,
        tasks: tuple[Task, ...],
        prompts: PromptBatches,
        out: Path,
        seed: int,
        iterations: int,
        saving: Saving,
        start: Checkpoint | None,
        progress: Progress | None,
        joined: JoinedCluster | None = None,
        adapter: Adapter | None = None,
        schedule: Replicas | None = None,
    ) -> None:
        self._joined, self._moving = joined, Moving(adapter)
        self._choice = schedule if isinstance(schedule, ReplicaChoice) else None
        if isinstance(schedule, ReplicaChoice):
            schedule = schedule.table_of(plan)
        self._by_length: WantedByLength | None = None
        if isinstance(schedule, ReplicaTable):
            begins = plan_began(out, start.state.iteration if start is not None else 0)
            self._by_length = WantedByLength(schedule, begins)
        if isinstance(schedule, ReplicaSchedule):
            schedule = devices_of(schedule, plan)
        self._devices = schedule if isinstance(schedule, ReplicaDevices) else None
        self._stopping, self._tracking = Stopping(), Tracking()
        self.plan, self._tasks, self._prompts, self._out = plan, tasks, prompts, out
        self.replanned: tuple[Replanned, ...] = ()
        self._seed, self._iterations = seed, iterations
        self._saving, self._progress = saving, progress or (lambda _, __, ___: None)
        self._evaluations = Evaluations(plan.job.evaluation, out, iterations)
        best = self._evaluations.best
        url = saving.checkpoints or ""
        self._folder = CheckpointFolder(out / CHECKPOINTS_FOLDER, saving.keep, best, url)
        self.done = start.state.iteration if start is not None else 0
        self._origin_seconds: float | None = None
        self._evaluator: Evaluator | None = None
        self._kept: KeptWorkers | None = None
        self._earlier = [start.run_folder] if start is not None else []
        self.stopped = ""
        self.checkpoint = start
        self.finished: deque[MeasuredIteration] = deque(maxlen=KEPT_ITERATIONS)
        self.peaks: dict[str, int] = {}
        self.loop_flops_per_second: tuple[float, ...] = ()
        self.before_last: Callable[[], object] = lambda: None
        self.is_over = False

    @property
    def comes_and_goes(self) -> bool:
        """Tell whether replicas that generate come and go."""
        return self._devices is not None or self._by_length is not None

    @property
    def _wanted(self) -> Wanted | None:
        """Return how many replicas of the plan that is carried out now are wanted; None where all stay."""
        if self._devices is None:
            return self._by_length
        return self._devices.schedule_of(self.plan, self.done)

    def carry_out(self, stopping: Stopping, tracking: Tracking) -> None:
        """Run all iterations; where workers or Ray are lost, go on with new ones from the last checkpoint.

        Where nodes of a cluster are lost and do not come back, it goes on with a plan for those that are left; where its adapter
        says so, with another one after an iteration.

        Args:
            stopping: When it stops before the last one.
            tracking: What hands its metrics to tracking services.

        Raises:
            FileError: It stops by a metric that no iteration has.
            WorkerLostError: There are no checkpoints though iterations were done, no retries left, or no plan
                for the nodes that are.
            DivergedError: Weights or what models say are not finite any more.
        """
        self._stopping, self._tracking = stopping, tracking
        self._tell_passed_over()
        self._resume_move()
        self._note_lengths_before()
        retries = 0
        while True:
            try:
                self._attempt()
            except DivergedError as error:  # another start or layout would end there again
                raise DivergedError(
                    end_of_diverged(error, self.checkpoint, self.done, self._out)
                ) from error
            except (RlplanError, RayError) as error:
                if self._gone_back(error):  # no retry: that plan is not tried again
                    continue
                if not isinstance(error, WorkerLostError):
                    raise
                self._moving.forget()
                can_go_on = self._saving.every is not None or not self.finished
                is_last = retries == self._saving.retries
                if not can_go_on or (is_last and not self._replans(error)):
                    raise
                iteration = self._go_back()
                self._tell_passed_over()
                goes_on = f"goes on after {iteration} iterations"
                changed = self._changed_plan(error)
                if changed:  # no retry: each time there are fewer nodes
                    self._tell(f"{changed}; {goes_on}")
                elif is_last:
                    raise
                else:
                    retries += 1
                    self._tell(f"{error}; {goes_on} (retry {retries} of {self._saving.retries})")
            else:
                return

    def _note_lengths_before(self) -> None:
        """Take up how long responses were before a checkpoint, where how many replicas are wanted rests on that."""
        if self._by_length is None or not self.done:
            return
        files = [folder / METRICS_FILE for folder in (*self._earlier, self._out)]
        rows = [row for file in files if file.exists() for row in read_metrics(file)]
        before = {int(row["iteration"]): row["response_tokens"] for row in rows}
        for iteration in sorted(each for each in before if each < self.done):
            self._by_length.note(iteration, before[iteration])

    def _resume_move(self) -> None:
        """Put a plan on trial again that this run's folder says has done no iteration yet."""
        start = self.checkpoint
        if start is not None and start.run_folder.resolve() == self._out.resolve():
            no_way_back = self._moving.resume(self.plan, self._out, self.done)
            if no_way_back:
                self._tell(no_way_back)

    def _replans(self, error: WorkerLostError) -> bool:
        """Tell whether another plan may help."""
        is_short = isinstance(error, NodesMissingError)
        return is_short and self._joined is not None and self._joined.replans

    def _changed_plan(self, error: WorkerLostError) -> str:
        """Take a plan for the nodes that are left, where some have not come; return what is said of it, else nothing.

        Raises:
            WorkerLostError: No plan fits them.
        """
        if self._joined is None or not self._replans(error):
            return ""
        self._tell(f"{error}; searches a plan for the nodes that are there")
        try:
            plan = self._joined.replanned()
            if plan is None:
                return ""
            tasks = check_runnable(plan)
        except UserError as why:
            words = f"{error}; no plan for the nodes that are there: {why}"
            raise WorkerLostError(words) from error
        self._note_plan(plan, tasks, str(error))
        nodes = sum(group.nodes for group in plan.job.cluster)
        return f"a plan for {nodes} {'node' if nodes == 1 else 'nodes'} ({plan.placement})"

    def _note_plan(self, plan: Plan, tasks: tuple[Task, ...], reason: str) -> None:
        """Go on with another plan, and keep the one until now where it has done iterations."""
        before = PLAN_BEFORE.format(self.done)
        noted = {each.before: each for each in self.replanned}
        if before not in noted:  # else it has done none
            write_plan(self._out / before, self.plan)
        write_plan(self._out / PLAN_FILE, plan)
        noted[before] = Replanned(iteration=self.done, reason=reason, before=before)
        self.replanned = tuple(noted.values())
        self.plan, self._tasks = plan, tasks
        self.finished.clear()  # spans of another plan's pools

    def _tell_passed_over(self) -> None:
        if self.checkpoint is not None and self.checkpoint.passed_over:
            message = f"{self.checkpoint.passed_over}; begins with {self.checkpoint.folder.name}"
            self._progress(self.checkpoint.state.iteration, self._iterations, message)

    def _attempt(self) -> None:
        """Start Ray and workers, and run what is left: one plan, or several after one another."""
        with self._session() as self._kept:
            while True:
                self._carry_out_plan()
                if self._moving.next.plan is None or self.stopped:
                    return
                self._take_plan(self._moving.next.plan, self._moving.next.reason)

    @contextmanager
    def _session(self) -> Iterator[KeptWorkers | None]:
        """Keep one Ray of its own for all plans of a run that moves, with slots for all devices and cores of its job.

        Yields:
            Workers that go from plan to plan; None where there are none: each plan has its own.
        """
        if self._joined is not None or not self._moving.may_come:
            yield None
            return
        job, held = self.plan.job, {True: 0, False: 0}
        for pool in self.plan.pools:
            held[pool.is_host] += pool.gpus
        with running_ray(max(job.gpus, held[False]), max(job.host_cores or 0, held[True])):
            if not may_keep_workers(self.plan):
                yield None
                return
            kept = KeptWorkers(Worker, DEVICE, (HostWorker, HOST))
            try:
                yield kept
            except Exception:
                kept.end()
                raise
            kept.end()  # an interruption ends Ray, or Ray has ended and would not answer

    def _take_plan(self, plan: Plan, reason: str) -> None:
        """Go on with another plan from the checkpoint that was written for it."""
        tasks = check_runnable(plan)
        if self._devices is not None:
            check_coming(self._devices, plan)
            self._devices.schedule_of(plan, self.done)
        if self._choice is not None:
            check_coming(self._choice, plan)
        if self._joined is not None:
            self._joined.take(plan)
        trial = Trial(
            plan=self.plan,
            tasks=self._tasks,
            finished=tuple(self.finished),
            replanned=self.replanned,
            most_seconds=self._moving.next.most_seconds,
        )
        self._note_plan(plan, tasks, reason)
        self._moving.trial = trial
        self._tell(f"after {self.done} iterations goes on with another plan ({plan.placement})")
        self._choose_replicas(tells=True)

    def _choose_replicas(self, *, tells: bool = False) -> None:
        """Want as many replicas as pay by the plan that is carried out now, where forecasts choose."""
        if self._choice is None or self._by_length is None:
            return
        table, begins = self._choice.table_of(self.plan), plan_began(self._out, self.done)
        self._by_length = self._by_length.by(table, begins)
        if tells:
            self._tell(table.words)
        with LineFile(self._out / REPLICAS_FILE) as file:
            line = self._wanted_line(self._by_length, self.done)
            file.append({"iteration": self.done - 1, **line})

    def _gone_back(self, error: RlplanError | RayError) -> bool:
        """Go back to the plan before where a plan on trial has failed; tell whether it was one.

        Nodes that a cluster has lost are no matter of the plan: another one is searched for those that are left, or the plan
        before may do with them, and that on trial may be tried again once the run is resumed. So may it after a mistake of the
        user's, or with a full disk. What ends no worker, such as a lack of memory, is the plan's own whatever nodes there are.
        """
        trial, failed = self._moving.trial, self.plan
        if trial is None:
            return False
        lacks_nodes = isinstance(error, WorkerLostError) and (
            isinstance(error, NodesMissingError) or self._has_lost_nodes
        )
        if lacks_nodes and self._joined is not None and self._joined.replans:
            return False
        self._go_back()
        for_good = not lacks_nodes and may_be_the_plans(error)
        said = self._moving.failed(failed, self.done, str(error), for_good=for_good)
        if self._joined is not None:
            self._joined.take(trial.plan)
        write_plan(self._out / PLAN_FILE, trial.plan)
        (self._out / PLAN_BEFORE.format(self.done)).unlink(missing_ok=True)
        self.plan, self._tasks, self.replanned = trial.plan, trial.tasks, trial.replanned
        self._choose_replicas()
        self.finished.extend(trial.finished)
        placement = trial.plan.placement
        self._tell(
            f"{error}; goes back to the plan before ({placement}) after {self.done} iterations"
        )
        for words in said:
            self._tell(words)
        return True

    @property
    def _has_lost_nodes(self) -> bool:
        return self._joined is not None and self._joined.has_lost_nodes

    def _carry_out_plan(self) -> None:
        """Start workers, and run what is left of the plan's part."""
        self._moving.start()
        begin = time.monotonic()
        limit_seconds, limited = self._moving.start_limit(self._saving.start_seconds)
        coming: ComingReplicas | None = None
        first: int | None = None
        if (wanted := self._wanted) is not None:
            coming = ComingReplicas(schedule=wanted, iteration=self.done)
            first = wanted.at(self.done)
        with (
            places_of(self.plan, self._joined, self._tell, first) as placed,
            started_groups(
                self.plan,
                self._tasks,
                self._prompts,
                self._seed,
                limit_seconds,
                placed,
                limited,
                self._kept,
                coming,
            ) as groups,
        ):
            seconds = time.monotonic() - begin
            _log.info("workers started in %.1f s", seconds)
            too_long = f"; {self._prompts.too_long}" if self._prompts.too_long else ""
            message = f"workers started in {seconds:.1f} s{too_long}"
            self._progress(self.done, self._iterations, message)
            self._iterate(groups)

    @property
    def _spared_seconds(self) -> float:
        """Return what a start took that that of the next plan will not, where all devices have their processes.

        Replicas that come and go have new ones after each move.
        """
        if self.comes_and_goes:
            return 0.0
        devices = sum(pool.gpus for pool in self.plan.pools if not pool.is_host)
        if self._kept is None or devices < self.plan.job.gpus:
            return 0.0
        return self._kept.start_seconds

    def _tell(self, message: str) -> None:
        self._progress(self.done, self._iterations, message)

    def _iterate(self, groups: Mapping[str, WorkerGroup]) -> None:
        """Run what is left; metrics of an iteration are written while workers do the next one."""
        on_devices = [groups[pool.name] for pool in self.plan.pools if not pool.is_host]
        # Before a controller starts processes of its own.
        with within(self._saving.iteration_seconds, ITERATION):
            self.loop_flops_per_second = (slowest_loop(on_devices),)
        controller = Controller(self.plan, self._tasks, groups, self._prompts.columns)
        self._evaluator = None
        try:
            self._iterate_with(controller, groups, on_devices)
        except Exception:
            controller.stop()
            raise
        controller.stop()  # an interruption ends Ray, or Ray has ended and would not answer

    def _iterate_with(
        self,
        controller: Controller,
        groups: Mapping[str, WorkerGroup],
        on_devices: Sequence[WorkerGroup],
    ) -> None:
        controller.origin_seconds = self._origin_seconds
        if self.checkpoint is not None:
            with within(self._saving.iteration_seconds, ITERATION):
                controller.generator_is_ready = restore(self.checkpoint, groups)
            state = self.checkpoint.state
            controller.state = dict(state.algorithm_state)
            controller.go_on_from(state.iteration, state.next_prompt, state.left_prompts)
        unwritten: list[MeasuredIteration] = []
        check, skipped = self._stop_check(), SkippedUpdates(self.plan, self._tasks)
        self._moving.begin(self.plan, self.done, self._spared_seconds)
        with (
            MetricsWriter(self._out, self._tracking) as writer,
            self._writing_at_end(writer, unwritten),
        ):
            if not self.is_over:
                left = self._evaluate(groups, controller, writer)
                check.note_evaluation(left if self.done else {})
            for iteration in range(self.done, self._iterations):
                if check.reason:
                    break
                record = self._carry_out_iteration(controller, writer, unwritten, iteration)
                metrics = iteration_metrics(self.plan, self._tasks, record)
                check.note(metrics)
                ends = bool(check.reason)
                found = self._moved_after(record, metrics, ends=ends)
                if found.plan is not None or self._is_saved_after(iteration, ends=ends):
                    self._write(writer, unwritten)
                    if ends or iteration + 1 == self._iterations or self._may_end_by_evaluation():
                        self._note_before_last(groups, on_devices, check.reason)
                    with within(self._saving.iteration_seconds, ITERATION):
                        self._save(groups, controller, iteration + 1)
                self._progress(iteration + 1, self._iterations, progress_line(iteration, metrics))
                for words in found.said:
                    self._tell(words)
                self._note_replicas(record, metrics, moves=found.plan is not None)
                check.note_evaluation(self._evaluate(groups, controller, writer, ends=ends))
                skipped.note(metrics)
                if found.plan is not None:
                    break
            self._write(writer, unwritten)
            self._evaluate_left(groups, controller, writer)
        self._note_end(groups, on_devices, check.reason)

    @contextmanager
    def _writing_at_end(
        self, writer: MetricsWriter, unwritten: list[MeasuredIteration]
    ) -> Iterator[None]:
        """Write the metrics that are left where numbers are not finite any more."""
        try:
            yield
        except DivergedError:
            self._write(writer, unwritten)
            raise

    def _note_before_last(
        self, groups: Mapping[str, WorkerGroup], on_devices: Sequence[WorkerGroup], reason: str
    ) -> None:
        """Let be written what was measured, ahead of the last checkpoint: behind it a run that is ended has nothing to do again."""
        self.stopped = reason if self.done < self._iterations else ""
        self._measure_at_end(groups, on_devices)
        self.before_last()

    def _evaluate_left(
        self,
        groups: Mapping[str, WorkerGroup],
        controller: Controller,
        writer: MetricsWriter,
    ) -> None:
        """Evaluate once more where that alone is left."""
        if self.is_over:
            controller.generator_is_ready = False  # no batch follows
            self._evaluate(groups, controller, writer, ends=True)

    def _note_end(
        self, groups: Mapping[str, WorkerGroup], on_devices: Sequence[WorkerGroup], reason: str
    ) -> None:
        """Say why it stopped, and measure workers where no other plan follows, and they have done iterations."""
        if self.is_over:
            return
        self._note_stop(reason)
        if self._moving.next.plan is None or self.stopped:
            self._measure_at_end(groups, on_devices)

    def _note_replicas(
        self, record: MeasuredIteration, metrics: Mapping[str, float], *, moves: bool
    ) -> None:
        """Say and write down what became of replicas, and how many are wanted where responses ask for another number.

        Args:
            moves: Whether another plan follows, which wants its own number.
        """
        done, lines = record.span.iteration, [change.line for change in record.changes]
        for change in record.changes:
            self._tell(change.words)
        if self._by_length is not None:
            self._by_length.note(done, metrics["response_tokens"])
            if not moves:
                lines += self._newly_wanted(self._by_length, done + 2)
        if not lines:
            return
        with LineFile(self._out / REPLICAS_FILE) as file:
            for line in lines:
                file.append({"iteration": done, **line})

    def _newly_wanted(self, wanted: WantedByLength, iteration: int) -> Iterator[Mapping[str, Any]]:
        """Yield a ledger's line where another number of replicas is wanted from an iteration on than before it."""
        count = wanted.at(iteration)
        if iteration >= self._iterations or count == wanted.at(iteration - 1):
            return
        line = self._wanted_line(wanted, iteration)
        self._tell(
            f"from iteration {iteration} on {count} of the replicas pay, at {line['response_tokens']:,.0f} tokens a response"
        )
        yield line

    @staticmethod
    def _wanted_line(wanted: WantedByLength, iteration: int) -> Mapping[str, Any]:
        """Return a ledger's line of how many replicas are wanted from an iteration on, and why."""
        count = wanted.at(iteration)
        return {
            "event": "wanted",
            "from_iteration": iteration,
            "replicas": count,
            **wanted.why(iteration),
        }

    def _carry_out_iteration(
        self,
        controller: Controller,
        writer: MetricsWriter,
        unwritten: list[MeasuredIteration],
        iteration: int,
    ) -> MeasuredIteration:
        """Do an iteration, and write those before while workers are busy."""
        is_last = iteration + 1 == self._iterations
        with (
            within(self._saving.iteration_seconds, ITERATION),
            in_task(f"iteration {iteration}"),
        ):
            running = controller.send(iteration, is_last=is_last)
            self._origin_seconds = controller.origin_seconds
            self._write(writer, unwritten)
            record = controller.finish(running)
        self.finished.append(record)
        self.done = iteration + 1
        self._moving.trial = None
        unwritten.append(record)
        return record

    def _moved_after(
        self, record: MeasuredIteration, metrics: Mapping[str, float], *, ends: bool
    ) -> Adaptation:
        """Return whether the run goes on with another plan after an iteration, which is not its last."""
        if ends or self.done == self._iterations:
            return AS_IT_IS
        return self._moving.after(self.plan, record, metrics, self._iterations)

    def _measure_at_end(
        self, groups: Mapping[str, WorkerGroup], on_devices: Sequence[WorkerGroup]
    ) -> None:
        """Measure what workers held, and how fast devices are."""
        with within(self._saving.iteration_seconds, ITERATION):
            # They answer after what was begun for an iteration that does not follow.
            self.peaks = {name: max(group.call("peak")) for name, group in groups.items()}
            self.loop_flops_per_second = (
                self.loop_flops_per_second[0],
                slowest_loop(on_devices),
            )

    def _stop_check(self) -> StopCheck:
        rows = rows_before([*self._earlier, self._out], self.done, self._stopping)
        later = (*NOT_IN_EVERY_ITERATION, *evaluation_names(self.plan.job.evaluation))
        return StopCheck(self._stopping, rows, later)

    def _note_stop(self, reason: str) -> None:
        self.stopped = reason if self.done < self._iterations else ""
        if self.stopped:
            self._tell(f"stopped after {self.done} of {self._iterations} iterations: {reason}")

    def _evaluate(
        self,
        groups: Mapping[str, WorkerGroup],
        controller: Controller,
        writer: MetricsWriter,
        *,
        ends: bool = False,
    ) -> Mapping[str, float]:
        """Evaluate where it is due, behind the checkpoint: what generates may be an update behind there.

        Args:
            ends: Whether the run stops here.

        Returns:
            What was found, by the names that metrics have; nothing where none was due.
        """
        if not self._evaluations.is_due(self.done, ends=ends):
            return {}
        if self._evaluator is None:
            self._evaluator = Evaluator(self.plan, self._tasks, self._prompts, groups, self._out)
        with (
            within(self._saving.iteration_seconds, ITERATION),
            in_task(f"evaluation after {self.done} iterations"),
        ):
            evaluated = self._evaluator.evaluate(controller, self.done)
        self._folder.best = self._evaluations.best
        found = {f"{EVALUATION}/{name}": each for name, each in evaluated.numbers.items()}
        writer.show(evaluated.done, found)
        self._tell(evaluation_line(evaluated))
        return found

    def _may_end_by_evaluation(self, *, ends: bool = False) -> bool:
        due = self._evaluations.is_due(self.done, ends=ends)
        return due and self._stopping.asks_evaluations

    def _is_saved_after(self, iteration: int, *, ends: bool) -> bool:
        saving, done = self._saving, iteration + 1
        if self._evaluations.is_due(done, ends=ends):
            may_end = self._may_end_by_evaluation(ends=ends)
            if saving.keeps_best or (saving.export is not None and may_end):
                return True
        if ends or done == self._iterations:
            return saving.every is not None or saving.export is not None
        return saving.every is not None and done % saving.every == 0

    def _save(
        self, groups: Mapping[str, WorkerGroup], controller: Controller, iteration: int
    ) -> None:
        next_prompt, left = controller.position(iteration)
        state = CheckpointState(
            iteration=iteration,
            next_prompt=next_prompt,
            left_prompts=left,
            seed=self._seed,
            algorithm_state=FrozenDict(controller.state),
        )
        begin = time.monotonic()
        self.checkpoint = self._folder.save(self.plan, groups, state)
        self._moving.checkpoint_seconds = time.monotonic() - begin

    def _write(self, writer: MetricsWriter, records: list[MeasuredIteration]) -> None:
        for record in records:
            metrics = iteration_metrics(self.plan, self._tasks, record)
            writer.write(record.span.iteration, metrics)
        records.clear()

    def _go_back(self) -> int:
        """Forget what was done after the last checkpoint; return the iterations that are left done."""
        self.done = 0
        if self.checkpoint is not None:
            self.checkpoint = whole_checkpoint(self.checkpoint)
            self.done = self.checkpoint.state.iteration
        while self.finished and self.finished[-1].span.iteration >= self.done:
            self.finished.pop()
        drop_iterations(self._out / METRICS_FILE, self.done)
        drop_evaluations(self._out, self.done)
        self._folder.best = self._evaluations.best
        if self._by_length is not None:  # a checkpoint that is passed over may be that of a move
            self._by_length = self._by_length.since(plan_began(self._out, self.done))
        return self.done
