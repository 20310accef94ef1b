"""Plans of one run: the same job in another layout, and what differs between two of them."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

from rlplan.files.writing import plain
from rlplan.plan import Plan
from rlplan.planner.measured.advising import OF_HOW, does_the_same
from rlplan.results.advice import KeyChange

# Of a plan, all but the job and who made it.
LAYOUT = tuple(each.name for each in fields(Plan) if each.name not in {"version", "job", "made_by"})
# What a key says that a plan does not have.
NOTHING = "none"


def in_layout_of(plan: Plan, other: Plan) -> Plan:
    """Return a plan's job, its lengths and data included, in another plan's layout."""
    how = {name: getattr(other.job, name) for name in OF_HOW}
    layout = {name: getattr(other, name) for name in LAYOUT}
    return replace(plan, job=replace(plan.job, **how), made_by=other.made_by, **layout)


def same_layout(plan: Plan, other: Plan) -> bool:
    """Tell whether two plans of a job are carried out alike."""
    return all(getattr(plan, name) == getattr(other, name) for name in LAYOUT)


def most_staleness(plan: Plan) -> float:
    """Return how many updates old weights may be in a run that began with a plan: as its job says, else as the plan does."""
    limit = plan.job.specs.staleness
    return plan.staleness if limit is None else limit


def may_follow(plan: Plan, now: Plan, staleness: float) -> bool:
    """Tell whether a run by one plan may go on with another: the same work, every prompt once, weights no older than allowed.

    An endless stream learns from prompts in the order in which they end: whole batches, and streams of them, go by their
    order, and would begin some again. So do whole batches of which the longest responses are dropped.

    Args:
        staleness: Most updates that weights may lack.
    """
    alike = replace(plan, mode=now.mode, staleness=now.staleness)
    if not does_the_same(alike, now) or plan.staleness > staleness:
        return False
    if now.flow.is_endless:
        return plan.flow.is_endless
    return plan.flow.by_sample == now.flow.by_sample or not now.job.workload.drops_responses


def plan_changes(before: Plan, after: Plan) -> tuple[KeyChange, ...]:
    """Return the keys of a plan's file in which two plans of a job differ."""
    first, second = (dict(_keys(each)) for each in (before, after))
    return tuple(
        KeyChange(key=key, before=first.get(key), after=second.get(key, NOTHING))
        for key in dict.fromkeys((*first, *second))
        if first.get(key) != second.get(key)
    )


def _keys(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the layout of a plan, a key of its file each."""
    for name in LAYOUT:
        held = getattr(plan, name)
        if name == "pools":
            for pool in held:
                roles = ", ".join(plan.shown_roles(pool))
                yield f"pools.{pool.name}", f"{pool.gpus} x {pool.device}: {roles}"
        elif isinstance(held, Mapping):
            for key, value in held.items():
                yield from _spread(f"{name}.{key}", plain(value))
        else:
            yield name, str(held)


def _spread(key: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield f"{key}.{name}", str(inner)
    elif isinstance(value, (list, tuple)):
        yield key, ", ".join(map(str, value))
    else:
        yield key, str(value)
