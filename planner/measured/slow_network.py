"""Find the network between nodes with which all stages of training take what they took."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from rlplan.plan import Plan
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Forecast
from rlplan.simulator.simulate import simulate

# Stages whose exchanges cross nodes where a model is spread over several.
STAGES = ("update_actor", "update_critic", "old_log_prob", "reference", "values")
# A single stage may be slow for many reasons, two by the same rate hardly.
LEAST_STAGES = 2
# Times its forecast that a stage took: less lies within what stages are known to (25 to 28 %, one sigma).
LEAST_TIMES = 1.5
# How near all stages are by one rate: as near as other causes explain a stage.
NEAR_FRACTION = 0.25
# A rate at which exchanges decide: a sixty-fourth of 3,200 Gbit/s is a card of 50.
SLOW_SHARE = 1 / 64
CORRECTIONS = 2

SecondsOf = Callable[[str, Forecast], float]


def slow_network_gbps(
    plan: Plan,
    facts: Facts,
    forecast: Forecast,
    measured_seconds: Mapping[str, float],
    seconds_of: SecondsOf,
) -> float | None:
    """Return the network of a node, in Gbit/s, by which training took what was measured; None where none explains it.

    All stages that a slow network makes longer, two or more, have to be slow, and one rate has to bring all of them near to what
    they took: an update moves several times the bytes of a pass for log-probabilities, in other numbers of micro-batches, so that
    one cause hardly looks like another.

    Args:
        forecast: With the network that the job has.
        measured_seconds: By stage.
        seconds_of: Returns what a forecast has of a stage.
    """
    now = {
        name: seconds_of(name, forecast)
        for name in STAGES
        if measured_seconds.get(name, 0.0) > 0 and seconds_of(name, forecast) > 0
    }
    rate = _network_gbps(plan)
    is_slow = {name for name in now if measured_seconds[name] >= LEAST_TIMES * now[name]}
    if rate is None or not is_slow:
        return None
    slow = _seconds_at(plan, facts, rate * SLOW_SHARE, tuple(now), seconds_of)
    crosses = {name for name in now if slow[name] >= LEAST_TIMES * now[name]}
    if crosses != is_slow or len(crosses) < LEAST_STAGES:
        return None
    now = {name: seconds for name, seconds in now.items() if name in crosses}
    measured = {name: measured_seconds[name] for name in now}
    known = {rate: sum(now.values()), rate * SLOW_SHARE: sum(slow[name] for name in now)}
    for _ in range(CORRECTIONS):
        found = _rate_of(known, sum(measured.values()))
        if found is None:
            return None
        seconds = _seconds_at(plan, facts, found, tuple(now), seconds_of)
        known[found] = sum(seconds.values())
        if all(abs(seconds[name] / measured[name] - 1) <= NEAR_FRACTION for name in now):
            return found
    return None


def _rate_of(known: Mapping[float, float], measured_seconds: float) -> float | None:
    """Return the rate at which seconds are those measured: they grow by the inverse rate where exchanges decide.

    Args:
        known: Seconds at two rates or more; the two whose seconds are nearest to those measured decide.
    """
    one, other = sorted(known, key=lambda each: abs(known[each] - measured_seconds))[:2]
    inverse, more = 1 / other - 1 / one, known[other] - known[one]
    if more * inverse <= 0:
        return None  # a slower network changes nothing
    at = 1 / one + (measured_seconds - known[one]) / (more / inverse)
    return 1 / at if at > 0 else None


def _seconds_at(
    plan: Plan, facts: Facts, gbps: float, stages: tuple[str, ...], seconds_of: SecondsOf
) -> dict[str, float]:
    groups = tuple(replace(each, inter_node_gbps=gbps) for each in plan.job.cluster)
    forecast = simulate(replace(plan, job=replace(plan.job, cluster=groups)), facts)
    return {name: seconds_of(name, forecast) for name in stages}


def _network_gbps(plan: Plan) -> float | None:
    """Return the network of a node that several nodes have in common; None for one node."""
    rates = {each.inter_node_gbps for each in plan.job.cluster}
    if len(rates) > 1 or all(each.nodes == 1 for each in plan.job.cluster):
        return None
    return rates.pop()
