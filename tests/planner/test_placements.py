from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import UnknownNameError
from rlplan.files.decoding import decode
from rlplan.job import Job, NodeGroup, Role
from rlplan.planner.placements.allocations import Share, packing_order, pool_sizes
from rlplan.planner.placements.partitions import placements, show_placement
from rlplan.planner.placements.strategies import place, strategy_names
from tests.planner.brute_force import allocations

PPO: tuple[Role, ...] = ("actor", "critic", "reference", "reward")
FIVE: tuple[Role, ...] = (*PPO, "cost")
BELL = [1, 1, 2, 5, 15, 52]


def job(*groups):
    data = {
        "algorithm": "ppo",
        "models": {"actor": "tiny"},
        "workload": {"prompts": 8, "prompt_tokens": 8, "response_tokens": 8},
        "cluster": [
            {"gpu": gpu, "gpus_per_node": per, "nodes": nodes} for gpu, per, nodes in groups
        ],
    }
    return decode(Job, data, "job.yaml")


@pytest.mark.parametrize("count", range(1, 6))
def test_k_models_have_bell_of_k_placements_each_once(count):
    found = list(placements(FIVE[:count]))
    assert len(found) == BELL[count]
    assert len(
        {frozenset(frozenset(members) for members in placement) for placement in found}
    ) == len(found)


def test_the_colocated_placement_comes_first():
    assert next(placements(PPO)) == (PPO,)


@given(st.permutations(PPO))
def test_every_placement_holds_every_role_once(roles):
    for placement in placements(tuple(roles)):
        assert sorted(role for members in placement for role in members) == sorted(roles)


def test_the_named_strategies():
    assert {name: place(name, PPO) for name in strategy_names()} == {
        "colocate": (PPO,),
        "split": (("actor", "reference"), ("critic", "reward")),
        "standalone": (("actor",), ("critic",), ("reference",), ("reward",)),
    }


def test_every_strategy_gives_one_of_the_placements():
    sets = {frozenset(map(frozenset, placement)) for placement in placements(PPO)}
    assert all(frozenset(map(frozenset, place(name, PPO))) in sets for name in strategy_names())


def test_an_unknown_strategy_is_named():
    with pytest.raises(UnknownNameError, match="did you mean 'colocate'"):
        place("colocated", PPO)


def test_a_placement_is_shown_as_its_sets():
    assert show_placement((("actor", "reference"), ("critic",))) == "{actor, reference} {critic}"


def test_pools_are_parts_of_a_node_or_whole_nodes():
    group = NodeGroup(gpu="cpu", gpus_per_node=8, nodes=4, inter_node_gbps=200.0)
    assert pool_sizes(group) == (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32)
    alone = replace(group, gpus_per_node=7, nodes=1)
    assert pool_sizes(alone) == (1, 2, 3, 4, 5, 6, 7)


def test_pools_are_nodes_of_one_nvlink_domain_or_whole_domains():
    group = NodeGroup(gpu="gb200", gpus_per_node=4, nodes=12, nvlink_domain_gpus=16)
    assert pool_sizes(group) == (1, 2, 3, 4, 8, 12, 16, 32, 48)
    assert pool_sizes(replace(group, nodes=11)) == (1, 2, 3, 4, 8, 12, 16, 32, 44)


def test_two_sets_on_two_devices_get_one_each():
    assert list(allocations(job(("cpu", 2, 1)), 2)) == [(Share(0, 1), Share(0, 1))]


def test_sets_are_spread_over_groups_of_different_devices():
    found = set(allocations(job(("cpu", 1, 1), ("h100-80gb-sxm", 1, 1)), 2))
    assert found == {(Share(0, 1), Share(1, 1)), (Share(1, 1), Share(0, 1))}


@given(st.integers(1, 4), st.sampled_from([1, 2, 4]), st.integers(1, 3))
def test_no_allocation_takes_more_than_the_cluster_has(nodes, per_node, sets):
    cluster = job(("cpu", per_node, nodes))
    found = list(allocations(cluster, sets))
    assert all(sum(share.gpus for share in shares) <= per_node * nodes for shares in found)
    assert len(set(found)) == len(found)


def order_of(sizes, **cluster):
    shares = [Share(0, size) for size in sizes]
    return [sizes[index] for index in packing_order(job(*cluster["groups"]), shares)]


def test_pools_are_packed_without_straddling_nodes_where_they_can():
    two = [("cpu", 8, 2)]
    assert order_of((2, 6, 2, 6), groups=two) == [6, 2, 6, 2]
    assert order_of((3, 5, 8), groups=two) == [8, 5, 3]
    # The second of five takes three GPUs of one node and two of the other, whatever comes first.
    assert order_of((5, 5, 4), groups=two) == [5, 5, 4]
    # On a node of four and one of eight of the same device.
    assert order_of((8, 4), groups=[("cpu", 4, 1), ("cpu", 8, 1)]) == [4, 8]


@given(st.lists(st.integers(1, 8), min_size=1, max_size=5), st.integers(1, 4))
def test_packing_has_no_more_pools_that_straddle_nodes_than_from_large_to_small(sizes, nodes):
    cluster = job(("cpu", 8, nodes + 4))
    shares = [Share(0, size) for size in sizes]

    def straddling(order):
        first, found = 0, 0
        for index in order:
            found += first // 8 != (first + sizes[index] - 1) // 8
            first += sizes[index]
        return found

    order = packing_order(cluster, shares)
    assert sorted(order) == list(range(len(sizes)))
    by_size = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    if straddling(by_size) == 0:
        assert list(order) == by_size
    assert straddling(order) <= straddling(by_size)
