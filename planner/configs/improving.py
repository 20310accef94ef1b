"""Better settings: plans one change away from a configured one, simulated, in the configuration's own keys."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from planner.answers.explain import keeps_rules_and_fits, with_fields
from planner.configs.importing import Imported
from profiles.catalog import load_engine
from profiles.facts import Facts
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.job import Role
from rlplan.plan import STREAMED_MODES, Plan
from rlplan.results.forecast import Forecast
from simulator.placed.plan import PlacedPlan
from simulator.simulate import simulate
from simulator.timeline.agenda import agenda_of
from simulator.timeline.pool_memory import TRANSITION

SHOWN: Final = 3
# Plans that are simulated: a few tenths of a second together on a laptop.
MOST_TRIED: Final = 10
# Below it a gain is no reason to change anything.
LEAST_GAIN: Final = 0.01
MOST_MEMORY: Final = 0.9
GENERATE, UPDATE = "actor.generate", "actor.update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """Hold a change and what it gains.

    Attributes:
        words: The change, in the configuration's keys where it has some.
        seconds: Of a step then.
        gain: Share of a step's seconds that it saves.
    """

    words: str
    seconds: float
    gain: float


Changes = dict[str, dict[str, Any]]


def improvements(
    plan: Plan, facts: Facts, forecast: Forecast, found: Imported | None
) -> tuple[Improvement, ...]:
    """Return the three changes of one setting that gain most, among those that fit and the framework has keys for.

    Where the plan itself does not fit, every change that fits is a gain: the fastest are named.
    """
    tried: list[Improvement] = []
    candidates = [
        (_least_seconds(changed, facts), changes, changed)
        for changes, changed in islice(_fitting(plan, facts, found), MOST_TRIED)
    ]
    slowest = (1 - LEAST_GAIN) * forecast.iteration_seconds if forecast.feasible else math.inf
    for least_seconds, changes, changed in sorted(candidates, key=lambda each: each[0]):
        shown = sorted(each.seconds for each in tried)[:SHOWN]
        if least_seconds > (min(slowest, shown[-1]) if len(shown) == SHOWN else slowest):
            break
        after = simulate(changed, facts)
        gain = 1 - after.iteration_seconds / forecast.iteration_seconds
        if after.feasible and (gain >= LEAST_GAIN or not forecast.feasible):
            words = ", ".join(_words(changes, found) or ())
            tried.append(Improvement(words=words, seconds=after.iteration_seconds, gain=gain))
    return tuple(sorted(tried, key=lambda each: each.seconds)[:SHOWN])


def _fitting(plan: Plan, facts: Facts, found: Imported | None) -> Iterator[tuple[Changes, Plan]]:
    """Yield the changes that keep all rules of plans and fit, with the plan changed."""
    for changes in (*_of_generation(plan), *_of_training(plan)):
        if not _words(changes, found):
            continue
        changed = with_fields(plan, changes)
        if keeps_rules_and_fits(changed, facts):
            yield changes, changed


def _least_seconds(plan: Plan, facts: Facts) -> float:
    """Return what an iteration takes at least, where its playing takes long enough to be spared; else 0.

    Streamed iterations take turns: the trainer's pool does its tasks one after the other, and then stands still for
    its share of a transition.
    """
    if plan.mode not in STREAMED_MODES:
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


def _of_generation(plan: Plan) -> Iterator[Changes]:
    """Yield changes of one setting of generation, by task and field."""
    generate = plan.tasks[GENERATE]
    if generate.tp > 1 and generate.ep == 1:
        yield {GENERATE: {"tp": generate.tp // 2, "dp": generate.dp * 2}}
    yield {GENERATE: {"max_running": generate.max_running * 4}}
    if generate.memory_fraction < MOST_MEMORY:
        more = min(MOST_MEMORY, round(generate.memory_fraction + 0.2, 2))
        yield {GENERATE: {"memory_fraction": more}}
    if generate.dp % 2 == 0 and generate.ep == 1:
        yield {GENERATE: {"tp": generate.tp * 2, "dp": generate.dp // 2}}


def _of_training(plan: Plan) -> Iterator[Changes]:
    """Yield changes of one setting of the actor's training, by task and field."""
    update, passes = plan.tasks[UPDATE], _passes(plan, "actor")
    others = ("full",) if update.recompute == "none" else ("none", "selective")
    for kind in others:
        if kind in load_engine(update.engine).recompute_modes:
            yield {UPDATE: {"recompute": kind}}
    yield {name: {"offload": not update.offload} for name in passes}
    yield from _batches(plan, passes)
    if update.ep > 1:
        return
    for size in ("pp", "cp", "tp"):
        if getattr(update, size) % 2 == 0:
            halved = {size: getattr(update, size) // 2, "dp": update.dp * 2}
            yield {name: dict(halved) for name in passes}
    if update.dp % 2 == 0:
        yield {name: {"tp": update.tp * 2, "dp": update.dp // 2} for name in passes}


def _batches(plan: Plan, passes: tuple[str, ...]) -> Iterator[Changes]:
    """Yield larger, smaller and packed micro-batches."""
    update, longest = plan.tasks[UPDATE], plan.job.workload.longest_sequence_tokens
    if update.token_budget is None:
        yield {name: {"micro_batch": plan.tasks[name].micro_batch * 2} for name in passes}
        if load_engine(update.engine).padding == "none":
            budget = max(longest, update.micro_batch * longest // 2) * 2
            yield {name: {"micro_batch": 1, "token_budget": budget} for name in passes}
        if update.micro_batch > 1:
            yield {UPDATE: {"micro_batch": update.micro_batch // 2}}
        return
    yield {UPDATE: {"token_budget": update.token_budget * 2}}
    if update.token_budget // 2 >= longest:
        yield {name: {"token_budget": update.token_budget // 2} for name in passes}


def _passes(plan: Plan, role: Role) -> tuple[str, ...]:
    tasks = tasks_of(load_algorithm(plan.job.algorithm), plan.job)
    return tuple(
        task.name for task in tasks if task.stage_kind.engine == "train" and task.role == role
    )


def _words(changes: Changes, found: Imported | None) -> tuple[str, ...] | None:
    """Return a change in the configuration's keys, or in the plan's where it has none; None where none can say it."""
    name = UPDATE if UPDATE in changes else next(iter(changes))
    fields = {field: value for field, value in changes[name].items() if field != "dp"}
    if "token_budget" in fields:
        fields.pop("micro_batch", None)
    said = [
        (f"{name}.{field}={_shown(value)}",)
        if found is None
        else _of_engine(field, value, found)
        if name == GENERATE
        else _of_trainer(field, value, found)
        for field, value in fields.items()
    ]
    return tuple(word for words in said for word in words) if all(said) else None


def _shown(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _of_engine(field: str, value: object, found: Imported) -> tuple[str, ...]:
    """Return a field of generation by the configuration's key, if there is one."""
    settings, run = found.settings, found.run
    setting = {"max_running": "running", "memory_fraction": "memory"}.get(field, field)
    for each in (f"{run.rollout}_{setting}", f"rollout_{setting}", field):
        if each in settings.sheet.settings:
            return (f"{settings.key_of(each)}={_shown(value)}",)
    return ()


def _of_trainer(field: str, value: object, found: Imported) -> tuple[str, ...]:
    """Return a field of the actor's training by the configuration's keys, if there are any."""
    settings, run = found.settings, found.run
    trainer = settings.sheet.trainers[run.trainer]
    if field == "recompute":
        return _of_recomputation(value, found)
    if field == "offload":
        sizes = [each for each in ("param_offload", "optimizer_offload") if each in trainer.sizes]
        return tuple(_keyed(size, value, found) for size in sizes)
    if field == "token_budget" and "packed_tokens" in trainer.sizes:
        field = "packed_tokens"
    if field not in trainer.sizes:
        return ()
    if field == "token_budget" and not trainer.tokens_of_all_ranks and isinstance(value, int):
        value //= run.trainers["actor"].cp
    return (_keyed(field, value, found),)


def _of_recomputation(value: object, found: Imported) -> tuple[str, ...]:
    """Return what is computed again by a key of how finely, or by one of whether at all."""
    settings = found.settings
    trainer = settings.sheet.trainers[found.run.trainer]
    if trainer.recompute and value not in trainer.recompute:
        return ()
    recomputes, finely = value != "none", "granularity" in trainer.sizes
    if finely and (recomputes or "checkpoints" not in trainer.sizes):
        return (_keyed("granularity", value if recomputes else "null", found),)
    if "checkpoints" in trainer.sizes:
        return (_keyed("checkpoints", recomputes, found),)
    if "checkpoints" in settings.sheet.settings:
        return (f"{settings.key_of('checkpoints')}={_shown(recomputes)}",)
    return ()


def _keyed(size: str, value: object, found: Imported) -> str:
    return f"{found.settings.of(found.run.trainer, 'actor').key_of(size)}={_shown(value)}"
