"""The skill for agents: its commands run on the files beside it, and print the lines that it shows."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from rlplan_cli.main import run
from tests.cases import only
from tests.house.tree import ROOT

SKILL = ROOT / "skills" / "rlplan"
TEXT = (SKILL / "SKILL.md").read_text(encoding="utf-8")
# A figure that a search or an option made shorter.
CUT = "..."


def examples():
    """Yield each command of the skill with the lines that it shows."""
    command, shown = None, []
    for line in TEXT.splitlines():
        if line.startswith("    rlplan "):
            if command is not None:
                yield command, tuple(shown)
            command, shown = line.strip(), []
        elif line.startswith("    ") and command is not None:
            shown.append(line.removeprefix("    ").rstrip())
        elif line.strip() and command is not None:
            yield command, tuple(shown)
            command, shown = None, []


ALL = list(examples())
# Others than these take more than a second.
QUICK = [
    each
    for each in ALL
    if each[0].split()[1] in {"import", "export", "watch"} or "size=3" in each[0]
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with the skill's examples, and the job and plan that its commands write."""
    folder = tmp_path_factory.mktemp("skill")
    shutil.copytree(SKILL / "examples", folder / "examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = ["verl", "examples/run.sh", "--gpu", "h100", "--mean-response", "600"]
        assert run(["import", *words, "--out", "job.yaml", "--plan", "own.yaml"]) == 0
        shutil.copyfile("own.yaml", "plan.yaml")
    return folder


def test_the_skill_says_what_it_is_for():
    _, front, _ = TEXT.split("---\n", 2)
    said = yaml.safe_load(front)
    assert said.keys() == {"name", "description"}
    assert said["name"] == SKILL.name
    assert len(said["description"]) < 1024
    assert len(TEXT.splitlines()) < 500
    assert len(ALL) == 9


@pytest.mark.parametrize(
    ("command", "shown"),
    only(QUICK, ALL),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_example_prints_what_the_skill_shows(home, monkeypatch, rlplan, command, shown):
    monkeypatch.chdir(home)
    words, _, comment = command.partition(" #")
    answer = rlplan(*shlex.split(words)[1:])
    assert answer.code == (1 if "exit code 1" in comment else 0), answer.err
    printed = [line.rstrip() for line in (answer.out + answer.err).splitlines()]
    for line in filter(None, shown):
        start = line.removesuffix(CUT)
        assert any(
            each == line or (start != line and each.startswith(start)) for each in printed
        ), line


def test_llms_txt_names_pages_that_are_there():
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# rlplan\n\n> ")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 10
    for link in links:
        assert (ROOT / link.partition("#")[0]).exists(), link


def test_agents_md_names_what_is_there():
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    for room in (
        "rlplan/",
        "planner/",
        "simulator/",
        "profiles/",
        "executor/",
        "reports/",
        "rlplan_cli/",
        "evals/",
    ):
        assert f"`{room}`" in text
    for path in re.findall(r"`((?:docs|tests|skills)/[\w./-]+)`", text):
        assert Path(ROOT, path).exists(), path
    targets = re.findall(r"`make ([\w-]+)", text)
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(targets) <= known
