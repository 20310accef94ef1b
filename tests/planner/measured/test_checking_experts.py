"""Causes that a log of a model with experts is told."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.calibration import STAGE_TASKS
from rlplan.files.decoding import decode
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import PlanDraft
from rlplan.planner.answers.completion import complete
from rlplan.planner.measured.checking import RunContext, check_steps
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from rlplan.trainers import TrainerOptions
from tests.planner.measured.test_checking import steps_of, written


@pytest.fixture(scope="module")
def experts():
    """Return a job of a model with experts under FSDP, with a plan."""
    job = decode(
        Job,
        {
            "algorithm": "grpo",
            "framework": "verl-fsdp",
            "models": dict.fromkeys(("actor", "reference"), "qwen3-30b-a3b"),
            "workload": {
                "prompts": 64, "samples_per_prompt": 8, "prompt_tokens": 155, "response_tokens": 600, "updates": 2,
            },
            "cluster": [{"gpu": "h200", "gpus_per_node": 8}],
            "rewards": {"function": "exact_match", "function_seconds_per_sample": 1e-4},
        },
        "job",
    )  # fmt: skip
    job = resolve_job(job, Path())
    facts = load_facts(job)
    pools = [{"gpus": 8, "roles": ["actor", "reference"]}]
    draft = decode(PlanDraft, {"job": "job.yaml", "pools": pools}, "plan")
    return RunContext(plan=complete(draft, job, facts), facts=facts)


@pytest.mark.full
def test_a_loop_over_experts_and_an_eager_engine_are_named_first_where_stages_take_as_long(
    experts, tmp_path
):
    trainers = {role: TrainerOptions(experts="one by one") for role in ("actor", "reference")}
    tasks = experts.plan.tasks
    generate = replace(tasks["actor.generate"], engine=f"{tasks['actor.generate'].engine}-eager")
    slow = replace(
        experts.plan,
        job=replace(experts.plan.job, trainers=FrozenDict(trainers)),
        tasks=tasks.with_item("actor.generate", generate),
    )
    costs = {cost.name: cost.seconds for cost in simulate(slow, experts.facts).costs}
    seconds = {
        stage: sum(costs.get(task, 0.0) for task in tasks) for stage, tasks in STAGE_TASKS.items()
    }
    found = check_steps(written(tmp_path / "slow.jsonl", steps_of(seconds, "verl")), experts)
    causes = {stage.name: stage.causes for stage in found.stages}
    assert causes["update_actor"][0].startswith("expert loop: ")
    # The sync of weights, which this log times apart, is no part of what generation would take without CUDA graphs.
    assert causes["generation"][0].startswith("eager engine: ")
