"""Attention of 2026's models that does not read all of its cache: what it weighs, keeps and computes, by published figure."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.models import Attention, Batch, Gemm, KeptBatch, Shard, layer_kinds
from rlplan.parts import (
    attention_core,
    cached_sequence,
    expert_parameters,
    layer_parameters,
    num_parameters,
    read_bytes,
)
from rlplan.parts.experts import computed_per_token
from rlplan.profiles.catalog import load_model
from rlplan.simulator.model import (
    embedding_operators,
    flops_of,
    head_operators,
    layer_activation_bytes,
    layer_operators,
)


def kind_of(model, attention):
    """Return a kind of a model's layers by its part that attends."""
    return next(
        kind for kind in layer_kinds(load_model(model)).models if kind.attention == attention
    )


def held_bytes(name, tokens, value_bytes=2):
    """Return the bytes that all layers' caches hold of one sequence of so many tokens."""
    kinds = layer_kinds(load_model(name))

    def of_kind(kind):
        held = cached_sequence(kind, 1, value_bytes, tokens)
        return held.token_bytes * tokens + held.fixed_bytes

    return kinds.total(of_kind)


def step(cached):
    return Batch(sequences=1, tokens=1, sequence_tokens=1, cached_tokens=cached - 1, head_tokens=1)


def attends(kind, batch):
    found = layer_operators(kind, Shard(), batch)
    return {op.name: op for op in found if isinstance(op, Attention)}


def step_flops(name, cached):
    """Return the operations of a token in all layers."""
    batch = step(cached)
    return layer_kinds(load_model(name)).total(
        lambda kind: flops_of(layer_operators(kind, Shard(), batch))
    )


def test_a_layer_that_takes_another_s_index_attends_to_as_much_without_one():
    own = kind_of("glm-5.2", "sparse-latent-attention")
    shared = kind_of("glm-5.2", "shared-index-latent-attention")
    batch = step(50_000)
    assert attends(own, batch)["attention"] == attends(shared, batch)["attention"]
    assert set(attends(shared, batch)) == {"attention"}
    assert cached_sequence(shared, 8, 2, 100_000) == (2 * 576, 0)
    assert read_bytes(shared, 1, 2, 50_000) == 2 * 2048 * 576
    assert read_bytes(own, 1, 2, 50_000) == 2 * (2048 * 576 + 50_000 * 128)


def test_sharing_indices_saves_the_published_operations_of_a_token_at_a_million_tokens():
    """2.9 times fewer of a token at a context of 1M (README of zai-org/GLM-5.2, IndexShare); layers here say 2.71."""
    assert step_flops("glm-5.1", 10**6) / step_flops("glm-5.2", 10**6) == pytest.approx(
        2.9, rel=0.1
    )


def test_values_smaller_than_keys_make_cache_and_output_smaller():
    full = layer_kinds(load_model("mimo-v2-flash")).models[0]
    window = layer_kinds(load_model("mimo-v2-flash")).models[1]
    # Four KV heads of 192 and 128 for each token, eight in layers that hold 128 tokens and the query.
    assert cached_sequence(full, 1, 2, 100_000) == (2 * 4 * (192 + 128), 0)
    assert cached_sequence(window, 1, 2, 100_000) == (0, 129 * 2 * 8 * (192 + 128))
    (found,) = attends(full, step(1000)).values()
    assert flops_of((found,)) == pytest.approx(2 * 64 * (192 + 128) * 1000, rel=0.01)
    assert (window.attention_details.sinks, full.attention_details.sinks) == (True, False)


def test_layers_with_a_window_have_heads_of_their_own_and_a_gate_for_each():
    kinds = {kind.window: kind for kind in layer_kinds(load_model("step-3.5-flash")).models}
    assert {window: kind.num_heads for window, kind in kinds.items()} == {None: 64, 512: 96}
    gates = [
        next(op.n for op in layer_operators(kind, Shard(), step(9)) if op.name == "qkv")
        - (kind.num_heads + 2 * 8) * 128
        for kind in kinds.values()
    ]
    assert gates == [64, 96]


@pytest.mark.parametrize(
    ("name", "billions", "effective", "cached"),
    [("gemma-4-e2b", 5.1, 2.3, (12, 3, 1)), ("gemma-4-e4b", 8.0, 4.5, (20, 4, 2))],
)
def test_embeddings_of_layers_and_shared_caches_are_as_the_card_says(
    name, billions, effective, cached
):
    """Billions with and without the tables (cards of google/gemma-4-E2B and E4B: 2.3B effective, 5.1B with embeddings)."""
    model = load_model(name)
    assert num_parameters(model) / 1e9 == pytest.approx(billions, rel=0.01)
    tables = model.layer_inputs.vocab_size * model.num_layers * model.layer_inputs.size
    rest = num_parameters(model) - tables - (model.vision_parameters or 0)
    assert rest / 1e9 == pytest.approx(effective, rel=0.04)
    # Layers that have a cache: those of 512 tokens and 256 numbers, those of all tokens and 512.
    windows, full, heads = cached
    each = 2 * 2 * heads
    assert held_bytes(name, 10_000) == each * (windows * 512 * 256 + full * 10_000 * 512)


def test_streams_that_predict_each_other_are_made_routed_and_joined():
    """Gemma 3n: three matrices before the first layer and behind the last, a router twice a layer, and rank 64 of Laurel."""
    model = load_model("gemma-3n-e2b")
    tokens = step(5)
    for found in (
        embedding_operators(model, Shard(), tokens),
        head_operators(model, Shard(), tokens, "lm"),
    ):
        made = next(op for op in found if op.name == "streams")
        assert (made.k, made.n) == (2048, 3 * 2048)
    kind = layer_kinds(model).models[0]
    products = [op for op in layer_operators(kind, Shard(), tokens) if isinstance(op, Gemm)]
    routers = [(op.k, op.n) for op in products if op.name == "stream weights"]
    assert routers == [(2048, 4), (2048, 4)]
    laurel = [(op.k, op.n) for op in products if op.name.startswith("laurel")]
    assert laurel == [(2048, 64), (64, 2048)]
    # Router 4 x 2,048 and its norm; 16 + 64 weights and a scale; two matrices of rank 64 and a norm.
    plain = layer_parameters(replace(kind, feed_forward="layer-input-mlp"))
    own = 5 * 2048 + 16 + 64 + 2048 + 2 * 64 * 2048 + 2048
    assert layer_parameters(kind) - plain == own
    # Between layers all four are kept and handed on.
    assert model.handed_size == 4 * 2048


def test_a_layer_without_a_cache_reads_that_of_another():
    kinds = {
        (kind.attention, kind.window): kind
        for kind in layer_kinds(load_model("gemma-4-e2b")).models
    }
    own, shared = (
        kinds[attention, None] for attention in ("grouped-attention", "shared-cache-attention")
    )
    assert cached_sequence(shared, 1, 2, 9000) == (0, 0)
    assert read_bytes(shared, 1, 2, 9000) == read_bytes(own, 1, 2, 9000) == 2 * 9000 * 2 * 512
    assert attends(shared, step(700)) == attends(own, step(700))
    assert shared.ffn_size == 2 * own.ffn_size


def test_compressed_caches_take_the_published_bytes_of_a_million_tokens():
    """9.62 GiB of DeepSeek-V4-Pro in bf16, 8.7 times less than DeepSeek-V3.2 (vLLM's post on DeepSeek-V4)."""
    kinds = layer_kinds(load_model("deepseek-v4-pro"))
    tokens = 2**20
    compressed = kinds.total(lambda kind: cached_sequence(kind, 1, 2, tokens).token_bytes * tokens)
    assert compressed / 2**30 == pytest.approx(9.62, rel=1e-3)
    assert held_bytes("deepseek-v3.2", tokens) / compressed == pytest.approx(8.7, rel=0.01)
    # Windows and open blocks are a fiftieth of a per cent of it, however long a sequence is.
    assert held_bytes("deepseek-v4-pro", tokens) == pytest.approx(compressed, rel=5e-3)


@pytest.mark.parametrize(
    ("name", "share", "off"), [("deepseek-v4-pro", 0.27, 0.05), ("deepseek-v4-flash", 0.10, 0.25)]
)
def test_compression_saves_the_published_operations_of_a_token_at_a_million_tokens(
    name, share, off
):
    """27 % and 10 % of DeepSeek-V3.2's at a context of 1M (DeepSeek-V4's report, abstract), which counts products of narrower formats for less."""
    found = step_flops(name, 10**6) / step_flops("deepseek-v3.2", 10**6)
    assert found == pytest.approx(share, rel=off)


@given(query=st.integers(1, 400), cached=st.integers(0, 5000))
def test_queries_see_the_window_and_all_or_some_blocks_before_them(query, cached):
    for attention, most in (("compressed-attention", None), ("compressed-sparse-attention", 512)):
        kind = kind_of("deepseek-v4-flash", attention)
        ratio = 128 if most is None else 4
        found = {op.name: op for op in attention_core(kind, 1, 1, query, cached)}
        window = sum(min(128, cached + place) for place in range(1, query + 1))
        blocks = sum(min(most or 10**9, (cached + place) / ratio) for place in range(1, query + 1))
        for name, pairs in (("window attention", window), ("compressed attention", blocks)):
            if name in found:
                op = found[name]
                seen = op.cached_tokens + (op.query_tokens + 1) / 2
                rounding = op.batch * op.query_tokens
                # Halves of a token's place are rounded, and the last piece may be shorter than the others.
                assert op.batch * op.query_tokens * seen == pytest.approx(
                    pairs, rel=0.05, abs=1.5 * rounding
                )
        assert ("compressed attention" in found) == (blocks / query >= 1)


def test_four_streams_widen_what_layers_hand_on_and_keep():
    model = load_model("deepseek-v4-flash")
    plain = replace(model, streams=None)
    assert model.handed_size == 4 * 4096
    mixing = 2 * ((4 * 4 + 2 * 4) * (4 * 4096 + 1) + 3)
    joining = 4 * (4 * 4096 + 1) + 1
    assert num_parameters(model) - num_parameters(plain) == 43 * mixing + joining
    held = KeptBatch(Shard(), sequences=1, sequence_tokens=1000, fused_attention=True)
    kinds = (layer_kinds(each).models[0] for each in (model, plain))
    four, one = (layer_activation_bytes(kind, held, "full") for kind in kinds)
    assert (four, one) == (4 * 1000 * 4096 * 2, 1000 * 4096 * 2)


def test_blocks_of_the_cache_are_chosen_for_grouped_attention():
    sparse, full = (
        kind_of("minimax-m3", f"{part}-attention") for part in ("block-sparse", "grouped")
    )
    # Four KV heads of 128, and the key of the index; 16 blocks of 128 tokens.
    assert cached_sequence(sparse, 1, 2, 10**6) == (2 * (2 * 4 * 128 + 128), 0)
    assert cached_sequence(full, 1, 2, 10**6) == (2 * 2 * 4 * 128, 0)
    assert read_bytes(sparse, 1, 2, 50_000) == 2 * (50_000 * 128 + 2048 * 2 * 4 * 128)
    found = attends(sparse, step(50_000))
    assert flops_of((found["index scores"],)) == pytest.approx(2 * 4 * 128 * 50_000, rel=0.01)
    assert flops_of((found["attention"],)) == pytest.approx(4 * 64 * 128 * 2048, rel=0.01)
    short = attends(sparse, step(2048))
    assert short["attention"] == attends(full, step(2048))["attention"]


def test_three_of_four_layers_of_kimi_keep_a_state_and_the_others_a_vector():
    kinds = layer_kinds(load_model("kimi-k3"))
    assert num_parameters(load_model("kimi-k3")) / 1e12 == pytest.approx(2.8, rel=0.01)
    state = 96 * 128 * 128 * 4 + 3 * 3 * 96 * 128 * 2  # in fp32, and three tokens of convolutions
    delta = kind_of("kimi-k3", "kimi-delta-attention")
    assert cached_sequence(delta, 1, 2, 10**6) == (0, state)
    assert cached_sequence(delta, 8, 2, 10**6) == (0, state // 8)
    assert held_bytes("kimi-k3", 10**6) == 69 * state + 24 * 10**6 * 576 * 2
    assert kinds.counts(0, 93) == (1, 68, 24)


def test_heads_of_latent_attention_may_be_gated_and_blocks_of_layers_scored():
    model = load_model("kimi-k3")
    full = kind_of("kimi-k3", "latent-attention")
    plain = replace(full, attention_details=None, block_layers=None)
    scores = 2 * 2 * 7168  # a norm and a score of each part
    assert layer_parameters(full) - layer_parameters(plain) == 7168 * 96 * 128 + scores
    names = [op.name for op in layer_operators(full, Shard(), step(9))]
    assert names.count("blocks") == 2
    assert "residual" not in names
    assert model.handed_size == 7168 * (1 + 8 / 2)


def test_experts_that_compute_nothing_leave_a_third_of_a_token_s_out():
    """560B, of which a token has 27B on average (README of meituan-longcat/LongCat-Flash-Chat)."""
    model = load_model("longcat-flash")
    with_experts = next(k for k in layer_kinds(model).models if k.feed_forward_part == "experts")
    assert computed_per_token(with_experts) == 8  # of 12 that are chosen among 512 and 256
    held = layer_kinds(model).total(expert_parameters)
    used = num_parameters(model) - held * (1 - 8 / 512)
    assert num_parameters(model) / 1e9 == pytest.approx(560, rel=0.01)
    assert used / 1e9 == pytest.approx(27, rel=0.05)
    router = next(
        op for op in layer_operators(with_experts, Shard(), step(9)) if op.name == "router"
    )
    assert router.n == 768
