"""Better settings: plans a few changes away from a configured one, typed again as its user would, and simulated.

Where a plan fits, single changes that make it faster and leave what a verdict of `fits` leaves, if the plan does. Where it
does not, the fewest changes that make it fit: each is looked at by itself, and those that take most off what is too much are
put together, two and then three. They are to leave as much; where none does, they are to fit at all.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from rlplan.plan import Plan, TaskPlan
from rlplan.planner.answers.explain import in_whole_batches, keeps_rules_and_fits, with_fields
from rlplan.planner.answers.verdicts import UNSURE
from rlplan.planner.configs.margins import kept_share, sure_share
from rlplan.planner.configs.proposing.changes import (
    GENERATE,
    UPDATE,
    Assignment,
    Changes,
    Lever,
    RetypedConfiguration,
    assignments,
    by_words_of_files,
    faster,
    may_follow,
    of_own_files,
    on_host,
    smaller,
    typed_value,
)
from rlplan.planner.configs.sizes import ON_HOST
from rlplan.profiles.catalog import ENGINES
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Forecast
from rlplan.rules import refusals
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.agenda import agenda_of
from rlplan.simulator.timeline.assemble import device_pools
from rlplan.simulator.timeline.pool_memory import TRANSITION, memory_moments, pool_memory
from rlplan.trainers import TrainerOptions

SHOWN: Final = 3
# Plans that are simulated: a few tenths of a second together on a laptop.
MOST_TRIED: Final = 10
MOST_PLAYED: Final = 5
# Plans whose memory alone is looked at: of one change, of two or three together, and of milder values of each set that fits.
# A second together.
MOST_SINGLE: Final = 60
MOST_TOGETHER: Final = 20
MOST_MILDER: Final = 12
MOST_CHANGES: Final = 3
# Changes, and pairs of them, that take most off and are put together with others.
MOST_KEPT: Final = 4
# Below this share of a device, a pass's own tensors are not what is too much.
OWN_SHARE: Final = 0.02
# Below it a gain is no reason to change anything.
LEAST_GAIN: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """Hold changes and what they gain.

    Attributes:
        words: The changes, in the configuration's keys where it has some, as they are typed behind it; of a file that it names, as
            what stands there.
        arguments: The same word by word; none where a file has to be changed, which no word behind the configuration does.
        changes: How many settings they change.
        seconds: Of a step then.
        gain: Share of a step's seconds that they save.
        memory_fraction: Share of the fullest GPU's memory that is then taken.
    """

    words: str
    arguments: tuple[str, ...]
    changes: int = 1
    seconds: float
    gain: float
    memory_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Hold changes of a plan that were tried.

    Attributes:
        arguments: What a user types for them.
        over: Shares of memory that are too much, over all moments: 0 where the plan fits as it is to.
    """

    changes: Changes
    arguments: tuple[str, ...]
    plan: Plan
    levers: tuple[int, ...] = ()
    over: float = 0.0


@dataclass(slots=True)
class Trials:
    """Try changes of a plan, as its configuration would have them where it is of one.

    Attributes:
        surely: Whether what fits is to leave as much as a verdict of `fits` does.
    """

    plan: Plan
    facts: Facts
    typed: RetypedConfiguration | None
    surely: bool = False
    left: int = MOST_SINGLE
    seen: set[tuple[str, ...] | Plan] = field(default_factory=set)

    def tried(self, changes: Changes) -> Trial | None:
        """Return what becomes of a plan by some changes; None where nothing does, or what does was tried before."""
        arguments = self._arguments(changes)
        if arguments is None or arguments in self.seen:
            return None
        self.seen.add(arguments)
        plan = self._changed(changes) if self.typed is None else self.typed.sketched(arguments)
        if plan is None or plan == self.plan or plan in self.seen:
            return None
        if plan.job.workload != self.plan.job.workload:
            return None  # a step that does less is no faster one
        self.seen.add(plan)
        if self.typed is None and any(refusals(plan, plan.job, ENGINES)):
            return None
        return Trial(changes=changes, arguments=arguments, plan=plan)

    def weighed(self, changes: Changes, levers: tuple[int, ...]) -> Trial | None:
        """Return the same with what is then too much of memory, as long as there are plans left to look at."""
        trial = self.tried(changes) if self.left else None
        if trial is None:
            return None
        self.left -= 1
        return replace(trial, levers=levers, over=self.overflow(trial.plan))

    def overflow(self, plan: Plan) -> float:
        """Return what is too much of memory in a plan."""
        return overflow(plan, self.facts, surely=self.surely)

    def improvement(
        self, trial: Trial, forecast: Forecast, after: Forecast | None = None
    ) -> Improvement | None:
        """Return what changes gain once they are typed for good; None where they do not do what was meant.

        Args:
            after: The forecast of the trial's plan, where it is known.
        """
        arguments, words, in_files = trial.arguments, trial.arguments, False
        if self.typed is not None:
            settings = self.typed.found.settings
            said = by_words_of_files(self._needed(trial, self.typed), settings)
            if said is None:
                return None
            inside = of_own_files(said, settings)
            in_files = bool(inside)
            arguments = self.typed.arguments(said) or ()
            words = tuple(
                inside[each[0]].words(each[1])
                if each[0] in inside
                else " ".join(self.typed.arguments((each,)) or ())
                for each in said
            )
            found = self.typed.typed(arguments)
            if found is None or not _is_meant(trial.changes, found[0]):
                return None
            if found[0] != trial.plan:
                after = simulate(*found)
        after = after or simulate(trial.plan, self.facts)
        gain = 1 - after.iteration_seconds / forecast.iteration_seconds
        if not after.feasible or (forecast.feasible and gain < LEAST_GAIN):
            return None
        between = " " if self.typed is not None else ", "
        return Improvement(
            words=between.join(words),
            arguments=() if in_files else arguments,
            changes=max(1, len(trial.levers)),
            seconds=after.iteration_seconds,
            gain=gain,
            memory_fraction=max(each.gpu_peak_bytes / each.capacity_bytes for each in after.memory),
        )

    def _needed(self, trial: Trial, typed: RetypedConfiguration) -> tuple[Assignment, ...]:
        """Return what a user assigns for a trial, without values that follow another's anyway."""
        said = assignments(trial.changes, self.plan, typed.found) or ()
        for each in said:
            fewer = tuple(other for other in said if other is not each)
            arguments = typed.arguments(fewer) or ()
            follows = may_follow(each, typed.found)
            if follows and arguments and typed.sketched(arguments) == trial.plan:
                said = fewer
        return said

    def _arguments(self, changes: Changes) -> tuple[str, ...] | None:
        if self.typed is None:
            return tuple(
                f"{name}.{item}={typed_value(value)}"
                for name, fields in changes.items()
                for item, value in fields.items()
            )
        said = assignments(changes, self.plan, self.typed.found)
        return None if said is None else self.typed.arguments(said)

    def _changed(self, changes: Changes) -> Plan | None:
        """Return the plan with other fields, and as many copies as its GPUs then hold."""
        whole: Changes = {}
        for name, fields in changes.items():
            layout = self.plan.tasks[name]
            sizes = [fields.get(size, getattr(layout, size)) for size in ("tp", "pp", "cp")]
            if layout.gpus % math.prod(sizes):
                return None
            whole[name] = fields | {"dp": layout.gpus // math.prod(sizes)}
        return with_fields(self.plan, whole)


def improvements(
    plan: Plan, facts: Facts, forecast: Forecast, typed: RetypedConfiguration | None
) -> tuple[Improvement, ...]:
    """Return the three single changes that gain most, and by which what surely fits still does; else the fewest that make a plan fit.

    Args:
        typed: The configuration that the plan is of. Each change is then typed behind it again, and kept only if
            that does what is said of it.
    """
    if forecast.feasible:
        surely = not overflow(plan, facts, surely=True)
        found = _gaining(Trials(plan, facts, typed, surely), forecast)
    else:
        found = _making_it_fit(plan, facts, forecast, typed)
    # Two changes may be one word of a framework's own file.
    alike = {each.words: each for each in found}
    return tuple(sorted(alike.values(), key=lambda each: each.seconds)[:SHOWN])


def _making_it_fit(
    plan: Plan, facts: Facts, forecast: Forecast, typed: RetypedConfiguration | None
) -> list[Improvement]:
    """Return the fewest changes that make a plan fit: surely, else at all; with states on the host where nothing else does."""
    milder = tuple(lever for lever in smaller(plan, passes_too_full(plan, facts)) if lever)
    harder = tuple(lever for lever in on_host(plan) if lever)
    tried = [milder, (*harder, *milder)] if harder and typed is not None else [milder]
    for levers in tried:
        for surely in (True, False):
            found = _fitting_sets(Trials(plan, facts, typed, surely), levers, forecast)
            if found:
                return found
    return []


def _gaining(trials: Trials, forecast: Forecast) -> list[Improvement]:
    """Return the changes of one setting that make an iteration shorter, those that gain most."""
    candidates = [
        (_least_seconds(trial.plan, trials.facts), trial)
        for trial in islice(_fitting(trials), MOST_TRIED)
    ]
    played: list[tuple[Trial, Forecast]] = []
    slowest = (1 - LEAST_GAIN) * forecast.iteration_seconds
    for least_seconds, trial in sorted(candidates, key=lambda each: each[0]):
        shown = sorted(after.iteration_seconds for _, after in played)[:SHOWN]
        if least_seconds > (min(slowest, shown[-1]) if len(shown) == SHOWN else slowest):
            break
        played.append((trial, simulate(trial.plan, trials.facts)))
    found: list[Improvement] = []
    for trial, after in sorted(played, key=lambda each: each[1].iteration_seconds):
        gains = after.iteration_seconds <= slowest and len(found) < SHOWN
        better = trials.improvement(trial, forecast, after) if gains else None
        found += [] if better is None else [better]
    return found


def _fitting(trials: Trials) -> Iterator[Trial]:
    """Yield the changes of one setting that keep all rules of plans and fit: surely, where the plan does."""
    for changes in faster(trials.plan):
        trial = trials.tried(changes)
        if trial is None or not keeps_rules_and_fits(trial.plan, trials.facts):
            continue
        if not (trials.surely and trials.overflow(trial.plan)):
            yield trial


def _fitting_sets(trials: Trials, levers: Sequence[Lever], forecast: Forecast) -> list[Improvement]:
    """Return the fewest changes that make a plan fit, of one setting, of two or of three."""
    found: list[Improvement] = []
    for fitting in _fewest(trials, levers):
        placed = [
            (simulate(in_whole_batches(each.plan), trials.facts).iteration_seconds, each)
            for each in fitting[:MOST_PLAYED]
        ]
        for _, trial in sorted(placed, key=lambda each: each[0]):
            better = trials.improvement(trial, forecast)
            found += [] if better is None else [better]
            if len(found) == SHOWN:
                break
        if found:
            break
    return found


def _fewest(trials: Trials, levers: Sequence[Lever]) -> Iterator[list[Trial]]:
    """Yield the sets of one change that make a plan fit, those of two, and those of three."""
    singles = [each for at, lever in enumerate(levers) for each in _single(trials, at, lever)]
    yield _mildest(singles)
    now = trials.overflow(trials.plan)
    strongest = {
        trial.levers[0]: trial
        for trial in sorted(singles, key=lambda each: -each.over)
        if trial.over < now
    }
    helpful = sorted(strongest.values(), key=lambda each: each.over)
    kept = helpful
    for _ in range(1, MOST_CHANGES):
        trials.left = MOST_TOGETHER
        sets = [
            trial
            for one in kept[:MOST_KEPT]
            for other in helpful
            if other.levers[0] not in one.levers
            if (trial := _together(trials, one, other)) is not None
        ]
        fitting = [each for each in sets if not each.over]
        yield [_eased(trials, each, levers) for each in fitting[:MOST_PLAYED]]
        kept = sorted(sets, key=lambda each: each.over)


def _single(trials: Trials, at: int, lever: Lever) -> list[Trial]:
    """Return what a setting's values come to, the mildest first: of those that do not fit only the strongest.

    More or less of a share may both help, so that all shares are looked at.
    """
    found: list[Trial] = []
    for changes in reversed(lever):
        trial = trials.weighed(changes, (at,))
        if trial is None:
            continue
        found.insert(0, trial)
        if trial.over and "memory_fraction" not in changes.get(GENERATE, {}):
            break
    return found


def _mildest(singles: Iterable[Trial]) -> list[Trial]:
    """Return of each setting the first value that fits."""
    found: dict[tuple[int, ...], Trial] = {}
    for trial in singles:
        if not trial.over:
            found.setdefault(trial.levers, trial)
    return list(found.values())


def _together(trials: Trials, one: Trial, other: Trial) -> Trial | None:
    """Return two trials' changes together; None where both change one field, or nothing more fits."""
    changes = _merged(one.changes, other.changes)
    if changes is None:
        return None
    return trials.weighed(changes, tuple(sorted((*one.levers, *other.levers))))


def _merged(one: Changes, other: Changes) -> Changes | None:
    merged = {name: dict(fields) for name, fields in one.items()}
    for name, fields in other.items():
        taken = merged.setdefault(name, {})
        if taken.keys() & fields.keys():
            return None
        taken |= fields
    return merged


def _eased(trials: Trials, found: Trial, levers: Sequence[Lever]) -> Trial:
    """Return a set of changes that fits with each setting as little changed as it can be."""
    trials.left = MOST_MILDER
    for at in found.levers:
        chosen = next(each for each in levers[at] if _holds(each, found.changes))
        others = _without(found.changes, chosen)
        for milder in levers[at][: levers[at].index(chosen)]:
            changes = _merged(others, milder)
            trial = None if changes is None else trials.weighed(changes, found.levers)
            if trial is not None and not trial.over:
                found = trial
                break
    return found


def _holds(part: Changes, changes: Changes) -> bool:
    return all(
        name in changes and fields.items() <= changes[name].items() for name, fields in part.items()
    )


def _without(changes: Changes, part: Changes) -> Changes:
    left = {
        name: {item: value for item, value in fields.items() if item not in part.get(name, {})}
        for name, fields in changes.items()
    }
    return {name: fields for name, fields in left.items() if fields}


def _is_meant(changes: Changes, plan: Plan) -> bool:
    """Tell whether a plan has what some changes were to give it."""
    return all(
        getattr(_holder(name, item, plan), item) == value
        for name, fields in changes.items()
        for item, value in fields.items()
    )


def _holder(name: str, item: str, plan: Plan) -> TaskPlan | TrainerOptions:
    """Return what has a field that a change names: a task's layout, or the options of its role's trainer."""
    return plan.job.trainer(name.partition(".")[0]) if item in ON_HOST else plan.tasks[name]


def overflow(plan: Plan, facts: Facts, *, surely: bool) -> float:
    """Return the shares of a device's memory, or else of a host's, that are too much, summed over all moments.

    What takes some off at one of several moments is a step on the way to a plan that fits.

    Args:
        surely: Whether what a verdict of `fits` leaves free is to stay free.
    """
    placed, pools = PlacedPlan(plan, facts), device_pools(plan)
    over = 0.0
    for pool in pools:
        capacity_bytes = facts.device(pool.device).sheet.memory_bytes
        moments, kept = memory_moments(placed, pool), kept_share(placed, pool)
        for during, terms in moments.items():
            share = sure_share(during, set(moments), kept) if surely else 1.0
            over += max(0.0, sum(terms.values()) / capacity_bytes - share)
    if over:
        return over
    memory = (pool_memory(placed, pool) for pool in pools)
    hosts = [each for each in memory if each.host_capacity_bytes]
    most = 1 - UNSURE if surely else 1.0
    return sum(max(0.0, each.host_peak_bytes / each.host_capacity_bytes - most) for each in hosts)


def passes_too_full(plan: Plan, facts: Facts) -> frozenset[str]:
    """Return the moments at which too much lies on a device, and not by what lies there all the time alone.

    Nothing tells the two apart on a pool of one moment, as that of a reference: it is taken for the pass's own.
    """
    placed, full = PlacedPlan(plan, facts), set[str]()
    for pool in device_pools(plan):
        capacity_bytes = facts.device(pool.device).sheet.memory_bytes
        sizes = {name: sum(each.values()) for name, each in memory_moments(placed, pool).items()}
        least = min(sizes.values()) + OWN_SHARE * capacity_bytes if len(sizes) > 1 else 0.0
        full |= {name for name, size in sizes.items() if size > max(least, capacity_bytes)}
    return frozenset(full)


def _least_seconds(plan: Plan, facts: Facts) -> float:
    """Return what an iteration takes at least, where its playing takes long enough to be spared; else 0.

    Streamed iterations take turns: the trainer's pool does its tasks one after the other, and then stands still for
    its share of a transition.
    """
    if not plan.flow.by_sample:
        return 0.0
    pool = plan.tasks[UPDATE].pool
    seconds = 0.0
    for entry in agenda_of(PlacedPlan(plan, facts)):
        if entry.work.key == TRANSITION:
            seconds += entry.cost.total.seconds / plan.sync_every
        elif (
            entry.work.pool == pool
            and entry.work.activity == "task"
            and entry.work.name != GENERATE
        ):
            seconds += entry.cost.total.seconds
    return seconds
