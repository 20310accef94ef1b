"""Whole passes of the job's models, run by the executor's own code in every layout a plan can ask for.

What operators sum up to misses what a real model does between them; a pass is what a job runs. The
grid holds, for every distinct architecture, head and TP size, the micro-batches, lengths and decode
batches that plans of the job on this machine's devices are made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.files.frozen import FrozenDict, freeze
from rlplan.job import Job
from rlplan.models import PRECISIONS, Head, ModelArchitecture
from rlplan.parts import cache_bytes_per_token, num_parameters
from rlplan.probing import GENERATION_PASSES, UNEVEN, USUAL, ModelPass, is_uneven
from rlplan.profiles.probes.bench.clock import ROUNDS
from rlplan.profiles.probes.bench.contract import HostBench, HostProbe, Keys, Settings
from rlplan.profiles.probes.bench.shapes import (
    geometric,
    prompt_tokens,
    sequence_tokens,
    tensor_parallel_sizes,
)
from rlplan.profiles.tables.table import architecture_digest, model_pass_keys

# Sequences beyond which a pass is only more of the same: the default of a plan's `max_running`.
_MOST_SEQUENCES = 256
# Rows of a wave below which it hardly matters that they are not all as long.
FEWEST_UNEVEN = 4
# Floating point operations per parameter and token: multiply and add, and twice that again for the
# two products of the backward pass (Kaplan et al. 2020, Scaling Laws, section 2.1).
_FORWARD_FLOPS, _TRAIN_FLOPS = 2, 6
# Activation bytes per token, layer and hidden unit in 16 bits (Korthikanti et al. 2022, section 4.1).
_ACTIVATION_BYTES = 34
# Logits and their gradient, in fp32, per token and entry of the vocabulary.
_LOGITS_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """Say what the tasks of a job do with one architecture under one head."""

    model: ModelArchitecture
    head: Head
    kinds: frozenset[str]


def passes_of(job: Job, settings: Settings) -> tuple[ModelPass, ...]:
    """Return the passes to measure for a resolved job; those of one model and layout stand together."""
    found: dict[ModelPass, None] = {}
    for use in _uses(job):
        for tp in tensor_parallel_sizes(use.model, settings.devices):
            base = ModelPass(
                name="infer", model=use.model, head=use.head, precision=settings.precision, tp=tp
            )
            for each in _in_one_layout(base, use.kinds, job, settings):
                if _fits(each, settings, job):
                    found.setdefault(each)
    return tuple(found)


def _uses(job: Job) -> tuple[_Use, ...]:
    """Return the distinct (architecture, head) of a job with all that is done with them."""
    found: dict[tuple[str, int, Head], _Use] = {}
    for task in tasks_of(load_algorithm(job.algorithm), job):
        if not task.has_model:
            continue
        model = job.architecture(task.role)
        place = (architecture_digest(model), model.num_layers, task.head)
        known = found.get(place, _Use(model=model, head=task.head, kinds=frozenset()))
        found[place] = replace(known, kinds=known.kinds | {task.kind})
    return tuple(found.values())


def _in_one_layout(
    base: ModelPass, kinds: frozenset[str], job: Job, settings: Settings
) -> Iterator[ModelPass]:
    copies = geometric(1, settings.devices // base.tp, 2)
    if "generate" in kinds:
        for dp in copies:
            yield from _generation(replace(base, dp=dp), job, settings)
        yield replace(base, name="weight_sync")
    usual = sequence_tokens(job)
    # What a pass costs beside its tokens is seen at two lengths, and most micro-batches are near the mean.
    lengths = tuple(sorted({usual.mean, usual.longest})) if settings.quick else usual.distinct()
    sequences = job.workload.sequences
    # Infer and train tasks of one update, shared out to the copies that work at once.
    work = {"infer": sequences, "train": -(-sequences // job.workload.updates)}
    for name in (each for each in USUAL if each in kinds):
        for dp in copies:
            for batch in _batches(-(-work[name] // dp), settings):
                size = replace(base, name=name, dp=dp, sequences=batch)
                for tokens in lengths:
                    yield replace(size, tokens=tokens)
                if is_uneven(job.workload):
                    yield replace(size, name=USUAL[name], tokens=usual.mean)
    if "train" in kinds:
        yield replace(base, name="optimizer")
        for dp in copies[1:]:
            yield replace(base, name="gradient_reduction", dp=dp)
        yield from _experience(base, copies, job)


def _experience(base: ModelPass, copies: Iterable[int], job: Job) -> Iterator[ModelPass]:
    """Yield what comes before updates, on a rank's whole share: of equal mini-batches, whole groups."""
    work = job.workload
    for dp in copies:
        share, rest = divmod(work.sequences, dp)
        if not rest and share % (work.updates * work.samples_per_prompt) == 0:
            longest = work.longest_sequence_tokens
            yield replace(base, name="experience", dp=dp, sequences=share, tokens=longest)


def _generation(base: ModelPass, job: Job, settings: Settings) -> Iterator[ModelPass]:
    """Yield prefill by prompt lengths, and decode steps and waves formed anew at a response's start, middle and end."""
    prompts = prompt_tokens(job)
    last = job.workload.longest_sequence_tokens
    cached = sorted({prompts.mean, (prompts.mean + last) // 2, last})
    sequences = job.workload.sequences
    # Each of dp replicas gets its share of the sequences: exactly this batch occurs in a plan, or its half in two
    # waves. Steps of 32 sequences, interpolated between those of 16 and 64, were 8 to 10 % too slow on a CPU.
    share = -(-sequences // base.dp)
    parts = {min(part, _MOST_SEQUENCES) for part in (share, -(-share // 2))}
    batches = sorted({*_batches(share, settings), *parts})
    if base.dp == 1:  # replicas whose responses others join end and begin at times of their own
        lengths = (cached[0], cached[-1]) if settings.quick else cached
        some = [each for each in batches if each >= FEWEST_UNEVEN]
        for name, batch, tokens in product(UNEVEN.values(), some, lengths):
            yield replace(base, name=name, sequences=batch, tokens=tokens)
    for batch in batches:
        for tokens in prompts.distinct():
            yield replace(base, name="prefill", sequences=batch, tokens=tokens)
        for tokens in cached:
            yield replace(base, name="decode", sequences=batch, tokens=tokens)


def _batches(most: int, settings: Settings) -> tuple[int, ...]:
    return geometric(1, min(most, _MOST_SEQUENCES), 4 if settings.quick else 2)


def _fits(each: ModelPass, settings: Settings, job: Job) -> bool:
    """Tell whether a pass ends in seconds and leaves room on a device; the rest is extrapolated."""
    model, plan = each.model, PRECISIONS[each.precision]
    trains = each.name in ("train", "train_usual", "optimizer", "gradient_reduction")
    parameters = num_parameters(model, each.head)
    tokens = each.sequences * (1 if each.name.startswith("decode") else each.tokens)
    if each.name in USUAL.values():  # of samples that share their prompt it is computed once
        groups = -(-each.sequences // job.workload.samples_per_prompt)
        tokens -= (each.sequences - groups) * min(each.tokens, prompt_tokens(job).mean)
    flops = (_TRAIN_FLOPS if trains else _FORWARD_FLOPS) * parameters * tokens
    held_bytes = parameters * plan.weight_bytes
    if trains:
        held_bytes += parameters * (plan.gradient_bytes + plan.optimizer_bytes)
    layers = model.num_layers if trains else 1
    token_bytes = layers * model.hidden_size * _ACTIVATION_BYTES * plan.weight_bytes // 2
    token_bytes += model.vocab_size * _LOGITS_BYTES if each.head == "lm" else 0
    cache_bytes = 0
    if each.name in GENERATION_PASSES:
        cache_bytes = each.sequences * each.tokens * cache_bytes_per_token(model, plan.weight_bytes)
    all_bytes = held_bytes + tokens * token_bytes + cache_bytes
    return (
        flops <= each.tp * settings.largest_pass_flops
        and all_bytes <= each.tp * settings.memory_bytes
    )


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return the keys of all passes; none without a job, or without a runner to run them."""
    if job is None or not settings.passes:
        return []
    return [model_pass_keys(each) for each in passes_of(job, settings)]


def measure(bench: HostBench, keys: Keys, repeats: int) -> tuple[float, ...]:
    """Return the seconds of each repeat of a pass, as the runner says."""
    assert bench.runner is not None, "points are asked for a runner"
    assert bench.job is not None, "points are asked for a job"
    model_pass = _passes_by_keys(bench.job, bench.settings)[freeze(keys)]
    return bench.runner.run(model_pass, repeats)


@lru_cache(maxsize=1)
def _passes_by_keys(job: Job, settings: Settings) -> Mapping[FrozenDict[str, str | int], ModelPass]:
    return {freeze(model_pass_keys(each)): each for each in passes_of(job, settings)}


PROBE = HostProbe(
    name="model_pass", table="model_pass", points=points, measure=measure, rounds=ROUNDS
)
