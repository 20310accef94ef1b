"""Environments: what they answer, and what becomes of a user's own that is wrong."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError, UnknownNameError, UserError
from rlplan.executor.data.batches import OBSERVATION, PROMPT, RESPONSE
from rlplan.executor.environments import (
    Step,
    check_sources,
    environment_names,
    load_environment,
    made,
    reset,
    step,
)
from rlplan.executor.environments.calculator import computed
from rlplan.executor.rollout.sessions import padded_responses
from rlplan.executor.workers.episodes import (
    BROKEN_OFF,
    Episode,
    EpisodeStart,
    LocalHost,
    kinds_of,
    turns_of,
)
from rlplan.profiles.catalog import load_job
from rlplan.workload import Environment, Uniform

HERE = Path()
EXAMPLE = Path(__file__).parents[2] / "examples" / "turns" / "job.yaml"


def write(folder, text):
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return folder


def played(folder, text, name="Mine"):
    source = f"mine.py:{name}"
    return load_environment(source, write(folder, text))(), source


def test_the_calculator_computes_and_judges_an_answer():
    tool = load_environment("calculator", HERE)()
    assert reset(tool, "calculator", "7 * 6?", {"answer": "42"}) == ""
    assert step(tool, "calculator", "<calc>7*6</calc>") == Step(" = 42\n")
    assert step(tool, "calculator", "it is 42") == Step(reward=1.0, ends=True)
    assert step(tool, "calculator", "it is 43") == Step(reward=0.0, ends=True)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 * (3 + 4)", "14"),
        ("-1/4", "-0.25"),
        ("1/0", "division by zero"),
        ("__import__('os')", "not understood"),
        ("9**9**9", "not understood"),
        ("1" * 101, "too long"),
        ("", "not understood"),
    ],
)
def test_the_calculator_knows_arithmetic_and_nothing_else(expression, value):
    assert computed(expression) == value


def test_each_wrong_guess_halves_what_the_right_one_is_worth():
    game = load_environment("guess", HERE)()
    reset(game, "guess", "m?", {})
    answers = [step(game, "guess", letter) for letter in ("a", "z", "7", "m")]
    assert [each.observation for each in answers] == ["later\n", "earlier\n", "?\n", ""]
    assert answers[-1] == Step(reward=0.125, ends=True)


def test_a_plain_function_sees_all_responses_so_far(tmp_path):
    text = (
        "def play(prompt, responses, row):\n"
        "    return f'{row[\"n\"]} {len(responses)}', len(responses), len(responses) == 2\n"
    )
    game, source = played(tmp_path, text, "play")
    assert reset(game, source, "p", {"n": 3}) == ""
    assert step(game, source, "a") == Step("3 1", 1.0, ends=False)
    assert step(game, source, "b") == Step("3 2", 2.0, ends=True)


def test_a_class_may_answer_as_gymnasium_does(tmp_path):
    text = (
        "class Mine:\n"
        "    def reset(self, prompt, row): return 'go'\n"
        "    def step(self, response): return 'done', 1, False, True, {}\n"
    )
    game, source = played(tmp_path, text)
    assert reset(game, source, "p", {}) == "go"
    assert step(game, source, "x") == Step("done", 1.0, ends=True)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("'text'", "step returned 'text'; allowed: (observation, reward, ends)"),
        ("('o', float('nan'), False)", "found nan as a reward"),
        ("('o', 'much', False)", "found 'much' as a reward"),
        ("('o', 1e39, False)", "found 1e+39 as a reward"),
        ("(7, 1.0, False)", "an observation is of type int; allowed: a text"),
        ("1 / 0", "step fails: ZeroDivisionError"),
        ("exit(2)", "step fails: SystemExit: 2"),
    ],
)
def test_a_wrong_answer_is_one_message(tmp_path, answer, said):
    text = (
        "class Mine:\n    def reset(self, prompt, row): pass\n"
        f"    def step(self, response): return {answer}\n"
    )
    game, source = played(tmp_path, text)
    reset(game, source, "p", {})
    with pytest.raises(UserError) as refusal:
        step(game, source, "x")
    assert f"environment mine.py:Mine: {said}" in str(refusal.value)


def test_an_environment_that_cannot_be_made_is_one_message(tmp_path):
    text = (
        "class Mine:\n    def __init__(self): raise OSError('no\\nspace')\n"
        "    def reset(self, prompt, row): pass\n    def step(self, response): pass\n"
    )
    making = load_environment("mine.py:Mine", write(tmp_path, text))
    with pytest.raises(UserError) as refusal:
        made(making, "mine.py:Mine")
    assert str(refusal.value) == "environment mine.py:Mine: cannot be made: OSError: no space"


def test_a_reward_that_is_no_number_is_refused_however_it_is_answered():
    class Spoilt:
        """Stands for an environment of Gymnasium too, whose answers come as steps."""

        def reset(self, prompt, row):
            del prompt, row

        def step(self, response):
            del response
            return Step(reward=float("nan"))

    with pytest.raises(UserError, match="environment spoilt: found nan as a reward"):
        step(Spoilt(), "spoilt", "x")


def test_what_cannot_be_played_is_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="calculator"):
        load_environment("calculater", HERE)
    with pytest.raises(FileError, match="no such file"):
        load_environment("none.py:Mine", tmp_path)
    with pytest.raises(UserError, match=r"mine\.py:Mine: has no method step"):
        played(tmp_path, "class Mine:\n    def reset(self, prompt, row): pass\n")


def test_a_job_names_environments_that_there_are():
    job = load_job(EXAMPLE)
    check_sources(job, "job.yaml")
    assert [each.source for each in job.environments] == list(environment_names())
    for source in ("a.py:B", "CartPole-v1", None):
        check_sources(with_source(job, source), "job.yaml")
    with pytest.raises(FileError) as refusal:
        check_sources(with_source(job, "calculater"), "job.yaml")
    assert str(refusal.value) == (
        "job.yaml: workload.environments.0.source: no such environment; found 'calculater'; allowed: "
        "calculator, guess, path/to/file.py:name, or a Gymnasium id such as CartPole-v1; "
        "did you mean 'calculator'?"
    )


def with_source(job, source):
    first = replace(job.environments[0], source=source)
    work = replace(job.workload, environments=(first, *job.environments[1:]))
    return replace(job, workload=work)


class Corridor:
    """Play as Gymnasium has it: one of two actions, three steps to the end."""

    def __init__(self, space):
        self.action_space, self.at = space, 0

    def reset(self, seed=None):
        self.at = seed or 0
        return [self.at], {}

    def step(self, action):
        self.at += action
        return [self.at], 1.0, self.at == 3, False, {}

    def close(self):
        pass


class Discrete:
    def contains(self, number):
        return number in (0, 1)


@pytest.fixture
def gymnasium(monkeypatch):
    spaces = {"Corridor-v0": Discrete(), "Arm-v0": SimpleNamespace()}
    library = SimpleNamespace(
        make=lambda name: Corridor(spaces[name]), error=SimpleNamespace(Error=KeyError)
    )
    monkeypatch.setitem(sys.modules, "gymnasium", library)


def test_gymnasium_is_played_by_the_first_number_of_a_response(gymnasium):
    game = load_environment("Corridor-v0", HERE)()
    assert reset(game, "Corridor-v0", "p", {"seed": 2}) == "\n[2]\n"
    assert step(game, "Corridor-v0", "I take 0") == Step("\n[2]\n", 1.0)
    assert step(game, "Corridor-v0", "1!") == Step("\n[3]\n", 1.0, ends=True)
    assert step(game, "Corridor-v0", "9") == Step(ends=True)


def test_gymnasium_says_what_it_cannot_be_played_with(gymnasium, monkeypatch):
    with pytest.raises(UserError, match="space SimpleNamespace; allowed: Discrete, Text"):
        load_environment("Arm-v0", HERE)
    with pytest.raises(UserError, match="environment None-v3"):
        load_environment("None-v3", HERE)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(UserError, match="is not installed"):
        load_environment("Corridor-v0", HERE)


def test_a_step_beyond_its_limit_is_broken_off(tmp_path):
    text = (
        "import threading\n"
        "class Mine:\n    def reset(self, prompt, row): pass\n"
        "    def step(self, response): threading.Event().wait()\n"
    )
    write(tmp_path, text)
    slow = Environment(
        name="slow", source="mine.py:Mine", step_seconds=1.0, step_limit_seconds=0.01
    )
    host = LocalHost((slow,), tmp_path)
    host.ask(0, EpisodeStart(0, 0, "p", {}))
    assert host.answered(None) == {0: ""}
    begun = time.monotonic()
    host.ask(0, "x")
    assert host.answered(None) == {0: BROKEN_OFF}
    assert time.monotonic() - begun > 0.009


def environment(**changes):
    return Environment(name="e", source="guess", step_seconds=0.1, **changes)


def test_prompts_are_shared_out_as_environments_ask():
    both = (environment(share=0.25), environment(share=0.75))
    assert kinds_of(both, 8).tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    turns = turns_of(
        (environment(turns=2), environment(turns=Uniform(low=3, high=5))), np.array([0, 1, 1]), 7
    )
    assert turns[0] == 2
    assert set(turns[1:]) <= {3, 4, 5}


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=5
    ),
    st.integers(0, 2**16),
)
def test_what_is_generated_and_observed_stands_once_and_within_its_budget(drawn, seed):
    rng = np.random.default_rng(seed)
    episodes, said = [], [[] for _ in drawn]
    for row, (prompt, budget, turns) in enumerate(drawn):
        tokens = rng.integers(1, 99, prompt)
        episode = Episode(batch=0, row=row, prompt=tokens, most_tokens=budget, most_turns=turns)
        while episode.goes_on:
            turn = episode.next_turn()
            held = [*tokens.tolist(), *(token for token, _ in said[row])]
            assert turn.prompt.tolist() == held
            answer = rng.integers(100, 200, rng.integers(1, turn.most_tokens + 1)).tolist()
            turn.tokens, turn.log_probs = answer, [token / 1000 for token in answer]
            turn.versions = [0] * len(answer)
            episode.add(turn)
            said[row] += [(token, RESPONSE) for token in answer]
            if episode.goes_on:
                seen = rng.integers(200, 300, rng.integers(0, 3)).tolist()
                episode.observe(seen)
                said[row] += [(token, OBSERVATION) for token in seen]
        assert episode.turn <= turns
        episodes.append(episode)
    whole = padded_responses(episodes, 5, 20)
    assert whole["tokens"].shape[1] >= 25
    for row, (prompt, budget, _) in enumerate(drawn):
        tokens, parts = whole["tokens"][row], whole["parts"][row]
        held = [(int(t), int(p)) for t, p in zip(tokens, parts, strict=True) if p > PROMPT]
        assert held == said[row]
        assert (parts == RESPONSE).sum() <= budget
        assert tokens[parts == PROMPT].tolist() == episodes[row].prompt.tolist()
        assert len(episodes[row].prompt) == prompt
        assert (whole["log_probs"][row][parts != RESPONSE] == 0).all()
