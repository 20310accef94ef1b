"""What engines' kernels take for latent attention to the tokens that an index chose."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.files.frozen import FrozenDict
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.profiles.facts import DeviceFacts
from rlplan.simulator.costs.setting import setting_on
from rlplan.simulator.generation.prices import ReplicaSetting, engine_steps
from rlplan.simulator.placed import Site

LAYERS = 61  # of DeepSeek-V3.2
UNKNOWN = FrozenDict()


def steps_of(engine="vllm-0.15", model="deepseek-v3.2", device="h200", tp=8, **changes):
    sheet = load_engine(engine)
    sheet = replace(sheet, steps=replace(sheet.steps, **changes))
    setting = setting_on(
        TaskPlan(pool="", tp=tp, engine=engine),
        sheet,
        DeviceFacts(load_device(device)),
        Site(device, tp, 8, 5e10),
        "fp8",
        cache_value_bytes=2,
    )
    return engine_steps(ReplicaSetting(load_model(model), sheet, setting))


def test_a_prompt_takes_its_queries_what_they_attend_to_and_the_scores_of_all_before_them():
    # 4,096 queries of 16 heads; the first 2,048 see all before them and themselves, the others 2,048 tokens each.
    chosen = 2048 * 2049 // 2 + 2048 * 2048
    scored = 4096 * 4097 // 2 * 64
    layer = 4096 * (8.0e-8 + 1.48e-7 + 16 * 2.0e-9) + chosen * 2.02e-10 + scored * 2.78e-13
    assert layer == pytest.approx(2.485e-3, rel=1e-3)
    assert steps_of().prefill_attention(1, 0, 4096).seconds == pytest.approx(LAYERS * layer)
    # NVIDIA's table has 3.16 ms for the whole module with its products.
    assert steps_of().prefill_attention(3, 0, 4096).seconds == pytest.approx(3 * LAYERS * layer)


@given(cut=st.integers(1, 8191))
def test_a_prompt_in_two_chunks_takes_what_it_takes_whole(cut):
    steps = steps_of()
    first, rest = steps.prefill_attention(1, 0, cut), steps.prefill_attention(1, cut, 8192 - cut)
    whole = steps.prefill_attention(1, 0, 8192).seconds
    assert first.seconds + rest.seconds == pytest.approx(whole)


@pytest.mark.parametrize(("device", "block"), [("h200", 64), ("b200", 128)])
def test_fewer_heads_than_a_block_attend_no_faster(device, block):
    few, many = (
        steps_of(device=device, tp=tp, sparse=copied(device, head_seconds=0.0))
        for tp in (8, 128 // block)
    )
    assert few.prefill_attention(1, 0, 8192) == many.prefill_attention(1, 0, 8192)


@pytest.mark.parametrize("engine", ["vllm-0.15", "sglang-0.5"])
@pytest.mark.parametrize("tp", [1, 8])
def test_no_product_of_a_prompt_is_faster_than_a_device_s_peak(engine, tp):
    """A chosen token takes 2 (576 + 512) flops a head; H20 has a seventh of the peak of H200, where kernels were measured."""
    tokens, heads = 8192, max(64, 128 // tp)
    chosen = LAYERS * (2048 * 2049 // 2 + (tokens - 2048) * 2048) * heads * 2 * (576 + 512)
    for device in ("h20", "h100-80gb-sxm", "h200"):
        peak = load_device(device).peak_flops_per_second["bf16"]
        seconds = steps_of(engine, device=device, tp=tp).prefill_attention(1, 0, tokens).seconds
        assert seconds > chosen / peak
    least, same = (steps_of(engine, device=each, tp=tp) for each in ("h200", "h100-80gb-sxm"))
    assert least.prefill_attention(1, 0, tokens) == same.prefill_attention(1, 0, tokens)


@pytest.mark.parametrize("device", ["h20", "h200", "b200"])
def test_prompts_just_longer_than_those_that_attend_to_everything_take_no_less(device):
    steps = steps_of("sglang-0.5", device=device, tp=1)
    short, longer = (steps.prefill_attention(1, 0, tokens).seconds for tokens in (2048, 2049))
    assert longer > short


def copied(device, **changes):
    architecture = load_device(device).architecture
    kernels = load_engine("vllm-0.15").steps.sparse[architecture]
    return FrozenDict({architecture: replace(kernels, **changes)})


def test_sglang_attends_to_everything_in_prompts_no_longer_than_what_is_chosen():
    steps, without = steps_of("sglang-0.5"), steps_of("sglang-0.5", sparse=UNKNOWN)
    assert steps.prefill_attention(4, 0, 2048) == without.prefill_attention(4, 0, 2048)
    assert steps.prefill_attention(4, 1, 2048) != without.prefill_attention(4, 1, 2048)
    vllm = steps_of().prefill_attention(4, 0, 2048).seconds
    assert vllm > 3 * steps.prefill_attention(4, 0, 2048).seconds


def test_layers_that_are_handed_a_choice_have_no_index():
    steps = steps_of(model="glm-5.2")
    indexed, handed = sorted(
        (kind for kind, _ in steps.attending_layers), key=lambda kind: kind.attention, reverse=True
    )
    own, other = (steps.latent.prompts(kind, 1, 8192, 0) for kind in (indexed, handed))
    scored = 8192 * 8193 // 2 * 32
    assert own.seconds - other.seconds == pytest.approx(8192 * 1.48e-7 + scored * 2.78e-13)
    beside = (steps.latent.beside_reading(kind, 64, 4096, 1.0) for kind in (indexed, handed))
    assert next(beside) - next(beside) == pytest.approx(4.6e-5)


def test_a_lone_sequence_s_tokens_are_attended_to_one_after_another():
    steps, without = steps_of(), steps_of(sparse=UNKNOWN)
    known, unknown = (each.decode_attention(1, 2048).seconds for each in (steps, without))
    reading = 2048 * (128 + 576) * 2 / (4.8e12 * 0.852)
    layer = 4.6e-5 + 1.0e-7 + (2048 * 4.8e-8 - reading)
    assert known - unknown == pytest.approx(LAYERS * layer, rel=1e-3)
    # 256 sequences read longer than that.
    many, bare = (each.decode_attention(256, 2048).seconds for each in (steps, without))
    assert many - bare == pytest.approx(LAYERS * (4.6e-5 + 256 * 1.0e-7), rel=1e-3)


@given(running=st.integers(1, 512), cached=st.integers(1, 100_000), more=st.integers(1, 1000))
def test_more_cached_tokens_make_no_step_shorter(running, cached, more):
    steps = steps_of()
    less = steps.decode_attention(running, cached).seconds
    assert steps.decode_attention(running, cached + more).seconds >= less * (1 - 1e-9)


def test_other_attention_and_other_devices_are_as_they_were():
    for steps, without in (
        (steps_of(model="deepseek-v3"), steps_of(model="deepseek-v3", sparse=UNKNOWN)),
        (steps_of(device="a100-80gb-sxm"), steps_of(device="a100-80gb-sxm", sparse=UNKNOWN)),
    ):
        assert steps.prefill_attention(2, 0, 4096) == without.prefill_attention(2, 0, 4096)
        assert steps.decode_attention(2, 4096) == without.decode_attention(2, 4096)
