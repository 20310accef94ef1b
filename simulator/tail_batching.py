"""Tail batching: rounds that drop what is not done soon, and a round of what was put off every so often.

Short rounds begin more prompts and samples than they learn from and end when enough are done. The prompts that
were not are begun again in long rounds, which wait for all (Gao et al. 2025, RollPacker, arXiv:2509.21009,
section 4).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Forecast, TaskForecast
from rlplan.simulator.generation.over_provisioning import put_off
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.agenda import enough_learnt
from rlplan.simulator.timeline.expenses import goodput_forecast
from rlplan.trace import IterationSpan, Span

AnySpan = TypeVar("AnySpan", Span, IterationSpan)


def simulate_rounds(plan: Plan, facts: Facts) -> Forecast:
    """Return the forecast of a synchronous plan whose dropped prompts are learnt from in rounds of their own.

    Each short round puts (over_provisioning - 1) of a batch off, so that 1 / (over_provisioning - 1) of them fill a
    long round. Its figures are means over both, weighed so; its trace has short rounds and the long one behind
    them. A prompt's responses are taken to be as long when they are generated again: what makes them long is the
    prompt.

    Args:
        plan: Whose iterations follow each other, with `workload.over_provisioning` above 1, which short rounds have.

    Raises:
        FileError: The plan breaks a rule, or asks for what is not simulated.
        MissingFactError: A cost is not known.
    """
    work = plan.job.workload
    assert not plan.flow.overlaps, "rounds follow each other"
    assert work.over_provisioning > 1, (
        "what is put off is what short rounds have begun beyond a batch"
    )
    found = enough_learnt(PlacedPlan(plan, facts))
    shorts = 1 / (work.over_provisioning - 1)
    short = simulate(plan, facts, iterations=max(1, round(shorts)))
    late = replace(plan.job, workload=put_off(work, found))
    long = simulate(replace(plan, job=late), facts)
    return _mean(plan, (short, long), (shorts / (shorts + 1), 1 / (shorts + 1)))


def _mean(plan: Plan, rounds: tuple[Forecast, Forecast], shares: tuple[float, float]) -> Forecast:
    """Return the forecast whose figures are the weighed means of those of short and long rounds."""
    short, long = rounds
    seconds = _weighed([each.iteration_seconds for each in rounds], shares)
    tokens = _weighed([each.tokens_per_second * each.iteration_seconds for each in rounds], shares)
    spans, iterations = _one_after_another(short, long)
    fastest, slowest = zip(*(each.iteration_seconds_interval for each in rounds), strict=True)
    words = (
        f"rounds: figures are means of {shares[0]:.0%} short rounds of {short.iteration_seconds:.4g} s and"
        f" {shares[1]:.0%} long ones of {long.iteration_seconds:.4g} s, which learn from the prompts that short ones"
        " put off"
    )
    return replace(
        short,
        iteration_seconds=seconds,
        iteration_seconds_interval=(_weighed(fastest, shares), _weighed(slowest, shares)),
        tokens_per_second=tokens / seconds,
        stage_seconds=_by_key([each.stage_seconds for each in rounds], shares),
        idle_seconds=_by_key([each.idle_seconds for each in rounds], shares),
        tasks=spans,
        iterations=iterations,
        costs=_costs(rounds, shares),
        memory=tuple(
            max(pools, key=lambda each: each.gpu_peak_bytes)
            for pools in zip(short.memory, long.memory, strict=True)
        ),
        feasible=all(each.feasible for each in rounds),
        infeasible_reasons=_all_of(each.infeasible_reasons for each in rounds),
        cost_usd=_weighed([each.cost_usd for each in rounds], shares),
        energy_joules=_weighed([each.energy_joules for each in rounds], shares),
        goodput=goodput_forecast(plan, seconds),
        warnings=(words, *_all_of(each.warnings for each in rounds)),
        assumptions=_all_of(each.assumptions for each in rounds),
    )


def _weighed(values: Sequence[float], shares: Sequence[float]) -> float:
    return sum(value * share for value, share in zip(values, shares, strict=True))


def _by_key(
    parts: Sequence[Mapping[str, float]], shares: Sequence[float]
) -> FrozenDict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return FrozenDict(
        {name: _weighed([part.get(name, 0.0) for part in parts], shares) for name in names}
    )


def _all_of(parts: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for part in parts for each in part))


def _costs(
    rounds: tuple[Forecast, Forecast], shares: tuple[float, float]
) -> tuple[TaskForecast, ...]:
    short, long = rounds
    others = {(each.name, each.pool): each for each in long.costs}
    found = []
    for each in short.costs:
        both = (each, others[each.name, each.pool])
        fastest, slowest = zip(*(task.interval_seconds for task in both), strict=True)
        found.append(
            replace(
                each,
                seconds=_weighed([task.seconds for task in both], shares),
                interval_seconds=(_weighed(fastest, shares), _weighed(slowest, shares)),
                outside_range=any(task.outside_range for task in both),
                parts=_by_key([task.parts for task in both], shares),
            )
        )
    return tuple(found)


def _one_after_another(
    short: Forecast, long: Forecast
) -> tuple[tuple[Span, ...], tuple[IterationSpan, ...]]:
    """Return the spans of short rounds, and behind them those of a long one."""
    later = partial(_later, count=len(short.iterations), seconds=short.iterations[-1].end_seconds)
    return (
        (*short.tasks, *map(later, long.tasks)),
        (*short.iterations, *map(later, long.iterations)),
    )


def _later(span: AnySpan, count: int, seconds: float) -> AnySpan:
    return replace(
        span,
        iteration=span.iteration + count,
        start_seconds=span.start_seconds + seconds,
        end_seconds=span.end_seconds + seconds,
    )
