"""`rlplan export --patch`: a user's own script, changed in what a plan has otherwise and nowhere else."""

import difflib
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import FileError
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import imported
from rlplan.planner.configs.writing.exporting import exported
from rlplan.planner.configs.writing.patching import patched
from rlplan.profiles.facts import load_facts
from rlplan.results.stored import write_plan
from tests.planner.configs.test_importing import OPTIONS, VERL

HEAD = "#!/bin/bash\n# ours\nset -x\nulimit -n 65536\n"
SCRIPT = (
    HEAD + "python3 " + " \\\n    ".join(map(shlex.quote, VERL)) + ' \\\n    "$@"\n# behind it\n'
)
UTILISATION = "actor_rollout_ref.rollout.gpu_memory_utilization"


@pytest.fixture(scope="module")
def plan():
    found = imported("verl", VERL, OPTIONS)
    return complete(found.draft, found.resolved, load_facts(found.resolved))


def with_field(plan, task, **fields):
    return replace(plan, tasks={**plan.tasks, task: replace(plan.tasks[task], **fields)})


def patch(tmp_path, plan, text=SCRIPT):
    script = tmp_path / "run.sh"
    script.write_text(text)
    return patched(script, "verl", plan, exported(plan, "verl").decided)


def lines_that_differ(before, after):
    return [
        line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"
    ]


def test_a_script_that_runs_the_plan_stays_as_it_is(plan, tmp_path):
    found = patch(tmp_path, plan)
    assert (found.text, found.changes) == (SCRIPT, ())


def test_a_key_is_changed_where_it_stands_and_a_new_one_is_added_before_what_is_handed_on(
    plan, tmp_path
):
    other = with_field(plan, "actor.update", token_budget=32768)
    other = with_field(other, "actor.generate", memory_fraction=0.7)
    found = patch(tmp_path, other)
    budget = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    told = {each.key: (each.before, each.after) for each in found.changes}
    assert told[budget] == (16384, 32768)
    assert told[UTILISATION] == (None, 0.7)
    differs = lines_that_differ(SCRIPT, found.text)
    assert f"-     {budget}=16384 \\" in differs
    assert f"+     {budget}=32768 \\" in differs
    assert f"+     {UTILISATION}=0.7 \\" in differs
    assert found.text.startswith(HEAD)
    assert found.text.endswith(' \\\n    "$@"\n# behind it\n')


def test_a_new_key_is_added_beside_words_that_stand_before_what_is_handed_on(plan, tmp_path):
    text = SCRIPT.replace(' \\\n    "$@"', " $@").replace("# ours", '# ours, with "$@"')
    found = patch(tmp_path, with_field(plan, "actor.generate", memory_fraction=0.7), text)
    assert found.text == text.replace(" $@", f" {UTILISATION}=0.7 $@")


def test_the_model_stays_the_users_and_a_plan_of_another_is_refused(plan, tmp_path):
    (given,) = (word for word in VERL if word.startswith("actor_rollout_ref.model.path="))
    found = patch(tmp_path, plan, SCRIPT.replace(given, given + "-Base"))
    assert found.changes == ()
    other = SCRIPT.replace(given, "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B")
    with pytest.raises(FileError, match="has another model as actor than the plan"):
        patch(tmp_path, plan, other)


def test_a_script_that_is_no_text_is_refused(plan, tmp_path):
    (tmp_path / "run.sh").write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match="UTF-8"):
        patched(tmp_path / "run.sh", "verl", plan, {})


def test_a_value_that_is_quoted_or_a_variable_is_replaced_too(plan, tmp_path):
    text = SCRIPT.replace("ppo_max_token_len_per_gpu=16384", 'ppo_max_token_len_per_gpu="$BUDGET"')
    text = text.replace(HEAD, HEAD + "BUDGET=16384\n")
    found = patch(tmp_path, with_field(plan, "actor.update", token_budget=32768), text)
    assert "ppo_max_token_len_per_gpu=32768 \\" in found.text
    assert "BUDGET=16384\n" in found.text


def test_a_script_with_no_place_for_a_key_is_refused(plan, tmp_path):
    text = SCRIPT.replace(' \\\n    "$@"', "")
    other = with_field(plan, "actor.generate", memory_fraction=0.7)
    with pytest.raises(FileError, match=r"hands no arguments on.*\"\$@\""):
        patch(tmp_path, other, text)


def test_the_command_writes_another_file_and_says_what_changed(plan, tmp_path, monkeypatch, rlplan):
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(SCRIPT)
    write_plan(Path("best.yaml"), with_field(plan, "actor.update", token_budget=32768))
    answer = rlplan(
        "export", "best.yaml", "--to", "verl", "--patch", "run.sh", "--out", "faster.sh"
    )
    assert answer.code == 0, answer.err
    assert "ppo_max_token_len_per_gpu=32768 (was 16384)" in answer.err
    assert Path("run.sh").read_text() == SCRIPT
    assert "ppo_max_token_len_per_gpu=32768" in Path("faster.sh").read_text()
    onto = rlplan("export", "best.yaml", "--to", "verl", "--patch", "run.sh", "--out", "run.sh")
    assert onto.code == 2
