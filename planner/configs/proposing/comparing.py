"""One job as several frameworks would run it: with the user's own layout, and with the best that each can run.

What a framework cannot run is refused by name, and the others go on. Where rlplan writes no configuration of a framework, what
it can run is not known in full: such a framework has the user's layout alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import (
    FileError,
    InfeasibleError,
    MissingFactError,
    UnknownNameError,
    UserError,
)
from rlplan.files.frozen import FrozenDict
from rlplan.framework import FrameworkSheet
from rlplan.job import USUAL_WEIGHT_SYNC, Engines, Hyperparameters, Job
from rlplan.plan import FLOWS, USUAL_MODE, Mode, Plan, PlanDraft, PoolDraft, TaskDraft
from rlplan.planner.answers.best_plans import best_plans
from rlplan.planner.answers.differences import generates_apart, layout_changes, plan_difference
from rlplan.planner.configs.frameworks import VERSION, absent, frameworks_with, has
from rlplan.planner.configs.proposing.searching import FactsOf, best_plans_for
from rlplan.planner.configs.proposing.ways import (
    framework_of,
    moved,
    steps_of,
    with_newest_engine,
)
from rlplan.planner.configs.reading.sheet import TrainerSheet, load_config_sheet
from rlplan.planner.configs.run import unusual
from rlplan.planner.configs.writing.export import family
from rlplan.planner.objectives import load_objective
from rlplan.planner.placements.partitions import placed_roles
from rlplan.planner.requests.drafts import pinned_parts
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.planner.searchers.exact import Progress
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.frameworks import data_files, framework_of_sheet
from rlplan.profiles.jobs.sampling import sampling_left_to
from rlplan.profiles.sheets import canonical_name, left_to_framework, load_framework
from rlplan.results.differences import ComparedStep, FrameworksComparison, Kind
from rlplan.results.forecast import SearchResult
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.assemble import batch_tokens
from rlplan.workload import longest

AS_IT_IS: Final = "as it is"
BEST: Final = "best settings"
# Of losses, what decides which passes a step has; all else changes what is learnt, and no seconds.
COUNTED: Final = frozenset({"kl_coefficient", "kl_in", "entropy_coefficient"})
LOSSES: Final = "job.hyperparameters."
# How rules name what has to fit where each of both has a limit (`max_prompt_length`, `max_response_length`).
BOTH: Final = "longest prompt and response"
# Of layouts, what is kept of the user's, as much as a framework takes: all but the engine; without what that fills; how models
# are cut, batches are counted and activations are computed again; without the last; how models are cut.
SIZES: Final = frozenset({"tp", "pp", "dp", "cp", "ep", "expert_tp"})
BATCHES: Final = SIZES | {"micro_batch", "token_budget"}
WHOLE: Final = frozenset(each.name for each in fields(TaskDraft)) - {"engine", "pool"}
OF_ENGINES: Final = frozenset({"max_running", "memory_fraction"})
KEPT: Final = (WHOLE, WHOLE - OF_ENGINES, BATCHES | {"recompute"}, BATCHES, SIZES)

NOTHING_ASKED: Final = AskedSchedules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Say what is kept of a user's layouts.

    Attributes:
        fields: Of them.
        least: Tokens that micro-batches with a budget have at least.
    """

    fields: frozenset[str]
    least: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFramework:
    """Hold a framework that is compared.

    Attributes:
        name: As it was given.
        folder: The name of its folders.
        sheet: The sheet of its steps that was named, such as `verl-megatron`; None for all of them.
    """

    name: str
    folder: str
    sheet: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """Hold what is compared.

    Attributes:
        job: Resolved.
        plan: The user's own; None where only the job is known.
        facts_of: What operations cost, as a job's framework and engines do them.
        asked: The modes in which the best plans may run, and how old weights may be.
        seconds: When each search stops with the best plan so far; None searches to the end.
        progress: Called with (done, total, framework) before each.
    """

    job: Job
    plan: Plan | None
    facts_of: FactsOf
    asked: AskedSchedules = NOTHING_ASKED
    seconds: float | None = None
    progress: Progress | None = None


def known_framework(name: str) -> NamedFramework:
    """Return a framework by its name, or by that of a sheet of its steps.

    Raises:
        UnknownNameError: No steps of a framework of that name are forecast.
    """
    known = frameworks_with("steps")
    if name in known:
        return NamedFramework(name=name, folder=name)
    sheet = canonical_name("frameworks", name)
    folder = framework_of_sheet("steps", sheet)
    if folder is None:
        raise UnknownNameError("framework", name, (*known, *data_files("steps")))
    return NamedFramework(name=name, folder=folder, sheet=sheet)


def compare_frameworks(
    request: ComparisonRequest, frameworks: Sequence[NamedFramework]
) -> FrameworksComparison:
    """Return a job's steps by framework, each with what it differs by from the user's own.

    A framework with the user's layout is set against the user's own plan; one with its best plan against the best plan of the
    user's own framework, which is searched too. Where there is no such step, the first that there is takes its place.

    Raises:
        FileError: The user's plan breaks a rule.
        CapabilityError: The simulator has no playing for it.
    """
    own, found = _own_framework(request.job), list[ComparedStep]()
    if (plan := request.plan) is not None:
        request = replace(request, asked=_with_own_mode(request.asked, plan))
        found.append(_as_it_is(request, plan, own))
    named = list(dict.fromkeys(frameworks))
    if own is not None and not any(_is_own(each, request.job) for each in named):
        named.insert(0, own)
    for done, framework in enumerate(named):
        if request.progress:
            request.progress(done, len(named), framework.name)
        if plan is not None and not _is_own(framework, request.job):
            found.append(_same_layout(request, plan, framework))
        best = _best(request, framework)
        stands = found[0] if found and found[0].kind == AS_IT_IS else None
        if stands is not None and _is_own(framework, request.job):
            best = _no_worse(request.job, best, stands)
        found.append(best)
    return FrameworksComparison(
        job=request.job.name,
        steps=tuple(_with_differences(found, request, own)),
    )


def _with_own_mode(asked: AskedSchedules, plan: Plan) -> AskedSchedules:
    """Return the modes in which the best plans may run: where nobody says it, a plan's own beside the usual one."""
    if asked.modes or plan.mode == USUAL_MODE:
        return asked
    staleness = plan.staleness if plan.flow.is_endless else None
    return replace(asked, modes=(USUAL_MODE, plan.mode), staleness=staleness)


def _own_framework(job: Job) -> NamedFramework | None:
    """Return the framework that a job names, as far as it is not this project's executor."""
    sheet = canonical_name("frameworks", job.framework)
    folder = framework_of_sheet("steps", sheet)
    if folder is None or load_framework(sheet).runs:
        return None
    return NamedFramework(name=sheet, folder=folder, sheet=sheet)


def _is_own(framework: NamedFramework, job: Job) -> bool:
    """Tell whether a framework, with the trainer that is named, is a job's own."""
    if framework.sheet is not None:
        return _unversioned(framework.sheet) == framework_of(job)
    return framework_of_sheet("steps", framework_of(job)) == framework.folder


def _unversioned(sheet: str) -> str:
    return VERSION.sub("", sheet)


def _as_it_is(request: ComparisonRequest, plan: Plan, own: NamedFramework | None) -> ComparedStep:
    """Return the step of the user's own plan."""
    sheet = load_framework(plan.job.framework)
    forecast = simulate(plan, request.facts_of(plan.job))
    return ComparedStep(
        framework=sheet.name,
        title=sheet.title,
        kind=AS_IT_IS,
        plan=plan,
        forecast=forecast,
        notes=tuple(f"does not fit: {reason}" for reason in forecast.infeasible_reasons),
        modes=() if own is None else _modes(own),
    )


def _modes(framework: NamedFramework) -> tuple[str, ...]:
    """Return how a framework's iterations may follow each other; none where that is not known."""
    if not has(framework.folder, "writing"):
        return ()
    ways = load_config_sheet(framework.folder).arrangements
    return tuple(dict.fromkeys(mode for way in ways for mode in way.modes))


def _empty(framework: NamedFramework, kind: Kind) -> ComparedStep:
    """Return a step of a framework of which no plan is known yet."""
    return ComparedStep(
        framework=framework.name, title=_title(framework), kind=kind, modes=_modes(framework)
    )


def _with_plan(empty: ComparedStep, found: SearchResult, notes: tuple[str, ...]) -> ComparedStep:
    """Return a step with the best plan of a search, under the title of the trainer that runs it."""
    best = found.plans[0]
    title = load_framework(best.plan.job.framework).title
    return replace(empty, title=title, plan=best.plan, forecast=best.forecast, notes=notes)


def _title(framework: NamedFramework) -> str:
    """Return a framework's name for people, with the trainer where one is named."""
    if framework.sheet is not None:
        return load_framework(framework.sheet).title
    if has(framework.folder, "keys"):
        return load_config_sheet(framework.folder).title
    return load_framework(canonical_name("frameworks", framework.folder)).title


# The user's layout, as far as a framework can be told it.


def _same_layout(request: ComparisonRequest, plan: Plan, framework: NamedFramework) -> ComparedStep:
    """Return the step of the user's layout as a framework runs it: whole, or else as much of it as it takes."""
    empty = _empty(framework, "same layout")
    problem: UserError | None = None
    for kept in KEPT:
        for least in _least_budgets(plan) if "token_budget" in kept else [0]:
            try:
                return _told(request, plan, framework, empty, Kept(fields=kept, least=least))
            except UserError as error:
                problem = error
    assert problem is not None, "it is returned where there is none"
    return replace(empty, reason=words_of(problem))


def _least_budgets(plan: Plan) -> Iterator[int]:
    """Yield the tokens that micro-batches have at least: as they are, of the longest sequence, and of one that is padded.

    Megatron's flags take a budget below the longest sequence, for which a micro-batch of its own is made; verl and others do not.
    """
    yield 0
    work = plan.job.workload
    padded = longest(work.prompt_tokens) + longest(work.response_tokens)
    budgets = [each.token_budget for each in plan.tasks.values() if each.token_budget is not None]
    for tokens in dict.fromkeys((work.longest_sequence_tokens, padded)):
        if budgets and min(budgets) < tokens:
            yield tokens


def _with_budgets(plan: Plan, least: int) -> Plan:
    """Return a plan whose budgets are that large at least."""
    tasks = {
        name: each
        if each.token_budget is None
        else replace(each, token_budget=max(least, each.token_budget))
        for name, each in plan.tasks.items()
    }
    return replace(plan, tasks=FrozenDict(tasks))


def _told(
    request: ComparisonRequest,
    plan: Plan,
    framework: NamedFramework,
    empty: ComparedStep,
    kept: Kept,
) -> ComparedStep:
    """Return the step of a plan's layout by another framework, its trainer as like the plan's as there is.

    Raises:
        UserError: The framework cannot run it so.
    """
    _check_roles(framework, plan.job)
    if empty.modes and plan.mode not in empty.modes:
        raise InfeasibleError(
            f"{empty.title} has no mode {plan.mode}, only {', '.join(empty.modes)}"
        )
    if not has(framework.folder, "writing"):
        return _of_sheet(request, plan, framework, empty, kept)
    _check_syncs(framework, apart=generates_apart(plan))
    problem: UserError | None = None
    for trainer in _trainers(framework, plan.tasks["actor.update"].engine):

        def asked(job: Job, trainer: TrainerSheet = trainer) -> tuple[Job, Pinned]:
            other = _of_trainer(job, framework.folder, trainer)
            return other, pinned_parts(_draft(plan, other, kept), other)

        try:
            found, notes = _searched(request, framework, plan.job, asked)
        except UserError as error:
            problem = problem or error
            continue
        return _with_plan(empty, found, (*notes, *_changed(found.plans[0].plan, plan)))
    if problem is None:
        raise InfeasibleError("has no trainer whose plans are known")
    raise problem


def _trainers(framework: NamedFramework, engine: str = "") -> Iterator[TrainerSheet]:
    """Yield a framework's trainers of today, or the one that is named; first those that train with such an engine."""
    sheet = load_config_sheet(framework.folder)
    arranged = {name for way in sheet.arrangements for name in way.trainers}
    known = {
        each.framework: each for name, each in sheet.trainers.items() if name in arranged
    }.values()
    named = None if framework.sheet is None else _unversioned(framework.sheet)
    kept = [each for each in known if named in {None, each.framework}]
    yield from sorted(kept, key=lambda each: _family_of(each) != family(engine))


def _of_trainer(job: Job, folder: str, trainer: TrainerSheet) -> Job:
    """Return a job whose steps are those of another framework's trainer, with the engines that it has today.

    What generates is of the family that generated in the job, where the framework has a word for that.
    """
    other = moved(job, trainer)
    return other if other == job else with_newest_engine(other, folder, job.engines.generate or "")


def _family_of(trainer: TrainerSheet) -> str:
    return family(trainer.engine or load_framework(trainer.framework).engines.train or "")


def _draft(plan: Plan, job: Job, kept: Kept) -> PlanDraft:
    """Return a plan's pools and layouts for the tasks of another framework's job, engines left open.

    A pass that the plan does not have is cut as the update of its role.
    """
    tasks: dict[str, TaskDraft] = {}
    plan = _with_budgets(plan, kept.least)
    for task in tasks_of(load_algorithm(job.algorithm), job):
        if not task.has_model:
            continue
        like = plan.tasks.get(task.name) or plan.tasks.get(f"{task.role}.update")
        if like is None:
            continue
        used = {*task.stage_kind.layout_fields, "dp"}
        names = used & (kept.fields if task.name in plan.tasks else SIZES)
        if like.token_budget is not None:
            names = names - {"micro_batch"}  # as many sequences as the budget takes
        given = {name: getattr(like, name) for name in names}
        tasks[task.name] = TaskDraft(
            pool=like.pool, **{name: value for name, value in given.items() if value is not None}
        )
    pools = (pool for pool in plan.pools if not pool.is_host)
    endless = plan.flow.is_endless
    return PlanDraft(
        job=job,
        pools=tuple(
            PoolDraft(name=pool.name, device=pool.device, gpus=pool.gpus, roles=pool.roles)
            for pool in pools
        ),
        tasks=FrozenDict(tasks),
        mode=plan.mode,
        staleness=plan.staleness if endless else None,
        sync_every=plan.sync_every if endless else None,
    )


def _changed(own: Plan, base: Plan) -> Iterator[str]:
    """Yield what of a layout is not as in the user's plan, task by task."""
    for name, layout in own.tasks.items():
        if name in base.tasks and not own.pool_of(name).is_host:
            words = list(layout_changes(layout, base.tasks[name], own, base, engines=False))
            if words:
                yield f"{name}: {', '.join(words)}"


def _check_syncs(framework: NamedFramework, *, apart: bool) -> None:
    """Refuse a framework none of whose sheets has a weight sync to the kind of pools that generate.

    Raises:
        InfeasibleError: So it is.
    """
    problem: UserError | None = None
    for name in _sheets(framework):
        try:
            _check_sync(load_framework(name), apart=apart)
        except UserError as error:
            problem = error
        else:
            return
    if problem is not None:
        raise problem


def _check_sync(sheet: FrameworkSheet, *, apart: bool) -> None:
    """Refuse a framework without a weight sync to the kind of pools that generate.

    Raises:
        InfeasibleError: It names ways, and none of that kind.
    """
    ways = sheet.weight_sync
    if ways == USUAL_WEIGHT_SYNC or (ways.between_pools if apart else ways.shared_pool):
        return
    where = "of their own" if apart else "that the trainer shares"
    raise InfeasibleError(
        f"{sheet.title} has no weight sync that is known to engines on GPUs {where}"
    )


def _of_sheet(
    request: ComparisonRequest,
    plan: Plan,
    framework: NamedFramework,
    empty: ComparedStep,
    kept: Kept,
) -> ComparedStep:
    """Return the step of a plan's layout by a framework of which no configuration is written.

    Raises:
        UserError: It has no such role, or its engines cannot run the layout.
    """
    problem: UserError | None = None
    wanted = family(plan.tasks["actor.update"].engine)
    sheets = [load_framework(name) for name in _sheets(framework)]
    apart = generates_apart(plan)
    for sheet in sorted(sheets, key=lambda each: family(each.engines.train or "") != wanted):
        other = replace(
            plan.job,
            framework=sheet.name,
            cluster=left_to_framework(plan.job),
            engines=Engines(),
            old_log_prob=None,
            weight_sync=USUAL_WEIGHT_SYNC,
            trainers=None,
            dynamic_sampling=sampling_left_to(sheet, plan.job),
        )
        try:
            _check_sync(sheet, apart=apart)
            job = resolve_job(other, Path(), file="job")
            job = with_newest_engine(job, framework.folder, plan.job.engines.generate or "")
            facts = request.facts_of(job)
            pinned = pinned_parts(_draft(plan, job, kept), job)
            found = best_plans(job, facts, pinned=pinned, seconds=request.seconds, placements=1)
        except UserError as error:
            problem = problem or error
            continue
        words = f"{absent(framework.folder, 'writing')}; whether it can be told this plan is not checked"
        return _with_plan(empty, found, (words, *_changed(found.plans[0].plan, plan)))
    assert problem is not None, "a framework with steps has a sheet of them"
    raise problem


def _sheets(framework: NamedFramework) -> Iterator[str]:
    """Yield the sheets of a framework's steps of today, or the one that is named."""
    if framework.sheet is not None:
        yield framework.sheet
        return
    yield from (name for name in steps_of(framework.folder) if not VERSION.search(name))


def _check_roles(framework: NamedFramework, job: Job) -> None:
    """Refuse roles that a framework's arrangements, or else its keys, do not have.

    Raises:
        InfeasibleError: It has no such role.
    """
    if not has(framework.folder, "keys"):
        return
    sheet = load_config_sheet(framework.folder)
    arranged = {role for way in sheet.arrangements for members in way.sets for role in members}
    known: set[str] = {*(arranged or sheet.roles)}
    lacking = [role for role in placed_roles(job) if role not in known]
    if lacking:
        raise InfeasibleError(f"{sheet.title} runs no {', no '.join(lacking)} model")


# The best that a framework can run.


def _best(request: ComparisonRequest, framework: NamedFramework) -> ComparedStep:
    """Return the step of the best plan that a framework can run of a job."""
    empty = _empty(framework, BEST)
    if not has(framework.folder, "writing"):
        words = f"{absent(framework.folder, 'writing')}: what it can run is not searched"
        return replace(empty, reason=words)

    try:
        _check_roles(framework, request.job)
    except InfeasibleError as error:
        return replace(empty, reason=str(error))
    problem: UserError | None = None
    found: list[tuple[SearchResult, tuple[str, ...]]] = []
    for trainer in _trainers(framework):

        def asked(job: Job, trainer: TrainerSheet = trainer) -> tuple[Job, Pinned]:
            other = _of_trainer(job, framework.folder, trainer)
            return other, replace(NOTHING_PINNED, asked=request.asked)

        try:
            found.append(_searched(request, framework, request.job, asked))
        except UserError as error:
            problem = problem or error
    if not found:
        reason = "no trainer of it is known" if problem is None else words_of(problem)
        return replace(empty, reason=reason)
    return _best_of(request.job, found, empty)


def _no_worse(job: Job, best: ComparedStep, stands: ComparedStep) -> ComparedStep:
    """Return the best of a user's own framework: their own plan where it fits and nothing better was found."""
    minimised, tokens = load_objective(job.objective), batch_tokens(job)
    assert stands.forecast is not None, "the user's plan is forecast"
    if best.forecast is None or not stands.forecast.feasible:
        return best
    own, found = (minimised.value(each, tokens) for each in (stands.forecast, best.forecast))
    if found <= own:
        return best
    bound = found * (1 - (best.gap or 0.0))
    return replace(
        best,
        title=stands.title,
        plan=stands.plan,
        forecast=stands.forecast,
        notes=("your own plan: no better one was found",),
        gap=max(0.0, 1 - bound / own),
    )


def _best_of(
    job: Job, found: Sequence[tuple[SearchResult, tuple[str, ...]]], empty: ComparedStep
) -> ComparedStep:
    """Return the best plan of several searches, with how far it may be from the best of all."""
    minimised, tokens = load_objective(job.objective), batch_tokens(job)

    def value(result: SearchResult) -> float:
        return minimised.value(result.plans[0].forecast, tokens)

    result, notes = min(found, key=lambda each: value(each[0]))
    bound = min(value(each) * (1 - each.gap) for each, _ in found)
    return replace(_with_plan(empty, result, notes), gap=max(0.0, 1 - bound / value(result)))


def _searched(
    request: ComparisonRequest,
    framework: NamedFramework,
    job: Job,
    asked: Callable[[Job], tuple[Job, Pinned]],
) -> tuple[SearchResult, tuple[str, ...]]:
    """Return the plans of a framework, and what of a job was left out since it has no key for it.

    What changes no seconds does not keep a job from being compared: parts of losses, and options of another trainer.

    Args:
        asked: Returns the job to search, and what is pinned, of a job.

    Raises:
        UserError: The framework cannot run the job.
    """
    notes: list[str] = []

    def in_modes(given: Job, modes: tuple[Mode, ...] | None = None) -> SearchResult | None:
        """Search in these modes of those that are asked for, or in all; None where nothing is gained by the former."""
        resolved, pinned = asked(given)
        if modes is not None:
            every = pinned.asked.modes
            if not set(modes) <= set(every) or not any(FLOWS[each].by_sample for each in every):
                return None
            pinned = replace(pinned, asked=replace(pinned.asked, modes=modes))
        return best_plans_for(
            framework.folder, resolved, request.facts_of, pinned=pinned, seconds=request.seconds
        )

    # Refusals come behind a search, and one of responses that stream takes ten times that of whole batches. What else is
    # wrong with whole batches may not be with streams.
    in_batches = partial(in_modes, modes=(USUAL_MODE,))
    _, job, _ = _until_told(job, _title(framework), in_batches, notes)
    found, _, problem = _until_told(job, _title(framework), in_modes, notes)
    if problem is not None:
        raise problem
    assert found is not None, "it is searched in all modes"
    return found, tuple(notes)


def _until_told(
    job: Job, title: str, ask: Callable[[Job], SearchResult | None], notes: list[str]
) -> tuple[SearchResult | None, Job, UserError | None]:
    """Ask of a job, and without what is refused as long as it can go without; return the answer, that job, and the last error.

    Args:
        notes: Gets what was left out.
    """
    while True:
        try:
            return ask(job), job, None
        except UserError as error:
            simpler = None
            if isinstance(error, FileError | MissingFactError):
                simpler = _without(job, error, title)
            if simpler is None or simpler[0] == job:
                return None, job, error
            job = simpler[0]
            notes.append(simpler[1])


def _without(job: Job, error: FileError | MissingFactError, title: str) -> tuple[Job, str] | None:
    """Return a job without what a framework cannot be told or do otherwise than its own way, and words for it."""
    if isinstance(error, MissingFactError):
        return _without_logits(job, title)
    field = error.field or ""
    if field.startswith(LOSSES):
        name = field.removeprefix(LOSSES)
        usual: dict[str, Any] = {each.name: each.default for each in fields(Hyperparameters)}
        if name in COUNTED or name not in usual:
            return None
        value = getattr(job.hyperparameters, name)
        losses = replace(job.hyperparameters, **{name: usual[name]})
        words = f"without {name} {value}, which {title} cannot be told: it changes no seconds"
        return replace(job, hyperparameters=losses), words
    given = dict(job.trainers or {})
    for role, options in given.items():
        if (
            field.startswith(f"tasks.{role}.")
            and field.endswith(".offload")
            and options.host_states
        ):
            kept = {**given, role: replace(options, host_states=False)}
            words = f"without states of the {role} that live in host memory, which {title} tells otherwise"
            return replace(job, trainers=unusual(kept)), words
    if field.startswith("job.trainers") and job.trainers is not None:
        words = f"without the options of the job's own trainer, which {title} cannot be told"
        return replace(job, trainers=None), words
    if field.startswith("tasks.actor.generate.engine") and job.engines.generate is not None:
        words = (
            f"generates with the engine that is usual in {title}, not with {job.engines.generate}"
        )
        return replace(job, engines=replace(job.engines, generate=None)), words
    return _with_limits_apart(job, error, title)


def _without_logits(job: Job, title: str) -> tuple[Job, str] | None:
    """Return a job whose trainers make logits as is usual in their engines."""
    given = dict(job.trainers or {})
    ways = [each.logits for each in given.values() if each.logits is not None]
    usual = {
        role: replace(each, logits=None, logit_chunk_tokens=None) for role, each in given.items()
    }
    if not ways:
        return None
    words = f"makes logits as is usual in {title}, not by {', '.join(dict.fromkeys(ways))}"
    return replace(job, trainers=unusual(usual)), words


def _with_limits_apart(job: Job, error: FileError, title: str) -> tuple[Job, str] | None:
    """Return a job whose prompts and responses have a limit each, where a framework has no other and asks room for both."""
    work = job.workload
    if BOTH not in error.problem or work.max_total_tokens is None:
        return None
    apart = replace(work, max_total_tokens=None)
    words = (
        f"room for sequences of {apart.longest_sequence_tokens:,} tokens, since {title} limits prompts and responses one by "
        f"one: the job's have at most {work.max_total_tokens:,} together"
    )
    return replace(job, workload=apart), words


def words_of(error: UserError) -> str:
    """Return what is said of an error whose file is a plan that nobody wrote."""
    if not isinstance(error, FileError):
        return str(error)
    if (error.field or "").startswith("job.adapters") and error.allowed == "None":
        return "trains no adapter (LoRA)"
    found = "" if error.value is None else f"; found {error.value}"
    allowed = f"; allowed: {error.allowed}" if error.allowed else ""
    where = f"{error.field}: " if error.field else ""
    return f"{where}{error.problem}{found}{allowed}"


# What each step is compared with.


def _with_differences(
    found: Sequence[ComparedStep], request: ComparisonRequest, own: NamedFramework | None
) -> Iterator[ComparedStep]:
    """Yield steps with what each differs by from the one that it is set against."""
    known = [each for each in found if each.forecast is not None]
    given = next((each for each in known if each.kind == AS_IT_IS), None)
    folder = None if own is None else own.folder
    bests = [each for each in known if each.kind == BEST]
    best = next((each for each in bests if _folder(each) == folder), None)
    base = given or best or next(iter(bests), None)
    for each in found:
        against = best if each.kind == BEST and best is not None and each is not best else base
        if each.forecast is None or against is None or each is against:
            yield each
            continue
        assert each.plan is not None, "a forecast is of a plan"
        assert against.plan is not None, "a forecast is of a plan"
        assert against.forecast is not None, "steps without one are left out"
        difference = plan_difference(
            (each.plan, each.forecast, request.facts_of(each.plan.job)),
            (against.plan, against.forecast, request.facts_of(against.plan.job)),
            f"{against.title}, {against.kind}",
        )
        yield replace(each, difference=difference)


def _folder(step: ComparedStep) -> str | None:
    assert step.plan is not None, "only steps with a forecast are asked"
    return framework_of_sheet("steps", step.plan.job.framework)
