"""Order and mode: who gets a pool first, and how far generation runs ahead of training."""

from collections.abc import Mapping

from rlplan.plan import Mode, Plan
from rlplan.rules.rule import Problem, listed, rule
from rlplan.rules.situations import Pool

# How many updates old the generating weights are, in each mode that there is.
STALENESS: dict[Mode, int] = {"sync": 0, "one-step-off": 1}


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
def mode_is_known(mode: Mode) -> Problem | None:
    """Overlap iterations in a way whose staleness is known."""
    if mode in STALENESS:
        return None
    return Problem("mode", "is not simulated or executed yet", mode, listed(STALENESS))


@rule("plan")
def generation_ahead_has_its_own_pool(
    mode: Mode, generate_pool: str, train_pool: str
) -> Problem | None:
    """Generate ahead on GPUs that do not train meanwhile."""
    if STALENESS.get(mode, 0) == 0 or generate_pool != train_pool:
        return None
    words = (
        f"generates the next batch while this one trains, but actor.generate shares pool "
        f"{train_pool} with actor.update"
    )
    return Problem("mode", words, mode, "sync, or a pool of its own for actor.generate")


@rule("plan")
def staleness_is_the_modes(mode: Mode, staleness: int) -> Problem | None:
    """Say how old weights are as the mode has it."""
    if STALENESS.get(mode, staleness) == staleness:
        return None
    words = f"must be {STALENESS[mode]} in mode {mode}"
    return Problem("staleness", words, staleness, str(STALENESS[mode]))


RULES = (
    order_is_there,
    order_names_each_task_once,
    order_is_of_pools,
    mode_is_known,
    generation_ahead_has_its_own_pool,
    staleness_is_the_modes,
)
