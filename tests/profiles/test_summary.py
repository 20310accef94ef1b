"""The summary of a profile: what `rlplan profile show` prints and draws."""

from rlplan.profiles.tables.summary import frames, summarize
from rlplan.profiles.tables.table import Profile, new_profile


def small() -> Profile:
    profile = new_profile("laptop", "cpu", {"fingerprint": "abc"}, {})
    profile.add("gemm", {"precision": "fp32", "m": 256, "k": 64, "n": 64}, [4e-5])
    profile.add("gemm", {"precision": "fp32", "m": 64, "k": 64, "n": 64}, [1e-5])
    profile.add("call", {"kind": "rule:digits", "num_bytes": 0}, [2e-5])
    profile.add("call", {"kind": "actor_call", "num_bytes": 0}, [1e-3])
    return profile


def test_a_summary_has_a_row_for_every_table_with_points():
    gemm, call = summarize(small())
    assert (gemm.table, gemm.points) == ("gemm", 2)
    assert gemm.ranges == {"precision": "fp32", "m": "64 to 256 (2 values)", "k": "64", "n": "64"}
    assert (gemm.seconds_low, gemm.seconds_high) == (1e-5, 4e-5)
    assert gemm.spread_fraction == 0.0
    assert call.ranges == {"kind": "actor_call, rule:digits", "num_bytes": "0"}


def test_frames_hold_keys_and_values_sorted_by_key():
    tables = frames(small())
    assert list(tables) == ["gemm", "call"]
    assert list(tables["gemm"]["m"]) == [64, 256]
    assert list(tables["gemm"]["seconds_median"]) == [1e-5, 4e-5]
    assert list(tables["gemm"].columns) == [
        "precision", "m", "k", "n",
        "seconds_median", "seconds_p10", "seconds_p90", "seconds_mean", "repeats", "source",
    ]  # fmt: skip


def test_an_empty_profile_has_no_rows():
    empty = new_profile("laptop", "cpu", {"fingerprint": "abc"}, {})
    assert summarize(empty) == ()
    assert frames(empty) == {}
