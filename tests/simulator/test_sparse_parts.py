"""Attention of 2026's models that does not read all of its cache: what it weighs, keeps and computes, by published figure."""

import pytest

from rlplan.models import Attention, Batch, Shard, layer_kinds
from rlplan.parts import cached_sequence, num_parameters, read_bytes
from rlplan.profiles.catalog import load_model
from rlplan.simulator.model import flops_of, layer_operators


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

    def flops(name):
        batch = step(1_000_000)
        return layer_kinds(load_model(name)).total(
            lambda kind: flops_of(layer_operators(kind, Shard(), batch))
        )

    assert flops("glm-5.1") / flops("glm-5.2") == pytest.approx(2.9, rel=0.1)


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
def test_embeddings_of_layers_and_shared_caches_are_as_the_card_says(name, billions, effective, cached):
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


def test_a_layer_without_a_cache_reads_that_of_another():
    kinds = {
        (kind.attention, kind.window): kind for kind in layer_kinds(load_model("gemma-4-e2b")).models
    }
    own, shared = (
        kinds[attention, None] for attention in ("grouped-attention", "shared-cache-attention")
    )
    assert cached_sequence(shared, 1, 2, 9000) == (0, 0)
    assert read_bytes(shared, 1, 2, 9000) == read_bytes(own, 1, 2, 9000) == 2 * 9000 * 2 * 512
    assert attends(shared, step(700)) == attends(own, step(700))
    assert shared.ffn_size == 2 * own.ffn_size
