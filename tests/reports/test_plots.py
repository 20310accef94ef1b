"""Plots of profiles and of learning over seeds."""

import xml.etree.ElementTree as ET

import pandas as pd
import pytest

from rlplan.reports.pictures.curves import mean_curve, plot_learning
from rlplan.reports.pictures.profile_plots import plot_profile, series_of


def frame(rows):
    return pd.DataFrame(
        [
            {**row, "seconds_median": 1e-3, "seconds_p10": 9e-4, "seconds_p90": 2e-3,
             "repeats": 5, "source": "measured"}
            for row in rows
        ]
    )  # fmt: skip


TABLES = {
    "call": frame([{"kind": "actor_call", "num_bytes": size} for size in (0, 1024)]),
    "gemm": frame([{"precision": "fp32", "m": m, "k": 64, "n": 64} for m in (1, 64)]),
    "attention": frame(
        [{"direction": direction, "precision": "fp32", "batch": 2, "query_tokens": 8,
          "cached_tokens": 0, "q_heads": 4, "kv_heads": 4, "head_dim": 16}
         for direction in ("forward", "backward")]
    ),
    "norm": frame([{"direction": "forward", "precision": "fp32", "tokens": 8, "hidden": 64}]),
    "embedding": frame(
        [{"direction": "forward", "precision": "fp32", "tokens": 8, "hidden": 64, "vocab": 99}]
    ),
    "optimizer": frame([{"precision": "fp32", "parameters": 1000}]),
    "collective": frame(
        [{"kind": kind, "ranks": 2, "ranks_per_node": 2, "num_bytes": 4096}
         for kind in ("all_reduce", "all_gather")]
    ),
    "copy": frame([{"direction": "host_to_device", "num_bytes": 1 << 20}]),
    "model_pass": frame(
        [{"name": name, "model": "a1", "num_layers": 2, "head": "lm", "precision": "fp32",
          "tp": tp, "dp": 1, "sequences": 4, "tokens": 16}
         for name in ("train", "decode") for tp in (1, 2)]
    ),
}  # fmt: skip


@pytest.mark.full
def test_every_table_of_a_profile_has_a_picture(tmp_path):
    paths = plot_profile(TABLES, tmp_path / "plots")
    assert {path.stem for path in paths} == set(TABLES)
    for path in paths:
        assert ET.fromstring(path.read_text()).tag.endswith("svg")


def test_a_table_without_points_has_no_picture(tmp_path):
    assert plot_profile({"gemm": TABLES["gemm"][:0]}, tmp_path) == []


def test_series_are_told_by_the_keys_that_differ():
    assert list(series_of("model_pass", TABLES["model_pass"])) == [
        "decode, tp 1", "decode, tp 2", "train, tp 1", "train, tp 2",
    ]  # fmt: skip
    assert list(series_of("gemm", TABLES["gemm"])) == ["fp32"]


def test_the_mean_ends_where_the_shortest_seed_does():
    assert mean_curve([[1.0, 2.0, 3.0], [3.0, 4.0]]) == [2.0, 3.0]


def test_learning_is_drawn_as_svg_and_png(tmp_path):
    curves = {"ppo": [[0.1, 0.5], [0.2, 0.6]], "grpo": [[0.0, 0.9]]}
    vector = plot_learning(curves, tmp_path / "digits.svg", "Digits")
    pixels = plot_learning(curves, tmp_path / "digits.png", "Digits")
    assert "mean of 2 seeds" in vector.read_text()
    assert pixels.read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 2
