"""Generation engines by their sheets: what each way of batching costs, on the device's own times."""

from dataclasses import replace

import numpy as np
import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.profiles.catalog import engine_names, load_engine, load_model
from rlplan.simulator.generation.generating import clock_of, limits_of, replica_of, steps_in
from rlplan.simulator.generation.playing import generate
from rlplan.simulator.placed import Site
from tests.cases import first
from tests.simulator import reference_generation as reference
from tests.simulator.placing import replica_setting

A100 = "a100-80gb-sxm"
LLAMA = load_model("llama-2-7b")
GENERATING = tuple(name for name in engine_names() if load_engine(name).role == "generate")


def site(gpus=8):
    return Site(A100, gpus, 8, 25e9)


def replica(name, *, running=16, blocks=100_000, tp=1, pp=1, gpus=8, samples=1, **changes):
    """Return a replica of Llama 2 7B on A100, and the engine's sheet."""
    sheet = replace(load_engine(name), **changes)
    steps = steps_in(replica_setting(LLAMA, sheet, A100, site=site(gpus), tp=tp, pp=pp))
    limits = limits_of(sheet, running, blocks, samples_per_prompt=samples)
    return replica_of(clock_of(steps), limits)


def seconds(name, sequences=16, **settings):
    return generate(replica(name, **settings), [256] * sequences, [256] * sequences).seconds


@pytest.mark.parametrize("name", GENERATING)
def test_every_engine_generates_twice_the_batch_in_about_twice_the_time(name):
    ratio = seconds(name, 64) / seconds(name, 32)
    assert 1.9 < ratio < 2.1


@pytest.mark.parametrize("seed", first(3, range(15)))
@pytest.mark.parametrize("name", GENERATING)
def test_every_engine_s_jumps_equal_its_steps_token_by_token(name, seed):
    generator = np.random.default_rng(seed)
    tp, running = int(generator.choice([1, 4])), int(generator.integers(2, 12))
    samples = (
        int(generator.choice([1, 4]))
        if load_engine(name).batching in ("mixed", "continuous")
        else 1
    )
    blocks = int(generator.integers(20, 2000))
    one = replica(name, running=running, blocks=blocks, tp=tp, samples=samples)
    prompts, responses = generator.integers(1, 700, size=(2, 16)).tolist()
    prompts = np.repeat(prompts[: 16 // samples], samples).tolist()
    play = {
        "continuous": reference.continuous,
        "mixed": reference.mixed,
        "calls": reference.calls,
        "static": reference.waves,
        "none": reference.waves,
    }[one.batching]
    quick, slow = generate(one, prompts, responses), play(one, prompts, responses)
    assert quick.seconds == pytest.approx(slow.seconds, rel=1e-6)
    assert (quick.num_steps, quick.num_preemptions) == (slow.steps, slow.preemptions)
    finish = [slow.finish[number] for number in range(16)]
    assert quick.finish_seconds == pytest.approx(finish, rel=1e-6)


def test_without_a_cache_a_step_costs_a_forward_pass_of_all_tokens_so_far():
    done = generate(replica("megatron-no-cache"), [1024] * 16, [1024] * 16)
    # 16 sequences of 1,024 .. 2,047 tokens in 1,024 steps, 2 x 6.6e9 operations a token.
    peak_seconds = 16 * 1024 * 1535.5 * 2 * 6.6e9 / 312e12
    assert peak_seconds == pytest.approx(1064, rel=0.01)
    assert 1.1 < done.seconds / peak_seconds < 1.8
    assert (done.num_steps, done.peak_blocks) == (1024, 0)


def test_a_cache_saves_most_of_the_time_even_with_small_micro_batches():
    assert seconds("megatron-no-cache", running=8) > 2 * seconds("megatron-static", running=8)


def test_pipeline_stages_without_a_cache_share_a_wave_in_as_many_batches():
    # Four batches through four stages take seven stage times, in place of four stage times for
    # four batches on four times the GPUs by TP.
    tp, pp = seconds("megatron-no-cache", tp=4), seconds("megatron-no-cache", pp=4)
    assert 1.0 < pp / tp < 2.0


def test_calls_cost_a_step_for_every_token_of_every_micro_batch():
    alone = seconds("vllm-0.3-calls", 8, running=8)
    assert seconds("vllm-0.3-calls", 64, running=8) == pytest.approx(8 * alone, rel=1e-6)
    # Together, eight micro-batches share each step.
    assert seconds("vllm-0.3-ray", 64, running=64) < 3 * alone


def test_a_call_is_batched_as_vllm_batches_it():
    assert seconds("vllm-0.3-calls", tp=2) == seconds("vllm-0.3-ray", tp=2)


def test_gathering_layers_in_every_step_costs_the_weights_over_the_links():
    kept = seconds("deepspeed-hybrid", 16)
    gathered = seconds("deepspeed-hybrid-gathering", 16)
    # 32 layers of 405 MB over eight GPUs' NVLink of 300 GB/s, in each of 256 steps.
    least = 256 * 32 * 405e6 * 7 / 8 / 300e9
    assert least == pytest.approx(9.68, rel=0.01)
    assert 1.0 < (gathered - kept) / least < 2.0


def test_eager_decode_steps_last_at_least_as_long_as_their_launches():
    least = 255 * (32 * 1e-3 + 2e-3)
    launched = seconds(
        "deepspeed-hybrid", 1, running=1, layer_launch_seconds=1e-3, step_seconds=2e-3
    )
    # One sequence is read in 7 ms a step, which the launches of 32 ms cover; prefill comes on top.
    assert 1.0 < launched / least < 1.1


@pytest.mark.parametrize("tp", [1, 4])
def test_what_dispatches_takes_longer_on_grace_and_python_does_not(tp):
    engine, model = load_engine("vllm-0.11"), load_model("qwen3-8b")
    whole = replace(engine, steps=replace(engine.steps, dispatch_seconds=None))

    def host(sheet, device):
        return steps_in(replica_setting(model, sheet, device, tp=tp)).host_seconds(0)

    usual = engine.step_seconds + (engine.steps.worker_seconds if tp > 1 else 0.0)
    assert host(engine, "h100-80gb-sxm") == host(whole, "h100-80gb-sxm") == usual
    assert host(whole, "gb200") == pytest.approx(2.6 * usual)
    assert host(engine, "gb200") == pytest.approx(usual + 1.6 * engine.steps.dispatch_seconds)


def test_norms_of_queries_and_keys_are_launched_beside_a_layer_that_has_them():
    engine = load_engine("vllm-0.11-eager")
    for name, norms in (("qwen3-8b", 2), ("llama-3.1-8b", 0)):
        model = load_model(name)
        each = engine.layer_launch_seconds + norms * engine.steps.norm_launch_seconds
        launched = steps_in(replica_setting(model, engine, "h200")).floor_seconds(16)
        assert launched == pytest.approx(model.num_layers * each)


@pytest.mark.parametrize(
    ("name", "kind", "layers"),
    [
        ("qwen3.5-9b", "linear-attention", 24),
        ("kimi-linear-48b-a3b", "kimi-delta-attention", 20),
    ],
)
def test_linear_attention_is_launched_for_longer_where_no_graph_holds_a_step(name, kind, layers):
    model, engine = load_model(name), load_engine("vllm-0.11-eager")
    told = replace(engine, steps=replace(engine.steps, mixer_launch_seconds=FrozenDict()))
    plain, linear = (
        steps_in(replica_setting(model, each, "h200")).floor_seconds(16) for each in (told, engine)
    )
    assert linear - plain == pytest.approx(layers * engine.steps.mixer_launch_seconds[kind])


def test_launching_layer_by_layer_takes_as_many_times_as_long_on_grace_as_dispatching():
    model, engine = load_model("llama-3.1-8b"), load_engine("vllm-0.11-eager")
    usual, grace = (
        steps_in(replica_setting(model, engine, device)).floor_seconds(16)
        for device in ("h200", "gh200-480gb")
    )
    assert usual == pytest.approx(model.num_layers * engine.layer_launch_seconds)
    assert grace == pytest.approx(2.6 * usual)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        # By graphs of pieces six operations; without any five, nine allocations and two kernels that Triton launches.
        ("vllm-0.11", 6 * 13.48e-6),
        ("vllm-0.11-eager", 5 * 13.48e-6 + 9 * 3e-6 + 2 * 86e-6),
    ],
)
def test_launching_a_layer_of_experts_takes_the_operations_more_that_it_has(name, more):
    engine = load_engine(name)
    steps = replace(engine.steps, norm_launch_seconds=0.0)
    engine = replace(engine, launches_hidden=False, steps=steps)
    dense, experts = (
        steps_in(replica_setting(load_model(name), engine, "h200")).floor_seconds(16)
        for name in ("qwen3-8b", "qwen3-30b-a3b")
    )
    assert experts / 48 - dense / 36 == pytest.approx(more, rel=0.02)
