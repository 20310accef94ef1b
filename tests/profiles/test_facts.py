"""Facts: measured first, then between points, then the roofline; every answer names its source."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError, MissingFactError, UnknownNameError
from rlplan.estimate import Source
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup, Rewards
from rlplan.models import Attention, ModelArchitecture
from rlplan.probing import ModelPass
from rlplan.profiles.analytic.efficiencies import (
    FITS_FOLDER,
    OTHER_FILES,
    architecture_names,
    load_efficiencies,
    load_host_costs,
)
from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.catalog import device_names, load_device
from rlplan.profiles.facts import DeviceFacts, load_facts
from rlplan.profiles.tables.table import new_profile
from rlplan.workload import Workload
from tests.effort import calls_of

A100 = "a100-80gb-sxm"
NVLINK_BYTES_PER_SECOND = 3e11
NETWORK = 25e9


def tiny() -> ModelArchitecture:
    return ModelArchitecture(
        name="tiny",
        family="llama",
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        ffn_size=128,
        vocab_size=260,
    )


def job(*gpus: str, rewards: Rewards | None = None) -> Job:
    return Job(
        algorithm="ppo",
        models=FrozenDict({"actor": tiny()}),
        workload=Workload(prompts=8, prompt_tokens=8, response_tokens=8),
        cluster=tuple(NodeGroup(gpu=gpu, gpus_per_node=2, inter_node_gbps=200.0) for gpu in gpus),
        rewards=rewards,
    )


def measured_cpu():
    profile = new_profile("laptop", "cpu", {"fingerprint": "abc"}, {})
    profile.add("gemm", {"precision": "fp32", "m": 64, "k": 64, "n": 64}, [1e-5])
    profile.add("gemm", {"precision": "fp32", "m": 256, "k": 64, "n": 64}, [4e-5])
    heads = {"q_heads": 4, "kv_heads": 4, "head_dim": 16}
    shape = {"batch": 4, "query_tokens": 64, "cached_tokens": 0}
    direction = {"direction": "forward", "precision": "fp32"}
    profile.add("attention", {**direction, **shape, **heads}, [2e-4])
    profile.add("norm", {**direction, "tokens": 64, "hidden": 64}, [1e-5])
    profile.add("optimizer", {"precision": "fp32", "parameters": 1000}, [1e-3])
    profile.add("copy", {"direction": "host_to_device", "num_bytes": 1000}, [1e-4])
    profile.add("call", {"kind": "actor_call", "num_bytes": 0}, [1e-3])
    profile.add("call", {"kind": "rule:digits", "num_bytes": 0}, [2e-5])
    for num_bytes in (1000, 3000):
        keys: dict[str, Any] = {
            "kind": "all_reduce",
            "ranks": 2,
            "ranks_per_node": 2,
            "num_bytes": num_bytes,
        }
        profile.add("collective", keys, [num_bytes * 1e-6])
    return profile


# ---------------------------------------------------------------------------------- rooflines


def test_every_device_has_the_constants_of_its_architecture():
    architectures = {path.stem for path in FITS_FOLDER.glob("*.yaml")} - set(OTHER_FILES)
    assert {load_device(name).architecture for name in device_names()} == architectures
    for architecture in architectures:
        assert load_efficiencies(architecture).architecture == architecture
    with pytest.raises(UnknownNameError, match="did you mean 'ampere'"):
        load_efficiencies("amper")


def test_shares_of_a_rate_are_shares_and_every_constant_names_its_source():
    for name in architecture_names():
        constants = load_efficiencies(name)
        for field in constants.__dataclass_fields__:
            value = getattr(constants, field)
            if value is None:
                continue
            if field.endswith("_efficiency"):
                assert 0 < value.value <= 1, (name, field)
            if field not in ("architecture", "kernels"):
                assert value.source, (name, field)
    assert load_host_costs().actor_call_seconds.source


def test_a_large_gemm_on_a100_takes_what_a100s_take():
    # Measured on A100 (microsoft/vidur, MIT): 3.345 ms for 4096 x 4096 x 22016 in 16 bit.
    seconds = Roofline(load_device(A100)).gemm(4096, 4096, 22016, "bf16").seconds
    assert seconds == pytest.approx(3.345e-3, rel=0.05)


def test_a_gemm_of_one_row_on_a100_takes_the_reading_of_its_weights():
    # Measured on A100 (microsoft/vidur, MIT): 0.116 ms for 1 x 4096 x 22016 in 16 bit.
    seconds = Roofline(load_device(A100)).gemm(1, 4096, 22016, "bf16").seconds
    assert seconds == pytest.approx(0.116e-3, rel=0.05)


def test_an_all_reduce_in_a_node_moves_two_shares_of_the_tensor_over_each_link():
    roofline = Roofline(load_device(A100))
    links = roofline.kernels.links
    fastest = max(links.reduce, key=lambda each: each.link_efficiency)
    seconds = roofline.collective(
        "all_reduce", 8e9, 8, ranks_per_node=8, inter_node_bytes_per_second=NETWORK
    ).seconds
    # A rank's own eighth is read and written beside what passes the link.
    shares = 2 * 7 / 8 + links.own_share / 8
    wire = shares * 8e9 / (NVLINK_BYTES_PER_SECOND * fastest.link_efficiency)
    assert seconds == pytest.approx(wire + fastest.start_seconds + 14 * fastest.step_seconds)


def test_across_nodes_the_ranks_of_a_node_share_their_network_cards():
    roofline = Roofline(load_device(A100))
    eight = roofline.collective(
        "all_gather", 8e9, 16, ranks_per_node=8, inter_node_bytes_per_second=NETWORK
    ).seconds
    one = roofline.collective(
        "all_gather", 8e9, 16, ranks_per_node=1, inter_node_bytes_per_second=NETWORK
    ).seconds
    assert one == pytest.approx(15 / 16 * 8e9 / (25e9 * 0.7), rel=1e-3)
    assert eight < one


def test_an_all_reduce_across_nodes_sends_what_trees_of_nodes_do():
    roofline = Roofline(load_device(A100))
    slow = 1e9  # 8 GB/s a node of 8, 0.7 of it reached

    def wire(ranks: int) -> float:
        large, small = (
            roofline.collective(
                "all_reduce", size, ranks, ranks_per_node=8, inter_node_bytes_per_second=slow
            ).seconds
            for size in (16e9, 8e9)
        )
        return large - small

    assert wire(16) == pytest.approx(
        8e9 / 5.6e9, rel=1e-3
    )  # two nodes: up and down each half of two trees
    assert wire(64) == pytest.approx(2 * 7 / 8 * 8e9 / 5.6e9, rel=1e-3)


def test_one_rank_alone_communicates_in_no_time():
    facts = DeviceFacts(load_device(A100))
    assert (
        facts.collective(
            "all_reduce", 1e9, 1, ranks_per_node=8, inter_node_bytes_per_second=NETWORK
        ).seconds
        == 0
    )


def test_a_precision_that_the_device_has_no_rate_for_is_named():
    with pytest.raises(MissingFactError, match=r"cpu.*no peak rate for bf16; known: fp32"):
        DeviceFacts(load_device("cpu")).gemm(8, 8, 8, "bf16")


SIZES = st.integers(1, 20_000)
MORE = st.integers(0, 20_000)


@given(SIZES, SIZES, SIZES, MORE, MORE, MORE, st.sampled_from(device_names()))
def test_a_larger_gemm_is_never_faster(m, k, n, more_m, more_k, more_n, device):
    roofline = Roofline(load_device(device))
    small = roofline.gemm(m, k, n, "fp32").seconds
    large = roofline.gemm(m + more_m, k + more_k, n + more_n, "fp32").seconds
    assert large >= small * (1 - 1e-9)


@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv"]),
    st.floats(0, 1e12),
    st.floats(0, 1e12),
    st.integers(2, 512),
    st.integers(1, 16),
)
def test_more_bytes_are_never_faster(kind, num_bytes, more, ranks, ranks_per_node):
    facts = DeviceFacts(load_device(A100))
    small, large = (
        facts.collective(
            kind, size, ranks, ranks_per_node=ranks_per_node, inter_node_bytes_per_second=NETWORK
        )
        for size in (num_bytes, num_bytes + more)
    )
    assert large.seconds >= small.seconds * (1 - 1e-9)
    assert small.source in (Source.FITTED, Source.DATASHEET)
    assert small.spread_seconds > 0


@given(st.sampled_from(device_names()), st.booleans(), st.integers(0, 4096), SIZES, MORE)
def test_a_longer_attention_is_never_faster(device, backward, cached, queries, more):
    facts = DeviceFacts(load_device(device))
    small, large = (
        facts.attention(
            Attention("attention", 2, tokens, cached, q_heads=8, kv_heads=2, head_dim=64),
            "fp32",
            backward=backward,
        )
        for tokens in (queries, queries + more)
    )
    assert large.seconds >= small.seconds * (1 - 1e-9)


@given(st.floats(0, 1e11), st.floats(0, 1e11), st.integers(0, 10**10))
def test_every_estimate_is_finite_has_a_source_and_a_spread(num_bytes, more, parameters):
    facts = DeviceFacts(load_device(A100))
    for estimate in (
        facts.memory_bound(num_bytes, kernels=3),
        facts.optimizer_step(parameters, "bf16"),
        facts.copy(num_bytes, "host_to_device"),
        facts.copy(num_bytes, "device_to_device"),
        facts.call(num_bytes),
    ):
        assert math.isfinite(estimate.seconds)
        assert estimate.seconds > 0
        assert estimate.spread_seconds > 0
        assert estimate.source in (Source.FITTED, Source.DATASHEET)
    assert facts.copy(num_bytes + more, "host_to_device").seconds >= facts.copy(
        num_bytes, "host_to_device"
    ).seconds * (1 - 1e-9)


# ----------------------------------------------------------------------------------- profiles


def test_measured_points_answer_first():
    facts = DeviceFacts(load_device("cpu"), measured_cpu())
    attention = facts.attention(Attention("attention", 4, 64, 0, 4, 4, 16), "fp32")
    answers = {
        1e-5: facts.gemm(64, 64, 64, "fp32"),
        2e-4: attention,
        1e-3: facts.optimizer_step(1000, "fp32"),
        1e-4: facts.copy(1000, "host_to_device"),
        2e-5: facts.call(kind="rule:digits"),
    }
    for seconds, estimate in answers.items():
        assert estimate.seconds == seconds
        assert estimate.source == Source.MEASURED
        assert not estimate.outside_range


def test_between_and_outside_measured_points_the_estimate_says_so():
    facts = DeviceFacts(load_device("cpu"), measured_cpu())
    between = facts.gemm(128, 64, 64, "fp32")
    assert 1e-5 < between.seconds < 4e-5
    assert (between.source, between.outside_range) == (Source.INTERPOLATED, False)
    assert facts.gemm(128, 64, 4096, "fp32").outside_range
    reduce = facts.collective(
        "all_reduce", 2000, 2, ranks_per_node=2, inter_node_bytes_per_second=NETWORK
    )
    assert reduce.seconds == pytest.approx(2e-3)
    assert reduce.source == Source.INTERPOLATED


def test_ranks_are_never_extrapolated_from_other_rank_counts():
    facts = DeviceFacts(load_device("cpu"), measured_cpu())
    four = facts.collective(
        "all_reduce", 2000, 4, ranks_per_node=4, inter_node_bytes_per_second=NETWORK
    )
    unmeasured = Roofline(load_device("cpu"))
    assert four == unmeasured.collective(
        "all_reduce", 2000, 4, ranks_per_node=4, inter_node_bytes_per_second=NETWORK
    )
    assert four.source == Source.DATASHEET


def test_ranks_per_node_above_the_ranks_mean_one_node():
    facts = DeviceFacts(load_device("cpu"), measured_cpu())
    assert (
        facts.collective(
            "all_reduce", 1000, 2, ranks_per_node=8, inter_node_bytes_per_second=NETWORK
        ).source
        == Source.MEASURED
    )


def test_memory_bound_kernels_follow_the_measured_norms():
    facts = DeviceFacts(load_device("cpu"), measured_cpu())
    norm = facts.memory_bound(2 * 4 * 64 * 64)
    assert norm.seconds == pytest.approx(1e-5)
    assert norm.source == Source.FITTED


def test_a_rule_is_measured_or_given_or_takes_a_millisecond():
    sheet = load_device("cpu")
    given = DeviceFacts(sheet, rule_seconds=0.25).call(kind="rule:digits")
    assert (given.seconds, given.source) == (0.25, Source.DATASHEET)
    unknown = DeviceFacts(sheet, measured_cpu())
    assert (unknown.call(kind="rule:copy").seconds, unknown.guesses_rule("copy")) == (1e-3, True)
    assert not unknown.guesses_rule("digits")
    assert not DeviceFacts(sheet, rule_seconds=0.25).guesses_rule("copy")
    with pytest.raises(MissingFactError, match="no cost is known for a call of kind 'phone'"):
        DeviceFacts(sheet).call(kind="phone")


def test_a_whole_pass_is_none_until_it_was_measured():
    asked = ModelPass(name="infer", model=tiny(), head="lm", precision="fp32", tokens=8)
    assert DeviceFacts(load_device("cpu")).model_pass(asked) is None
    assert DeviceFacts(load_device("cpu"), measured_cpu()).model_pass(asked) is None


def test_a_remembered_look_up_works_nothing_out_again():
    facts = DeviceFacts(load_device(A100))
    asked = ModelPass(name="infer", model=tiny(), head="lm", precision="bf16", tokens=8)
    attention = Attention("attention", 8, 1, 512, q_heads=32, kv_heads=8, head_dim=128)

    def look_up():
        facts.gemm(64, 4096, 4096, "bf16")
        facts.attention(attention, "bf16")
        facts.collective(
            "all_reduce", 1e6, 8, ranks_per_node=8, inter_node_bytes_per_second=NETWORK
        )
        facts.model_pass(asked)

    look_up()
    assert calls_of(look_up) <= 4 * 4


# -------------------------------------------------------------------------------- facts of a job


def test_a_slower_host_changes_what_it_dispatches_alone_and_is_forgotten_with_its_facts():
    facts = load_facts(job(A100))
    slower = facts.with_slower_hosts(1.5)
    assert facts.with_slower_hosts(1.5) is slower
    own, other = facts.device(A100), slower.device(A100)
    assert other.sheet.host_times == 1.5 * own.sheet.host_times
    assert other.gemm(64, 4096, 4096, "bf16") == own.gemm(64, 4096, 4096, "bf16")
    remembered = set(vars(other))
    facts.forget()
    assert set(vars(other)) < remembered
    assert facts.with_slower_hosts(1.5) is not slower


def test_facts_of_a_job_use_the_profile_for_its_device_only(tmp_path):
    measured_cpu().write(tmp_path)
    facts = load_facts(job("cpu", A100), tmp_path)
    assert facts.device("cpu").gemm(64, 64, 64, "fp32").source == Source.MEASURED
    assert facts.device(A100).profile is None
    assert facts.device("host") is facts.device("cpu")
    assert facts.label == "profile laptop (cpu, incomplete)"
    assert load_facts(job(A100), None).label == "datasheet"


def test_a_profile_of_another_device_is_refused(tmp_path):
    measured_cpu().write(tmp_path)
    with pytest.raises(FileError, match=r"device: is a profile of another device.*found 'cpu'"):
        load_facts(job(A100), tmp_path)


def test_the_jobs_own_time_of_its_rule_is_used():
    rewards = Rewards(function="digits", function_seconds_per_sample=0.125)
    facts = load_facts(job("cpu", rewards=rewards), None)
    assert facts.device("host").call(kind="rule:digits").seconds == 0.125


def test_unknown_devices_and_engines_are_named():
    facts = load_facts(job("cpu"), None)
    with pytest.raises(UnknownNameError, match="unknown device 'gpu'"):
        facts.device("gpu")
    with pytest.raises(UnknownNameError, match="unknown engine"):
        facts.engine("vllmm")
    assert facts.engine("vllm").role == "generate"
