"""Episodes on one replica: turns of the model between steps of environments.

Environments themselves, and the cores that they wait for, are in `simulator/environments/`.
"""

import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from rlplan.simulator.environments import HostQueue, HostShare, Instances
from rlplan.simulator.generation.batching.continuous import (
    PagedSet,
    PrefillFirst,
    PrefillTokens,
    ReservingSet,
)
from rlplan.simulator.generation.batching.joining import Calls, JoiningSet
from rlplan.simulator.generation.batching.running import DecodeSteps, RunningSet
from rlplan.simulator.generation.playing import WaveSet, generate
from rlplan.simulator.generation.prefilling import NO_ENVIRONMENTS, PrefillQueue
from rlplan.simulator.generation.replica import Generated, Replica

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


def one_turn_episodes(share: tuple[tuple[int, ...], tuple[int, ...]], samples: int) -> EpisodeShare:
    """Return a replica's sequences as episodes of one turn that wait for no environment.

    Args:
        share: Prompt tokens and response tokens by sequence.
        samples: Of one prompt, which follow one another.
    """
    return EpisodeShare(
        tuple(
            Episode(number // samples, prompt, 0, 0.0, (Turn(response, 0.0, 0),))
            for number, (prompt, response) in enumerate(zip(*share, strict=True))
        ),
        NO_ENVIRONMENTS,
    )


def generate_episodes(replica: Replica, share: EpisodeShare) -> Generated:
    """Play a replica's episodes, in seconds; `finish_seconds` are when they end."""
    if share.inline:
        return _one_by_one(replica, share)
    if replica.batching not in ("continuous", "mixed"):
        return _in_lockstep(replica, share)
    longest = max(each.contexts[-1] + each.turns[-1].response_tokens - 1 for each in share.episodes)
    return _play(episode_set(replica, share.host, longest), share.episodes)


def episode_set(
    replica: Replica, host: HostShare, longest_tokens: int, *, slower: float = 1.0
) -> "EpisodeSet":
    """Return a replica's episodes before the first of them has begun.

    Args:
        longest_tokens: Longest context that will ever be.
        slower: How many times as long as what they cost the replica's steps take.
    """
    kind: type[EpisodeSet] = PrefillFirstEpisodes
    if replica.batching == "mixed":
        kind = ReservingEpisodes if replica.reserves_whole else MixedEpisodes
    return kind(replica, host, longest_tokens, slower=slower)


def _play(state: "EpisodeSet", episodes: tuple[Episode, ...]) -> Generated:
    """Play episodes to their end; each begins as soon as its environment has an instance for it."""
    ends = [0.0] * len(episodes)
    for episode in episodes:
        state.begin(episode, 0.0)
    while True:
        state.catch_up(state.now)
        for number, end in state.over:
            ends[number] = end
        state.over.clear()
        if state.busy:
            state.advance(state.steps_until_return(state.now))
            state.follow_up(state.now)
        elif state.next_return < math.inf:
            waited = max(0.0, state.next_return - state.now)
            state.idle += waited
            state.handed += waited if state.next_is_handed else 0.0
        else:
            outcome = state.outcome()
            return replace(outcome, finish_seconds=tuple(ends), handed_seconds=state.handed)


class CacheLoad(NamedTuple):
    """Hold what comes from host memory, or from a replica that reads: of which episode, for which turn, how many tokens, when."""

    number: int
    turn: int
    tokens: int
    seconds: float


class HostCache:
    """Keep what turns have computed in host memory, and read it from there.

    Every turn is written there when it ends, and what was written longest ago goes where there is no room; what has
    ended for good goes no sooner. Writing holds nobody up. One load follows another over the GPUs' links.
    """

    def __init__(self, replica: Replica) -> None:
        self.blocks, self.block_seconds = replica.host_blocks, replica.host_block_seconds
        self.kept: dict[int, tuple[int, int]] = {}  # tokens and blocks by episode, the oldest first
        self.used = 0
        self.free_seconds = 0.0  # when the link is free

    def write(self, number: int, tokens: int, blocks: int) -> None:
        """Keep so many tokens of an episode, in place of those that were kept of it."""
        self.drop(number)
        if blocks > self.blocks:
            return
        while self.used + blocks > self.blocks:
            self.drop(next(iter(self.kept)))
        self.kept[number] = (tokens, blocks)
        self.used += blocks

    def drop(self, number: int) -> None:
        """Forget what is kept of an episode."""
        self.used -= self.kept.pop(number, (0, 0))[1]

    def tokens_of(self, number: int) -> int:
        """Return the tokens that are kept of an episode."""
        return self.kept.get(number, (0, 0))[0]

    def read(self, number: int, turn: int, now: float) -> CacheLoad | None:
        """Read what is kept of an episode for a turn of it; None where nothing is."""
        if number not in self.kept:
            return None
        tokens, blocks = self.kept[number]
        self.free_seconds = max(self.free_seconds, now) + blocks * self.block_seconds
        return CacheLoad(number, turn, tokens, self.free_seconds)

    def clear(self) -> None:
        """Forget all that is kept."""
        self.kept.clear()
        self.used = 0


class EpisodeSet(RunningSet):
    """Keep the turns of episodes that run or wait, those that are in their environments, and what is kept of them.

    Whoever plays it calls `catch_up` and `follow_up` when its clock has moved on. A turn whose context is in host memory
    alone waits for a slot once it has come (vLLM, OffloadingConnector: a request waits for it, and others go on). What the
    GPUs give up while its turn waits for a slot is read at once, and computed again where it has not come by then.

    Attributes:
        episodes: All that have begun, or wait for an instance.
        begun: Of those under way, when they began.
        over: Episodes that have ended, with when; for the caller to empty.
    """

    def __init__(
        self, replica: Replica, host: HostShare, longest_tokens: int, *, slower: float = 1.0
    ) -> None:
        super().__init__(replica, [], [], longest_tokens)
        self.host, self.slower = HostQueue(host), slower
        self.instances = Instances(host.seats, math.inf)
        self.episodes: list[Episode] = []
        self.begun: dict[int, float] = {}
        self.owner: list[tuple[int, int]] = []  # episode and turn of each sequence
        self.running_turn: dict[
            int, int
        ] = {}  # sequence of an episode that is not in its environment
        self.over: list[tuple[int, float]] = []
        # By episode, tokens that the prefix cache keeps while it waits, the longest unused first.
        self.kept: dict[int, int] = {}
        self.kept_blocks = 0
        self.known_prompts: set[int] = set()
        self.host_cache = HostCache(replica)
        self.prefills = PrefillQueue(replica) if replica.prefillers is not None else None
        self.handed = (
            0.0  # seconds without anything to compute until a cache came from a replica that reads
        )
        self.clock = 0.0  # when it was last called
        self.loads: deque[CacheLoad] = (
            deque()
        )  # for turns that wait for them, in the order in which they come
        self.loaded: dict[int, CacheLoad] = {}  # of episodes whose turn waits for a slot

    def begin(self, episode: Episode, now: float) -> int:
        """Reset an episode, or let it wait for an instance; return its number."""
        number = len(self.episodes)
        self.episodes.append(episode)
        self.instances.ask(number, episode.environment)
        self._open(now)
        return number

    def _open(self, now: float) -> None:
        """Reset what has been given an instance."""
        for number in self.instances.given():
            episode = self.episodes[number]
            self.begun[number] = now
            self.host.ask(now, episode.environment, episode.reset_seconds, number, 0)

    @property
    def next_return(self) -> float:
        """Return when the next environment has stepped, or a context has come; infinite where neither is under way."""
        return min(self.host.next_end, self.loads[0].seconds if self.loads else math.inf)

    def catch_up(self, now: float) -> None:
        """Let turns behind steps and resets that have ended wait for slots, or end their episodes."""
        self.clock = now
        self._open(now)
        while self.next_return <= now * ROUNDING_UP:
            if self.loads and self.loads[0].seconds <= self.host.next_end:
                self._note_loaded(self.loads.popleft())
                continue
            end, call = self.host.end_next()
            number, turn = call.episode, call.turn
            if number not in self.begun:
                continue
            episode, begun = self.episodes[number], self.begun[number]
            if self.host.ends(call, len(episode.turns), end, begun):
                if not self.host.shares(call, end, begun):
                    self._drop(number)
                    del self.begun[number]
                    self.over.append((number, end))
                    self.instances.give_back(call.environment)
                    self._open(end)
                continue
            load = self._coming(number, turn, end)
            if load is None:
                self._wait_for_slot(number, turn)
            else:
                insort(self.loads, load, key=lambda each: each.seconds)

    def _coming(self, number: int, turn: int, now: float) -> CacheLoad | None:
        """Return what a turn's context comes by: from a replica that reads, or from host memory; None where it is here."""
        if self.prefills is not None:
            episode = self.episodes[number]
            context = episode.contexts[turn]
            there = self.prefills.read(number, episode.prompt, context, now, first=turn == 0)
            return CacheLoad(number, turn, context - 1, there)
        return None if number in self.kept else self.host_cache.read(number, turn, now)

    @property
    def next_is_handed(self) -> bool:
        """Tell whether what comes next is a cache from a replica that reads."""
        return (
            self.prefills is not None
            and bool(self.loads)
            and self.loads[0].seconds <= self.host.next_end
        )

    def _note_loaded(self, load: CacheLoad) -> None:
        """Let a turn wait for a slot whose context has come."""
        if load.number in self.begun:
            self.loaded[load.number] = load
            self._wait_for_slot(load.number, load.turn)

    def _wait_for_slot(self, number: int, turn: int) -> None:
        episode = self.episodes[number]
        sequence = self.arrive(episode.contexts[turn], episode.turns[turn].response_tokens)
        self.owner.append((number, turn))
        self.running_turn[number] = sequence

    def follow_up(self, now: float) -> None:
        """Let environments step on turns that have ended."""
        self.clock = now
        self._make_room_for_running()
        for sequence in self.ended:
            number, turn = self.owner[sequence]
            del self.running_turn[number]
            episode = self.episodes[number]
            seconds = episode.turns[turn].step_seconds
            self.host.ask(now, episode.environment, seconds, number, turn + 1)
        self.ended.clear()

    def abandon(self, number: int) -> int:
        """Take an episode out before its end; return the tokens of its turn that were made."""
        environment = self.episodes[number].environment
        if self.begun.pop(number, None) is None:
            self.instances.leave(number, environment)
            return 0
        self._drop(number)
        self.loaded.pop(number, None)
        self.instances.give_back(environment)
        sequence = self.running_turn.pop(number, None)
        return 0 if sequence is None else self.withdraw(sequence)

    def restart(self) -> int:
        """Throw all running turns out, and what the prefix cache keeps; return the tokens that they had."""
        self.kept.clear()
        self.known_prompts.clear()
        self.kept_blocks = 0
        self.host_cache.clear()
        if self.prefills is not None:
            self.prefills.forget()
        self.loaded.clear()
        self.loads = deque(
            load._replace(tokens=0) for load in self.loads
        )  # of weights that are gone
        return super().restart()

    def complete(self) -> None:
        """Take out the turns that have ended, once waiting episodes gave up what these had taken."""
        self._make_room_for_running()
        super().complete()

    def note_end(self, sequence: int) -> None:
        """Keep what a turn has computed for the next one."""
        super().note_end(sequence)
        number, turn = self.owner[sequence]
        episode = self.episodes[number]
        if self.prefills is not None:
            return  # what writes keeps nothing for the next turn
        if self.replica.keeps_prefixes and turn + 1 < len(episode.turns):
            # The last token is not in the cache yet.
            self.kept[number] = self.prompts[sequence] + self.responses[sequence] - 1
            self.kept_blocks += self._blocks_of(number)
        if self.host_cache.blocks:
            tokens = self.prompts[sequence] + self.responses[sequence] - 1
            self.host_cache.write(number, tokens, tokens // self.block + self.held)

    def cached_tokens(self, sequence: int) -> int:
        """Return the tokens of a turn's context that the prefix cache has: whole blocks, never the last token."""
        number, turn = self.owner[sequence]
        if self.prefills is not None:  # what was preempted is computed here again
            handed = self.loaded.get(number)
            return 0 if self.done_tokens[sequence] or handed is None else handed.tokens
        if self.done_tokens[sequence] or not self.replica.keeps_prefixes:
            return 0
        known = self.kept.get(number, 0)
        load = self.loaded.get(number)
        if load is not None and load.seconds <= self.clock * ROUNDING_UP:
            # Until a slot is free it takes no block of the GPUs, and has to stay where it was read from.
            known = max(known, min(load.tokens, self.host_cache.tokens_of(number)))
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
            number = next(iter(self.kept))
            self._drop(number)
            if number in self.running_turn:  # its turn waits for a slot
                _, turn = self.owner[self.running_turn[number]]
                load = self.host_cache.read(number, turn, self.clock)
                if load is not None:
                    self.loaded[number] = load

    def note_admission(self, sequence: int) -> None:
        """Take over what the prefix cache kept of a turn's context."""
        number, _ = self.owner[sequence]
        self._drop(number)
        self.loaded.pop(number, None)
        self.known_prompts.add(self.episodes[number].prompt)

    def turn_at(self, now: float) -> DecodeSteps | None:
        """Do a prefill or a step with prompts; where none comes next, return the decode steps that do."""
        return self.turn(self.steps_until_return(now))

    def steps_until_return(self, now: float) -> int | None:
        """Return the decode steps until an environment has stepped; None where none does or nothing decodes."""
        running = len(self.running)
        if self.next_return == math.inf or not running:
            return None
        left = max(0.0, self.next_return - now) / self.slower
        cached = self.step + self.offset_sum / running
        first = self.run_seconds(running, cached, 1)
        steps = max(1, math.ceil(left / first))
        if steps <= FEW_STEPS:
            return steps
        mean = (first + self.run_seconds(running, cached + steps, 1)) / 2
        return max(1, math.ceil(left / mean))


class MixedEpisodes(EpisodeSet, PagedSet):
    """Mix the decoding of turns with the prefill of what environments added."""

    def take(
        self, taken: PrefillTokens, sequence: int, computed: int, tokens: int, total: int
    ) -> None:
        """Compute a chunk of a turn's context in a step."""
        self.note_admission(sequence)
        super().take(taken, sequence, computed, tokens, total)


class ReservingEpisodes(MixedEpisodes, ReservingSet):
    """Take all blocks that a turn can need when it is admitted."""


class PrefillFirstEpisodes(EpisodeSet, PrefillFirst):
    """Prefill what environments added before the others go on."""

    def cached_tokens(self, sequence: int) -> int:
        """Return the tokens of a turn's context that need no pass: of one that was handed on all, its first token comes with it.

        SGLang's engines that write take that token from the one that has read (disaggregation/decode.py).
        """
        cached = super().cached_tokens(sequence)
        return self.prompts[sequence] if cached and self.prefills is not None else cached

    def enter(self, sequence: int, tokens: int) -> None:
        """Let a turn run whose context is cached."""
        self.note_admission(sequence)
        super().enter(sequence, tokens)


def _one_by_one(replica: Replica, share: EpisodeShare) -> Generated:
    """Play episodes one after another; nothing of two episodes is batched."""
    total, ends = Generated(), []
    for episode in share.episodes:
        begun = total.seconds
        total = total.after_waiting(episode.reset_seconds)
        seats = share.host.seats[episode.environment]
        for turn, context in zip(episode.turns, episode.contexts, strict=True):
            if context > episode.prompt_tokens and total.seconds - begun > seats.limit_seconds:
                break
            total = total.then(generate(replica, [context], [turn.response_tokens]))
            total = total.after_waiting(turn.step_seconds)
        total = total.after_waiting((seats.sharing - 1) * (total.seconds - begun))
        ends.append(total.seconds)
    return replace(total, finish_seconds=tuple(ends))


def _in_lockstep(replica: Replica, share: EpisodeShare) -> Generated:
    """Play engines that wait for a whole batch: all episodes answer, then all environments step."""
    host, total = HostQueue(share.host), Generated()
    ends = [0.0] * len(share.episodes)
    for places in _rounds(share):
        batch = tuple(share.episodes[place] for place in places)
        total, ended = _batch_in_lockstep(replica, batch, host, total)
        for place, end in zip(places, ended, strict=True):
            ends[place] = end
    return replace(total, finish_seconds=tuple(ends))


def _rounds(share: EpisodeShare) -> Iterator[list[int]]:
    """Yield the places of the episodes that begin together: as many as their environments have instances."""
    left = list(range(len(share.episodes)))
    while left:
        begun: Counter[int] = Counter()
        places, after = list[int](), list[int]()
        for place in left:
            environment = share.episodes[place].environment
            has_room = begun[environment] < share.host.seats[environment].instances
            begun[environment] += has_room
            (places if has_room else after).append(place)
        yield places
        left = after


def _batch_in_lockstep(
    replica: Replica, episodes: tuple[Episode, ...], host: HostQueue, total: Generated
) -> tuple[Generated, list[float]]:
    """Return what was generated before and a batch of episodes behind it, and when each of them ends."""
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
            return total, ended
        one_prompt = all(turn == 0 for (_, turn), _ in alive)
        done = generate(
            replica if one_prompt else replace(replica, prompt_samples=1),
            [each.contexts[turn] for (_, turn), each in alive],
            [each.turns[turn].response_tokens for (_, turn), each in alive],
        )
        total = replace(total.then(done), finish_seconds=())
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
        turns = len(episodes[call.episode].turns)
        is_over = host.ends(call, turns, end, begun)
        if is_over and host.shares(call, end, begun):
            continue
        turn = turns if is_over else call.turn
        ended[call.episode] = end
        found[call.episode, turn] = end
    return found


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
