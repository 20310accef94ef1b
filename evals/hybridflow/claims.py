"""Claims of HybridFlow's section 8: speed-ups and scaling, placements, transitions, generation, the search."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from rlplan.evals.claims import ALL, NONE, TIE_FRACTION, Bound, Measured, Stated
from rlplan.evals.claims import near as bound_near
from rlplan.evals.hybridflow.points import BEST, FIGURES, GENERATION_TP, HYBRIDFLOW, PLACEMENTS
from rlplan.evals.settings.hybridflow_systems import PEERS, system_forecast
from rlplan.results.accuracy import Point

# Within what a forecast bears out a figure that the paper states: what single forecasts are held to.
WITHIN_FRACTION = 0.35


class Points:
    """Find points, and forecasts of the points that have one."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._known = {(each.figure, each.panel, each.series, each.gpus): each for each in points}

    def plan(self, figure: str, panel: str, series: str, gpus: int) -> str:
        """Return a point's plan in words; empty where nothing fits or there is no such point."""
        found = self._known.get((figure, panel, series, gpus))
        return found.plan if found and found.forecast is not None else ""

    def panels(self, *figures: str) -> Iterator[tuple[str, str, int]]:
        """Yield each (figure, panel, GPUs) of some figures once."""
        yield from dict.fromkeys(
            (figure, panel, gpus) for figure, panel, _, gpus in self._known if figure in figures
        )

    def series(self, figure: str, panel: str, gpus: int) -> dict[str, float]:
        """Return the forecasts of every series at a place."""
        points = self._at(figure, panel, gpus)
        return {each.series: each.forecast for each in points if each.forecast is not None}

    def published(self, figure: str, panel: str, gpus: int) -> dict[str, float]:
        """Return the published values of every series at a place."""
        points = self._at(figure, panel, gpus)
        return {each.series: each.published for each in points if each.published is not None}

    def _at(self, figure: str, panel: str, gpus: int) -> Iterator[Point]:
        for (own_figure, own_panel, _, own_gpus), point in self._known.items():
            if (own_figure, own_panel, own_gpus) == (figure, panel, gpus):
                yield point

    def speed_ups(self, figure: str, peer: str) -> dict[tuple[str, int], float]:
        """Return how many times as fast HybridFlow is as a peer, by panel and GPUs."""
        found = {}
        for _, panel, gpus in self.panels(figure):
            values = self.series(figure, panel, gpus)
            if peer in values and HYBRIDFLOW in values:
                found[panel, gpus] = values[HYBRIDFLOW] / values[peer]
        return found


def near(stated: float) -> Bound:
    """Return what a forecast figure must keep to that bears a stated one out."""
    return bound_near(stated, WITHIN_FRACTION)


SMALLEST = 8  # GPUs of the smallest clusters
SHARE_POINTS = 0.1  # within what a forecast share bears out a stated one
GENERATION_SHARE = 0.812
# Stated of PPO: the average and the largest speed-up over each peer.
OVER_PEERS: Mapping[str, tuple[float, float]] = {
    "DS-Chat": (3.67, 7.84), "OpenRLHF": (3.25, 5.93), "NeMo-Aligner": (12.52, 20.57),
}  # fmt: skip
# Stated of 7B on 128 GPUs: the speed-up over OpenRLHF.
ON_MOST_GPUS = {"Fig 9": 1.68, "Fig 10": 1.53, "Fig 11": 1.71}


def _slower(index: Points) -> Measured:
    """Return at how many points another system is faster."""
    slower = []
    for figure, panel, gpus in index.panels(*FIGURES):
        values = index.series(figure, panel, gpus)
        if HYBRIDFLOW in values and max(values, key=lambda each: values[each]) != HYBRIDFLOW:
            slower.append(f"{panel} on {gpus}")
    count = len(list(index.panels(*FIGURES)))
    broken = f"; not: {', '.join(slower)}" if slower else ""
    evidence = f"{count - len(slower)} of {count} points{broken}"
    return Measured(figures=(len(slower),), evidence=evidence)


def _over(peer: str) -> Stated[Points]:
    """Return the claim of the average and the largest speed-up over a peer."""
    average, most = OVER_PEERS[peer]

    def measure(index: Points) -> Measured | None:
        found = index.speed_ups("Fig 9", peer)
        if not found:
            return None
        place, largest = max(found.items(), key=lambda item: item[1])
        own = mean(found.values())
        evidence = (
            f"{own:.2f} times on average, up to {largest:.2f} times ({place[0]} on {place[1]} GPUs)"
        )
        return Measured(figures=(own, largest), evidence=evidence)

    return Stated(
        where="section 8.2, figure 9",
        text=f"PPO is {average:.2f} times as fast as {peer} on average, up to {most:.2f} times",
        bounds=(near(average), near(most)),
        measure=measure,
    )


def _speed_ups(index: Points) -> dict[tuple[str, str, str, int], float]:
    """Return all speed-ups, by figure, peer, panel and GPUs."""
    return {
        (figure, peer, panel, gpus): value
        for figure in FIGURES
        for peer in PEERS
        for (panel, gpus), value in index.speed_ups(figure, peer).items()
    }


def _range(index: Points) -> Measured | None:
    every = _speed_ups(index).values()
    if not every:
        return None
    least, most = min(every), max(every)
    return Measured(figures=(least, most), evidence=f"{least:.2f} to {most:.2f} times")


def _smallest(index: Points) -> Measured | None:
    eight = [value for (*_, gpus), value in _speed_ups(index).items() if gpus == SMALLEST]
    if not eight:
        return None
    return Measured(figures=(min(eight),), evidence=f"at least {min(eight):.2f} times")


def _on_most_gpus(figure: str) -> Stated[Points]:
    stated = ON_MOST_GPUS[figure]

    def measure(index: Points) -> Measured | None:
        found = index.speed_ups(figure, "OpenRLHF").get((f"{FIGURES[figure]} 7B", 128))
        return Measured(figures=(found,), evidence=f"{found:.2f} times") if found else None

    return Stated(
        where="section 8.2, scalability",
        text=f"7B on 128 GPUs, {FIGURES[figure]}: {stated} times as fast as OpenRLHF",
        bounds=(near(stated),),
        measure=measure,
    )


def _scaling(index: Points) -> Measured | None:
    shares = []
    for figure in FIGURES:
        for panel in dict.fromkeys(panel for _, panel, _ in index.panels(figure)):
            sizes = sorted(gpus for _, each, gpus in index.panels(figure) if each == panel)
            first, last = (index.series(figure, panel, sizes[at]).get(HYBRIDFLOW) for at in (0, -1))
            if first and last:
                shares.append(last / first / (sizes[-1] / sizes[0]))
    if not shares:
        return None
    own = mean(shares)
    return Measured(figures=(own,), evidence=f"{own:.1%} over {len(shares)} algorithms and models")


def _generation_share(index: Points) -> Measured | None:
    shares = {}
    for _, panel, gpus in index.panels("Fig 9"):
        found = system_forecast(PEERS["NeMo-Aligner"], "ppo", panel.split()[-1], gpus)
        if found.forecast is not None:
            whole = found.forecast.iteration_seconds
            shares[f"{panel} on {gpus}"] = found.forecast.stage_seconds["generation"] / whole
    if not shares:
        return None
    place = max(shares, key=lambda each: shares[each])
    return Measured(figures=(shares[place],), evidence=f"up to {shares[place]:.1%} ({place} GPUs)")


def _largest_models(index: Points) -> Measured | None:
    """Return whether 70B has the largest speed-up, as 1 or 0, and how large it is on average."""
    by_model: dict[str, list[float]] = {}
    for (_, _, panel, _), value in _speed_ups(index).items():
        by_model.setdefault(panel.split()[-1], []).append(value)
    averages = {model: mean(values) for model, values in by_model.items()}
    if not averages:
        return None
    best = max(averages, key=lambda each: averages[each])
    told = ", ".join(f"{model} {value:.2f}" for model, value in averages.items())
    figures = (best == "70B", averages.get("70B", 0.0))
    return Measured(figures=figures, evidence=f"on average {told} times")


def _order_of_peers(index: Points) -> Measured | None:
    """Return the share of pairs of systems that come in the published order."""
    kept = total = 0
    for figure, panel, gpus in index.panels(*FIGURES):
        values, published = index.series(figure, panel, gpus), index.published(figure, panel, gpus)
        known = [each for each in published if each in values]
        for at, one in enumerate(known):
            for other in known[at + 1 :]:
                total += 1
                kept += (values[one] > values[other]) == (published[one] > published[other])
    if not total:
        return None
    return Measured(figures=(kept / total,), evidence=f"{kept} of {total} pairs")


SPEED_UP_CLAIMS: tuple[Stated[Points], ...] = (
    Stated(
        where="section 8.2, figures 9 to 11",
        text="HybridFlow is the fastest system for every algorithm, model and cluster",
        bounds=(NONE,),
        measure=_slower,
    ),
    *map(_over, OVER_PEERS),
    Stated(
        where="abstract",
        text="HybridFlow is 1.53 to 20.57 times as fast as its peers",
        bounds=(near(1.53), near(20.57)),
        measure=_range,
    ),
    Stated(
        where="section 8.2, scalability",
        text="On 8 GPUs HybridFlow is at least 2.09 times as fast as any peer",
        bounds=(Bound(least=2.09 * (1 - TIE_FRACTION)),),
        measure=_smallest,
    ),
    *map(_on_most_gpus, ON_MOST_GPUS),
    Stated(
        where="section 8.2, scalability",
        text="Strong scaling keeps 66.8 % of the smallest cluster's throughput a GPU, on average",
        bounds=(near(0.668),),
        measure=_scaling,
    ),
    Stated(
        where="section 8.2",
        text="Generation takes up to 81.2 % of NeMo-Aligner's iteration",
        bounds=(
            Bound(least=GENERATION_SHARE - SHARE_POINTS, most=GENERATION_SHARE + SHARE_POINTS),
        ),
        measure=_generation_share,
    ),
    Stated(
        where="section 8.2",
        text="The speed-up over all peers is largest for 70B, 9.64 times on average",
        bounds=(ALL, near(9.64)),
        measure=_largest_models,
    ),
    Stated(
        where="figures 9 to 11, published bars",
        text="Of any two systems at a point, the faster one is the published one",
        bounds=(Bound(least=0.95),),
        measure=_order_of_peers,
    ),
)


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
    *SPEED_UP_CLAIMS,
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
