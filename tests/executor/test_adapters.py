"""Low-rank adapters: the same in every layout, off as the reference, merged where weights are given out."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from rlplan.executor.learning.train import update_model
from rlplan.executor.model.adapters import adapters_off, is_adapter
from rlplan.executor.parallel.meshes import make_mesh
from rlplan.executor.parallel.positions import task_positions
from rlplan.executor.passes import infer
from rlplan.executor.weights.shard import build_shard
from rlplan.job import Hyperparameters
from rlplan.models import Adapter
from rlplan.plan import TaskPlan
from tests.executor.test_parallel_models import MODELS, UPDATES, batch_of, shard_of, share_of

pytestmark = pytest.mark.ray

CASES = {
    "tp 2": (2, "qwen2", "lm", {"tp": 2}),
    "tp 2, sequences cut": (2, "qwen3", "lm", {"tp": 2, "engine": "torch-3d-sp"}),
    "pp 2": (2, "qwen3", "lm", {"pp": 2, "recompute": "full"}),
    "pp 2, interleaved": (2, "qwen3", "lm", {"pp": 2, "chunks": 2}),
    "dp 2, sharded states": (2, "llama", "lm", {"zero": 1}),
    "cp 2": (2, "llama", "lm", {"cp": 2}),
    "tp 2 of a critic": (2, "llama", "scalar", {"tp": 2}),
    "pp 2 of a critic": (2, "llama", "scalar", {"pp": 2}),
    "tp 2 x pp 2, sharded states": (4, "qwen3", "lm", {"tp": 2, "pp": 2, "zero": 1}),
    "sharded gradients": (2, "qwen3", "lm", {"zero": 2, "recompute": "full"}),
    "fully sharded": (2, "llama", "lm", {"zero": 3}),
    "fully sharded, tied, computed again": (2, "qwen3", "lm", {"zero": 3, "recompute": "full"}),
    "sharded gradients of a critic": (2, "llama", "scalar", {"zero": 2}),
    "fully sharded critic": (2, "llama", "scalar", {"zero": 3}),
    "cp 2, fully sharded": (2, "llama", "lm", {"cp": 2, "zero": 3}),
    "tp 2 x dp 2, sharded gradients": (4, "qwen3", "lm", {"tp": 2, "zero": 2}),
    "tp 2 x dp 2, fully sharded": (4, "qwen2", "lm", {"tp": 2, "zero": 3}),
    "tp 2 x dp 2, fully sharded, sequences cut": (
        4,
        "llama",
        "lm",
        {"tp": 2, "zero": 3, "engine": "torch-3d-sp"},
    ),
    "pp 2 x dp 2, fully sharded": (4, "qwen3", "lm", {"pp": 2, "zero": 3}),
    "pp 2 x dp 2, sharded gradients, interleaved": (
        4,
        "llama",
        "lm",
        {"pp": 2, "zero": 2, "chunks": 2},
    ),
}
CASES |= {
    "tp 2, experts": (2, "mixtral", "lm", {"tp": 2}),
    "dp 2, experts, sharded states": (2, "qwen3_moe", "lm", {"zero": 1}),
    "fully sharded experts": (2, "qwen3_moe", "lm", {"zero": 3}),
    "tp 2 x dp 2, experts, sharded gradients": (4, "qwen3_moe", "lm", {"tp": 2, "zero": 2}),
}
RATE = 5e-3
ADAPTER = Adapter(rank=3, alpha=6.0)
ALONE: tuple[int, str, str, dict[str, Any]] = (1, "llama", "lm", {})


def adapted_shard(rank, ranks, case, adapter=ADAPTER):
    """Return a rank's shard of a model with adapters that are not zero any more; beside experts, of its attention."""
    if MODELS[case[1]].num_experts:
        adapter = replace(adapter, targets="attention")
    return shard_of(rank, ranks, case, learning_rate=RATE, adapter=adapter)


def train(rank, ranks, case):
    """Return what a rank has after updates: metrics, outputs before and after, and the adapters."""
    head, shard = case[2], adapted_shard(rank, ranks, case)
    mesh, share = shard.mesh, share_of(batch_of(head), shard.mesh.dp, shard.mesh.dp_size)
    frozen = shard.flat.frozen.whole_values().clone()

    def outputs():
        kind = "log_probs" if head == "lm" else "values"
        found = infer(shard, share["tokens"], share["parts"], kind, micro_batch=3, temperature=0.7)
        return None if found is None else found.numpy()

    before = outputs()
    metrics = update_model(
        shard,
        share,
        "ppo_policy" if head == "lm" else "value",
        Hyperparameters(temperature=0.7, max_gradient_norm=0.5, clip_ratio=0.2),
        updates=UPDATES,
        epochs=1,
        micro_batch=3,
    )
    assert torch.equal(shard.flat.frozen.whole_values(), frozen)
    moments = shard.trainer.whole_moments()["exp_avg"]
    kinds = {"moment of ": moments, "": shard.flat.adapters.whole_values()}
    held = {
        f"{kind}{entry.name}": (
            values[entry.start : entry.stop].view(entry.shape).detach().numpy(),
            mesh.tp,
            entry.dimension,
        )
        for kind, values in kinds.items()
        for entry in shard.flat.adapters.entries
    }
    return (mesh.dp, mesh.leads), metrics, before, outputs(), held


@cache
def alone(model, head):
    return train(0, 1, (1, model, head, {}))


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_adapters_learn_the_same_in_every_layout(name, worker_pool):
    ranks, model, head, _ = CASES[name]
    _, expected, before, after, adapters = alone(model, head)
    seen = set()
    found = worker_pool.on_ranks(ranks, partial(train, case=CASES[name]))
    for (dp, leads), metrics, mine_before, mine_after, held in found:
        assert metrics["gradient_norm_mean"] == pytest.approx(
            expected["gradient_norm_mean"], rel=1e-4
        )
        for key, (values, tp, dimension) in held.items():
            whole = adapters[key][0]
            if dimension is not None:
                size = values.shape[dimension]
                whole = whole.take(range(tp * size, (tp + 1) * size), axis=dimension)
            # A step of Adam is as large for a gradient of nearly nothing.
            tolerance = 1e-5 if key.startswith("moment") else 0.05 * RATE
            np.testing.assert_allclose(values, whole, atol=tolerance, err_msg=key)
            seen.add(key)
        if not leads:
            continue
        shares = max(dp for (dp, _), *_ in found) + 1
        for theirs, mine in ((before, mine_before), (after, mine_after)):
            part = share_of({"outputs": torch.from_numpy(theirs)}, dp, shares)["outputs"]
            np.testing.assert_allclose(mine, part.numpy(), atol=5e-4)
    assert seen == set(adapters)


@pytest.mark.full
def test_adapters_start_as_nothing_and_then_do_something():
    _, _, before, after, adapters = alone("llama", "lm")
    plain = build_shard(
        MODELS["llama"], "lm", make_mesh(task_positions(TaskPlan(pool="p0"), 1), 0, torch.device("cpu")),
        role="actor", seed=1, precision="fp32",
    )  # fmt: skip
    batch = batch_of("lm")
    theirs = infer(
        plain, batch["tokens"], batch["parts"], "log_probs", micro_batch=3, temperature=0.7
    )
    np.testing.assert_allclose(before, theirs.numpy(), atol=1e-6)
    assert np.abs(after - before).max() > 0.01
    assert all(is_adapter(name) for name in adapters)


def test_a_critics_fresh_head_is_trained_beside_its_adapters():
    _, _, _, _, adapters = alone("llama", "scalar")
    others = [name for name in adapters if not is_adapter(name)]
    assert others == ["moment of head.weight", "head.weight"]


def trained_shard():
    """Return a shard of one process whose adapters add something."""
    shard = adapted_shard(0, 1, ALONE)
    with torch.no_grad():
        shard.flat.adapters.values.normal_(std=0.1, generator=torch.Generator().manual_seed(3))
    return shard


def log_probs(shard):
    batch = batch_of("lm")
    return infer(
        shard, batch["tokens"], batch["parts"], "log_probs", micro_batch=3, temperature=1.0
    )


def test_the_frozen_model_is_the_one_with_its_adapters_off():
    shard = trained_shard()
    with_them = log_probs(shard)
    off = log_probs(shard.without_adapters())
    assert (with_them - off).abs().max() > 0.01
    with adapters_off(shard.stages):
        torch.testing.assert_close(log_probs(shard), off)
    torch.testing.assert_close(log_probs(shard), with_them)


def test_merged_weights_compute_the_same_without_adapters():
    shard = trained_shard()
    plain = build_shard(MODELS["llama"], "lm", shard.mesh, role="actor", seed=1, precision="fp32")
    assert [e.name for e in plain.flat.entries] == [e.name for e in shard.flat.entries]
    plain.flat.write_values(shard.flat.whole_values())
    torch.testing.assert_close(log_probs(plain), log_probs(shard), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("targets", "inside"), [("attention", "self_attn"), ("feed-forward", "mlp")]
)
def test_targets_say_which_layers_have_adapters(targets, inside):
    shard = adapted_shard(0, 1, ALONE, Adapter(rank=2, targets=targets))
    names = [entry.name for entry in shard.flat.adapters.entries]
    assert names
    assert all(f".{inside}." in name for name in names)
