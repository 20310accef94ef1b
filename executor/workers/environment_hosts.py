"""Processes that play environments for a generating rank, and the wait for their answers."""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import ray
from ray.exceptions import RayActorError, RayError

from executor.environments import Playable, Step, load_environment, reset, step
from executor.workers.pools import fetched
from rlplan.environment import Environment
from rlplan.errors import RlplanError

# What a step that took too long, or whose episode did, is answered with.
BROKEN_OFF = Step(ends=True)


class Beginning(NamedTuple):
    """Say which episode begins: its number, its environment's place in the job, its prompt and row."""

    episode: int
    kind: int
    prompt: str
    row: dict[str, Any]


class EnvironmentHosts(Protocol):
    """Play episodes for a rank that generates."""

    def reset(self, beginnings: Sequence[Beginning]) -> list[str]:
        """Begin episodes; return what the model reads first in each."""

    def step(self, answers: Sequence[tuple[int, str]]) -> list[Step]:
        """Answer responses, by the number of their episode."""

    def clear(self) -> None:
        """Forget all episodes."""


class LocalHost:
    """Play episodes in this process, one step at a time.

    Args:
        folder: What relative paths of environments are relative to.
    """

    def __init__(self, environments: Sequence[Environment], folder: Path) -> None:
        self._environments = environments
        self._makings = [load_environment(_source(each), folder) for each in environments]
        self._played: dict[int, tuple[Playable, int]] = {}

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

    def clear(self) -> None:
        """Forget all episodes."""
        self._played.clear()

    def reset(self, beginnings: Sequence[Beginning]) -> list[str]:
        """Begin episodes, one after another."""
        return [self.begin(each) for each in beginnings]

    def step(self, answers: Sequence[tuple[int, str]]) -> list[Step]:
        """Answer responses, one after another."""
        return [self.answer(episode, response) for episode, response in answers]


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
        self._episodes: dict[int, _Episode] = {}

    def _start(self) -> Any:
        actor = ray.remote(LocalHost).options(num_cpus=0, max_concurrency=self._threads)
        return actor.remote(*self._given)

    def reset(self, beginnings: Sequence[Beginning]) -> list[str]:
        """Begin episodes, as many at a time as there are workers."""
        for each in beginnings:
            self._episodes[each.episode] = _Episode(each)
        asked = {each.episode: ("begin", each) for each in beginnings}
        answers = self._asked(asked)
        for each in beginnings:
            self._episodes[each.episode].has_begun = True
        return [answers[each.episode] for each in beginnings]

    def step(self, answers: Sequence[tuple[int, str]]) -> list[Step]:
        """Answer responses, as many at a time as there are workers."""
        asked = {episode: ("answer", episode, response) for episode, response in answers}
        steps = self._asked(asked)
        for episode, response in answers:
            self._episodes[episode].responses.append(response)
        return [steps[episode] for episode, _ in answers]

    def clear(self) -> None:
        """Forget all episodes."""
        self._episodes.clear()
        fetched({place: host.clear.remote() for place, host in enumerate(self._hosts)})

    def _asked(self, asked: dict[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Ask the hosts of episodes; those of a lost host are asked once more of a new one."""
        answers, lost = self._answered(asked)
        if lost:
            for place in {self._place(episode) for episode in lost}:
                self._replace(place)
            again, still = self._answered({episode: asked[episode] for episode in lost})
            if still:
                raise RlplanError("a process that plays environments ended twice: out of memory?")
            answers |= again
        return answers

    def _answered(self, asked: dict[int, tuple[Any, ...]]) -> tuple[dict[int, Any], list[int]]:
        references = {
            episode: getattr(self._hosts[self._place(episode)], method).remote(*arguments)
            for episode, (method, *arguments) in asked.items()
        }
        ray.wait(list(references.values()), num_returns=len(references), fetch_local=False)
        lost = [episode for episode, reference in references.items() if _is_lost(reference)]
        return fetched({key: ref for key, ref in references.items() if key not in lost}), lost

    def _replace(self, place: int) -> None:
        """Start a host again, and play its episodes up to where they were."""
        self._hosts[place] = self._start()
        for episode, played in self._episodes.items():
            if self._place(episode) != place or not played.has_begun:
                continue
            fetched({episode: self._hosts[place].begin.remote(played.beginning)})
            for response in played.responses:
                fetched({episode: self._hosts[place].answer.remote(episode, response)})

    def _place(self, episode: int) -> int:
        return episode % len(self._hosts)


def _is_lost(reference: Any) -> bool:
    """Tell whether the process that was asked has ended; other failures are said when its answer is fetched."""
    try:
        ray.get(reference)
    except RayActorError:
        return True
    except RayError:
        return False
    return False
