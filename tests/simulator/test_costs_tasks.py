"""Costs of whole tasks: laws that hold for any layout, and magnitudes that practice knows."""

import math
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.estimate import Source
from rlplan.job import Rewards
from rlplan.layout import layers_of_stages
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_engine
from rlplan.simulator.generation.prices import operator_steps, replica_setting_of
from rlplan.simulator.placed import PlacedTask, Site
from rlplan.simulator.stages import task_cost
from rlplan.workload import Empirical, Lognormal, Workload
from tests.effort import calls_of
from tests.simulator.cost_jobs import GRPO, PPO, facts_of, job_of, site_of

JOB = job_of()
FACTS = facts_of(JOB)
UPDATE, VALUES, GENERATE = PPO["actor.update"], PPO["critic.compute_values"], PPO["actor.generate"]
A100_FLOPS_PER_SECOND = 312e12

sizes = st.sampled_from([1, 2, 4, 8])


@st.composite
def layouts(draw, trains=True):
    """Draw a layout of up to 16 GPUs."""
    tp = draw(sizes)
    pp = draw(st.sampled_from([size for size in (1, 2, 4) if tp * size <= 16]))
    dp = draw(st.sampled_from([size for size in (1, 2, 4, 16) if tp * pp * size <= 16]))
    fields = {"micro_batch": draw(sizes)}
    if trains:
        fields["recompute"] = draw(st.sampled_from(["none", "selective", "full"]))
        fields["zero"] = draw(st.sampled_from([0, 1, 2, 3]))
        fields["offload"] = draw(st.booleans())
    return layout(tp=tp, pp=pp, dp=dp, **fields)


def layout(engine="megatron-core", **fields):
    return TaskPlan(pool="p0", engine=engine, **fields)


def cost_of(task, chosen, job=JOB, **fields):
    return task_cost(
        PlacedTask(task, chosen, site_of(job, chosen.gpus), job, facts_of(job)), **fields
    )


def seconds_of(task, chosen, job=JOB, **fields):
    return cost_of(task, chosen, job, **fields).total.seconds


def parts_of(task, chosen, job=JOB):
    return {name: part.seconds for name, part in cost_of(task, chosen, job).parts}


@given(layouts())
def test_parts_sum_to_the_total_and_none_is_negative(chosen):
    cost = cost_of(UPDATE, chosen)
    assert all(part.seconds > 0 for _, part in cost.parts)
    assert sum(part.seconds for _, part in cost.parts) == pytest.approx(cost.total.seconds)
    assert cost.total.source in (Source.FITTED, Source.DATASHEET)


@given(layouts())
def test_full_recomputation_never_takes_less_time(chosen):
    seconds = [
        seconds_of(UPDATE, replace(chosen, recompute=recompute))
        for recompute in ("none", "selective", "full")
    ]
    assert seconds == sorted(seconds)


@given(layouts())
def test_costs_grow_in_proportion_to_epochs(chosen):
    once = parts_of(UPDATE, chosen)
    thrice = parts_of(UPDATE, chosen, job_of(epochs=3))
    fixed = {"call overhead", "optimizer states from host", "optimizer states to host"}
    for name in set(once) - fixed:
        assert thrice[name] == pytest.approx(3 * once[name])
    for name in set(once) & fixed:
        assert thrice[name] == once[name]


@given(layouts())
def test_a_pipeline_of_one_stage_has_no_bubble_and_sends_nothing(chosen):
    parts = parts_of(UPDATE, replace(chosen, pp=1))
    assert "pipeline bubble" not in parts
    assert "pipeline sends" not in parts


@given(layouts(trains=False))
def test_a_forward_pass_takes_less_than_an_update(chosen):
    assert seconds_of(VALUES, chosen) < seconds_of(PPO["critic.update"], chosen)


@given(layouts(trains=False), st.integers(1, 3))
def test_more_prompts_never_take_less_time(chosen, factor):
    more = job_of(prompts=128 * factor)
    assert seconds_of(VALUES, chosen, more) >= seconds_of(VALUES, chosen) * (1 - 1e-9)


def test_the_bubble_is_stages_less_one_over_micro_batches():
    job = job_of(prompts=64, updates=1)
    parts = parts_of(UPDATE, layout(pp=4, micro_batch=4), job)
    work = parts["forward"] + parts["backward"]
    # 16 micro-batches; the last stage bears the head, so the others are a little faster.
    assert parts["pipeline bubble"] / work == pytest.approx(3 / 16, rel=0.1)
    assert parts["pipeline bubble"] / work < 3 / 16


def test_layers_that_do_not_divide_go_to_the_first_stages():
    assert layers_of_stages(32, 4) == (8, 8, 8, 8)
    assert layers_of_stages(10, 4) == (3, 3, 2, 2)


def test_backward_takes_about_twice_the_forward():
    parts = parts_of(UPDATE, layout(tp=4, micro_batch=2))
    assert parts["backward"] / parts["forward"] == pytest.approx(2, rel=0.1)


def test_gradients_hide_behind_the_last_backward_pass_only():
    alone = parts_of(UPDATE, layout(tp=8, dp=2, zero=1))
    assert {"gradient reduction", "weight gathers"} <= set(alone)
    assert "gradient reduction" not in parts_of(UPDATE, layout(tp=8, dp=1, zero=1))
    shared = parts_of(UPDATE, layout("fsdp2", dp=8, zero=3, micro_batch=8))
    work = shared["forward"] + shared["backward"]
    assert shared["weight gathers"] < 0.3 * work


def test_training_llama_2_7b_on_eight_a100_reaches_a_usual_utilisation():
    """MFU of 30 to 60 %, as Korthikanti et al. 2022, Table 5, reports for A100 (larger models: 56 %)."""
    job = job_of(nodes=1, prompts=1024, prompt_tokens=1024, response_tokens=1024, updates=8)
    tokens = 1024 * 2048
    seconds = seconds_of(UPDATE, layout(tp=8, micro_batch=2, recompute="selective"), job)
    utilisation = 6 * 6.74e9 * tokens / (seconds * 8 * A100_FLOPS_PER_SECOND)
    assert 0.30 < utilisation < 0.60


def test_a_decode_step_of_7b_at_batch_1_reads_the_weights_once():
    site = Site("a100-80gb-sxm", 8, 8, 3.125e9)
    placed = PlacedTask(GENERATE, layout("vllm"), site, JOB, FACTS)
    decode = operator_steps(replica_setting_of(placed)).decode
    # 13.2 GB of weights at 2.04 TB/s are 6.5 ms.
    assert 0.008 < decode.at_node(1, 512).seconds < 0.014
    assert decode.at_node(32, 512).seconds < 3 * decode.at_node(1, 512).seconds
    assert decode.at_node(32, 2048).seconds > decode.at_node(32, 512).seconds


def test_generation_takes_its_steps_one_by_one():
    seconds = seconds_of(GENERATE, layout("vllm", tp=2, dp=8))
    # 16 sequences a replica at once: 511 steps of about 10 ms after one prefill.
    assert 511 * 0.005 < seconds < 511 * 0.015


def test_less_cache_never_makes_generation_faster():
    budgets = [0.6e9, 1e9, 4e9, 40e9, None]
    seconds = [
        seconds_of(GENERATE, layout("vllm", tp=2, dp=2), kv_bytes=budget) for budget in budgets
    ]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > 1.5 * seconds[-1]
    assert seconds[-2] == seconds[-1]


def test_the_longest_response_of_all_holds_generation_up():
    uneven = job_of(response_tokens=Lognormal(mean=512, std=400, max=2048))
    chosen = layout("vllm", tp=2, dp=8)
    assert seconds_of(GENERATE, chosen, uneven) > 1.5 * seconds_of(GENERATE, chosen)


def test_what_one_generation_asked_does_not_change_what_another_is_said_to_know():
    chosen = layout("vllm", tp=4, dp=4)
    before = cost_of(GENERATE, chosen)
    cost_of(GENERATE, replace(chosen, max_running=1))
    assert cost_of(GENERATE, chosen) == before


def test_an_offloaded_reference_pays_for_its_way_back():
    task = PPO["reference.compute_log_prob"]
    parts = parts_of(task, layout(tp=8, offload=True))
    # A shard of 1.7 GB over PCIe 4.0 at 32 GB/s.
    assert 0.05 < parts["weights from host"] < 0.1
    assert "weights from host" not in parts_of(task, layout(tp=8))


@pytest.mark.parametrize(("model", "wide"), [("qwen3-30b-a3b", True), ("qwen3-14b", False)])
def test_padded_experts_are_known_worse_than_what_else_is_padded(model, wide):
    """Tokens of padding choose the same experts, which is not counted."""
    job = job_of(model)
    for task in (UPDATE, PPO["reference.compute_log_prob"]):
        spreads = [
            (total := cost_of(task, layout(engine, tp=2, dp=4), job).total).spread_seconds
            / total.seconds
            for engine in ("megatron-core-2025", "megatron-core-2025-padded")
        ]
        assert (spreads[1] > 2 * spreads[0]) == wide


def test_a_reference_of_verl_lies_on_the_host_in_fp32_since_its_configuration_says_so():
    """Up to 0.5 a reference is read in bf16, which are half of the bytes to copy before each gather."""
    task = PPO["reference.compute_log_prob"]
    chosen = layout("fsdp2-hf", dp=16, zero=3, offload=True, micro_batch=8)
    seconds = [
        parts_of(task, chosen, replace(JOB, framework=name))["weights from host"]
        for name in ("verl-fsdp-0.5", "verl-fsdp-0.6", "verl-fsdp")
    ]
    assert seconds[1:] == pytest.approx([2 * seconds[0]] * 2, rel=0.05)


def test_a_reward_model_of_verl_lies_on_the_host_in_bf16_in_every_version():
    """Its worker reads it so, whatever a configuration says of models that are trained (`RewardModelWorker`)."""
    chosen = layout("fsdp2-hf", dp=16, zero=3, offload=True, micro_batch=8)
    task = next(each for each in PPO.values() if each.role == "reward")
    early, late = [
        parts_of(task, chosen, replace(JOB, framework=name))["weights from host"]
        for name in ("verl-fsdp-0.5", "verl-fsdp-0.6")
    ]
    assert late == pytest.approx(early, rel=0.01)


@pytest.mark.parametrize(
    ("limit_seconds", "each_seconds"), [(None, 0.01), (0.5, 0.01), (0.002, 0.002)]
)
def test_a_rule_shares_its_samples_out_over_its_workers(limit_seconds, each_seconds):
    """Each call takes no longer than the limit that ends it."""
    job = replace(
        job_of(algorithm="grpo", prompts=16, samples_per_prompt=4),
        rewards=Rewards(
            function="exact_match",
            function_seconds_per_sample=0.01,
            limit_seconds=limit_seconds,
        ),
    )
    task = GRPO["rule.compute_reward"]
    site = Site("host", 8, 8, 1e9)
    cost = task_cost(PlacedTask(task, TaskPlan(pool="cpu"), site, job, facts_of(job)))
    assert dict(cost.parts)["reward function"].seconds == pytest.approx(8 * each_seconds)


def test_fully_sharded_inference_gathers_weights_for_every_micro_batch():
    chosen = layout("fsdp2", dp=8, micro_batch=4)
    assert "weight gathers" not in parts_of(VALUES, chosen)
    assert parts_of(VALUES, replace(chosen, zero=3))["weight gathers"] > 0


def test_a_layout_like_one_that_is_known_is_a_small_effort():
    chosen = [
        layout(tp=tp, dp=8 // tp, micro_batch=size) for tp in (1, 2, 4, 8) for size in (1, 2, 4)
    ]
    for each in chosen:
        cost_of(UPDATE, each)
    for each in chosen:
        assert calls_of(partial(cost_of, UPDATE, replace(each, zero=1))) < 1_500


def test_what_a_pool_is_called_changes_no_cost_and_is_not_asked_again():
    one = layout(tp=4, dp=4)
    cost, other = cost_of(UPDATE, one), replace(one, pool=f"not {one.pool}")
    assert cost_of(UPDATE, other) == cost
    assert calls_of(partial(cost_of, UPDATE, replace(one, pool="yet another"))) < 200


def test_a_trace_of_thousands_of_lengths_costs_no_more():
    chosen = layout(tp=4, dp=4)
    efforts = []
    for most in (10, 20_000):
        lengths = Empirical(values=tuple(range(1, most)))
        work = Workload(prompts=128, prompt_tokens=512, response_tokens=lengths)
        job = replace(JOB, workload=work)
        cost = partial(task_cost, PlacedTask(UPDATE, chosen, site_of(job, 16), job, FACTS))
        cost()
        efforts.append(calls_of(cost))
    assert efforts[1] <= 1.1 * efforts[0]


def test_what_waits_for_the_host_is_in_the_interval_of_generation():
    """Eager steps of few sequences wait for it, which is known to a half beside what is known of the engine."""
    chosen = layout("vllm-0.11-eager", tp=1, dp=8, max_running=1)
    decode = dict(cost_of(GENERATE, chosen).parts)["decode"]
    sheet = load_engine("vllm-0.11-eager")
    known, host = sheet.forecast_spread, sheet.steps.host_spread
    assert known < decode.spread_seconds / decode.seconds <= math.hypot(known, host)
