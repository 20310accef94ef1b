"""What a search proposes for a script that somebody ran, written into that script, is what a check of it says."""

import csv
import shlex
import shutil
from pathlib import Path

import pytest

from tests.house.tree import ROOT

HELD = ROOT / "evals" / "held" / "fit"
# In which lie: a recipe that inherits, an old version; shells that hand nothing on, stages of unlike layers, switches, flags, a
# recipe that samples again, and arrays.
QUICK = ("nemo-687-8b", "verl-145")
OTHERS = (
    "c550-8b", "dapo-32b", "easyr1-baselines", "nemo-456", "nemo-875", "npu-moonlight", "openrlhf-329", "openrlhf-392", "openrlhf-776",
    "openrlhf-851", "openrlhf-887", "practice-dapo-30b", "skyrl-examples", "slime-qwen3-4b", "tinyzero-62", "verl-1649",
    "verl-2950", "verl-3360", "verl-dpsk-671b", "verl-lora-72b", "verl-tune-32b",
)  # fmt: skip


def of_case(name):
    """Return the row of a case whose file alone says what ran."""
    with (HELD / "cases.csv").open() as file:
        rows = [each for each in csv.DictReader(file) if each["case"] == name]
    return next(each for each in rows if each["arguments"].startswith("--"))


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(each, marks=pytest.mark.full) for each in OTHERS)]
)
def test_what_is_proposed_for_a_script_is_what_a_check_of_it_says(
    name, tmp_path, monkeypatch, rlplan
):
    row = of_case(name)
    shutil.copytree(HELD / name, tmp_path / "held" / name)
    shutil.copytree(HELD / "bases", tmp_path / "held" / "bases")
    monkeypatch.chdir(tmp_path / "held" / name)
    file, framework, beside = row["file"], row["framework"], shlex.split(row["arguments"])
    new = str(Path(file).parent / f"new{Path(file).suffix}")
    found = rlplan(
        "search", file, "--framework", framework, *beside, "--out", "best.yaml", "--json"
    )
    assert found.code == 0, found.err
    best = found.json["plans"][0]["forecast"]["iteration_seconds"]
    written = rlplan("export", "best.yaml", "--to", framework, "--patch", file, "--out", new)
    assert written.code == 0, written.err
    told = rlplan("check", framework, new, *beside, "--json")
    assert told.json["step_seconds"] == pytest.approx(best, rel=0.01)
    own = rlplan("check", framework, file, *beside, "--json")
    assert told.code <= own.code
    assert {each["rule"] for each in told.json["findings"]} <= {
        each["rule"] for each in own.json["findings"]
    } | {None, ""}
