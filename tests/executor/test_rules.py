"""Reward rules: what they reward, and what becomes of a user's own that is wrong."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlplan.executor.learning.rules
from rlplan.errors import FileError, UnknownNameError, UserError
from rlplan.executor.learning.rules import load_rule, rule_names
from rlplan.executor.workers.stages.rule import judging
from rlplan.job import Rewards
from tests.executor.plans import make_job

HERE = Path()
ROW = {"payload": "abcd", "answer": " 42"}


def write(folder, text):
    (folder / "rules.py").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("response", "reward"),
    [("1234", 1.0), ("12ab", 0.5), ("abc", 0.0), ("", 0.0), ("٣", 0.0), ("7\ufffd", 0.5)],
)
def test_digits_rewards_the_share_of_ascii_digits(response, reward):
    assert load_rule("digits", HERE)("p", response, {}) == reward


@pytest.mark.parametrize(
    ("response", "reward"),
    [("abcd", 1.0), ("abcdxyz", 1.0), ("abxd", 0.75), ("bcda", 0.0), ("", 0)],
)
def test_copy_rewards_each_payload_position_that_is_repeated(response, reward):
    assert load_rule("copy", HERE)("say abcd", response, ROW) == reward


def test_copy_takes_the_whole_prompt_where_a_row_has_no_payload():
    assert load_rule("copy", HERE)("xy", "xy", {}) == 1.0


@pytest.mark.parametrize(
    ("response", "reward"), [("42\n", 1.0), ("4", 0.0), ("42.", 0.0), ("", 0.0)]
)
def test_exact_match_rewards_the_answer_but_for_space_around_it(response, reward):
    assert load_rule("exact_match", HERE)("6 * 7 =", response, ROW) == reward


def test_exact_match_names_the_row_that_has_no_answer():
    with pytest.raises(FileError, match=r"p\.jsonl: line 3: answer: is missing"):
        load_rule("exact_match", HERE)("q", "r", {"_origin": "p.jsonl: line 3"})


# A process runs for each call of one that is left out (tests/executor/test_sandbox.py); the other needs a package.
@pytest.mark.full
@pytest.mark.parametrize("name", sorted({*rule_names()} - {"python_tests", "math_verify"}))
@given(prompt=st.text(), response=st.text())
def test_every_built_in_rule_rewards_between_zero_and_one(name, prompt, response):
    assert 0.0 <= load_rule(name, HERE)(prompt, response, ROW) <= 1.0


def test_rules_are_the_files_of_their_folder():
    files = Path(rlplan.executor.learning.rules.__file__).parent.glob("*.py")
    assert list(rule_names()) == sorted(path.stem for path in files if path.stem != "__init__")
    assert {"digits", "copy", "exact_match"} <= set(rule_names())


def test_a_function_of_a_users_file_is_found_relative_to_the_job(tmp_path):
    write(tmp_path, "def brevity(prompt, response, row):\n    return 1 / (1 + len(response))\n")
    assert load_rule("rules.py:brevity", tmp_path)("p", "abc", {}) == 0.25


def test_nothing_is_left_beside_a_users_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(tmp_path, "def score(prompt, response, row):\n    return 1.0\n")
    before = list(tmp_path.iterdir())
    load_rule("rules.py:score", tmp_path)
    assert list(tmp_path.iterdir()) == before


def test_an_unknown_rule_names_the_nearest_and_how_to_name_ones_own():
    with pytest.raises(UnknownNameError, match=r"did you mean 'digits'.*path/to/file\.py:name"):
        load_rule("digit", HERE)


@pytest.mark.parametrize("spec", ["rule.py:f", "rule.py"])
def test_a_missing_file_names_the_nearest(tmp_path, spec):
    write(tmp_path, "")
    with pytest.raises(FileError, match=r"no such file; did you mean 'rules\.py'"):
        load_rule(spec, tmp_path)


@pytest.mark.parametrize("spec", ["rules.py:brevty", "rules.py:", "rules.py"])
def test_a_missing_function_names_those_that_the_file_has(tmp_path, spec):
    write(tmp_path, "LIMIT = 3\ndef brevity(prompt, response, row):\n    return 0\n")
    with pytest.raises(FileError, match=r"has no such function.*allowed: brevity"):
        load_rule(spec, tmp_path)


def test_a_file_that_does_not_import_says_why(tmp_path):
    write(tmp_path, "import no_such_module_anywhere\n")
    with pytest.raises(FileError, match="cannot be imported: ModuleNotFoundError"):
        load_rule("rules.py:f", tmp_path)


@pytest.mark.parametrize("value", ["None", "'much'", "float('nan')", "1e39", "10**400"])
def test_a_reward_that_is_no_finite_number_is_refused(tmp_path, value):
    write(tmp_path, f"def f(prompt, response, row):\n    return {value}\n")
    with pytest.raises(UserError, match=r"rule rules\.py:f: found .*allowed: a finite number"):
        load_rule("rules.py:f", tmp_path)("p", "r", {})


def test_a_rule_that_fails_says_where_and_how(tmp_path):
    write(tmp_path, "def f(prompt, response, row):\n    return row['missing']\n")
    with pytest.raises(UserError, match="fails for prompt 'p': KeyError: 'missing'"):
        load_rule("rules.py:f", tmp_path)("p", "r", {})


def test_responses_are_judged_on_trial_as_a_worker_judges_them(tmp_path):
    (tmp_path / "rule.py").write_text(
        "def judge(prompt, response, row):\n"
        "    assert (prompt, response) == (f'say {row[\"number\"]}', 'xxxxx')\n"
        "    return 1.0\n"
        "price = judge\n"
    )
    job = replace(
        make_job("safe-rlhf", prompt_tokens=9, response_tokens=5),
        rewards=Rewards(function="rule.py:judge", cost_function="rule.py:price"),
    )
    rows = [{"prompt": f"say {number}", "number": number} for number in range(3)]
    judge = judging(job, rows, tmp_path)
    assert judge("rule.py:judge") == job.workload.sequences
    assert judge("rule.py:price") == job.workload.sequences
    limited = replace(job, rewards=replace(job.rewards, limit_seconds=1.0))
    assert judging(limited, rows, tmp_path) is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise ValueError('one\\n  two')", "ValueError: one two"),
        ("raise KeyError", "KeyError"),
    ],
)
def test_a_rule_that_fails_or_exits_is_one_line(tmp_path, code, words):
    (tmp_path / "rules.py").write_text(f"def f(prompt, response, row):\n    {code}\n")
    with pytest.raises(UserError) as found:
        load_rule("rules.py:f", tmp_path)("p", "r", {})
    assert str(found.value) == f"rule rules.py:f: fails for prompt 'p': {words}"


def test_a_file_that_exits_when_it_is_imported_says_so(tmp_path):
    (tmp_path / "rules.py").write_text("import sys; sys.exit()\n")
    with pytest.raises(FileError, match=r"cannot be imported: SystemExit$"):
        load_rule("rules.py:f", tmp_path)


def test_what_a_rule_returned_is_shown_in_one_line(tmp_path):
    (tmp_path / "rules.py").write_text(
        "class Odd:\n    def __repr__(self):\n        return 'a\\n  b' * 100\n"
        "def f(prompt, response, row):\n    return Odd()\n"
    )
    with pytest.raises(UserError, match=r"found a ba ba b[ab ]*\.\.\. for prompt 'p'"):
        load_rule("rules.py:f", tmp_path)("p", "r", {})
