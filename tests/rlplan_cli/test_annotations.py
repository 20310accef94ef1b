"""`rlplan check --format github`: annotations at a script's lines, and the hook for pre-commit."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import printable
from rlplan_cli.annotations import Annotation, first_line, place_of
from tests.house.tree import ROOT
from tests.planner.configs.test_importing import NEMO
from tests.rlplan_cli.test_mcp import SCRIPT

GPU = ("--gpu", "h100", "--mean-response", "32")
COMMAND = re.compile(
    r"::(?P<level>error|warning|notice) (?P<properties>[^:]*)::(?P<message>.*)", re.DOTALL
)
ESCAPES = {"%0A": "\n", "%0D": "\r", "%3A": ":", "%2C": ",", "%25": "%"}


def read(line):
    """Return a workflow command's level, properties and message, as the runner reads them."""
    found = COMMAND.fullmatch(line)
    pairs = (each.split("=", 1) for each in found["properties"].split(","))
    return (
        found["level"],
        {name: unescaped(value) for name, value in pairs},
        unescaped(found["message"]),
    )


def unescaped(text):
    return re.sub("%(0A|0D|3A|2C|25)", lambda found: ESCAPES[found[0]], text)


@given(st.text(), st.text(min_size=1), st.none() | st.integers(1, 10**6))
def test_whatever_a_script_holds_is_one_command_that_the_runner_reads_back(message, title, line):
    file = None if line is None else Path("a,b:c%0A/run.sh")
    shown = str(Annotation(level="error", title=title, message=message, file=file, line=line))
    assert len(shown.splitlines()) == 1
    level, properties, told = read(shown)
    assert level == "error"
    assert told == "\n".join(map(printable, message.splitlines()))
    assert properties["title"] == "\n".join(map(printable, title.splitlines()))
    assert properties.get("line") == (None if line is None else str(line))
    assert properties.get("file") == (None if file is None else file.as_posix())


def test_the_line_of_a_key_is_the_readers_else_the_first_with_its_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text("# tp.size\npython x \\\n  a.tp.size=2 \\\n  tp.size=3\n  b.size=3\n")
    assert place_of("run.sh:3", "tp.size", "other.sh") == (Path("run.sh"), 3)
    assert place_of("the command line", "b.size", "run.sh") == (Path("run.sh"), 5)
    assert place_of("run.sh", "tp.size", "") == (Path("run.sh"), 1)
    assert first_line(Path("run.sh"), "other.size") == 1
    assert first_line(Path("run.sh"), "gone") is None
    assert place_of("gone.sh:3", "a", "the command line") == (None, None)


def test_a_broken_rule_is_an_error_at_its_line(project, rlplan):
    Path("run.sh").write_text(SCRIPT)
    answer = rlplan("check", "run.sh", *GPU, "--format", "github")
    assert answer.code == 1
    level, properties, message = read(answer.out.splitlines()[0])
    title = "rlplan: replicas-divide-the-gpus"
    assert (level, properties) == ("error", {"file": "run.sh", "line": "3", "title": title})
    assert message.startswith("actor_rollout_ref.rollout.tensor_model_parallel_size=3: ")
    assert message.endswith("; allowed: divisors of 2")


def test_what_runs_is_a_notice_and_what_is_not_understood_a_warning_at_its_line(
    project, rlplan, monkeypatch
):
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.parent))
    Path("grpo.yaml").write_text(f"{NEMO}\nmade_up: 1\n")
    answer = rlplan("check", "grpo.yaml", *GPU, "--format", "github")
    assert answer.code == 0, answer.err
    found = [read(line) for line in answer.out.splitlines()]
    level, properties, message = next(each for each in found if "made_up" in each[2])
    last = str(len(NEMO.splitlines()) + 2)
    assert (level, properties["line"]) == ("warning", last)
    assert properties["file"] == f"{project.name}/grpo.yaml"
    level, properties, message = found[-1]
    assert (level, properties["title"]) == ("notice", "rlplan: runs")
    assert "a step takes " in message


def test_a_mistake_is_an_annotation_and_the_code_is_still_two(project, rlplan):
    Path("run.sh").write_text(SCRIPT.replace("max_prompt_length=64", "max_prompt_length=long"))
    answer = rlplan("check", "run.sh", "--format", "github")
    assert (answer.code, len(answer.lines)) == (2, 1)
    level, properties, message = read(answer.out.strip())
    assert (level, properties) == ("error", {"title": "rlplan: cannot be checked"})
    assert message.startswith("--gpu: is missing")


def test_the_hook_checks_each_file_and_fails_as_the_worst_does(project, rlplan):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["id"] == "rlplan-check"
    assert re.search(hook["files"], "scripts/run.sh")
    program, *words = shlex.split(hook["entry"])
    assert program == "rlplan"
    Path("sound.sh").write_text(SCRIPT.replace("size=3", "size=1"))
    Path("broken.sh").write_text(SCRIPT)
    Path("odd.sh").write_text("echo hello\n")
    args = [*words, *GPU]
    assert rlplan(*args, "sound.sh").code == 0
    told = rlplan(*args, "broken.sh", "sound.sh")
    assert told.code == 1
    assert "broken.sh: will not run" in told.out
    assert "\nsound.sh: runs" in told.out
    told = rlplan(*args, "odd.sh", "broken.sh")
    assert (told.code, "broken.sh: will not run" in told.out) == (2, True)
    assert told.err.splitlines()[-1].startswith("rlplan: odd.sh: ")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--format", "github", "--json"), "--format: says another format than --json"),
        (("--each", "--json"), "--each: has answers of several files"),
        (("--each", "--out", "new.yaml"), "--out: is the job of one file"),
    ],
)
def test_options_that_contradict_are_refused(project, rlplan, options, complaint):
    answer = rlplan("check", "plan.yaml", *options)
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert complaint in answer.err
