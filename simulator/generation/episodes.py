"""Generation of episodes: turns of the model between steps of an environment, on one replica.

A turn is a request of its own, whose prompt is all that came before. While its environment steps, an
episode takes no slot. Its blocks stay in a prefix cache until others need them, the longest unused first,
so that only what the environment added is prefilled; without a prefix cache the whole context is
prefilled again.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from simulator.environments.host import HostQueue, HostShare
from simulator.generation.mixed_steps import Growing, Reserving, Taken
from simulator.generation.playing import generate
from simulator.generation.prefill_first import PrefillFirst
from simulator.generation.replica import Generated, Replica
from simulator.generation.running import RunningSet

# The clock adds up its parts, and may stop short of an event's time by the last digits.
ROUNDING_UP = 1 + 1e-12

# Over so few steps a step takes hardly longer for the tokens that the cache gains.
FEW_STEPS = 64


class Turn(NamedTuple):
    """Hold one turn of an episode.

    Attributes:
        response_tokens: That the model generates.
        step_seconds: Of the environment's step behind it.
        observation_tokens: That the step adds to the context; none behind the last turn.
    """

    response_tokens: int
    step_seconds: float
    observation_tokens: int


class Episode(NamedTuple):
    """Hold one episode: a response that waits for its environment between turns.

    Attributes:
        prompt: Number of its prompt; samples of one prompt share its blocks.
        prompt_tokens: Of it.
        environment: Index of the environment.
        reset_seconds: Before its first turn.
        turns: In order.
    """

    prompt: int
    prompt_tokens: int
    environment: int
    reset_seconds: float
    turns: tuple[Turn, ...]

    @property
    def contexts(self) -> tuple[int, ...]:
        """Return the tokens that are there before each turn."""
        found = [self.prompt_tokens]
        for turn in self.turns[:-1]:
            found.append(found[-1] + turn.response_tokens + turn.observation_tokens)
        return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeShare:
    """Hold a replica's episodes in the order in which they begin, and its share of the host.

    Attributes:
        inline: Whether each is played alone, in the process that generates.
    """

    episodes: tuple[Episode, ...]
    host: HostShare
    inline: bool = False


def generate_episodes(replica: Replica, share: EpisodeShare) -> Generated:
    """Play a replica's episodes, in seconds; `finish_seconds` are when they end."""
    if share.inline:
        return _one_by_one(replica, share)
    if replica.batching == "continuous":
        return PrefillFirstEpisodes(replica, share).play()
    if replica.batching == "mixed":
        play = ReservingEpisodes if replica.reserves_whole else MixedEpisodes
        return play(replica, share).play()
    return _in_lockstep(replica, share)


class _Turns(RunningSet):
    """Let turns arrive when their environments have stepped."""

    def __init__(self, replica: Replica, share: EpisodeShare) -> None:
        self.episodes, self.host = share.episodes, HostQueue(share.host)
        self.owner = [
            (number, turn)
            for number, episode in enumerate(self.episodes)
            for turn in range(len(episode.turns))
        ]
        contexts = [tokens for episode in self.episodes for tokens in episode.contexts]
        responses = [turn.response_tokens for each in self.episodes for turn in each.turns]
        super().__init__(replica, contexts, responses)
        self.waiting.clear()
        self.first_of = [at for at, (_, turn) in enumerate(self.owner) if turn == 0]
        self.begun = [0.0] * len(self.episodes)
        self.episode_ends = [0.0] * len(self.episodes)
        self.to_begin = self._in_line()
        # By episode, tokens that the prefix cache keeps while it waits, the longest unused first.
        self.kept: dict[int, int] = {}
        self.kept_blocks = 0
        self.known_prompts: set[int] = set()

    def _in_line(self) -> list[list[int]]:
        """Return the episodes of each environment, the first one last."""
        found: list[list[int]] = [[] for _ in self.host.share.seats]
        for number in reversed(range(len(self.episodes))):
            found[self.episodes[number].environment].append(number)
        return found

    def play(self) -> Generated:
        """Run until every episode has ended."""
        for environment, line in enumerate(self.to_begin):
            for _ in range(int(min(len(line), self.host.share.seats[environment].instances))):
                self._begin(environment, 0.0)
        while True:
            while self.host.next_end <= self.now * ROUNDING_UP:
                self._step_ended()
            if self.busy:
                self.advance(self._steps_until(self.host.next_end))
                self._make_room_for_running()
            elif self.host.running:
                self.idle += max(0.0, self.host.next_end - self.now)
            else:
                return replace(self.outcome(), finish_seconds=tuple(self.episode_ends))

    def _begin(self, environment: int, now: float) -> None:
        """Reset the next episode of an environment, if there is one."""
        if not self.to_begin[environment]:
            return
        number = self.to_begin[environment].pop()
        self.begun[number] = now
        self.host.ask(now, environment, self.episodes[number].reset_seconds, number, 0)

    def _step_ended(self) -> None:
        """Let the turn behind a step or reset wait for its slot, or end the episode."""
        end, call = self.host.end_next()
        limit = self.host.share.seats[call.environment].limit_seconds
        late = call.turn > 0 and end - self.begun[call.episode] > limit
        if late or call.turn == len(self.episodes[call.episode].turns):
            self.episode_ends[call.episode] = end
            self._drop(call.episode)
            self._begin(call.environment, end)
            return
        if not self.waiting:
            self.closed = False
        self.waiting.append(self.first_of[call.episode] + call.turn)

    def complete(self) -> None:
        """Take out the turns that have ended, once waiting episodes gave up what these had taken."""
        self._make_room_for_running()
        super().complete()

    def note_end(self, sequence: int) -> None:
        """Let the environment step on what a turn has said."""
        super().note_end(sequence)
        number, turn = self.owner[sequence]
        episode = self.episodes[number]
        if self.replica.keeps_prefixes and turn + 1 < len(episode.turns):
            # The last token is not in the cache yet.
            self.kept[number] = self.prompts[sequence] + self.responses[sequence] - 1
            self.kept_blocks += self._blocks_of(number)
        seconds = episode.turns[turn].step_seconds
        self.host.ask(self.now, episode.environment, seconds, number, turn + 1)

    def cached_tokens(self, sequence: int) -> int:
        """Return the tokens of a turn's context that the prefix cache has: whole blocks, never the last token."""
        number, turn = self.owner[sequence]
        if self.done_tokens[sequence] or not self.replica.keeps_prefixes:
            return 0
        known = self.kept.get(number, 0)
        if turn == 0 and self.episodes[number].prompt in self.known_prompts:
            known = self.prompts[sequence] - 1
        return known // self.block * self.block

    def _blocks_of(self, number: int) -> int:
        return self.kept[number] // self.block + self.held

    def _drop(self, number: int) -> None:
        """Forget what the prefix cache keeps of an episode."""
        if number in self.kept:
            self.kept_blocks -= self._blocks_of(number)
            del self.kept[number]

    def _make_room_for_running(self) -> None:
        """Give blocks of waiting episodes to those that run, the longest unused first."""
        while self.kept and self.used + self.kept_blocks > self.capacity:
            self._drop(next(iter(self.kept)))

    def note_admission(self, sequence: int) -> None:
        """Take over what the prefix cache kept of a turn's context."""
        number, _ = self.owner[sequence]
        self._drop(number)
        self.known_prompts.add(self.episodes[number].prompt)

    def _steps_until(self, time: float) -> int | None:
        """Return the decode steps of those that run until a time; None where it never comes."""
        running = len(self.running)
        if time == math.inf or not running:
            return None
        left = max(0.0, time - self.now)
        cached = self.step + self.offset_sum / running
        first = self.run_seconds(running, cached, 1)
        steps = max(1, math.ceil(left / first))
        if steps <= FEW_STEPS:
            return steps
        mean = (first + self.run_seconds(running, cached + steps, 1)) / 2
        return max(1, math.ceil(left / mean))


class MixedEpisodes(_Turns, Growing):
    """Mix the decoding of turns with the prefill of what environments added."""

    def take(self, taken: Taken, sequence: int, computed: int, tokens: int, total: int) -> None:
        """Compute a chunk of a turn's context in a step."""
        self.note_admission(sequence)
        super().take(taken, sequence, computed, tokens, total)


class ReservingEpisodes(MixedEpisodes, Reserving):
    """Take all blocks that a turn can need when it is admitted."""


class PrefillFirstEpisodes(_Turns, PrefillFirst):
    """Prefill what environments added before the others go on."""

    def enter(self, sequence: int, tokens: int) -> None:
        """Let a turn run whose context is cached."""
        self.note_admission(sequence)
        super().enter(sequence, tokens)


def _one_by_one(replica: Replica, share: EpisodeShare) -> Generated:
    """Play episodes one after another; nothing of two episodes is batched."""
    total, ends = Generated.nothing(), []
    for episode in share.episodes:
        begun = total.seconds
        total = total.after_waiting(episode.reset_seconds)
        limit = share.host.seats[episode.environment].limit_seconds
        for turn, context in zip(episode.turns, episode.contexts, strict=True):
            if context > episode.prompt_tokens and total.seconds - begun > limit:
                break
            total = total.then(generate(replica, [context], [turn.response_tokens]))
            total = total.after_waiting(turn.step_seconds)
        ends.append(total.seconds)
    return replace(total, finish_seconds=tuple(ends))


def _in_lockstep(replica: Replica, share: EpisodeShare) -> Generated:
    """Play engines that wait for a whole batch: all episodes answer, then all environments step."""
    host, total = HostQueue(share.host), Generated.nothing()
    most = sum(seats.instances for seats in share.host.seats)
    size = len(share.episodes) if most == math.inf else int(most)
    for first in range(0, len(share.episodes), size):
        total = _batch_in_lockstep(replica, share.episodes[first : first + size], host, total)
    return total


def _batch_in_lockstep(
    replica: Replica, episodes: tuple[Episode, ...], host: HostQueue, total: Generated
) -> Generated:
    """Return what was generated before and a batch of episodes behind it."""
    begun = total.seconds
    for number, each in enumerate(episodes):
        host.ask(begun, each.environment, each.reset_seconds, number, 0)
    ended = [0.0] * len(episodes)
    ready = _all_ended(host, episodes, ended, begun)
    total = total.after_waiting(max(ready.values(), default=begun) - begun)
    while True:
        alive = [(call, episodes[call[0]]) for call in sorted(ready)]
        alive = [(call, each) for call, each in alive if call[1] < len(each.turns)]
        if not alive:
            return replace(total, finish_seconds=(*total.finish_seconds, *ended))
        one_prompt = all(turn == 0 for (_, turn), _ in alive)
        done = generate(
            replica if one_prompt else replace(replica, prompt_samples=1),
            [each.contexts[turn] for (_, turn), each in alive],
            [each.turns[turn].response_tokens for (_, turn), each in alive],
        )
        total = replace(total.then(done), finish_seconds=total.finish_seconds)
        for (number, turn), each in alive:
            seconds = each.turns[turn].step_seconds
            host.ask(total.seconds, each.environment, seconds, number, turn + 1)
        ready = _all_ended(host, episodes, ended, begun)
        total = total.after_waiting(max(ready.values()) - total.seconds)


def _all_ended(
    host: HostQueue, episodes: tuple[Episode, ...], ended: list[float], begun: float
) -> dict[tuple[int, int], float]:
    """Return when steps ended, by (episode, turn that they make ready); those of late episodes end them."""
    found: dict[tuple[int, int], float] = {}
    while host.running:
        end, call = host.end_next()
        late = end - begun > host.share.seats[call.environment].limit_seconds
        turn = len(episodes[call.episode].turns) if late and call.turn else call.turn
        ended[call.episode] = end
        found[call.episode, turn] = end
    return found
