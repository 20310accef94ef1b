"""What lives on the host between uses is the same when it comes back, and takes no device memory."""

import numpy as np
import pytest
import torch

from rlplan.executor.parallel.meshes import make_mesh
from rlplan.executor.parallel.positions import train_positions
from rlplan.executor.weights.shard import build_shard
from rlplan.plan import TaskPlan
from tests.executor.plans import TINY


def shard_of(rate, zero=0):
    return build_shard(
        TINY,
        "lm",
        make_mesh(train_positions(1, 1), 0, torch.device("cpu")),
        role="actor",
        seed=1,
        precision="fp32",
        learning_rate=rate,
        layout=TaskPlan(pool="p0", zero=zero),
    )


def step(shard):
    shard.flat.gradients.copy_(torch.linspace(-1, 1, len(shard.flat.gradients)))
    shard.trainer.clip_and_step(1.0)


@pytest.mark.parametrize("zero", [0, 1])
def test_optimizer_states_come_back_as_they_were(zero):
    offloaded, undisturbed = shard_of(1e-3, zero), shard_of(1e-3, zero)
    offloaded.offload()
    for _ in range(3):
        step(undisturbed)
        with offloaded.states_on_device():
            step(offloaded)
        assert [state.untyped_storage().nbytes() for state in offloaded.trainer.states()] == [0, 0]
    assert torch.equal(offloaded.flat.values, undisturbed.flat.values)
    assert np.ptp(undisturbed.flat.values.numpy() - shard_of(1e-3).flat.values.numpy()) > 1e-3


def test_weights_that_infer_come_back_as_they_were():
    shard, expected = shard_of(None), shard_of(None).flat.values.clone()
    shard.offload()
    assert shard.flat.values.untyped_storage().nbytes() == 0
    for _ in range(2):
        with shard.weights_on_device():
            assert torch.equal(shard.flat.values, expected)
            embedding = shard.stages[0].backbone.embed_tokens.weight
            assert embedding.abs().sum() > 0
        assert shard.flat.values.untyped_storage().nbytes() == 0


def test_states_of_one_way_of_sharding_go_on_in_another():
    first, second = shard_of(1e-3, zero=0), shard_of(1e-3, zero=1)
    assert first.trainer.whole_moments() == {}
    step(first)
    second.flat.write_values(first.flat.whole_values())
    second.trainer.write_moments(first.trainer.whole_moments(), first.trainer.steps)
    assert second.trainer.steps == 1
    step(first)
    step(second)
    assert torch.equal(first.flat.values, second.flat.values)
