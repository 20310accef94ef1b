"""Made-up rows are all that an update's experience asks for, whatever the algorithm."""

import pytest
import torch

from rlplan.algorithms import algorithm_names, load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.executor.probing import preparation
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup, Rewards
from rlplan.workload import Workload
from tests.executor.plans import TINY

SHAPE = (8, 12)


def job_of(name):
    algorithm = load_algorithm(name)
    roles = (*algorithm.required_roles, *algorithm.optional_roles)
    grouped = not algorithm.one_sample
    return Job(
        algorithm=name,
        models=FrozenDict(dict.fromkeys(roles, TINY)),
        workload=Workload(
            prompts=2 if grouped else 8,
            samples_per_prompt=4 if grouped else 1,
            prompt_tokens=6,
            response_tokens=6,
        ),
        cluster=(NodeGroup(gpu="cpu", gpus_per_node=1, inter_node_gbps=200.0),),
        rewards=Rewards(function="digits"),
    )


@pytest.mark.parametrize("name", algorithm_names())
def test_every_update_of_every_algorithm_has_its_experience(name):
    job = job_of(name)
    updates = [t for t in tasks_of(load_algorithm(name), job) if t.kind == "train"]
    assert updates
    for task in updates:
        make = preparation(job, task.head, SHAPE, torch.device("cpu"), lambda total: total)
        rows, sums = make()
        assert rows["advantages"].shape == SHAPE
        assert torch.isfinite(rows["advantages"]).all()
        assert "reward_sum" in sums
