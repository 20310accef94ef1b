"""What a worker does between two plans, without Ray: it drops all that it holds, on a GPU as on a core."""

import weakref

import pytest
import torch

from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.workers.calls import PoolSetup, RankInPool
from rlplan.executor.workers.worker import Worker
from tests.executor.plans import make_job, make_plan

ROLES = ("actor", "critic", "reference", "reward")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_worker_that_leaves_a_plan_holds_nothing_of_it_and_takes_up_another(device):
    plan = make_plan(make_job(), {"p0": (1, ROLES)})
    on_device = tuple(task for task in check_runnable(plan) if task.has_model)
    setup = PoolSetup(plan=plan, tasks=on_device, seed=1, end_ids=())
    place = RankInPool(rank=0, ranks=1, address="", device=device)
    worker, weights, held = Worker(), [], []
    for _ in range(2):
        worker.join(place)
        worker.prepare(setup)
        weights.append(worker.weights("actor"))
        if device == "cuda":
            held.append(torch.cuda.memory_allocated())
        models = weakref.ref(worker._models)
        worker.leave(None)
        assert models() is None
        if device == "cuda":
            assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (0, 0)
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    assert len(set(held)) <= 1
    assert all(held)
