"""Parts of layers beside plain attention: what they weigh, keep, compute and cost, by law and by published figure."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.layout import ModelCut
from rlplan.models import Attention, Batch, Collective, KeptBatch, Scan, Shard, layer_kinds
from rlplan.parts import (
    attention_core,
    attention_of,
    cache_bytes_per_token,
    cached_sequence,
    layer_parameters,
    num_parameters,
    read_bytes,
)
from rlplan.parts.grouped_attention import windowed
from rlplan.profiles.catalog import load_model
from rlplan.simulator.generation.playing import generate
from rlplan.simulator.generation.replica import Replica
from rlplan.simulator.model import (
    backward_operators,
    flops_of,
    layer_activation_bytes,
    layer_operators,
)
from rlplan.simulator.stages import task_cost
from tests.hybrids import HYBRIDS, NEWER, WINDOWED
from tests.simulator.test_layer_kinds import LAYOUT, placed

# Bytes of the cache for a token in 16 bits: DeepSeek-AI 2025, Insights into DeepSeek-V3 (arXiv:2505.09343), table 1.
PUBLISHED_CACHE_BYTES = {"deepseek-v3": 70_272, "qwen2.5-72b": 327_680, "llama-3.1-405b": 516_096}
# FLOPs of training for a token, in GFLOPs: the same paper, table 2, at sequences of 4,096 tokens. Its figure of
# Qwen2.5-72B (394) is less than six operations for each parameter, and left out.
PUBLISHED_TRAINING_GFLOPS = {"deepseek-v3": 250, "llama-3.1-405b": 2448}


@pytest.mark.parametrize("name", PUBLISHED_CACHE_BYTES)
def test_a_token_takes_the_published_bytes_of_cache(name):
    assert cache_bytes_per_token(load_model(name), 2) == PUBLISHED_CACHE_BYTES[name]


@pytest.mark.parametrize("name", PUBLISHED_TRAINING_GFLOPS)
def test_a_token_takes_the_published_operations_of_training(name):
    model, tokens = load_model(name), 4096
    batch = Batch(sequences=1, tokens=tokens, sequence_tokens=tokens, head_tokens=tokens)
    kinds = layer_kinds(model)
    flops = 0.0
    counts = kinds.counts(0, model.num_layers)
    for kind, count in zip(kinds.models, counts, strict=True):
        forward = layer_operators(kind, Shard(), batch)
        flops += count * (flops_of(forward) + flops_of(backward_operators(forward)))
        # The backward pass of attention has two products for each of the forward pass's.
        flops += count * flops_of(tuple(op for op in forward if isinstance(op, Attention)))
    flops += 3 * 2.0 * tokens * model.embedding_parameters
    expected = PUBLISHED_TRAINING_GFLOPS[name]
    assert flops / tokens / 1e9 == pytest.approx(expected, rel=0.03)


def test_latent_attention_keeps_its_cache_whole_on_every_rank():
    model = load_model("deepseek-v3")
    for tp in (1, 8, 64):
        assert cached_sequence(layer_kinds(model).models[0], tp, 2, 10_000) == (2 * 576, 0)


def test_a_decode_step_of_latent_attention_reads_what_is_cached_and_multiplies_for_all_heads():
    model = layer_kinds(load_model("deepseek-v3")).models[1]
    batch = Batch(sequences=1, tokens=1, sequence_tokens=1, cached_tokens=999, head_tokens=1)
    (found,) = (op for op in layer_operators(model, Shard(), batch) if isinstance(op, Attention))
    assert 2 * found.kv_heads * found.head_dim == 512 + 64
    flops = 2 * 128 * (576 + 512) * (999 + 1)  # keys of 576 and values of 512, 128 heads
    assert flops_of((found,)) == pytest.approx(flops, rel=0.01)


DSA = layer_kinds(load_model("deepseek-v3.2")).models[1]
DSA_PART = attention_of(DSA)


def test_an_index_reads_its_keys_of_all_tokens_and_vectors_of_those_that_it_chooses():
    assert cached_sequence(DSA, 8, 2, 100_000) == (2 * (576 + 128), 0)
    assert read_bytes(DSA, 1, 2, 2048) == 2 * 2048 * (576 + 128)
    assert read_bytes(DSA, 1, 2, 50_000) == 2 * (2048 * 576 + 50_000 * 128)
    batch = Batch(sequences=1, tokens=1, sequence_tokens=1, cached_tokens=49_999, head_tokens=1)
    found = {
        op.name: op for op in layer_operators(DSA, Shard(), batch) if isinstance(op, Attention)
    }
    scores = 2 * 64 * 128 * 50_000  # 64 heads of 128, keys alone
    assert flops_of((found["index scores"],)) == pytest.approx(scores, rel=0.01)
    chosen = 2 * 128 * (576 + 512) * 2048
    assert flops_of((found["attention"],)) == pytest.approx(chosen, rel=0.01)


@given(query=st.integers(2, 2048), cached=st.integers(0, 2046))
def test_sequences_no_longer_than_what_an_index_chooses_attend_to_all(query, cached):
    query = min(query, 2048 - cached)
    attended = DSA_PART.core(DSA, 4, 3, query, cached)[1:]
    assert attended == attention_core(
        replace(DSA, attention="latent-attention"), 4, 3, query, cached
    )


@given(query=st.integers(1, 9000), cached=st.integers(2048, 9000))
def test_queries_behind_what_an_index_chooses_see_no_more_than_that(query, cached):
    (attended,) = DSA_PART.core(DSA, 4, 1, query, cached)[1:]
    seen = attended.cached_tokens + (attended.query_tokens + 1) / 2
    assert seen == pytest.approx(2048, rel=0.01)
    assert attended.batch * attended.query_tokens >= query


@given(window=st.integers(1, 300), query=st.integers(1, 1000), cached=st.integers(0, 1000))
def test_a_window_leaves_as_many_pairs_as_queries_see(window, query, cached):
    pairs = sum(min(cached + place, window) for place in range(1, query + 1))
    pieces, queries, seen = windowed(window, query, cached)
    found = pieces * queries * (seen + (queries + 1) / 2)
    assert found == pytest.approx(pairs, rel=0.02, abs=pieces * queries)
    assert pieces * queries < query + pieces


@given(tokens=st.integers(1, 10_000), longest=st.integers(1, 10_000))
def test_a_window_bounds_cache_and_reading(tokens, longest):
    model = replace(layer_kinds(WINDOWED).models[0], window=500)
    each = read_bytes(model, 1, 2, 1)
    assert read_bytes(model, 1, 2, tokens) == each * min(tokens, 500)
    held = cached_sequence(model, 1, 2, longest)
    assert held.token_bytes * longest + held.fixed_bytes == each * min(longest, 500)


def test_half_of_gpt_oss_s_layers_hold_128_tokens():
    sliding, full = (
        cached_sequence(kind, 1, 2, 9000) for kind in layer_kinds(load_model("gpt-oss-20b")).models
    )
    assert sliding == (0, 128 * 2 * 8 * 64 * 2)
    assert full == (2 * 8 * 64 * 2, 0)


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "nemotron-h-8b"])
def test_scans_take_time_in_proportion_to_tokens_and_keep_a_fixed_state(name):
    kind = next(each for each in layer_kinds(load_model(name)).models if each.attention != "none")
    one, two = (
        flops_of(
            layer_operators(
                kind,
                Shard(),
                Batch(sequences=1, tokens=tokens, sequence_tokens=tokens, head_tokens=tokens),
            )
        )
        for tokens in (4096, 8192)
    )
    assert two / one == pytest.approx(2, rel=0.01)
    assert cached_sequence(kind, 1, 2, 100) == cached_sequence(kind, 1, 2, 100_000)
    batch = Batch(sequences=1, tokens=1, sequence_tokens=1, cached_tokens=9, head_tokens=1)
    scans = [op for op in layer_operators(kind, Shard(tp=2), batch) if isinstance(op, Scan)]
    assert [scan.heads for scan in scans] == [16 if name.startswith("qwen") else 64]


@pytest.mark.parametrize("kind", HYBRIDS | NEWER)
@pytest.mark.parametrize("task", ["actor.update", "actor.generate", "critic.compute_values"])
def test_every_kind_of_layer_is_costed_in_every_task(kind, task):
    sizes = dict(LAYOUT, pp=1, dp=8) if task == "actor.generate" else dict(LAYOUT, pp=2)
    cost = task_cost(placed((HYBRIDS | NEWER)[kind], task, **sizes))
    assert cost.total.seconds > 0


@pytest.mark.parametrize("kind", NEWER)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_layer_keeps_as_much_and_weighs_as_much_over_all_ranks(kind, recompute):
    """Cutting takes nothing away: ranks together hold at least what one does, and keep at least that."""
    for each in layer_kinds(NEWER[kind]).models:
        whole, cut = (layer_parameters(each, ModelCut(tp=tp)) for tp in (1, 2))
        assert whole <= 2 * cut < 2 * whole
        kept = [
            layer_activation_bytes(
                each,
                KeptBatch(Shard(tp=tp), sequences=2, sequence_tokens=200, fused_attention=True),
                recompute,
            )
            for tp in (1, 2)
        ]
        assert kept[0] <= 2 * kept[1] <= 2 * kept[0]


@pytest.mark.parametrize("kind", HYBRIDS | NEWER)
def test_longer_sequences_never_take_less_of_the_cache(kind):
    for each in layer_kinds((HYBRIDS | NEWER)[kind]).models:
        sizes = [
            held.token_bytes * longest + held.fixed_bytes
            for longest in (1, 64, 65, 1000)
            for held in (cached_sequence(each, 1, 2, longest),)
        ]
        assert sizes == sorted(sizes)


def one_second(*_):
    """Return what every step of these replicas takes."""
    return 1.0


def replica(kv_blocks, state_blocks, batching="mixed"):
    return Replica(
        batching=batching,
        max_running=8,
        kv_blocks=kv_blocks,
        block_tokens=16,
        max_batched_tokens=512,
        chunked_prefill=True,
        state_blocks=state_blocks,
        prefill_seconds=one_second,
        decode_seconds=one_second,
        mixed_seconds=one_second,
    )


@pytest.mark.parametrize("batching", ["mixed", "continuous", "static"])
@given(state=st.integers(0, 30), responses=st.lists(st.integers(1, 90), min_size=1, max_size=12))
def test_states_leave_room_for_fewer_sequences_and_never_overfill_the_cache(
    batching, state, responses
):
    prompts = [40] * len(responses)
    plain = generate(replica(60, 0, batching), prompts, responses)
    found = generate(replica(60, state, batching), prompts, responses)
    assert found.peak_blocks <= 60
    assert found.peak_running <= plain.peak_running
    assert found.peak_running * state <= 60
    roomy = generate(replica(60 + 8 * state, state, batching), prompts, responses)
    assert roomy.peak_running >= plain.peak_running  # eight states have room; fewer leave some


def test_images_weigh_on_the_first_stage_alone():
    model = load_model("qwen3-vl-8b")
    blind = replace(model, vision_parameters=None)
    assert num_parameters(model) - num_parameters(blind) == model.vision_parameters


def test_context_parallel_ranks_of_linear_attention_exchange_heads_for_whole_sequences():
    (kind,) = (
        each
        for each in layer_kinds(load_model("qwen3.5-9b")).models
        if each.attention == "linear-attention"
    )
    batch = Batch(sequences=1, tokens=65536, sequence_tokens=65536, head_tokens=65536)
    alone, shared = (
        layer_operators(kind, Shard(tp=2, cp=cp, value_bytes=2), batch) for cp in (1, 4)
    )
    scans = [next(each for each in found if isinstance(each, Scan)) for found in (alone, shared)]
    assert [scan.heads for scan in scans] == [16, 4]
    assert scans[1].query_tokens == 65536
    (exchange,) = (each for each in shared if isinstance(each, Collective) and each.group == "cp")
    # Keys and queries of 16 heads, values, gates and outputs of 32, all of 128; halved by TP; in 16 bits.
    width = (2 * 16 * 128 + 3 * 32 * 128 + 2 * 32) / 2
    assert exchange.num_bytes == 16384 * width * 2
    assert not [each for each in alone if isinstance(each, Collective) and each.group == "cp"]


def _linear_kind(computed):
    model = load_model("qwen3.5-9b")
    model = replace(model, linear=replace(model.linear, computed=computed))
    return next(each for each in layer_kinds(model).models if each.attention == "linear-attention")


@pytest.mark.parametrize(
    ("computed", "projected", "heads", "exchanged"),
    [
        # Of 65,536 tokens a rank of TP 2 and CP 4 projects its quarter, by half of the heads; or by all; or all tokens.
        ("heads", (16384, 6176), 4, 16384 * (2 * 2048 + 3 * 4096 + 64) // 2),
        ("tokens", (16384, 12352), 8, 2 * 16384 * 4096),
        ("all", (65536, 12352), 32, 65536 * 4096),
    ],
)  # fmt: skip
def test_ranks_of_linear_attention_compute_what_their_trainer_shares_out(
    computed, projected, heads, exchanged
):
    batch = Batch(sequences=1, tokens=65536, sequence_tokens=65536, head_tokens=65536)
    found = layer_operators(_linear_kind(computed), Shard(tp=2, cp=4, value_bytes=2), batch)
    into = next(each for each in found if getattr(each, "name", "") == "linear attention in")
    assert (into.m, into.n) == projected
    assert next(each for each in found if isinstance(each, Scan)).heads == heads
    (exchange,) = (each for each in found if isinstance(each, Collective) and each.group == "cp")
    assert exchange.num_bytes == 2 * exchanged


@given(tp=st.sampled_from([1, 2, 4, 8]), cp=st.sampled_from([1, 2, 4]))
def test_ranks_that_share_less_of_linear_attention_hold_and_keep_no_less(tp, cp):
    kinds = [_linear_kind(computed) for computed in ("heads", "tokens", "all")]
    weights = [attention_of(kind).parameters(kind, tp, 1) for kind in kinds]
    assert weights[0] <= weights[1] == weights[2]
    assert weights[1] == attention_of(kinds[0]).parameters(kinds[0], 1, 1)
    batch = KeptBatch(Shard(tp=tp, cp=cp), 1, 4096, fused_attention=True)
    kept = [attention_of(kind).kept_bytes(kind, batch, keeps_products=True) for kind in kinds]
    assert kept[0] <= kept[1] == kept[2] / cp
