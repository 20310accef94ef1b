"""Buffers of groups of ranks: what was measured of them, and which groups a trainer's ranks meet in."""

import numpy as np
import pytest

from rlplan.profiles.sheets import load_device
from rlplan.simulator.memory.communicators import _exchange_bytes, _group_bytes
from rlplan.simulator.memory.task_memory import COMMUNICATORS
from rlplan.units import GB, MIB
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
    alone = memory_of("actor.update", layout("fsdp2-hf", dp=8, zero=3)).transient
    assert alone[COMMUNICATORS] / MIB == 796
