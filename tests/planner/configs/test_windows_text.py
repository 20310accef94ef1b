"""Scripts, configurations and logs that Windows saved: in UTF-16 or UTF-32 as PowerShell writes them, or in UTF-8 with its mark."""

import pytest

from rlplan.files.decoding import encoded_as, read_text
from rlplan.planner.configs.importing import imported
from rlplan.planner.measured.logs import read_log
from rlplan.planner.measured.reading import load_table
from tests.planner.configs.test_keys_of_skyrl import OPTIONS
from tests.planner.configs.test_skyrl import NEW
from tests.planner.measured.test_pasted_logs import PASTED

ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-be")
MARK = "\ufeff"


def saved(path, text, encoding):
    lines = text.replace("\n", "\r\n")
    path.write_bytes((MARK * encoding.endswith("be") + lines).encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_script_says_what_it_says_in_utf_8(encoding, tmp_path):
    script = saved(tmp_path / "run.sh", NEW.strip(), "utf-8")
    expected = imported("skyrl", [str(script)], OPTIONS)
    found = imported("skyrl", [str(saved(script, NEW.strip(), encoding))], OPTIONS)
    assert (found.job, found.draft, found.keys) == (expected.job, expected.draft, expected.keys)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_log_and_a_table_hold_what_they_hold_in_utf_8(encoding, tmp_path):
    for name, text in PASTED.items():
        expected = read_log(saved(tmp_path / f"plain {name}", text, "utf-8"))
        assert read_log(saved(tmp_path / name, text, encoding)) == expected
    table = saved(tmp_path / "table.csv", "a,b\n1,2\n", encoding)
    assert load_table(table) == (["a", "b"], [{"a": "1", "b": "2"}])


@pytest.mark.parametrize("encoding", ["utf-8", *ENCODINGS])
def test_a_changed_text_keeps_the_encoding_and_the_mark_of_its_file(encoding, tmp_path):
    script = saved(tmp_path / "run.sh", "python3 -m a b=\u00fc\n", encoding)
    before = script.read_bytes()
    text = read_text(script)
    assert text == "python3 -m a b=\u00fc\n"
    assert encoded_as(script, text.replace("\n", "\r\n")) == before
