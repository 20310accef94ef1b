"""Generate tasks: the slowest replica's prefills and decode steps under its KV limits."""

import math
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from rlplan.dataflow import begun_of
from rlplan.errors import MissingFactError
from rlplan.estimate import Estimate
from rlplan.models import GROUPED_ATTENTION
from rlplan.profiles.tables.remembered import LeastRecentlyUsed, kept_with
from rlplan.sheets import EngineSheet
from rlplan.simulator.costs.taskcost import ENVIRONMENT, TaskCost
from rlplan.simulator.environments import host_share
from rlplan.simulator.generation.attention import cached_value_bytes
from rlplan.simulator.generation.caching import (
    cached_blocks,
    held_sequences,
    kept_block_bytes,
)
from rlplan.simulator.generation.episodes import (
    EpisodeShare,
    generate_episodes,
    one_turn_episodes,
)
from rlplan.simulator.generation.nodes import nodes, nodes_around, stretches
from rlplan.simulator.generation.playing import generate, last_tokens_of_waves
from rlplan.simulator.generation.prices import (
    CostQuality,
    EngineSteps,
    ReplicaSetting,
    ReplicaSteps,
    SteppedInterval,
    engine_steps,
    measured_steps,
    noted,
    operator_steps,
    replica_setting_of,
)
from rlplan.simulator.generation.replica import (
    Chunks,
    Generated,
    Prefillers,
    Replica,
    ReplicaLimits,
    WaveCosts,
    blocks_of,
    with_states_apart,
)
from rlplan.simulator.generation.shares import (
    OTHER_BATCHES,
    Share,
    length_spread,
    longest_episodes,
    longest_shares,
    waits,
)
from rlplan.simulator.generation.speculation import SpeculativeSteps, speculative_steps
from rlplan.simulator.model import NARROW_BYTES
from rlplan.simulator.placed import PlacedTask
from rlplan.simulator.workload import Floats, longest_seconds_luck


def mixed_reading(steps: EngineSteps) -> float:
    """Return how many times as long decode attention takes beside prompts, whose tiles have more rows; 1 where not all layers have such."""
    costs, sheet, setting = steps.engine.steps, steps.setting.device.sheet, steps.setting
    kinds = [kind for kind, _ in steps.attending_layers]
    value_bytes = cached_value_bytes(setting)
    if value_bytes == NARROW_BYTES or any(each.attention != GROUPED_ATTENTION for each in kinds):
        return 1.0
    read = sheet.memory_bytes_per_second * costs.cache_read_efficiency or math.inf
    alone, mixed = (
        min(read, costs.tiled_cache_rate(sheet, value_bytes, mixed=each)) for each in (False, True)
    )
    return 1.0 if math.isinf(mixed) else alone / mixed


class EngineClock:
    """Give seconds of steps for one generation, and remember how well they are known."""

    def __init__(self, steps: EngineSteps) -> None:
        self._steps = steps
        self._notes: set[CostQuality] = set()
        self._latest: dict[int, SteppedInterval] = {}  # by sequences
        self._stages = steps.setting.pp
        self._overlap = steps.overlaps
        self._host_seconds = 0.0  # that the device waited
        self._mixed_reading = mixed_reading(steps)

    def prefill(self, sequences: int, tokens: float) -> float:
        """Return seconds of a pass over whole prompts of a mean of `tokens` tokens."""
        return self.mixed(0, 0.0, Chunks(sequences, tokens, 0.0))

    def decode(self, running: int, cached: float) -> float:
        """Return seconds of a decode step of sequences with a mean of `cached` tokens."""
        return self.decode_run(running, cached, 1)

    def decode_run(self, running: int, first: float, steps: int) -> float:
        """Return seconds of decode steps with a mean of first, first + 1, ... cached tokens."""
        last = first + steps - 1
        stretch = self._latest.get(running)
        if stretch is not None and first >= stretch.low and last <= stretch.high:
            return self._on(stretch, steps, (first + last) / 2)
        seconds = 0.0
        for mean, count in stretches(first, steps):
            seconds += self._on(self._stretch(running, mean), count, mean)
        return seconds

    prefill_run = None  # it has a KV cache
    uneven = None  # it pads nothing

    def _on(self, stretch: SteppedInterval, steps: int, mean: float) -> float:
        """Return seconds of steps around a mean on a straight line, none shorter than the floor."""
        device = stretch.base + stretch.slope * mean
        margin = abs(stretch.slope) * (steps - 1) / 2
        if device - margin >= stretch.floor:
            self._host_seconds += steps * stretch.added
            return steps * (device + stretch.added)
        if device + margin <= stretch.floor:
            self._host_seconds += steps * (stretch.floor - device + stretch.added)
            return steps * (stretch.floor + stretch.added)
        first = mean - (steps - 1) / 2
        each = (stretch.base + stretch.slope * (first + step) for step in range(steps))
        whole = sum(max(seconds, stretch.floor) for seconds in each) + steps * stretch.added
        self._host_seconds += whole - steps * device
        return whole

    def _stretch(self, running: int, cached: float) -> SteppedInterval:
        """Return the straight line on which a decode step lies, and remember it."""
        stretch, notes = self._steps.stretch(running, *nodes_around(cached))
        self._latest[running] = stretch
        self._notes |= notes
        return stretch

    def mixed(self, running: int, cached: float, chunks: Chunks) -> float:
        """Return seconds of a step that decodes and prefills."""
        if isinstance(self._steps, SpeculativeSteps) and self._steps.guesses(running):
            return self._checking(self._steps, running, cached, chunks)
        each, count = -(-running // self._stages), chunks.parts / self._stages
        steps, notes = self._steps, self._notes
        tokens = each + count * chunks.tokens
        device = steps.dense_grid(notes, tokens)
        device += steps.head_grid(notes, each + count)
        device += self._prefill(count, chunks.seen, chunks.tokens)
        if isinstance(steps, SpeculativeSteps):  # what it guesses from later on
            device += steps.drafted_prefill(notes, chunks)
        device = device * self._stages + self._images(chunks)
        if running:
            stretch = self._latest.get(running)
            if stretch is None or not stretch.low <= cached <= stretch.high:
                stretch = self._stretch(running, cached)
            beside = stretch.base - stretch.fixed + stretch.slope * cached
            device += self._mixed_reading * beside
        device = max(device, steps.floor_seconds(tokens, prompts=True))
        host = steps.host_seconds(running + chunks.parts)
        return max(device, host) if self._overlap else device + host

    def _checking(
        self, steps: SpeculativeSteps, running: int, cached: float, chunks: Chunks
    ) -> float:
        """Return seconds of a token of each running sequence that are checked beside prompts.

        A token has its share of such a step, and all of what the prompts add to it.
        """
        each, count, notes = -(-running // self._stages), chunks.parts / self._stages, self._notes
        tokens = each * steps.checked_tokens + count * chunks.tokens
        device = steps.dense_grid(notes, tokens)
        device += steps.head_grid(notes, each * steps.checked_tokens + count)
        device += self._prefill(count, chunks.seen, chunks.tokens)
        device += steps.drafted_prefill(notes, chunks)
        device = device * self._stages + self._images(chunks)
        alone = 0.0
        if running:
            alone = self.decode(running, cached)
            stretch = self._stretch(running, cached)
            beside = stretch.base - stretch.fixed + stretch.slope * cached
            device += beside * steps.tokens_per_step
        device = max(device, steps.floor_seconds(tokens, prompts=True))
        host = steps.host_seconds(running * steps.tokens_per_step + chunks.parts)
        together = max(device, host) if self._overlap else device + host
        return alone + max(0.0, together - alone * steps.tokens_per_step)

    def _images(self, chunks: Chunks) -> float:
        """Return seconds of the tower for images among the prompts' tokens."""
        return chunks.parts * chunks.tokens * self._steps.tower_seconds

    def _prefill(self, count: float, seen: float, tokens: float) -> float:
        """Return seconds of prefill attention.

        Chunks hardly ever see the same mean of tokens twice, so only nodes of it are remembered.
        """
        grid, notes = self._steps.prefill_grid, self._notes
        low, high, share = nodes(seen)
        seconds = grid(notes, count, low, tokens)
        if share:
            seconds += share * (grid(notes, count, high, tokens) - seconds)
        return seconds

    def estimates(self, prefill_seconds: float, decode_seconds: float) -> tuple[Estimate, Estimate]:
        """Return these seconds, summed over steps, as estimates.

        They have the weakest source of all parts asked for, and their largest relative spread, or
        the engine's own where its forecasts were held against measured generations. What the device
        waited for the host in decode steps is known as well as hosts are, which has nothing to do with that.
        """
        engine = self._steps.engine
        spread = engine.generation_spread(
            self._steps.model, self._steps.setting.device.sheet.architecture
        )
        prefill = noted(prefill_seconds, self._notes, spread)
        decode = noted(decode_seconds, self._notes, spread)
        waited = min(self._host_seconds, decode_seconds) * engine.steps.host_spread
        return prefill, replace(decode, spread_seconds=math.hypot(decode.spread_seconds, waited))


# What replicas do, with the lengths of their sequences: a search plays up to some dozens.
REMEMBERED_PLAYS = 512

# Batching whose steps are priced in parts; waves are priced pass by pass.
CONTINUOUS = ("continuous", "mixed", "calls")
WAVES = ("static", "none")
DECODE = "decode"


def parts_with_host(engine: EngineSheet) -> tuple[str, ...]:
    """Return the parts of an engine's generation whose spread has that of waiting for the host in it already."""
    return (DECODE,) if engine.batching in CONTINUOUS else ()


Steps = ReplicaSteps | EngineSteps


def finish_seconds(placed: PlacedTask, kv_bytes: float | None = None) -> Floats:
    """Return when each response of a usual batch ends, as if all replicas were as the slowest.

    Shape (sequences of the slowest replica * replicas,).
    """
    ends = slowest_replica(placed, kv_bytes).finish_seconds.astype(np.float64)
    return np.repeat(ends, placed.writing)


def slowest_replica(placed: PlacedTask, kv_bytes: float | None = None) -> "Played":
    """Return what the replica of a generate task does that ends last.

    Args:
        kv_bytes: Bytes free for the KV cache on each GPU; None is as many as it can use.
    """
    steps, limits = replica_limits(placed, kv_bytes)
    samples, replicas = placed.workload.samples_per_prompt, placed.writing
    if limits.prefillers is not None and not placed.workload.environments:
        shares = longest_shares(placed.statistics, replicas, samples, 0)
        one_turn = (one_turn_episodes(share, samples) for share in shares)
        every = map(partial(played_episodes, steps, limits), one_turn)
    elif placed.workload.environments:
        host = host_share(placed.job, replicas)
        episodes = longest_episodes(placed.statistics, replicas, samples, host)
        every = map(partial(played_episodes, steps, limits), episodes)
    else:
        wave = limits.max_running if waits(limits.batching) else 0
        shares = longest_shares(placed.statistics, replicas, samples, wave)
        every = map(partial(played, steps, limits), shares)
    return max(every, key=lambda each: each.seconds)


def with_length_spread(
    cost: TaskCost, placed: PlacedTask, kv_bytes: float | None = None, batches: int = 1
) -> TaskCost:
    """Return a generate task's cost whose spread has chance in its lengths in it too.

    Chance in lengths has nothing to do with how well operators are known: their variances add up.

    Args:
        cost: What `rlplan.simulator.stages.task_cost` said of the task.
        batches: Whose mean the spread is of.
    """
    steps, limits = replica_limits(placed, kv_bytes)
    share = length_spread(
        clock_of(steps),
        limits.batching,
        limits.max_running,
        _token_blocks(limits) * limits.block_tokens,
        placed.statistics,
        placed.writing,
        batches,
    )
    known = cost.total
    waiting = _environment_luck(cost, placed) / math.sqrt(batches)
    lucky = math.hypot(share * known.seconds, waiting)
    wider = math.hypot(known.spread_seconds, lucky) - known.spread_seconds
    return cost.each(
        lambda name, part: (
            replace(part, spread_seconds=part.spread_seconds + wider) if name == DECODE else part
        )
    )


def _environment_luck(cost: TaskCost, placed: PlacedTask) -> float:
    """Return how far waiting for environments differs between batches, in seconds, one sigma.

    The longest episode is waited for, as far as the engine has nothing else to do.
    """
    waiting = cost.seconds_of(ENVIRONMENT)
    if not waiting:
        return 0.0
    usual, luck = longest_seconds_luck(placed.workload, OTHER_BATCHES)
    return luck * min(1.0, waiting / usual) if usual else 0.0


def _token_blocks(limits: ReplicaLimits) -> int:
    """Return the blocks that states and windows of all running sequences leave to tokens."""
    left = limits.kv_blocks - limits.max_running * limits.state_blocks
    return max(left, min(1, limits.kv_blocks))


def begun(placed: PlacedTask, batches: float = 1.0) -> PlacedTask:
    """Return a generate task whose batch is all that is begun for so many batches that are learnt from."""
    learnt_from = placed.workload
    work = begun_of(placed.job, batches)
    if (work.prompts, work.samples_per_prompt) == (
        learnt_from.prompts,
        learnt_from.samples_per_prompt,
    ):
        return placed
    return replace(placed, job=replace(placed.job, workload=work))


def replica_limits(placed: PlacedTask, kv_bytes: float | None) -> tuple[Steps, ReplicaLimits]:
    """Return what the steps of a task's replicas cost, and how they batch.

    Args:
        kv_bytes: Bytes free for the KV cache on each GPU; None is as many as it can use.
    """
    limits = limits_of(
        placed.engine,
        placed.running,
        _kv_blocks(placed, kv_bytes),
        samples_per_prompt=placed.workload.samples_per_prompt,
        state_blocks=placed.state_blocks,
    )
    limits = with_states_apart(limits, placed.engine, placed.model)
    if placed.job.kv_offload is not None and placed.workload.environments:
        limits = _with_host_blocks(placed, limits, kv_bytes)
    if placed.job.prefill is not None and placed.task.generates:
        limits = replace(limits, prefillers=_prefillers(placed, limits))
    return steps_of(placed), limits


# Share of the network cards' rate that NIXL reaches (PrimeIntellect-ai/prime-rl PR 3341: 44.26 of 50 GB/s a GPU).
CACHE_LINK_FRACTION = 0.88


def _prefillers(placed: PlacedTask, limits: ReplicaLimits) -> Prefillers:
    """Return what each replica that writes has of those that read.

    Every GPU of a replica sends its own part of the cache to the GPU with the same part: over the network where the pool has
    more than one node, else over the link between GPUs.

    Raises:
        MissingFactError: Its engine takes waves, or computes prompts elsewhere.
    """
    apart = placed.job.prefill
    assert apart is not None, "asked of jobs that say so"
    if limits.batching not in ("continuous", "mixed"):
        raise MissingFactError(
            f"engine {placed.engine.name} takes whole batches, whose prompts no other replica reads (prefill); engines with running "
            "batches do, such as engines: {generate: sglang-0.5}"
        )
    share = apart.replicas / placed.writing
    site = placed.site
    link = placed.device.sheet.intra_node_bytes_per_second
    if site.spans_nodes:
        link = site.inter_node_bytes_per_second
    block_seconds = placed.block_bytes / (link * CACHE_LINK_FRACTION)
    return Prefillers(
        share=share,
        blocks=int(share * limits.kv_blocks),
        token_seconds=block_seconds / limits.block_tokens,
        fixed_seconds=block_seconds * limits.state_blocks,
    )


# Over so many blocks a copy's own start does not count: engines copy all blocks of a request at once.
COPIED_BLOCKS = 1024


def _with_host_blocks(
    placed: PlacedTask, limits: ReplicaLimits, kv_bytes: float | None
) -> ReplicaLimits:
    """Return limits of a replica that keeps blocks of waiting episodes in host memory too.

    Each GPU of a replica reads its own part of a block, all at once, at the rate of its link to the host.

    Raises:
        MissingFactError: Its engine keeps no blocks for sequences that begin alike.
    """
    said = placed.job.kv_offload
    assert said is not None, "asked of jobs that say so"
    if not limits.keeps_prefixes or limits.batching not in ("continuous", "mixed"):
        raise MissingFactError(
            f"engine {placed.engine.name} keeps no prefixes, which host memory could hold (kv_offload); engines that do say "
            "shares_prompts in their sheets, such as engines: {generate: vllm-0.11}"
        )
    copied = placed.device.copy(placed.block_bytes * COPIED_BLOCKS, "host_to_device").seconds
    blocks = host_cache_bytes(placed, kv_bytes) // placed.block_bytes
    return replace(limits, host_blocks=int(blocks), host_block_seconds=copied / COPIED_BLOCKS)


def host_cache_bytes(placed: PlacedTask, kv_bytes: float | None) -> float:
    """Return the bytes of host memory that each GPU of a generating task has for its cache; 0 where the job has none.

    Args:
        kv_bytes: Bytes free for the KV cache on each GPU; None is as many as it can use.
    """
    said = placed.job.kv_offload
    if said is None:
        return 0.0
    if said.cache_ratio is not None:
        own = _kv_blocks(placed, None) * kept_block_bytes(placed) if kv_bytes is None else kv_bytes
        return said.cache_ratio * own
    return (said.replica_bytes or 0.0) / (placed.layout.tp * placed.layout.pp)


def limits_of(
    engine: EngineSheet,
    max_running: int,
    kv_blocks: int,
    *,
    samples_per_prompt: int = 1,
    max_batched_tokens: int = 0,
    state_blocks: int = 0,
) -> ReplicaLimits:
    """Return how an engine batches.

    Args:
        samples_per_prompt: Sequences in a row that have one prompt.
        max_batched_tokens: Most tokens of a pass; 0 is the engine's usual number.
        state_blocks: Blocks that a sequence takes beside those of its tokens.
    """
    batched = max_batched_tokens or engine.max_batched_tokens
    if engine.batching == "mixed":
        max_running = min(max_running, batched)  # every running sequence needs a token of the step
    return ReplicaLimits(
        batching=engine.batching,
        max_running=max_running,
        kv_blocks=kv_blocks,
        state_blocks=state_blocks,
        block_tokens=engine.kv_block_tokens,
        max_batched_tokens=batched,
        chunked_prefill=engine.chunked_prefill,
        reserves_whole=engine.reserves_whole,
        prompt_samples=samples_per_prompt if engine.shares_prompts else 1,
        keeps_prefixes=engine.shares_prompts,
    )


def _kv_blocks(placed: PlacedTask, kv_bytes: float | None) -> int:
    """Return the blocks of a replica's KV cache, at most those that its sequences can fill."""
    useful = cached_blocks(placed, held_sequences(placed))
    if kv_bytes is None:
        return useful
    return min(useful, int(kv_bytes // kept_block_bytes(placed)))


class PassClock:
    """Give seconds of whole passes for one generation, and remember how well they are known."""

    def __init__(self, steps: ReplicaSteps) -> None:
        self._prefills: set[CostQuality] = set()
        self._decodes: set[CostQuality] = set()
        self.prefill = partial(steps.prefill, self._prefills)
        self.decode = partial(steps.decode, self._decodes)
        self.prefill_run = partial(steps.prefill.run, self._prefills)
        self.decode_run = partial(steps.decode.run, self._decodes)
        self.uneven: WaveCosts | None = None
        if steps.uneven is not None:
            self.uneven = WaveCosts(
                partial(steps.uneven.prefill, self._prefills),
                partial(steps.uneven.decode.run, self._decodes),
            )

    def mixed(self, running: int, cached: float, chunks: Chunks) -> float:
        """Return seconds of a step that decodes and prefills: both passes, one after the other."""
        decoding = self.decode(running, cached) if running else 0.0
        return decoding + self.prefill(chunks.parts, chunks.tokens)

    def estimates(self, prefill_seconds: float, decode_seconds: float) -> tuple[Estimate, Estimate]:
        """Return these seconds as estimates."""
        return noted(prefill_seconds, self._prefills), noted(decode_seconds, self._decodes)


def steps_of(placed: PlacedTask) -> Steps:
    """Return what the steps of a replica cost: measured passes where they are known."""
    return steps_in(replica_setting_of(placed))


@kept_with(lambda setting: setting.setting.device)
def steps_in(setting: ReplicaSetting) -> Steps:
    """Return what the steps of replicas in a setting cost, remembered."""
    if setting.speculation is not None:
        return speculative_steps(setting)
    measured = measured_steps(setting)
    if measured is not None:
        return measured
    if setting.engine.batching in CONTINUOUS:
        return engine_steps(setting)
    return operator_steps(setting)


def clock_of(steps: Steps) -> EngineClock | PassClock:
    """Return a clock for one generation."""
    return EngineClock(steps) if isinstance(steps, EngineSteps) else PassClock(steps)


def replica_of(clock: EngineClock | PassClock, limits: ReplicaLimits) -> Replica:
    """Return a replica that batches within limits and takes its steps' time from a clock."""
    return Replica(
        **{field.name: getattr(limits, field.name) for field in fields(ReplicaLimits)},
        prefill_seconds=clock.prefill,
        decode_seconds=clock.decode,
        mixed_seconds=clock.mixed,
        decode_run=clock.decode_run,
        prefill_run=clock.prefill_run,
        uneven=clock.uneven,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Hold what a replica spends on prefill and on decode steps, and when each of its sequences ends.

    Attributes:
        waiting: For environments, while there is nothing to compute.
        handed: For caches from replicas that read prompts, while there is nothing to compute.
        finish_seconds: In the order of their admission. Shape (sequences,).
    """

    prefill: Estimate
    decode: Estimate
    waiting: Estimate
    handed: Estimate
    finish_seconds: npt.NDArray[np.float32]

    @property
    def seconds(self) -> float:
        """Return when the last sequence ends."""
        return (
            self.prefill.seconds + self.decode.seconds + self.waiting.seconds + self.handed.seconds
        )


@lru_cache(maxsize=REMEMBERED_PLAYS)
def played(steps: Steps, limits: ReplicaLimits, share: Share) -> Played:
    """Return what a replica does with its share, remembered.

    Args:
        share: Prompt tokens and response tokens by sequence, in the order of their admission.
    """
    replica = (steps, replace(limits, kv_blocks=0), share)
    ample = _AMPLE_CACHE.get(replica)
    if ample is not None and limits.kv_blocks >= ample.blocks:
        return ample.played
    clock = clock_of(steps)
    outcome = generate(replica_of(clock, limits), *share)
    found = _played_of(clock, outcome)
    # No more is ever looked for than what is held at most, and room for the longest that there could be beside it.
    longest = max(share[0]) + max(share[1])
    blocks = outcome.peak_blocks + blocks_of(longest, limits.block_tokens) + limits.state_blocks
    if not outcome.missing_blocks and blocks <= limits.kv_blocks:
        _AMPLE_CACHE.keep(replica, _AmpleCacheReplica(blocks, found))
    return found


@dataclass(frozen=True, slots=True)
class _AmpleCacheReplica:
    """Hold what a replica does when its KV cache never fills up, and how many blocks that takes."""

    blocks: int
    played: Played


# Replicas whose cache is never full, by what they do but for its size: the same, however large that is.
_AMPLE_CACHE: LeastRecentlyUsed[tuple[Steps, ReplicaLimits, Share], _AmpleCacheReplica] = (
    LeastRecentlyUsed(REMEMBERED_PLAYS)
)


def last_token_seconds(steps: Steps, limits: ReplicaLimits, share: Share) -> Floats:
    """Return when each response of a replica has its last token; one of a static wave is handed out later.

    Args:
        share: As `played` takes it. The result has its shape, (sequences,).
    """
    if limits.batching not in WAVES:
        return played(steps, limits, share).finish_seconds.astype(np.float64)
    ends = last_tokens_of_waves(replica_of(clock_of(steps), limits), *map(list, share))
    return np.array(ends)


@lru_cache(maxsize=REMEMBERED_PLAYS)
def played_episodes(steps: Steps, limits: ReplicaLimits, share: EpisodeShare) -> Played:
    """Return what a replica does with its episodes, remembered."""
    clock = clock_of(steps)
    return _played_of(clock, generate_episodes(replica_of(clock, limits), share))


def _played_of(clock: EngineClock | PassClock, outcome: Generated) -> Played:
    prefill, decode = clock.estimates(outcome.prefill_seconds, outcome.decode_seconds)
    handed, _ = clock.estimates(outcome.handed_seconds, 0.0)
    waiting = Estimate(outcome.idle_seconds - outcome.handed_seconds)
    ends = np.array(outcome.finish_seconds, dtype=np.float32)
    return Played(prefill, decode, waiting, handed, ends)


def generated(steps: Steps, limits: ReplicaLimits, share: Share) -> tuple[Estimate, Estimate]:
    """Return what a replica spends on prefill and on decode steps, in seconds."""
    found = played(steps, limits, share)
    return found.prefill, found.decode
