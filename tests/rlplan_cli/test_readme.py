"""The README's figures are those of the published pages, and what it prints is what the command prints."""

import re
from pathlib import Path

import pytest

from tests.house.tree import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PUBLISHED = ROOT / "reports" / "published"
ONE_SCREEN = 66  # lines
CHECKED = re.compile(r"^    rlplan (check examples/.+)\n\n((?:    .+\n|\n)+?)\n\|", re.MULTILINE)


def cells(page, start):
    """Return the cells of the first line of a published page that starts so."""
    lines = (PUBLISHED / page).read_text(encoding="utf-8").splitlines()
    line = next(line for line in lines if line.startswith(start))
    return [cell.strip() for cell in line.strip("| ").split("|")]


def row(start):
    return next(line for line in README.splitlines() if line.startswith(start))


def test_it_is_one_screen():
    assert len(README.splitlines()) <= ONE_SCREEN


def test_its_errors_are_those_of_the_accuracy_page():
    mixed = cells("accuracy.md", "| rl_steps, held back |")
    nemo = cells("accuracy.md", "| rl_steps_nemo, held back |")
    said = row("| Steps of frameworks")
    assert f"median error {mixed[3]} over {mixed[1]} steps" in said
    assert f"{nemo[3]} over {nemo[1]} of NeMo-RL, worst {nemo[6]} " in said


def test_its_verdicts_are_those_of_the_fit_page():
    every = cells("fit.md", "| all |")
    _, number, right, either, wrong, ran_out, seen = every[:7]
    share = re.compile(r"\((\d+)%\)")
    sure, kept = (int(share.search(each)[1]) for each in (right, either))
    said = row("| Does it fit")
    assert (
        f"right for {sure} % of {number}, `may not fit` for {kept - sure} %, wrong for {wrong};"
        in said
    )
    assert f"{seen.split()[0]} of {ran_out} that ran out of memory are seen" in said  # fmt: skip


def test_its_seconds_are_those_of_the_search_page():
    said = row("| Seconds of a search")
    assert f"{cells('search.md', '| llama-2-70b/128 |')[1]} s for 70B on 128 GPUs" in said
    assert f"{cells('search.md', '| llama-2-70b/8192 |')[1]} s on 8,192" in said


def test_it_names_the_two_commands_and_a_command_for_each_door():
    assert re.search(r"^    make demo ", README, re.MULTILINE)
    assert re.search(r"^    make test ", README, re.MULTILINE)
    for command in ("check", "rent", "check-step", "init"):
        assert f"| `rlplan {command} " in README


def test_all_its_links_and_pictures_are_there():
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", README) + re.findall(
        r'src(?:set)?="([^"]+)"', README
    )
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).is_file()] == []


@pytest.mark.full
def test_what_it_prints_is_what_the_command_prints(rlplan, monkeypatch):
    monkeypatch.chdir(ROOT)
    command, printed = CHECKED.search(README).groups()
    told = rlplan(*command.split()).out.splitlines()
    lines = [line.removeprefix("    ") for line in printed.rstrip("\n").split("\n")]
    assert [line for line in lines if line] == [line for line in told[: len(lines)] if line]
    assert Path(command.split()[1]).is_file()
