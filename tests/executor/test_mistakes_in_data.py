"""All mistakes of a job's data at once, one of each kind, before anything starts."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError, PlanError, SeveralMistakesError, UserError
from rlplan.executor.data.prompt_files import NeededColumns, one_of_each_kind
from rlplan.executor.data.workload import PromptBatches, read_data
from rlplan.executor.learning.rules import needed_columns
from rlplan.job import Pretrain, Rewards
from rlplan.workload import Evaluation
from tests.executor.plans import make_job
from tests.executor.test_tokenizer import write_tokenizer

HELD_OUT = Evaluation(prompts_file="held-out.jsonl")
RIGHT = {"numeric_match": "42", "gsm8k": "#### 42"}
LINES = """\
{"prompt": "2 + 3", "answer": 5}
{"promt": "3 + 4", "answer": 7}
{"prompt": "4 + 5"}
{"prompt": "12345 + 6789", "answer": 19134}
{"prompt": "1234567 + 11", "answer": 1234578}
{"prompt": "1 + 1", "answer": 2
{"prompt": "1 + 2", "answr": 3}
"""


def write(folder, text=LINES, **changes):
    (folder / "prompts.jsonl").write_text(text, encoding="utf-8")
    return replace(make_job(prompt_tokens=8), prompts_file="prompts.jsonl", **changes)


def said(job, folder, columns=("answer",)):
    found = read_data(job, folder, NeededColumns(columns)).mistakes
    return [str(each).replace(f"{folder}/", "") for each in found]


def test_every_kind_of_mistake_is_said_once_with_its_first_row(tmp_path):
    assert said(write(tmp_path), tmp_path) == [
        "prompts.jsonl: line 6: is not JSON: Expecting ',' delimiter: line 1 column 32 (char 31); allowed: a JSON object on each line",
        "prompts.jsonl: line 2: prompt: is missing; did you mean 'promt'?",
        "prompts.jsonl: line 3: answer: is missing (the job's rule compares with it) (and 1 more like it)",
        "prompts.jsonl: line 4: prompt: has 13 tokens, and 1 more have too many or none (the longest 13); allowed: 1 to 8 (workload.prompt_tokens), or prompt_data.too_long: drop",
    ]


def test_an_answer_that_is_nothing_is_missing(tmp_path):
    """Before anything starts, and not in the iteration whose batch has the row."""
    rows = '{"prompt": "1 + 1", "answer": 2}\n{"prompt": "1 + 2", "answer": null}\n'
    assert said(write(tmp_path, rows), tmp_path) == [
        "prompts.jsonl: line 2: answer: is missing (the job's rule compares with it)"
    ]


@pytest.mark.parametrize("file", ["prompts.jsonl", "held-out.jsonl"])
@pytest.mark.parametrize("rule", ["numeric_match", "gsm8k"])
def test_an_answer_that_a_rule_cannot_use_is_refused_before_anything_starts(tmp_path, rule, file):
    right = '{"prompt": "a", "answer": "#### 2"}\n'
    rewards = Rewards(function=rule, function_seconds_per_sample=1e-4)
    job = write(tmp_path, right, rewards=rewards, evaluation=HELD_OUT)
    (tmp_path / "held-out.jsonl").write_text(right)
    (tmp_path / file).write_text(f'{right}{{"prompt": "b", "answer": "two"}}\n{{"prompt": "c"}}\n')
    found = read_data(job, tmp_path, needed_columns(job)).mistakes
    assert [str(each).partition(f"{file}: ")[2] for each in found] == [
        f"line 2: answer: has no number; found 'two'; allowed: {RIGHT[rule]}",
        "line 3: answer: is missing (the job's rule compares with it)",
    ]


def test_a_run_refuses_them_all_as_one(tmp_path):
    with pytest.raises(
        SeveralMistakesError, match=r"^4 mistakes: \(1\) .*line 6.*\(4\) .*line 4"
    ) as found:
        PromptBatches(write(tmp_path), tmp_path, NeededColumns(("answer",)))
    assert [type(each) for each in found.value.errors] == [FileError] * 4
    assert found.value.exit_code == 2


def test_a_single_mistake_is_raised_as_it_is(tmp_path):
    with pytest.raises(FileError, match="line 1: prompt: has 13 tokens; allowed: 1 to 8"):
        PromptBatches(write(tmp_path, '{"prompt": "12345 + 6789"}'), tmp_path)


def test_a_tokenizer_that_is_missing_hides_no_mistake_of_rows(tmp_path):
    first, *others = said(write(tmp_path, tokenizer="nowhere"), tmp_path)
    assert first.startswith("unknown tokenizer 'nowhere'")
    assert len(others) == 3  # lengths need the tokenizer


def test_a_chat_that_no_template_takes_is_one_mistake_of_many_rows(tmp_path):
    write_tokenizer(tmp_path / "words", eos_token="<eos>")
    chat = json.dumps({"prompt": [{"role": "user", "content": "one"}]})
    (only,) = said(write(tmp_path, f"{chat}\n" * 3, tokenizer="words"), tmp_path, ())
    assert "line 1: prompt: is a chat" in only
    assert "(and 2 more like it)" in only


def test_a_small_vocabulary_and_broken_texts_are_said_beside_the_prompts(tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"txt": "a"}')
    job = write(tmp_path, '{"question": "a"}', pretrain=Pretrain(file="texts.jsonl"))
    small = replace(job.models["actor"], vocab_size=100)
    job = replace(job, models=type(job.models)(dict.fromkeys(job.models, small)))
    found = read_data(job, tmp_path).mistakes
    assert [type(each) for each in found] == [PlanError, FileError, FileError]
    assert [getattr(each, "field", None) for each in found] == [None, "prompt", "text"]


def test_data_without_mistakes_is_read_whole(tmp_path):
    job = write(tmp_path, '{"prompt": "a", "answer": 1}\n{"prompt": "b", "answer": 2}\n')
    data = read_data(job, tmp_path, NeededColumns(("answer",)))
    encode = data.tokenizer.encode
    assert (data.mistakes, data.prompts.tokens) == ([], [encode("a"), encode("b")])


@pytest.mark.parametrize(
    ("rule", "columns"),
    [
        ("digits", ()),
        ("exact_match", ("answer",)),
        ("python_tests", ("tests",)),
        ("own.py:score", ()),
    ],
)
def test_built_in_rules_name_the_columns_that_they_need(rule, columns):
    job = replace(make_job(), rewards=Rewards(function=rule, function_seconds_per_sample=1e-4))
    assert needed_columns(job)[:2] == (columns, ())
    judged = replace(job, evaluation=Evaluation(prompts_file="held-out.jsonl"))
    assert needed_columns(judged)[:2] == (columns, columns)
    other = Evaluation(prompts_file="held-out.jsonl", function="digits")
    assert needed_columns(replace(job, evaluation=other))[:2] == (columns, ())


def test_held_out_prompts_are_read_as_those_that_are_learnt_from(tmp_path):
    job = write(tmp_path, '{"prompt": "a"}\n', evaluation=HELD_OUT)
    (tmp_path / "held-out.jsonl").write_text(LINES, encoding="utf-8")
    found = read_data(job, tmp_path, NeededColumns((), ("answer",))).mistakes
    assert [str(each).partition("held-out.jsonl: ")[2][:6] for each in found] == [
        "line 6",
        "line 2",
        "line 3",
        "line 4",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"evaluation": replace(HELD_OUT, samples_per_prompt=2)}, "temperature: gives the same"),
        ({"rewards": None}, "rewards.function: has nobody who judges"),
    ],
)
def test_an_evaluation_that_contradicts_its_job_is_refused(tmp_path, changes, words):
    job = write(tmp_path, '{"prompt": "a"}\n', **{"evaluation": HELD_OUT, **changes})
    (tmp_path / "held-out.jsonl").write_text('{"prompt": "b"}\n', encoding="utf-8")
    (mistake,) = read_data(job, tmp_path).mistakes
    assert words in str(mistake)


KINDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99)), max_size=20)


@given(KINDS)
def test_kinds_are_kept_in_order_and_counted(pairs):
    rows = [
        FileError(f"x: line {n}", f"has {many} tokens", field=field)
        for n, (field, many) in enumerate(pairs)
    ]
    found = [each for each in one_of_each_kind(rows) if isinstance(each, FileError)]
    fields = [field for field, _ in pairs]
    assert [each.field for each in found] == list(dict.fromkeys(fields))
    for each in found:
        assert ("like it" in each.problem) == (fields.count(each.field) > 1)


def test_mistakes_that_are_of_no_file_stay_apart():
    one, other = PlanError("a"), UserError("b")
    assert one_of_each_kind([one, other]) == [one, other]
