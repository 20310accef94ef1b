"""Transitions and transfers: bytes by HybridFlow's table, over the links of the pool."""

from dataclasses import replace

import pytest

from rlplan.plan import TaskPlan
from rlplan.simulator.costs.syncs import lacking_expert_bytes, transition_cost
from rlplan.simulator.costs.taskcost import data_bytes, transfer_cost
from rlplan.simulator.placed import Site
from tests.simulator.cost_jobs import A100, facts_of, job_of
from tests.simulator.placing import transition

JOB = job_of()
FACTS = facts_of(JOB)
MODEL = JOB.architecture("actor")
NODES = Site(A100, 16, 8, 3.125e9)
NODE = Site(A100, 8, 8, 3.125e9)


def train(**fields):
    return TaskPlan(pool="p0", engine="megatron-core", **fields)


def generate(engine="vllm", **fields):
    return TaskPlan(pool="p0", engine=engine, **fields)


def parts(name, before, after, site=NODES, target=None):
    cost = transition_cost(transition(name, before, after, site, JOB, FACTS, target=target))
    return {cause: part.seconds for cause, part in cost.parts}


def test_zero_redundancy_groups_gather_less_than_vanilla_groups():
    before, after = train(tp=8, dp=2), generate(tp=2, dp=8)
    both = [parts(name, before, after) for name in ("hybridflow", "hybridflow-v")]
    wires = [each["weight gather"] + each["weight writes"] for each in both]
    # (8 - 2) / (2 * 8) M against 7/8 M, both over NVLink: less than half.
    assert wires[0] / wires[1] == pytest.approx((6 / 16) / (7 / 8), rel=0.1)
    assert sum(both[0].values()) < sum(both[1].values())


def test_the_all_gather_over_all_gpus_crosses_nodes_when_weights_are_fully_sharded():
    after = generate(tp=8, dp=2)
    sharded = parts("all-gather", train(tp=1, dp=16, zero=3), after)
    # 15/16 of 13.5 GB at the two nodes' 25 GB/s.
    assert 0.4 < sharded["weight gather"] < 1.5
    assert "sharded weight gather" not in sharded


def test_ranks_that_hold_all_weights_gather_nothing():
    assert parts("all-gather", train(tp=1, dp=16), generate(tp=2, dp=8)) == {}


def test_fully_sharded_weights_are_gathered_before_they_are_regrouped():
    before = train(tp=4, dp=4, zero=3)
    assert set(parts("hybridflow", before, generate(tp=2, dp=8))) == {
        "sharded weight gather",
        "weight gather",
        "weight writes",
        "software",
    }


def test_equal_layouts_cost_nothing_unless_weights_are_fully_sharded():
    before, after = train(tp=8, dp=2), generate(tp=8, dp=2)
    assert parts("none", before, after) == {}
    assert parts("hybridflow", before, after) == {}
    assert "sharded weight gather" in parts("hybridflow", replace(before, zero=3), after)


MOE = job_of("mixtral-8x7b")


def of_experts(before, after):
    cost = transition_cost(transition("hybridflow", before, after, NODES, MOE, FACTS))
    return {cause: part.seconds for cause, part in cost.parts}


def test_experts_that_ranks_share_out_are_gathered_before_generation():
    before, after = train(tp=4, dp=4, ep=4), generate(tp=4, dp=4)
    # 32 layers of 8 experts of 3 x 4096 x 14336 weights, of which a rank has 1/16 and lacks 3/16.
    received = 32 * 8 * 3 * 4096 * 14336 * 2 * 3 / 16
    assert (
        lacking_expert_bytes(transition("hybridflow", before, after, NODES, MOE, FACTS)) == received
    )
    found = of_experts(before, after)
    # Ranks of an expert group are four apart: two of a node, whose cards have 3.125 GB/s each.
    assert received / 3.125e9 / 2 < found["expert gather"] < 1.5 * received / 3.125e9


def test_experts_that_generation_shares_out_alike_stay_where_they_are():
    assert of_experts(train(tp=4, dp=4, ep=4), generate(tp=4, dp=4, ep=4)) == {}
    half = of_experts(train(tp=4, dp=4, ep=4), generate(tp=4, dp=4, ep=2))
    whole = of_experts(train(tp=4, dp=4, ep=4), generate(tp=4, dp=4))
    assert 0 < half["expert gather"] < whole["expert gather"]


def test_fully_sharded_experts_come_with_all_other_weights():
    found = of_experts(train(tp=4, dp=4, ep=4, zero=3), generate(tp=4, dp=4))
    assert "expert gather" not in found
    assert found["sharded weight gather"] > 0


def test_moving_tensor_by_tensor_takes_seconds_where_the_links_need_a_tenth():
    found = parts("hybridflow", train(tp=8, dp=2), generate(tp=2, dp=8))
    # Published for this transition of 7B on 16 A100s: 2.7 and 2.4 s (HybridFlow, figures 14, 15).
    assert 2.0 < sum(found.values()) < 3.2
    assert found["weight gather"] + found["weight writes"] < 0.1


def test_two_copies_send_a_shard_to_every_rank_of_the_other_pool():
    sent = parts("two-copies", train(tp=8), generate(tp=2, dp=4), NODE, NODE)
    # 6.7 GB over one card's 3.125 GB/s.
    assert 2.0 < sent["weight broadcast"] < 4.5


def test_micro_groups_of_a_pipeline_that_spans_nodes_talk_across_them():
    before = train(tp=8, pp=2)
    inside = parts("hybridflow", before, generate(tp=4, pp=2, dp=2))
    across = parts("hybridflow", before, generate(tp=8, pp=1, dp=2))
    assert across["weight gather"] > 10 * inside["weight gather"]


def test_data_of_a_global_batch_is_tokens_and_samples_by_their_bytes():
    sequences, tokens = 128, 1024
    assert data_bytes(["sequences"], JOB.workload) == sequences * tokens * 9
    assert data_bytes(["prompts"], JOB.workload) == sequences * 512 * 8
    assert data_bytes(["scores", "values"], JOB.workload) == sequences * (4 + tokens * 4)


def test_data_inside_a_pool_travels_with_the_call():
    assert transfer_cost(0, NODE, NODE, FACTS).seconds == 0


def test_data_between_pools_takes_longer_the_more_there_is():
    seconds = [transfer_cost(size, NODE, NODE, FACTS).seconds for size in (1e3, 1e6, 1e9)]
    assert 0 < seconds[0] < seconds[1] < seconds[2]


def test_a_pool_of_workers_on_the_host_receives_over_the_network_of_the_gpus():
    host = Site("host", 4, 4, 25e9)
    assert transfer_cost(1e6, NODE, host, FACTS).seconds > 0
