"""The operators of a model: their work, counted by hand and against published rules of thumb."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.models import Attention, Batch, Collective, Elementwise, Gemm, ModelArchitecture, Shard
from rlplan.parts import layer_parameters, num_parameters
from rlplan.profiles.catalog import load_model
from rlplan.simulator.model import (
    backward_operators,
    embedding_operators,
    flops_of,
    head_operators,
    kernels_of,
    layer_operators,
    recomputed_operators,
)
from tests.strategies import architectures

TINY = ModelArchitecture(
    name="tiny",
    family="llama",
    hidden_size=8,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    ffn_size=16,
    vocab_size=32,
)


def batch_of(sequences, tokens, cached=0):
    return Batch(
        sequences=sequences,
        tokens=sequences * tokens,
        sequence_tokens=tokens,
        cached_tokens=cached,
        head_tokens=sequences * tokens,
    )


def gemms(operators):
    return [(each.name, each.m, each.k, each.n) for each in operators if isinstance(each, Gemm)]


def collectives(operators):
    return [(each.kind, each.num_bytes) for each in operators if isinstance(each, Collective)]


def model_flops(model, batch, shard=None):
    shard = shard or Shard()
    layer = flops_of(layer_operators(model, shard, batch))
    return model.num_layers * layer + flops_of(head_operators(model, shard, batch, "lm"))


def test_the_matrix_products_of_a_layer_have_the_shapes_of_its_weights():
    assert gemms(layer_operators(TINY, Shard(), batch_of(3, 5))) == [
        ("qkv", 15, 8, 8 + 2 * 4),
        ("attention output", 15, 8, 8),
        ("mlp up", 15, 8, 32),
        ("mlp down", 15, 16, 8),
    ]


def test_tensor_parallelism_splits_the_first_matrix_by_columns_and_the_second_by_rows():
    assert gemms(layer_operators(TINY, Shard(tp=2), batch_of(3, 5))) == [
        ("qkv", 15, 8, 4 + 2 * 2),
        ("attention output", 15, 4, 8),
        ("mlp up", 15, 8, 16),
        ("mlp down", 15, 8, 8),
    ]


def test_a_layer_has_two_all_reduces_forward_and_two_backward():
    forward = layer_operators(TINY, Shard(tp=2), batch_of(3, 5))
    row_bytes = 15 * 8 * 2
    assert collectives(forward) == [("all_reduce", row_bytes)] * 2
    assert collectives(backward_operators(forward)) == [("all_reduce", row_bytes)] * 2


def test_sequence_parallelism_gathers_before_a_block_and_scatters_after_it():
    forward = layer_operators(TINY, Shard(tp=2, sequence_parallel=True), batch_of(3, 5))
    kinds = [kind for kind, _ in collectives(forward)]
    assert kinds == ["all_gather", "reduce_scatter"] * 2
    back = [kind for kind, _ in collectives(backward_operators(forward))]
    assert back == ["reduce_scatter", "all_gather"] * 2
    norms = [each.num_bytes for each in forward if each.name == "norm"]
    assert norms == [15 * 8 * 2 * 2 / 2] * 2


def test_one_rank_exchanges_nothing():
    shard, batch = Shard(sequence_parallel=True), batch_of(3, 5)
    everything = (
        *layer_operators(TINY, shard, batch),
        *embedding_operators(TINY, shard, batch),
        *head_operators(TINY, shard, batch, "lm"),
    )
    assert collectives(everything) == []


def test_llama_2_7b_computes_two_flops_per_parameter_and_token():
    model = load_model("llama-2-7b")
    each = model_flops(model, batch_of(1, 1))
    # All weights but the embedding's 131 million are multiplied: 6.607e9, plus next to no attention.
    assert each == pytest.approx(2 * 6.607e9, rel=1e-3)


def test_training_llama_2_7b_is_six_flops_per_parameter_and_token():
    """Kaplan et al. 2020, section 2.1: 6 N D, without attention."""
    model, batch = load_model("llama-2-7b"), batch_of(4, 512)
    shard = Shard()
    layer = layer_operators(model, shard, batch)
    head = head_operators(model, shard, batch, "lm")
    forward = model.num_layers * flops_of(tuple(g for g in layer if isinstance(g, Gemm)))
    forward += flops_of(head)
    backward = model.num_layers * flops_of(
        tuple(g for g in backward_operators(layer) if isinstance(g, Gemm))
    )
    backward += flops_of(backward_operators(head))
    assert backward == 2 * forward
    assert forward + backward == pytest.approx(6 * num_parameters(model) * 2048, rel=0.03)


def test_causal_attention_counts_half_of_the_square():
    attention = Attention("attention", 2, 100, 0, 4, 4, 8)
    assert flops_of((attention,)) == 4 * 2 * 100 * 50.5 * 4 * 8


def test_a_mixture_computes_its_active_experts_only():
    model = load_model("qwen3-30b-a3b")
    each = model_flops(model, batch_of(8, 1024)) / (8 * 1024)
    attention = 4 * 512.5 * model.num_heads * model.head_dim * model.num_layers
    chosen = replace(model, num_experts=model.experts_per_token)
    router = (model.num_experts - chosen.num_experts) * model.hidden_size
    active = layer_parameters(chosen) - 2 * model.hidden_size + router
    weights = 2 * (model.num_layers * active + model.embedding_parameters)
    assert each - attention == pytest.approx(weights, rel=0.01)


def test_a_decode_step_of_a_mixture_reads_only_the_experts_that_tokens_reach():
    model = load_model("qwen3-30b-a3b")
    one = layer_operators(model, Shard(), batch_of(1, 1, cached=100))
    many = layer_operators(model, Shard(), batch_of(4096, 1, cached=100))
    count = {each.name: each.count for each in one if isinstance(each, Gemm)}
    assert count["mlp up"] == 8
    count = {each.name: each.count for each in many if isinstance(each, Gemm)}
    assert count["mlp up"] == 128


def test_kv_heads_fewer_than_ranks_are_copied():
    model = load_model("qwen2.5-7b")
    (qkv,) = [
        g for g in gemms(layer_operators(model, Shard(tp=8), batch_of(1, 8))) if g[0] == "qkv"
    ]
    assert qkv[3] == (28 // 8 + 2 * 1) * 128


def test_the_head_of_a_critic_is_one_column():
    assert gemms(head_operators(TINY, Shard(tp=2), batch_of(3, 5), "scalar")) == [
        ("value head", 15, 8, 1)
    ]


def test_generation_gathers_logits_and_training_only_their_statistics():
    shard, batch = Shard(tp=2), batch_of(3, 5)
    assert collectives(head_operators(TINY, shard, batch, "lm")) == [("all_reduce", 15 * 12)]
    sampled = head_operators(TINY, shard, batch, "lm", sampling=True)
    assert collectives(sampled) == [("all_gather", 15 * 32 * 2)]


def test_selective_recomputation_repeats_no_matrix_product():
    forward = layer_operators(TINY, Shard(), batch_of(3, 5))
    again = recomputed_operators(forward, "selective", fused_attention=True)
    assert {type(each) for each in again} == {Elementwise}
    unfused = recomputed_operators(forward, "selective", fused_attention=False)
    assert {type(each) for each in unfused} == {Elementwise, Attention}
    for fused in (True, False):
        core = recomputed_operators(forward, "attention", fused_attention=fused)
        assert [type(each) for each in core] == [Attention]
    assert recomputed_operators(forward, "full", fused_attention=True) == forward
    assert recomputed_operators(forward, "none", fused_attention=True) == ()


def test_fused_kernels_launch_once():
    forward = layer_operators(TINY, Shard(), batch_of(3, 5))
    # norm, qkv, rope, attention, output, residual; norm, up, activation, down, residual
    assert kernels_of(forward) == 11


@given(architectures(), st.sampled_from([1, 2, 4]), st.integers(1, 4), st.integers(1, 64))
def test_ranks_together_compute_at_least_the_whole_layer(model, tp, sequences, tokens):
    batch = batch_of(sequences, tokens)
    whole = flops_of(layer_operators(model, Shard(), batch))
    shared = tp * flops_of(layer_operators(model, Shard(tp=tp), batch))
    assert shared >= whole * (1 - 1e-9)
    if model.num_kv_heads % tp == 0:
        assert shared == pytest.approx(whole, rel=0.01)


@given(architectures(), st.sampled_from([1, 2, 4]), st.integers(1, 4), st.integers(1, 64))
def test_context_parallel_ranks_share_the_work_of_causal_attention(model, cp, sequences, quarter):
    batch = batch_of(sequences, 4 * quarter)
    whole = flops_of(layer_operators(model, Shard(), batch))
    shared = cp * flops_of(layer_operators(model, Shard(cp=cp), batch))
    assert shared == pytest.approx(whole, rel=0.05)
