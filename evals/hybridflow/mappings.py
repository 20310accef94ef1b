"""Claims of HybridFlow's sections 8.3 to 8.5: placements, transitions, generation, the search."""

from collections.abc import Mapping
from statistics import mean

from rlplan.evals.claims import ALL, NONE, TIE_FRACTION, Bound, Measured, Stated
from rlplan.evals.hybridflow.index import Points, near
from rlplan.evals.hybridflow.points import BEST, GENERATION_TP, HYBRIDFLOW, PLACEMENTS

NODE_TP = 8
HALF_AN_HOUR_SECONDS = 1800
# The published transitions of 7B grow by 1.41 from 8 to 128 GPUs, which the paper calls consistent.
CONSISTENT_GROWTH = 1.5
# The best of the named placements, by figure, panel and GPUs.
BEST_PLACEMENTS: Mapping[tuple[str, str, int], str] = {
    ("Fig 12", "PPO 13B", 16): "colocate",
    ("Fig 12", "PPO 13B", 32): "colocate",
    ("Fig 12", "PPO 13B", 64): "colocate",
    ("Fig 12", "PPO 13B", 96): "split",
    ("Fig 12", "PPO 13B", 128): "standalone",
    ("Fig 12", "PPO 34B", 32): "colocate",
    ("Fig 12", "PPO 34B", 64): "colocate",
    ("Fig 12", "PPO 34B", 96): "split",
    ("Fig 12", "PPO 34B", 128): "split",
    ("Fig 13", "PPO 13B/70B", 64): "colocate",
    ("Fig 13", "PPO 13B/70B", 96): "split",
}
LARGEST_CRITIC = (
    "{actor, reference, reward} {critic}, 64 + 64",
    "{critic} {actor, reference, reward}, 64 + 64",
)
# How much shorter transitions are at most, as a share; and in seconds, with 70B.
MOST_CUT = {"DS-Chat": 0.712, "OpenRLHF": 0.891}
MOST_SECONDS = {"OpenRLHF": 78.2}
# The tensor parallelism that generates fastest, and how much less than training's own it then takes.
BEST_GENERATION = {"7B": (2, 0.603), "13B": (4, 0.364)}


def _placement(place: tuple[str, str, int]) -> Stated[Points]:
    """Return the claim of which named placement is the best somewhere."""
    (figure, panel, gpus), stated = place, BEST_PLACEMENTS[place]

    def measure(index: Points) -> Measured | None:
        values = index.series(figure, panel, gpus)
        named = {name: values[name] for name in PLACEMENTS if name in values}
        if not named:
            return None
        told = ", ".join(f"{name} {value:,.0f}" for name, value in named.items())
        share = named.get(stated, 0.0) / max(named.values())
        return Measured(figures=(share,), evidence=f"tokens/s: {told}")

    return Stated(
        where=f"section 8.3, figure {figure[4:]}",
        text=f"{panel.removeprefix('PPO ')} on {gpus} GPUs: {stated} is the best of the named placements",
        bounds=(Bound(least=1 - TIE_FRACTION),),
        measure=measure,
    )


def _worse_mappings(index: Points) -> Measured:
    """Return at how many points a named placement is faster than the mapping found."""
    worse = []
    for figure, panel, gpus in index.panels("Fig 12", "Fig 13"):
        values = index.series(figure, panel, gpus)
        named = [values[name] for name in PLACEMENTS if name in values]
        if named and values.get(BEST, 0.0) < max(named):
            worse.append(f"{panel} on {gpus}")
    evidence = f"not: {', '.join(worse)}" if worse else "at every point"
    return Measured(figures=(len(worse),), evidence=evidence)


def _largest_critic(index: Points) -> Measured | None:
    """Return whether the largest critic has half of the GPUs for itself, as 1 or 0."""
    best = index.plan("Fig 13", "PPO 13B/70B", BEST, 128)
    if not best:
        return None
    return Measured(figures=(best.startswith(LARGEST_CRITIC),), evidence=f"best: {best}")


def _cuts(index: Points, peer: str) -> list[tuple[float, float]]:
    """Return by how many seconds transitions are shorter than a peer's, and what share of them is left."""
    found = []
    for figure, panel, gpus in index.panels("Fig 14"):
        values = index.series(figure, panel, gpus)
        found.append((values[peer] - values[HYBRIDFLOW], values[HYBRIDFLOW] / values[peer]))
    return found


def _average_cut(index: Points) -> Measured:
    every = [each for peer in MOST_CUT for each in _cuts(index, peer)]
    share, seconds = 1 - mean(each[1] for each in every), mean(each[0] for each in every)
    evidence = f"by {share:.1%} ({seconds:.1f} s) on average"
    return Measured(figures=(share, seconds), evidence=evidence)


def _most_cut(peer: str) -> Stated[Points]:
    """Return the claim of the largest cut beside a peer."""
    stated, stated_seconds = MOST_CUT[peer], MOST_SECONDS.get(peer)

    def measure(index: Points) -> Measured:
        found = _cuts(index, peer)
        most, largest = 1 - min(each[1] for each in found), max(each[0] for each in found)
        figures = (most,) if stated_seconds is None else (most, largest)
        return Measured(figures=figures, evidence=f"up to {most:.1%} ({largest:.1f} s)")

    seconds = "" if stated_seconds is None else f" ({stated_seconds} s, with 70B)"
    bounds = (near(stated),) if stated_seconds is None else (near(stated), near(stated_seconds))
    return Stated(
        where="section 8.4, figure 14",
        text=f"up to {stated:.1%} less than {peer}{seconds}",
        bounds=bounds,
        measure=measure,
    )


def _growth(index: Points) -> Measured:
    """Return how many times as long the longest transition of a model is as its shortest, at most."""
    own: dict[str, list[float]] = {}
    for figure, panel, gpus in index.panels("Fig 14"):
        own.setdefault(panel, []).append(index.series(figure, panel, gpus)[HYBRIDFLOW])
    growth = {panel: max(values) / min(values) for panel, values in own.items()}
    shown = ", ".join(f"{panel} {value:.2f}" for panel, value in growth.items())
    return Measured(figures=(max(growth.values()),), evidence=f"longest over shortest: {shown}")


def _by_tp(values: Mapping[str, float]) -> dict[int, float]:
    """Return the seconds of generation alone, by tensor parallelism."""
    return {tp: values[f"generation, TP {tp}"] for tp in GENERATION_TP}


def _whole(values: Mapping[str, float]) -> dict[int, float]:
    """Return the seconds of generation with the transition to its layout, by tensor parallelism."""
    transition = {tp: values.get(f"transition, TP {tp}", 0.0) for tp in GENERATION_TP}
    return {tp: each + transition[tp] for tp, each in _by_tp(values).items()}


def _best_generation(model: str) -> Stated[Points]:
    """Return the claim of the tensor parallelism that generates fastest, and by how much."""
    best_tp, stated = BEST_GENERATION[model]

    def measure(index: Points) -> Measured:
        values, published = (of("Fig 15", model, 16) for of in (index.series, index.published))
        seconds, found = _by_tp(values), _whole(values)
        cut = 1 - seconds[best_tp] / seconds[NODE_TP]
        told = _shown(found)
        if published:
            told += f"; published: {_shown(_whole(published))}"
        return Measured(
            figures=(found[best_tp] / min(found.values()), cut),
            evidence=f"generation with transition: {told}; TP {best_tp} cuts generation by {cut:.1%}",
        )

    return Stated(
        where="section 8.4, figure 15",
        text=f"{model}: generation TP {best_tp} is best, {stated:.1%} less generation than TP 8",
        bounds=(Bound(most=1 + TIE_FRACTION), near(stated)),
        measure=measure,
    )


def _shown(seconds: Mapping[int, float]) -> str:
    return ", ".join(f"TP {tp} {value:.1f} s" for tp, value in seconds.items())


def _slowest_generation(model: str) -> Stated[Points]:
    """Return the claim that training's own layout generates slowest."""

    def measure(index: Points) -> Measured:
        seconds = _by_tp(index.series("Fig 15", model, 16))
        slowest = max(seconds, key=lambda tp: seconds[tp])
        return Measured(figures=(slowest == NODE_TP,), evidence=_shown(seconds))

    return Stated(
        where="section 8.4, figure 15",
        text=f"{model}: generation in training's layout (TP 8), as NeMo-Aligner does, is slowest",
        bounds=(ALL,),
        measure=measure,
    )


def _search_seconds(index: Points) -> Measured | None:
    found = {
        (panel, gpus): value
        for _, panel, gpus in index.panels("Fig 16")
        for value in index.series("Fig 16", panel, gpus).values()
    }
    if not found:
        return None
    place = max(found, key=lambda each: found[each])
    evidence = (
        f"by the project's own search at most {found[place]:.1f} s ({place[0]} on {place[1]} GPUs)"
    )
    return Measured(figures=(found[place],), evidence=evidence)


CLAIMS: tuple[Stated[Points], ...] = (
    *map(_placement, BEST_PLACEMENTS),
    Stated(
        where="section 8.3, figures 12 and 13",
        text="The mapping found is at least as fast as every named placement",
        bounds=(NONE,),
        measure=_worse_mappings,
    ),
    Stated(
        where="section 8.3, figure 13",
        text="13B/70B on 128 GPUs: actor, reference and reward on 64 GPUs, the critic on 64, is best",
        bounds=(ALL,),
        measure=_largest_critic,
    ),
    Stated(
        where="section 8.4, figure 14",
        text="HybridFlow cuts transition times by 55.2 % (11.7 s) on average",
        bounds=(near(0.552), near(11.7)),
        measure=_average_cut,
    ),
    *map(_most_cut, MOST_CUT),
    Stated(
        where="section 8.4, figure 14",
        text="HybridFlow's transition takes about as long on every cluster",
        bounds=(Bound(most=CONSISTENT_GROWTH),),
        measure=_growth,
    ),
    *(
        claim(model)
        for model in BEST_GENERATION
        for claim in (_best_generation, _slowest_generation)
    ),
    Stated(
        where="section 8.5, figure 16",
        text="The mapping is found within half an hour",
        bounds=(Bound(most=HALF_AN_HOUR_SECONDS),),
        measure=_search_seconds,
    ),
)
