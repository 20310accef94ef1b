"""Pools of states: how many sequences run at a time beside them, what tokens have left, and what the host then does in turn."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.evals.settings.serving import Service, limits, serve
from rlplan.profiles.catalog import load_engine, load_model
from rlplan.simulator.generation.generating import clock_of, limits_of, steps_in
from rlplan.simulator.generation.replica import blocks_held, with_states_apart
from tests.simulator.placing import replica_setting

NEXT, DENSE = load_model("qwen3-next-80b-a3b"), load_model("qwen3-8b")
APART, AHEAD = load_engine("sglang-0.5.6"), load_engine("sglang-0.5.14")
TOGETHER = replace(APART, states=None)
# Qwen3.6-35B-A3B by SGLang 0.5.16 on an H200 (sgl-project/sglang, qwen3.6-benchmarks.jsx): 2,048 requests, 1,024 at a time.
RUN = Service(
    device="h200", model=load_model("qwen3.6-35b-a3b"), precision="bf16", tp=1, requests=2048,
    prompt_tokens=8192, response_tokens=1024, max_running=1024, max_batched_tokens=8192, memory_fraction=0.8,
)  # fmt: skip
RUN_SECONDS = 1009


def test_a_pool_takes_its_share_and_bounds_what_runs():
    left = with_states_apart(limits_of(APART, 512, 100_000, state_blocks=100), APART, NEXT)
    # 0.4737 of the blocks, three states for each sequence.
    assert (left.kv_blocks, left.max_running, left.state_blocks) == (52_630, 157, 0)
    further = with_states_apart(limits_of(AHEAD, 512, 100_000, state_blocks=100), AHEAD, NEXT)
    assert further.max_running == 94


@pytest.mark.parametrize(("engine", "model"), [(APART, DENSE), (TOGETHER, NEXT)])
def test_other_models_and_engines_keep_one_cache(engine, model):
    own = limits_of(engine, 512, 100_000, state_blocks=100)
    assert with_states_apart(own, engine, model) == own
    assert blocks_held(engine, model, 8, 40, 5) == 8 * 45


@given(st.integers(2, 500), st.integers(1, 9000), st.integers(1, 4000))
def test_in_the_least_blocks_that_hold_them_sequences_all_run(sequences, tokens, states):
    held = blocks_held(APART, NEXT, sequences, tokens, states)
    left = with_states_apart(limits_of(APART, sequences, held, state_blocks=states), APART, NEXT)
    assert left.max_running == sequences
    assert left.kv_blocks >= sequences * tokens - 1
    fewer = limits_of(APART, sequences, int(0.98 * held) - 2, state_blocks=states)
    short = with_states_apart(fewer, APART, NEXT)
    assert short.max_running < sequences or short.kv_blocks < sequences * tokens


def test_steps_of_states_without_buffers_wait_for_the_host():
    def seconds(engine):
        setting = replica_setting(NEXT, engine, "h100-80gb-sxm", tp=4)
        return clock_of(steps_in(setting)).decode(16, 16_000)

    own = APART.steps
    host = APART.step_seconds + own.worker_seconds + 16 * own.seconds_per_sequence
    assert seconds(APART) == pytest.approx(seconds(TOGETHER) + host, rel=1e-3)
    assert seconds(AHEAD) == pytest.approx(seconds(TOGETHER))


def test_a_server_with_room_for_few_states_takes_as_long_as_it_took():
    assert limits(RUN, AHEAD).max_running == 74
    assert serve(RUN, AHEAD).seconds == pytest.approx(RUN_SECONDS, rel=0.1)
    assert serve(RUN, replace(AHEAD, states=None)).seconds < 0.8 * RUN_SECONDS
