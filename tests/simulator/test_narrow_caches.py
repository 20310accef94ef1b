"""What attention over a KV cache in 8 bits takes beside one in 16."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.job import NodeGroup
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_engine
from rlplan.sheets import StepCosts
from rlplan.simulator.generation.generating import clock_of, replica_limits
from rlplan.simulator.generation.prices import engine_steps, replica_setting_of
from rlplan.simulator.placed import PlacedTask, site_at
from tests.simulator.cost_jobs import GRPO, facts_of, job_of

H100 = "h100-80gb-sxm"
LAYERS = 32  # of Llama 3.1 8B
# Keys and values of a token in 8 bits: 2 x 8 heads of 128, in every layer.
TOKEN_BYTES = LAYERS * 2 * 8 * 128


def placed(running, *, kv_cache=None, engine="vllm-0.15", gpu=H100, model="llama-3.1-8b"):
    cluster = (NodeGroup(gpu=gpu, gpus_per_node=8, nodes=1, inter_node_gbps=3200),)
    job = replace(job_of(model, nodes=1, algorithm="grpo"), cluster=cluster, kv_cache=kv_cache)
    layout = TaskPlan(pool="p0", engine=engine, max_running=max(1, running))
    return PlacedTask(GRPO["actor.generate"], layout, site_at(job, gpu, 0, 1), job, facts_of(job))


def step_seconds(running, cached, **said):
    task = placed(running, **said)
    return clock_of(replica_limits(task, None)[0]).decode(running, cached)


def line(engine, kv_cache):
    """Return seconds of a step of one sequence without context, and for each token of context."""
    few, many = (
        step_seconds(1, cached, kv_cache=kv_cache, engine=engine) for cached in (2000, 100_000)
    )
    slope = (many - few) / 98_000
    return few - 2000 * slope, slope


@pytest.mark.parametrize(
    ("engine", "rate", "quantising", "pays_off", "published"),
    [
        ("vllm-0.11", 2.38e12, 12.6e-6, 21_900, 24_889),
        ("vllm-0.15", 0.852 * 3.35e12, 4.4e-6, 6_130, 7_010),
    ],
)
def test_a_cache_in_8_bits_pays_off_from_the_context_on_that_was_published(
    engine, rate, quantising, pays_off, published
):
    (wide, wide_slope), (narrow, narrow_slope) = (line(engine, each) for each in (None, "fp8"))
    assert narrow_slope == pytest.approx(TOKEN_BYTES / rate, rel=0.005)
    assert narrow - wide == pytest.approx(LAYERS * quantising, rel=0.01)
    found = (narrow - wide) / (wide_slope - narrow_slope)
    assert found == pytest.approx(pays_off, rel=0.02)
    assert found == pytest.approx(published, rel=0.15)


def test_kernels_of_hopper_read_8_bits_no_faster_where_the_memory_is_faster():
    ours, theirs = (
        step_seconds(64, 16_384, kv_cache="fp8", gpu=gpu)
        - step_seconds(64, 8192, kv_cache="fp8", gpu=gpu)
        for gpu in (H100, "h200")
    )
    assert ours == pytest.approx(64 * 8192 * TOKEN_BYTES / (0.852 * 3.35e12), rel=0.01)
    assert theirs == pytest.approx(64 * 8192 * TOKEN_BYTES / 2.94e12, rel=0.01)


@given(
    st.sampled_from(["vllm", "vllm-0.11", "vllm-0.15", "sglang-0.5", "tensorrt-llm-1"]),
    st.integers(1, 256),
    st.integers(1, 30_000),
)
def test_a_context_in_8_bits_takes_half_of_one_in_16_or_more_and_no_longer_than_that(
    engine, running, cached
):
    # Of the device alone: a host that takes as long hides some of it.
    def context(kv_cache):
        steps = engine_steps(replica_setting_of(placed(running, kv_cache=kv_cache, engine=engine)))
        whole, least = (steps.decode_attention(running, each).seconds for each in (cached, 1))
        return whole - least

    wide, narrow = context(None), context("fp8")
    assert wide / 2 - 1e-9 <= narrow <= wide + 1e-9


def test_other_attention_and_other_devices_are_read_as_fast_as_16_bits():
    costs = load_engine("vllm-0.15").steps
    assert costs.narrow_cache_rate("blackwell", 128) == float("inf")
    assert StepCosts().narrow_cache_rate("hopper", 128) == float("inf")
    assert (
        costs.narrow_cache_rate("hopper", 96) == costs.narrow_cache_rate("hopper", 128) == 2.94e12
    )
    assert costs.narrow_cache_rate("hopper", 192) == 1.5e12
