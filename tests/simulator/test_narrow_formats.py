"""Narrow number formats: what is quantised, what keeps a wide one, and what moves."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import FileError
from rlplan.files.decoding import decode
from rlplan.job import Job, NodeGroup
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_model, resolve_job
from rlplan.simulator.costs.layouts import passes_cost
from rlplan.simulator.costs.syncs import moved_bytes, transition_cost
from rlplan.simulator.memory.task_memory import QUANTISED
from rlplan.simulator.memory.transition_memory import extra_weight_bytes
from rlplan.simulator.model import largest_shard_bytes
from rlplan.simulator.placed import PlacedTask, site_at
from rlplan.simulator.stages import task_cost, task_memory
from tests.simulator.cost_jobs import PPO, facts_of, job_of
from tests.simulator.placing import transition

H100 = "h100-80gb-sxm"
WIDE = replace(
    job_of("llama-3.1-8b", nodes=1),
    cluster=(NodeGroup(gpu=H100, gpus_per_node=8, nodes=1, inter_node_gbps=3200),),
)
ENDS = 2 * 128_256 * 4096 + 4096
LAYERS = 8_030_261_248 - ENDS


def narrow(**fields):
    return replace(WIDE, **({"rollout_precision": "fp8"} | fields))


def placed(job, task="actor.generate", engine="vllm", **sizes):
    layout = TaskPlan(pool="p0", engine=engine, **({"dp": 8} | sizes))
    return PlacedTask(PPO[task], layout, site_at(job, H100, 0, 8), job, facts_of(job))


def moved(job, name="two-copies", tp=1):
    train = TaskPlan(pool="p0", engine="megatron-core", dp=8 // tp, tp=tp)
    generate = TaskPlan(pool="p0", engine="vllm", dp=8)
    sites = site_at(job, H100, 0, 8), job, facts_of(job)
    target = sites[0] if name == "two-copies" else None
    return transition(name, train, generate, *sites, target=target)


@pytest.mark.parametrize(("precision", "scales"), [("fp8", 128 * 128 // 4), ("mxfp8", 32)])
def test_weights_that_generate_are_quantised_but_for_both_ends(precision, scales):
    model = load_model("llama-3.1-8b")
    assert largest_shard_bytes(model, "bf16") == 2 * 8_030_261_248
    found = largest_shard_bytes(model, precision)
    assert found == pytest.approx(LAYERS * (1 + 1 / scales) + 2 * ENDS, rel=1e-6)


def test_four_bits_take_half_a_byte_and_a_scale_for_every_sixteen():
    model = load_model("llama-3.1-8b")
    found = largest_shard_bytes(model, "nvfp4")
    assert found == pytest.approx(LAYERS * (1 / 2 + 1 / 16) + 2 * ENDS, rel=1e-6)


@pytest.mark.parametrize(("precision", "scale"), [("mxfp4", 1 / 32), ("int4", 2 / 32)])
def test_weights_alone_of_four_bits_are_multiplied_in_sixteen(precision, scale):
    model = load_model("llama-3.1-8b")
    found = largest_shard_bytes(model, precision)
    assert found == pytest.approx(LAYERS * (1 / 2 + scale) + 2 * ENDS, rel=1e-6)
    # H100 has no rate of four bits: products are those of bf16, whose weights are read in fewer bytes.
    seconds, eight, wide = (
        task_cost(placed(replace(WIDE, rollout_precision=each))).total.seconds
        for each in (precision, "fp8", None)
    )
    assert 0.4 * wide < seconds < wide
    assert seconds != eight


def test_nothing_is_trained_in_a_format_of_weights_alone():
    with pytest.raises(FileError, match="in which nothing is trained"):
        resolve_job(replace(WIDE, precision="mxfp4"), Path(), file="job.yaml")


def test_states_of_training_keep_their_formats():
    ours, theirs = (
        task_memory(placed(each, "actor.update", "megatron-core", tp=8, dp=1))
        for each in (replace(WIDE, precision="fp8"), WIDE)
    )
    assert ours.resident == theirs.resident
    copies = dict(ours.transient)
    layers = theirs.resident["actor weights"] // 2 - 2 * 128_256 * 4096 // 8 - 4096
    assert copies.pop(QUANTISED) == 2 * layers  # as they are, and transposed
    assert copies == theirs.transient


def test_the_cache_has_a_format_of_its_own():
    assert placed(narrow()).cached_sequence == placed(WIDE).cached_sequence
    half = placed(narrow(kv_cache="fp8"))
    assert 2 * half.block_bytes == placed(WIDE).block_bytes


def test_narrow_weights_and_a_narrow_cache_each_shorten_generation():
    jobs = (WIDE, narrow(), narrow(kv_cache="fp8"))
    seconds = [task_cost(placed(each)).total.seconds for each in jobs]
    assert seconds[2] < seconds[1] < 0.9 * seconds[0]


def test_narrow_products_are_faster_but_for_attention_head_and_casts():
    ours, theirs = (
        dict(passes_cost(placed(each, "actor.update", "megatron-core", micro_batch=8)).parts)
        for each in (replace(WIDE, precision="fp8"), WIDE)
    )
    for part in ("forward", "backward"):
        assert 0.5 < ours[part].seconds / theirs[part].seconds < 0.9
    assert ours["optimizer"] == theirs["optimizer"]


def test_an_engine_whose_rates_are_of_fp8_has_them_whatever_the_job_says():
    ours, theirs = (
        passes_cost(placed(each, "actor.update", "fsdp2-float8", zero=3))
        for each in (replace(WIDE, precision="fp8"), WIDE)
    )
    assert ours == theirs


def test_weights_move_narrow_where_the_sender_quantises():
    at_sender, at_receiver = (moved(narrow(quantised_at=end)) for end in ("sender", "receiver"))
    assert moved_bytes(at_receiver) == moved_bytes(moved(WIDE)) == 2 * 8_030_261_248
    assert moved_bytes(at_sender) < 0.6 * moved_bytes(at_receiver)
    seconds = [transition_cost(each).total.seconds for each in (at_sender, at_receiver)]
    assert seconds[0] < seconds[1]
    assert "quantisation" in dict(transition_cost(at_sender).parts)


def test_quantised_weights_are_no_part_of_those_that_are_trained():
    quantised = moved(narrow(), "none")
    assert extra_weight_bytes(moved(WIDE, "none")) == 0
    assert extra_weight_bytes(quantised) == quantised.generate.weight_bytes
    assert transition_cost(quantised).total.seconds > 0


@pytest.mark.parametrize("field", ["precision", "rollout_precision"])
def test_a_device_without_the_format_is_refused_and_those_that_have_it_are_named(tmp_path, field):
    data = {
        "algorithm": "ppo",
        "models": dict.fromkeys(("actor", "critic", "reference", "reward"), "tiny"),
        "workload": {"prompts": 8, "prompt_tokens": 8, "response_tokens": 8},
        "cluster": [{"gpu": "a100-80gb-sxm", "gpus_per_node": 1}],
        field: "fp8",
    }
    with pytest.raises(FileError, match=rf"{field}: .*a100-80gb-sxm has no rate .*{H100}.*l40s"):
        resolve_job(decode(Job, data, "job.yaml"), tmp_path, file="job.yaml")
