"""Environments that can be played, one file each; the name that a job uses is the file's name.

An environment of one's own is a class with two methods, `reset(prompt, row)` and `step(response)`, one object an
episode; or a function `name(prompt, responses, row)` that sees all responses so far. Both answer a response with
(observation, reward, ends), where the observation is a text, or with what Gymnasium's `step` returns.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import isclass
from pathlib import Path
from typing import Any, Protocol, cast

from rlplan.errors import FileError, UserError, cut, nearest_name
from rlplan.executor.data.finite import reward_of
from rlplan.executor.data.user_files import (
    FAILURES,
    in_words,
    is_in_a_file,
    load_from_file,
    shown,
)
from rlplan.job import Job
from rlplan.plug_ins import PlugIns

Row = dict[str, Any]
# Gymnasium's ids end in a version, as in `CartPole-v1`.
GYMNASIUM_ID = re.compile(r".+-v\d+$")
# Lengths of what a step may return: ours, and Gymnasium's (observation, reward, terminated, truncated, info).
OWN_ANSWER, GYMNASIUM_ANSWER = 3, 5


@dataclass(frozen=True, slots=True)
class Step:
    """Hold an environment's answer to a response.

    Attributes:
        observation: What the model reads next.
        reward: Of this turn; those of an episode are added up.
        ends: Whether the episode is over.
    """

    observation: str = ""
    reward: float = 0.0
    ends: bool = False


class Playable(Protocol):
    """Play one episode."""

    def reset(self, prompt: str, row: Row) -> str | None:
        """Begin; return what the model reads behind its prompt, often nothing."""

    def step(self, response: str) -> Any:
        """Answer a response."""


Making = Callable[[], Playable]
ENVIRONMENTS = PlugIns[type[Any]](
    __name__, __path__, kind="environment", attribute="Environment", dashes=False
)
environment_names = ENVIRONMENTS.names


def load_environment(source: str, folder: Path) -> Making:
    """Return what makes an environment for each episode, in the process that plays it.

    Args:
        source: A built-in environment's name, `path/to/file.py:name`, or the id of a Gymnasium environment.
        folder: What a relative path is relative to: the job file's folder.

    Raises:
        UnknownNameError: No built-in environment has that name.
        FileError: The file is missing or fails when it is imported, or has no such class or function.
        UserError: Gymnasium is not installed or does not know the id, or the environment cannot be played in
            text.
    """
    if is_in_a_file(source):
        found = load_from_file(source, folder)
        if not isclass(found):
            return lambda: _OfFunction(found)
        missing = [name for name in ("reset", "step") if not callable(getattr(found, name, None))]
        if missing:
            raise UserError(f"environment {source}: has no method {missing[0]}")
        return cast("Making", found)
    if source not in environment_names() and GYMNASIUM_ID.match(source):
        return _gymnasium(source)
    hint = "or name a class or function of your own as path/to/file.py:name, or a Gymnasium id"
    return ENVIRONMENTS.load(source, hint=hint)


def check_sources(job: Job, file: str) -> None:
    """Refuse a job that names built-in environments that there are not; others are looked up where they are played.

    Raises:
        FileError: Names the job's file, and the built-in environments.
    """
    for at, environment in enumerate(job.environments):
        source, names = environment.source, environment_names()
        if source is None or source in names or is_in_a_file(source) or GYMNASIUM_ID.match(source):
            continue
        raise FileError(
            file,
            "no such environment",
            field=f"workload.environments.{at}.source",
            value=source,
            allowed=f"{', '.join(names)}, path/to/file.py:name, or a Gymnasium id such as CartPole-v1",
            nearest=nearest_name(source, names),
        )


def made(making: Making, source: str) -> Playable:
    """Return an environment for an episode.

    Raises:
        UserError: The environment fails.
    """
    try:
        return making()
    except UserError:
        raise
    except FAILURES as error:
        raise UserError(f"environment {source}: cannot be made: {in_words(error)}") from error


def reset(environment: Playable, source: str, prompt: str, row: Row) -> str:
    """Begin an episode; return what the model reads behind its prompt.

    Raises:
        UserError: The environment fails, or answers with something else than a text.
    """
    try:
        observation = environment.reset(prompt, row)
    except UserError:
        raise
    except FAILURES as error:
        words = f"environment {source}: reset fails for prompt {cut(prompt)!r}: {in_words(error)}"
        raise UserError(words) from error
    return _text("" if observation is None else observation, source)


def step(environment: Playable, source: str, response: str) -> Step:
    """Answer a response.

    Raises:
        UserError: The environment fails, or answers with something else than its protocol has.
    """
    try:
        answer = environment.step(response)
    except UserError:
        raise
    except FAILURES as error:
        raise UserError(f"environment {source}: step fails: {in_words(error)}") from error
    found = answer if isinstance(answer, Step) else _as_step(answer, source)
    reward = reward_of(found.reward)
    if reward is None:
        problem = f"found {shown(found.reward)} as a reward"
        raise UserError(f"environment {source}: {problem}; allowed: a finite number")
    return replace(found, reward=reward)


def _as_step(answer: Any, source: str) -> Step:
    parts: Sequence[Any] = answer if isinstance(answer, tuple) else ()
    if len(parts) not in {OWN_ANSWER, GYMNASIUM_ANSWER}:
        allowed = "(observation, reward, ends)"
        raise UserError(f"environment {source}: step returned {shown(answer)}; allowed: {allowed}")
    ends = bool(parts[2]) or (len(parts) == GYMNASIUM_ANSWER and bool(parts[3]))
    return Step(_text(parts[0], source), parts[1], ends)


def _text(observation: Any, source: str) -> str:
    if isinstance(observation, str):
        return observation
    kind = type(observation).__name__
    raise UserError(f"environment {source}: an observation is of type {kind}; allowed: a text")


class _OfFunction:
    """Play a plain function, which is given all responses so far."""

    def __init__(self, function: Callable[[str, list[str], Row], Any]) -> None:
        self._function = function
        self._prompt, self._row, self._responses = "", Row(), list[str]()

    def reset(self, prompt: str, row: Row) -> str:
        """Begin with a prompt."""
        self._prompt, self._row, self._responses = prompt, row, []
        return ""

    def step(self, response: str) -> Any:
        """Call the function."""
        self._responses.append(response)
        return self._function(self._prompt, list(self._responses), self._row)


def _gymnasium(name: str) -> Making:
    """Return what makes a Gymnasium environment that is played in text.

    A response is its action: as it stands in a space of texts, its first number in a space of so many actions.

    Raises:
        UserError: Gymnasium is not installed, does not know the name, or its actions are of another kind.
    """
    try:
        import gymnasium  # noqa: PLC0415  # only for those who play one
    except ImportError:
        hint = "pip install gymnasium"
        raise UserError(f"environment {name}: Gymnasium is not installed: {hint}") from None
    try:
        first = gymnasium.make(name)
    except gymnasium.error.Error as error:
        raise UserError(f"environment {name}: {in_words(error)}") from None
    kind = type(first.action_space).__name__
    first.close()
    if kind not in {"Discrete", "Text"}:
        raise UserError(
            f"environment {name}: its actions are of the space {kind}; allowed: Discrete, Text"
        )
    return lambda: _OfGymnasium(gymnasium.make(name), takes_text=kind == "Text")


class _OfGymnasium:
    """Play a Gymnasium environment whose actions and observations are written as text."""

    def __init__(self, played: Any, *, takes_text: bool) -> None:
        self._played, self._takes_text = played, takes_text

    def reset(self, prompt: str, row: Row) -> str:  # noqa: ARG002  # it knows no prompts
        """Begin; rows may give a `seed`."""
        observation, _ = self._played.reset(seed=row.get("seed"))
        return f"\n{observation}\n"

    def step(self, response: str) -> Step:
        """Take the action that a response names; one that names none ends the episode without a reward."""
        action: Any = response
        if not self._takes_text:
            number = re.search(r"-?\d+", response)
            if number is None or not self._played.action_space.contains(int(number[0])):
                return Step(ends=True)
            action = int(number[0])
        observation, reward, terminated, truncated, _ = self._played.step(action)
        return Step(f"\n{observation}\n", reward, bool(terminated or truncated))
