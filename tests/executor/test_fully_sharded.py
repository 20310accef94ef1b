"""Where weights are between steps: whole in ZeRO stage 2, in shards in stage 3."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.executor.learning.train import update_model
from rlplan.executor.parallel.meshes import make_mesh
from rlplan.executor.parallel.positions import task_positions
from rlplan.executor.weights.shard import build_shard
from rlplan.job import Hyperparameters
from rlplan.plan import TaskPlan
from rlplan.profiles.facts import load_facts
from rlplan.simulator.placed import PlacedTask, Site
from rlplan.simulator.stages import task_memory
from tests.executor.plans import make_job
from tests.executor.test_parallel_models import QWEN3, UPDATES, batch_of, share_of

pytestmark = pytest.mark.ray

BYTES = torch.float32.itemsize


class CountedGathers(TorchDispatchMode):
    """Count the all-gathers of a rank; a profiler takes much longer."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += "allgather" in function.name()
        return function(*args, **(kwargs or {}))


def gathers_of(zero, rank, ranks):
    """Return what a rank holds after updates, and how often it gathered weights in them."""
    layout = TaskPlan(pool="p0", zero=zero, dp=ranks, micro_batch=3)
    mesh = make_mesh(task_positions(layout, ranks), rank, torch.device("cpu"))
    shard = build_shard(
        QWEN3, "lm", mesh, role="actor", seed=1, precision="fp32", learning_rate=1e-3, layout=layout
    )
    with CountedGathers() as gathers:
        update_model(
            shard,
            share_of(batch_of("lm"), mesh.dp, mesh.dp_size),
            "ppo_policy",
            Hyperparameters(temperature=0.7, max_gradient_norm=0.5, clip_ratio=0.2),
            updates=UPDATES,
            epochs=1,
            micro_batch=layout.micro_batch,
        )
    held = [weight for stage in shard.stages for weight in stage.parameters()]
    sharded = [isinstance(weight, DTensor) for weight in held]
    elements = sum(weight.numel() for weight in held)
    stored = sum(part.numel() for part in shard.flat.stored())
    moments = sum(state.numel() for state in shard.trainer.states())
    return gathers.count, sharded, elements, stored, moments


def resident_bytes():
    """Return the forecast bytes of weights and optimizer states on one of two ranks in stage 2."""
    job = make_job("grpo", model=QWEN3)
    task = next(t for t in tasks_of(load_algorithm("grpo"), job) if t.kind == "train")
    layout = TaskPlan(pool="p0", engine="torch-3d", zero=2, dp=2, micro_batch=3)
    job = replace(job, precision="fp32")
    site = Site("cpu", 2, 2, 1e9)
    resident = task_memory(PlacedTask(task, layout, site, job, load_facts(job))).resident
    return sum(size for term, size in resident.items() if "gradients" not in term)


def test_stage_2_gathers_once_a_step_and_stage_3_for_every_pass(worker_pool):
    found = {zero: worker_pool.on_ranks(2, partial(gathers_of, zero)) for zero in (2, 3)}
    for rank in range(2):
        gathered, sharded, elements, stored, moments = found[2][rank]
        assert not any(sharded)
        assert moments == 2 * stored < 1.01 * elements
        assert BYTES * (elements + stored + moments) == pytest.approx(resident_bytes(), rel=0.01)
        again, rests, *_ = found[3][rank]
        assert all(rests)
        # Two micro-batches a step, each with a forward and a backward pass.
        assert gathered > 0
        assert again == 4 * gathered
