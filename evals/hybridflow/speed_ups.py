"""Claims of HybridFlow's section 8.2: who is how much faster than whom, and how systems scale."""

from collections.abc import Iterator
from statistics import mean

from evals.hybridflow.index import TIE_FRACTION, Points, claim, near
from evals.hybridflow.points import FIGURES, HYBRIDFLOW
from evals.settings.hybridflow_systems import PEERS, system_forecast
from rlplan.results.reproduced import Claim

SMALLEST = 8  # GPUs of the smallest clusters
SHARE_POINTS = 0.1  # within what a forecast share bears out a stated one


def _fastest_everywhere(index: Points) -> Iterator[Claim]:
    slower = []
    for figure, panel, gpus in index.panels(*FIGURES):
        values = index.series(figure, panel, gpus)
        if HYBRIDFLOW in values and max(values, key=lambda each: values[each]) != HYBRIDFLOW:
            slower.append(f"{panel} on {gpus}")
    count = len(list(index.panels(*FIGURES)))
    yield claim(
        "section 8.2, figures 9 to 11",
        "HybridFlow is the fastest system for every algorithm, model and cluster",
        not slower,
        f"{count - len(slower)} of {count} points" + (f"; not: {', '.join(slower)}" * bool(slower)),
    )


def _average_speed_ups(index: Points) -> Iterator[Claim]:
    stated = {"DS-Chat": (3.67, 7.84), "OpenRLHF": (3.25, 5.93), "NeMo-Aligner": (12.52, 20.57)}
    for peer, (average, most) in stated.items():
        found = index.speed_ups("Fig 9", peer)
        if not found:
            continue
        place, largest = max(found.items(), key=lambda item: item[1])
        own = mean(found.values())
        yield claim(
            "section 8.2, figure 9",
            f"PPO is {average:.2f} times as fast as {peer} on average, up to {most:.2f} times",
            near(own, average) and near(largest, most),
            f"{own:.2f} times on average, up to {largest:.2f} times ({place[0]} on {place[1]} GPUs)",
        )


def _range_of_speed_ups(index: Points) -> Iterator[Claim]:
    every = [
        value for figure in FIGURES for peer in PEERS
        for value in index.speed_ups(figure, peer).values()
    ]  # fmt: skip
    if every:
        yield claim(
            "abstract",
            "HybridFlow is 1.53 to 20.57 times as fast as its peers",
            near(min(every), 1.53) and near(max(every), 20.57),
            f"{min(every):.2f} to {max(every):.2f} times",
        )


def _smallest_and_largest(index: Points) -> Iterator[Claim]:
    eight = [
        value for figure in FIGURES for peer in PEERS
        for (_, gpus), value in index.speed_ups(figure, peer).items() if gpus == SMALLEST
    ]  # fmt: skip
    if eight:
        yield claim(
            "section 8.2, scalability",
            "On 8 GPUs HybridFlow is at least 2.09 times as fast as any peer",
            min(eight) >= 2.09 * (1 - TIE_FRACTION),
            f"at least {min(eight):.2f} times",
        )
    for figure, stated in {"Fig 9": 1.68, "Fig 10": 1.53, "Fig 11": 1.71}.items():
        found = index.speed_ups(figure, "OpenRLHF").get((f"{FIGURES[figure]} 7B", 128))
        if found:
            yield claim(
                "section 8.2, scalability",
                f"7B on 128 GPUs, {FIGURES[figure]}: {stated} times as fast as OpenRLHF",
                near(found, stated),
                f"{found:.2f} times",
            )


def _scaling(index: Points) -> Iterator[Claim]:
    shares = []
    for figure in FIGURES:
        for panel in dict.fromkeys(panel for _, panel, _ in index.panels(figure)):
            sizes = sorted(gpus for _, each, gpus in index.panels(figure) if each == panel)
            first, last = (index.series(figure, panel, sizes[at]).get(HYBRIDFLOW) for at in (0, -1))
            if first and last:
                shares.append(last / first / (sizes[-1] / sizes[0]))
    if shares:
        yield claim(
            "section 8.2, scalability",
            "Strong scaling keeps 66.8 % of the smallest cluster's throughput a GPU, on average",
            near(mean(shares), 0.668),
            f"{mean(shares):.1%} over {len(shares)} algorithms and models",
        )


def _generation_share(index: Points) -> Iterator[Claim]:
    shares = {}
    for _, panel, gpus in index.panels("Fig 9"):
        found = system_forecast(PEERS["NeMo-Aligner"], "ppo", panel.split()[-1], gpus)
        if found.forecast is not None:
            whole = found.forecast.iteration_seconds
            shares[f"{panel} on {gpus}"] = found.forecast.stage_seconds["generation"] / whole
    if shares:
        place = max(shares, key=lambda each: shares[each])
        yield claim(
            "section 8.2",
            "Generation takes up to 81.2 % of NeMo-Aligner's iteration",
            abs(shares[place] - 0.812) <= SHARE_POINTS,
            f"up to {shares[place]:.1%} ({place} GPUs)",
        )


def _largest_models(index: Points) -> Iterator[Claim]:
    by_model: dict[str, list[float]] = {}
    for figure in FIGURES:
        for peer in PEERS:
            for (panel, _), value in index.speed_ups(figure, peer).items():
                by_model.setdefault(panel.split()[-1], []).append(value)
    averages = {model: mean(values) for model, values in by_model.items()}
    if averages:
        best = max(averages, key=lambda each: averages[each])
        told = ", ".join(f"{model} {value:.2f}" for model, value in averages.items())
        yield claim(
            "section 8.2",
            "The speed-up over all peers is largest for 70B, 9.64 times on average",
            best == "70B" and near(averages["70B"], 9.64),
            f"on average {told} times",
        )


def _order_of_peers(index: Points) -> Iterator[Claim]:
    kept = total = 0
    for figure, panel, gpus in index.panels(*FIGURES):
        values, published = index.series(figure, panel, gpus), index.published(figure, panel, gpus)
        known = [each for each in published if each in values]
        for at, one in enumerate(known):
            for other in known[at + 1 :]:
                total += 1
                kept += (values[one] > values[other]) == (published[one] > published[other])
    if total:
        yield claim(
            "figures 9 to 11, published bars",
            "Of any two systems at a point, the faster one is the published one",
            kept >= 0.95 * total,
            f"{kept} of {total} pairs",
        )


CLAIMS = (
    _fastest_everywhere,
    _average_speed_ups,
    _range_of_speed_ups,
    _smallest_and_largest,
    _scaling,
    _generation_share,
    _largest_models,
    _order_of_peers,
)
