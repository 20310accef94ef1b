"""Kernels that engines run beside a layer's products: what quantises their inputs, and what latent attention takes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.attention_kernels import PromptAttention
from rlplan.files.frozen import FrozenDict
from rlplan.models import Adapter, Gemm
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.profiles.facts import DeviceFacts
from rlplan.simulator.costs.setting import setting_on
from rlplan.simulator.generation.prices import ReplicaSetting, engine_steps
from rlplan.simulator.model import with_adapters, with_input_casts
from rlplan.simulator.placed import Site

H100, A100 = "h100-80gb-sxm", "a100-80gb-sxm"


def steps_of(model="deepseek-v3", device=H100, tp=8, precision="bf16", **changes):
    engine = load_engine("vllm-0.11")
    engine = replace(engine, steps=replace(engine.steps, **changes))
    layout = TaskPlan(pool="", tp=tp, engine=engine.name)
    site = Site(device, tp, 8, 5e10)
    facts = DeviceFacts(load_device(device))
    setting = setting_on(layout, engine, facts, site, precision, cache_value_bytes=2)
    return engine_steps(ReplicaSetting(load_model(model), engine, setting))


def test_each_product_s_input_is_quantised_once_but_that_of_routers_and_adapters():
    adapted = with_adapters((Gemm("attention output", 10, 32, 64),), Adapter(rank=8), 2)
    layer = (
        Gemm("router", 10, 64, 4),
        *adapted,
        Gemm("mlp up", 5, 64, 16, 4, matrices=2),  # 20 rows of 10 tokens, two experts each
        Gemm("mlp down", 5, 8, 64, 4),
    )
    found = [each for each in with_input_casts(layer, 10, 3) if each.name.endswith("cast")]
    assert [(each.name, each.num_bytes) for each in found] == [
        ("attention output cast", 3 * 10 * 32),
        ("mlp up cast", 3 * 10 * 64),
        ("mlp down cast", 3 * 20 * 8),
    ]


@given(tokens=st.sampled_from([1, 64, 4096]), model=st.sampled_from(["qwen3-8b", "qwen3-30b-a3b"]))
def test_quantising_takes_time_in_narrow_formats_alone(tokens, model):
    for precision, longer in (("bf16", False), ("fp8", True)):
        counted, without = (
            steps_of(model, tp=1, precision=precision, cast_bytes=size).dense(tokens).seconds
            for size in (3, 0)
        )
        assert (counted > without) is longer


def test_latent_attention_takes_its_kernels_in_every_layer_on_hopper():
    told, untold = steps_of(), steps_of(latent=FrozenDict())
    for tokens in (1, 64, 4096):
        beside = told.dense(tokens).seconds - untold.dense(tokens).seconds
        assert beside == pytest.approx(61 * 4e-5)
    # 100 sequences of 128 heads over 8 ranks, 12,800 bytes each, in 61 layers.
    beside = told.decode_attention(100, 50).seconds - untold.decode_attention(100, 50).seconds
    assert beside == pytest.approx(61 * 100 * 16 * 12_800 / 3.35e12)
    for steps in (steps_of("qwen3-8b"), steps_of(device=A100)):
        nothing = replace(steps.engine, steps=replace(steps.engine.steps, latent=FrozenDict()))
        assert steps.dense(64) == replace(steps, engine=nothing).dense(64)


@given(count=st.integers(1, 10_000))
def test_a_step_is_filled_up_to_the_next_graph_that_was_captured(count):
    steps = load_engine("tensorrt-llm-1").steps
    filled = steps.filled(count)
    assert filled >= count
    assert filled in steps.captured_batches or filled == count > 8192
    assert not any(count <= size < filled for size in steps.captured_batches)
    assert load_engine("vllm-0.15").steps.filled(count) == count


def test_sequences_that_fill_up_a_step_take_products_but_read_nothing():
    steps = steps_of("qwen3-8b", tp=1, captured_batches=(128, 256))
    plain = replace(
        steps, engine=replace(steps.engine, steps=replace(steps.engine.steps, captured_batches=()))
    )
    told, untold, full = (
        each.stretch(count, 1024, 2048)[0]
        for each, count in ((steps, 194), (plain, 194), (plain, 256))
    )
    assert told.fixed == full.fixed > untold.fixed
    assert told.slope == untold.slope < full.slope


def test_prompts_attend_at_half_the_longest_s_rate_where_an_engine_says_so():
    rates = FrozenDict({"hopper": PromptAttention(rate=1.25, half_tokens=1000)})
    told, untold = (
        steps_of("qwen3-8b", tp=1, prompt_attention=each) for each in (rates, FrozenDict())
    )
    for length in (250, 1000, 4000):
        # Half of 1,000 tokens before each query are as 1,000 more of its own, of which it sees half.
        own = untold.prefill_attention(8, 500, length).seconds
        assert told.prefill_attention(8, 0, length).seconds == pytest.approx(own / 1.25)
    assert told.decode_attention(64, 1024) == untold.decode_attention(64, 1024)
