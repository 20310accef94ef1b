from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import begun_of
from rlplan.planner.layouts.settings import (
    LARGEST_STAGE,
    PoolCuts,
    generate_layouts,
    infer_layouts,
    nearly_equal,
    powers_of_two,
    train_layouts,
)
from rlplan.profiles.catalog import load_engine
from rlplan.rules.layouts import divisors
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


def test_divisors_and_powers_of_two():
    assert divisors(12) == (1, 2, 3, 4, 6, 12)
    assert powers_of_two(12) == (1, 2, 4, 8, 12)
    assert powers_of_two(1) == (1,)


@pytest.mark.parametrize(("stages", "near"), [(8, True), (32, True), (64, False), (128, False)])
def test_no_stage_of_61_layers_is_without_one(stages, near):
    assert nearly_equal(stages, 61) is near
