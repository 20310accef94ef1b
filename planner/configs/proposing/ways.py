"""A framework's ways to run a job: its arrangements by trainer, with what each of them fixes beside what is pinned."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.job import USUAL_WEIGHT_SYNC, Engines, Job, NodeGroup, Role
from rlplan.models import Adapter
from rlplan.plan import FLOWS, Mode, Plan, TaskDraft
from rlplan.planner.configs.frameworks import VERSION, has, load_part
from rlplan.planner.configs.reading.sheet import ConfigSheet, TrainerSheet, load_config_sheet
from rlplan.planner.configs.run import unusual, with_adapter
from rlplan.planner.configs.sizes import lacks_running, own_running, usual_running
from rlplan.planner.configs.writing.export import family
from rlplan.planner.placements.arrangements import Arranged, Arrangement, Fixed, Shared
from rlplan.planner.placements.partitions import placed_roles
from rlplan.planner.requests.pinned import Pinned
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.frameworks import data_files, framework_of_sheet
from rlplan.profiles.jobs.sampling import sampling_left_to
from rlplan.profiles.sheets import (
    canonical_name,
    left_to_framework,
    load_framework,
    sheet_of,
)

# Shares of the GPUs that are looked at for an engine which stays awake beside a training: its usual one may leave that no room.
AWAKE_SHARES = (None, 0.3, 0.5, 0.7)
OF_TRAINERS = ("tp", "pp", "cp", "ep", "chunks")


class SharedField(NamedTuple):
    """Hold a field of layouts, and the tasks that have it in common."""

    field: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkSetup:
    """Hold one of a framework's ways to run a job: what is searched, and what its tasks have in common."""

    job: Job
    pinned: Pinned
    shared: tuple[Shared, ...]

    @property
    def groups(self) -> tuple[SharedField, ...]:
        """Return the fields that several tasks have in common."""
        return tuple(_groups(self.shared, tasks_of(load_algorithm(self.job.algorithm), self.job)))


def _groups(shared: Iterable[Shared], tasks: Sequence[Task]) -> Iterator[SharedField]:
    for each in shared:
        names = tuple(
            task.name
            for task in tasks
            if task.has_model
            and task.kind in each.kinds
            and (not each.roles or task.role in each.roles)
        )
        yield from (SharedField(field, names) for field in each.fields if len(names) > 1)


def framework_of(job: Job) -> str:
    """Return the framework sheet of a job's name without its version."""
    return VERSION.sub("", canonical_name("frameworks", job.framework))


def ways_of(
    sheet: ConfigSheet, job: Job, pinned: Pinned, stands: Plan | None = None
) -> Iterator[FrameworkSetup]:
    """Yield a framework's ways to run a job: by trainer, arrangement, and whether micro-batches are packed.

    Args:
        stands: The plan of a script of the framework, whose version may pass over a batch where today's does not.

    Raises:
        FileError: What is pinned contradicts every way.
    """
    contradictions, found = list[FileError](), False
    for each in _every_way(sheet, job, pinned, stands):
        if isinstance(each, FileError):
            contradictions.append(each)
            continue
        found = True
        yield each
    if contradictions and not found:
        raise contradictions[0]


def _every_way(
    sheet: ConfigSheet, job: Job, pinned: Pinned, stands: Plan | None
) -> Iterator[FrameworkSetup | FileError]:
    """Yield the ways, and in place of those that what is pinned contradicts, how."""
    own, named = {each.framework for each in sheet.trainers.values()}, framework_of(job)
    version = pinned.framework_version
    run_by = sheet if version is None else sheet.of(version)
    runs = [way for way in sheet.arrangements if _runs(way, job, pinned.asked)]
    usual = {mode for way in runs if not way.otherwise for mode in _modes(way, job, pinned.asked)}
    for way in runs:
        modes = _modes(way, job, pinned.asked)
        if way.otherwise and usual.issuperset(modes):
            continue
        for name in way.trainers:
            trainer = sheet.trainers[name]
            if named in own and named != trainer.framework:
                continue
            if named == trainer.framework and _trains_otherwise(sheet, way, name, job):
                continue
            for cluster in _clusters(job, in_one_node=way.whole_nodes and stands is None):
                own_job = moved(replace(job, cluster=cluster), trainer)
                if named != trainer.framework:  # it runs as its newest version, which exports write
                    generates = job.engines.generate or ""
                    own_job = with_newest_engine(own_job, sheet.name, generates)
                own_job = as_run(own_job, run_by, name, way)
                homeless = _without_a_place(way, own_job, sheet.title)
                if homeless is not None and stands is None:
                    yield homeless
                    continue
                if stands is not None and stands.mode in way.modes:
                    own_job = replace(own_job, old_log_prob=job.old_log_prob)
                running = _own_running(way, run_by, own_job)
                yield from _pinned_ways(way, name, trainer, own_job, pinned, modes, running)


def _without_a_place(way: Arrangement, job: Job, title: str) -> FileError | None:
    """Return that an arrangement has no place for a model of a job's, such as a teacher; None where all have one."""
    known = [role for role in placed_roles(job) if any(role in members for members in way.sets)]
    lost = next((role for role in placed_roles(job) if role not in known), None)
    if lost is None:
        return None
    problem = f"is of a role that {title} has no place for, arranged as {way.name}"
    return FileError("the job", problem, field=f"job.models.{lost}", allowed=", ".join(known))


def _trains_otherwise(sheet: ConfigSheet, way: Arrangement, name: str, job: Job) -> bool:
    """Tell whether another of an arrangement's trainers, of the job's own framework, has the job's engine."""
    exports = {other: sheet.trainers[other].exports for other in way.trainers}
    engine = job.engines.train or ""
    mine = any(fnmatchcase(engine, pattern) for pattern in exports.pop(name))
    return not mine and any(
        fnmatchcase(engine, pattern)
        for other, patterns in exports.items()
        if sheet.trainers[other].framework == sheet.trainers[name].framework
        for pattern in patterns
    )


def _runs(way: Arrangement, job: Job, asked: AskedSchedules) -> bool:
    """Tell whether an arrangement runs a job as it was asked for."""
    flows = asked.in_flight is None or not way.in_flight or asked.in_flight in way.in_flight
    fits = way.updates in {None, job.workload.updates} and set(way.needs) <= set(job.models)
    return fits and flows and bool(_modes(way, job, asked))


def _clusters(job: Job, *, in_one_node: bool) -> Iterator[tuple[NodeGroup, ...]]:
    """Yield a cluster's parts of one kind of GPU each: no configuration names several.

    Args:
        in_one_node: Whether pools that are whole nodes where there are several may share one: single nodes then are parts too.
    """
    for gpu in dict.fromkeys(group.gpu for group in job.cluster):
        groups = tuple(group for group in job.cluster if group.gpu == gpu)
        yield groups
        if not in_one_node or sum(group.nodes for group in groups) == 1:
            continue
        for node in dict.fromkeys(map(_one_of, groups)):  # unlike in size, price or host
            yield (node,)


def _one_of(group: NodeGroup) -> NodeGroup:
    """Return a node of a group by itself."""
    linked = None if group.nvlink_domain_gpus is None else group.gpus_per_node
    return replace(group, nodes=1, nvlink_domain_gpus=linked)


def _modes(way: Arrangement, job: Job, asked: AskedSchedules) -> tuple[Mode, ...]:
    """Return an arrangement's modes that were asked for, or that the limit of staleness lets in."""
    limit = job.specs.staleness if asked.staleness is None else asked.staleness
    found: list[Mode] = []
    for mode in way.modes:
        flow = FLOWS[mode]
        if asked.modes:
            wanted = mode in asked.modes
        else:
            lets_in = limit is not None and flow.usual_staleness <= limit
            wanted = not flow.overlaps or lets_in
        if flow.is_endless and way.least_staleness > (1.0 if limit is None else limit):
            wanted = False
        if wanted:
            found.append(mode)
    return tuple(found)


def moved(job: Job, trainer: TrainerSheet) -> Job:
    """Return a job whose steps are those of a trainer's framework, with its engines.

    A generation engine that the job names and that is not its framework's usual one is kept. What units FSDP makes of an
    adapter, and whether its frozen weights are the reference too, is left to the other framework.
    """
    if framework_of(job) == trainer.framework:
        return job
    named = job.engines.generate or ""
    usual = family(named) in {"", "vllm"}
    engines = Engines(train=trainer.engine, generate=None if usual else named)
    trained = {
        role: replace(
            each,
            adapters_apart=False,
            waiting_gradients=None,
            keeps_embedded=False,
            masters_stay=False,
            unpinned_weights=False,
        )
        for role, each in (job.trainers or {}).items()
    }
    other = replace(
        job,
        framework=trainer.framework,
        trainers=unusual(trained),
        adapters=_sharing(job),
        cluster=left_to_framework(job),
        engines=engines,
        weight_sync=USUAL_WEIGHT_SYNC,
        old_log_prob=None,
        dynamic_sampling=sampling_left_to(load_framework(trainer.framework), job),
    )
    return resolve_job(other, Path(), file="job")


def with_newest_engine(job: Job, folder: str, named: str) -> Job:
    """Return a job that generates with the engine of a framework's newest version, of a family if it has that."""
    setting = (
        load_config_sheet(folder).settings.get("rollout_engine") if has(folder, "keys") else None
    )
    if setting is None or not setting.values:
        return job
    own = family(load_framework(job.framework).engines.generate or "")
    known = [load_framework(name).engines.generate or "" for name in steps_of(folder)]
    others = {family(each) for each in known} - {own}
    # What another of its sheets generates with, as TRL without vLLM does, is that sheet's.
    sheets = [each for each in map(str, setting.values.values()) if family(each) not in others]
    usual = str(setting.values.get(str(setting.default)))
    first = usual if usual in sheets else next(iter(sheets), None)
    engine = next((each for each in sheets if family(each) == family(named)), first)
    if engine is None:
        return job
    return replace(job, engines=replace(job.engines, generate=engine))


def steps_of(folder: str) -> Iterator[str]:
    """Yield the sheets of a framework's steps, of whatever version."""
    return (name for name in data_files("steps") if framework_of_sheet("steps", name) == folder)


def _sharing(job: Job) -> FrozenDict[Role, Adapter] | None:
    """Return adapters whose frozen weights are the reference too where that is the same model, as is usual."""
    adapter = job.adapter("actor")
    if adapter is None or job.models.get("reference") != job.models["actor"]:
        return job.adapters
    return with_adapter(job, "actor", replace(adapter, shares_reference=True)).adapters


def as_run(job: Job, sheet: ConfigSheet, name: str, way: Arrangement) -> Job:
    """Return a job with what a trainer of a framework does in an arrangement, whatever the job says.

    That is what no key tells, as the framework's plug-in has it (`as_run` of its `writing`, where there is one).

    Args:
        name: The trainer's, in the sheet of keys.
    """
    own = getattr(load_part(sheet.name, "writing"), "as_run", None)
    return job if own is None else own(job, sheet, name, way)


def _own_running(way: Arrangement, sheet: ConfigSheet, job: Job) -> int | None:
    """Return how many sequences a framework's engine runs at once where no key says it; None where one does."""
    device, engine = sheet_of(job, job.cluster[0].gpu), job.engines.generate or ""
    if lacks_running(sheet):
        return own_running(device, engine)
    return usual_running(device, engine) if way.usual_running else None


def _pinned_ways(
    way: Arrangement,
    name: str,
    trainer: TrainerSheet,
    job: Job,
    pinned: Pinned,
    modes: tuple[Mode, ...],
    running: int | None,
) -> Iterator[FrameworkSetup | FileError]:
    """Yield an arrangement's ways with a trainer; in place of one that what is pinned contradicts, how: others may have it."""
    tasks = [task for task in tasks_of(load_algorithm(job.algorithm), job) if task.has_model]
    asked = replace(
        pinned.asked,
        modes=modes,
        sync_every=pinned.asked.sync_every or way.sync_every,
        in_flight=pinned.asked.in_flight or next(iter(way.in_flight), None),
    )
    shared = tuple(each for each in way.shared if not each.trainers or name in each.trainers)
    packs: tuple[bool | None, ...] = way.packs or (None,)
    shares = AWAKE_SHARES if _stays_awake(way, job) else (None,)
    for chosen, packed, share in product(way.choices or (FrozenDict(),), packs, shares):
        try:
            fixed = {
                task.name: _fixed((trainer.layouts, way.layouts, chosen), trainer, task)
                for task in tasks
            }
            for task in tasks:  # by the field that is pinned, and not by what it has in common
                _joined(task, pinned.tasks.get(task.name, TaskDraft()), fixed[task.name])
            drafts = _in_common(tuple(_groups(shared, tasks)), pinned.tasks)
            for task in tasks:
                own, draft = fixed[task.name], drafts.get(task.name, TaskDraft())
                if running is not None and task.generates:
                    own["max_running"] = running
                if task.generates and share is not None and draft.memory_fraction is None:
                    own.setdefault("memory_fraction", share)
                drafts[task.name] = _joined(task, draft, own)
        except FileError as error:
            yield error
            continue
        arranged = Arranged(arrangement=way, recompute=trainer.recompute, packs=packed)
        kept = replace(pinned, tasks=FrozenDict(drafts), asked=asked, arranged=arranged)
        yield FrameworkSetup(job=job, pinned=kept, shared=shared)


def _in_common(
    groups: Sequence[SharedField], pinned: Mapping[str, TaskDraft]
) -> dict[str, TaskDraft]:
    """Return what the user pinned, for all tasks that have it in common: a framework has one key for them.

    Raises:
        FileError: Two of them have other values.
    """
    drafts = dict(pinned)
    for field, names in groups:
        given = {
            name: value
            for name in names
            if (value := getattr(drafts.get(name, TaskDraft()), field)) is not None
        }
        for name, value in given.items():
            first, other = next(iter(given.items()))
            if value != other:
                problem = f"is what the framework says of {first} too"
                where = f"tasks.{name}.{field}"
                raise FileError("--for", problem, field=where, value=value, allowed=f"{other}")
        if given:
            value = next(iter(given.values()))
            for name in names:
                drafts[name] = replace(drafts.get(name, TaskDraft()), **{field: value})
    return drafts


def _stays_awake(way: Arrangement, job: Job) -> bool:
    """Tell whether an engine keeps its share of the GPUs on which others work."""
    return not way.apart and not job.engines.sleeps


def _fixed(every: tuple[Fixed, ...], trainer: TrainerSheet, task: Task) -> dict[str, Any]:
    """Return the fields of a task's layout that are fixed; sizes that a trainer has no key for are 1."""
    fixed: dict[str, Any] = {}
    if task.kind != "generate":
        told = {*trainer.sizes, *trainer.allocates}
        fixed = {name: 1 for name in OF_TRAINERS if name not in told}
        if task.kind != "train":
            fixed.pop("chunks", None)
    for layouts in every:
        for key in (task.kind, task.role):
            draft = layouts.get(key)  # type: ignore[call-overload]
            if draft is not None and (key == task.kind or task.kind != "generate"):
                fixed |= _given(draft)
    return fixed


def _given(draft: TaskDraft) -> dict[str, Any]:
    values = {each.name: getattr(draft, each.name) for each in fields(TaskDraft)}
    return {name: value for name, value in values.items() if value is not None}


def _joined(task: Task, draft: TaskDraft, fixed: Mapping[str, Any]) -> TaskDraft:
    """Return what the user pinned with what is fixed.

    Raises:
        FileError: They contradict each other.
    """
    for name, value in fixed.items():
        own = getattr(draft, name)
        if own is not None and own != value and name != "offload":
            problem, where = "is not what the framework has", f"tasks.{task.name}.{name}"
            raise FileError("--for", problem, field=where, value=own, allowed=f"{value}")
    kept = {name: value for name, value in fixed.items() if getattr(draft, name) is None}
    return replace(draft, **kept)
