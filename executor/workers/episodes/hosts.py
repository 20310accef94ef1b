"""Processes that play environments for a generating rank, and the wait for their answers."""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import ray

from rlplan.errors import RlplanError
from rlplan.executor.environments import Playable, Step, load_environment, reset, step
from rlplan.executor.workers.pools import fetched, is_lost
from rlplan.workload.environment import Environment

# What a step that took too long, or whose episode did, is answered with.
BROKEN_OFF = Step(ends=True)


class Beginning(NamedTuple):
    """Say which episode begins: its number, its environment's place in the job, its prompt and row."""

    episode: int
    kind: int
    prompt: str
    row: dict[str, Any]


# What is asked of an episode's environment: to begin, or to answer a response.
Question = Beginning | str


class EnvironmentHosts(Protocol):
    """Play episodes for a rank that generates."""

    def ask(self, episode: int, question: Question) -> None:
        """Let an episode begin, or answer its response; each has one question at a time."""

    def answered(self, most_seconds: float | None) -> dict[int, Any]:
        """Return by episode what was answered: a text to a beginning, a step to a response.

        Args:
            most_seconds: That it waits for the first answer; None: for ever. Nothing asked: it does not wait.

        Raises:
            UserError: An environment of the user's fails.
            RlplanError: A process that plays environments ended twice with one question.
        """

    def forget(self, episode: int) -> None:
        """Forget an episode."""


class LocalHost:
    """Play episodes in this process, one step at a time; what is asked is answered at once.

    Args:
        folder: What relative paths of environments are relative to.
    """

    def __init__(self, environments: Sequence[Environment], folder: Path) -> None:
        self._environments = environments
        self._makings = [load_environment(_source(each), folder) for each in environments]
        self._played: dict[int, tuple[Playable, int]] = {}
        self._answers: dict[int, str | Step] = {}

    def begin(self, beginning: Beginning) -> str:
        """Begin an episode."""
        played = self._makings[beginning.kind]()
        self._played[beginning.episode] = played, beginning.kind
        source = _source(self._environments[beginning.kind])
        return reset(played, source, beginning.prompt, beginning.row)

    def answer(self, episode: int, response: str) -> Step:
        """Answer a response, within the limit that its environment has for a step."""
        played, kind = self._played[episode]
        environment = self._environments[kind]
        source, limit = _source(environment), environment.step_limit_seconds
        if limit is None:
            return step(played, source, response)
        return _within(limit, played, source, response)

    def ask(self, episode: int, question: Question) -> None:
        """Let an episode begin, or answer its response."""
        if isinstance(question, str):
            self._answers[episode] = self.answer(episode, question)
        else:
            self._answers[episode] = self.begin(question)

    def answered(self, most_seconds: float | None) -> dict[int, Any]:  # noqa: ARG002 -- all is answered
        """Return by episode what was answered."""
        answers, self._answers = self._answers, {}
        return answers

    def forget(self, episode: int) -> None:
        """Forget an episode."""
        self._played.pop(episode, None)


def _within(limit_seconds: float, played: Playable, source: str, response: str) -> Step:
    """Return a step's answer, or that it was broken off.

    A thread cannot be ended: one that goes on beyond its limit is left alone, and nobody listens to it.
    """
    found: list[Step | Exception] = []

    def run() -> None:
        try:
            found.append(step(played, source, response))
        except Exception as error:  # noqa: BLE001  # raised again where it was asked for
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_seconds)
    answer = found[0] if found else BROKEN_OFF
    if isinstance(answer, Exception):
        raise answer
    return answer


def _source(environment: Environment) -> str:
    assert environment.source is not None, "environments without a source are refused before"
    return environment.source


@dataclass(slots=True)
class _Episode:
    """Hold what was asked of an episode, so that another process can play it again up to here."""

    beginning: Beginning
    has_begun: bool = False
    responses: list[str] = field(default_factory=list)

    def note(self, question: Question) -> None:
        """Note what was answered."""
        if isinstance(question, str):
            self.responses.append(question)
        else:
            self.has_begun = True


class _Asked(NamedTuple):
    """Hold a question that is not answered yet.

    Attributes:
        life: Which of the processes that played the episode one after another was asked.
        is_again: Whether the one before ended without an answer.
    """

    episode: int
    question: Question
    life: int
    is_again: bool


class RemoteHosts:
    """Play episodes in processes of their own, each with several threads.

    Steps wait for tools more than they compute, so a process plays many; how many steps run at a time is
    `workers`. A process that is lost is started again, and its episodes are played again with the same responses.

    Args:
        workers: Steps that run at a time.
    """

    def __init__(self, environments: Sequence[Environment], folder: Path, workers: int) -> None:
        self._given = tuple(environments), folder
        processes = min(workers, os.cpu_count() or 1)
        self._threads = -(-workers // processes)
        self._hosts = [self._start() for _ in range(processes)]
        self._lives = [0] * processes
        self._episodes: dict[int, _Episode] = {}
        self._asked: dict[Any, _Asked] = {}

    def _start(self) -> Any:
        actor = ray.remote(LocalHost).options(num_cpus=0, max_concurrency=self._threads)
        return actor.remote(*self._given)

    def ask(self, episode: int, question: Question) -> None:
        """Let an episode begin, or answer its response; return at once."""
        if not isinstance(question, str):
            self._episodes[episode] = _Episode(question)
        self._send(episode, question, is_again=False)

    def answered(self, most_seconds: float | None) -> dict[int, Any]:
        """Return by episode what was answered; wait for the first answer, so long at most."""
        if not self._asked:
            return {}
        known = list(self._asked)
        ready, _ = ray.wait(known, num_returns=1, timeout=most_seconds, fetch_local=False)
        if ready:
            ready, _ = ray.wait(known, num_returns=len(known), timeout=0, fetch_local=False)
        taken = {reference: self._asked.pop(reference) for reference in ready}
        lost = [reference for reference in ready if is_lost(reference)]
        found = fetched({each.episode: ref for ref, each in taken.items() if ref not in lost})
        for reference, each in taken.items():
            if reference not in lost:
                self._episodes[each.episode].note(each.question)
        for reference in lost:
            self._ask_again(taken[reference])
        return found

    def forget(self, episode: int) -> None:
        """Forget an episode."""
        if self._episodes.pop(episode, None) is not None:
            self._hosts[self._place(episode)].forget.remote(episode)

    def _send(self, episode: int, question: Question, *, is_again: bool) -> None:
        place = self._place(episode)
        host = self._hosts[place]
        if isinstance(question, str):
            reference = host.answer.remote(episode, question)
        else:
            reference = host.begin.remote(question)
        self._asked[reference] = _Asked(episode, question, self._lives[place], is_again)

    def _ask_again(self, lost: _Asked) -> None:
        """Ask the process that follows a lost one."""
        if lost.is_again:
            raise RlplanError("a process that plays environments ended twice: out of memory?")
        place = self._place(lost.episode)
        if self._lives[place] == lost.life:
            self._replace(place)
        self._send(lost.episode, lost.question, is_again=True)

    def _replace(self, place: int) -> None:
        """Start a host again, and play its episodes up to where they were, all of them turn by turn."""
        host = self._start()
        self._hosts[place], self._lives[place] = host, self._lives[place] + 1
        begun = {
            episode: played
            for episode, played in self._episodes.items()
            if self._place(episode) == place and played.has_begun
        }
        fetched({episode: host.begin.remote(each.beginning) for episode, each in begun.items()})
        for turn in range(max((len(each.responses) for each in begun.values()), default=0)):
            going_on = {
                episode: each.responses[turn]
                for episode, each in begun.items()
                if turn < len(each.responses)
            }
            fetched(
                {episode: host.answer.remote(episode, said) for episode, said in going_on.items()}
            )

    def _place(self, episode: int) -> int:
        return episode % len(self._hosts)
