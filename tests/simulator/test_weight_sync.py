"""Methods of frameworks to sync weights: stages, links and layouts say how long they take."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.files.frozen import FrozenDict
from rlplan.models import Adapter
from rlplan.plan import TaskPlan
from rlplan.profiles.sheets import load_transition, sheet_names
from rlplan.simulator.costs.syncs import (
    CARRYING,
    GATHER,
    LOADING,
    RESTORED,
    STAGING,
    SyncCase,
    least_sync_seconds,
    method_seconds,
    sync_case,
    sync_seconds,
    transition_cost,
)
from rlplan.simulator.memory.task_memory import COMMUNICATOR_BYTES
from rlplan.simulator.memory.transition_memory import (
    SYNC_GROUP,
    WEIGHT_BUCKETS,
    bucket_terms,
    extra_weight_bytes,
    has_own_context,
    synced_bytes,
    transition_terms,
)
from rlplan.simulator.model import num_tensors
from rlplan.simulator.placed import Site
from rlplan.transfers import TRANSFERS, transfer_names, transitions_on_a_pool
from rlplan.weight_syncs import SyncMethod
from tests.simulator.cost_jobs import A100, facts_of, job_of
from tests.simulator.placing import transition

METHODS = [name for name in transfer_names() if TRANSFERS.load(name).method]
JOB = job_of()
FACTS = facts_of(JOB)
NODE = Site(A100, 8, 8, 25e9)
BEFORE = TaskPlan(pool="p0", engine="megatron-core", tp=8)
AFTER = TaskPlan(pool="p0", engine="vllm", tp=2, dp=4)

CASE = SyncCase(
    num_bytes=100e9, trained_bytes=100e9, tensors=1000, active_fraction=1.0, shard_fraction=1 / 8,
    cuts=1, stages=4, senders=32, receivers=16, receiver_nodes=2, across=True, node_gpus=8,
    network_bytes_per_second=50e9, node_bytes_per_second=400e9, host_bytes_per_second=50e9,
)  # fmt: skip
ONE_RANK = SyncMethod(
    words="sent by one rank",
    pools="two",
    sender="one rank",
    transport="broadcast",
    bucket_bytes=10**9,
    gather_bytes_per_second=10e9,
)


def placed(name):
    together = TRANSFERS.load(name).on_one_pool
    target = None if together else NODE
    return transition(name, BEFORE, AFTER, NODE, JOB, FACTS, target=target)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_sheet_with_the_source_of_each_of_its_numbers(name):
    assert name in sheet_names("transitions")
    sheet = load_transition(name)
    assert sheet.method is not None
    usual = SyncMethod(words="", pools="one", sender="one rank", transport="process")
    numbers = [
        field
        for field in SyncMethod.__slots__
        if isinstance(getattr(sheet.method, field), float)
        and getattr(sheet.method, field) != getattr(usual, field)
    ]
    assert set(numbers) <= set(sheet.sources)
    assert 0 < sync_seconds(placed(name)).seconds < 60


def test_nobody_tries_a_method_that_nobody_names():
    cuts = ((8, 1), (2, 1))
    assert not set(METHODS) & set(transitions_on_a_pool(*cuts))
    assert transitions_on_a_pool(*cuts, named=("verl-naive",))[-1] == "verl-naive"
    assert "verl-nccl" not in transitions_on_a_pool(*cuts, named=("verl-nccl",))


def test_ranks_that_meet_over_the_network_gather_at_its_own_rate_where_there_is_one():
    slower = replace(ONE_RANK, gather_network_bytes_per_second=5e9)
    apart = replace(CASE, gathers_across=True)
    assert method_seconds(slower, apart)[GATHER] == pytest.approx(100 / 5)
    # The other pool may be far away: those that train are near each other.
    assert method_seconds(slower, CASE)[GATHER] == method_seconds(ONE_RANK, CASE)[GATHER]


def test_a_shard_in_host_memory_comes_back_first_at_its_own_rate():
    method = replace(ONE_RANK, restore_bytes_per_second=2e9)
    away = replace(CASE, restored_bytes=8e9)
    assert method_seconds(method, away)[RESTORED] == pytest.approx(4)
    assert method_seconds(method, CASE)[RESTORED] == 0
    assert method_seconds(ONE_RANK, away)[RESTORED] == 0


def test_ranks_of_the_engine_cast_every_tensor_that_they_load_unless_it_comes_narrow():
    method = replace(ONE_RANK, load_seconds=1e-3, cast_seconds=2e-3)
    assert method_seconds(method, CASE)[LOADING] == pytest.approx(1)
    assert method_seconds(method, replace(CASE, casts=True))[LOADING] == pytest.approx(3)


def sharded(job=JOB, **sizes):
    """Return verl's sync on two nodes of eight from 16 ranks that shard a model."""
    before = TaskPlan(pool="p0", engine="fsdp2-hf", dp=16, **{"zero": 3} | sizes)
    after = TaskPlan(pool="p0", engine="vllm", tp=2, dp=8)
    return transition("verl-naive", before, after, Site(A100, 16, 8, 25e9), job, FACTS)


def test_copies_of_a_model_on_one_node_each_are_gathered_there():
    assert sync_case(sharded()).gathers_across
    assert sync_case(sharded(shard_ranks=16)).gathers_across
    assert not sync_case(sharded(shard_ranks=8)).gathers_across
    assert sync_seconds(sharded(shard_ranks=8)).seconds < sync_seconds(sharded()).seconds


def test_shards_come_back_tensor_by_tensor_and_whole_buffers_at_once():
    verl = replace(JOB, framework="verl-fsdp")
    model = sharded(verl).train
    away = sync_case(sharded(verl, offload=True)).restored_bytes
    assert away == pytest.approx(model.parameters * model.stored.weight_bytes / 16)
    assert sync_case(sharded(verl)).restored_bytes == 0
    assert sync_case(sharded(verl, offload=True, zero=1)).restored_bytes == 0


def test_adapters_that_are_synced_alone_are_not_cast():
    narrow = replace(JOB, rollout_precision="fp8")
    assert sync_case(sharded(narrow)).casts
    assert not sync_case(sharded(replace(narrow, quantised_at="sender"))).casts
    alone = FrozenDict({"actor": Adapter(rank=16, sync="adapter")})
    assert not sync_case(sharded(replace(narrow, adapters=alone))).casts


STAGED = SyncMethod(
    words="read from other hosts",
    pools="one or two",
    sender="receivers",
    transport="broadcast",
    staging="hosts of peers",
    staging_fraction=0.5,
    pipelined=True,
    bucket_bytes=10**9,
    load_bytes_per_second=40e9,
)


def test_reading_hides_behind_the_loading_of_one_bucket_a_round():
    # 100 GB over 16 readers at half of 50 GB/s: 0.25 s; each of them waits for a load of 2.5 s / 16.
    seconds = method_seconds(replace(STAGED, staging_overlaps="one load"), CASE)
    assert seconds[STAGING] == pytest.approx(0.25 - 2.5 / 16)
    assert seconds[LOADING] == pytest.approx(2.5)
    # Where loading is slow enough a bucket's reading shows once.
    slow = replace(STAGED, staging_overlaps="one load", load_bytes_per_second=10e9)
    assert method_seconds(slow, CASE)[STAGING] == pytest.approx(0.25 / 100)


def test_a_rank_that_reads_and_sends_does_one_after_the_other_while_buckets_are_loaded():
    one = replace(STAGED, staging="host of one peer", staging_overlaps="loading")
    seconds = method_seconds(one, CASE)
    assert seconds[STAGING] == pytest.approx(100 / 25)
    assert seconds[CARRYING] == pytest.approx(100 / 50)
    assert seconds[LOADING] == pytest.approx(2.5 / 100)


def test_one_rank_gathers_all_and_broadcasts_over_its_own_card():
    seconds = method_seconds(ONE_RANK, CASE)
    assert seconds[GATHER] == pytest.approx(100 / 10)
    assert seconds[CARRYING] == pytest.approx(100 / 50)


def test_relays_use_the_cards_of_the_whole_node_and_never_more_than_its_links():
    seconds = method_seconds(replace(ONE_RANK, relays=True), CASE)
    assert seconds[CARRYING] == pytest.approx(100 / 400)


def test_heads_of_stages_gather_at_once_and_send_in_turn():
    seconds = method_seconds(replace(ONE_RANK, sender="stage heads"), CASE)
    # Gathering, 10 s of it shared by four stages, is the longer: sending shows for one bucket of 100.
    assert seconds[GATHER] == pytest.approx(10 / 4)
    assert seconds[CARRYING] == pytest.approx(2 / 100)


def test_point_to_point_brings_a_rank_what_it_keeps():
    method = SyncMethod(
        words="sent by all",
        pools="two",
        sender="every rank",
        transport="point to point",
        gathers=False,
        load_bytes_per_second=25e9,
    )
    seconds = method_seconds(method, CASE)
    assert seconds[CARRYING] == pytest.approx(100 / 8 / 50)
    assert seconds[LOADING] == pytest.approx(100 / 8 / 25)


@given(
    bucket=st.integers(10**8, 10**10),
    transport=st.sampled_from(["process", "broadcast", "point to point"]),
    sender=st.sampled_from(["one rank", "stage heads", "every rank", "receivers"]),
    factor=st.floats(1, 10),
)
def test_more_bytes_never_take_less_and_overlap_never_takes_more(bucket, transport, sender, factor):
    method = replace(
        ONE_RANK, bucket_bytes=bucket, transport=transport, sender=sender, load_bytes_per_second=3e9
    )
    more = replace(CASE, num_bytes=CASE.num_bytes * factor, trained_bytes=CASE.num_bytes * factor)
    whole, overlapped = (
        sum(method_seconds(each, CASE).values())
        for each in (method, replace(method, pipelined=True))
    )
    assert overlapped <= whole * (1 + 1e-9)
    assert sum(method_seconds(method, more).values()) >= whole * (1 - 1e-9)


def test_a_checkpoint_of_a_mixture_has_three_tensors_for_every_expert():
    # 48 layers of 8 of attention and norms, a router and 3 x 128, beside embedding, norm and head.
    assert num_tensors(job_of("qwen3-30b-a3b").architecture("actor")) == 48 * (8 + 1 + 3 * 128) + 3


def test_a_method_on_one_pool_holds_both_shards_and_its_buckets():
    moved = placed("verl-naive")
    shard = 6_738_415_616 * 2 // 2
    assert extra_weight_bytes(moved) == pytest.approx(shard, rel=0.01)
    (weights, _) = transition_terms(moved).values()
    assert weights == extra_weight_bytes(moved) + 2048 * 2**20


def test_a_plan_that_names_a_method_pays_for_its_stages_even_where_layouts_are_equal():
    same = replace(AFTER, tp=8, dp=1)
    found = transition_cost(transition("verl-naive", BEFORE, same, NODE, JOB, FACTS))
    causes = dict(found.parts)
    assert {GATHER, LOADING} <= set(causes)
    assert sync_case(transition("verl-naive", BEFORE, same, NODE, JOB, FACTS)).tensors == 291


def test_pools_apart_have_buckets_on_both_sides_and_not_a_second_model():
    moved = transition("slime-nccl", BEFORE, AFTER, NODE, JOB, FACTS, target=NODE)
    for sends in (True, False):
        # Two buckets of 512 MiB.
        assert bucket_terms(moved, sends=sends)[WEIGHT_BUCKETS] == 2 * 512 * 2**20
        assert bucket_terms(moved, sends=sends)[SYNC_GROUP] == COMMUNICATOR_BYTES


def test_a_process_beside_the_engine_has_one_more_bucket_than_the_trainers_and_a_context():
    """verl's: two buckets of 2,048 MiB, or of what a plan says, and a third by which it hands weights on."""
    handed = transition("verl-nccl", BEFORE, AFTER, NODE, JOB, FACTS, target=NODE)
    alone = transition("slime-nccl", BEFORE, AFTER, NODE, JOB, FACTS, target=NODE)
    sent, got = (bucket_terms(handed, sends=sends) for sends in (True, False))
    assert (sent[WEIGHT_BUCKETS], got[WEIGHT_BUCKETS]) == (2 * 2**31, 3 * 2**31)
    said = replace(handed, bucket_bytes=2**30)
    assert bucket_terms(said, sends=False)[WEIGHT_BUCKETS] == 3 * 2**30
    assert [has_own_context(each) for each in (handed, alone)] == [False, True]


@pytest.mark.parametrize("mebibytes", [64, 1024, 4096])
def test_buckets_that_a_plan_says_are_those_of_memory_and_of_seconds(mebibytes):
    """64 MiB, the usual size of the executor's, is a size as any other; an embedding is held whole whatever it is."""
    handed = transition("verl-nccl", BEFORE, AFTER, NODE, JOB, FACTS, target=NODE)
    said = replace(handed, bucket_bytes=mebibytes * 2**20)
    largest = 2 * said.train.model.embedding_parameters
    assert bucket_terms(said, sends=True)[WEIGHT_BUCKETS] == max(2 * mebibytes * 2**20, largest)
    size = handed.sheet.method.bucket_bytes
    same = sync_seconds(replace(handed, bucket_bytes=size)).seconds
    assert same == sync_seconds(handed).seconds
    assert sync_seconds(said).seconds != same  # more calls, and less that does not overlap
    assert sync_case(said).bucket_bytes == mebibytes * 2**20


def test_a_method_that_sends_tensor_by_tensor_has_no_use_for_a_bucket():
    handed = transition("trl-server", BEFORE, AFTER, NODE, JOB, FACTS, target=NODE)
    said = replace(handed, bucket_bytes=2**30)
    assert sync_case(said) == sync_case(handed)
    assert bucket_terms(said, sends=False) == bucket_terms(handed, sends=False)


@pytest.mark.parametrize(
    ("name", "engine", "synced"),
    [
        ("verl-nccl", "vllm", 3 * 2**31 + COMMUNICATOR_BYTES),
        ("verl-nixl", "vllm", 3 * 2**31),  # by RDMA, without a group of NCCL
        ("verl-nccl", "sglang-0.5", 0),  # which gives its cache back while weights come
        ("slime-nccl", "sglang-0.5", 2**30 + COMMUNICATOR_BYTES),
        ("slime-nccl", "tensorrt-llm", 0),  # whose cache is of what is free
    ],
)
def test_weights_come_beside_the_cache_of_an_engine_that_keeps_it(name, engine, synced):
    job, apart = job_of(), replace(AFTER, engine=engine)
    moved = transition(name, BEFORE, apart, NODE, job, facts_of(job), target=NODE)
    assert synced_bytes(moved) == synced


def test_no_weights_come_to_an_engine_on_the_pool_that_trains():
    assert synced_bytes(placed("verl-naive")) == 0


def test_an_all_gather_of_whole_copies_holds_a_piece_beside_both_shards():
    gathered = transition("all-gather", replace(BEFORE, tp=4, pp=2), AFTER, NODE, JOB, FACTS)
    (weights, _) = transition_terms(gathered).values()
    layers, model = 8 * 202_383_360, 6_738_415_616
    piece = 2 * (layers + 32_000 * 4096)
    assert weights <= extra_weight_bytes(gathered) + piece < 2 * model


@pytest.mark.parametrize("name", [name for name in METHODS if TRANSFERS.load(name).between_pools])
@pytest.mark.parametrize("cut", [{"tp": 8}, {"pp": 4, "tp": 2}, {"dp": 8, "zero": 3}])
def test_no_cut_of_training_syncs_faster_than_the_least(name, cut):
    before = TaskPlan(pool="p0", engine="megatron-core", **cut)
    least = least_sync_seconds(placed(name)).seconds
    found = transition(name, before, AFTER, NODE, JOB, FACTS, target=NODE)
    assert least_sync_seconds(found).seconds <= sync_seconds(found).seconds * (1 + 1e-9)
    assert least > 0
