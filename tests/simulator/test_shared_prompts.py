"""Prompts whose tokens are computed once for all of their samples."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.models import FP32_BYTES, KeptBatch, Shard
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import engine_names, load_engine, load_model
from rlplan.profiles.jobs.checks import JobPlace, check_shared_prompts
from rlplan.simulator.costs.layouts import passes_cost
from rlplan.simulator.costs.rows import batch_of
from rlplan.simulator.generation.generating import limits_of
from rlplan.simulator.generation.playing import generate, most_prompts, prompts_between
from rlplan.simulator.generation.replica import Replica
from rlplan.simulator.model import layer_activation_bytes, sharing_prompts
from rlplan.simulator.placed import PlacedTask, site_at
from rlplan.simulator.stages import task_memory
from rlplan.simulator.workload import (
    LengthStatistics,
    _packed_tokens,
    computed_batch,
    least_shared_tokens,
    packed_sequences,
    packed_waiting,
    straggler_fraction,
    waiting_fraction,
)
from rlplan.trainers import TrainerOptions
from rlplan.workload import Empirical, Uniform, Workload
from tests.simulator.cost_jobs import GRPO, facts_of, job_of

SHARES = replace(load_engine("torch-3d"), shares_prompts=True)
REPEATS = replace(SHARES, shares_prompts=False)
GPT = load_model("llama-2-7b")
BLOM_OF_TWO = 0.5895  # Blom's estimate of the larger of two standard normal draws


def statistics(samples=4, prompt_tokens=100, response_tokens=50):
    return LengthStatistics(
        Workload(
            prompts=64,
            samples_per_prompt=samples,
            prompt_tokens=prompt_tokens,
            response_tokens=response_tokens,
        )
    )


@pytest.mark.parametrize(
    ("sequences", "tokens"),
    [
        (8, 2 * 99 + 8 * 51),  # two whole prompts
        (2, 99 + 2 * 51),  # a part of one
        (6, 2 * 99 + 6 * 51),  # one and a part
        (1, 150),
    ],
)
def test_all_but_the_last_token_of_a_prompt_is_computed_once(sequences, tokens):
    batch = computed_batch(SHARES, statistics(), sequences)
    assert (batch.tokens, batch.head_tokens) == (tokens, tokens)
    assert (batch.sequences, batch.sequence_tokens) == (sequences, 150)
    assert computed_batch(REPEATS, statistics(), sequences).tokens == 150 * sequences


SHARED = TrainerOptions(shares_prompts=True)
TREES, PACKS = sharing_prompts(load_engine("fsdp2-hf")), load_engine("fsdp2-hf")


def test_attention_among_a_prompt_is_computed_once_where_that_is_shared_too():
    batch = computed_batch(
        TREES, statistics(), 8
    )  # two prompts of 100 tokens, eight responses of 50
    assert (batch.tokens, batch.head_tokens) == (2 * 100 + 8 * 50, 600)
    # Twice the pairs of a query and a key: 150^2 of each sample, but 100^2 of six prompts that are there already.
    assert batch.sequence_tokens == round(math.sqrt((8 * 150**2 - 6 * 100**2) / 8)) == 122
    assert computed_batch(TREES, statistics(samples=1), 8) == computed_batch(
        PACKS, statistics(samples=1), 8
    )


def test_trainers_that_pad_make_a_row_of_each_prompt_with_its_samples():
    pads = sharing_prompts(load_engine("fsdp2-hf-padded-to-limits"))
    known = statistics(response_tokens=Empirical(values=(20, 80)))
    assert computed_batch(pads, known, 4).tokens == 100 + 4 * 50
    # The longer of two rows: four responses that are 30 off their mean each.
    row = 300 + BLOM_OF_TWO * 2 * 30
    assert computed_batch(pads, known, 8).tokens == math.ceil(2 * row - 1e-2)
    assert computed_batch(pads, known, 2).tokens == 100 + 2 * 50  # a part of a prompt's samples
    alike = computed_batch(load_engine("fsdp2-hf-padded-to-limits"), known, 16)
    assert computed_batch(pads, known, 16).tokens <= alike.tokens == 16 * 180


@pytest.mark.parametrize(
    ("budget", "shared", "repeated"),
    [(1000, 12, 6), (300, 4, 2), (299, 3, 1), (150, 1, 1), (650, 8, 4), (850, 11, 5), (10, 1, 1)],
)
def test_a_budget_of_tokens_holds_more_samples_of_prompts_that_count_once(budget, shared, repeated):
    work = statistics().workload
    assert packed_sequences(budget, work, 4) == shared
    assert packed_sequences(budget, work) == repeated


def test_packed_micro_batches_hold_a_prompt_once_for_its_samples():
    """Trees of 300 tokens, two in each of 600; without sharing, each of 600 has four sequences of 150."""
    alike = statistics()
    assert packed_waiting(alike, 600, 8, 4) == packed_waiting(alike, 600, 8) == 0.0
    assert set(_packed_tokens(alike, 600, 4)) == set(_packed_tokens(alike, 600)) == {600.0}
    # A tree fits 300 whole; of 299 three samples do, and the fourth takes its prompt along.
    assert set(_packed_tokens(alike, 300, 4)) == {300.0}
    assert set(_packed_tokens(alike, 299, 4)) <= {250.0, 200.0, 150.0}


def test_samples_that_a_budget_parts_are_computed_with_their_prompt_again():
    """Prompts of 1,000 tokens and 8 samples of 100: of a budget of 1,500 micro-batches have 5 and 3 in turn, 1,500 and 1,300."""
    long = statistics(samples=8, prompt_tokens=1000, response_tokens=100)
    assert packed_waiting(long, 1500, 8) == 0.0
    mean = (64 * 1500 + 63 * 1300) / 127  # 512 samples are 64 prompts; the last part is left out
    assert packed_waiting(long, 1500, 64, 8) == pytest.approx(1500 / mean - 1, rel=1e-6)
    assert packed_waiting(long, 1800, 64, 8) == 0.0


def test_ranks_wait_for_micro_batches_packed_with_shared_prompts():
    """All sequences are alike, and so are micro-batches of them; parts of prompts' samples are not."""
    lengths = {"samples_per_prompt": 8, "prompt_tokens": 1000, "response_tokens": 100}
    job = job_of("qwen2.5-7b", nodes=1, algorithm="grpo", **lengths)
    layout = TaskPlan(pool="p0", engine="fsdp2-hf", dp=8, micro_batch=8, token_budget=1500)
    waits = []
    for each in (job, replace(job, trainers=FrozenDict({"actor": SHARED}))):
        site = site_at(each, each.cluster[0].gpu, 0, 8)
        parts = passes_cost(PlacedTask(GRPO["actor.update"], layout, site, each, facts_of(each)))
        waits.append(sum(each.seconds for name, each in parts.parts if name == "uneven lengths"))
    assert waits[0] == 0.0 < waits[1]


@given(
    st.sampled_from(["fsdp2-hf", "megatron-core-2025"]),
    st.sampled_from([1, 2, 4, 6, 8, 16]),
    st.sampled_from([1, 4, 8]),
    st.integers(1, 6000),
    st.integers(1, 2000),
)
@settings(deadline=None)
def test_sharing_prompts_never_takes_longer_nor_more_memory(engine, micro_batch, samples, prompt, response):  # fmt: skip
    work = {"prompts": 128, "samples_per_prompt": samples, "prompt_tokens": prompt}
    lengths = Uniform(low=1, high=response)
    job = job_of("qwen2.5-7b", nodes=1, algorithm="grpo", response_tokens=lengths, **work)
    told = replace(job, trainers=FrozenDict(dict.fromkeys(("actor", "reference"), SHARED)))
    layout = TaskPlan(pool="p0", engine=engine, dp=8, micro_batch=micro_batch)
    for task in ("actor.update", "reference.compute_log_prob"):
        seconds, held = [], []
        for each in (job, told):
            site = site_at(each, each.cluster[0].gpu, 0, 8)
            placed = PlacedTask(GRPO[task], layout, site, each, facts_of(each))
            # Waiting is a share of a pass, and grows where a pass is of few tokens.
            cost = passes_cost(placed).parts
            seconds.append(sum(part.seconds for name, part in cost if name != "uneven lengths"))
            held.append(task_memory(placed).transient_bytes)
        assert seconds[1] <= seconds[0] * (1 + 1e-9)
        assert held[1] <= held[0]


def test_budgets_that_are_filled_are_computed_and_held_whole():
    job = job_of("qwen2.5-7b", nodes=1, algorithm="grpo", prompt_tokens=100, response_tokens=100)
    told = replace(job, trainers=FrozenDict({"actor": TrainerOptions(fills_budgets=True)}))
    batches, kept = [], []
    for each in (job, told):
        layout = TaskPlan(pool="p0", engine="fsdp2-hf", dp=8, micro_batch=8, token_budget=4000)
        site = site_at(each, each.cluster[0].gpu, 0, 8)
        placed = PlacedTask(GRPO["actor.update"], layout, site, each, facts_of(each))
        batches.append(batch_of(placed))
        longer = replace(placed, layout=replace(layout, token_budget=64 * 200 * 4))
        kept.append([task_memory(found).transient_bytes for found in (placed, longer)])
    assert [(each.tokens, each.head_tokens) for each in batches] == [(1600, 1600), (4000, 4000)]
    assert batches[0].sequence_tokens == batches[1].sequence_tokens == 200
    # A rank has 8 sequences of an update, 1,600 tokens: the budget is held where it is filled, and else not.
    assert kept[0][0] == kept[0][1] < kept[1][0] < kept[1][1]


def test_states_of_layers_are_not_shared():
    job = job_of("qwen3.5-9b", nodes=1, algorithm="grpo")
    told = replace(job, trainers=FrozenDict({"actor": TrainerOptions(shares_prompts=True)}))
    check_shared_prompts(job, JobPlace(file="job.yaml"))
    with pytest.raises(FileError, match=r"trainers.actor.shares_prompts: is on, and qwen3.5-9b"):
        check_shared_prompts(told, JobPlace(file="job.yaml"))


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 300), st.integers(1, 300))
def test_sharing_never_computes_more_and_prompts_of_one_token_have_nothing_to_share(
    sequences, samples, prompt, response
):
    known = statistics(samples, prompt, response)
    shared, repeated = (computed_batch(each, known, sequences) for each in (SHARES, REPEATS))
    assert shared.tokens <= repeated.tokens
    assert shared.tokens >= sequences * (response + 1)
    if prompt == 1 or samples == 1:
        assert shared == repeated


def test_a_rank_with_long_prompts_is_ahead_by_each_prompt_once():
    known = statistics(prompt_tokens=Empirical(values=(100, 300)))
    # Four prompts of 199 shared tokens and 4 x 51 others: a deviation of 100 in a mean of 403 each.
    expected = BLOM_OF_TWO * 100 / 403 / math.sqrt(4)
    assert waiting_fraction(SHARES, known, 16, 8, 2) == pytest.approx(expected, rel=0.01)
    # In micro-batches of two, every prompt is there twice.
    expected = BLOM_OF_TWO * 200 / (2 * 199 + 4 * 51) / math.sqrt(4)
    assert waiting_fraction(SHARES, known, 16, 2, 2) == pytest.approx(expected, rel=0.01)
    assert waiting_fraction(SHARES, known, 16, 8, 1) == 0


def test_one_sample_of_each_prompt_waits_as_packed_sequences_do():
    known = statistics(1, Uniform(low=1, high=200), Uniform(low=1, high=400))
    packed = straggler_fraction(known, 16, 4, 8, "none")
    assert waiting_fraction(SHARES, known, 16, 4, 8) == packed


@pytest.mark.parametrize(
    ("sequences", "spared"), [(8, 6 * 199), (2, 199), (4, 3 * 199), (1, 0), (6, 0), (3, 0)]
)
def test_memory_counts_on_sharing_only_where_no_prompt_has_to_be_cut_unevenly(sequences, spared):
    work = statistics(prompt_tokens=Uniform(low=10, high=200)).workload
    assert least_shared_tokens(SHARES, work, sequences) == spared
    assert least_shared_tokens(REPEATS, work, sequences) == 0


def test_shared_tokens_are_kept_once_but_for_what_attention_spreads():
    batch = KeptBatch(Shard(), 4, 150, fused_attention=True)
    whole = layer_activation_bytes(GPT, batch, "none")
    spared = whole - layer_activation_bytes(GPT, batch._replace(shared_tokens=297), "none")
    # Four rows of hidden units and three of the MLP's, in 16 bits.
    assert spared == 297 * (4 * 4096 + 3 * 11008) * 2
    # Attention's own share: queries, keys, values, outputs and an fp32 statistic of each head.
    assert whole - 600 * (4 * 4096 + 3 * 11008) * 2 == 600 * (4 * 4096 * 2 + 32 * FP32_BYTES)


def played(samples, waves_of, sequences, **changes):
    """Return static waves whose prefill takes a second for each prompt, and nothing else."""
    fields = {
        "batching": "static",
        "max_running": waves_of,
        "kv_blocks": 10**6,
        "block_tokens": 1,
        "max_batched_tokens": 10**6,
        "prefill_seconds": lambda count, _: count,
        "decode_seconds": lambda *_: 0.0,
        "prompt_samples": samples,
    }
    return generate(Replica(**(fields | changes)), [10] * sequences, [5] * sequences)


def test_a_wave_prefills_each_of_its_prompts_once():
    assert played(4, 8, 16).prefill_seconds == 4
    assert played(4, 2, 16).prefill_seconds == 8
    # Waves of six: prompts 0 and 1, then 1 and 2, then 3.
    assert played(4, 6, 16).prefill_seconds == 2 + 2 + 1
    assert played(1, 8, 16).prefill_seconds == 16


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 60))
def test_prompts_of_waves_are_those_of_their_rows(samples, wave, sequences):
    for first in range(0, sequences, wave):
        rows = range(first, min(first + wave, sequences))
        prompts = len({row // samples for row in rows})
        assert prompts_between(rows.start, rows.stop, samples) == prompts
        assert prompts <= most_prompts(wave, samples)


@given(st.integers(1, 9), st.integers(1, 40))
def test_the_most_prompts_are_those_of_the_worst_cut(samples, sequences):
    starts = range(samples) if sequences % samples else (0,)
    worst = max(prompts_between(first, first + sequences, samples) for first in starts)
    assert most_prompts(sequences, samples) == worst


def test_only_engines_that_share_prompts_prefill_them_once():
    shares = replace(load_engine("torch-static"), shares_prompts=True)
    assert limits_of(shares, 8, 100, samples_per_prompt=4).prompt_samples == 4
    repeats = replace(shares, shares_prompts=False)
    assert limits_of(repeats, 8, 100, samples_per_prompt=4).prompt_samples == 1


@pytest.mark.parametrize("name", engine_names())
def test_engines_share_prompts_in_waves_steps_and_packed_rows_only(name):
    sheet = load_engine(name)
    if sheet.shares_prompts:
        kind = sheet.padding if sheet.role == "train" else sheet.batching
        assert (
            kind in {"train": ("none",), "generate": ("static", "mixed", "continuous")}[sheet.role]
        )
