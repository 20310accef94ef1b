"""Tables are known by their columns, and wrong ones refused with what is wrong."""

import sys

import pytest

from rlplan.errors import FileError
from rlplan.evals import tables
from rlplan.evals.reading import held_tables, read_table
from rlplan.evals.tables import READERS

REAL = (
    "case,gen_len,batch,actor_B,critic_B,ref_B,reward_B,gpus,system,PFLOPs_per_s,iter_s,prompt_len"
)
ROW = "scale_actor,128,512,7,7,7,7,8,ReaL-Heuristic,0.6837,31.3,128"


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_is_known_by_its_columns_whatever_its_name(tmp_path):
    rows = read_table(write(tmp_path / "vtrain.csv", REAL, ROW))
    assert [(row.schema, row.table) for row in rows] == [("realhf_iteration", "vtrain")]
    assert rows[0].measured_seconds == 31.3


def test_columns_may_come_in_any_order(tmp_path):
    turned = [",".join(reversed(line.split(","))) for line in (REAL, ROW)]
    (row,) = read_table(write(tmp_path / "t.csv", *turned))
    (same,) = read_table(write(tmp_path / "u.csv", REAL, ROW))
    assert row.forecast == same.forecast


def test_a_table_without_rows_has_no_rows(tmp_path):
    assert read_table(write(tmp_path / "t.csv", REAL)) == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((), "is empty"),
        (("a,b", "1,2"), "has the columns of no table"),
        ((REAL, "1,2"), "line 2: does not have as many cells"),
        ((REAL, ROW + ",1"), "line 2: does not have as many cells"),
        ((REAL, ROW, ROW.replace("31.3", "soon")), "line 3: cannot be read as realhf_iteration"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(tmp_path, lines, said):
    with pytest.raises(FileError, match=said):
        read_table(write(tmp_path / "t.csv", *lines))


def test_a_file_that_is_not_there_or_is_no_text_is_refused(tmp_path):
    with pytest.raises(FileError, match="no such file"):
        read_table(tmp_path / "nothing.csv")
    with pytest.raises(FileError, match="is a folder"):
        read_table(tmp_path)
    (tmp_path / "picture.csv").write_bytes(bytes(range(256)))
    with pytest.raises(FileError, match="is not a CSV table"):
        read_table(tmp_path / "picture.csv")


def test_readers_say_what_they_take_as_given():
    assert all(reader.about.strip().endswith(".") for reader in READERS.all())


NAPS = """
from rlplan.planner.measured.rows import TableReader, forecast_row
from rlplan.estimate import Estimate, Source

READER = TableReader(
    about="Seconds of naps.",
    columns=frozenset({"nap", "nap_s"}),
    rows_of=lambda record: (
        forecast_row(record["nap"], float(record["nap_s"]), Estimate(2.0, 0.1, Source.FITTED)),
    ),
)
"""


def test_a_table_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "naps.py").write_text(NAPS)
    monkeypatch.setattr(READERS, "_loaded", {})
    tables.__path__.append(str(tmp_path))
    try:
        rows = read_table(write(tmp_path / "measured.csv", "nap,nap_s", "short,1", "long,4"))
    finally:
        tables.__path__.remove(str(tmp_path))
        sys.modules.pop("rlplan.evals.tables.naps", None)
    assert [(row.table, row.schema, row.index, row.label) for row in rows] == [
        ("measured", "naps", 0, "short"),
        ("measured", "naps", 1, "long"),
    ]
    assert [row.error_fraction for row in rows] == [1.0, -0.5]


@pytest.mark.parametrize("path", held_tables(), ids=lambda path: path.stem)
def test_rows_that_rlplan_holds_have_a_source(path):
    header, *lines = path.read_text().splitlines()
    assert "source" in header.split(",")
    assert lines
