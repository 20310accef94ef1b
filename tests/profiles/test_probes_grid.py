"""The grid of passes holds what plans of a job are made of, and nothing that cannot run."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup
from rlplan.profiles.probes import load_probe
from rlplan.profiles.probes.bench.contract import Settings
from rlplan.profiles.probes.bench.processes import group_sizes
from rlplan.profiles.probes.bench.shapes import (
    geometric,
    layer_matrices,
    prompt_tokens,
    sequence_tokens,
    tensor_parallel_sizes,
)
from rlplan.profiles.probes.model_pass import passes_of
from rlplan.profiles.sheets import load_model
from rlplan.profiles.tables.table import model_pass_keys
from rlplan.workload import Empirical, Lognormal, Uniform, Workload

TINY = load_model("tiny")


def settings_for(devices, **changes):
    return Settings(
        **{
            "kind": "cpu",
            "devices": devices,
            "precision": "fp32",
            "memory_bytes": 2**32,
            "passes": True,
            **changes,
        }
    )


def job_of(models, algorithm="ppo", **workload):
    chosen = {"prompts": 32, "prompt_tokens": 16, "response_tokens": 16, "updates": 2, **workload}
    return Job(
        algorithm=algorithm,
        models=FrozenDict(models),
        workload=Workload(**chosen),
        cluster=(NodeGroup(gpu="cpu", gpus_per_node=2, inter_node_gbps=200.0),),
    )


PPO = job_of(dict.fromkeys(("actor", "critic", "reference", "reward"), TINY))


def of(passes, **wanted):
    return [
        each
        for each in passes
        if all(getattr(each, field) == value for field, value in wanted.items())
    ]


def test_four_roles_of_one_architecture_are_measured_with_two_heads():
    passes = passes_of(PPO, settings_for(2))
    assert {(each.name, each.head) for each in passes} == {
        ("infer", "lm"),
        ("train", "lm"),
        ("prefill", "lm"),
        ("decode", "lm"),
        ("prefill_uneven", "lm"),
        ("decode_uneven", "lm"),
        ("weight_sync", "lm"),
        ("optimizer", "lm"),
        ("gradient_reduction", "lm"),
        ("experience", "lm"),
        ("infer", "scalar"),
        ("train", "scalar"),
        ("optimizer", "scalar"),
        ("gradient_reduction", "scalar"),
        ("experience", "scalar"),
    }


def test_experience_is_made_of_what_a_rank_has_of_whole_mini_batches():
    job = job_of(PPO.models, prompts=12, updates=3)
    made = of(passes_of(job, settings_for(4)), name="experience", head="lm", tp=1)
    # Four ranks would have three rows each, one of every mini-batch; eight would cut rows.
    assert [(each.dp, each.sequences) for each in made] == [(1, 12), (2, 6), (4, 3)]
    uneven = job_of(PPO.models, prompts=12, updates=4)
    made = of(passes_of(uneven, settings_for(4)), name="experience", head="lm", tp=1)
    assert [(each.dp, each.sequences) for each in made] == [(1, 12)]


def test_micro_batches_are_powers_of_two_up_to_the_mini_batch_of_one_rank():
    passes = passes_of(PPO, settings_for(2))
    train = of(passes, name="train", head="lm", tp=1, dp=1)
    assert [each.sequences for each in train] == [1, 2, 4, 8, 16]
    train = of(passes, name="train", head="lm", tp=1, dp=2)
    assert [each.sequences for each in train] == [1, 2, 4, 8]
    infer = of(passes, name="infer", head="lm", tp=2)
    assert [each.sequences for each in infer] == [1, 2, 4, 8, 16, 32]


def test_a_mini_batch_that_is_no_power_of_two_is_measured_itself():
    passes = passes_of(job_of(PPO.models, prompts=24, updates=1), settings_for(1))
    assert [each.sequences for each in of(passes, name="train", head="lm")] == [1, 2, 4, 8, 16, 24]


def test_decode_is_measured_at_exactly_the_batches_that_replicas_get():
    passes = passes_of(job_of(PPO.models, prompts=50), settings_for(4))
    batches = {each.sequences for each in of(passes, name="decode", tp=1)}
    assert {50, 25, 13} <= batches
    assert {each.sequences for each in of(passes, name="prefill", tp=1)} == batches


def test_rows_that_are_not_all_as_long_are_measured_of_one_replica():
    job = job_of(PPO.models, prompts=50, prompt_tokens=8, response_tokens=8)
    whole, quick = (passes_of(job, settings_for(2, quick=each)) for each in (False, True))
    for name in ("prefill_uneven", "decode_uneven"):
        every = of(whole, name=name, tp=1)
        assert {each.dp for each in every} == {1}
        assert {each.sequences for each in every} == {4, 8, 16, 25, 32, 50}
        assert {each.tokens for each in every} == {8, 12, 16}
        assert {each.tokens for each in of(quick, name=name)} == {8, 16}


def test_no_batch_is_larger_than_a_plan_runs_at_a_time():
    passes = passes_of(job_of(PPO.models, prompts=1024), settings_for(2))
    assert max(each.sequences for each in of(passes, name="decode")) == 256


def test_lengths_are_shortest_mean_and_longest():
    job = job_of(
        PPO.models, prompt_tokens=Uniform(low=8, high=16), response_tokens=Uniform(low=2, high=20)
    )
    passes = passes_of(job, settings_for(1))
    assert {each.tokens for each in of(passes, name="infer")} == {10, 23, 36}
    assert {each.tokens for each in of(passes, name="prefill")} == {8, 12, 16}
    assert {each.tokens for each in of(passes, name="decode")} == {12, 24, 36}


@pytest.mark.parametrize(
    ("uneven", "tokens"),
    [({"response_tokens": Uniform(low=2, high=20)}, 27), ({"samples_per_prompt": 4}, 32)],
    ids=["lengths", "samples"],
)
def test_micro_batches_of_uneven_jobs_are_measured_as_they_are_too(uneven, tokens):
    passes = passes_of(job_of(PPO.models, **uneven), settings_for(2))
    for name in ("infer", "train"):
        usual = of(passes, name=f"{name}_usual")
        assert {each.tokens for each in usual} == {tokens}
        plain = of(passes, name=name, tokens=tokens)
        assert [replace(each, name=name) for each in usual] == plain


def test_lengths_of_every_kind_are_understood():
    job = job_of(
        PPO.models,
        prompt_tokens=Empirical(values=(3, 5, 10)),
        response_tokens=Lognormal(mean=20, std=10, max=64),
    )
    assert prompt_tokens(job).distinct() == (3, 6, 10)
    lengths = sequence_tokens(job)
    assert 4 <= lengths.shortest < lengths.mean < lengths.longest == 74


def test_gradients_are_reduced_over_every_group_that_fits_beside_tp():
    passes = passes_of(PPO, settings_for(8))
    reductions = of(passes, name="gradient_reduction", head="lm")
    assert [(each.tp, each.dp) for each in reductions] == [(1, 2), (1, 4), (1, 8), (2, 2), (2, 4)]


def test_tp_divides_heads_and_kv_heads():
    assert tensor_parallel_sizes(TINY, 8) == (1, 2)
    assert tensor_parallel_sizes(load_model("llama-3.1-8b"), 16) == (1, 2, 4, 8)


def test_grpo_has_no_critic_to_measure():
    passes = passes_of(job_of({"actor": TINY, "reference": TINY}, "grpo"), settings_for(2))
    assert {each.head for each in passes} == {"lm"}


def test_a_model_that_does_not_fit_a_device_is_left_out():
    large = load_model("llama-2-7b")
    job = job_of({"actor": large, "critic": TINY, "reference": TINY})
    passes = passes_of(job, settings_for(2))
    assert not of(passes, model=large)
    assert of(passes, name="train", model=TINY, head="scalar")


def test_the_set_of_a_small_ppo_job_stays_small_and_a_quick_one_smaller():
    whole = len(passes_of(PPO, settings_for(2)))
    quick = len(passes_of(PPO, settings_for(2, quick=True)))
    assert whole == 192
    assert quick == 126


def test_passes_of_one_model_and_layout_stand_together():
    layouts = [(each.head, each.tp) for each in passes_of(PPO, settings_for(2))]
    changes = [now for before, now in pairwise(layouts) if before != now]
    assert len(changes) + 1 == len(set(layouts))


def test_without_a_runner_or_a_job_no_pass_is_asked_for():
    probe = load_probe("model_pass")
    assert probe.points(PPO, settings_for(2, passes=False)) == []
    assert probe.points(None, settings_for(2)) == []
    assert len(probe.points(PPO, settings_for(2))) == len(passes_of(PPO, settings_for(2)))


def test_operators_have_the_shapes_of_the_jobs_layers():
    points = load_probe("gemm").points(PPO, settings_for(2))
    shapes = {(point["k"], point["n"]) for point in points}
    assert shapes == set(layer_matrices(TINY, 1)) | set(layer_matrices(TINY, 2))
    assert (64, 260) in shapes, "the output matrix"
    assert (64, 130) in shapes, "its shard"
    decode = [p for p in load_probe("attention").points(PPO, settings_for(2)) if p["cached_tokens"]]
    assert {(p["q_heads"], p["kv_heads"]) for p in decode} == {(4, 2), (2, 1)}


def test_no_operator_is_larger_than_the_device_does_in_about_a_second():
    job = job_of(dict.fromkeys(("actor", "critic", "reference"), load_model("llama-2-7b")))
    points = load_probe("gemm").points(job, settings_for(2))
    assert points
    assert max(2 * int(p["m"]) * int(p["k"]) * int(p["n"]) for p in points) <= 1e10


@pytest.mark.parametrize(
    ("devices", "sizes"),
    [(1, ()), (2, (2,)), (3, (2, 3)), (4, (2, 4)), (6, (2, 4, 6)), (8, (2, 4, 8))],
)
def test_groups_are_powers_of_two_and_all_devices(devices, sizes):
    assert group_sizes(devices) == sizes


@given(st.integers(1, 100), st.integers(1, 10_000), st.integers(2, 16))
def test_geometric_sizes_rise_from_the_first_to_the_last(first, last, factor):
    sizes = geometric(first, last, factor)
    assert sizes[0] == first
    assert sizes[-1] == max(first, last)
    assert list(sizes) == sorted(set(sizes))


@given(
    prompts=st.integers(1, 300),
    updates=st.integers(1, 4),
    devices=st.integers(1, 8),
    quick=st.booleans(),
)
def test_every_pass_is_asked_for_once_and_fits_the_devices(prompts, updates, devices, quick):
    job = job_of(PPO.models, prompts=prompts, updates=updates)
    passes = passes_of(job, settings_for(devices, quick=quick))
    keys = [tuple(model_pass_keys(each).values()) for each in passes]
    assert len(keys) == len(set(keys))
    assert all(each.tp * each.dp <= devices for each in passes)
    # Experience is made of a rank's whole share, however large.
    batches = [each for each in passes if each.name != "experience"]
    assert all(1 <= each.sequences <= min(prompts, 256) for each in batches)
