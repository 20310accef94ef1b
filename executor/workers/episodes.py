"""Episodes on workers: environments on hosts, sessions of a replica's episodes, and whole ones played."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import ray
import torch

from rlplan.errors import RlplanError, UserError, WorkerLostError
from rlplan.executor.data.batches import OBSERVATION, RESPONSE, Array, Columns
from rlplan.executor.data.prompts import load_tokenizer
from rlplan.executor.data.workload import most_observed_tokens, observation_limit, prompt_stream
from rlplan.executor.environments import Playable, Step, load_environment, made, reset, step
from rlplan.executor.rollout.engines import GenerationEngine
from rlplan.executor.rollout.sampling import GenerateSettings, Sequences
from rlplan.executor.rollout.sessions import Response, Session, TurnSession, padded_responses
from rlplan.executor.workers.pools import fetched, is_lost
from rlplan.executor.workers.worker import PoolModels
from rlplan.plan import FLOWS, USUAL_MODE, Mode, TaskPlan
from rlplan.workload import Environment, sample_lengths

# What a step that took too long, or whose episode did, is answered with.
BROKEN_OFF = Step(ends=True)


class EpisodeStart(NamedTuple):
    """Hold the start of an episode: its number, its environment's index in the job, its prompt and data row."""

    episode: int
    kind: int
    prompt: str
    row: dict[str, Any]


# A question to an episode's environment: to begin, or to answer a response.
Question = EpisodeStart | str


class EnvironmentHosts(Protocol):
    """Play episodes for a rank that generates."""

    def ask(self, episode: int, question: Question) -> None:
        """Send a question of an episode, which has one question at a time."""

    def answered(self, most_seconds: float | None) -> dict[int, Any]:
        """Return the answers by episode: a text to a start, a step to a response.

        Args:
            most_seconds: Limit on the wait for the first answer; None is no limit. Without open questions there is no wait.

        Raises:
            UserError: A user's environment fails.
            WorkerLostError: Two processes ended one after another with the same question, or one while it played again.
        """

    def forget(self, episode: int) -> None:
        """Forget an episode."""


class LocalHost:
    """Play episodes in this process, one step at a time; every question is answered at once.

    Args:
        folder: Base of relative paths of environments.
    """

    def __init__(self, environments: Sequence[Environment], folder: Path) -> None:
        self._environments = environments
        self._makings = [load_environment(_source(each), folder) for each in environments]
        self._played: dict[int, tuple[Playable, int]] = {}
        self._answers: dict[int, str | Step] = {}

    def begin(self, beginning: EpisodeStart) -> str:
        """Begin an episode."""
        source = _source(self._environments[beginning.kind])
        played = made(self._makings[beginning.kind], source)
        self._played[beginning.episode] = played, beginning.kind
        return reset(played, source, beginning.prompt, beginning.row)

    def answer(self, episode: int, response: str) -> Step:
        """Answer a response, within the time limit that its environment has for a step."""
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
    """Return the answer of a step, or `BROKEN_OFF` after the limit.

    A thread cannot be killed: one that runs beyond the limit is abandoned.
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
    """Hold the questions of an episode so far, so that another process can replay it."""

    beginning: EpisodeStart
    has_begun: bool = False
    responses: list[str] = field(default_factory=list)

    def note(self, question: Question) -> None:
        """Note what was answered."""
        if isinstance(question, str):
            self.responses.append(question)
        else:
            self.has_begun = True


class _PendingQuestion(NamedTuple):
    """Hold a question to an environment that has no answer yet.

    Attributes:
        life: Of the processes that were started for the episode one after another, the number of the one that was asked.
        is_again: Whether the question was sent before, to a process that ended without an answer.
    """

    episode: int
    question: Question
    life: int
    is_again: bool


LOST_TWICE = "a process that plays environments ended twice: killed, out of memory or crashed"


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
        self._asked: dict[Any, _PendingQuestion] = {}

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
        self._asked[reference] = _PendingQuestion(episode, question, self._lives[place], is_again)

    def _ask_again(self, lost: _PendingQuestion) -> None:
        """Ask the process that follows a lost one."""
        if lost.is_again:
            raise WorkerLostError(LOST_TWICE)
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
        _played_again({key: host.begin.remote(each.beginning) for key, each in begun.items()})
        for turn in range(max((len(each.responses) for each in begun.values()), default=0)):
            going_on = {
                episode: each.responses[turn]
                for episode, each in begun.items()
                if turn < len(each.responses)
            }
            _played_again({key: host.answer.remote(key, said) for key, said in going_on.items()})

    def _place(self, episode: int) -> int:
        return episode % len(self._hosts)


def _played_again(answers: Mapping[int, Any]) -> None:
    """Wait for answers that are known already.

    Raises:
        UserError: A user's environment fails.
        WorkerLostError: The process has ended.
    """
    try:
        fetched(answers)
    except UserError:
        raise
    except RlplanError as error:
        raise WorkerLostError(LOST_TWICE) from error


# Longest wait of a call for environments when no turn runs: new weights and new episodes wait for the end of the call.
WAIT_SECONDS = 0.1


@dataclass(slots=True, eq=False)
class Episode(Response):
    """Hold an episode: a response in which observations stand between the model's turns.

    Observations have no log-probability and no version of weights; both are 0.

    Attributes:
        kind: Its environment's index in the job.
        most_turns: Limit on the model's turns.
        text: Its prompt.
        data: The prompt's row.
        turn: The next turn, and so the number of turns so far.
        marks: Kind of each of `tokens`.
        said: Tokens that the model generated.
        reward: Sum over all steps so far.
        begun_seconds: When its environment was asked to begin, on a monotonic clock.
    """

    kind: int = 0
    most_turns: int = 1
    text: str = ""
    data: dict[str, object] = field(default_factory=dict)
    marks: list[int] = field(default_factory=list)
    said: int = 0
    reward: float = 0.0
    begun_seconds: float = 0.0

    @property
    def parts(self) -> list[int]:
        """Return the kind of each of `tokens`."""
        return self.marks

    @property
    def goes_on(self) -> bool:
        """Tell whether tokens and turns are left."""
        return self.said < self.most_tokens and self.turn < self.most_turns

    def next_turn(self) -> Response:
        """Return the next turn as a response to all that is there; what is left is shared out evenly over turns."""
        left, turns = self.most_tokens - self.said, self.most_turns - self.turn
        return Response(
            batch=self.batch,
            row=self.row,
            prompt=np.append(self.prompt, self.tokens).astype(np.int64),
            most_tokens=-(-left // turns),
            turn=self.turn,
        )

    def add(self, turn: Response) -> None:
        """Append a turn that has ended."""
        count = len(turn.tokens)
        self.tokens += turn.tokens
        self.log_probs += turn.log_probs
        self.versions += turn.versions
        self.marks += [RESPONSE] * count
        self.said, self.turn = self.said + count, self.turn + 1

    def observe(self, tokens: Sequence[int]) -> None:
        """Append what the environment said."""
        count = len(tokens)
        self.tokens += tokens
        self.log_probs += [0.0] * count
        self.versions += [0] * count
        self.marks += [OBSERVATION] * count


class EpisodeSession:
    """Play a replica's episodes: their environments step while it generates turns of other episodes.

    Where generation stops with each batch, the episodes of a wave generate together and step together, so that all
    numbers are those of a synchronous batch; the environments of one wave step while the next wave is decoded. In
    endless modes a turn joins the running ones as soon as its environment has stepped.

    Args:
        turns: Session in which turns are responses.
        encode: Returns the tokens of an observation.
        decode: Returns the text of a turn's tokens.
        most: Limit on the episodes under way at a time; None is no limit.
        instances: The same for each environment.
        in_step: Whether the episodes under way generate in waves, which no other episode joins.

    Attributes:
        waited_seconds: During which there was no turn to generate.
    """

    def __init__(
        self,
        turns: Session,
        hosts: EnvironmentHosts,
        environments: Sequence[Environment],
        encode: Callable[[str], list[int]],
        decode: Callable[[list[int]], str],
        *,
        most: int | None,
        instances: Sequence[int | None],
        in_step: bool,
    ) -> None:
        self._turns, self._hosts, self._environments = turns, hosts, environments
        self._encode, self._decode = encode, decode
        self._most, self._instances, self._in_step = most, instances, in_step
        self._waiting: list[Episode] = []
        # By number, in the order in which they began. A sample that is lost and played again gets another one.
        self._under_way: dict[int, Episode] = {}
        self._asked: set[int] = set()
        self._ready: list[int] = []
        self._numbers: dict[
            tuple[int, int], int
        ] = {}  # by batch and row, of those whose turn goes on
        self._begun = 0
        self.waited_seconds = 0.0

    @property
    def running(self) -> int:
        """Return how many episodes have begun or wait, and have not ended."""
        return len(self._waiting) + len(self._under_way)

    @property
    def is_between_waves(self) -> bool:
        """Tell whether all that have begun have ended."""
        return not self._under_way

    def begin(self, responses: Sequence[Response]) -> None:
        """Take episodes in, in their order; they begin as there is room."""
        for each in responses:
            assert isinstance(each, Episode), "a replica that plays episodes is given episodes"
            self._waiting.append(each)

    def take_weights(self) -> None:
        """Note that the shard has new weights: turns that go on are prefilled again, unless their cache is kept."""
        self._turns.take_weights()

    def advance(self, steps: int, version: int) -> list[Episode]:
        """Sample tokens of all turns that go on; return the episodes that have ended, in order."""
        self._open()
        ended = self._take_answers()
        self._begin_turns()
        if self._turns.running:
            for turn in self._turns.advance(steps, version):
                self._answer(turn)
            ended += self._take_answers()
        return sorted(ended, key=lambda each: (each.batch, each.row))

    def _open(self) -> None:
        """Let episodes begin for which there is room, and an instance; those of another environment go by."""
        if self._in_step and self._under_way:
            return
        has = Counter(each.kind for each in self._under_way.values())
        waiting, self._waiting = self._waiting, []
        for episode in waiting:
            instances = self._instances[episode.kind]
            is_full = instances is not None and has[episode.kind] >= instances
            if is_full or len(self._under_way) == self._most:
                self._waiting.append(episode)
                continue
            has[episode.kind] += 1
            number, self._begun = self._begun, self._begun + 1
            self._under_way[number] = episode
            episode.begun_seconds = time.monotonic()
            self._ask(number, EpisodeStart(number, episode.kind, episode.text, episode.data))

    def _take_answers(self) -> list[Episode]:
        """Take what environments have answered; wait a while where nothing else is to be done."""
        waits = bool(self._asked) and not self._turns.running
        waits = waits and (self._in_step or not self._ready)
        begun, ended = time.monotonic(), list[Episode]()
        for number, answer in self._hosts.answered(WAIT_SECONDS if waits else 0.0).items():
            self._asked.remove(number)
            if self._takes(self._under_way[number], answer):
                self._ready.append(number)
            else:
                ended.append(self._under_way.pop(number))
                self._hosts.forget(number)
        if waits:
            self.waited_seconds += time.monotonic() - begun
        return ended

    def _takes(self, episode: Episode, answer: str | Step) -> bool:
        """Note an answer in its episode; return whether another turn follows."""
        environment = self._environments[episode.kind]
        said = answer
        if isinstance(answer, Step):
            episode.reward += answer.reward
            limit = environment.episode_limit_seconds
            spent_seconds = time.monotonic() - episode.begun_seconds
            if answer.ends or (limit is not None and spent_seconds >= limit):
                return False
            said = answer.observation
        assert isinstance(said, str)
        if not (episode.goes_on or isinstance(answer, str)):
            return False
        episode.observe(self._encode(said)[: observation_limit(environment)])
        return episode.goes_on

    def _begin_turns(self) -> None:
        """Let turns begin whose environments have stepped, in the order of their episodes."""
        if self._in_step and (self._asked or self._turns.running):
            return
        ready, self._ready = sorted(self._ready), []
        for number in ready:
            episode = self._under_way[number]
            self._numbers[episode.batch, episode.row] = number
        self._turns.begin([self._under_way[number].next_turn() for number in ready])

    def _answer(self, turn: Response) -> None:
        """Let the environment of a turn that has ended step."""
        number = self._numbers.pop((turn.batch, turn.row))
        self._under_way[number].add(turn)
        self._ask(number, self._decode(turn.tokens))

    def _ask(self, number: int, question: Question) -> None:
        """Ask an episode's environment; one that is played in this process answers before it goes on."""
        begun = time.monotonic()
        self._asked.add(number)
        self._hosts.ask(number, question)
        self.waited_seconds += time.monotonic() - begun


# Seeds of turns lie apart from those of response lengths, which count iterations.
TURNS_SEED = 2**31


class EpisodePlayer:
    """Play the episodes of a replica's rows, in sessions (`rlplan.executor.workers.episodes`).

    With remote inference all episodes answer together, and their environments step together in processes of
    their own; inline, one episode after another is played in this process.
    """

    def __init__(self, pool: PoolModels, layout: TaskPlan, engine: GenerationEngine) -> None:
        setup = pool.setup
        self._job = setup.plan.job
        self._environments = environments = self._job.environments
        self._engine, self._shard = engine, pool.generator
        self._stream = prompt_stream(self._job, setup.rows)
        self._tokenizer = load_tokenizer(self._job.tokenizer, setup.folder)
        self._inline = environments[0].inference == "inline"
        self._instances = tuple(each.instances_each(layout.dp) for each in environments)
        self._hosts: EnvironmentHosts
        if self._inline:
            self._hosts = LocalHost(environments, setup.folder)
        else:
            workers = steps_at_a_time(environments, layout.dp)
            self._hosts = RemoteHosts(environments, setup.folder, workers)

    def play(
        self, columns: Columns, rows: Array, lengths: Array, settings: GenerateSettings
    ) -> tuple[Sequences, Array, dict[str, float]]:
        """Return sequences (B, P + W), the rewards of their episodes (B,), and what was counted.

        Args:
            columns: Left-padded prompts of the replica's rows.
            rows: Their numbers in the global batch. Shape (B,).
            lengths: Most tokens that the model generates, by row of the global batch.
        """
        width = columns["prompt_tokens"].shape[1]
        prompts = zip(columns["prompt_tokens"], columns["prompt_present"], strict=True)
        responses = [
            Response(
                batch=settings.iteration,
                row=row,
                prompt=tokens[present],
                most_tokens=int(lengths[row]),
            )
            for row, (tokens, present) in zip(rows.tolist(), prompts, strict=True)
        ]
        session = self.session(TurnSession(self._engine, self._shard, settings), USUAL_MODE)
        session.begin(self.episodes(settings.iteration, responses))
        ended = dict[int, Episode]()
        while session.running:
            ended |= {each.row: each for each in session.advance(steps=0, version=0)}
        played = [ended[row] for row in rows.tolist()]
        behind = columns_behind_prompts(self._environments, lengths)
        made = padded_responses(played, width, behind)
        counted = {
            "turns": float(sum(each.turn for each in played)),
            "environment_seconds_max": session.waited_seconds,
        }
        names = ("tokens", "parts", "log_probs")
        sequences = Sequences(*(torch.from_numpy(made[name]) for name in names))
        return sequences, np.array([each.reward for each in played], dtype=np.float32), counted

    def session(self, turns: Session, mode: Mode) -> EpisodeSession:
        """Return a session of episodes whose turns are responses of another one."""
        return EpisodeSession(
            turns,
            self._hosts,
            self._environments,
            self._tokenizer.encode_more,
            self._tokenizer.decode,
            most=1 if self._inline else None,
            instances=self._instances,
            in_step=self._inline or not FLOWS[mode].is_endless,
        )

    def episodes(self, batch: int, responses: Sequence[Response]) -> list[Response]:
        """Return the episodes that responses of a batch stand for."""
        samples = self._job.workload.samples_per_prompt
        kinds, turns = self._drawn(batch)
        prompts = self._stream.batch(batch)
        return [
            Episode(
                batch=batch,
                row=each.row,
                prompt=each.prompt,
                most_tokens=each.most_tokens,
                kind=int(kinds[each.row]),
                most_turns=int(turns[each.row]),
                text=prompts[each.row // samples]["prompt"],
                data=prompts[each.row // samples],
            )
            for each in responses
        ]

    def _drawn(self, batch: int) -> tuple[Array, Array]:
        """Return the environment and the most turns of each episode of a batch."""
        work, environments = self._job.workload, self._environments
        kinds = kinds_of(environments, work.prompts).repeat(work.samples_per_prompt)
        return kinds, turns_of(environments, kinds, self._job.seed + batch)


def kinds_of(environments: Sequence[Environment], prompts: int) -> Array:
    """Return which environment plays each prompt of a batch, by their shares. Shape (prompts,)."""
    edges = np.cumsum([environment.share for environment in environments])[:-1]
    middles = (np.arange(prompts) + 0.5) / prompts
    return np.searchsorted(edges, middles, side="right")


def turns_of(environments: Sequence[Environment], kinds: Array, seed: int) -> Array:
    """Return the most turns of each episode, by its environment. Shape (episodes,)."""
    turns = np.zeros(len(kinds), dtype=np.int64)
    for kind, environment in enumerate(environments):
        drawn = sample_lengths(environment.turns, len(kinds), seed + TURNS_SEED + kind)
        turns = np.where(kinds == kind, drawn, turns)
    return turns


def columns_behind_prompts(environments: Sequence[Environment], budgets: Array) -> int:
    """Return the columns that any episode of a batch can fill behind its prompt: answers and observations."""
    return int(budgets.max()) + most_observed_tokens(environments)


def steps_at_a_time(environments: tuple[Environment, ...], replicas: int) -> int:
    """Return how many steps of environments run at a time for one replica: as many as cores allow, or as is said."""
    cores = os.cpu_count() or 1
    given = (each.workers or int(cores / (each.cpu_cores or 1.0)) for each in environments)
    return max(1, max(given) // replicas)
