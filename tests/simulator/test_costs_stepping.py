"""Steps of generation engines: parts that add up, and constants that do what they say."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from rlplan.estimate import Estimate, Source
from rlplan.evals.settings.serving import Service, cache_bytes, device_facts, serve
from rlplan.files.frozen import FrozenDict
from rlplan.models import Adapter, Batch
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.sheets import StepCosts
from rlplan.simulator.costs.pricing import pass_seconds
from rlplan.simulator.costs.setting import setting_on
from rlplan.simulator.generation.generating import (
    EngineClock,
    generated,
    limits_of,
    mixed_reading,
    steps_in,
)
from rlplan.simulator.generation.nodes import nodes
from rlplan.simulator.generation.prices import CostQuality, Grid, engine_steps, worst_of
from rlplan.simulator.generation.replica import Chunks
from rlplan.simulator.placed import Site
from rlplan.workload import Lognormal, sample_lengths
from tests.effort import calls_of
from tests.simulator.placing import replica_setting

A100, H100 = "a100-80gb-sxm", "h100-80gb-sxm"


def clock_of(engine="vllm", model="llama-2-7b", tp=1, precision="bf16", device=A100):
    """Return the clock of one replica alone on a node."""
    sheet = load_engine(engine) if isinstance(engine, str) else engine
    setting = replica_setting(load_model(model), sheet, device, precision=precision, tp=tp)
    return EngineClock(engine_steps(setting))


def test_costs_between_nodes_lie_on_straight_lines():
    asked, notes = [], set()

    def cost(x: int, y: int) -> Estimate:
        asked.append((x, y))
        return Estimate(3.0 * x + y, 0.3 * x, Source.FITTED)

    grid = Grid(cost)
    assert grid(notes, 9.0, 11.5) == pytest.approx(38.5)
    assert len(asked) == 4  # 8 and 10 by 10 and 12, each priced once
    assert grid(notes, 9.0, 11.5) == pytest.approx(38.5)
    assert len(asked) == 4
    # The largest spread is that of 10 by 10: 3 of 40 seconds.
    share: Any = pytest.approx(0.075)
    assert worst_of(notes) == CostQuality(share, Source.FITTED, outside_range=False)
    assert nodes(5) == (5, 5, 0.0)


def test_a_mixed_step_costs_less_than_its_decode_and_its_prefill_apart():
    clock = clock_of()
    decode, prefill = clock.decode(64, 512.0), clock.prefill(1, 512.0)
    together = clock.mixed(64, 512.0, Chunks(1, 512.0, 0.0))
    assert max(decode, prefill) < together < decode + prefill


def test_a_chunk_that_follows_others_attends_to_them():
    clock = clock_of()
    assert clock.mixed(0, 0.0, Chunks(1, 512.0, 8192.0)) > clock.mixed(
        0, 0.0, Chunks(1, 512.0, 0.0)
    )


def test_host_time_grows_with_the_sequences_and_hides_where_it_overlaps():
    slow = replace(load_engine("vllm"), steps=StepCosts(seconds_per_sequence=1e-3))
    few, many = clock_of(slow).decode(8, 100.0), clock_of(slow).decode(16, 100.0)
    assert many - few > 7e-3
    hidden = replace(slow, steps=StepCosts(seconds_per_sequence=1e-3, host_overlap=True))
    assert clock_of(hidden).decode(64, 100.0) == pytest.approx(64e-3 + slow.step_seconds)


def test_several_gpus_cost_messages_and_all_reduces():
    quiet = replace(load_engine("vllm"), steps=StepCosts())
    loud = replace(quiet, steps=StepCosts(worker_seconds=5e-3))
    assert clock_of(loud).decode(8, 100.0) == clock_of(quiet).decode(8, 100.0)
    gap = clock_of(loud, tp=2).decode(8, 100.0) - clock_of(quiet, tp=2).decode(8, 100.0)
    assert gap == pytest.approx(5e-3)
    own = replace(quiet, steps=StepCosts(all_reduce_seconds=1e-5))
    # Two all-reduces a layer and one after the embedding are 65 of a 32-layer model.
    slower = replace(quiet, steps=StepCosts(all_reduce_seconds=3e-5))
    gap = clock_of(slower, tp=2).decode(8, 100.0) - clock_of(own, tp=2).decode(8, 100.0)
    assert gap == pytest.approx(65 * 2e-5)


def test_an_engines_own_all_reduce_stays_within_a_host_though_the_link_goes_on():
    own = replace(load_engine("vllm"), steps=StepCosts(all_reduce_seconds=5e-6))
    without = replace(own, steps=StepCosts())
    saved = {
        tp: clock_of(without, tp=tp, device="gb200").decode(8, 100.0)
        - clock_of(own, tp=tp, device="gb200").decode(8, 100.0)
        for tp in (4, 8)
    }
    assert saved[4] > 0
    assert saved[8] == 0  # four of them are in another host of the same NVLink domain


def test_steps_launched_kernel_by_kernel_last_as_long_as_the_launches():
    eager = replace(
        load_engine("vllm"),
        launches_hidden=False,
        layer_launch_seconds=2e-3,
        step_seconds=0.0,
        steps=StepCosts(launch_skew_seconds=1e-4),
    )
    assert clock_of(eager).decode(8, 100.0) == pytest.approx(32 * 2e-3)
    # Two all-reduces a layer wait for three doublings of their ranks.
    assert clock_of(eager, tp=8).decode(8, 100.0) == pytest.approx(32 * (2e-3 + 2 * 3 * 1e-4))
    # Long sequences keep the device busier than the host.
    assert clock_of(eager).decode(256, 4000.0) > 32 * 2e-3
    assert clock_of(eager).decode_run(8, 100.0, 50) == pytest.approx(50 * 32 * 2e-3)


@pytest.mark.parametrize("name", ["vllm-0.8-eager", "vllm-0.8"])
def test_adapters_are_launched_beside_each_layer_where_no_graph_holds_them(name):
    sheet, model = load_engine(name), load_model("qwen2.5-7b")
    plain = replica_setting(model, sheet, H100)
    adapted = replace(plain, setting=replace(plain.setting, adapter=Adapter(rank=32)))
    longer = [engine_steps(each).floor_seconds(80) for each in (plain, adapted)]
    layers = 28 * sheet.steps.adapter_launch_seconds
    assert longer[1] - longer[0] == pytest.approx(layers if name.endswith("eager") else 0.0)


def test_adapters_computed_token_by_token_lengthen_steps_that_are_not_waiting_for_launches():
    sheet, model = load_engine("vllm-0.6-eager"), load_model("qwen2.5-7b")
    plain = replica_setting(model, sheet, H100)
    adapted = replace(plain, setting=replace(plain.setting, adapter=Adapter(rank=32)))
    at_once = replace(sheet, steps=replace(sheet.steps, adapter_token_seconds=0.0))
    steps = {
        count: [
            EngineClock(engine_steps(replace(adapted, engine=each))).decode(count, 500.0)
            for each in (sheet, at_once)
        ]
        for count in (16, 400)
    }
    # 16 sequences take 4 ms in 28 layers, whose launches take 43 ms; 400 take 107 ms and what the layers compute.
    assert steps[16][0] == steps[16][1]
    more = steps[400][0] - steps[400][1]
    assert 0.5 < more / (400 * 28 * sheet.steps.adapter_token_seconds) < 1.0


@pytest.mark.parametrize(
    ("rows", "measured_seconds"),
    [
        # flash-attention issue 1572, H20: 128 sequences of 16,384 tokens, 16 KV heads of 128 in 16 bits.
        ("mixed", 15.97e-3),
        ("alone", 9.3e-3),
    ],
)
def test_tiles_of_decode_attention_take_what_was_measured_on_h20(rows, measured_seconds):
    steps, sheet = load_engine("vllm-0.11").steps, load_device("h20")
    num_bytes = 128 * 16384 * 16 * 2 * 128 * 2
    seconds = num_bytes / steps.tiled_cache_rate(sheet, 2, mixed=rows == "mixed")
    assert seconds == pytest.approx(measured_seconds, rel=0.02)


def test_tiles_of_128_rows_explain_what_a_step_takes_more_than_with_small_ones():
    """SGLang issue 5630: QwQ-32B at TP 4 on H20, 64 sequences of 13,000 tokens: 70.5 and 31.8 ms a step."""
    sheet, model = load_engine("sglang-0.4"), load_model("qwq-32b")
    small = replace(sheet, steps=replace(sheet.steps, tiles=FrozenDict()))
    tiled, read = (
        EngineClock(engine_steps(replica_setting(model, each, "h20", tp=4))).decode(64, 13000.0)
        for each in (sheet, small)
    )
    assert tiled - read == pytest.approx(38.7e-3, rel=0.15)


@pytest.mark.parametrize(("device", "longer"), [("h20", 1.85 / 1.075), (H100, 1.0), ("h200", 1.0)])
def test_a_prompt_in_a_step_lengthens_decode_attention_where_tiles_and_not_reading_decide(
    device, longer
):
    steps = engine_steps(replica_setting(load_model("qwen3-14b"), load_engine("vllm-0.11"), device))
    assert mixed_reading(steps) == pytest.approx(longer, rel=0.01)


def test_what_the_device_waits_for_its_host_is_known_as_well_as_hosts_are():
    sheet = replace(
        load_engine("vllm"),
        forecast_spread=0.1,
        step_seconds=4e-3,
        steps=StepCosts(host_spread=0.5),
    )
    clock = clock_of(sheet)
    seconds = clock.decode_run(8, 100.0, 10)
    _, decode = clock.estimates(0.0, seconds)
    waited = 10 * 4e-3
    assert decode.spread_seconds == pytest.approx(math.hypot(0.1 * seconds, 0.5 * waited))
    # A host whose work hides is not waited for: no step is shorter than the device's own.
    hidden = clock_of(
        replace(sheet, step_seconds=1e-6, steps=StepCosts(host_spread=0.5, host_overlap=True))
    )
    seconds = hidden.decode_run(8, 100.0, 10)
    _, decode = hidden.estimates(0.0, seconds)
    assert decode.spread_seconds == pytest.approx(0.1 * seconds)


def test_launches_that_the_device_waits_for_are_the_host_s():
    sheet = replace(
        load_engine("vllm"),
        launches_hidden=False,
        layer_launch_seconds=2e-3,
        step_seconds=0.0,
        forecast_spread=0.1,
        steps=StepCosts(host_spread=0.5),
    )
    free = replace(sheet, launches_hidden=True)
    device = clock_of(free).decode_run(8, 100.0, 50)
    clock = clock_of(sheet)
    seconds = clock.decode_run(8, 100.0, 50)
    _, decode = clock.estimates(0.0, seconds)
    assert seconds > device
    assert decode.spread_seconds == pytest.approx(
        math.hypot(0.1 * seconds, 0.5 * (seconds - device))
    )


def test_a_run_of_steps_that_outgrows_its_launches_is_summed_step_by_step():
    eager = replace(load_engine("vllm"), launches_hidden=False, layer_launch_seconds=7e-4)
    clock = clock_of(eager)
    steps = [clock.decode(64, 100.0 + step) for step in range(1500)]
    assert steps[0] == steps[1] < steps[-2] < steps[-1]
    assert clock.decode_run(64, 100.0, 1500) == pytest.approx(sum(steps), rel=1e-12)


def test_fp8_halves_what_a_decode_step_reads():
    wide = clock_of("tensorrt-llm", "llama-3.1-8b", precision="bf16", device=H100)
    narrow = clock_of("tensorrt-llm", "llama-3.1-8b", precision="fp8", device=H100)
    assert 0.5 < narrow.decode(16, 2048.0) / wide.decode(16, 2048.0) < 0.65


def service(**changes):
    usual: dict[str, Any] = {
        "device": A100,
        "model": load_model("llama-2-7b"),
        "precision": "fp16",
        "tp": 1,
        "requests": 64,
        "prompt_tokens": 128,
        "response_tokens": 128,
        "max_running": 32,
    }
    return Service(**(usual | changes))


def test_a_cache_of_what_is_free_never_exceeds_it():
    engine = load_engine("tensorrt-llm")
    # 80 GiB less 13.5 GB of weights and 1.5 GiB of context leave 70.8 GB before working memory.
    assert 0.9 * 70.8e9 < cache_bytes(service(), engine) < 0.95 * 70.8e9
    assert cache_bytes(service(model=load_model("llama-2-70b")), engine) == 0


def test_twice_the_requests_take_about_twice_as_long():
    engine = load_engine("lmdeploy-turbomind")
    one, two = serve(service(requests=320), engine), serve(service(requests=640), engine)
    assert two.seconds / one.seconds == pytest.approx(2, rel=0.1)
    assert one.spread_seconds == pytest.approx(one.seconds * engine.forecast_spread)


def test_a_stage_of_a_thousand_mixed_lengths_is_a_small_effort():
    sheet = load_engine("vllm")
    steps = steps_in(replica_setting(load_model("llama-3.1-8b"), sheet, A100))
    prompts = sample_lengths(Lognormal(mean=256, std=200, max=1024), 1024, seed=1)
    responses = sample_lengths(Lognormal(mean=512, std=400, max=2048), 1024, seed=2)
    limits = limits_of(sheet, 256, 27000)  # what an A100 of 80 GB leaves to an 8B model
    efforts = []
    for shift in range(3):
        share = (tuple(each + shift for each in prompts), responses)
        efforts.append(calls_of(partial(generated, steps, limits, share)))
    # The first one prices steps that those after it find priced. Token by token, the 512 steps of a
    # thousand sequences would be half a million.
    assert efforts[0] < 250_000
    assert max(efforts[1:]) < 110_000


@pytest.mark.parametrize(("model", "name"), [("qwen3-8b", "layer_launch_seconds"),
                                             ("qwen3-30b-a3b", "expert_layer_launch_seconds")])  # fmt: skip
def test_a_layer_lasts_as_long_as_the_host_launches_it(model, name):
    sheet, place = load_engine("megatron-core-2025"), Site(H100, 1, 8, 1e9)
    layout = TaskPlan(pool="", engine=sheet.name)
    setting = setting_on(layout, sheet, device_facts(H100), place, "bf16")
    batch = Batch(sequences=1, tokens=16, sequence_tokens=16, head_tokens=0)
    found = pass_seconds(setting, load_model(model), "layer", batch)
    assert found.compute.seconds == pytest.approx(getattr(sheet, name))
