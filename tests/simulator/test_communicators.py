"""Buffers of groups of ranks: what was measured of them, and which groups a trainer's ranks meet in."""

from dataclasses import replace

import numpy as np
import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.profiles.sheets import load_device, load_engine
from rlplan.simulator.memory.communicators import _exchange_bytes, _group_bytes
from rlplan.simulator.memory.task_memory import COMMUNICATORS
from rlplan.trainers import TrainerOptions
from rlplan.units import GB, MIB
from tests.simulator.cost_jobs import job_of
from tests.simulator.test_memory import layout, memory_of


def group_mib(device, ranks, near=None):
    sizes = np.array([ranks]), np.array([near or ranks])
    return int(_group_bytes(load_device(device), *sizes)[0]) / MIB


def test_a_group_of_two_a100_holds_what_was_measured_and_one_of_four_a_tenth_more():
    """NCCL issue 964: 544 and 688 MiB after an all-reduce."""
    assert group_mib("a100-80gb-sxm", 2) == 544
    assert group_mib("a100-80gb-sxm", 4) == pytest.approx(688, rel=0.11)


def test_an_exchange_between_eight_h100_holds_nearly_what_was_measured():
    """NCCL issue 1685: 3.28 GB more after the first all-to-all."""
    eight = np.array([8])
    found = _exchange_bytes(load_device("h100-80gb-sxm"), eight, eight)[0]
    assert found == pytest.approx(3.28 * GB, rel=0.07)


@pytest.mark.parametrize(
    ("device", "ranks", "near", "switch_mib"),
    [
        ("a100-80gb-sxm", 8, 8, 0),
        ("h100-80gb-sxm", 2, 2, 0),
        ("h100-80gb-sxm", 8, 8, 8 * 32),
        ("b200", 8, 8, 8 * 48),
        ("b200", 16, 8, 8 * 64),
        ("gb200", 72, 72, 32 * 48),  # no more than 32 of a domain's ranks
    ],
)
def test_reductions_in_the_switch_hold_a_part_for_each_rank_of_a_node(
    device, ranks, near, switch_mib
):
    plain = group_mib("a100-80gb-sxm", ranks, near)
    assert group_mib(device, ranks, near) - plain == pytest.approx(switch_mib, abs=0.01)


def test_slots_of_the_network_are_as_many_as_channels_and_an_exchange_has_them_twice():
    """Two nodes of eight: 16 channels of 16 steps of 128 KiB, for what is sent and for what comes."""
    sizes = np.array([16]), np.array([8])
    device = load_device("a100-80gb-sxm")
    assert _exchange_bytes(device, *sizes)[0] / MIB == 7 * 2 * 12 + 2 * 32
    rings = 16 * 12 * (1 + 15 / 16)
    assert group_mib("a100-80gb-sxm", 16, 8) == rings + 32 + 2 * 56
    assert group_mib("a100-80gb-sxm", 2, 1) == 2 * 12 + 4 + 2 * 56
    assert group_mib("h100-80gb-sxm", 2, 1) == 4 * 12 + 8 + 4 * 56  # twice as many from Hopper on


def test_one_rank_holds_nothing_and_ranks_on_nodes_of_their_own_less_than_those_of_one():
    assert group_mib("h100-80gb-sxm", 1) == 0
    assert group_mib("h100-80gb-sxm", 8, near=1) < group_mib("h100-80gb-sxm", 8) / 3


def test_cards_without_nvlink_hold_little_and_ascend_two_buffers_a_group():
    assert group_mib("l20", 8) < 120
    assert group_mib("ascend-910c", 2) == group_mib("ascend-910c", 16) == 400


def test_megatron_meets_in_more_groups_than_its_model_is_cut_into():
    """Of TP 2, PP 2 and DP 2 on 8 A100: three groups of two, two of all eight, and two of stages that send to each other."""
    terms = memory_of("actor.update", layout(tp=2, pp=2, dp=2)).transient
    assert terms[COMMUNICATORS] / MIB == 3 * 544 + 2 * 796 + 2 * 640
    compared = memory_of("reference.compute_log_prob", layout(tp=2, pp=2, dp=2)).transient
    assert compared[COMMUNICATORS] / MIB == 3 * 544 + 796 + 2 * 640  # no gradients' norm
    alone = memory_of("actor.update", layout("fsdp2-hf", dp=8, zero=3)).transient
    assert alone[COMMUNICATORS] / MIB == 796


def test_ranks_that_hold_copies_of_one_another_meet_in_a_group_of_their_own():
    """Eight GPUs of a node: shards among four, copies of each on two."""
    copied = memory_of("actor.update", layout("fsdp2-hf", dp=8, zero=3, shard_ranks=4)).transient
    assert copied[COMMUNICATORS] / MIB == 760 + 544


def test_automodel_meets_in_no_groups_of_megatron():
    """Its layers cost what Megatron-Core's do, and PyTorch's meshes part its ranks."""
    assert load_engine("megatron-core-2026").memory.groups == "megatron"
    assert load_engine("nemo-automodel").memory.groups == "plain"


def test_a_dispatcher_that_gathers_all_tokens_holds_no_buffers_of_an_exchange():
    """Four ranks of experts on eight A100: Megatron-Core gathers in the group that counts tokens, other trainers in one more."""
    job = job_of("qwen3-30b-a3b", nodes=1)
    gathering = replace(
        job, trainers=FrozenDict({"actor": TrainerOptions(dispatcher="all-gather")})
    )
    for engine, more in (("megatron-core", 0), ("prime-rl", 760)):
        chosen = layout(engine, dp=8, ep=4)
        exchanged, gathered = (
            memory_of("actor.update", chosen, each).transient[COMMUNICATORS] / MIB
            for each in (job, gathering)
        )
        assert exchanged - gathered == 3 * 32 * 12 + 256 - more


def test_groups_stand_as_far_apart_as_their_engine_places_them():
    """Eight stages of two copies on two nodes: stages are in a node, and copies apart, unless stages are outermost."""
    job = job_of(nodes=2)
    found = {
        engine: memory_of("actor.update", layout(engine, pp=8, dp=2), job).transient
        for engine in ("torch-3d", "megatron-2022")
    }
    near, apart = group_mib("a100-80gb-sxm", 2), group_mib("a100-80gb-sxm", 2, 1)
    stages = group_mib("a100-80gb-sxm", 8), group_mib("a100-80gb-sxm", 8, 4)
    assert found["torch-3d"][COMMUNICATORS] / MIB == apart + stages[0]
    assert found["megatron-2022"][COMMUNICATORS] / MIB == near + stages[1]
