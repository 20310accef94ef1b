"""Order, mode and transition: who gets a pool first, how far generation runs ahead of training, how new weights get there.

The transition brings the actor's weights from where they train to where they generate.
"""

from collections.abc import Collection

from rlplan.plan import FLOWS, Mode, TaskPlan
from rlplan.rules.rule import OrderContext, PlanContext, Problem, listed, rule
from rlplan.transfers import (
    TRANSFERS,
    TransitionName,
    transitions_between_pools,
    transitions_on_a_pool,
)
from rlplan.transports import DEFAULT_TRANSPORT, KNOWN_TRANSPORTS

# How many updates old the generating weights may be, in the modes that say it themselves.
STALENESS = {mode: flow.ahead for mode, flow in FLOWS.items() if flow.ahead is not None}
BESIDE: dict[Mode, str] = {
    "streaming": "hands responses to training while others are generated",
    "one-step-off": "generates the next batch while this one trains",
    "async": "never stops generating",
}


@rule(OrderContext)
def order_is_there(given: OrderContext) -> Problem | None:
    """Say who is first where tasks wait for one pool: the order decides how long an iteration takes."""
    if given.whole_plan is None or given.pool.name in given.whole_plan.order:
        return None
    return Problem("", "is missing", None, f"its tasks: {listed(given.tasks_there)}")


@rule(OrderContext)
def order_names_each_task_once(given: OrderContext) -> Problem | None:
    """Give every task of a pool one place in its order."""
    listed_tasks, tasks_there = given.listed_tasks, given.tasks_there
    if listed_tasks is None or sorted(listed_tasks) == list(tasks_there):
        return None
    words = "must name each task of the pool once"
    return Problem("", words, listed(listed_tasks), listed(tasks_there))


@rule(PlanContext)
def order_is_of_pools(given: PlanContext) -> Problem | None:
    """Order tasks of a pool that there is."""
    known = [str(pool.name) for pool in given.pools]
    for name in given.plan.order:
        if name not in known:
            return Problem(f"order.{name}", "no such pool", None, listed(known))
    return None


@rule(PlanContext)
def generation_ahead_has_its_own_pool(given: PlanContext) -> Problem | None:
    """Generate beside training on GPUs that do not train."""
    mode, home = given.plan.mode, given.train_pool
    if mode is None or home is None or given.generate_pool != home or not FLOWS[mode].overlaps:
        return None
    words = f"{BESIDE[mode]}, but actor.generate shares pool {home} with actor.update"
    return Problem("mode", words, mode, "sync, or a pool of its own for actor.generate")


@rule(PlanContext)
def staleness_is_the_modes(given: PlanContext) -> Problem | None:
    """Say how old weights are as the mode has it."""
    mode, staleness = given.plan.mode, given.plan.staleness
    if mode is None or staleness is None:
        return None
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


@rule(PlanContext)
def staleness_covers_the_sync_interval(given: PlanContext) -> Problem | None:
    """Let weights grow as old as the iterations between two syncs make them."""
    mode, staleness, sync_every = given.plan.mode, given.plan.staleness, given.plan.sync_every
    if mode is None or staleness is None or sync_every is None:
        return None
    if not FLOWS[mode].is_endless:
        if sync_every == 1:
            return None
        return Problem("sync_every", f"is 1 in mode {mode}", sync_every, "1, or mode async")
    if staleness >= sync_every - 1:
        return None
    words = f"lets weights grow {sync_every - 1} update(s) old, and staleness is {staleness:g}"
    return Problem("sync_every", words, sync_every, f"at most {int(staleness) + 1}")


@rule(PlanContext)
def only_async_has_responses_in_flight(given: PlanContext) -> Problem | None:
    """Interrupt responses only where generation does not stop for new weights."""
    mode, in_flight = given.plan.mode, given.plan.in_flight
    if mode is None or in_flight is None or FLOWS[mode].is_endless or in_flight == "drain":
        return None
    words = f"mode {mode} has no response under way when new weights come"
    return Problem("in_flight", words, in_flight, "drain, or mode async")


@rule(PlanContext)
def only_samples_one_by_one_are_lent_for(given: PlanContext) -> Problem | None:
    """Lend GPUs where generation and training go on side by side, sample by sample."""
    mode, lending = given.plan.mode, given.plan.lending
    if mode is None or lending is None or FLOWS[mode].by_sample:
        return None
    modes = listed([name for name, flow in FLOWS.items() if flow.by_sample])
    return Problem("lending", f"is not for mode {mode}", mode, f"modes {modes}, or no lending")


@rule(PlanContext)
def lent_replicas_fill_the_training_pool(given: PlanContext) -> Problem | None:
    """Cut replicas on the training pool so that whole ones fill its GPUs."""
    plan, lending = given.whole_plan, given.plan.lending
    if plan is None or lending is None or "generation" not in lending.to:
        return None
    generate, gpus = plan.tasks["actor.generate"], plan.pool_of("actor.update").gpus
    tp, pp = lending.tp or generate.tp, lending.pp or generate.pp
    if gpus % (tp * pp) == 0:
        return None
    words = (
        f"cuts replicas of tp {tp}, pp {pp}, which do not fill the {gpus} GPUs of the training pool"
    )
    return Problem("lending.tp", words, tp, f"a divisor of {gpus // pp or 1}")


@rule(PlanContext)
def devices_are_lent_to_their_like(given: PlanContext) -> Problem | None:
    """Lend generators' GPUs to a training pool of the same device."""
    plan, lending = given.whole_plan, given.plan.lending
    if plan is None or lending is None or "training" not in lending.to:
        return None
    own, other = plan.pool_of("actor.update").device, plan.pool_of("actor.generate").device
    if own == other:
        return None
    words = f"lends {other} to training on {own}"
    return Problem("lending.to", words, "training", "generation, or pools of one device")


def transitions(
    train: TaskPlan, generate: TaskPlan, named: Collection[TransitionName] = ()
) -> tuple[TransitionName, ...]:
    """Return the transitions that bring one layout of a pool to another, the usual one first.

    Args:
        named: Methods of frameworks that may be taken too.
    """
    return transitions_on_a_pool((train.tp, train.pp), (generate.tp, generate.pp), named)


def transition_for(train: TaskPlan, generate: TaskPlan) -> TransitionName:
    """Return the transition that usually brings one layout of a pool to another."""
    return transitions(train, generate)[0]


@rule(PlanContext)
def two_copies_are_on_two_pools(given: PlanContext) -> Problem | None:
    """Copy weights to GPUs that do not have them, and gather them where they are."""
    transition = given.plan.transition
    if transition is None or given.train_pool is None or given.generate_pool is None:
        return None
    apart, chosen = given.train_pool != given.generate_pool, TRANSFERS.load(transition)
    if chosen.between_pools if apart else chosen.on_one_pool:
        return None
    words = "two copies are for an actor that generates on another pool than it trains on"
    if chosen.method:
        where = "one pool" if chosen.on_one_pool else "two pools"
        words = f"this method brings weights to an engine on {where}"
    found = ((TRANSFERS.load(name), name) for name in TRANSFERS.names_of_files())
    here = tuple(name for each, name in found if each.on_one_pool)
    allowed = transitions_between_pools() if apart else here
    return Problem("transition", words, transition, listed(allowed))


@rule(PlanContext)
def transition_reaches_the_layout(given: PlanContext) -> Problem | None:
    """Form generation's groups inside those of training, or gather the whole model."""
    transition, train, generate = given.plan.transition, given.train_cut, given.generate_cut
    if transition is None or train is None or generate is None:
        return None
    if given.train_pool is None or given.train_pool != given.generate_pool:
        return None
    chosen = TRANSFERS.load(transition)
    if not chosen.on_one_pool or chosen.reaches(train, generate):
        return None
    fits = transitions_on_a_pool(train, generate)
    (tp, pp), (tp_gen, pp_gen) = train, generate
    words = f"cannot bring tp {tp}, pp {pp} to tp {tp_gen}, pp {pp_gen} of generation"
    return Problem("transition", words, transition, fits[0])


@rule(PlanContext)
def transport_serves_the_pools(given: PlanContext) -> Problem | None:
    """Carry weights between the pools that there are."""
    transport = given.plan.transport
    train_pool, generate_pool = given.train_pool, given.generate_pool
    if train_pool is None or generate_pool is None:
        return None
    if train_pool == generate_pool:
        usual = transport == DEFAULT_TRANSPORT
        words = "means nothing where the actor generates on the pool that it trains on"
        return None if usual else Problem("transport", words, transport, DEFAULT_TRANSPORT)
    devices = {pool.name: pool.device for pool in given.pools}
    source, target = devices.get(train_pool), devices.get(generate_pool)
    if source is None or target is None:
        return None
    lack = KNOWN_TRANSPORTS.load(transport).lacks(source, target)
    if lack is None:
        return None
    every = ((name, KNOWN_TRANSPORTS.load(name)) for name in KNOWN_TRANSPORTS.names())
    serving = (name for name, each in every if each.lacks(source, target) is None)
    return Problem("transport", lack, transport, listed(serving))
