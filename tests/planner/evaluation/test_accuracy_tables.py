"""Tables are known by their columns, and wrong ones refused with what is wrong."""

import pytest

from planner.evaluation.reading import held_tables, read_table, reader_names
from planner.evaluation.tables import READERS
from rlplan.errors import FileError

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


def test_readers_are_named_as_their_files_and_say_what_they_take_as_given():
    assert reader_names() == tuple(sorted(reader_names()))
    assert reader_names() == READERS.names()
    assert all(reader.about.strip().endswith(".") for reader in READERS.all())
    assert "realhf_iteration" in reader_names()


@pytest.mark.parametrize("path", held_tables(), ids=lambda path: path.stem)
def test_rows_that_rlplan_holds_have_a_source(path):
    header, *lines = path.read_text().splitlines()
    assert "source" in header.split(",")
    assert lines
