"""Episodes over many calls, with turns and environments that take as long as they like."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.executor.data.batches import OBSERVATION, RESPONSE
from rlplan.executor.environments import Step
from rlplan.executor.workers.episodes import Episode, EpisodeSession
from rlplan.workload import Environment
from tests.cases import draws

EOS = 0
ECHO = Environment(name="echo", source="echo", observation_tokens=3, step_seconds=0.001, turns=4)


class Turns:
    """Say random tokens, a few of each turn in a call, in waves or together."""

    def __init__(self, rng, room, joins):
        self.rng, self.room, self.joins = rng, room, joins
        self.waiting, self.wave, self.begun, self.weights = [], [], [], 0

    @property
    def running(self):
        return len(self.waiting) + len(self.wave)

    def begin(self, responses):
        self.begun.append([each.row for each in responses])
        self.waiting += responses

    def take_weights(self):
        self.weights += 1

    def advance(self, steps, version):
        if self.joins or not self.wave:
            room = self.room - len(self.wave)
            self.wave, self.waiting = self.wave + self.waiting[:room], self.waiting[room:]
        for each in self.wave:
            for _ in range(min(steps, each.most_tokens - len(each.tokens))):
                each.tokens.append(int(self.rng.integers(0, 9)))
                each.log_probs.append(-1.0)
                each.versions.append(version)
                if each.tokens[-1] == EOS:
                    break
        ended = [each for each in self.wave if each.has_ended((EOS,))]
        self.wave = [each for each in self.wave if each not in ended]
        return ended


class Hosts:
    """Answer when it pleases, at most so many at a time; remember what was said."""

    def __init__(self, rng):
        self.rng, self.asked, self.said = rng, {}, {}
        self.kinds, self.most = {}, Counter()

    def ask(self, episode, question):
        assert episode not in self.asked
        self.asked[episode] = question
        if not isinstance(question, str):
            self.kinds[episode] = question.kind
            self.most |= Counter(self.kinds.values())

    def answered(self, most_seconds):
        chosen = [each for each in self.asked if most_seconds or self.rng.random() < 0.5]
        return {each: self._answer(each, self.asked.pop(each)) for each in chosen}

    def _answer(self, episode, question):
        if not isinstance(question, str):
            self.said[episode] = []
            return "begin"
        self.said[episode].append(question)
        return Step("x" * len(self.said[episode]), 1.0, ends=self.rng.random() < 0.2)

    def forget(self, episode):
        assert episode not in self.asked
        del self.kinds[episode]


def session_of(turns, hosts, *environments, **changes):
    environments = environments or (ECHO,)
    return EpisodeSession(
        turns,
        hosts,
        environments,
        lambda text: [ord(letter) for letter in text],
        lambda tokens: " ".join(map(str, tokens)),
        instances=[each.instances for each in environments],
        **({"most": None, "in_step": False} | changes),
    )


def episode(row, most_tokens, most_turns, kind=0):
    return Episode(
        batch=0,
        row=row,
        prompt=np.array([1]),
        most_tokens=most_tokens,
        most_turns=most_turns,
        text="p",
        kind=kind,
    )


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=6),
    st.sampled_from([(None, False), (None, True), (1, True)]),
    st.integers(1, 4),
    st.integers(0, 2**16),
)
@settings(max_examples=draws(50, 400))
def test_every_episode_ends_once_and_holds_what_was_said_in_turn(drawn, how, steps, seed):
    rng = np.random.default_rng(seed)
    most, in_step = how
    turns, hosts = Turns(rng, 3, joins=not in_step), Hosts(rng)
    session = session_of(turns, hosts, most=most, in_step=in_step)
    given_now = [episode(row, *each) for row, each in enumerate(drawn)]
    session.begin(given_now[:3])
    ended, version = [], 0
    for call in range(4000):
        if call == 2:
            session.begin(given_now[3:])
        if rng.random() < 0.2:
            version += 1
            session.take_weights()
        ended += session.advance(steps, version)
        assert most is None or len(session._under_way) <= most
        if call > 2 and not session.running:
            break
    assert Counter(each.row for each in ended) == dict.fromkeys(range(len(drawn)), 1)
    assert session.is_between_waves
    for each, (most_tokens, most_turns) in ((each, drawn[each.row]) for each in ended):
        count = len(each.tokens)
        assert count == len(each.marks) == len(each.log_probs) == len(each.versions)
        assert each.said == each.marks.count(RESPONSE) <= most_tokens
        assert each.turn == each.reward <= most_turns
        versions = [
            of for of, mark in zip(each.versions, each.marks, strict=True) if mark == RESPONSE
        ]
        assert versions == sorted(versions)
        assert {
            log_prob
            for log_prob, mark in zip(each.log_probs, each.marks, strict=True)
            if mark == OBSERVATION
        } <= {0.0}
        seen = [t for t, mark in zip(each.tokens, each.marks, strict=True) if mark == OBSERVATION]
        shown = "beg" + "".join("x" * min(3, turn) for turn in range(1, each.turn))
        assert seen == [ord(letter) for letter in shown]
    assert turns.weights == version


def test_episodes_in_step_answer_in_the_waves_of_a_whole_batch():
    rng = np.random.default_rng(3)
    turns, hosts = Turns(rng, 2, joins=False), Hosts(rng)
    session = session_of(turns, hosts, in_step=True)
    session.begin([episode(row, 8, 2) for row in (4, 1, 3)])
    while session.running:
        session.advance(2, 0)
    begun = [each for each in turns.begun if each]
    assert begun[0] == [4, 1, 3]
    assert len(begun) <= 2
    assert all(row in begun[0] for row in begun[-1])


@pytest.mark.parametrize("in_step", [True, False])
def test_episodes_wait_for_an_instance_of_their_environment(in_step):
    """Two of the first environment at a time, and all of the second one."""
    few, free = replace(ECHO, instances=2), replace(ECHO, name="free")
    rng = np.random.default_rng(5)
    turns, hosts = Turns(rng, 9, joins=not in_step), Hosts(rng)
    session = session_of(turns, hosts, few, free, in_step=in_step)
    session.begin([episode(row, 8, 4, kind=row // 7) for row in range(10)])
    ended = []
    while session.running:
        ended += session.advance(2, 0)
    assert hosts.most == {0: 2, 1: 3}
    assert sorted(each.row for each in ended) == list(range(10))


def test_an_episode_beyond_its_limit_gets_no_further_turn():
    rng = np.random.default_rng(1)
    late = Environment(
        name="late",
        source="late",
        turns=4,
        step_seconds=1.0,
        episode_limit_seconds=1e-9,
        observation_tokens=1,
    )
    session = session_of(Turns(rng, 2, joins=True), Hosts(rng), late)
    session.begin([episode(0, 8, 4)])
    ended = []
    while session.running:
        ended += session.advance(2, 0)
    assert [each.turn for each in ended] == [1]
