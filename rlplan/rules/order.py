"""Order and mode: who gets a pool first, and how far generation runs ahead of training."""

from collections.abc import Mapping

from rlplan.plan import FLOWS, InFlight, Mode, Plan
from rlplan.rules.rule import Problem, listed, rule
from rlplan.rules.situations import Pool

# How many updates old the generating weights may be, in the modes that say it themselves.
STALENESS = {mode: flow.ahead for mode, flow in FLOWS.items() if flow.ahead is not None}
BESIDE: dict[Mode, str] = {
    "streaming": "hands responses to training while others are generated",
    "one-step-off": "generates the next batch while this one trains",
    "async": "never stops generating",
}


@rule("order")
def order_is_there(whole_plan: Plan, pool: Pool, tasks_there: tuple[str, ...]) -> Problem | None:
    """Say who is first where tasks wait for one pool: the order decides how long an iteration takes."""
    if pool.name in whole_plan.order:
        return None
    return Problem("", "is missing", None, f"its tasks: {listed(tasks_there)}")


@rule("order")
def order_names_each_task_once(
    listed_tasks: tuple[str, ...], tasks_there: tuple[str, ...]
) -> Problem | None:
    """Give every task of a pool one place in its order."""
    if sorted(listed_tasks) == list(tasks_there):
        return None
    words = "must name each task of the pool once"
    return Problem("", words, listed(listed_tasks), listed(tasks_there))


@rule("plan")
def order_is_of_pools(
    order: Mapping[str, tuple[str, ...]], pools: tuple[Pool, ...]
) -> Problem | None:
    """Order tasks of a pool that there is."""
    known = [str(pool.name) for pool in pools]
    for name in order:
        if name not in known:
            return Problem(f"order.{name}", "no such pool", None, listed(known))
    return None


@rule("plan")
def generation_ahead_has_its_own_pool(
    mode: Mode, generate_pool: str, train_pool: str
) -> Problem | None:
    """Generate beside training on GPUs that do not train."""
    if not FLOWS[mode].overlaps or generate_pool != train_pool:
        return None
    words = f"{BESIDE[mode]}, but actor.generate shares pool {train_pool} with actor.update"
    return Problem("mode", words, mode, "sync, or a pool of its own for actor.generate")


@rule("plan")
def staleness_is_the_modes(mode: Mode, staleness: float) -> Problem | None:
    """Say how old weights are as the mode has it."""
    if FLOWS[mode].is_endless:
        if staleness > 0:
            return None
        return Problem(
            "staleness", "must be above 0 in mode async", staleness, "1, or mode streaming"
        )
    if STALENESS[mode] == staleness:
        return None
    words = f"must be {STALENESS[mode]} in mode {mode}"
    return Problem("staleness", words, staleness, str(STALENESS[mode]))


@rule("plan")
def staleness_covers_the_sync_interval(
    mode: Mode, staleness: float, sync_every: int
) -> Problem | None:
    """Let weights grow as old as the iterations between two syncs make them."""
    if not FLOWS[mode].is_endless:
        if sync_every == 1:
            return None
        return Problem("sync_every", f"is 1 in mode {mode}", sync_every, "1, or mode async")
    if staleness >= sync_every - 1:
        return None
    words = f"lets weights grow {sync_every - 1} update(s) old, and staleness is {staleness:g}"
    return Problem("sync_every", words, sync_every, f"at most {int(staleness) + 1}")


@rule("plan")
def only_async_has_responses_in_flight(mode: Mode, in_flight: InFlight) -> Problem | None:
    """Interrupt responses only where generation does not stop for new weights."""
    if FLOWS[mode].is_endless or in_flight == "drain":
        return None
    words = f"mode {mode} has no response under way when new weights come"
    return Problem("in_flight", words, in_flight, "drain, or mode async")
