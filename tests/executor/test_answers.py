"""Answers found in responses: numbers, boxes, GSM8K's mark, a response's form, and mathematics."""

import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import CapabilityError, FileError
from rlplan.executor.learning.answers import last_boxed, last_number, same_answer
from rlplan.executor.learning.rules import load_rule

HERE = Path()


def judged(rule, answer, response):
    return load_rule(rule, HERE)("q", response, {"answer": answer, "_origin": "p.jsonl: line 3"})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is 42.", Fraction(42)),
        ("3 + 4 = 7, so 7", Fraction(7)),
        ("10-4", Fraction(4)),
        ("x = -4", Fraction(-4)),
        ("(-4)", Fraction(-4)),
        ("\u22124", Fraction(-4)),
        ("$1,234.50!", Fraction("1234.5")),
        ("1,2,3", Fraction(3)),
        ("1,2345", Fraction(2345)),
        (".5", Fraction(1, 2)),
        ("007", Fraction(7)),
        ("80%", Fraction(80)),
        ("none", None),
        ("", None),
        ("\u0663", None),
        ("9" * 1000, None),
    ],
)
def test_the_last_number_of_a_text_is_found(text, number):
    assert last_number(text) == number


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, places=3, max_value=10**12, min_value=-(10**12)
    )
)
def test_a_number_is_found_however_its_thousands_are_parted(number):
    assert (
        last_number(f"12 so {number:f}") == last_number(f"it is {number:,f}.") == Fraction(number)
    )


@pytest.mark.parametrize(
    ("answer", "response", "reward"),
    [
        (" 42", "It is 42.", 1.0),
        (42, "42.0", 1.0),
        ("1,000", "1000 apples", 1.0),
        ("6 * 7 = #### 42", "42", 1.0),
        ("42", "42 or 43", 0.0),
        ("42", "none", 0.0),
        ("42", "", 0.0),
    ],
)
def test_numeric_match_compares_the_last_number(answer, response, reward):
    assert judged("numeric_match", answer, response) == reward


@pytest.mark.parametrize("rule", ["numeric_match", "gsm8k"])
def test_an_answer_without_a_number_names_its_row(rule):
    with pytest.raises(FileError, match=r"p\.jsonl: line 3: answer: has no number; found 'yes'"):
        judged(rule, "yes", "42")


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed {\{1\}}", r"\{1\}"),
        (r"\boxed{}", ""),
        (r"boxed{1}", None),
        ("", None),
    ],
)
def test_the_last_box_whose_braces_close_is_found(text, boxed):
    assert last_boxed(text) == boxed


@pytest.mark.parametrize(
    ("answer", "response", "reward"),
    [
        ("42", r"so \boxed{42}", 1.0),
        ("0.5", r"\boxed{\frac{1}{2}}", 1.0),
        ("-1/2", r"\boxed{-\dfrac{1}{2}}", 1.0),
        (r"Thus \boxed{\sqrt{2}}", r"\boxed{ \sqrt{2}\, }", 1.0),
        ("1000", r"\boxed{1{,}000}", 0.0),  # nothing is simplified
        ("42", "42", 0.0),
        ("42", r"\boxed{42} or \boxed{43}", 0.0),
        ("1/0", r"\boxed{1/0}", 1.0),
    ],
)
def test_boxed_match_compares_what_is_in_the_last_box(answer, response, reward):
    assert judged("boxed_match", answer, response) == reward


@given(st.text(alphabet="0123456789/.,-{}$ x"), st.text(alphabet="0123456789/.,-{}$ x"))
def test_sameness_of_answers_is_symmetric_and_reflexive(ours, theirs):
    assert same_answer(ours, ours)
    assert same_answer(ours, theirs) == same_answer(theirs, ours)


@pytest.mark.parametrize(
    ("answer", "response", "reward"),
    [
        ("42", "6 * 7 = 42\n#### 42", 1.0),
        ("6 * 7 = <<6*7=42>>42\n#### 42", "#### 42.00", 1.0),
        ("1,200", "####$1200", 1.0),
        ("-3", "#### -3", 1.0),
        ("42", "It is 42", 0.0),
        ("42", "#### 42 or #### 43", 0.0),
        ("42", "####", 0.0),
    ],
)
def test_gsm8k_wants_the_number_behind_the_last_mark(answer, response, reward):
    assert judged("gsm8k", answer, response) == reward


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("<think>7\n6</think>\n<answer>42</answer>", 1.0),
        (" <think></think><answer></answer>\n", 1.0),
        ("<think>a</think><answer>42</answer>!", 0.0),
        ("<think>a</think>so<answer>42</answer>", 0.0),
        ("<think>a</think><think>b</think><answer>42</answer>", 0.0),
        ("<answer>42</answer><think>a</think>", 0.0),
        ("42", 0.0),
    ],
)
def test_format_match_wants_thoughts_and_an_answer_in_their_tags(response, reward):
    assert load_rule("format_match", HERE)("q", response, {}) == reward


@pytest.mark.parametrize(
    ("response", "reward"), [("yes", 1.0), ("no\nbut", 1.0), ("yes!", 0.0), ("", 0.0)]
)
def test_format_match_wants_the_rows_own_form_of_the_whole_response(response, reward):
    assert load_rule("format_match", HERE)("q", response, {"format": "yes|no.*"}) == reward


@pytest.mark.parametrize("pattern", ["(", 3])
def test_a_form_that_cannot_be_read_names_its_row(pattern):
    row = {"format": pattern, "_origin": "p.jsonl: line 3"}
    with pytest.raises(FileError, match=r"line 3: format: .*allowed: a regular expression"):
        load_rule("format_match", HERE)("q", "r", row)


def test_math_verify_is_refused_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr("rlplan.executor.learning.rules.math_verify.find_spec", lambda _: None)
    with pytest.raises(CapabilityError, match=r"needs the package math-verify; install it with"):
        load_rule("math_verify", HERE)


def test_math_verify_asks_the_package_what_is_the_same(monkeypatch):
    """A bare answer that it finds nothing in is read once more as mathematics."""
    parsed = []

    def parse(text):
        parsed.append(text)
        return [] if text == "x^2" else [text.strip("$ ")]

    package = SimpleNamespace(parse=parse, verify=lambda gold, target: gold == target)
    monkeypatch.setitem(sys.modules, "math_verify", package)
    monkeypatch.setattr("rlplan.executor.learning.rules.math_verify.find_spec", lambda _: package)
    assert judged("math_verify", "x^2", " $x^2$") == 1.0
    assert parsed == ["x^2", "$x^2$", " $x^2$"]
    assert judged("math_verify", "42", "43") == 0.0


@pytest.mark.full
@pytest.mark.parametrize(
    ("answer", "response", "reward"),
    [
        ("1/2", r"so \boxed{\frac{1}{2}}", 1.0),
        ("x^2+2x+1", "$(x+1)^2$", 1.0),
        ("42", "It is 43.", 0.0),
        ("42", "", 0.0),
    ],
)
def test_math_verify_compares_meanings(answer, response, reward):
    assert judged("math_verify", answer, response) == reward
