"""The profile's files: what is written is read again, and what is wrong is named with its place."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.models import ModelArchitecture
from rlplan.profiles.tables.table import (
    TABLES,
    Profile,
    architecture_digest,
    new_profile,
    read_profile,
)

GEMM: dict[str, str | int] = {"precision": "fp32", "m": 64, "k": 128, "n": 256}


def profile() -> Profile:
    made = new_profile("laptop", "cpu", {"fingerprint": "abc"}, {"torch": "2.13.0"})
    made.add("gemm", GEMM, [0.3, 0.1, 0.2])
    return made


def written(folder: Path) -> Path:
    profile().write(folder)
    return folder


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_point_keeps_median_percentiles_and_repeats():
    point = profile().get("gemm", GEMM)
    assert point.seconds_median == 0.2
    assert point.seconds_p10 == pytest.approx(0.12)
    assert point.seconds_p90 == pytest.approx(0.28)
    assert point.seconds_mean == pytest.approx((0.1 + 0.2 + 0.28) / 3)
    assert point.repeats == 3
    assert point.source == "measured"
    assert point.spread_seconds == pytest.approx(0.16 / 2.563)


def test_a_profile_knows_only_the_very_point():
    made = profile()
    assert made.get("gemm", GEMM) is not None
    assert made.get("gemm", {**GEMM, "m": 65}) is None


def test_the_table_file_is_literally_this(tmp_path):
    made = new_profile("laptop", "cpu", {"fingerprint": "abc"}, {})
    made.add("copy", {"direction": "host_to_device", "num_bytes": 1024}, [0.5])
    made.add("copy", {"direction": "device_to_host", "num_bytes": 1024}, [0.25])
    made.write(tmp_path)
    assert (tmp_path / "copy.csv").read_text(encoding="utf-8") == (
        "direction,num_bytes,seconds_median,seconds_p10,seconds_p90,seconds_mean,repeats,source\n"
        "device_to_host,1024,0.25,0.25,0.25,0.25,1,measured\n"
        "host_to_device,1024,0.5,0.5,0.5,0.5,1,measured\n"
    )


KEYS = st.sampled_from(list(TABLES)).flatmap(
    lambda table: st.tuples(
        st.just(table),
        st.fixed_dictionaries(
            {
                column: st.integers(0, 10**12) if kind is int else texts(table, column)
                for column, kind in TABLES[table].items()
            }
        ),
        st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=5),
    )
)


def texts(table: str, column: str) -> st.SearchStrategy[str]:
    if column == "precision":
        return st.sampled_from(["fp32", "bf16", "fp16"])
    if column == "head":
        return st.sampled_from(["lm", "scalar"])
    if column == "direction" and table == "copy":
        return st.sampled_from(["host_to_device", "device_to_host", "device_to_device"])
    if column == "direction":
        return st.sampled_from(["forward", "backward"])
    if (table, column) == ("collective", "kind"):
        return st.sampled_from(["all_reduce", "send_recv"])
    return st.sampled_from(["actor_call", "rule:digits", "0123456789ab", 'a,"b"'])


@given(st.lists(KEYS, max_size=12))
def test_reading_gives_what_was_written(entries):
    made = new_profile("any", "cpu", {"fingerprint": "abc"}, {"torch": "2.13.0"})
    for table, keys, seconds in entries:
        made.add(table, keys, seconds)
    with tempfile.TemporaryDirectory() as folder:
        made.write(Path(folder))
        again = read_profile(Path(folder))
    assert again.header == made.header
    for table in TABLES:
        assert again.points(table) == made.points(table)


def test_order_of_measuring_does_not_change_the_files(tmp_path):
    keys = [{**GEMM, "m": m} for m in (512, 64, 8)]
    texts = []
    for order in (keys, keys[::-1]):
        made = new_profile("laptop", "cpu", {"fingerprint": "abc"}, {})
        for each in order:
            made.add("gemm", each, [0.1])
        made.write(tmp_path)
        texts.append((tmp_path / "gemm.csv").read_bytes())
    assert texts[0] == texts[1]


def test_a_resumed_profile_keeps_its_points_and_is_complete_only_when_finished(tmp_path):
    written(tmp_path)
    resumed = read_profile(tmp_path)
    assert not resumed.complete
    resumed.add("optimizer", {"precision": "fp32", "parameters": 1000}, [0.01])
    resumed.finish()
    resumed.write(tmp_path)
    again = read_profile(tmp_path / "profile.yaml")
    assert again.complete
    assert len(again) == 2


def test_writing_over_another_profile_leaves_none_of_its_tables(tmp_path):
    written(tmp_path)
    other = new_profile("other", "cpu", {"fingerprint": "xyz"}, {})
    other.add("optimizer", {"precision": "fp32", "parameters": 1000}, [0.01])
    other.write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["optimizer.csv", "profile.yaml"]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (",64,", ",-64,", "row 2, column m: is not a whole number; found '-64'"),
        (",64,", ",many,", "row 2, column m: is not a whole number; found 'many'"),
        ("fp32", "fp31", "row 2, column precision: is not known; found 'fp31'"),
        (",0.2,", ",-0.2,", "row 2, column seconds_median: must be finite and not negative"),
        (",0.2,", ",nan,", "row 2, column seconds_median: must be finite and not negative"),
        (",0.2,", ",fast,", "row 2, column seconds_median: is not a number; found 'fast'"),
        (",0.2,", ",9.0,", "row 2, column seconds_median: must lie between"),
        (",3,measured", ",0,measured", "row 2, column repeats: must be at least 1"),
        (",measured", ",guessed", "row 2, column source: is not known; found 'guessed'"),
        (",3,measured", ",measured", "row 2: has a row of another length"),
        ("precision,m,", "precision,", "gemm.csv: m: misses a column"),
        ("precision,m,", "precision,colour,m,", "colour: has an unknown column"),
        ("precision,m,", "precision,m,m,", "m: has a column twice"),
    ],
)
def test_a_wrong_cell_is_named_with_file_row_and_column(tmp_path, old, new, complaint):
    change(written(tmp_path) / "gemm.csv", old, new)
    with pytest.raises(FileError, match=r"gemm\.csv") as caught:
        read_profile(tmp_path)
    assert complaint in str(caught.value)


def test_a_point_that_stands_twice_is_refused(tmp_path):
    path = written(tmp_path) / "gemm.csv"
    path.write_text(
        path.read_text(encoding="utf-8") + path.read_text(encoding="utf-8").split("\n")[1] + "\n"
    )
    with pytest.raises(FileError, match="row 3: holds a point twice"):
        read_profile(tmp_path)


def test_an_unknown_table_is_refused_with_the_nearest_one(tmp_path):
    (written(tmp_path) / "gemm.csv").rename(tmp_path / "gem.csv")
    with pytest.raises(FileError, match=r"unknown table.*did you mean 'gemm'"):
        read_profile(tmp_path)


def test_another_version_is_refused_by_name(tmp_path):
    change(written(tmp_path) / "profile.yaml", "version: 1", "version: 2")
    with pytest.raises(
        FileError,
        match="version: this release of rlplan cannot read a profile of this version; found 2",
    ):
        read_profile(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("software:", "softwares:", "softwares: unknown key"),
        ("fingerprint:", "finger:", "machine.fingerprint: is missing"),
        ("complete: false", "complete: [1]", "complete"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path, old, new, complaint):
    change(written(tmp_path) / "profile.yaml", old, new)
    with pytest.raises(FileError) as caught:
        read_profile(tmp_path)
    assert complaint in str(caught.value)


def test_a_missing_profile_is_named_with_its_neighbour(tmp_path):
    written(tmp_path / "laptop")
    with pytest.raises(FileError, match=r"no such folder.*did you mean 'laptop'"):
        read_profile(tmp_path / "labtop")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"profile\.yaml: no such file"):
        read_profile(tmp_path / "empty")


def test_the_digest_forgets_name_source_and_layers_and_nothing_else():
    sizes: dict[str, Any] = {
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 16,
        "ffn_size": 128,
        "vocab_size": 260,
    }
    base = ModelArchitecture(name="a", family="llama", hidden_size=64, num_layers=2, **sizes)
    same = ModelArchitecture(name="b", family="llama", hidden_size=64, num_layers=4, **sizes)
    other = ModelArchitecture(name="a", family="llama", hidden_size=32, num_layers=2, **sizes)
    assert architecture_digest(base) == architecture_digest(same)
    assert architecture_digest(base) != architecture_digest(other)
