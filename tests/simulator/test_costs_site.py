"""Sites: which of a pool's GPUs share a node."""

from dataclasses import replace

from rlplan.job import NodeGroup
from rlplan.plan import ResourcePool
from rlplan.simulator.placed import Site, site_at, sites_of
from tests.simulator.cost_jobs import A100, facts_of, job_of
from tests.simulator.plans import split_plan

H100 = "h100-80gb-sxm"
MIXED = replace(
    job_of(),
    cluster=(
        NodeGroup(gpu=A100, gpus_per_node=8, nodes=2, inter_node_gbps=200),
        NodeGroup(gpu=H100, gpus_per_node=8, nodes=1, inter_node_gbps=400),
        NodeGroup(gpu=A100, gpus_per_node=4, nodes=2, inter_node_gbps=100),
    ),
)


def plan_of(*pools, job=MIXED):
    made = tuple(
        ResourcePool(name=name, device=device, gpus=gpus, roles=()) for name, device, gpus in pools
    )
    return split_plan(job=job, pools=made)


def sites(*pools, job=MIXED):
    return sites_of(plan_of(*pools, job=job), facts_of(job))


def test_pools_take_gpus_in_order_and_node_by_node():
    found = sites(("a", A100, 4), ("b", A100, 4), ("c", A100, 8), ("d", H100, 8))
    assert [found[name].gpus_per_node for name in "abcd"] == [8, 8, 8, 8]
    assert found["a"].inter_node_bytes_per_second == 200e9 / 8 / 8
    assert found["d"].inter_node_bytes_per_second == 400e9 / 8 / 8
    assert not found["a"].spans_nodes


def test_a_pool_that_begins_inside_a_node_has_the_groups_that_never_straddle():
    found = sites(("a", A100, 4), ("b", A100, 12))
    assert found["b"] == Site(A100, 12, 4, 3.125e9)
    assert found["b"].spans_nodes


def test_a_pool_over_unequal_nodes_has_the_slower_network():
    assert site_at(MIXED, A100, 8, 16) == Site(A100, 16, 4, 100e9 / 8 / 4)


def test_ranks_far_apart_share_fewer_nodes():
    site = Site(A100, 16, 8, 3.125e9)
    assert site.ranks_per_node(4) == 4
    assert site.ranks_per_node(16) == 8
    assert site.ranks_per_node(2, stride=8) == 1
    assert site.ranks_per_node(4, stride=4) == 2


def test_workers_on_the_host_have_a_site_of_their_own():
    found = sites(("a", A100, 8), ("cpu", "host", 32))
    assert found["cpu"] == Site("host", 32, 32, 25e9 / 8 * 8)
