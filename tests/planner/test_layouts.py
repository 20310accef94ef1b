from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import begun_of
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Rewards
from rlplan.plan import TaskDraft
from rlplan.planner.layouts.settings import (
    LARGEST_STAGE,
    PinnedCut,
    PoolCuts,
    Sizes,
    generate_layouts,
    infer_layouts,
    is_power,
    nearly_equal,
    powers_of_two,
    running_limits,
    train_layouts,
    train_settings,
)
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_engine, load_model
from rlplan.profiles.facts import load_facts
from rlplan.rules.layouts import divisors
from rlplan.workload import Workload
from tests.planner.brute_force import small_jobs

TRAIN_ENGINES = st.sampled_from(["megatron-core", "fsdp2", "torch-tp-dp"]).map(load_engine)
GENERATE_ENGINES = st.sampled_from(["vllm", "torch-static"]).map(load_engine)
PLACES = st.sampled_from([(1, 8), (2, 8), (4, 4), (6, 6), (8, 8), (8, 4), (16, 8), (24, 8)])


def fits_model(layout, model, engine, gpus, gpus_per_node):
    assert layout.gpus == gpus
    assert layout.tp <= gpus_per_node or (engine.tp_leaves_nodes and layout.pp == 1)
    assert model.num_heads % layout.tp == 0
    copied = engine.replicates_kv_heads and layout.tp % model.num_kv_heads == 0
    assert copied or model.num_kv_heads % layout.tp == 0
    each = -(-model.num_layers // layout.pp)
    assert model.num_layers == each * layout.pp or not engine.equal_parts
    assert each * layout.pp <= LARGEST_STAGE * model.num_layers
    assert layout.pp <= (engine.max_pp or gpus)


@given(small_jobs(), TRAIN_ENGINES, PLACES)
def test_training_layouts_divide_gpus_heads_and_layers_and_share_out_an_update(job, engine, place):
    model = job.architecture("actor")
    unit = job.workload.prompts if load_algorithm(job.algorithm).groups else job.workload.sequences
    sequences = job.workload.sequences // job.workload.updates
    seen = []
    for sizes in PoolCuts(model, engine, job, *place).train():
        assert sizes.dp <= sequences
        assert not engine.equal_parts or unit // job.workload.updates % sizes.dp == 0
        for layout in train_layouts(sizes, engine, job, model):
            fits_model(layout, model, engine, *place)
            assert layout.micro_batch <= -(-sequences // layout.dp)
            assert layout.zero in engine.zero_stages
            assert layout.recompute in engine.recompute_modes
            seen.append(layout)
    assert len(set(seen)) == len(seen)


@given(small_jobs(), TRAIN_ENGINES, PLACES)
def test_inference_layouts_divide_gpus_heads_and_layers_and_share_out_the_batch(job, engine, place):
    model = job.architecture("reference")
    seen = []
    for sizes in PoolCuts(model, engine, job, *place).infer():
        assert sizes.dp <= job.workload.sequences
        assert not engine.equal_parts or job.workload.prompts % sizes.dp == 0
        for layout in infer_layouts(sizes, engine, job):
            fits_model(layout, model, engine, *place)
            assert layout.micro_batch <= -(-job.workload.sequences // layout.dp)
            assert layout.zero in ((0, 3) if 3 in engine.zero_stages else (0,))
            seen.append(layout)
    assert len(set(seen)) == len(seen)


@given(small_jobs(), GENERATE_ENGINES, PLACES)
def test_generation_layouts_divide_gpus_heads_and_layers_and_share_out_the_batch(
    job, engine, place
):
    model = job.architecture("actor")
    found = list(generate_layouts(PoolCuts(model, engine, job, *place)))
    for layout in found:
        fits_model(layout, model, engine, *place)
        assert not engine.equal_parts or job.workload.prompts % layout.dp == 0
        assert layout.max_running <= -(-begun_of(job).sequences // layout.dp)
    assert len(set(found)) == len(found)


@given(small_jobs(), st.sampled_from([1.0, 1.5, 3.0]))
def test_a_replica_may_run_its_share_of_all_that_is_begun_at_a_time(job, ratio):
    job = replace(job, workload=replace(job.workload, over_provisioning=ratio))
    begun = begun_of(job).sequences
    most = dict[int, int]()
    for layout in generate_layouts(
        PoolCuts(job.architecture("actor"), load_engine("vllm"), job, 8, 8)
    ):
        most[layout.dp] = max(layout.max_running, most.get(layout.dp, 0))
    assert most == {dp: -(-begun // dp) for dp in most}


@given(small_jobs(), GENERATE_ENGINES)
def test_sequences_beyond_a_models_positions_have_no_layout(job, engine):
    short = replace(
        job.architecture("actor"), max_positions=job.workload.longest_sequence_tokens - 1
    )
    assert not list(generate_layouts(PoolCuts(short, engine, job, 1, 1)))


@pytest.mark.parametrize(
    ("local", "begun", "limits"),
    [
        (8, 8, (8,)),
        (8, 10, (8, 10)),
        (100, 300, (64, 100, 256, 300)),
        (1024, 2048, (64, 256, 1024)),
        (2000, 4000, (64, 256, 1024)),
    ],
)
def test_as_many_sequences_run_as_are_begun(local, begun, limits):
    assert running_limits(local, begun) == limits


@given(st.integers(1, 3000), st.integers(0, 3000))
def test_where_more_is_begun_no_limit_is_lost(local, more):
    assert set(running_limits(local, local)) <= set(running_limits(local, local + more))


@given(small_jobs(), st.sampled_from([1, 3, 5, 6]), st.integers(1, 4))
def test_a_larger_cluster_has_the_cuts_of_one_of_few_whole_nodes(job, per_node, nodes):
    """Pipelines of other sizes than powers of two that do not divide the layers are of all GPUs only."""
    model, engine = job.architecture("actor"), load_engine("fsdp2")

    def cuts(cluster_nodes):
        group = replace(job.cluster[0], gpus_per_node=per_node, nodes=cluster_nodes)
        pool = PoolCuts(model, engine, replace(job, cluster=(group,)), nodes * per_node, per_node)
        every = {*pool.train(), *pool.infer()}
        return {each for each in every if is_power(each.pp) or model.num_layers % each.pp == 0}

    assert cuts(nodes) <= cuts(nodes + 1)


def test_one_node_more_keeps_the_plan_of_three_gpus_that_share_out_no_batch_equally():
    """32 sequences on three GPUs were 4 % slower once the cluster had a second node, on two of whose six GPUs it ran."""
    job = Job(
        algorithm="reinforce-plus-plus",
        models=FrozenDict(dict.fromkeys(("actor", "reference"), load_model("qwen2.5-1.5b"))),
        workload=Workload(prompts=16, samples_per_prompt=2, prompt_tokens=64, response_tokens=300),
        cluster=(NodeGroup(gpu="mi300x", gpus_per_node=3, inter_node_gbps=50.0),),
        engines=Engines(train="fsdp2", generate="vllm-0.15"),
        precision="bf16",
        rewards=Rewards(function="digits"),
    )
    more = replace(job, cluster=(replace(job.cluster[0], nodes=2),))
    one, two = (search(each, load_facts(each)).plans[0] for each in (job, more))
    assert one.plan.tasks["actor.update"].dp == 3
    assert two.forecast.iteration_seconds <= one.forecast.iteration_seconds


def test_a_pinned_micro_batch_beyond_a_ranks_sequences_leaves_budgets_of_as_many():
    """Plans of slime have one budget for passes over a batch, 8 sequences of a rank here, and over an update, 4 of them."""
    job = replace(
        deepseek(1),
        models=FrozenDict({"actor": load_model("qwen3-0.6b")}),
        workload=Workload(
            prompts=8, samples_per_prompt=2, prompt_tokens=300, response_tokens=2000, updates=2
        ),
        framework="slime",
    )
    model, engine = job.architecture("actor"), load_engine("megatron-core-2025")
    free, pinned = (
        train_settings(Sizes(1, 1, 2), model, engine, job, draft)
        for draft in (TaskDraft(), TaskDraft(micro_batch=14))
    )
    assert max(each.token_budget for each in free) == 16384
    assert {(each.micro_batch, each.token_budget) for each in pinned} == {(14, 0), (14, 32768)}


def deepseek(nodes, gpu="h20-141gb"):
    """Return a job of GRPO with DeepSeek-V3, whose 61 layers no number but 61 divides."""
    return Job(
        algorithm="grpo",
        models=FrozenDict({"actor": load_model("deepseek-v3")}),
        workload=Workload(
            prompts=96, samples_per_prompt=8, prompt_tokens=256, response_tokens=1024
        ),
        cluster=(NodeGroup(gpu=gpu, gpus_per_node=8, nodes=nodes, inter_node_gbps=400.0),),
        engines=Engines(train="megatron-core-2025", generate="sglang-0.5"),
        precision="bf16",
        rewards=Rewards(function="digits"),
    )


def stages(job, gpus, engine="megatron-core-2025"):
    """Return the numbers of pipeline stages that are listed for tensor-parallel groups of a node."""
    cuts = PoolCuts(job.architecture("actor"), load_engine(engine), job, gpus, 8)
    return {sizes.pp for sizes in cuts.splits() if sizes.tp == 8}


def test_all_gpus_of_a_device_may_be_stages_that_are_no_power_of_two():
    # 61 layers on 3, 6 and 12 stages: the fullest has 21, 11 and 6, where the mean is 20.3, 10.2 and 5.1.
    assert stages(deepseek(12), 96) == {1, 2, 4, 3, 6, 12}
    assert stages(deepseek(24), 96) == {1, 2, 4}, "a part of the GPUs"
    assert stages(deepseek(16), 128) == {1, 2, 4, 8, 16}


def test_engines_that_generate_share_whole_experts_out_over_tensor_parallel_groups():
    job = deepseek(2)
    engine = load_engine("sglang-0.5")
    found = list(generate_layouts(PoolCuts(job.architecture("actor"), engine, job, 16, 8)))
    whole = {(each.tp, each.ep) for each in found if each.expert_tp == 1 and each.pp == 1}
    assert {(8, 8), (8, 16), (4, 4), (4, 8), (4, 16), (2, 16)} <= whole
    assert all(each.ep % each.tp == 0 for each in found if each.expert_tp == 1)
    train = PoolCuts(job.architecture("actor"), load_engine(job.engines.train), job, 16, 8)
    assert {each.ep for each in train.splits() if each.expert_tp == 1 and each.tp == 4} == {4}


@pytest.mark.parametrize(
    ("engine", "sizes"), [("megatron-core-2025", {1, 2, 4, 8}), ("fsdp2", {1})]
)
def test_an_engine_without_whole_experts_cuts_pinned_ones_as_all_else(engine, sizes):
    job = deepseek(1)
    asked = PinnedCut(sizes=TaskDraft(expert_tp=1))
    cuts = PoolCuts(job.architecture("actor"), load_engine(engine), job, 8, 8, asked)
    assert {each.tp for each in cuts.splits() if each.expert_tp == 1} == sizes


@pytest.mark.parametrize(
    ("ends", "stages"),
    [
        ({"last_stage_layers": 7}, {2, 4}),
        ({"first_stage_layers": 25}, {2, 4}),
        ({"first_stage_layers": 27}, {2}),
    ],
)
def test_pipelines_have_layers_left_between_stages_whose_layers_are_pinned(ends, stages):
    """Of 28 layers; without a pipeline there is no first stage."""
    job = replace(deepseek(1), models=FrozenDict({"actor": load_model("qwen3-0.6b")}))
    asked = PinnedCut(sizes=TaskDraft(**ends))
    cuts = PoolCuts(job.architecture("actor"), load_engine("megatron-core"), job, 4, 8, asked)
    assert {each.pp for each in cuts.splits()} == stages


def test_divisors_and_powers_of_two():
    assert divisors(12) == (1, 2, 3, 4, 6, 12)
    assert powers_of_two(12) == (1, 2, 4, 8, 12)
    assert powers_of_two(1) == (1,)


@pytest.mark.parametrize(("stages", "near"), [(8, True), (32, True), (64, False), (128, False)])
def test_no_stage_of_61_layers_is_without_one(stages, near):
    assert nearly_equal(stages, 61) is near
