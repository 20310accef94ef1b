"""Sheets of today's engines: what differs from version to version costs what it should."""

from dataclasses import replace

import pytest

from rlplan.algorithms import load_algorithm
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup
from rlplan.models import Adapter
from rlplan.parts import experts
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.profiles.facts import load_facts
from rlplan.profiles.sheets import ENGINES
from rlplan.simulator.generation.generating import clock_of, limits_of, replica_of, steps_in
from rlplan.simulator.generation.playing import generate
from rlplan.simulator.model import capturing
from rlplan.simulator.placed import PlacedTask, site_at
from rlplan.simulator.stages import task_cost
from rlplan.workload import Lognormal, Workload
from tests.simulator.cost_jobs import PPO, job_of, site_of
from tests.simulator.placing import replica_setting

H100 = "h100-80gb-sxm"
TODAY = [
    name
    for name in ENGINES
    if name.startswith(("vllm-0.6", "vllm-0.8", "vllm-0.1", "sglang"))
    if load_engine(name).batching != "static"
]


def clock(engine, model="llama-3.1-8b", tp=1):
    """Return the clock of one replica on H100."""
    sheet = load_engine(engine) if isinstance(engine, str) else engine
    return clock_of(steps_in(replica_setting(load_model(model), sheet, H100, tp=tp)))


def test_a_variant_has_what_its_base_has_but_for_what_it_says():
    base, variant = load_engine("vllm-0.15"), load_engine("vllm-0.11")
    # What 0.14 changed, how fast the versions read a cache in 8 bits, their all-reduces, and experts without tuned tiles.
    narrow = {
        name: getattr(variant.steps, name)
        for name in ("narrow_cache_rates", "narrow_cache_seconds", "all_reduces", "experts")
    }
    assert replace(base.steps, host_overlap=False, **narrow) == variant.steps
    assert base.steps.narrow_cache_rates != variant.steps.narrow_cache_rates
    assert base.kv_block_tokens == load_engine("vllm").kv_block_tokens
    assert load_engine("sglang-0.5").kv_block_tokens == 1


@pytest.mark.parametrize(("tp", "ahead"), [(1, True), (2, False)])
def test_replicas_of_several_gpus_that_ray_starts_prepare_no_step_ahead(tp, ahead):
    by_ray, sheet = clock("vllm-0.15-ray", tp=tp).decode(128, 1000), load_engine("vllm-0.15")
    twin = replace(sheet, steps=replace(sheet.steps, host_overlap=ahead))
    assert by_ray == clock(twin, tp=tp).decode(128, 1000)
    assert clock("vllm-0.15", tp=tp).decode(128, 1000) < clock("vllm-0.11", tp=tp).decode(128, 1000)


@pytest.mark.parametrize("version", ["0.6", "0.8", "0.11", "0.15"])
def test_eager_steps_are_slower_and_the_more_so_the_fewer_sequences(version):
    graphs, eager = clock(f"vllm-{version}"), clock(f"vllm-{version}-eager")
    few = eager.decode(8, 300) / graphs.decode(8, 300)
    many = eager.decode(256, 2000) / graphs.decode(256, 2000)
    assert few > many > 0.98
    assert few > 1.15


def test_steps_of_more_tokens_than_graphs_hold_are_launched():
    sheet = load_engine("vllm-0.11")
    short = replace(sheet, steps=replace(sheet.steps, captured_tokens=64))
    assert clock(short).decode(64, 100) == clock(sheet).decode(64, 100)
    # A model of many short layers, so that launching takes longer than computing.
    small = "qwen3-0.6b"
    assert clock(short, small).decode(65, 100) > clock(sheet, small).decode(65, 100)


def test_steps_with_prompts_are_launched_where_graphs_hold_decode_steps_alone():
    # 48 layers with experts at 0.93 ms, 36 without at 0.275; 64 tokens of a prompt take less to compute.
    experts, dense = "qwen3-30b-a3b", "qwen3-8b"
    assert clock("sglang-0.5", experts).prefill(1, 64) == pytest.approx(48 * 9.3e-4, rel=0.01)
    assert clock("sglang-0.5", dense).prefill(1, 64) == pytest.approx(36 * 2.75e-4, rel=0.05)
    assert clock("sglang-0.5", experts).decode(64, 100) < 0.03
    assert clock("vllm-0.15", experts).prefill(1, 64) < 0.03


def test_prompts_of_the_second_engine_hold_up_what_decodes():
    prompts, responses = (200,) * 40, tuple(range(100, 500, 10))

    def seconds(engine):
        steps = steps_in(replica_setting(load_model("qwen3-30b-a3b"), engine, H100))
        replica = replica_of(clock_of(steps), limits_of(engine, 8, 100_000))
        return generate(replica, prompts, responses).seconds

    sheet = load_engine("sglang-0.5")
    assert sheet.batching == "continuous"
    # The 32 prompts that come one by one, each for as long as it is launched, less what steps that decode besides would add.
    apart, beside = seconds(sheet), seconds(replace(sheet, batching="mixed"))
    assert 32 * 0.004 < apart - beside < 32 * 48 * 1.6e-3


@pytest.mark.parametrize(("model", "spread"), [("qwen3-30b-a3b", 0.26), ("qwen3-8b", 0.15)])
def test_forecasts_of_experts_have_a_spread_of_their_own(model, spread):
    sheet = load_engine("sglang-0.5")
    assert sheet.generation_spread(load_model(model), "hopper") == spread
    assert load_engine("vllm-0.15").generation_spread(load_model(model), "hopper") == 0.15


@pytest.mark.parametrize(("model", "spread"), [("qwen3-30b-a3b", 1.4), ("qwen3-8b", 0.15)])
def test_nobody_knows_experts_well_where_no_kernel_of_theirs_was_measured(model, spread):
    for engine in ("sglang-0.5.6", "vllm-0.15-server"):
        assert load_engine(engine).generation_spread(load_model(model), "cdna3") == spread
    first = load_engine("vllm-0.6").generation_spread(load_model(model), "cdna4")
    assert first == max(spread, 0.2)


def test_each_version_of_the_second_engine_is_no_slower_than_the_one_before():
    for running in (16, 256):
        times = [clock(f"vllm-{name}").decode(running, 1000) for name in ("0.8", "0.11", "0.15")]
        assert times == sorted(times, reverse=True)


def test_a_llama_of_8b_decodes_as_was_measured():
    # vLLM pull request 10058 (November 2024), one H100, 8 prompts of 32 tokens and 128 each: V0 with graphs
    # 0.99 s and without 1.10 s, V1 with piecewise graphs 1.04 s and without 1.26 s.
    for engine, seconds in (
        ("vllm-0.6", 0.99),
        ("vllm-0.8", 1.04),
        ("vllm-0.8-eager", 1.26),
    ):
        assert 128 * clock(engine).decode(8, 96) == pytest.approx(seconds, rel=0.15)


def floor(engine, model, tokens):
    replica = replica_setting(load_model(model), load_engine(engine), H100, tp=8)
    return steps_in(replica).floor_seconds(tokens, prompts=True)


@pytest.mark.parametrize(
    ("model", "tokens", "held"),
    [
        ("minimax-m2.5", 610, True),
        ("minimax-m2.5", 8193, False),  # more than SGLang computes of prompts at a time
        ("deepseek-v3", 2048, True),
        ("deepseek-v3", 2049, False),
        ("qwen3-next-80b-a3b", 610, False),  # linear attention in three layers of four
        ("qwen3-vl-30b-a3b", 610, False),  # images
    ],
)
def test_graphs_hold_the_pieces_of_prompts_from_sglang_0_5_10_on(model, tokens, held):
    launched, pieces = (
        floor(engine, model, tokens) for engine in ("sglang-0.5.6", "sglang-0.5.10")
    )
    assert pieces > 0
    assert pieces < launched / 20 if held else pieces == launched


def test_neither_pipelines_nor_adapters_nor_exchanging_experts_have_graphs_of_prompts():
    replica = replica_setting(load_model("minimax-m2.5"), load_engine("sglang-0.5.10"), H100, tp=8)
    setting = replica.setting
    exchanging = replace(setting.shard, ep=8, sums_experts=False)
    summing = replace(setting.shard, ep=8, sums_experts=True)
    for changes, held in (
        ({"pp": 2}, 0),
        ({"adapter": Adapter(rank=16)}, 0),
        ({"shard": exchanging}, 0),
        ({"shard": summing}, 8192),
    ):
        changed = replace(replica, setting=replace(setting, **changes))
        assert steps_in(changed).prompt_captured_tokens == held


@pytest.mark.parametrize("name", ["vllm-0.11", "sglang-0.5"])
def test_a_prompt_of_many_samples_is_computed_once(name):
    sheet = load_engine(name)
    prompts, responses = [2000] * 64, [64] * 64
    times = []
    for samples in (1, 8):
        limits = limits_of(sheet, 64, 100_000, samples_per_prompt=samples)
        times.append(generate(replica_of(clock(sheet), limits), prompts, responses).seconds)
    alone, shared = times
    assert shared < 0.7 * alone


@pytest.mark.parametrize("name", TODAY)
def test_a_larger_vocabulary_takes_longer_to_sample_from(name):
    model = load_model("llama-3.1-8b")
    steps = [
        steps_in(replica_setting(replace(model, vocab_size=size), load_engine(name), H100, tp=1))
        for size in (32_000, 128_000)
    ]
    small, large = (each.head(256).seconds for each in steps)
    assert large > 2 * small


def test_rates_of_kernels_may_differ_from_device_to_device():
    sheet = load_engine("fsdp2-hf")
    assert sheet.kernels_of(load_device("a100-80gb-sxm")) is sheet.kernels
    assert sheet.kernels_of(load_device(H100)).gemm_rate == 0.8
    assert sheet.kernels_of(load_device("h20")) == sheet.kernels_of(load_device("h20-3e"))
    assert sheet.kernels_of(load_device("h20")).gemm_rate == 1
    assert load_engine("fsdp2").kernels_of(load_device(H100)) is load_engine("fsdp2").kernels


@pytest.mark.parametrize(
    "engine",
    [
        "fsdp2-hf",
        "ddp-hf",
        "deepspeed-hf",
        "deepspeed-2025",
        "megatron-core-2025-flash",
        "prime-rl-flash-2",
    ],
)
def test_flash_attention_2_is_as_slow_on_blackwell_under_whatever_trainer(engine):
    """Dao-AILab/flash-attention issue 1589, tritonbench pull request 171: 366 and 334 of 1,238 and 945 TFLOP/s."""
    kernels = load_engine(engine).kernels_of(load_device("b200"))
    rates = (kernels.attention_rate, kernels.attention_backward_rate)
    assert rates == pytest.approx((366 / 1238, 334 / 945), abs=0.001)


@pytest.mark.parametrize("engine", ["deepspeed-hf", "deepspeed-2025", "megatron-core-2025-flash"])
@pytest.mark.parametrize("device", ["h100-80gb-sxm", "h200", "h20"])
def test_flash_attention_2_is_as_slow_on_hopper_under_whatever_trainer(engine, device):
    """Its kernel is that of fully sharded trainers: OpenRLHF asks for `flash_attention_2`, and installs 2.8.3."""
    rates, same = (
        load_engine(name).kernels_of(load_device(device)) for name in (engine, "fsdp2-hf")
    )
    for name in ("attention_rate", "attention_backward_rate", "attention_half_tokens"):
        assert getattr(rates, name) == getattr(same, name)


def test_ranks_that_gather_weights_wait_in_every_micro_batch_of_few_sequences():
    job = job_of(prompts=1024, response_tokens=Lognormal(mean=512, std=400, max=2048))
    uneven = {}
    for sequences, budget in ((2, None), (8, None), (8, 8192)):
        chosen = TaskPlan(
            pool="p0", dp=16, engine="fsdp2-hf", zero=3, micro_batch=sequences, token_budget=budget
        )
        task = PlacedTask(PPO["actor.update"], chosen, site_of(job, 16), job, load_facts(job))
        parts = dict(task_cost(task).parts)
        work = parts["forward"].seconds + parts["backward"].seconds
        uneven[sequences, budget] = parts["uneven lengths"].seconds / work
    # The largest of 16 normal draws lies 1.77 above the mean (Blom 1958); lengths spread by 0.35 of theirs.
    assert uneven[2, None] == pytest.approx(1.77 * 0.35 / 2**0.5, rel=0.1)
    assert uneven[2, None] == pytest.approx(2 * uneven[8, None], rel=0.02)
    assert uneven[8, 8192] < uneven[8, None]


@pytest.mark.parametrize(
    ("model", "tp", "ep", "running", "cached", "milliseconds"),
    [
        ("llama-3.1-8b", 1, 1, 8, 589, 7.32),
        ("qwen3-32b", 2, 1, 32, 842, 17.91),
        ("llama-3.1-70b", 4, 1, 64, 552, 22.43),
        ("qwen3-30b-a3b", 1, 1, 16, 1125, 17.55),
        ("qwen3-30b-a3b", 1, 1, 64, 1119, 28.94),
        ("qwen3-30b-a3b", 2, 2, 16, 6213, 11.97),
        ("qwen3-235b-a22b", 8, 8, 16, 7149, 24.88),
    ],
)
def test_decode_steps_take_what_was_published(model, tp, ep, running, cached, milliseconds):
    # ML.ENERGY benchmark (ml-energy/leaderboard at 0cd52dab, February 2026), H100, vLLM 0.11.1 with asynchronous
    # scheduling: median time between tokens. Its runs sort the vocabulary for top-p, which is not forecast.
    setting = replica_setting(load_model(model), load_engine("vllm-0.15"), H100, tp=tp)
    shard = replace(setting.setting.shard, ep=ep, expert_tp=1 if ep > 1 else 0)
    setting = replace(setting, setting=replace(setting.setting, shard=shard))
    seconds = clock_of(steps_in(setting)).decode(running, cached)
    assert seconds == pytest.approx(milliseconds / 1000, rel=0.18)


def test_a_mixture_trains_as_was_published(monkeypatch):
    # NeMo AutoModel, docs/performance-summary (H100, 16 bits): Qwen3-30B-A3B on 8 GPUs, expert parallelism over
    # all, 512 sequences of 4096 tokens, 4 at a time, routers made to choose evenly: 12,040 tokens/s/GPU.
    monkeypatch.setattr(experts, "POPULARITY_SPREAD", 1e-6)
    model = load_model("qwen3-30b-a3b")
    job = Job(
        algorithm="grpo",
        models=FrozenDict(dict.fromkeys(("actor", "reference"), model)),
        workload=Workload(prompts=512, prompt_tokens=2048, response_tokens=2048),
        cluster=(NodeGroup(gpu=H100, gpus_per_node=8, inter_node_gbps=3200.0),),
        precision="bf16",
    )
    chosen = TaskPlan(pool="p0", dp=8, ep=8, engine="megatron-core-2025", zero=1, micro_batch=4)
    update = next(task for task in load_algorithm("grpo").tasks if task.name == "actor.update")
    site = site_at(job, H100, 0, 8)
    assert site is not None
    seconds = task_cost(PlacedTask(update, chosen, site, job, load_facts(job))).total.seconds
    assert 512 * 4096 / 8 / seconds == pytest.approx(12_040, rel=0.1)


def test_a_job_says_up_to_how_many_sequences_graphs_hold():
    sheet, small = load_engine("sglang-0.5"), "qwen3-0.6b"
    few, none = capturing(sheet, 8), capturing(sheet, 0)
    assert clock(few, small).decode(8, 100) == clock(sheet, small).decode(8, 100)
    assert clock(few, small).decode(9, 100) > clock(sheet, small).decode(9, 100)
    assert clock(none, small).decode(8, 100) > clock(sheet, small).decode(8, 100)
