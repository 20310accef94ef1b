"""Claims of HybridFlow's sections 8.3 to 8.5: placements, transitions, generation, the search."""

from collections.abc import Iterator
from statistics import mean

from evals.hybridflow.index import TIE_FRACTION, Points, claim, near
from evals.hybridflow.points import BEST, HYBRIDFLOW, PLACEMENTS
from rlplan.results.reproduced import Claim

NODE_TP = 8
HALF_AN_HOUR_SECONDS = 1800
# The published transitions of 7B grow by 1.41 from 8 to 128 GPUs, which the paper calls consistent.
CONSISTENT_GROWTH = 1.5


def _placement_claims(index: Points) -> Iterator[Claim]:
    wanted = {
        ("Fig 12", "PPO 13B"): dict.fromkeys((16, 32, 64), "colocate")
        | {96: "split", 128: "standalone"},
        ("Fig 12", "PPO 34B"): dict.fromkeys((32, 64), "colocate")
        | dict.fromkeys((96, 128), "split"),
        ("Fig 13", "PPO 13B/70B"): {64: "colocate", 96: "split"},
    }
    for (figure, panel), places in wanted.items():
        for gpus, stated in places.items():
            values = index.series(figure, panel, gpus)
            named = {name: values[name] for name in PLACEMENTS if name in values}
            if not named:
                continue
            best = max(named, key=lambda each: named[each])
            within = stated in named and named[stated] >= (1 - TIE_FRACTION) * named[best]
            told = ", ".join(f"{name} {value:,.0f}" for name, value in named.items())
            yield claim(
                f"section 8.3, figure {figure[4:]}",
                f"{panel.removeprefix('PPO ')} on {gpus} GPUs: {stated} is the best of the named placements",
                within,
                f"tokens/s: {told}",
            )


def _chosen_placement(index: Points) -> Iterator[Claim]:
    worse = []
    for figure, panel, gpus in index.panels("Fig 12", "Fig 13"):
        values = index.series(figure, panel, gpus)
        named = [values[name] for name in PLACEMENTS if name in values]
        if named and values.get(BEST, 0.0) < max(named):
            worse.append(f"{panel} on {gpus}")
    yield claim(
        "section 8.3, figures 12 and 13",
        "The mapping found is at least as fast as every named placement",
        not worse,
        f"not: {', '.join(worse)}" if worse else "at every point",
    )
    best = index.plan("Fig 13", "PPO 13B/70B", BEST, 128)
    if best:
        yield claim(
            "section 8.3, figure 13",
            "13B/70B on 128 GPUs: actor, reference and reward on 64 GPUs, the critic on 64, is best",
            best.startswith(
                (
                    "{actor, reference, reward} {critic}, 64 + 64",
                    "{critic} {actor, reference, reward}, 64 + 64",
                )
            ),
            f"best: {best}",
        )


def _transition_claims(index: Points) -> Iterator[Claim]:
    cuts: dict[str, list[tuple[float, float]]] = {"DS-Chat": [], "OpenRLHF": []}
    own: dict[str, list[float]] = {}
    for figure, panel, gpus in index.panels("Fig 14"):
        values = index.series(figure, panel, gpus)
        for peer, found in cuts.items():
            found.append((values[peer] - values[HYBRIDFLOW], values[HYBRIDFLOW] / values[peer]))
        own.setdefault(panel, []).append(values[HYBRIDFLOW])
    every = [each for found in cuts.values() for each in found]
    share, seconds = 1 - mean(each[1] for each in every), mean(each[0] for each in every)
    yield claim(
        "section 8.4, figure 14",
        "HybridFlow cuts transition times by 55.2 % (11.7 s) on average",
        near(share, 0.552) and near(seconds, 11.7),
        f"by {share:.1%} ({seconds:.1f} s) on average",
    )
    for peer, stated in {"DS-Chat": 0.712, "OpenRLHF": 0.891}.items():
        most = 1 - min(each[1] for each in cuts[peer])
        largest = max(each[0] for each in cuts[peer])
        yield claim(
            "section 8.4, figure 14",
            f"up to {stated:.1%} less than {peer}"
            + (" (78.2 s, with 70B)" if peer == "OpenRLHF" else ""),
            near(most, stated) and (peer != "OpenRLHF" or near(largest, 78.2)),
            f"up to {most:.1%} ({largest:.1f} s)",
        )
    growth = {panel: max(values) / min(values) for panel, values in own.items()}
    yield claim(
        "section 8.4, figure 14",
        "HybridFlow's transition takes about as long on every cluster",
        max(growth.values()) <= CONSISTENT_GROWTH,
        "longest over shortest: "
        + ", ".join(f"{panel} {value:.2f}" for panel, value in growth.items()),
    )


def _generation_claims(index: Points) -> Iterator[Claim]:
    for model, best_tp, stated in (("7B", 2, 0.603), ("13B", 4, 0.364)):
        values = index.series("Fig 15", model, 16)
        seconds = {tp: values[f"generation, TP {tp}"] for tp in (8, 4, 2, 1)}
        whole = {
            tp: value + values.get(f"transition, TP {tp}", 0.0) for tp, value in seconds.items()
        }
        cut = 1 - seconds[best_tp] / seconds[8]
        best = min(whole, key=lambda tp: whole[tp])
        told = ", ".join(f"TP {tp} {value:.1f} s" for tp, value in whole.items())
        published = index.published("Fig 15", model, 16)
        if published:
            sums = {
                tp: published[f"generation, TP {tp}"] + published.get(f"transition, TP {tp}", 0.0)
                for tp in seconds
            }
            told += "; published: " + ", ".join(f"TP {tp} {sums[tp]:.1f} s" for tp in sums)
        yield claim(
            "section 8.4, figure 15",
            f"{model}: generation TP {best_tp} is best, {stated:.1%} less generation than TP 8",
            whole[best_tp] <= (1 + TIE_FRACTION) * whole[best] and near(cut, stated),
            f"generation with transition: {told}; TP {best_tp} cuts generation by {cut:.1%}",
        )
        yield claim(
            "section 8.4, figure 15",
            f"{model}: generation in training's layout (TP 8), as NeMo-Aligner does, is slowest",
            max(seconds, key=lambda tp: seconds[tp]) == NODE_TP,
            ", ".join(f"TP {tp} {value:.1f} s" for tp, value in seconds.items()),
        )


def _search_claims(index: Points) -> Iterator[Claim]:
    found = {
        (panel, gpus): value
        for _, panel, gpus in index.panels("Fig 16")
        for value in index.series("Fig 16", panel, gpus).values()
    }
    if found:
        place = max(found, key=lambda each: found[each])
        yield claim(
            "section 8.5, figure 16",
            "The mapping is found within half an hour",
            max(found.values()) <= HALF_AN_HOUR_SECONDS,
            f"by the project's own search at most {found[place]:.1f} s ({place[0]} on {place[1]} GPUs)",
        )


CLAIMS = (
    _placement_claims,
    _chosen_placement,
    _transition_claims,
    _generation_claims,
    _search_claims,
)
