"""HybridFlow's evaluation: its rows are forecast system by system, its claims held against forecasts."""

from collections import Counter
from dataclasses import replace

import pytest

from rlplan.errors import UnknownNameError
from rlplan.evals.hybridflow.claims import Points, near
from rlplan.evals.hybridflow.points import BEST, HYBRIDFLOW, plan_words, unfinished_points
from rlplan.evals.reading import read_table
from rlplan.evals.reproductions import load_reproduction, reproduction_names
from rlplan.evals.reproductions.hybridflow import claims_of
from rlplan.evals.settings.hybridflow_jobs import job_of
from rlplan.evals.settings.hybridflow_systems import (
    PEERS,
    placed_forecast,
    system_forecast,
)
from rlplan.evals.tables.hybridflow_throughput import forecast_of
from rlplan.results.accuracy import Point

HEADER = "figure,algorithm,model,gpus,system_or_placement,tokens_per_s"


def record(**changes):
    cells = {"algorithm": "PPO", "model": "7B", "gpus": "8", "system_or_placement": "DS-Chat"}
    return {**cells, **changes}


@pytest.mark.full
def test_rows_of_every_peer_are_forecast_within_the_bound_on_the_smallest_cluster(tmp_path):
    measured = {"NeMo-Aligner": 688.0, "DS-Chat": 1827.0, "OpenRLHF": 2299.0}
    lines = [f"Fig9,PPO,7B,8,{system},{rate}" for system, rate in measured.items()]
    (tmp_path / "t.csv").write_text("\n".join((HEADER, *lines)) + "\n")
    rows = read_table(tmp_path / "t.csv")
    assert {row.schema for row in rows} == {"hybridflow_throughput"}
    assert [row.fitted for row in rows] == [True, False, False]
    assert all(abs(row.error_fraction) < 0.35 for row in rows)
    assert rows[0].measured_seconds == pytest.approx(1024 * 2048 / 688.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm": "DPO"}, "algorithms known of this evaluation: ppo, remax, safe-rlhf"),
        ({"model": "9B"}, "models known by size: 7B, 13B, 34B, 70B"),
        ({"system_or_placement": "TRL"}, "systems known of this evaluation: HybridFlow"),
    ],
)
def test_what_the_evaluation_does_not_have_is_skipped_with_a_reason(changes, said):
    assert forecast_of(record(**changes)).startswith(said)


def test_names_are_read_however_they_are_set():
    same = [
        forecast_of(record(algorithm=algorithm, system_or_placement=system))
        for algorithm, system in (("PPO", "DS-Chat"), ("ppo", "ds chat"))
    ]
    assert same[0] is same[1]


def test_models_of_two_sizes_have_actor_and_critic_apart():
    job = job_of("13B/70B", 64)
    names = {role: job.architecture(role).name for role in job.models}
    assert names["actor"] == names["reference"] == "llama-2-13b"
    assert names["critic"] == names["reward"] == "llama-2-70b"


@pytest.mark.full
def test_placements_are_those_that_their_name_says_and_the_best_beats_them():
    found = {name: placed_forecast(name, "ppo", "7B", 8) for name in ("colocate", "split")}
    sets = {
        name: {frozenset(pool.roles) for pool in each.plan.pools if not pool.is_host}
        for name, each in found.items()
    }
    assert sets == {
        "colocate": {frozenset(("actor", "critic", "reference", "reward"))},
        "split": {frozenset(("actor", "reference")), frozenset(("critic", "reward"))},
    }
    best = system_forecast("hybridflow", "ppo", "7B", 8)
    assert best.seconds <= min(each.seconds for each in found.values())
    assert plan_words(best.plan).startswith(best.plan.placement)


def test_a_model_that_fits_nowhere_has_a_reason():
    assert "fits" in system_forecast("hybridflow", "ppo", "70B", 8).reason


def test_every_point_is_there_once():
    points = [each.point for each in unfinished_points()]
    keys = Counter((each.figure, each.panel, each.series, each.gpus) for each in points)
    assert max(keys.values()) == 1
    figures = dict.fromkeys(each.figure for each in points)
    assert list(figures) == [f"Fig {number}" for number in range(9, 17)] + ["Table 2"]
    assert {each.series for each in points if each.figure == "Fig 9"} == {*PEERS, HYBRIDFLOW}


def test_a_finished_point_has_the_published_value_beside_it():
    wanted = ("Fig 14", "7B", HYBRIDFLOW, 16)
    (point,) = [
        each.finished()
        for each in unfinished_points()
        if (each.point.figure, each.point.panel, each.point.series, each.point.gpus) == wanted
    ]
    assert point.published == 2.7
    assert abs(point.error_fraction) < 0.25


@pytest.mark.full
def test_throughput_counts_padding_whatever_lengths_the_engines_see():
    found = {
        (each.point.series, each.point.gpus): each
        for each in unfinished_points()
        if each.point.panel == "PPO 7B" and each.point.figure == "Fig 9"
    }
    point = found["OpenRLHF", 8].finished()
    seconds = system_forecast("openrlhf-0.2", "ppo", "7B", 8).seconds
    assert point.forecast == pytest.approx(1024 * 2048 / seconds)
    assert point.published == 2299.0


def tokens(figure, panel, series, gpus, forecast, published=None):
    return Point(
        figure=figure, panel=panel, series=series, gpus=gpus, quantity="tokens_per_second",
        forecast=forecast, published=published,
    )  # fmt: skip


def marked(claims, start):
    (found,) = [claim for claim in claims if claim.text.startswith(start)]
    return found


def seconds_by_tp(model, tp):
    return Point(
        figure="Fig 15", panel=model, series=f"generation, TP {tp}", gpus=16, quantity="seconds",
        forecast=float(tp),
    )  # fmt: skip


def claims_about(points, start):
    seconds = [
        Point(figure="Fig 14", panel="7B", series=series, gpus=8, quantity="seconds", forecast=4.0)
        for series in ("OpenRLHF", "DS-Chat", HYBRIDFLOW)
    ]
    generation = [seconds_by_tp(model, tp) for model in ("7B", "13B") for tp in (8, 4, 2, 1)]
    return marked(claims_of([*points, *seconds, *generation]), start)


def test_an_order_fails_with_the_point_that_breaks_it():
    ahead = tokens("Fig 9", "PPO 7B", HYBRIDFLOW, 8, 300.0)
    behind = tokens("Fig 9", "PPO 7B", "OpenRLHF", 8, 100.0)
    assert claims_about([ahead, behind], "HybridFlow is the fastest").holds
    faster = tokens("Fig 9", "PPO 7B", "DS-Chat", 8, 400.0)
    broken = claims_about([ahead, behind, faster], "HybridFlow is the fastest")
    assert not broken.holds
    assert "PPO 7B on 8" in broken.evidence


def test_pairs_are_held_against_the_published_order():
    points = [
        tokens("Fig 9", "PPO 7B", HYBRIDFLOW, 8, 300.0, 280.0),
        tokens("Fig 9", "PPO 7B", "OpenRLHF", 8, 100.0, 120.0),
        tokens("Fig 9", "PPO 7B", "DS-Chat", 8, 110.0, 90.0),
    ]
    claim = claims_about(points, "Of any two systems")
    assert (claim.holds, claim.evidence) == (False, "2 of 3 pairs")


def test_the_best_placement_counts_ties():
    points = [
        tokens("Fig 12", "PPO 34B", name, 64, rate)
        for name, rate in (("colocate", 98.0), ("split", 100.0), (BEST, 100.0))
    ]
    assert claims_about(points, "34B on 64 GPUs: colocate").holds
    points[0] = tokens("Fig 12", "PPO 34B", "colocate", 64, 90.0)
    assert not claims_about(points, "34B on 64 GPUs: colocate").holds


def test_the_mapping_of_the_largest_critic_is_read_off_its_plan():
    best = tokens("Fig 13", "PPO 13B/70B", BEST, 128, 10.0)
    best = replace(best, plan="{actor, reference, reward} {critic}, 64 + 64 GPUs; ...")
    assert claims_about([best], "13B/70B on 128 GPUs: actor").holds
    worse = replace(best, plan="{actor, critic, reference, reward}, 128 GPUs; ...")
    assert not claims_about([worse], "13B/70B on 128 GPUs: actor").holds


def test_a_figure_holds_within_the_bound_of_single_forecasts():
    assert near(1.0).holds(1.34)
    assert not near(1.0).holds(1.36)
    index = Points([tokens("Fig 9", "PPO 7B", HYBRIDFLOW, 8, 300.0)])
    assert index.series("Fig 9", "PPO 7B", 8)[HYBRIDFLOW] == 300.0
    assert "OpenRLHF" not in index.series("Fig 9", "PPO 7B", 8)


def test_evaluations_are_known_by_name():
    assert reproduction_names() == (
        "areal", "asyncflow", "hybridflow", "lending", "srl", "verl-fully-async",
    )  # fmt: skip
    with pytest.raises(UnknownNameError, match="did you mean 'hybridflow'"):
        load_reproduction("hybridflo")
