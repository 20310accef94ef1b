"""Which sizes to measure: from a job's models and lengths, or a general grid without a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlplan.job import Job
from rlplan.models import ModelArchitecture
from rlplan.probing import ModelPass, PassName
from rlplan.profiles.probes.bench.contract import HostBench, HostProbe, Keys, Settings
from rlplan.profiles.tables.table import architecture_digest
from rlplan.workload import (
    Empirical,
    Lengths,
    Uniform,
    longest,
    mean_length,
    sample_lengths,
)

# Draws among which the shortest of a distribution is looked for: about what an iteration sees.
_DRAWS = 1024
_SMALLEST_MESSAGE_BYTES = 2**10
_TOKENS_WITHOUT_JOB = 4096
_TOKENS_OF_LARGEST_POINT = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTokens:
    """Hold how long a job's sequences are, in tokens."""

    shortest: int
    mean: int
    longest: int

    def distinct(self) -> tuple[int, ...]:
        """Return the lengths that differ, shortest first."""
        return tuple(sorted({self.shortest, self.mean, self.longest}))


def sequence_tokens(job: Job) -> SequenceTokens:
    """Return the lengths of a job's prompts and responses together."""
    work = job.workload
    parts = (work.prompt_tokens, work.response_tokens)
    most = work.longest_sequence_tokens
    return SequenceTokens(
        shortest=min(most, sum(shortest(part) for part in parts)),
        mean=min(most, round(sum(mean_length(part) for part in parts))),
        longest=most,
    )


def prompt_tokens(job: Job) -> SequenceTokens:
    """Return the lengths of a job's prompts."""
    lengths = job.workload.prompt_tokens
    return SequenceTokens(
        shortest=shortest(lengths), mean=round(mean_length(lengths)), longest=longest(lengths)
    )


def shortest(lengths: Lengths) -> int:
    """Return the shortest length in tokens that an iteration is likely to see."""
    if isinstance(lengths, int):
        return lengths
    if isinstance(lengths, Uniform):
        return lengths.low
    if isinstance(lengths, Empirical):
        return min(lengths.values)
    return min(sample_lengths(lengths, _DRAWS, seed=0))


def geometric(first: int, last: int, factor: int) -> tuple[int, ...]:
    """Return first, first * factor, ... below last, and last itself."""
    assert first >= 1, first
    assert factor > 1, factor
    sizes = []
    size = first
    while size < last:
        sizes.append(size)
        size *= factor
    return (*sizes, max(first, last))


def architectures(job: Job) -> tuple[ModelArchitecture, ...]:
    """Return the distinct architectures of a job, by whatever name, in the order of its roles."""
    found: dict[tuple[str, int], ModelArchitecture] = {}
    for role in job.models:
        model = job.architecture(role)
        found.setdefault((architecture_digest(model), model.num_layers), model)
    return tuple(found.values())


def tensor_parallel_sizes(model: ModelArchitecture, most: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to `most` that divide the model's heads and KV heads."""
    sizes = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return tuple(
        size for size in sizes if model.num_heads % size == 0 and model.num_kv_heads % size == 0
    )


def operator_tp_sizes(model: ModelArchitecture, job: Job, settings: Settings) -> tuple[int, ...]:
    """Return the TP sizes whose shards' operators are measured: what one node of the job can hold.

    An operator of a shard runs on one device alone, so more of them than this machine has will do.
    """
    widest = max((group.gpus_per_node for group in job.cluster), default=1)
    return tensor_parallel_sizes(model, max(widest, settings.devices))


def token_counts(job: Job | None, settings: Settings) -> tuple[int, ...]:
    """Return the tokens of one micro-batch or decode step: the rows of a GEMM."""
    most = _TOKENS_WITHOUT_JOB
    if job is not None:
        most = job.workload.sequences * sequence_tokens(job).longest
    return geometric(1, min(most, _TOKENS_OF_LARGEST_POINT), settings.step)


def message_bytes(settings: Settings) -> tuple[int, ...]:
    """Return the sizes of messages between devices, from 1 KiB up."""
    return geometric(_SMALLEST_MESSAGE_BYTES, settings.largest_bytes // 2, 2 * settings.step)


def distinct(keys: Iterable[dict[str, str | int]]) -> list[dict[str, str | int]]:
    """Return keys without repetitions, in their order."""
    return list({tuple(each.items()): each for each in keys}.values())


def layer_matrices(model: ModelArchitecture, tp: int) -> Iterator[tuple[int, int]]:
    """Yield (k, n) of the matrices that a token passes through on one of `tp` shards."""
    hidden = model.hidden_size
    queries = model.num_heads * model.head_dim // tp
    yield hidden, queries
    yield hidden, model.num_kv_heads * model.head_dim // tp
    yield queries, hidden
    width = model.moe_ffn_size if model.num_experts else max(1, model.ffn_size // tp)
    yield hidden, width
    yield width, hidden
    yield hidden, max(1, model.vocab_size // tp)
    yield hidden, 1  # a scalar head


_SMALLEST_BYTES, _LARGEST_BYTES = 2**8, 2**24


def call_probe(kind: str, pass_name: PassName) -> HostProbe:
    """Return the probe of a kind of call from 256 bytes to 16 MiB, as many sizes as a session has time for.

    Args:
        pass_name: What a runner knows it as.
    """

    def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
        if job is None or not settings.passes:  # without a runner nobody makes the calls
            return []
        sizes = geometric(_SMALLEST_BYTES, _LARGEST_BYTES, 4 * settings.step)
        return [{"kind": kind, "num_bytes": size} for size in sizes]

    def measure(bench: HostBench, keys: Keys, repeats: int) -> tuple[float, ...]:
        assert bench.runner is not None, "points are asked for a runner"
        assert bench.job is not None, "points are asked for a job"
        call = ModelPass(
            name=pass_name,
            model=architectures(bench.job)[0],
            head="lm",
            precision=bench.settings.precision,
            tokens=int(keys["num_bytes"]),
        )
        return bench.runner.run(call, repeats)

    return HostProbe(name=kind, table="call", points=points, measure=measure)
