"""Which ranks of a group share a node, by where an engine places the stages of its pipeline."""

from itertools import pairwise

import pytest

from rlplan.estimate import Estimate
from rlplan.evals.settings.serving import device_facts
from rlplan.models import Collective
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_device, load_engine
from rlplan.profiles.facts import DeviceFacts
from rlplan.simulator.costs.pricing import price
from rlplan.simulator.costs.setting import setting_on
from rlplan.simulator.placed import Site

# Megatron-Core, parallel_state.initialize_model_parallel: "we have a total of 16 GPUs denoted by g0 ... g15 and we use
# 2 GPUs to parallelize the model tensor, and 4 GPUs to parallelize the model pipeline".
DATA_PARALLEL = ([0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15])
PIPELINES = ([0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15])
OURS, THEIRS = "torch-3d", "megatron-core"
SIXTEEN = TaskPlan(pool="", tp=2, pp=4, dp=2)


class Links(DeviceFacts):
    """Remember how many ranks, and how many of them in a node, a collective was asked for."""

    asked = (0, 0)

    def collective(
        self, kind, num_bytes, ranks, *, ranks_per_node, inter_node_bytes_per_second, network=None
    ):
        del kind, num_bytes, inter_node_bytes_per_second, network
        self.asked = ranks, ranks_per_node
        return Estimate(1.0)


def setting(layout, engine, node, gpus):
    device = Links(load_device("h100-80gb-sxm"))
    return setting_on(layout, load_engine(engine), device, Site("", gpus, node, 1e9), "bf16")


def exchanged(kind, layout, engine, *, node, gpus):
    """Return the ranks that exchange, and how many of them share a node."""
    found = setting(layout, engine, node, gpus)
    price(found, (Collective("", "all_gather", 1e6, kind),))
    return found.device.asked


def fewest_in_a_node(groups, node):
    """Return how many ranks of the most scattered group share a node."""
    return min(
        max(sum(rank // node == place for rank in group) for place in range(16 // node))
        for group in groups
    )


@pytest.mark.parametrize("node", [2, 4, 8])
def test_copies_and_stages_of_megatron_share_nodes_as_its_documentation_places_them(node):
    found = setting(SIXTEEN, THEIRS, node, 16)
    found.collective("all_reduce", 1e6, 2, SIXTEEN.tp * found.block_stages)
    assert found.device.asked == (2, fewest_in_a_node(DATA_PARALLEL, node))
    found.send(1e6)
    neighbours = [pair for group in PIPELINES for pair in pairwise(group)]
    assert found.device.asked == (2, fewest_in_a_node(neighbours, node))


@pytest.mark.parametrize(
    ("kind", "sizes", "node", "ours", "theirs"),
    [
        # EP 8 of [0 .. 7] in a node of theirs; of every second rank of ours, whose stages are neighbours.
        ("ep", {"pp": 2, "dp": 8, "ep": 8}, 8, (8, 4), (8, 8)),
        # Theirs shares experts out before copies, over TP and CP too: [0 .. 15]; ours has TP 2 in every block of 8.
        ("ep", {"tp": 2, "cp": 2, "pp": 4, "dp": 4, "ep": 8, "expert_tp": 1}, 8, (8, 2), (8, 8)),
        # Experts as wide as TP: theirs has every second rank.
        ("ep", {"tp": 2, "pp": 2, "dp": 4, "ep": 4}, 8, (4, 2), (4, 4)),
        # Without stages experts are shared out over the ranks of a context too (prime-rl's ep = dp_shard_in_ep * cp).
        ("ep", {"cp": 4, "dp": 4, "ep": 8}, 8, (8, 8), (8, 8)),
        ("cp", {"tp": 2, "cp": 2, "pp": 4}, 8, (2, 1), (2, 2)),
        ("tp", {"tp": 4, "pp": 4}, 8, (4, 4), (4, 4)),
    ],
)
def test_groups_of_outermost_stages_are_on_consecutive_ranks(kind, sizes, node, ours, theirs):
    layout = TaskPlan(pool="", **sizes)
    for engine, expected in ((OURS, ours), (THEIRS, theirs)):
        assert exchanged(kind, layout, engine, node=node, gpus=layout.gpus) == expected


def test_an_all_to_all_leaves_a_node_over_each_ranks_own_share_of_its_cards():
    device, network = device_facts("h100-80gb-sxm"), 5e10
    within, across = (
        device.collective(
            "all_to_all", 1e9, 16, ranks_per_node=per_node, inter_node_bytes_per_second=network
        ).seconds
        for per_node in (16, 8)
    )
    gathered = device.collective(
        "all_gather", 1e9, 16, ranks_per_node=16, inter_node_bytes_per_second=network
    )
    assert within == gathered.seconds
    assert across > 8 / 16 * 1e9 / network  # half of what each sends goes to the other node
    assert across < 2 * 8 / 16 * 1e9 / network
