"""Plans of a job that is under way, for the nodes that are left of its cluster."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import InfeasibleError
from rlplan.files.decoding import decode
from rlplan.job import Job, Specs
from rlplan.plan import Mode
from rlplan.planner.answers.best_plans import best_plans, plans_on
from rlplan.planner.requests.pinned import Pinned
from rlplan.planner.requests.schedules import AskedSchedules, schedule_of
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts

JOB = resolve_job(decode(
    Job,
    {
        "algorithm": "grpo",
        "models": {"actor": "qwen2.5-1.5b", "reference": "qwen2.5-1.5b"},
        "workload": {
            "prompts": 64, "samples_per_prompt": 4, "prompt_tokens": 256, "response_tokens": 1024,
        },
        "cluster": [
            {"gpu": "h100-80gb-sxm", "gpus_per_node": 2, "nodes": 2},
            {"gpu": "a100-80gb-sxm", "gpus_per_node": 2, "ray_resource": "old"},
        ],
        "rewards": {"function": "exact_match"},
    },
    "job",
), Path())  # fmt: skip
H100, A100 = JOB.cluster
FACTS = load_facts(JOB)


def plan_in(mode: Mode, job=JOB):
    asked = AskedSchedules(modes=(mode,))
    return best_plans(job, FACTS, pinned=Pinned(asked=asked), seconds=20).plans[0].plan


@pytest.mark.full
@pytest.mark.parametrize("mode", ["sync", "one-step-off", "async"])
@pytest.mark.parametrize(
    "left", [(replace(H100, nodes=1), A100), (H100,), (A100,)], ids=["one H100", "H100", "A100"]
)
def test_a_plan_for_fewer_nodes_is_of_the_same_job_in_the_same_mode_and_by_the_same_engines(
    mode, left
):
    before = plan_in(mode)
    after = next(plans_on(before, left, FACTS))
    assert schedule_of(after) == schedule_of(before)
    for task in ("actor.update", "actor.generate"):
        assert after.tasks[task].engine == before.tasks[task].engine
    assert after.job.cluster == left
    assert replace(after.job, cluster=(), engines=before.job.engines) == replace(
        before.job, cluster=()
    )
    room = {group.gpu: group.gpus for group in left}
    for device, gpus in room.items():
        assert sum(pool.gpus for pool in after.pools if pool.device == device) <= gpus
    assert {pool.device for pool in after.pools} <= {*room, "host"}


def test_where_fewer_nodes_keep_no_spec_of_the_job_the_spec_is_named():
    before = plan_in("sync")
    (after, *_) = plans_on(before, (A100,), FACTS)
    both = [each.forecast.iteration_seconds for each in best_plans(JOB, FACTS).plans[:1]]
    limit = Specs(iteration_seconds=1.05 * both[0])
    limited = replace(before, job=replace(before.job, specs=limit))
    with pytest.raises(
        InfeasibleError, match=r"specs\.iteration_seconds \(at most .*\) would have"
    ):
        next(plans_on(limited, (A100,), FACTS))
    assert after.job.specs == JOB.specs
