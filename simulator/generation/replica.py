"""What a replica of a generation engine is, and what it did."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

from rlplan.models import ModelArchitecture
from rlplan.sheets import EngineSheet

Batching = Literal["continuous", "mixed", "calls", "static", "none"]
StepCost = Callable[[int, float], float]
RunCost = Callable[[int, float, int], float]


class Chunks(NamedTuple):
    """Describe the prompt tokens that one step computes beside decoding.

    Attributes:
        parts: Prompts, or parts of prompts.
        tokens: Mean tokens of each.
        seen: Tokens computed in earlier steps that each sees, the mean by token.
    """

    parts: int
    tokens: float
    seen: float


MixedCost = Callable[[int, float, Chunks], float]


def no_mixed_steps(running: int, cached: float, chunks: Chunks) -> float:
    """Refuse: the engine never mixes prefill and decode in a step."""
    raise AssertionError(f"no cost of a mixed step: {running}, {cached}, {chunks}")


class Prefillers(NamedTuple):
    """Describe what a replica that writes has of replicas that read prompts for it.

    Attributes:
        share: Replicas that read, for each that writes.
        blocks: Of their caches, for each that writes: prompts and contexts that they have read.
        token_seconds: To move a token's cache from one to the other, all GPUs of a replica at once.
        fixed_seconds: To move what a sequence has beside its tokens' cache (states).
    """

    share: float
    blocks: int
    token_seconds: float
    fixed_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLimits:
    """Hold how a replica of a generation engine batches, and what its KV cache holds.

    Attributes:
        batching: `continuous` admits a sequence as soon as a slot and its KV blocks are free,
            prefills what it admitted (prefill goes before decode), and when blocks run out preempts
            the latest, whose tokens are computed again on admission (vLLM's recomputation mode).
            `mixed` decodes all running sequences in every step and prefills newcomers in the same
            step, within `max_batched_tokens` for both.
            `calls` hands the engine `max_running` sequences at a time, which it batches
            continuously, and the next only when all of them have ended: callers that wait for their
            micro-batch one after another.
            `static` runs waves of `max_running` until the longest response of the wave ends:
            prompts are padded to the wave's longest, finished sequences keep their slot, and each
            slot reserves blocks for the longest sequence of the batch. `none` runs the same waves
            without a KV cache: every step computes the whole sequences again.
        max_running: Most sequences decoded at a time.
        kv_blocks: Blocks of the replica's KV cache.
        block_tokens: Tokens of one block.
        max_batched_tokens: Most prompt tokens of one prefill pass; a longer prompt has its own. Of a
            mixed step: most tokens, those of decoding included.
        chunked_prefill: Whether mixed steps take parts of prompts to use their budget up (vLLM's V1
            engine) or whole prompts only.
        reserves_whole: Whether mixed batching admits a sequence only when its longest possible
            length fits the KV cache (TensorRT-LLM's guaranteed-no-evict policy), so that none is
            ever preempted.
        prompt_samples: Consecutive sequences with the same prompt. A static wave prefills that prompt once, mixed and
            continuous batching its whole blocks once (a prefix cache; the cache room that shared blocks save is not counted).
        state_blocks: Blocks that a running sequence holds beside those of its tokens.
        keeps_prefixes: Whether blocks of what has ended stay in the cache until others need them, for
            sequences that begin alike (a prefix cache).
        host_blocks: Blocks of them that host memory holds beside.
        host_block_seconds: To read one of these; blocks are read one behind another.
        prefillers: What reads prompts for it, so that it only writes; None where it does both.
    """

    batching: Batching
    max_running: int
    kv_blocks: int
    block_tokens: int
    max_batched_tokens: int
    chunked_prefill: bool = False
    reserves_whole: bool = False
    prompt_samples: int = 1
    state_blocks: int = 0
    keeps_prefixes: bool = False
    host_blocks: int = 0
    host_block_seconds: float = 0.0
    prefillers: Prefillers | None = None


class WaveCosts(NamedTuple):
    """Give what a wave takes: seconds of a pass over its prefixes, and of decode steps."""

    prefill_seconds: StepCost
    decode_run: RunCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica(ReplicaLimits):
    """Describe one replica of a generation engine: how it batches, and what its steps take.

    Attributes:
        prefill_seconds: Seconds of a pass over (sequences, mean tokens of each).
        decode_seconds: Seconds of a step of (running sequences, mean cached tokens).
        mixed_seconds: Seconds of a step of (running sequences, mean cached tokens, chunks).
        decode_run: Seconds of decode steps of (running sequences, mean cached tokens of the first
            step, number of steps), in which every step has one token more than the one before;
            None sums up `decode_seconds`.
        prefill_run: The same of passes over whole sequences, without a KV cache.
        uneven: Of waves whose rows are padded to the longest of them, where that is told apart.
    """

    prefill_seconds: StepCost
    decode_seconds: StepCost
    mixed_seconds: MixedCost = no_mixed_steps
    decode_run: RunCost | None = None
    prefill_run: RunCost | None = None
    uneven: WaveCosts | None = None

    def wave_costs(self, lengths: Collection[int]) -> WaveCosts:
        """Return what a wave takes whose prefixes have such lengths."""
        if self.uneven is not None and min(lengths) != max(lengths):
            return self.uneven
        decode_run = self.decode_run or partial(run_seconds, self.decode_seconds)
        return WaveCosts(self.prefill_seconds, decode_run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Hold what a replica did with its sequences.

    Attributes:
        seconds: From the start to the last completion: prefill, decode and idle seconds.
        idle_seconds: In which every sequence waits for what is outside of the replica.
        handed_seconds: Of those, until a cache comes from a replica that reads prompts.
        num_steps: Decode steps, mixed ones included (without a KV cache: passes over the whole sequences).
        num_jumps: Jumps that the steps were taken in.
        num_preemptions: Sequences thrown out for want of KV blocks.
        peak_running: Most sequences held at a time.
        peak_blocks: Most KV blocks held at a time.
        missing_blocks: Blocks that the cache lacks for its longest sequence; 0 when it fits. The
            other figures then suppose a cache that just holds it.
        finish_seconds: When each sequence is handed out, in the order given.
    """

    seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    num_steps: int = 0
    num_jumps: int = 0
    num_preemptions: int = 0
    peak_running: int = 0
    peak_blocks: int = 0
    missing_blocks: int = 0
    finish_seconds: tuple[float, ...] = ()
    idle_seconds: float = 0.0
    handed_seconds: float = 0.0

    def then(self, other: "Generated") -> "Generated":
        """Return both, one after the other."""
        return Generated(
            seconds=self.seconds + other.seconds,
            prefill_seconds=self.prefill_seconds + other.prefill_seconds,
            decode_seconds=self.decode_seconds + other.decode_seconds,
            num_steps=self.num_steps + other.num_steps,
            num_jumps=self.num_jumps + other.num_jumps,
            num_preemptions=self.num_preemptions + other.num_preemptions,
            peak_running=max(self.peak_running, other.peak_running),
            peak_blocks=max(self.peak_blocks, other.peak_blocks),
            missing_blocks=max(self.missing_blocks, other.missing_blocks),
            finish_seconds=(
                *self.finish_seconds,
                *(self.seconds + end for end in other.finish_seconds),
            ),
            idle_seconds=self.idle_seconds + other.idle_seconds,
            handed_seconds=self.handed_seconds + other.handed_seconds,
        )

    def after_waiting(self, seconds: float) -> "Generated":
        """Return the same with so many idle seconds behind it."""
        idle = self.idle_seconds + seconds
        return replace(self, seconds=self.seconds + seconds, idle_seconds=idle)


def run_seconds(cost: StepCost, sequences: int, first: float, steps: int) -> float:
    """Return the seconds of `steps` steps at `first`, first + 1, ... tokens.

    Two points at the standard deviation of 0 .. steps - 1 around its mean: exact for costs up to
    cubic in the length, since the sum's odd moments vanish (attention is quadratic).
    """
    mean = first + (steps - 1) / 2
    deviation = math.sqrt((steps**2 - 1) / 12)
    if not deviation:
        return cost(sequences, mean)
    return steps * (cost(sequences, mean - deviation) + cost(sequences, mean + deviation)) / 2


def blocks_of(tokens: int, block_tokens: int) -> int:
    """Return the KV blocks that hold `tokens` tokens."""
    return -(-tokens // block_tokens)


def prefill_passes(replica: Replica, tokens: Sequence[int], cost: StepCost | None = None) -> float:
    """Return the seconds of prefilling sequences in order, in passes of `max_batched_tokens`.

    Args:
        cost: Of a pass; the replica's own if None.
    """
    prefill_seconds = cost or replica.prefill_seconds
    seconds, count, in_pass = 0.0, 0, 0
    for length in tokens:
        if count and in_pass + length > replica.max_batched_tokens:
            seconds += prefill_seconds(count, in_pass / count)
            count = in_pass = 0
        count, in_pass = count + 1, in_pass + length
    return seconds + prefill_seconds(count, in_pass / count)


def with_states_apart(
    limits: ReplicaLimits, engine: EngineSheet, model: ModelArchitecture
) -> ReplicaLimits:
    """Return limits whose blocks are those of tokens alone, and whose running sequences are no more than the pool of states has slots for.

    Limits of other engines and models are as they were.
    """
    slots = _slots(engine, model)
    if not slots or not limits.state_blocks:
        return limits
    assert engine.states is not None, "it has slots"
    pool = int(engine.states.share * limits.kv_blocks)
    most = max(1, pool // (slots * limits.state_blocks))
    return replace(
        limits,
        max_running=min(limits.max_running, most),
        kv_blocks=limits.kv_blocks - pool,
        state_blocks=0,
    )


def blocks_held(
    engine: EngineSheet,
    model: ModelArchitecture,
    sequences: int,
    token_blocks: int,
    state_blocks: int,
) -> int:
    """Return the least blocks of a cache in which so many sequences run at a time.

    Args:
        token_blocks: Of the tokens of a sequence.
        state_blocks: Of its states, and of whole windows.
    """
    slots = _slots(engine, model)
    if not slots or not state_blocks:
        return sequences * (token_blocks + state_blocks)
    assert engine.states is not None, "it has slots"
    share = engine.states.share
    states = math.ceil(sequences * slots * state_blocks / share)
    return max(states, math.ceil(sequences * token_blocks / (1 - share)))


def _slots(engine: EngineSheet, model: ModelArchitecture) -> int:
    return engine.states.slots_of(model) if engine.states is not None else 0
