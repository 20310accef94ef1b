"""Validation and checkpoints: work of a run outside of its iterations, as often as its job says.

A validation generates responses to its own prompts with the plan's engine, and then judges them. It uses the weights that
the iteration's transition brings anyway: no further transition is counted.

A checkpoint is bytes over a rate. For every model that is trained, the bytes are its weights in the format in which the
trainer keeps them, and its optimizer states (moments, and a master copy where there is one). Each is counted once, however
many ranks hold copies: frameworks write sharded states, every shard by one of its ranks (verl,
utils/checkpoint/fsdp_checkpoint_manager.py; Megatron-Core, dist_checkpointing, fully parallel save).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rlplan.files.frozen import FrozenDict
from rlplan.job import Checkpoints, DynamicSampling, Job
from rlplan.layout import ModelCut
from rlplan.parts import num_parameters
from rlplan.results.forecast import CHECKPOINTS, VALIDATION, BesideForecast, Forecast
from rlplan.simulator.model import adapter_shard
from rlplan.simulator.placed import PlacedPlan, PlacedTask
from rlplan.simulator.stages import task_cost
from rlplan.simulator.stages.rule import with_backlog
from rlplan.simulator.timeline.agenda import response_end_seconds
from rlplan.simulator.timeline.pool_memory import kv_bytes_left
from rlplan.workload import Evaluation, Workload

# What a task says of responses that judges them.
SCORES = frozenset({"scores", "rule_scores"})


def with_beside(forecast: Forecast, placed: PlacedPlan) -> Forecast:
    """Return a forecast with the validations and checkpoints that its job asks for.

    Raises:
        MissingFactError: Neither profile nor device sheet can price something.
    """
    job = placed.plan.job
    found = [*_validation(placed), *_checkpoints(placed, forecast.iteration_seconds)]
    known = [part for part in found if part.seconds is not None]
    iterations, seconds = job.iterations, forecast.iteration_seconds
    per_iteration = {part.name: part.per_iteration_seconds(iterations) for part in known}
    whole = None if iterations is None else iterations * (seconds + sum(per_iteration.values()))
    return replace(
        forecast,
        beside=BesideForecast(
            each_seconds=FrozenDict({part.name: part.seconds or 0.0 for part in known}),
            every=FrozenDict({part.name: part.every for part in found if part.every is not None}),
            per_iteration_seconds=FrozenDict(per_iteration),
            checkpoint_bytes=sum(part.num_bytes for part in found),
            unknown=FrozenDict({part.name: part.unknown for part in found if part.unknown}),
            notes=tuple(note for part in found for note in part.notes),
            iterations=iterations,
            run_seconds=whole,
            run_usd=None if whole is None else forecast.cost_usd * whole / seconds,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Hold one of what stands beside iterations.

    Attributes:
        says: What says how often it comes.
        seconds: That it keeps training waiting; None where that is not known.
        unknown: What is not known, and the field that says it; empty where nothing is missing.
    """

    name: str
    says: Evaluation | Checkpoints
    seconds: float | None
    unknown: str = ""
    num_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def every(self) -> int | None:
        """Return the iterations from one to the next."""
        return self.says.every

    def per_iteration_seconds(self, iterations: int | None) -> float:
        """Return what falls to an iteration on average, in a run of so many, or in a long one."""
        seconds = self.seconds or 0.0
        if iterations is not None:
            return seconds * self.says.due(iterations) / iterations
        return seconds / self.every if self.every else 0.0


def _validation(placed: PlacedPlan) -> Iterator[_Part]:
    """Yield the validation, if the job has one."""
    plan, asked = placed.plan, placed.plan.job.evaluation
    if asked is None:
        return
    if asked.prompts is None:
        words = "how many prompts it has (evaluation.prompts)"
        yield _Part(name=VALIDATION, says=asked, seconds=None, unknown=words)
        return
    together = min(asked.prompts, asked.prompts_at_a_time or asked.prompts)
    times, rest = divmod(asked.prompts, together)
    seconds = times * _validation_seconds(placed, asked, together)
    if rest:
        seconds += _validation_seconds(placed, asked, rest)
    notes: tuple[str, ...] = ()
    if plan.flow.overlaps:
        notes = (
            f"{VALIDATION}: in mode {plan.mode} training may go on meanwhile with what is generated already",
        )
    yield _Part(name=VALIDATION, says=asked, seconds=seconds, notes=notes)


def validation_workload(job: Job, asked: Evaluation, prompts: int) -> Workload:
    """Return the work of a validation of so many prompts."""
    work = job.workload
    return replace(
        work,
        prompts=prompts,
        samples_per_prompt=asked.samples_per_prompt,
        prompt_tokens=asked.prompt_tokens or work.prompt_tokens,
        response_tokens=asked.response_tokens or work.response_tokens,
        over_provisioning=1.0,
        over_sampling=1.0,
        updates=1,
        epochs=1,
    )


def _validation_seconds(placed: PlacedPlan, asked: Evaluation, prompts: int) -> float:
    """Return what it takes to answer and judge so many prompts, in seconds."""
    plan = placed.plan
    sampling = plan.job.dynamic_sampling
    once = None if sampling is None else DynamicSampling(expected_rounds=1.0)
    work = validation_workload(plan.job, asked, prompts)
    job = replace(plan.job, workload=work, dynamic_sampling=once)
    validating = PlacedPlan(replace(plan, job=job), placed.facts)
    generate = _once(validating.generate)
    seconds = task_cost(generate, max(0.0, kv_bytes_left(placed))).total.seconds
    for task in validating.tasks.values():
        if task.task.kind != "generate" and SCORES & set(task.task.outputs):
            cost = task_cost(_once(task))
            if task.task.stage_kind.calls_functions and job.rewards and job.rewards.streamed:
                cost = with_backlog(cost, _once(task), response_end_seconds(validating), 1.0)
            seconds += cost.total.seconds
    return seconds


def _once(placed: PlacedTask) -> PlacedTask:
    """Return a task of one batch: nothing is sampled again."""
    return replace(placed, task=replace(placed.task, batches=1.0))


def _checkpoints(placed: PlacedPlan, iteration_seconds: float) -> Iterator[_Part]:
    """Yield the checkpoints, if the job has any."""
    asked = placed.plan.job.checkpoints
    if asked is None:
        return
    trained = [task for task in placed.tasks.values() if task.trains]
    sizes = [checkpoint_bytes(task, asked) for task in trained]
    rates = [_disk_rate(task, asked) for task in trained]
    written = 0.0
    for size, rate in zip(sizes, rates, strict=True):
        if rate is None:
            words = "at which rate the disks take it (checkpoints.node_bytes_per_second, or total_bytes_per_second)"
            yield _Part(
                name=CHECKPOINTS, says=asked, seconds=None, unknown=words, num_bytes=sum(sizes)
            )
            return
        written += size / rate
    seconds, notes = written, tuple[str, ...]()
    if asked.in_background:
        copied = sum(map(_copy_seconds, trained, sizes))
        late = max(0.0, written - asked.every * iteration_seconds) if asked.every else 0.0
        seconds = copied + late
        if late:
            notes = (f"{CHECKPOINTS}: one is not written when the next begins, which waits for it",)
    yield _Part(name=CHECKPOINTS, says=asked, seconds=seconds, num_bytes=sum(sizes), notes=notes)


def checkpoint_bytes(placed: PlacedTask, asked: Checkpoints) -> int:
    """Return the bytes that a checkpoint has of a model that is trained, over all ranks.

    Frozen weights beside adapters are written with them, as sharded state dictionaries of whole models have them.
    """
    stored, total = placed.stored, num_parameters(placed.model, placed.task.head)
    adapter = placed.adapter
    own = 0 if adapter is None else adapter_shard(placed.model, adapter, ModelCut())
    trained = total if adapter is None else own
    weights = (total + own) * stored.weight_bytes
    held = {"weights": weights, "optimizer": trained * stored.optimizer_bytes}
    return sum(held[state] for state in dict.fromkeys(asked.states))


def _writing_ranks(placed: PlacedTask) -> int:
    """Return the ranks that write: all where states are sharded over copies, else those of one copy."""
    layout = placed.layout
    return placed.site.gpus if layout.zero > 0 else layout.tp * layout.pp * layout.cp


def _disk_rate(placed: PlacedTask, asked: Checkpoints) -> float | None:
    """Return the bytes that disks take a second of the nodes that write; None where it is not known."""
    if asked.node_bytes_per_second is None:
        return asked.total_bytes_per_second
    groups = (group for group in placed.job.cluster if group.gpu == placed.site.device)
    per_node = max(group.gpus_per_node for group in groups)
    rate = -(-_writing_ranks(placed) // per_node) * asked.node_bytes_per_second
    return min(rate, asked.total_bytes_per_second or rate)


def _copy_seconds(placed: PlacedTask, num_bytes: int) -> float:
    """Return what it takes to copy a checkpoint's bytes to host memory, all ranks at once, in seconds."""
    return placed.device.copy(num_bytes / _writing_ranks(placed), "device_to_host").seconds
