"""Look at every placement, allocation and layout; simulate in the order of the bounds.

Level 1 costs every layout of every task and keeps those that no other beats in time and memory. Level 2
bounds what placements and allocations can reach. Level 3 simulates plans in the order of their bounds until
the next bound is no better than the best simulated plan: the certificate (bound, gap) is about the
simulator's own objective. Decision 7 says why the bounds hold.

First the winner is found, with its certificate; then the best plans of the other placements, each with
what none of its placement can beat.
"""

import math
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import NamedTuple

from rlplan.errors import InfeasibleError, MissingFactError, UnfinishedError, UserError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, Specs
from rlplan.plan import USUAL_MODE, Plan
from rlplan.planner.exact.best_first import (
    STOPS_UNKNOWN,
    Incumbent,
    PlacementSearch,
    SearchBudget,
    planned,
)
from rlplan.planner.exact.deadlines import deadline_in, is_past
from rlplan.planner.exact.infeasibility import infeasibility_reason
from rlplan.planner.exact.placement_bounds import PLAYED_NOISE_FRACTION
from rlplan.planner.exact.space import Chosen, Ending, Space
from rlplan.planner.placements.partitions import (
    GENERATION,
    Placement,
    all_placements,
    show_placement,
)
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.schedules import Schedule, ScheduleSpace
from rlplan.planner.requests.specs import violations
from rlplan.profiles.facts import Facts
from rlplan.profiles.sheets import load_framework
from rlplan.results.forecast import Candidate, Forecast, InfeasiblePlacement, SearchResult
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.spot import NO_FAILURES
from rlplan.units import show_seconds

Progress = Callable[[int, int, str], None]

# Values that are as close are equal: sums of the same seconds in another order.
ROUNDING = 1e-9

# What is spent on a placement whose iterations overlap, where bounds leave out how pools wait for each
# other from one iteration to the next; the gap says what is left.
BUDGET_OF_OVERLAPPING = SearchBudget(plays=64, simulations=8)

# The same where responses stream: every simulation plays thousands of them, and speaks of all layouts with no less
# work on any pool, so that the bound rises with each. Gaps of less than what means of finitely many iterations are off
# are not worth a simulation.
STREAMED_GAP = PLAYED_NOISE_FRACTION
BUDGET_OF_STREAMS = SearchBudget(simulations=64, gap=STREAMED_GAP)

# The same where the age of samples counts: a simulation does not say how old those of other layouts are, and the gap that this leaves
# is not closed by more of them.
BUDGET_OF_AGES = SearchBudget(simulations=8, gap=STREAMED_GAP)

# The same where a simulation proves little: it speaks of itself alone where responses are dropped, and where placements
# are left that nobody looks at, the bound is theirs.
BUDGET_OF_FEW_STREAMS = SearchBudget(simulations=2, gap=STREAMED_GAP)

# The same where a batch ends once enough of its responses have: bounds are of the shortest ones that can be kept.
BUDGET_OF_BEGUN = SearchBudget(simulations=8)

# What bounds placements whose responses stream by the layouts of all their pools together.
BUDGET_OF_BOUNDS = SearchBudget(simulations=0)

# Placements and schedules of streamed responses that are simulated, of the lowest bounds.
MOST_STREAMS = 12

# Plans of streamed responses that are simulated for the proofs of all of them together: a fifth of a second each.
MOST_SIMULATED_STREAMS = 192


def search(
    job: Job,
    facts: Facts,
    *,
    pinned: Pinned = NOTHING_PINNED,
    progress: Progress | None = None,
    objective: str | None = None,
    specs: Specs | None = None,
    seconds: float | None = None,
    placements: int | None = None,
) -> SearchResult:
    """Return the best plan of every placement, best first.

    Args:
        job: A resolved job.
        facts: What operations cost on its devices.
        pinned: What the user pinned, which every plan keeps.
        progress: Called with (done, total, what) as placements are finished.
        objective: What to minimise; None takes the job's.
        specs: Limits that plans keep; None takes the job's.
        seconds: When to stop with the best plan so far; None searches to the end.
        placements: Of how many, the best ones, plans are wanted; None of all. Placements whose bounds are no better than
            those are left out and named, where iterations of one kind are searched. With 1 only the first plan means
            something, and none is said not to fit.

    Raises:
        InfeasibleError: No plan fits; the message has the reasons.
        UnfinishedError: None was found in time; one may fit.
        MissingFactError: All plans, or all that were found, train on spot nodes, and the job does not say what a loss takes.
    """
    started = time.perf_counter()
    deadline = deadline_in(seconds)
    limits = job.specs if specs is None else specs
    wanted = objective or job.objective
    space = Space(job, facts, pinned.tasks, wanted, limits, pinned.transition, pinned)
    asked = (space.weighed, placements)
    known = space.known.endings.get(asked) if seconds is None else None
    found = None if known is None else _forecasts_of(known, space)
    if known is not None and found is not None:
        _tell_done(progress, 2 * len(found))
        return _result(known, found, space, time.perf_counter() - started)
    if job.failures is None and all(group.spot is not None for group in job.cluster):
        raise MissingFactError(
            f"every plan of job {job.name!r} trains on spot nodes: {NO_FAILURES}"
        )
    campaign = _Campaign(space, deadline, progress)
    if not campaign.ranked:
        raise InfeasibleError(f"no placement of job {job.name!r} {_why_none_is_ranked(pinned)}")
    campaign.find_winner()
    if placements == 1 and campaign.has_unseen:  # one of them may be better
        placements = None
    campaign.find_others(placements)
    spent = time.perf_counter() - started
    ending, found = campaign.ending(spent, tells_misfits=placements != 1)
    if seconds is None:
        space.known.endings.keep(asked, _without_plays(ending))
    return _result(ending, found, space, time.perf_counter() - started)


class _Found(NamedTuple):
    """Hold the best plan of a placement with its forecast, its value, and what no other plan there is below."""

    plan: Plan
    forecast: Forecast
    value: float
    bound: float


PLAYS = "generations played"


def _without_plays(ending: Ending) -> Ending:
    """Return an ending as a search finds it that plays nothing itself."""
    return replace(ending, considered=ending.considered.with_item(PLAYS, 0))


def _why_none_is_ranked(pinned: Pinned) -> str:
    """Say what no placement has at once: pools that are pinned, a framework's arrangement, modes, a transition."""
    modes = f"in mode {' or '.join(pinned.asked.modes) or USUAL_MODE}"
    sets = show_placement(tuple(pool.members for pool in pinned.pools))
    way = pinned.arranged and pinned.arranged.arrangement.name
    arranged = f" in arrangement {way}" if way else ""
    moved = f" with the transition {pinned.transition}" if pinned.transition else ""
    pools = f"keeps what is pinned: {sets}" if sets else "has pools"
    return f"{pools} {modes}{arranged}{moved}"


def _forecasts_of(ending: Ending, space: Space) -> list[_Found] | None:
    """Return the plans of a known ending, forecast under a space's names and prices.

    None where a value is another after all: then the search does not end so.
    """
    found, objective = [], space.score.objective
    for each in ending.chosen:
        plan = planned(each.choice, space)
        forecast = simulate(plan, space.asked_before)
        if objective.figure(forecast) != each.value or violations(plan, forecast, space.specs):
            return None
        found.append(_Found(plan, forecast, each.value, each.bound))
    return found


def _result(ending: Ending, found: Sequence[_Found], space: Space, seconds: float) -> SearchResult:
    """Return the result of a search that has ended, after this many seconds."""
    first = found[0]
    gap = _gap(first.value, ending.bound)
    stops = STOPS_UNKNOWN in ending.pruned
    return SearchResult(
        plans=tuple(_candidate(each, first.forecast) for each in found),
        infeasible=ending.infeasible,
        unseen=ending.unseen,
        left_out=ending.left_out,
        considered=ending.considered,
        pruned=ending.pruned,
        bound_seconds=first.forecast.iteration_seconds * (1 - gap),
        gap=gap,
        search_seconds=seconds,
        profile=space.facts.label,
        space=space.words(schedules_of(space)) + (f"; none that {STOPS_UNKNOWN}" if stops else ""),
    )


def _tell_done(progress: Progress | None, total: int) -> None:
    if progress:
        progress(total, total, "done")


def schedules_of(space: Space) -> tuple[Schedule, ...]:
    """Return how iterations of a space's plans may follow each other."""
    arranged = space.pinned.arranged
    return tuple(
        ScheduleSpace(
            space.job,
            space.specs,
            space.pinned.asked,
            weighs_age=space.score.objective.weighs_age,
            least_staleness=0.0 if arranged is None else arranged.arrangement.least_staleness,
        )
    )


class _Campaign:
    """Search all placements of a space."""

    def __init__(self, space: Space, deadline: float, progress: Progress | None) -> None:
        self.space, self.deadline, self.progress = space, deadline, progress
        self.played_before = space.generations.played  # by searches with the same tables
        self.placements = tuple(filter(space.pinned.allows, all_placements(space.job)))
        self.schedules = schedules_of(space)
        searches = [
            PlacementSearch(space, placement, schedule, deadline=deadline)
            for placement in self.placements
            for schedule in self.schedules
            if suits(placement, schedule)
        ]
        self.ranked = sorted(searches, key=lambda each: each.least_value)
        self.done = 0
        # Placements that were looked at, or cannot fit; and those without a plan whose proof there was no time for.
        self.seen = {id(each) for each in searches if math.isinf(each.least_value)}
        self.cut = set[int]()
        # Those that need not be looked at, since others that are wanted are no worse than their bounds.
        self.left_out = set[int]()

    @property
    def best(self) -> float:
        """Return the value of the best plan so far."""
        return min(each.found.value for each in self.ranked)

    def find_winner(self) -> None:
        """Find a good plan of every placement that may win, then the best of all, with its proof."""
        left = MOST_SIMULATED_STREAMS
        for each in self.ranked:
            if not (each.schedule.streams or each.least_value >= self.best or self._is_late):
                self._look_at(each)
        self._look_at_streams()
        has_unseen = self.has_unseen
        for each in sorted(self.ranked, key=lambda each: (each.found.value, each.least_value)):
            is_left = each.schedule.streams and each.found.plan is None
            if is_left or each.found.bound >= self.best:
                continue
            if self._is_late:
                self._cut_short(each)
                continue
            self._tell(each)
            budget = _budget(each, has_unseen=has_unseen)
            if each.schedule.streams:
                budget = replace(budget, simulations=min(budget.simulations, left))
            before = each.streamed
            each.exact(self.best, replace(budget, deadline=self.deadline))
            left -= each.streamed - before
            if self._is_over and math.isfinite(each.found.bound):
                self._cut_short(each)
        self.bound = min(min(each.found.bound, each.found.value) for each in self.ranked)

    def _look_at_streams(self) -> None:
        """Find a good plan of the placements whose responses stream and that may still win.

        A first plan plays thousands of responses. What the layouts of all pools together cannot beat takes a tenth
        of that, and rules out most placements once there is a good plan.
        """
        streams = [each for each in self.ranked if each.schedule.streams]
        for each in streams:
            if self.best < math.inf or self._is_late:
                break
            self._look_at(each)
        if math.isinf(self.best):
            return  # nothing fits, and without a plan to beat all layouts of all pools would be joined
        for each in streams:
            if each.least_value < self.best and not self._is_late:
                each.exact(self.best, replace(BUDGET_OF_BOUNDS, deadline=self.deadline))
        tried = 0
        for each in sorted(streams, key=lambda each: each.found.bound):
            if tried == MOST_STREAMS or each.found.bound >= self.best or self._is_late:
                return
            if each.found.plan is None:
                self._look_at(each)
                tried += 1

    def find_others(self, placements: int | None) -> None:
        """Find a good plan of every other placement, and of those streams that look best by each role alone.

        Args:
            placements: How many of the best placements need a plan. Placements come in the order of their bounds, so
                the search ends once this many have plans no worse than the next bound.
        """
        streams = [each for each in self.ranked if each.schedule.streams][:MOST_STREAMS]
        # What overlaps is told beside the best plan whose iterations follow each other, wherever that is. Of the best one alone too,
        # streams are looked at that nobody proved to be worse: what bounds them is rougher than their plans are apart.
        wanted = None if len(self.schedules) > 1 and placements != 1 else placements
        for each in self.ranked:
            self._tell(each)
            if math.isinf(each.least_value) or self._is_late:
                continue
            if wanted is not None and each.least_value >= self._worst_of_best(wanted):
                if each.found.plan is None:
                    self.left_out.add(id(each))
                continue
            known = each.schedule.streams and self._has_plan(each.placement)
            promises = each in streams and each.least_value < self.best
            if each.found.plan is None and (promises or not known):
                self._look_at(each)

    def _worst_of_best(self, number: int) -> float:
        """Return the value of the worst of so many best plans, each of another placement; infinite where there are fewer."""
        values = sorted(each.found.value for each in self.ranked)
        return values[number - 1] if number <= len(values) else math.inf

    def _look_at(self, search: PlacementSearch) -> None:
        """Find a good plan of a placement, if any fits."""
        search.quick()
        self.seen.add(id(search))

    def _cut_short(self, search: PlacementSearch) -> None:
        """Remember that there was no time to show that a placement without a plan has none."""
        if search.found.plan is None:
            self.cut.add(id(search))

    def _is_known(self, search: PlacementSearch) -> bool:
        """Tell whether a placement in which no plan was found has none, as far as searches tell."""
        return id(search) in self.seen - self.cut

    @property
    def has_unseen(self) -> bool:
        """Tell whether a placement of streams has no plan that would be looked at, and might be the best."""
        return any(
            each.schedule.streams
            and each.found.plan is None
            and each.found.bound < self.best * (1 - STREAMED_GAP)
            for each in self.ranked
        )

    def _has_plan(self, placement: Placement) -> bool:
        return any(
            each.placement == placement and each.found.plan is not None for each in self.ranked
        )

    @property
    def _kept(self) -> str:
        """Return in words what plans keep beside fitting the cluster, a space behind them."""
        pinned = self.space.pinned
        said = []
        if pinned.arranged is not None:
            said.append(f"arranged as {load_framework(self.space.job.framework).title} does it")
        elif pinned.asked.modes not in {(), (USUAL_MODE,)}:
            said.append(f"in mode {' or '.join(pinned.asked.modes)}")
        if pinned.given:
            said.append("that keeps what is pinned")
        return "".join(f"{each} " for each in said)

    @property
    def _is_late(self) -> bool:
        return self._is_over and self.best < math.inf

    @property
    def _is_over(self) -> bool:
        return is_past(self.deadline)

    def _tell(self, search: PlacementSearch) -> None:
        if self.progress:
            total = 2 * len(self.ranked)
            self.progress(min(self.done, total), total, show_placement(search.placement))
        self.done += 1

    def _unseen(self, best: Container[Placement]) -> tuple[Placement, ...]:
        """Return the placements without a plan that there was no time for."""
        ranked = (each for each in self.ranked if each.placement not in best)
        return tuple(dict.fromkeys(each.placement for each in ranked if not self._is_known(each)))

    def _nothing_found(
        self,
        infeasible: Sequence[InfeasiblePlacement],
        unseen: int,
        stops: int,
        seconds: float,
    ) -> UserError:
        """Return why no plan was found: facts that lack, too little time, or what the placements do not fit.

        Args:
            unseen: Placements that there was no time for.
            stops: Plans that were left out since they train on spot nodes.
            seconds: That the search took.
        """
        job = f"no plan of job {self.space.job.name!r} {self._kept}"
        if stops:
            return MissingFactError(
                f"{job}was found that does not train on spot nodes: {NO_FAILURES}"
            )
        if unseen:
            return UnfinishedError(
                f"{job}was found in {show_seconds(seconds)}, and {unseen} of {len(self.placements)} placements were not looked "
                "at to the end; allow more seconds"
            )
        # A reason names the set that does not fit, and many placements share theirs.
        reasons = "; ".join(dict.fromkeys(item.reason for item in infeasible))
        return InfeasibleError(f"{job}fits its cluster, in {len(infeasible)} placements: {reasons}")

    def ending(self, seconds: float, *, tells_misfits: bool) -> tuple[Ending, list[_Found]]:
        """Return what was found, and its plans.

        Args:
            seconds: That it took.
            tells_misfits: Whether placements that cannot win were searched, so that what has no plan is told.

        Raises:
            InfeasibleError: Nothing was.
        """
        _tell_done(self.progress, 2 * len(self.ranked))
        best: dict[Placement, PlacementSearch] = {}
        for each in sorted(self.ranked, key=lambda each: each.found.value):
            if each.found.plan is not None:
                best.setdefault(each.placement, each)
        tells = tells_misfits or not best
        left_out = tuple(each.placement for each in self.ranked if id(each) in self.left_out)
        unseen = self._unseen({*best, *left_out}) if tells else ()
        told = {*best, *left_out, *unseen}
        rest = tuple(each for each in self.placements if each not in told)
        infeasible = tuple(
            InfeasiblePlacement(
                placement=show_placement(placement),
                reason=infeasibility_reason(placement, self.space),
            )
            for placement in (rest if tells else ())
        )
        if not best:
            stops = self.space.tally.pruned.get(STOPS_UNKNOWN, 0)
            raise self._nothing_found(infeasible, len(unseen), stops, seconds)
        found = [each.found for each in best.values()]
        ending = Ending(
            chosen=tuple(map(_chosen, found)),
            bound=self.bound,
            infeasible=infeasible,
            unseen=tuple(map(show_placement, unseen)),
            left_out=tuple(map(show_placement, left_out)),
            considered=self._considered(),
            pruned=FrozenDict(self.space.options.tally.pruned | self.space.tally.pruned),
        )
        return ending, list(map(_with_forecast, found))

    def _considered(self) -> FrozenDict[str, int]:
        """Return what was looked at, by level."""
        space, tally = self.space, self.space.tally
        tally.consider("placements", len(self.placements))
        for schedule in self.schedules if len(self.schedules) > 1 else ():
            number = sum(each.schedule == schedule for each in self.ranked)
            tally.consider(f"placements in {schedule.words}", number)
        tally.consider(PLAYS, space.generations.played - self.played_before)
        return FrozenDict(space.options.tally.considered | tally.considered)


def _chosen(found: Incumbent) -> Chosen:
    assert found.choice is not None, "what has a plan was chosen"
    return Chosen(found.choice, found.value, found.bound)


def _with_forecast(found: Incumbent) -> _Found:
    assert found.plan is not None, "only placements with a plan are told"
    assert found.forecast is not None, "what has a plan has its forecast"
    return _Found(found.plan, found.forecast, found.value, found.bound)


def suits(placement: Placement, schedule: Schedule) -> bool:
    """Tell whether a placement generates where a schedule needs it: apart, and alone where responses stream."""
    if schedule.streams:
        return (GENERATION,) in placement
    return not schedule.flow.overlaps or any(GENERATION in members for members in placement)


def _budget(search: PlacementSearch, *, has_unseen: bool) -> SearchBudget:
    """Return what is spent on the proof of a placement.

    Args:
        has_unseen: Whether placements of streams are left that nobody looks at. Where one pool does all but
            generate, simulations find better plans too.
    """
    drops = search.space.job.workload.drops_responses
    if not search.schedule.streams:
        if drops:
            return BUDGET_OF_BEGUN
        return BUDGET_OF_OVERLAPPING if search.schedule.flow.overlaps else SearchBudget()
    if drops or (has_unseen and len(search.bounds.others) > 1):
        return BUDGET_OF_FEW_STREAMS
    counts_age = search.space.score.objective.weighs_age and search.schedule.flow.is_endless
    return BUDGET_OF_AGES if counts_age else BUDGET_OF_STREAMS


def _gap(value: float, bound: float) -> float:
    gap = (value - bound) / value if value else 0.0
    return gap if gap > ROUNDING else 0.0


def _candidate(found: _Found, winner: Forecast) -> Candidate:
    return Candidate(
        plan=found.plan,
        forecast=found.forecast,
        loses_seconds=found.forecast.iteration_seconds - winner.iteration_seconds,
        loses_to=lost_seconds(found.forecast, winner),
        gap=_gap(found.value, min(found.bound, found.value)),
    )


def lost_seconds(forecast: Forecast, winner: Forecast) -> FrozenDict[str, float]:
    """Return the seconds that a plan loses to the winner, stage by stage."""
    return FrozenDict(
        {
            stage: seconds - winner.stage_seconds.get(stage, 0.0)
            for stage, seconds in forecast.stage_seconds.items()
        }
    )
