"""What a layer keeps of a token where norms and activations are computed one by one: by measurement, and counted by hand."""

import pytest

from rlplan.models import KeptBatch, Shard
from rlplan.profiles.catalog import load_model
from rlplan.simulator.model import layer_activation_bytes

TOKENS = 16_384


def kept_of_a_token(model, kernels, recompute="none"):
    batch = KeptBatch(Shard(), 1, TOKENS, fused_attention=True, kernels=kernels)
    return layer_activation_bytes(load_model(model), batch, recompute) / TOKENS


@pytest.mark.parametrize(
    ("model", "forecast", "measured"),
    [("qwen2.5-7b", 225_392, 225_444), ("qwen3-30b-a3b", 226_432, 228_338)],
)
def test_eager_layers_keep_what_they_do_on_a_gpu(model, forecast, measured):
    """Measured on an H200 (evals/held/gpu_layers_h200.csv), train, 1 x 16,384 tokens."""
    assert kept_of_a_token(model, "eager") == forecast
    assert forecast == pytest.approx(measured, rel=0.01)


def test_layers_in_autocast_keep_copies_in_bf16_of_norms_in_fp32():
    hidden, inner, queries, keys = 3584, 18_944, 28 * 128, 4 * 128
    norms = 2 * hidden * (4 + 4)  # what comes in, and what it is divided to
    copies = hidden * (3 + 2) * 2  # for queries, keys and values; for gate and up
    attention = (2 * queries + 2 * keys) * 2 + 28 * 4  # queries, keys, values, the output; its sums
    activation = 4 * inner * 2  # gate, its activation, up and their product
    assert kept_of_a_token("qwen2.5-7b", "autocast") == norms + copies + attention + activation
    assert kept_of_a_token("qwen2.5-7b", "autocast", "full") == hidden * 4
    assert kept_of_a_token("qwen2.5-7b", "eager", "full") == hidden * 2


def test_norms_of_queries_and_keys_divide_products_in_autocast_too():
    hidden, inner, choices, queries, keys = 2048, 768, 8, 32 * 128, 4 * 128
    norms = 2 * hidden * (4 + 4)
    copies = hidden * 3 * 2
    attention = (2 * queries + 2 * keys) * 2 + 32 * 4 + (queries + keys) * (4 + 2)
    weighted = 4  # in fp32, beside an expert's input and output
    experts = choices * (4 * inner * 2 + hidden * (2 + 2 + weighted))
    router = hidden * 2
    expected = norms + copies + attention + experts + router
    assert kept_of_a_token("qwen3-30b-a3b", "autocast") == expected
