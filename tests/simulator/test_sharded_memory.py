"""What weights that are sharded further take: gathered before generation, and between steps."""

from dataclasses import replace

import pytest

from rlplan.layout import ModelCut
from rlplan.parts import num_parameters
from rlplan.plan import TaskPlan
from rlplan.simulator.memory.transition_memory import transition_terms
from rlplan.simulator.model import largest_shard
from rlplan.simulator.placed import PlacedTask
from rlplan.simulator.stages import task_memory
from tests.simulator.cost_jobs import PPO, facts_of, job_of, site_of
from tests.simulator.placing import transition

JOB = job_of(nodes=1)


def layout(engine, **fields):
    return TaskPlan(pool="p0", engine=engine, **fields)


def resident(job, dp):
    trained = layout("torch-3d", dp=dp, zero=2)
    placed = PlacedTask(PPO["actor.update"], trained, site_of(job, dp), job, facts_of(job))
    return task_memory(placed).resident


def test_experts_are_gathered_out_of_a_copy_of_what_the_rank_holds():
    job = job_of("mixtral-8x7b", nodes=1)
    model, place = job.architecture("actor"), (site_of(job, 8), job, facts_of(job))
    generate = layout("torch-static", tp=2, dp=4)
    trained = layout("torch-3d", tp=2, dp=4, ep=4)
    moved = transition("hybridflow", trained, generate, *place)
    terms = transition_terms(replace(moved, bucket_bytes=10**6))
    held, whole = (2 * largest_shard(model, "lm", ModelCut(tp=2, ep=ep)) for ep in (4, 1))
    # The generate shard, all experts in one tensor, and what the rank holds beside it.
    assert terms["actor weights for generation"] == whole + whole + held


@pytest.mark.parametrize(("precision", "copies"), [("fp32", 1), ("bf16", 0)])
def test_whole_weights_whose_gradients_are_sharded_are_stepped_in_shards(precision, copies):
    job = replace(JOB, precision=precision)
    held = resident(job, dp=8)
    share = -(-num_parameters(JOB.architecture("actor")) // 8)
    # In mixed precision the shard is the master weight, which the optimizer's states count.
    assert held.get("actor weights that are stepped", 0) == copies * 4 * share
    assert "actor weights that are stepped" not in resident(job, dp=1)
