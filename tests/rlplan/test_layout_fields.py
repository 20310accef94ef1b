"""The fields of a layout stand once: drafts, trainers' sizes and columns of searches have all of them."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.files.decoding import decode
from rlplan.plan import LAYOUT_FIELDS, PlanDraft, TaskDraft, TaskPlan
from rlplan.planner.plans.trained import TrainerSizes, trainer_task
from rlplan.profiles.catalog import load_engine
from rlplan.simulator.placed import COLUMNS, OPEN_COLUMNS, RECOMPUTES, columns_of

NAMES = [each.name for each in fields(TaskPlan)]


def test_drafts_and_trainers_sizes_have_all_fields_and_columns_those_that_are_searched():
    assert [each.name for each in LAYOUT_FIELDS] == NAMES
    assert [each.name for each in fields(TaskDraft)] == NAMES
    assert [each.name for each in fields(TrainerSizes)][: len(NAMES)] == NAMES
    assert set(NAMES) - set(COLUMNS) == {"pool", "engine", "max_running", "memory_fraction"}
    assert set(OPEN_COLUMNS) <= set(COLUMNS)


def test_a_draft_leaves_everything_open_and_is_read_as_strictly_as_a_plan():
    assert {getattr(TaskDraft(), name) for name in NAMES} == {None}
    assert replace(TaskDraft(tp=2), pp=3) == TaskDraft(tp=2, pp=3)
    read = decode(PlanDraft, {"job": "x", "tasks": {"actor.update": {"zero": 3}}}, "plan")
    assert read.tasks["actor.update"] == TaskDraft(zero=3)
    for wrong in ({"tp": 0}, {"zero": 4}, {"recompute": "all"}, {"tpp": 2}):
        with pytest.raises(FileError, match=r"tasks\.actor\.update\."):
            decode(PlanDraft, {"job": "x", "tasks": {"actor.update": wrong}}, "plan")


LAYOUTS = st.builds(
    TaskPlan,
    pool=st.just(""),
    engine=st.just("megatron"),
    tp=st.integers(1, 8),
    pp=st.integers(1, 8),
    ep=st.integers(1, 8),
    expert_tp=st.none() | st.integers(1, 8),
    last_stage_layers=st.none() | st.integers(1, 8),
    micro_batch=st.integers(1, 64),
    token_budget=st.none() | st.integers(1, 10**6),
    recompute=st.sampled_from(RECOMPUTES),
    zero=st.integers(0, 3),
    shard_ranks=st.none() | st.integers(1, 8),
    offload=st.booleans(),
)


@given(st.lists(LAYOUTS, min_size=1, max_size=5))
def test_layouts_come_back_from_their_columns(layouts):
    table = columns_of("megatron", layouts)
    assert len(table) == len(layouts)
    assert table.layouts(np.arange(len(layouts))) == layouts


def test_passes_without_an_update_have_their_own_batches_and_compute_nothing_again():
    sizes = TrainerSizes(
        pool="p", tp=2, micro_batch=4, infer_micro_batch=8, recompute="full", chunks=2, offload=True,
        infer_offload=False, expert_tp=1,
    )  # fmt: skip
    engine = load_engine("megatron-core")
    trained, passed = (trainer_task(sizes, engine, trains=trains) for trains in (True, False))
    assert (trained.micro_batch, trained.recompute, trained.chunks, trained.offload) == (
        4,
        "full",
        2,
        True,
    )
    assert (passed.micro_batch, passed.recompute, passed.chunks, passed.offload) == (
        8,
        "none",
        1,
        False,
    )
    assert (trained.tp, trained.expert_tp) == (passed.tp, passed.expert_tp) == (2, 1)
    assert trained.engine == "megatron-core"
    assert type(trained) is TaskPlan
