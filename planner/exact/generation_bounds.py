"""Seconds that no generation of a replica can beat, in closed form: nothing is played.

Every step of a replica of p stages takes p times the slowest stage's parts. Each part lies above straight
lines a + b x, x being the tokens of a stage's batch, which over all steps add up to a S + b X: X are the
tokens that must pass, and S a number of steps that no schedule undercuts:

- a step gives a sequence one token at most: S >= the longest response;
- a step decodes `max_running` sequences at most: S >= decoded tokens / max_running;
- the sequences of a step fit into the cache: S >= the sum of cached tokens / the cache's tokens.

Where slots and cache are ample, prompts fill up whole steps, so that steps with prompts are few, and a
steeper line holds for those. Preemption only adds: prompts are computed again. The best pair of lines
gives the bound. Decision 7 has the argument in full.
"""

import heapq
import math
import sys
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from rlplan.job import Job
from rlplan.models import layer_kinds
from rlplan.profiles.analytic.ordered import distinct
from rlplan.profiles.tables.remembered import kept_with
from rlplan.sheets import EngineSheet
from rlplan.simulator.columns import Flags, Floats, Ints
from rlplan.simulator.environments import host_share
from rlplan.simulator.generation.episodes import Episode, EpisodeShare
from rlplan.simulator.generation.nodes import NODES
from rlplan.simulator.generation.prices import EngineSteps
from rlplan.simulator.generation.replica import blocks_of
from rlplan.simulator.generation.shares import longest_episodes
from rlplan.simulator.workload import statistics_of

# Seconds that no generation of a replica can beat, in closed form: nothing is played.
#
# Every step of a replica of p stages takes p times the slowest stage's parts. Each part lies above straight
# lines a + b x, x being the tokens of a stage's batch, which over all steps add up to a S + b X: X are the
# tokens that must pass, and S a number of steps that no schedule undercuts:
#
# - a step gives a sequence one token at most: S >= the longest response;
# - a step decodes `max_running` sequences at most: S >= decoded tokens / max_running;
# - the sequences of a step fit into the cache: S >= the sum of cached tokens / the cache's tokens.
#
# Where slots and cache are ample, prompts fill up whole steps, so that steps with prompts are few, and a
# steeper line holds for those. Preemption only adds: prompts are computed again. The best pair of lines
# gives the bound. Decision 7 has the argument in full.


@dataclass(frozen=True, slots=True, eq=False)
class Contexts:
    """Hold how long the contexts are in which tokens are given, and how long responses are.

    Attributes:
        responses: Their tokens, in the order in which they begin.
        longest: Tokens of the k longest responses, for k = 0, 1, ... Shape (sequences + 1,).
        below: Tokens that are given with fewer than so many tokens cached. Shape (longest context + 2,).
        cached_below: What is cached when they are given, summed over them. Shape as `below`.
        in_turn: Whether all are there from the start, so that they begin in turn and hold their slots.
    """

    responses: tuple[int, ...]
    longest: Floats
    below: Floats
    cached_below: Floats
    in_turn: bool = True

    def side_by_side(self, running: Floats) -> Floats:
        """Return tokens, summed over steps, that steps give at least to so many sequences each.

        A step gives a sequence one token, so the k longest responses take k places of as many steps as
        they have tokens, whenever they run: sum over steps of min(sequences, k) >= their tokens.
        """
        return np.asarray(np.interp(running, np.arange(len(self.longest)), self.longest))

    def in_cache(self, running: Floats, cache_tokens: Floats) -> Floats:
        """Return the same of a cache of so many tokens, which all sequences of a step fit into.

        Of a step's sequences with m cached tokens each, sum of min(1, k m / cache) <= min(sequences, k):
        the left side is at most their number, and at most k.

        Args:
            running: k; shape (numbers,).
            cache_tokens: Shape (caches,).

        Returns:
            Shape (caches, numbers).
        """
        share = cache_tokens[:, None] / np.maximum(running, 1e-9)
        place = np.minimum(np.ceil(share), len(self.below) - 1).astype(np.int64)
        few = self.cached_below[place] / np.maximum(share, 1e-9)
        return np.asarray(few + self.below[-1] - self.below[place])


def steps_in_turn(contexts: Contexts, running: int) -> int:
    """Return steps that no schedule undercuts which begins sequences in turn, so many at a time at most.

    A sequence first begins when fewer than `running` of those before it have not ended: who is thrown out
    waits before all who have not begun. So none ends earlier than where nothing else holds it up. Where
    sequences come by and by, all that holds is that a step gives each one token, and `running` at most.
    """
    responses = contexts.responses
    if not contexts.in_turn:
        return max(*responses, -(-sum(responses) // running))
    ends = list(responses[:running])
    if len(responses) > running:
        heapq.heapify(ends)
        for tokens in responses[running:]:
            heapq.heapreplace(ends, ends[0] + tokens)
    return max(ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Hold what the sequences of one replica ask for, all together.

    Attributes:
        prompt_tokens: That are computed once at least.
        shortest_prompt_tokens: The same of a sequence.
        steps: Steps that the longest response takes.
        decoded_tokens: Tokens that decode steps give.
        cached_tokens: Cached tokens that these read, summed over steps.
        known: What bounds have asked of it already, which goes when it goes: contexts of long responses take half a megabyte.
    """

    contexts: Contexts = field(compare=False, repr=False)
    known: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    sequences: int
    prompt_tokens: int
    shortest_prompt_tokens: int
    longest_prompt_tokens: int
    longest_tokens: int
    steps: int
    decoded_tokens: int
    cached_tokens: float


def least_steps(load: Load, running: int, *, endless: bool = False) -> float:
    """Return steps that no schedule of a load undercuts with so many running.

    Args:
        endless: Whether sequences of other loads run beside its own: a step then only gives as many tokens.
    """
    if endless:
        return (load.decoded_tokens + load.sequences) / running
    if running not in load.known:
        load.known[running] = float(steps_in_turn(load.contexts, running))
    return float(load.known[running])


def load_of(
    prompts: tuple[int, ...], responses: tuple[int, ...], samples: int = 1, block_tokens: int = 1
) -> Load:
    """Return the load of a replica's sequences.

    Args:
        samples: Sequences in a row that have one prompt, of which all but the first find whole blocks of it in
            the cache.
    """
    prompt, response = np.array(prompts), np.array(responses)
    known = np.arange(len(prompt)) % samples > 0
    computed = np.where(known, (prompt - 1) % block_tokens + 1, prompt)
    decoded = response - 1
    # A sequence's k-th decode step reads its prompt and k - 1 tokens more.
    cached = decoded * prompt + decoded * (decoded - 1) / 2
    return Load(
        sequences=len(prompts),
        prompt_tokens=int(computed.sum()),
        shortest_prompt_tokens=int(computed.min()),
        longest_prompt_tokens=int(prompt.max()),
        longest_tokens=int((prompt + response).max()),
        steps=int(response.max()),
        decoded_tokens=int(decoded.sum()),
        cached_tokens=float(cached.sum()),
        contexts=_contexts(prompt, response),
    )


def _contexts(prompts: Ints, responses: Ints) -> Contexts:
    # A sequence's k-th token is given with its prompt and k - 1 tokens more in the cache.
    most = int((prompts + responses).max()) + 1
    begun = np.bincount(prompts, minlength=most)
    ended = np.bincount(prompts + responses, minlength=most)
    given = np.cumsum(begun - ended).astype(np.float64)
    cached = given * np.arange(most)
    return Contexts(
        responses=tuple(responses.tolist()),
        longest=np.concatenate([[0.0], np.cumsum(np.sort(responses)[::-1])]),
        below=np.concatenate([[0.0], np.cumsum(given)]),
        cached_below=np.concatenate([[0.0], np.cumsum(cached)]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Floors:
    """Hold concave functions below the seconds of a stage's step, one row each.

    Attributes:
        base: Seconds of a step. Shape (floors,), as those without another.
        slope: Seconds for each sequence.
        corners: Sequences up to which the weights count. Shape (corners,).
        weights: Seconds for each sequence up to a corner. Shape (floors, corners).
        beyond: Seconds for each token of a prompt, at least.
        steeper: Seconds for each of them, `less` seconds in each step taken off. Shape (lines,).
        less: Shape (floors, lines).
    """

    base: Floats
    slope: Floats
    corners: Floats
    weights: Floats
    beyond: Floats
    steeper: Floats
    less: Floats


def floors_under(tokens: Floats, seconds: Floats, most_sequences: float) -> Floors:
    """Return concave functions below seconds that are read off straight lines between nodes.

    Args:
        tokens: Of a step, from 1 to the most; below 1 it takes what 1 takes.
        seconds: Of the step. Shape as `tokens`.
        most_sequences: That a step gives tokens to; fewer than the most tokens.
    """
    # More tokens never take less than this.
    rising = np.minimum.accumulate(seconds[::-1])[::-1]
    last = max(1, int(np.searchsorted(tokens, most_sequences)))
    few, width = tokens[: last + 1], np.diff(tokens)
    slopes = np.diff(rising) / width
    # Less a straight line and made to rise again, seconds are followed as far as they bend downwards only.
    slope = distinct(np.append(slopes[: last + 1], 0.0))
    rest = rising[: last + 1] - slope[:, None] * few
    rest = np.minimum.accumulate(rest[:, ::-1], axis=1)[:, ::-1]
    slope, rest = slope[rest[:, 0] >= 0], rest[rest[:, 0] >= 0]
    falling = np.concatenate([rest[:, :1] / few[0], np.diff(rest, axis=1) / width[:last]], axis=1)
    falling = np.minimum.accumulate(falling, axis=1)[:, 1:]
    base = rest[:, 0] - falling[:, 0] * few[0]
    below = np.cumsum(np.column_stack([rest[:, 0], falling * width[:last]]), axis=1)
    below = np.column_stack([base, below + slope[:, None] * few])
    chords = (rising[last + 1 :] - rising[last]) / (tokens[last + 1 :] - tokens[last])
    steeper = distinct(slopes[last:])
    return Floors(
        base=base,
        slope=slope,
        corners=few[1:],
        weights=-np.diff(falling, axis=1, append=0.0),
        beyond=np.minimum(slope + falling[:, -1], chords.min()),
        steeper=steeper,
        less=_taken_off(np.append(0.0, tokens), np.append(rising[0], rising), below, steeper),
    )


def _taken_off(tokens: Floats, rising: Floats, below: Floats, steeper: Floats) -> Floats:
    """Return by how much lines from any place on a floor rise above the seconds. Shape (floors, lines).

    With n sequences and q tokens more, steeper q - (rising(n + q) - below(n)) is one term in n + q and one in
    n. Between two nodes of n + q both are at most the larger of their ends.
    """
    few = below.shape[1]
    own = below[:, None] - steeper[:, None] * tokens[:few]
    own = np.maximum.accumulate(own, axis=2)
    own = np.concatenate([own, np.repeat(own[:, :, -1:], len(tokens) - few, axis=2)], axis=2)
    whole = steeper[:, None] * tokens - rising
    both = np.maximum(whole[:, :-1], whole[:, 1:]) + own[:, :, 1:]
    return np.asarray(np.maximum(both.max(axis=2), 0.0))


class ConcaveBound:
    """Bound the seconds that a stage computes a load's tokens and reads its cache, over all steps.

    Args:
        running: Most sequences of a step, of all stages' batches together.
        stages: Over which a step's sequences are shared out.
        read_seconds: Of one cached token.
        batched_tokens: Most tokens of prompts in a step.
        endless: Whether other loads' sequences run beside this one's.
    """

    def __init__(
        self,
        floors: Floors,
        load: Load,
        running: int,
        stages: int,
        read_seconds: float,
        batched_tokens: int,
        *,
        endless: bool = False,
    ) -> None:
        self.floors, self.load, self.stages = floors, load, stages
        given = load.decoded_tokens + load.sequences
        self.corners = np.minimum(floors.corners * stages, running)
        self.together = given * self.corners / running
        if not endless:  # the longest responses of several loads run side by side
            longest = load.contexts.side_by_side(self.corners)
            self.together = np.maximum(longest, self.together)
        self.given, self.running = given, running
        self.least_steps = least_steps(load, running, endless=endless)
        gained, covered = self._of_prompts(running, batched_tokens)
        cached = load.cached_tokens / stages
        each = floors.slope * given / stages
        self.read = each + gained.max(axis=1) + read_seconds * cached
        covering = gained + np.minimum(read_seconds, covered) * cached
        self.computed_again = each + covering.max(axis=1)
        self.lost = floors.base - read_seconds * batched_tokens / stages

    def _of_prompts(self, running: int, batched_tokens: int) -> tuple[Floats, Floats]:
        """Return seconds that prompts take beside the first tokens, and those for each token computed again.

        A line with `less` taken off holds for steps that compute tokens of prompts. Each of them ends one,
        or is filled up. What is computed again ends once more.

        Returns:
            By each way to tell, `beyond` and the lines: seconds, and seconds for each token of a sequence
            that is computed again, whatever it has. Shape (floors, ways).
        """
        floors, load, stages = self.floors, self.load, self.stages
        least, filled = load.shortest_prompt_tokens, batched_tokens - running
        first = floors.beyond[:, None]
        gained = first * (load.prompt_tokens - load.sequences) / stages
        covered = first * least / (least + 1)
        if filled <= 0:
            return gained, covered
        each = floors.steeper / stages - floors.less / filled  # for each token of a prompt
        once = floors.steeper / stages + floors.less  # taken off for each prompt
        holds = (each > 0) & (each * least >= once)
        lines = np.where(holds, each * load.prompt_tokens - once * load.sequences, 0.0)
        again = np.where(holds, (each - once / least) * stages, 0.0)
        return np.column_stack([gained, lines]), np.column_stack([covered, again])

    def seconds(self, cache_tokens: Floats, preempts: Flags) -> Floats:
        """Return the bounds for caches of so many tokens, in seconds. Shape as `cache_tokens`.

        Args:
            preempts: Where sequences may be thrown out: what is computed again is not read, but takes its
                own time, or what it has of each step.
        """
        contexts, floors = self.load.contexts, self.floors
        steps = np.maximum(contexts.cached_below[-1] / cache_tokens, self.least_steps)
        together = np.maximum(contexts.in_cache(self.corners, cache_tokens), self.together)
        # min(n, k) lies above the line from one sequence to all that may run.
        share = (self.corners - 1) / max(1, self.running - 1)
        together = np.maximum(together, steps[:, None] * (1 - share) + self.given * share)
        shared = floors.weights @ together.T / self.stages
        read = shared + self.read[:, None]
        found = read + floors.base[:, None] * steps
        if not preempts.any():
            return np.asarray(found.max(axis=0))
        again = shared + self.computed_again[:, None] + floors.base[:, None] * steps
        lost = np.where(self.lost[:, None] >= 0, read + self.lost[:, None] * steps, 0.0)
        return np.asarray(np.where(preempts, np.maximum(again, lost), found).max(axis=0))


Line = tuple[float, float]  # seconds at no tokens, seconds for each

# Where the rate of reading the cache is probed; it is the same everywhere, but for attention to chosen tokens.
PROBED_SEQUENCES, PROBED_TOKENS = 64, 1024
MANY_SEQUENCES, FAR_TOKENS = 4096, 2**20
ROUNDING = 1e-6


class BoundedSettings(NamedTuple):
    """Hold what of a replica's settings bounds depend on.

    Attributes:
        max_running: Sequences that run at the same time, at most.
        state_blocks: Blocks that a sequence takes beside those of its tokens.
        waits: Whether some may wait though all may run: the bound holds for smaller limits too.
        endless: Whether the load's sequences run beside those of loads before and behind it: then the bound is
            on the mean over many loads.
    """

    max_running: int
    state_blocks: int = 0
    waits: bool = False
    endless: bool = False


def least_seconds(
    steps: EngineSteps, load: Load, asked: BoundedSettings, kv_blocks: Floats
) -> Floats:
    """Return the bounds for caches of several sizes, in seconds. Shape as `kv_blocks`."""
    engine, stages = steps.engine, steps.setting.pp
    widest = max(engine.max_batched_tokens, load.longest_prompt_tokens) // stages + 1
    block = engine.kv_block_tokens
    running = asked.max_running if asked.endless else min(asked.max_running, load.sequences)
    # With so many blocks nobody is ever preempted, and if all may run, nobody waits.
    preempts = kv_blocks < running * (blocks_of(load.longest_tokens, block) + asked.state_blocks)
    waits = preempts | (running < load.sequences or asked.waits or not load.contexts.in_turn)
    by_cache = load.cached_tokens / (block * np.maximum(kv_blocks, 1.0))
    num_steps = np.maximum(by_cache, least_steps(load, running, endless=asked.endless))
    tokens = (load.prompt_tokens + load.decoded_tokens) / stages
    heads = (load.sequences + load.decoded_tokens) / stages
    read = _cache_seconds(steps)
    base, slope, steeper = _dense_lines(steps, load, widest)[:, :, None]
    # A preempted sequence's next token reads no cache, but as many tokens pass once more.
    reading = np.where(preempts, np.minimum(read, slope), read) * load.cached_tokens / stages
    dense = base * num_steps + slope * tokens + reading + np.where(waits, 0.0, steeper)
    concave = _concave_bound(steps, load, running, asked.endless)
    bent = concave.seconds(block * np.maximum(kv_blocks, 1.0), preempts)
    base, slope = _head_lines(steps, load.sequences // stages + 1)[:, :, None]
    head = base * num_steps + slope * heads
    device = (np.maximum(dense.max(axis=0), bent) + head.max(axis=0)) * stages
    # Prompts give sequences their first tokens; every step of the others is launched.
    decoding = max(load.decoded_tokens / running, 0 if asked.endless else load.steps - 1)
    device = np.maximum(device, steps.floor_seconds(1) * decoding)
    first = steps.host_seconds(0)
    each = steps.host_seconds(1) - first
    host = first * num_steps + each * (load.sequences + load.decoded_tokens)
    longer = np.maximum(device, host)
    whole = longer if steps.overlaps else device + host
    # A step that checks guesses takes no less than one without, and gives so many tokens.
    return np.asarray(whole / steps.tokens_per_step)


def _dense_lines(steps: EngineSteps, load: Load, widest: int) -> Floats:
    """Return bases, slopes, and what steps with prompts take beyond each line. Shape (3, lines)."""
    known, asked = load.known, (steps, widest)
    if asked not in known:
        lines = _lines(steps, "dense", widest)
        known[asked] = np.array([(*line, _steeper(steps, load, line, lines)) for line in lines]).T
    found: Floats = known[asked]
    return found


@kept_with(lambda steps, *_: steps)
def _head_lines(steps: EngineSteps, most: int) -> Floats:
    """Return bases and slopes under the output head's seconds. Shape (2, lines)."""
    return np.array(_lines(steps, "head", most)).T


def _steeper(steps: EngineSteps, load: Load, line: Line, lines: tuple[Line, ...]) -> float:
    """Return what a stage's steps with prompts take beyond a line, by the best of steeper ones.

    Every one of them but the last is filled up to the budget of tokens.
    """
    engine = steps.engine
    filled = engine.max_batched_tokens
    if engine.batching == "mixed":
        filled -= load.sequences  # each that runs takes one
    if engine.batching != "mixed" or not engine.chunked_prefill:
        filled -= load.longest_prompt_tokens  # the next prompt did not fit
    if filled <= 0:
        return 0.0
    most = load.prompt_tokens // filled + 1
    base, slope = line
    gains = (
        (steep - slope) * load.prompt_tokens / steps.setting.pp - (base - low) * most
        for low, steep in lines
        if steep > slope and low < base
    )
    return max(0.0, max(gains, default=0.0))


@kept_with(lambda steps: steps)
def _cache_seconds(steps: EngineSteps) -> float:
    """Return the least seconds of reading one cached token in all layers of a stage, 0 if it varies.

    Engines whose cache is read at a share of the memory's rate read it in proportion to its tokens, but what an index chooses.
    """
    if not steps.engine.steps.cache_read_efficiency:
        return 0.0
    # From the widest window on, only layers that see everything read more; attention to chosen tokens reads least
    # of a token far behind those, where many sequences hide what else a step waits for.
    first = max(kind.window or 0 for kind in layer_kinds(steps.model).models)
    near = _read_seconds(steps, PROBED_SEQUENCES, first)
    far = _read_seconds(steps, MANY_SEQUENCES, FAR_TOKENS)
    return far if far < near * (1 - ROUNDING) else near


def _read_seconds(steps: EngineSteps, sequences: int, first: int) -> float:
    """Return the seconds of reading one token of a sequence more from a number of tokens on."""
    most = steps.decode_attention(sequences, first + PROBED_TOKENS).seconds
    least = steps.decode_attention(sequences, first).seconds
    return (most - least) / (sequences * PROBED_TOKENS)


def _concave_bound(steps: EngineSteps, load: Load, running: int, endless: bool) -> ConcaveBound:
    """Return the bound by concave functions under the seconds of a step's matrix products."""
    known, asked = load.known, (steps, running, endless)
    if asked not in known:
        known[asked] = _new_concave_bound(steps, load, running, endless)
    found: ConcaveBound = known[asked]
    return found


def _new_concave_bound(steps: EngineSteps, load: Load, running: int, endless: bool) -> ConcaveBound:
    engine, stages = steps.engine, steps.setting.pp
    batched = engine.max_batched_tokens
    if engine.batching != "mixed" or not engine.chunked_prefill:
        batched = max(batched, load.longest_tokens)  # a prompt may be computed whole
    most = max(batched, 2 * running) // stages + 1
    floors = _floors(
        steps, NODES[bisect_left(NODES, most)], NODES[bisect_left(NODES, running / stages)]
    )
    read = _cache_seconds(steps)
    return ConcaveBound(floors, load, running, stages, read, batched, endless=endless)


@kept_with(lambda steps, *_: steps)
def _floors(steps: EngineSteps, most_tokens: int, most_sequences: int) -> Floors:
    """Return concave functions under the seconds of a step's matrix products, up to so many tokens."""
    tokens, seconds = _nodes(steps, "dense", most_tokens)
    return floors_under(tokens[1:], seconds[1:], most_sequences)


def _lines(steps: EngineSteps, part: str, most: int) -> tuple[Line, ...]:
    """Return lines that a part's seconds lie above for 0 to `most` tokens of a stage."""
    return _hull(steps, part, 1 << (most - 1).bit_length())


@kept_with(lambda steps, *_: steps)
def _hull(steps: EngineSteps, part: str, most: int) -> tuple[Line, ...]:
    """Return the rising sides of the convex hull under a part's nodes, and its lowest point's level."""
    tokens, seconds = (column.tolist() for column in _nodes(steps, part, most))
    corners: list[tuple[int, float]] = []
    for point in zip(tokens, seconds, strict=True):
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) >= _slope(corners[-1], point):
            corners.pop()
        corners.append(point)
    lines = [(min(seconds), 0.0)]
    for left, right in pairwise(corners):
        slope = _slope(left, right)
        if slope > 0:
            lines.append((left[1] - slope * left[0], slope))
    return tuple(lines)


@kept_with(lambda steps, *_: steps)
def _nodes(steps: EngineSteps, part: str, most: int) -> tuple[Floats, Floats]:
    """Return the nodes from 0 to `most` tokens of a stage, and a part's seconds there."""
    grid = steps.dense_grid if part == "dense" else steps.head_grid
    tokens = NODES[: bisect_left(NODES, most) + 1]
    seconds = [grid.at_node(node).seconds for node in tokens]
    return np.array(tokens, dtype=np.float64), np.array(seconds)


def _slope(left: tuple[int, float], right: tuple[int, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


# A token more or less of an episode weighs as much as this many seconds where the longest ones are looked for.
TOKEN_SECONDS = 0.01


class BoundingLoad(NamedTuple):
    """Hold a load that a replica cannot do without.

    Attributes:
        running: Most of its sequences that run at a time.
        outside_seconds: In which none of them is computed.
    """

    load: Load
    running: int = sys.maxsize
    outside_seconds: float = 0.0

    def asked(self, asked: BoundedSettings) -> BoundedSettings:
        """Return a replica's settings as this load meets them."""
        return asked._replace(max_running=min(asked.max_running, self.running))


def episode_loads(job: Job, engine: EngineSheet, replicas: int) -> list[BoundingLoad]:
    """Return what the replicas that may end last cannot do without.

    All turns of a replica, whenever they come; and the turns of one episode, of which one runs at a time,
    with its resets and steps between.
    """
    samples = job.workload.samples_per_prompt
    host = host_share(job, replicas)
    shares = longest_episodes(statistics_of(job.workload), replicas, samples, host)
    certain = [tuple(_certain(each, share) for each in share.episodes) for share in shares]
    alone = {episode for episodes in certain for episode in _longest(episodes)}
    found = [BoundingLoad(_load(episodes, engine, samples)) for episodes in certain]
    found += [
        BoundingLoad(_load((episode,), engine, 1, begun=True), 1, outside_seconds(episode))
        for episode in sorted(alone)
    ]
    return found


def batch_load(job: Job, engine: EngineSheet) -> Load | None:
    """Return the load of all turns of a batch, in whatever order its lengths come; None where that may change it.

    A limit of all tokens, or of an episode's seconds, ends other episodes in each order.
    """
    work = job.workload
    if work.max_total_tokens is not None or any(
        each.episode_limit_seconds is not None for each in job.environments
    ):
        return None
    samples = work.samples_per_prompt
    (share, *_) = longest_episodes(statistics_of(work), 1, samples, host_share(job, 1))
    return _load(share.episodes, engine, samples)


def outside_seconds(episode: Episode) -> float:
    """Return what an episode spends in its environment at least, were there always cores."""
    return episode.reset_seconds + sum(turn.step_seconds for turn in episode.turns)


def _certain(episode: Episode, share: EpisodeShare) -> Episode:
    """Return what of an episode is played whatever holds it up: its first turn where a limit may end it."""
    if share.host.seats[episode.environment].limit_seconds == math.inf:
        return episode
    return episode._replace(turns=episode.turns[:1])


def _longest(episodes: Sequence[Episode]) -> set[Episode]:
    """Return the episodes that may end last: the longest in tokens, in their environment, and in both."""

    def tokens(episode: Episode) -> float:
        return TOKEN_SECONDS * sum(turn.response_tokens for turn in episode.turns)

    amounts = (
        tokens,
        outside_seconds,
        lambda each: tokens(each) + outside_seconds(each),
    )
    return {max(episodes, key=amount) for amount in amounts}


def _load(
    episodes: Sequence[Episode], engine: EngineSheet, samples: int, *, begun: bool = False
) -> Load:
    """Return the load of episodes: each turn is a sequence whose prompt is all that came before.

    Args:
        samples: Episodes in a row that have one prompt.
        begun: Whether others may have computed the first one's prompt.
    """
    block = engine.kv_block_tokens
    prompts, responses, computed = [], [], []
    for number, episode in enumerate(episodes):
        for turn, context in zip(episode.turns, episode.contexts, strict=True):
            first = context == episode.prompt_tokens and number % samples == 0 and not begun
            known = 0 if first or not engine.shares_prompts else (context - 1) // block * block
            prompts.append(context)
            responses.append(turn.response_tokens)
            computed.append(context - known)
    load = load_of(tuple(prompts), tuple(responses))
    return replace(
        load,
        prompt_tokens=sum(computed),
        shortest_prompt_tokens=min(computed),
        contexts=replace(load.contexts, in_turn=False),
    )
