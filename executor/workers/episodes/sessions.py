"""Episodes over many calls: turns go through a session of the engine, and environments step in between."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlplan.executor.data.batches import OBSERVATION, RESPONSE
from rlplan.executor.data.workload import observation_limit
from rlplan.executor.environments import Step
from rlplan.executor.rollout.sessions import Response, Session
from rlplan.executor.workers.episodes.hosts import Beginning, EnvironmentHosts, Question
from rlplan.workload.environment import Environment

# How long a call waits at most for an environment where no turn goes on: new weights and new episodes wait for its end.
WAIT_SECONDS = 0.1


@dataclass(slots=True, eq=False)
class Episode(Response):
    """Hold an episode: a response in which what environments said stands between what the model said.

    Observations have no log-probability and no version of weights: 0 stands for both.

    Attributes:
        kind: Its environment's place in the job.
        most_turns: Of the model.
        text: Its prompt.
        data: The prompt's row.
        turn: The one that comes next, so that many have been taken.
        marks: What stands at each place of `tokens`.
        said: Tokens that the model generated.
        reward: Of all steps so far.
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
        """Return what stands at each place of `tokens`."""
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
    """Play episodes: what a replica begins, and its environments, beside the turns that it generates.

    Where generation stops with each batch, those that are there together answer together and step together, so that the
    waves are those of a synchronous batch, whose numbers they are; a wave's environments step while the next one is
    decoded. Else a turn joins those that run once its environment has stepped.

    Args:
        turns: Session in which turns are responses.
        encode: Returns the tokens of an observation.
        decode: Returns the text of a turn's tokens.
        most: Episodes that are under way at a time; None: all.
        instances: Those of each environment that are under way at a time; None: all.
        in_step: Whether those under way answer together, and none joins them.

    Attributes:
        waited_seconds: In which there was no turn to generate.
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
            self._ask(number, Beginning(number, episode.kind, episode.text, episode.data))

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
