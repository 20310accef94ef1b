"""Search what a framework can run: its arrangements one by one, under one certificate.

Where tasks have parts of their layouts in common (`rlplan`'s search lays each role out by itself), the search
without that bounds the one with it: what is found then, with the parts of its winner pinned, is at most
the gap from the best.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.errors import FileError, InfeasibleError, UnfinishedError, UntoldError, UserError
from rlplan.files.frozen import FrozenDict
from rlplan.job import USUAL_WEIGHT_SYNC, Engines, Job, Specs
from rlplan.plan import FLOWS, Mode, Plan, TaskDraft
from rlplan.planner.answers.best_plans import (
    best_front,
    best_plans,
    front_under_specs,
    infeasible_specs_error,
    under_specs,
)
from rlplan.planner.configs.frameworks import VERSION, check_parts, frameworks_with, load_part
from rlplan.planner.configs.on_host import with_states_on_host
from rlplan.planner.configs.reading.sheet import ConfigSheet, TrainerSheet, load_config_sheet
from rlplan.planner.configs.run import unusual
from rlplan.planner.configs.sizes import usual_running
from rlplan.planner.configs.writing.export import GENERATE, family
from rlplan.planner.configs.writing.exporting import exported
from rlplan.planner.objectives import load_objective
from rlplan.planner.placements.arrangements import Arranged, Arrangement, Fixed, Shared
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.planner.requests.specs import violations
from rlplan.planner.search import search
from rlplan.planner.searchers.exact import Progress, lost_seconds
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import Facts
from rlplan.profiles.frameworks import framework_of_sheet
from rlplan.profiles.jobs.sampling import sampling_left_to
from rlplan.profiles.sheets import (
    canonical_name,
    left_to_framework,
    load_framework,
    sheet_of,
)
from rlplan.results.forecast import Candidate, Frontier, SearchResult
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.assemble import batch_tokens

FactsOf = Callable[[Job], Facts]
# Shares of the GPUs that are looked at for an engine which stays awake beside a training: its usual one may leave that no room.
AWAKE_SHARES = (None, 0.3, 0.5, 0.7)
# Between the modes and the rest of the words for a space of plans (`Space.words`).
OF_PLANS: Final = " plans of "
OF_TRAINERS = ("tp", "pp", "cp", "ep", "chunks")
# Fields that not every framework tells role by role, or of every model, by the tasks for which 1 is tried then.
AT_ONE: Final[Mapping[str, tuple[str, ...]]] = {"chunks": ("train",), "cp": ("train", "infer")}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkSetup:
    """Hold one of a framework's ways to run a job: what is searched, and what its tasks have in common."""

    job: Job
    pinned: Pinned
    shared: tuple[Shared, ...]


class BoundedPlans(NamedTuple):
    """Hold the plans of one of a framework's ways, and what the objective is at least in any of them."""

    way: FrameworkSetup
    result: SearchResult
    bound: float


def plans_of(
    job: Job,
    facts_of: FactsOf,
    *,
    target: str | None = None,
    pinned: Pinned = NOTHING_PINNED,
    seconds: float | None = None,
    progress: Progress | None = None,
    as_it_stands: Plan | None = None,
    placements: int | None = None,
) -> SearchResult:
    """Return the best plans of a resolved job; if its framework can be exported to, only plans that the framework can run.

    Args:
        target: The framework that is to run them; None takes the job's own.
        as_it_stands: A plan of the job that is one of the candidates, whatever its sizes, if it fits and keeps the
            job's limits, and plans are those of the job's own framework.
        placements: Of how many, the best ones, plans are wanted, where no framework is named; None of all.

    Raises:
        UserError: As `best_plans_for`, or as `best_plans` where no framework is named.
    """
    named = target or target_of(job)
    options: dict[str, Any] = {"seconds": seconds, "progress": progress}
    own = as_it_stands if named == target_of(job) else None  # what another runs, it need not
    stands = None if own is None else _standing(job, facts_of, own)
    try:
        if named is None:
            options["placements"] = placements
            found = best_plans(job, facts_of(job), pinned=pinned, **options)
        else:
            found = best_plans_for(named, job, facts_of, pinned=pinned, own=own, **options)
    except UserError as error:
        if stands is not None and isinstance(error, InfeasibleError):
            return _alone(stands, facts_of(job), error)
        if named is None or target is not None:
            raise
        sheet, hint = load_config_sheet(named), ""
        kind = UnfinishedError if isinstance(error, UnfinishedError) else InfeasibleError
        if type(error) is InfeasibleError:
            again = partial(
                best_plans_for, named, facts_of=facts_of, pinned=pinned, own=own, **options
            )
            hint = with_states_on_host(sheet, job, framework_of(job), again)
        raise kind(f"{error} (of what {sheet.title} runs; --beyond looks further){hint}") from error
    if stands is None:
        return found
    found = replace(found, space=f"the plan as it stands and {found.space}")
    return _with_plan(found, stands, _value_of(job, job.objective))


def _standing(job: Job, facts_of: FactsOf, plan: Plan) -> Candidate | None:
    """Return a plan of a job as a candidate; None where it does not fit, or breaks a limit."""
    own = replace(plan, job=job)
    forecast = simulate(own, facts_of(job))
    if not forecast.feasible or violations(own, forecast, job.specs):
        return None
    return Candidate(plan=own, forecast=forecast, loses_seconds=0.0, loses_to=FrozenDict())


def _alone(stands: Candidate, facts: Facts, error: InfeasibleError) -> SearchResult:
    """Return a plan as the one of a search that found no other, for a reason: nothing bounds others that it had no time for, or that no key can tell."""
    why = " in time" if isinstance(error, UnfinishedError) else ""
    if isinstance(error, UntoldError):
        why = f" that its framework takes ({error})"
    return SearchResult(
        plans=(_beside(stands, stands),),
        infeasible=(),
        considered=FrozenDict({"simulated plans": 1}),
        pruned=FrozenDict(),
        bound_seconds=0.0 if why else stands.forecast.iteration_seconds,
        gap=1.0 if why else 0.0,
        search_seconds=0.0,
        profile=facts.label,
        space=f"the plan as it stands: no other was found{why}",
    )


def front_of(
    job: Job,
    facts_of: FactsOf,
    names: Sequence[str],
    *,
    target: str | None = None,
    pinned: Pinned = NOTHING_PINNED,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> Frontier:
    """Return the front of the plans that `plans_of` chooses from.

    Raises:
        UserError: As there, or the names are not two or three different objectives.
    """
    named = target or target_of(job)
    if named is None:
        return best_front(
            job, facts_of(job), names, pinned=pinned, seconds=seconds, progress=progress
        )
    within = _FrameworkSearch(named, job, facts_of, pinned, seconds)
    return front_under_specs(job, names, within.plans, progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrestrictedPlans:
    """Hold the best plans of a job whatever its framework can run, beside those that it can.

    Attributes:
        title: The framework's.
        within: None where it can run none.
        gain: Share of the objective's value that the best plan saves.
        needs: What the framework lacks for it; None where it lacks nothing.
    """

    title: str
    result: SearchResult
    within: SearchResult | None
    gain: float
    needs: str | None


def plans_beyond(
    job: Job,
    facts_of: FactsOf,
    *,
    pinned: Pinned = NOTHING_PINNED,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> UnrestrictedPlans | None:
    """Return what plans would bring that a job's framework cannot run; None where the job names none.

    Raises:
        InfeasibleError: No plan fits and keeps the limits.
    """
    target = target_of(job)
    if target is None:
        return None
    options: dict[str, Any] = {"pinned": pinned, "seconds": seconds, "progress": progress}
    wide, within = best_plans(job, facts_of(job), **options), None
    with suppress(UserError):
        within = best_plans_for(target, job, facts_of, **options)
    value = _value_of(job, job.objective)
    gain = 0.0
    if within is not None:
        wide = _with_plan(wide, within.plans[0], value)
        gain = 1 - value(wide.plans[0]) / value(within.plans[0])
    needs = None
    try:
        exported(wide.plans[0].plan, target, runs_on=pinned.framework_version)
    except UserError as error:
        needs = str(error)
    title = load_config_sheet(target).title
    return UnrestrictedPlans(title=title, result=wide, within=within, gain=gain, needs=needs)


def _with_plan(
    result: SearchResult, plan: Candidate, value: Callable[[Candidate], float]
) -> SearchResult:
    """Return a search whose plans are no worse than one that another search found in a part of its space."""
    first = result.plans[0]
    if value(plan) >= value(first):
        return result
    gap = max(0.0, 1 - value(first) * (1 - result.gap) / value(plan))
    others = tuple(_beside(each, plan) for each in result.plans)
    plan = _beside(plan, plan)
    bound = plan.forecast.iteration_seconds * (1 - gap)
    return replace(result, plans=(plan, *others), gap=gap, bound_seconds=bound)


def target_of(job: Job) -> str | None:
    """Return the framework, of those that plans are exported to, that a job names; None where it names none."""
    target = framework_of_sheet("steps", canonical_name("frameworks", job.framework))
    if target is None or target not in frameworks_with("keys", "writing"):
        return None
    named = framework_of(job)
    sheet = load_config_sheet(target)
    known = {*(each.framework for each in sheet.trainers.values()), *sheet.searched_alike}
    return target if named in known else None


def framework_of(job: Job) -> str:
    """Return the framework sheet of a job's name without its version."""
    return VERSION.sub("", canonical_name("frameworks", job.framework))


def best_plans_for(
    target: str,
    job: Job,
    facts_of: FactsOf,
    *,
    pinned: Pinned,
    seconds: float | None = None,
    progress: Progress | None = None,
    own: Plan | None = None,
) -> SearchResult:
    """Return plans of a resolved job that a framework can run, best first, with how far the best may be off.

    Args:
        facts_of: What operations cost, as a job's framework and engines do them.
        pinned: What the user pinned.
        seconds: When to stop with the best plan so far; None searches to the end.
        own: The plan of a script of the framework, which the found one is to be written into: what the script says of the
            job stays, whether or not a key for it is known.

    Raises:
        UnknownNameError: No such framework is known.
        MissingPartError: Plans are not exported to it.
        FileError: What is pinned, the framework does not have.
        InfeasibleError: None fits and keeps the limits.
    """
    within = _FrameworkSearch(target, job, facts_of, pinned, seconds, progress, own)
    return under_specs(
        job,
        lambda specs: within.plans(job.objective, specs),
        lambda specs, error: infeasible_specs_error(job, specs, within.plans, error),
    )


class _FrameworkSearch:
    """Search what a framework can run of a job, by any objective under any limits.

    Raises:
        UnknownNameError: No such framework is known.
        MissingPartError: Plans are not exported to it.
    """

    def __init__(
        self,
        target: str,
        job: Job,
        facts_of: FactsOf,
        pinned: Pinned,
        seconds: float | None,
        progress: Progress | None = None,
        own: Plan | None = None,
    ) -> None:
        self.target, self.job, self.pinned = target, job, pinned
        self.seconds, self.progress = seconds, progress
        self.keeps_job = own is not None
        check_parts(target, "keys", "writing")
        self.sheet = load_config_sheet(target)
        if target != target_of(job):
            # A version and buckets are of the job's own framework: another one runs as its newest, with its own.
            pinned = replace(pinned, framework_version=None, bucket_bytes=None)
        self.version, self.pinned = pinned.framework_version, pinned
        self.ways = tuple(ways_of(self.sheet, job, pinned, own))
        self.facts_of = cache(facts_of)
        self.plans = cache(self._plans)

    def _plans(self, objective: str, specs: Specs) -> SearchResult:
        """Return the best plans by an objective under limits.

        Raises:
            FileError: What is pinned, the framework does not have.
            InfeasibleError: None fits and keeps the limits.
        """
        if not self.ways:
            raise InfeasibleError(
                f"{self.sheet.title} runs job {self.job.name!r} in none of its arrangements"
            )
        problem: UserError | None = None
        found: list[BoundedPlans] = []
        unfinished: UnfinishedError | None = None
        part = None if self.seconds is None else self.seconds / len(self.ways)
        for way in self.ways:
            asked = SetupSearch(
                target=self.target,
                way=way,
                facts=self.facts_of(way.job),
                objective=objective,
                specs=specs,
                seconds=part,
                progress=self.progress,
                keeps_job=self.keeps_job,
            )
            try:
                found.append(_searched(asked))
            except UnfinishedError as error:
                unfinished = error  # whether anything fits is not known, whatever other ways say
            except InfeasibleError as error:
                problem = problem or error
        problem = unfinished or problem
        if not found:
            assert problem is not None, "without a plan there is a reason"
            raise problem
        try:
            merged = _merged(
                found,
                self.sheet,
                self.job,
                objective,
                version=self.version,
                keeps_job=self.keeps_job,
            )
        except InfeasibleError as error:
            raise unfinished or error from None
        return _unbounded(merged) if unfinished else merged


def _unbounded(found: SearchResult) -> SearchResult:
    """Return plans of some ways where others were out of time without one: how good those can be is not known."""
    space = f"{found.space}; there was no time to find a plan of its other arrangements"
    return replace(found, gap=1.0, bound_seconds=0.0, space=space)


def ways_of(
    sheet: ConfigSheet, job: Job, pinned: Pinned, stands: Plan | None = None
) -> Iterator[FrameworkSetup]:
    """Yield a framework's ways to run a job: by trainer, arrangement, and whether micro-batches are packed.

    Args:
        stands: The plan of a script of the framework, whose version may pass over a batch where today's does not.
    """
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
            for cluster in _clusters(job):
                own_job = moved(replace(job, cluster=cluster), trainer)
                own_job = as_run(own_job, run_by, name, way)
                if stands is not None and stands.mode in way.modes:
                    own_job = replace(own_job, old_log_prob=job.old_log_prob)
                yield from _pinned_ways(way, name, trainer, own_job, pinned, modes)


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


def _clusters(job: Job) -> Iterator[tuple[Any, ...]]:
    """Yield a cluster's parts of one kind of GPU each: no configuration names several."""
    for gpu in dict.fromkeys(group.gpu for group in job.cluster):
        yield tuple(group for group in job.cluster if group.gpu == gpu)


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
    adapter is left to the other framework.
    """
    if framework_of(job) == trainer.framework:
        return job
    named = job.engines.generate or ""
    usual = family(named) in {"", "vllm"}
    engines = Engines(train=trainer.engine, generate=None if usual else named)
    trained = {
        role: replace(each, adapters_apart=False, waiting_gradients=None, keeps_embedded=False)
        for role, each in (job.trainers or {}).items()
    }
    other = replace(
        job,
        framework=trainer.framework,
        trainers=unusual(trained),
        cluster=left_to_framework(job),
        engines=engines,
        weight_sync=USUAL_WEIGHT_SYNC,
        old_log_prob=None,
        dynamic_sampling=sampling_left_to(load_framework(trainer.framework), job),
    )
    return resolve_job(other, Path(), file="job")


def as_run(job: Job, sheet: ConfigSheet, name: str, way: Arrangement) -> Job:
    """Return a job with what a trainer of a framework does in an arrangement, whatever the job says.

    That is what no key tells, as the framework's plug-in has it (`as_run` of its `writing`, where there is one).

    Args:
        name: The trainer's, in the sheet of keys.
    """
    own = getattr(load_part(sheet.name, "writing"), "as_run", None)
    return job if own is None else own(job, sheet, name, way)


def _pinned_ways(
    way: Arrangement,
    name: str,
    trainer: TrainerSheet,
    job: Job,
    pinned: Pinned,
    modes: tuple[Mode, ...],
) -> Iterator[FrameworkSetup]:
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
        drafts = dict(pinned.tasks)
        for task in tasks:
            fixed = _fixed((trainer.layouts, way.layouts, chosen), trainer, task)
            if way.usual_running and task.generates:
                fixed["max_running"] = usual_running(sheet_of(job, job.cluster[0].gpu))
            draft = drafts.get(task.name, TaskDraft())
            if task.generates and share is not None and draft.memory_fraction is None:
                fixed.setdefault("memory_fraction", share)
            drafts[task.name] = _joined(task, draft, fixed)
        arranged = Arranged(arrangement=way, recompute=trainer.recompute, packs=packed)
        kept = replace(pinned, tasks=FrozenDict(drafts), asked=asked, arranged=arranged)
        yield FrameworkSetup(job=job, pinned=kept, shared=shared)


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


class SetupSearch(NamedTuple):
    """Hold a way of a framework that is to be searched, and what for.

    Attributes:
        keeps_job: Whether plans are for a script, which says what it does of the job.
    """

    target: str
    way: FrameworkSetup
    facts: Facts
    objective: str
    specs: Specs
    seconds: float | None
    progress: Progress | None
    keeps_job: bool = False

    def found(self, pinned: Pinned) -> SearchResult:
        """Return the best plans that keep what is pinned.

        Raises:
            InfeasibleError: None fits and keeps the limits.
        """
        return search(
            self.way.job,
            self.facts,
            pinned=pinned,
            objective=self.objective,
            specs=self.specs,
            seconds=self.seconds,
            progress=self.progress,
        )

    def is_told(self, plan: Plan) -> bool:
        """Tell whether the framework's keys can say a plan."""
        with suppress(UserError):
            version = self.way.pinned.framework_version
            exported(plan, self.target, into="" if self.keeps_job else None, runs_on=version)
            return True
        return False


def _searched(asked: SetupSearch) -> BoundedPlans:
    """Return the plans of one way, none where none is found whose tasks have in common what they must.

    Its bound is that of the best without.
    """
    way, value = asked.way, _value_of(asked.way.job, asked.objective)
    free = asked.found(way.pinned)
    bound = value(free.plans[0]) * (1 - free.gap)
    plans = tuple(each for each in free.plans if _shares(way, each.plan))
    if not plans or plans[0] != free.plans[0]:
        repaired = _repaired(asked, way.pinned, free.plans[0].plan)
        plans = (*plans, *(each for result in repaired for each in result.plans))
    if not plans or not asked.is_told(min(plans, key=value).plan):
        plans = (*plans, *(each for field in AT_ONE for each in _at_one(asked, field)))
        plans = (*plans, *_of_fewer_running(asked, plans))
    return BoundedPlans(way, replace(free, plans=tuple(sorted(plans, key=value))), bound)


def _shares(way: FrameworkSetup, plan: Plan) -> bool:
    """Tell whether a plan's tasks have in common what they must."""
    return all(
        len({getattr(plan.tasks[name], field) for name in names}) <= 1
        for field, names in _groups(way)
    )


def _groups(way: FrameworkSetup) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield fields, and the tasks that have them in common."""
    tasks = [t for t in tasks_of(load_algorithm(way.job.algorithm), way.job) if t.has_model]
    for each in way.shared:
        names = tuple(
            task.name
            for task in tasks
            if task.kind in each.kinds and (not each.roles or task.role in each.roles)
        )
        yield from ((field, names) for field in each.fields if len(names) > 1)


def _at_one(asked: SetupSearch, field: str) -> Iterator[Candidate]:
    """Yield plans whose trainers all have 1 of a layout's field, as far as nothing is pinned of it."""
    way = asked.way
    tasks = {task.name: task.kind for task in tasks_of(load_algorithm(way.job.algorithm), way.job)}
    drafts = dict(way.pinned.tasks)
    for name, draft in drafts.items():
        if tasks.get(name) in AT_ONE[field] and getattr(draft, field) is None:
            drafts[name] = replace(draft, **{field: 1})
    pinned = replace(way.pinned, tasks=FrozenDict(drafts))
    if pinned == way.pinned:
        return
    try:
        found = asked.found(pinned)
    except InfeasibleError:
        return
    if _shares(way, found.plans[0].plan):
        yield from (each for each in found.plans if _shares(way, each.plan))
    else:
        for result in _repaired(asked, pinned, found.plans[0].plan):
            yield from result.plans


def _of_fewer_running(asked: SetupSearch, plans: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield plans whose engines run fewer sequences at a time, as many as can be told where the age of samples follows from it."""
    for each in plans:
        if not each.plan.flow.is_endless or asked.is_told(each.plan):
            continue
        numbers = range(1, each.plan.tasks[GENERATE].max_running)
        told = bisect_left(numbers, 1, key=lambda few: not asked.is_told(_running(each.plan, few)))
        if told < 1:
            continue
        fewer = _running(each.plan, numbers[told - 1])
        forecast = simulate(fewer, asked.facts)
        if forecast.feasible and not violations(fewer, forecast, asked.specs):
            yield replace(each, plan=fewer, forecast=forecast)


def _running(plan: Plan, sequences: int) -> Plan:
    """Return a plan whose engines run at most so many sequences at a time."""
    layout = replace(plan.tasks[GENERATE], max_running=sequences)
    return replace(plan, tasks=plan.tasks.with_item(GENERATE, layout))


def _repaired(asked: SetupSearch, pinned: Pinned, plan: Plan) -> Iterator[SearchResult]:
    """Yield searches in which tasks share what one of them has in a plan: the first, the last, or else another that fits."""
    groups = tuple(_groups(asked.way))
    tried: set[FrozenDict[str, TaskDraft]] = set()
    fits = False
    for place in (0, -1, *range(1, max((len(names) for _, names in groups), default=1))):
        if fits and place > 0:
            return
        drafts = dict(pinned.tasks)
        for field, names in groups:
            value = getattr(plan.tasks[names[min(place, len(names) - 1)]], field)
            for name in names:
                drafts[name] = replace(drafts[name], **{field: value})
        kept = FrozenDict(drafts)
        if kept in tried:
            continue
        tried.add(kept)
        with suppress(InfeasibleError):
            result = asked.found(replace(pinned, tasks=kept))
            fits = True
            yield result


def _value_of(job: Job, objective: str) -> Callable[[Candidate], float]:
    minimised, tokens = load_objective(objective), batch_tokens(job)
    return lambda each: minimised.value(each.forecast, tokens)


def _merged(
    bounded: Sequence[BoundedPlans],
    sheet: ConfigSheet,
    job: Job,
    objective: str,
    *,
    version: str | None,
    keeps_job: bool,
) -> SearchResult:
    """Return several searches as one: the best plans that the framework's version takes, under the lowest bound.

    Raises:
        UserError: It takes none of them.
    """
    value, found = _value_of(job, objective), [each.result for each in bounded]
    bound = min(each.bound for each in bounded)
    best: dict[str, Candidate] = {}
    problem: UserError | None = None
    for each in sorted((each for result in found for each in result.plans), key=value):
        try:
            exported(each.plan, sheet.name, into="" if keeps_job else None, runs_on=version)
        except UserError as error:
            problem = problem or error
            continue
        best.setdefault(f"{each.plan.job.framework} {each.plan.placement}", each)
    if not best:
        shares = InfeasibleError(f"no plan of job {job.name!r} fits whose tasks share their sizes")
        if problem is None or not keeps_job:  # who asks for no script may mend what a field names
            raise problem or shares
        raise UntoldError(str(problem)) from problem
    plans = sorted(best.values(), key=value)
    first = plans[0]
    gap = max(0.0, 1 - bound / value(first))
    seconds = first.forecast.iteration_seconds
    return SearchResult(
        plans=tuple(_beside(each, first) for each in plans),
        infeasible=tuple(dict.fromkeys(each for result in found for each in result.infeasible)),
        unseen=tuple(dict.fromkeys(each for result in found for each in result.unseen)),
        considered=_summed(result.considered for result in found),
        pruned=_summed(result.pruned for result in found),
        bound_seconds=seconds * (1 - gap),
        gap=gap,
        search_seconds=sum(result.search_seconds for result in found),
        profile=found[0].profile,
        space=_space(bounded, sheet),
    )


def _space(bounded: Sequence[BoundedPlans], sheet: ConfigSheet) -> str:
    """Return in words what of a job a framework runs, and what of that was searched."""
    arranged = [each.way.pinned.arranged for each in bounded]
    names = dict.fromkeys(each.arrangement.name for each in arranged if each is not None)
    modes: dict[str, dict[str, None]] = {}
    for some, _, plans in (each.result.space.partition(OF_PLANS) for each in bounded):
        modes.setdefault(plans, {}).update(dict.fromkeys(some.split(", ")))
    spaces = " or ".join(f"{', '.join(some)}{OF_PLANS}{plans}" for plans, some in modes.items())
    return f"what {sheet.title} runs ({', '.join(names)}): {spaces}"


def _beside(each: Candidate, first: Candidate) -> Candidate:
    """Return a plan with what it loses to the best of all."""
    own, best = each.forecast, first.forecast
    loses = own.iteration_seconds - best.iteration_seconds
    return replace(each, loses_seconds=loses, loses_to=lost_seconds(own, best))


def _summed(counts: Iterable[Mapping[str, int]]) -> FrozenDict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return FrozenDict(total)
