"""Search what a framework can run: its arrangements one by one, under one certificate.

Where tasks have parts of their layouts in common (`rlplan`'s search lays each role out by itself), the search
without that bounds the one with it: what is found then, with the parts of its winner pinned, is at most
the gap from the best.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final, NamedTuple

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import FileError, InfeasibleError, UnfinishedError, UntoldError, UserError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, Specs
from rlplan.plan import Plan, TaskDraft
from rlplan.planner.answers.best_plans import (
    best_front,
    best_plans,
    front_under_specs,
    infeasible_specs_error,
    under_specs,
)
from rlplan.planner.configs.frameworks import check_parts, framework_of_steps, frameworks_with
from rlplan.planner.configs.on_host import with_states_on_host
from rlplan.planner.configs.proposing.ways import FrameworkSetup, framework_of, ways_of
from rlplan.planner.configs.reading.sheet import ConfigSheet, load_config_sheet
from rlplan.planner.configs.writing.export import GENERATE
from rlplan.planner.configs.writing.exporting import OF_JOB, exported
from rlplan.planner.objectives import load_objective
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.specs import violations
from rlplan.planner.search import search
from rlplan.planner.searchers.exact import Progress, lost_seconds
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Candidate, Frontier, SearchResult
from rlplan.rules.batches import batch_sequences
from rlplan.rules.layouts import divisors
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.assemble import batch_tokens

FactsOf = Callable[[Job], Facts]
# Between the modes and the rest of the words for a space of plans (`Space.words`).
OF_PLANS: Final = " plans of "
# Fields that not every framework tells role by role, or of every model, by the tasks for which 1 is tried then.
AT_ONE: Final[Mapping[str, tuple[str, ...]]] = {"chunks": ("train",), "cp": ("train", "infer")}


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
    target = framework_of_steps(job.framework)
    if target not in frameworks_with("keys", "writing"):
        return None
    named = framework_of(job)
    sheet = load_config_sheet(target)
    known = {*(each.framework for each in sheet.trainers.values()), *sheet.searched_alike}
    return target if named in known else None


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
    if not any(asked.is_told(each.plan) for each in plans):
        plans = (*plans, *_in_equal_parts(asked, plans))
    return BoundedPlans(way, replace(free, plans=tuple(sorted(plans, key=value))), bound)


def _shares(way: FrameworkSetup, plan: Plan) -> bool:
    """Tell whether a plan's tasks have in common what they must."""
    return all(
        len({getattr(plan.tasks[name], field) for name in names}) <= 1
        for field, names in way.groups
    )


def _at_one(asked: SetupSearch, field: str) -> Iterator[Candidate]:
    """Yield plans whose trainers all have 1 of a layout's field, as far as nothing is pinned of it."""
    way = asked.way
    tasks = {task.name: task.kind for task in tasks_of(load_algorithm(way.job.algorithm), way.job)}
    drafts = dict(way.pinned.tasks)
    for name, draft in drafts.items():
        if tasks.get(name) in AT_ONE[field] and getattr(draft, field) is None:
            drafts[name] = replace(draft, **{field: 1})
    pinned = replace(way.pinned, tasks=FrozenDict(drafts))
    if pinned != way.pinned:
        yield from _sharing(asked, pinned)


def _sharing(asked: SetupSearch, pinned: Pinned) -> Iterator[Candidate]:
    """Yield plans that keep what is pinned, and whose tasks have in common what they must."""
    try:
        found = asked.found(pinned)
    except InfeasibleError:
        return
    if _shares(asked.way, found.plans[0].plan):
        yield from (each for each in found.plans if _shares(asked.way, each.plan))
    else:
        for result in _repaired(asked, pinned, found.plans[0].plan):
            yield from result.plans


def _in_equal_parts(asked: SetupSearch, plans: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield plans whose trainers share each update out to their copies equally, with as many copies as can be told.

    A search lets the fullest copy have one sequence more than others; some frameworks stop at that, or at micro-batches that
    leave a copy none.
    """
    way, job = asked.way, asked.way.job
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    names = {task.name for task in tasks if task.kind in {"train", "infer"}}
    sequences = batch_sequences(job.workload, trains=True)
    if all(sequences % each.plan.tasks[name].dp == 0 for each in plans for name in names):
        return  # what is refused is something else
    for copies in reversed(divisors(sequences)):
        if copies > job.gpus:
            continue
        drafts = {
            name: replace(draft, dp=copies) if name in names and draft.dp is None else draft
            for name, draft in way.pinned.tasks.items()
        }
        found = tuple(_sharing(asked, replace(way.pinned, tasks=FrozenDict(drafts))))
        if any(asked.is_told(each.plan) for each in found):
            yield from found
            return


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
    groups = asked.way.groups
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
            if problem is None or (_is_of_job(error) and not _is_of_job(problem)):
                problem = error
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
        plans=tuple(_beside(_in_part(each, job), first) for each in plans),
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


def _is_of_job(error: UserError) -> bool:
    """Tell whether a plan is refused for its job, which no other plan of it mends."""
    return isinstance(error, FileError) and str(error.field).startswith(OF_JOB)


def _in_part(each: Candidate, job: Job) -> Candidate:
    """Return a plan whose forecast says how much of a job's cluster its own leaves out: other kinds of GPUs, or all nodes but one."""
    left = job.gpus - each.plan.job.gpus
    if not left:
        return each
    words = f"{left} of the job's {job.gpus} GPUs are on nodes that the plan leaves out"
    return replace(each, forecast=replace(each.forecast, warnings=(words, *each.forecast.warnings)))


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
