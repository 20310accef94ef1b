"""Reward functions as verl and TRL have them, beside this project's own form."""

from dataclasses import replace
from typing import cast

import pytest

from rlplan.errors import FileError, UserError
from rlplan.executor.data.prompts import Tokenizer, encode_prompts, load_prompts, load_tokenizer
from rlplan.executor.learning.rules import load_rule
from rlplan.executor.workers.stages.rule import judging
from rlplan.job import Rewards
from tests.executor.plans import make_job

ROW = {
    "prompt": "6 * 7 =",
    "data_source": "sums",
    "answer": "42",
    "level": 3,
    "reward_model": {"ground_truth": "42", "style": "rule"},
    "extra_info": {"index": 7},
    "_origin": "p.jsonl: line 3",
}


def rule(folder, text):
    (folder / "rules.py").write_text(text, encoding="utf-8")
    return load_rule("rules.py:f", folder)


VERL = """
def f(data_source, solution_str, ground_truth, extra_info=None):
    assert (data_source, extra_info) == ("sums", {"index": 7})
    return RESULT
"""


@pytest.mark.parametrize(
    ("result", "reward"),
    [
        ("float(solution_str == ground_truth)", 1.0),
        ("{'score': 0.5, 'acc': True}", 0.5),
        ("solution_str == ground_truth", 1.0),
    ],
)
def test_verls_compute_score_is_taken_as_it_is(tmp_path, result, reward):
    assert rule(tmp_path, VERL.replace("RESULT", result))("6 * 7 =", "42", ROW) == reward


def test_verls_score_may_do_without_what_it_does_not_take(tmp_path):
    short = (
        "def f(solution_str, ground_truth, data_source):\n    return solution_str == ground_truth\n"
    )
    assert rule(tmp_path, short)("p", "42", ROW) == 1.0
    assert rule(tmp_path, short)("p", "42", {"answer": "42"}) == 1.0
    wide = "def f(data_source, solution_str, ground_truth, **rest):\n    return rest['extra_info']['index']\n"
    assert rule(tmp_path, wide)("p", "42", ROW) == 7.0


def test_verls_score_names_a_row_without_a_right_answer(tmp_path):
    with pytest.raises(FileError, match=r"line 3: reward_model\.ground_truth: is missing"):
        rule(tmp_path, VERL.replace("RESULT", "1.0"))("p", "42", {"_origin": "p.jsonl: line 3"})


@pytest.mark.parametrize("result", ["{'points': 1}", "'much'", "float('inf')", "None"])
def test_verls_score_must_be_a_finite_number(tmp_path, result):
    with pytest.raises(UserError, match="allowed: a finite number"):
        rule(tmp_path, VERL.replace("RESULT", result))("p", "42", ROW)


def test_trls_function_is_given_lists_of_texts_and_columns(tmp_path):
    judge = rule(
        tmp_path,
        "def f(prompts, completions, answer, **columns):\n"
        "    assert prompts == ['6 * 7 ='] and columns['level'] == [3], (prompts, columns)\n"
        "    assert not {'prompt', 'completion', '_origin', '_messages'} & set(columns)\n"
        "    return [float(text == wanted) for text, wanted in zip(completions, answer)]\n",
    )
    assert judge("6 * 7 =", "42", ROW) == 1.0
    assert judge("6 * 7 =", "43", ROW) == 0.0


def test_trls_function_may_take_completions_alone(tmp_path):
    for text in (
        "def f(completions, **kwargs):\n    return [len(c) for c in completions]\n",
        "def f(prompts, completions):\n    return [len(c) for c in completions]\n",
        "def f(completions):\n    return (len(c) for c in completions)\n",
    ):
        assert rule(tmp_path, text)("p", "abc", ROW) == 3.0


def test_trls_function_is_given_messages_where_the_prompt_is_a_chat(tmp_path):
    messages = '[{"role": "system", "content": "Add."}, {"role": "user", "content": "6 * 7 ="}]'
    (tmp_path / "p.jsonl").write_text(f'{{"prompt": {messages}, "answer": "42"}}\n')

    class Chat:
        def encode_chat(self, given):
            return "|".join(each["content"] for each in given), [1, 2, 3]

    tokenizer = cast("Tokenizer", Chat())
    (row,) = encode_prompts(load_prompts(tmp_path / "p.jsonl"), tokenizer, 3).rows
    assert row["prompt"] == "Add.|6 * 7 ="
    judge = rule(
        tmp_path,
        "def f(prompts, completions, **columns):\n"
        "    assert [each['role'] for each in prompts[0]] == ['system', 'user']\n"
        "    assert completions[0] == [{'role': 'assistant', 'content': '42'}]\n"
        "    return [float(c[0]['content'] == a) for c, a in zip(completions, columns['answer'])]\n",
    )
    assert judge(row["prompt"], "42", row) == 1.0


def test_a_text_in_a_chat_template_is_still_completed_by_a_text(tmp_path):
    judge = rule(tmp_path, "def f(completions, **_):\n    return [float(completions[0] == 'ab')]\n")
    rows = encode_prompts([{"prompt": "p"}], load_tokenizer("bytes", tmp_path), 3).rows
    assert judge("p", "ab", rows[0]) == 1.0


def test_trls_none_leaves_a_response_without_a_reward(tmp_path):
    assert rule(tmp_path, "def f(completions, **_):\n    return [None]\n")("p", "r", ROW) == 0.0


@pytest.mark.parametrize(
    ("result", "words"), [("[]", "returns 0 rewards for one completion"), ("[1, 2]", "returns 2")]
)
def test_trls_function_returns_a_reward_for_each_completion(tmp_path, result, words):
    with pytest.raises(UserError, match=words):
        rule(tmp_path, f"def f(completions, **_):\n    return {result}\n")("p", "r", ROW)


def test_a_column_that_a_row_does_not_have_is_named(tmp_path):
    with pytest.raises(FileError, match=r"line 3: target: is missing \(the function f takes it\)"):
        rule(tmp_path, "def f(completions, target):\n    return [1.0]\n")("p", "r", ROW)


@pytest.mark.parametrize(
    "head",
    [
        "def f(response)",
        "def f(prompt, response, row, more)",
        "def f(prompt, completion, **columns)",
        "def f(**columns)",
        "def f(solution_str, ground_truth, method='strict')",
        "def f(data_source, solution_str, ground_truth, tokenizer)",
        "def f(completions, completion_ids)",
        "def f(completions, /)",
        "async def f(completions, **columns)",
        "class f:\n  def __init__(self)",
    ],
)
def test_a_function_of_no_known_form_is_refused_with_the_three(tmp_path, head):
    with pytest.raises(FileError) as caught:
        rule(tmp_path, f"{head}:\n    return [1.0]\n")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'rules.py'}: f: ")
    for form in (
        "f(prompt, response, row);",
        "verl's f(data_source, solution_str, ground_truth, extra_info=None);",
        "TRL's f(prompts, completions, **columns)",
    ):
        assert form in message


@pytest.mark.parametrize("head", ["f(a, b, c)", "f(*texts)", "f(prompt, response, row, scale=1)"])
def test_three_parameters_of_any_name_are_the_projects_own_form(tmp_path, head):
    assert rule(tmp_path, f"def {head}:\n    return 1.0\n")("p", "r", ROW) == 1.0


def test_workers_judge_by_every_form(tmp_path):
    (tmp_path / "rules.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': float(solution_str == ground_truth)}\n"
        "def cost(prompts, completions, **columns):\n"
        "    return [float(len(each)) for each in completions]\n"
    )
    job = replace(
        make_job("safe-rlhf", prompt_tokens=9, response_tokens=5),
        rewards=Rewards(function="rules.py:score", cost_function="rules.py:cost"),
    )
    judge = judging(job, [{"prompt": "say x", "answer": "xxxxx"}], tmp_path)
    assert judge("rules.py:score") == judge("rules.py:cost") == job.workload.sequences
