"""The transition: it brings the actor's weights from where they train to where they generate."""

from collections.abc import Collection

from rlplan.plan import TaskPlan
from rlplan.rules.contexts import PlanContext
from rlplan.rules.rule import Problem, listed, rule
from rlplan.transfers import (
    TRANSFERS,
    TransitionName,
    transitions_between_pools,
    transitions_on_a_pool,
)
from rlplan.transports import DEFAULT_TRANSPORT, KNOWN_TRANSPORTS


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
