"""Episodes whose turns go in waves or one after another, at a replica that never stops.

Engines of static waves keep nothing of a turn for the next one, and prefill the whole context again. Turns go in step,
all that are there and then all of their environments, or join those that run (`rlplan.simulator.generation.batching.joining`). With
inline inference a replica has one episode at a time.
"""

import math
from dataclasses import replace

from rlplan.simulator.environments.host import HostQueue, HostShare
from rlplan.simulator.environments.instances import Instances
from rlplan.simulator.generation.arrivals import WaveSet
from rlplan.simulator.generation.batching.joining import Calls, JoiningSet
from rlplan.simulator.generation.episodes.playing import (
    ROUNDING_UP,
    Episode,
    EpisodeSet,
    episode_set,
)
from rlplan.simulator.generation.replica import Replica


class EpisodeWaves:
    """Keep the turns that run or wait for others, and the episodes that are in their environments.

    Whoever plays it calls `catch_up` and `follow_up` when its clock has moved on.

    Args:
        turns: In which turns are sequences.
        together: Most episodes that are under way at a time.
        in_step: Whether turns wait for all environments that step.
        in_rounds: Whether episodes begin only where none is under way, or together with those that are.

    Attributes:
        over: Episodes that have ended, with when; for the caller to empty.
    """

    def __init__(
        self,
        turns: WaveSet | JoiningSet,
        host: HostShare,
        *,
        together: float,
        in_step: bool,
        in_rounds: bool = False,
    ) -> None:
        self.turns, self.host = turns, HostQueue(host)
        self.instances = Instances(host.seats, together)
        self.in_step, self.in_rounds = in_step, in_rounds
        self.over: list[tuple[int, float]] = []
        self._episodes: list[Episode] = []
        self._begun: dict[int, float] = {}  # of those under way, when they began
        self._round_seconds = 0.0  # when those under way began, where they begin in rounds
        self._outside = 0  # steps and resets that run or wait for cores
        self._ready: list[tuple[int, int]] = []  # episodes, and the turn that comes next
        self._owner: dict[int, tuple[int, int]] = {}  # episode and turn of each sequence

    @property
    def prefill(self) -> float:
        """Return the seconds of prefills so far."""
        return self.turns.prefill

    @property
    def decode(self) -> float:
        """Return the seconds of decode steps so far."""
        return self.turns.decode

    @property
    def busy(self) -> bool:
        """Tell whether there are turns to compute."""
        return self.turns.busy or self._may_begin_turns

    @property
    def next_return(self) -> float:
        """Return when the next environment has stepped; infinite where none steps."""
        return self.host.next_end

    def begin(self, episode: Episode, now: float) -> int:
        """Reset an episode, or let it wait for those before it; return its number."""
        number = len(self._episodes)
        self._episodes.append(episode)
        self.instances.ask(number, episode.environment)
        self._open(now)
        return number

    def abandon(self, number: int) -> int:
        """Take an episode out before its end; return the tokens of its turn that were made."""
        environment = self._episodes[number].environment
        if self._begun.pop(number, None) is None:
            self.instances.leave(number, environment)
            return 0
        self.instances.give_back(environment)
        self._ready = [each for each in self._ready if each[0] != number]
        for sequence, (owner, _) in self._owner.items():
            if owner == number:
                del self._owner[sequence]
                return self.turns.withdraw(sequence)
        return 0

    def restart(self) -> int:
        """Let all running turns be prefilled again; return the tokens that they have."""
        return self.turns.restart()

    def turn_at(self, now: float) -> None:  # noqa: ARG002 -- calls take as long as they take
        """Take the next wave of turns, or the next call."""
        if self._may_begin_turns:
            for number, turn in sorted(self._ready):
                episode = self._episodes[number]
                context, tokens = episode.contexts[turn], episode.turns[turn].response_tokens
                sequence = self.turns.arrive(context, tokens, alone=turn > 0)
                self._owner[sequence] = (number, turn)
            self._ready.clear()
        self.turns.turn()

    def follow_up(self, now: float) -> None:
        """Let environments step on turns that have ended."""
        for sequence in self.turns.ended:
            number, turn = self._owner.pop(sequence)
            seconds = self._episodes[number].turns[turn].step_seconds
            self._ask(number, turn + 1, seconds, now)
        self.turns.ended.clear()

    def catch_up(self, now: float) -> None:
        """Make turns ready behind steps and resets that have ended, or end their episodes."""
        self._open(now)
        while self.host.next_end <= now * ROUNDING_UP:
            end, call = self.host.end_next()
            self._outside -= 1
            number, turn = call.episode, call.turn
            if number not in self._begun:
                continue
            turns, begun = len(self._episodes[number].turns), self._begun[number]
            if not self.host.ends(call, turns, end, begun):
                self._ready.append((number, turn))
            elif self.host.shares(call, end, begun):
                self._outside += 1
            else:
                del self._begun[number]
                self.over.append((number, end))
                self.instances.give_back(call.environment)
                self._open(end)

    @property
    def _may_begin_turns(self) -> bool:
        waits = self.in_step and bool(self._outside or self.turns.busy)
        return bool(self._ready) and not waits

    def _open(self, now: float) -> None:
        """Let episodes begin that have been given an instance."""
        if self.in_rounds and self._begun and now > self._round_seconds:
            return
        for number in self.instances.given():
            self._begun[number] = self._round_seconds = now
            self._ask(number, 0, self._episodes[number].reset_seconds, now)

    def _ask(self, number: int, turn: int, seconds: float, now: float) -> None:
        self._outside += 1
        self.host.ask(now, self._episodes[number].environment, seconds, number, turn)


def arriving_episodes(
    replica: Replica,
    host: HostShare,
    longest_tokens: int,
    calls: Calls | None = None,
    *,
    keeps: bool = False,
    in_step: bool = False,
    inline: bool = False,
    slower: float = 1.0,
) -> EpisodeSet | EpisodeWaves:
    """Return a replica's episodes before the first of them has begun.

    Args:
        longest_tokens: Longest context that will ever be.
        calls: In which waves of turns go on; None: the engine batches as `replica` says.
        keeps: Whether what runs keeps its cache when others join, or new weights come.
        in_step: Whether no turn joins those that run in calls.
        inline: Whether each episode is played alone, its steps in the process that generates.
        slower: How many times as long as what they cost the replica's steps take.
    """
    if calls is None and not inline and replica.batching in ("continuous", "mixed"):
        return episode_set(replica, host, longest_tokens, slower=slower)
    if inline:  # nobody else's steps run there
        host = replace(host, seats=tuple(replace(each, slowdown=1.0) for each in host.seats))
    together = 1 if inline else math.inf
    if calls is None:
        return EpisodeWaves(WaveSet(replica), host, together=together, in_step=True)
    calls = replace(calls, joins=not in_step)
    turns = JoiningSet(replica, longest_tokens, calls, keeps)
    return EpisodeWaves(turns, host, together=together, in_step=in_step, in_rounds=in_step)
