"""Every point of HybridFlow's figures 9 to 16 and table 2 (Sheng et al. 2025), as work to be done."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from rlplan.evals.reading import HELD
from rlplan.evals.settings.hybridflow_jobs import MODELS, PROMPTS, TOKENS
from rlplan.evals.settings.hybridflow_systems import (
    OURS,
    PEERS,
    placed_forecast,
    searched,
    system_forecast,
)
from rlplan.evals.tables.hybridflow_transition_generation_search import (
    SIZES,
    generation_seconds,
    transition_row,
    transition_seconds,
)
from rlplan.models import PRECISIONS
from rlplan.parts import num_parameters
from rlplan.plan import Plan
from rlplan.profiles.catalog import load_model
from rlplan.results.accuracy import Point, SystemForecast
from rlplan.transfers import TransitionName, TransitionShape, transition_volume

HYBRIDFLOW = "HybridFlow"
FIGURES = {"Fig 9": "PPO", "Fig 10": "ReMax", "Fig 11": "Safe-RLHF"}
GPUS = {"7B": (8, 16, 32, 64, 128), "13B": (8, 16, 32, 64, 128), "34B": (32, 64, 128),
        "70B": (64, 128)}  # fmt: skip
PLACED: dict[str, dict[str, tuple[int, ...]]] = {"Fig 12": {"13B": (16, 32, 64, 96, 128), "34B": (32, 64, 96, 128)},
          "Fig 13": {"13B/70B": (64, 96, 128)}}  # fmt: skip
PLACEMENTS = ("colocate", "split", "standalone")
# TP and PP of training and of generation in figure 14. Those of 34B and 70B are not published: taken are the
# tensor parallelism of a node, pipelines that hold the states, and generation without a pipeline.
LAYOUTS = {"7B": (8, 1, 2, 1), "13B": (8, 1, 4, 1), "34B": (8, 2, 8, 1), "70B": (8, 4, 8, 1)}
TRANSITION_GPUS = {"7B": (8, 16, 32, 64, 128), "13B": (16, 32, 64, 128), "34B": (32, 64, 128),
                   "70B": (64, 128)}  # fmt: skip
ENGINES: dict[str, TransitionName] = {
    "OpenRLHF": "two-copies", "DS-Chat": "all-gather", "HybridFlow-V": "hybridflow-v", HYBRIDFLOW: "hybridflow",
}  # fmt: skip
GENERATION_TP = (8, 4, 2, 1)
SEARCHES = (("7B", 8), ("7B", 16), ("13B", 24), ("13B", 32), ("34B", 48), ("34B", 64), ("70B", 96),
            ("70B", 128))  # fmt: skip
TABLE_2 = {name: ENGINES[name] for name in ("DS-Chat", "HybridFlow-V", HYBRIDFLOW)}
BEST = "best of all placements"


@dataclass(frozen=True)
class Unfinished:
    """Hold a point that is not forecast yet."""

    point: Point
    finish: Callable[[Point], Point]

    def finished(self) -> Point:
        """Return the point with its forecast, and the published value where one is held."""
        done = self.finish(self.point)
        key = (done.figure, done.panel, done.series, done.gpus)
        return replace(done, published=_published().get(key))


def unfinished_points() -> Iterator[Unfinished]:
    """Yield every point, figure by figure."""
    yield from _throughputs()
    yield from _placements()
    yield from _transitions()
    yield from _generations()
    yield from _searches()
    yield from _volumes()


def _throughputs() -> Iterator[Unfinished]:
    for figure, algorithm in FIGURES.items():
        # ReMax is not among NeMo-Aligner's algorithms (Sheng et al. 2025, section 8.1).
        peers = [each for each in PEERS if algorithm != "ReMax" or each != "NeMo-Aligner"]
        for model, sizes in GPUS.items():
            for gpus in sizes:
                for series in (*peers, HYBRIDFLOW):
                    yield _throughput(figure, algorithm, model, gpus, series)


def _throughput(figure: str, algorithm: str, model: str, gpus: int, series: str) -> Unfinished:
    system = PEERS.get(series, OURS)
    point = Point(
        figure=figure, panel=f"{algorithm} {model}", series=series, gpus=gpus,
        quantity="tokens_per_second",
    )  # fmt: skip
    return Unfinished(
        point, lambda each: _with_system(each, system_forecast(system, algorithm.lower(), model, gpus))
    )  # fmt: skip


def _placements() -> Iterator[Unfinished]:
    for figure, models in PLACED.items():
        for model, sizes in models.items():
            for gpus in sizes:
                for series in (*PLACEMENTS, BEST):
                    yield _placement(figure, model, gpus, series)


def _placement(figure: str, model: str, gpus: int, series: str) -> Unfinished:
    point = Point(
        figure=figure, panel=f"PPO {model}", series=series, gpus=gpus, quantity="tokens_per_second"
    )

    def finish(each: Point) -> Point:
        if series == BEST:
            return _with_system(each, system_forecast(OURS, "ppo", model, gpus))
        return _with_system(each, placed_forecast(series, "ppo", model, gpus))

    return Unfinished(point, finish)


def _with_system(point: Point, found: SystemForecast) -> Point:
    """Return a point with a forecast's throughput, padding counted as the paper counts it."""
    if found.plan is None or found.seconds is None:
        return replace(point, reason=found.reason or "nothing fits")
    rate = PROMPTS * 2 * TOKENS / found.seconds
    return replace(point, forecast=rate, plan=plan_words(found.plan))


def plan_words(plan: Plan) -> str:
    """Return a plan's placement, GPUs and the actor's layouts, such as `{actor} {critic}, 8 + 8, ...`."""
    sizes = " + ".join(str(pool.gpus) for pool in plan.pools if not pool.is_host)
    train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    return (
        f"{plan.placement}, {sizes} GPUs; actor trains TP {train.tp} PP {train.pp} DP {train.dp}, "
        f"generates TP {generate.tp} DP {generate.dp}"
    )


def _transitions() -> Iterator[Unfinished]:
    for model, sizes in TRANSITION_GPUS.items():
        for gpus in sizes:
            for engine, transition in ENGINES.items():
                point = Point(
                    figure="Fig 14", panel=model, series=engine, gpus=gpus, quantity="seconds"
                )
                yield _transition(point, transition, LAYOUTS[model], layout_words(model))


def layout_words(model: str) -> str:
    """Return the layouts of figure 14 as the figure has them."""
    tp, pp, generate_tp, generate_pp = LAYOUTS[model]
    return f"Tg{generate_tp} Pg{generate_pp} T{tp} P{pp}"


def _record(point: Point, sizes: tuple[int, ...], words: str) -> dict[str, str]:
    """Return a point as a record of the table that its published value stands in."""
    cells = {"model": point.panel, "gpus": str(point.gpus), "config": words, "seconds": "1"}
    return cells | {name: str(size) for name, size in zip(SIZES, sizes, strict=True)}


def _transition(
    point: Point, transition: TransitionName, sizes: tuple[int, ...], words: str
) -> Unfinished:
    record = _record(point, sizes, words) | {"transition": transition}

    def finish(each: Point) -> Point:
        row = transition_row(record)
        assert row is not None, "it is a transition that takes time"
        return replace(each, forecast=transition_seconds(row).seconds, plan=words)

    return Unfinished(point, finish)


def _generations() -> Iterator[Unfinished]:
    for model in ("7B", "13B"):
        for tp in GENERATION_TP:
            series, words = f"generation, TP {tp}", f"train 1-8-2, tg={tp} pg=1"
            sizes = (max(GENERATION_TP), 1, tp, 1)
            point = Point(figure="Fig 15", panel=model, series=series, gpus=16, quantity="seconds")
            yield _generation(point, _record(point, sizes, words))
            if tp < max(GENERATION_TP):
                point = replace(point, series=f"transition, TP {tp}")
                yield _transition(point, ENGINES[HYBRIDFLOW], sizes, words)


def _generation(point: Point, record: dict[str, str]) -> Unfinished:
    def finish(each: Point) -> Point:
        return replace(each, forecast=generation_seconds(record).seconds, plan=record["config"])

    return Unfinished(point, finish)


def _searches() -> Iterator[Unfinished]:
    for model, gpus in SEARCHES:
        point = Point(
            figure="Fig 16", panel=model, series="run time of the search", gpus=gpus,
            quantity="seconds", is_comparable=False,
        )  # fmt: skip
        yield Unfinished(point, _search_seconds)


def _search_seconds(point: Point) -> Point:
    found = searched("ppo", point.panel, point.gpus)
    if isinstance(found, str):
        return replace(point, reason=found)
    return replace(point, forecast=found.search_seconds, plan=plan_words(found.plans[0].plan))


def _volumes() -> Iterator[Unfinished]:
    for model in MODELS:
        for series, transition in TABLE_2.items():
            for what in ("received", "at the peak", "held twice"):
                point = Point(
                    figure="Table 2", panel=model, series=f"{series}: {what}", gpus=64,
                    quantity="bytes",
                )  # fmt: skip
                yield Unfinished(point, _volume_of(model, transition, what))


def _volume_of(model: str, transition: str, what: str) -> Callable[[Point], Point]:
    def finish(point: Point) -> Point:
        tp, pp, tp_gen, pp_gen = LAYOUTS[model]
        shape = TransitionShape(
            tp=tp, pp=pp, dp=point.gpus // (tp * pp), tp_gen=tp_gen, pp_gen=pp_gen
        )
        model_bytes = num_parameters(load_model(MODELS[model])) * PRECISIONS["bf16"].weight_bytes
        volume = transition_volume(transition, model_bytes, shape)
        sizes = {
            "received": volume.received_bytes,
            "at the peak": volume.peak_weight_bytes,
            "held twice": volume.redundant_bytes,
        }
        return replace(point, forecast=sizes[what], plan=layout_words(model))

    return finish


@cache
def _published() -> dict[tuple[str, str, str, int], float]:
    """Return the published values that the project holds, by figure, panel, series and GPUs."""
    found: dict[tuple[str, str, str, int], float] = {}
    for row in _held("hybridflow_throughput"):
        figure = row["figure"].replace("Fig", "Fig ")
        panel = f"{row['algorithm']} {row['model']}"
        value = float(row["tokens_per_s"])
        found[figure, panel, row["system_or_placement"], int(row["gpus"])] = value
    for row in _held("hybridflow_transition_generation_search"):
        figure = row["figure"].replace("Fig", "Fig ")
        series = _series(row)
        found[figure, row["model"], series, int(row["gpus"])] = float(row["seconds"])
    return found


def _series(row: dict[str, str]) -> str:
    kind, _, engine = row["series"].partition(":")
    if engine:
        return engine
    if kind in {"generation", "transition"}:
        return f"{kind}, TP {row['generate_tp']}"
    return "run time of the search"


def _held(table: str) -> list[dict[str, str]]:
    with (HELD / f"{table}.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))
