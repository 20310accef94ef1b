"""What layers compute again in the backward pass, and where their inputs wait for it."""

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from rlplan.executor.model import building
from tests.executor.test_parallel_models import LLAMA, UPDATES, train

# By name: ranks, model, head and sizes.
CASES: dict[str, tuple[int, str, str, dict[str, Any]]] = {
    "one process": (1, "llama", "lm", {}),
    "tp 2 x pp 2, sequences cut": (
        4,
        "qwen3",
        "lm",
        {"tp": 2, "pp": 2, "engine": "torch-3d-sp", "micro_batch": 6},
    ),
    "pp 2 interleaved": (2, "qwen3", "lm", {"pp": 2, "chunks": 2}),
    "fully sharded": (2, "llama", "lm", {"zero": 3}),
    "ep 2": (2, "qwen3_moe", "lm", {"ep": 2}),
    "a critic on cp 2": (2, "llama", "scalar", {"cp": 2}),
}


def both(rank, ranks, case):
    """Return what a rank has after updates with inputs where they are, and in host memory."""
    size, model, head, settings = case
    modes = ("full", "full-offload")
    return [
        train(rank, ranks, (size, model, head, settings | {"recompute": mode})) for mode in modes
    ]


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("name", CASES)
def test_inputs_in_host_memory_change_no_bit_of_what_is_learnt(name, worker_pool):
    ranks = CASES[name][0]
    for stays, leaves in worker_pool.on_ranks(ranks, partial(both, case=CASES[name])):
        assert leaves[1] == stays[1]
        for key, (values, *_) in stays[3].items():
            assert np.array_equal(leaves[3][key][0], values), key


@cache
def packed(recompute):
    """Return the shapes of what goes to host memory in the updates of one process, and of what comes back."""
    gone, back = [], []

    class Counted(saved_tensors_hooks):
        def __init__(self, *, pin_memory):
            assert not pin_memory
            super().__init__(self.pack, self.unpack)

        @staticmethod
        def pack(tensor):
            gone.append(tuple(tensor.shape))
            return tensor.numpy(force=True).copy()

        @staticmethod
        def unpack(array):
            back.append(array.shape)
            return torch.from_numpy(array)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "save_on_cpu", Counted)
        done = train(0, 1, (1, "llama", "lm", {"recompute": recompute}))
    filled = [[shape for shape in shapes if np.prod(shape)] for shapes in (gone, back)]
    return *filled, done


def test_the_input_of_each_layer_and_nothing_else_goes_to_host_memory_and_back():
    gone, back, done = packed("full-offload")
    micro_batches = 4 * UPDATES
    assert len(gone) == LLAMA.num_layers * micro_batches
    assert {(1, LLAMA.hidden_size)} == {(shape[0], shape[2]) for shape in gone}
    assert sorted(gone) == sorted(back)
    # From copies of them what is learnt is the same.
    _, _, expected = packed("full")
    for key, (values, *_) in expected[3].items():
        assert np.array_equal(done[3][key][0], values), key


@pytest.mark.full
@pytest.mark.parametrize("recompute", ["none", "selective", "alternate", "full"])
def test_in_other_modes_nothing_goes_to_host_memory(recompute):
    gone, back, _ = packed(recompute)
    assert not gone
    assert not back
