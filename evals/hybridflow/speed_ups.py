"""Claims of HybridFlow's section 8.2: who is how much faster than whom, and how systems scale."""

from collections.abc import Mapping
from statistics import mean

from rlplan.evals.claims import ALL, NONE, TIE_FRACTION, Bound, Measured, Stated
from rlplan.evals.hybridflow.index import Points, near
from rlplan.evals.hybridflow.points import FIGURES, HYBRIDFLOW
from rlplan.evals.settings.hybridflow_systems import PEERS, system_forecast

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


CLAIMS: tuple[Stated[Points], ...] = (
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
