"""One update after another in every layout: the same losses, gradients and weights as on one process."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from rlplan.executor.learning.train import update_model
from rlplan.executor.parallel.meshes import make_mesh
from rlplan.executor.parallel.positions import task_positions, train_positions
from rlplan.executor.passes import infer
from rlplan.executor.weights.shard import build_shard
from rlplan.job import Hyperparameters
from rlplan.plan import TaskPlan
from tests.cases import only
from tests.executor.plans import TINY, chosen_by_default

pytestmark = pytest.mark.ray

UPDATES, ROWS, WIDTH = 2, 12, 11
# Tied embeddings, norms over heads, shared key-value heads and a vocabulary that no size divides: whatever needs care.
LLAMA = replace(TINY, num_layers=4)
QWEN3 = replace(LLAMA, family="qwen3", qk_norm=True, tied_embeddings=True, vocab_size=263)
EXPERTS: dict[str, Any] = {"num_experts": 4, "experts_per_token": 2, "moe_ffn_size": 16}
QWEN3_MOE = replace(LLAMA, family="qwen3_moe", qk_norm=True, num_layers=2, **EXPERTS)
MODELS = {
    "llama": LLAMA,
    "qwen3": QWEN3,
    "qwen2": replace(LLAMA, family="qwen2", qkv_bias=True, num_layers=2),
    "mistral": replace(LLAMA, family="mistral", num_layers=2),
    "mixtral": replace(LLAMA, family="mixtral", num_layers=2, **EXPERTS),
    "qwen3_moe": QWEN3_MOE,
}

# By name: ranks, model, head, sizes and settings of the layout.
CASES: dict[str, tuple[int, str, str, dict[str, Any]]] = {
    "tp 2": (2, "llama", "lm", {"tp": 2}),
    "pp 2": (2, "qwen3", "lm", {"pp": 2}),
    "pp 2 of a critic": (2, "llama", "scalar", {"pp": 2, "recompute": "full"}),
    "pp 2 interleaved": (2, "qwen3", "lm", {"pp": 2, "chunks": 2}),
    "fewer micro-batches than stages": (2, "llama", "lm", {"pp": 2, "micro_batch": 12}),
    "dp 2": (2, "qwen3", "lm", {"recompute": "selective"}),
    "sharded states": (2, "qwen3", "lm", {"zero": 1}),
    "sharded gradients": (2, "qwen3", "lm", {"zero": 2, "recompute": "alternate"}),
    "fully sharded": (2, "llama", "lm", {"zero": 3}),
    "fully sharded critic": (2, "llama", "scalar", {"zero": 3, "recompute": "full"}),
    "tp 2, sequences cut": (2, "qwen3", "lm", {"tp": 2, "engine": "torch-3d-sp"}),
    "tp 2, sequences of a critic cut": (2, "llama", "scalar", {"tp": 2, "engine": "torch-3d-sp"}),
    "tp 2 x pp 2, sequences cut": (
        4,
        "qwen3",
        "lm",
        {"tp": 2, "pp": 2, "engine": "torch-3d-sp", "recompute": "full", "micro_batch": 6},
    ),
    "tp 2 x dp 2, fully sharded, sequences cut": (
        4,
        "llama",
        "lm",
        {"tp": 2, "zero": 3, "engine": "torch-3d-sp"},
    ),
    "tp 2 of experts": (2, "qwen3_moe", "lm", {"tp": 2}),
    "tp 2 of experts, sequences cut": (
        2,
        "mixtral",
        "lm",
        {"tp": 2, "engine": "torch-3d-sp", "micro_batch": 6},
    ),
    "fully sharded experts": (2, "qwen3_moe", "lm", {"zero": 3}),
    "biases, pp 2": (2, "qwen2", "lm", {"pp": 2}),
    "biases, tp 2": (2, "qwen2", "lm", {"tp": 2}),
    "another family, tp 2": (2, "mistral", "lm", {"tp": 2}),
    "tp 2 x dp 2 of experts, fully sharded": (4, "qwen3_moe", "lm", {"tp": 2, "zero": 3}),
    "tp 2 x pp 2": (4, "qwen3", "lm", {"tp": 2, "pp": 2}),
    "tp 2 x dp 2, sharded states": (4, "qwen3", "lm", {"tp": 2, "zero": 1}),
    "tp 2 x dp 2, fully sharded": (4, "qwen3", "lm", {"tp": 2, "zero": 3}),
    "pp 2 x dp 2, fully sharded": (4, "qwen3", "lm", {"pp": 2, "zero": 3}),
    "pp 2 x dp 2, sharded gradients, interleaved": (
        4,
        "llama",
        "lm",
        {"pp": 2, "zero": 2, "chunks": 2},
    ),
    "cp 2": (2, "qwen3", "lm", {"cp": 2}),
    "cp 2 of a critic": (2, "llama", "scalar", {"cp": 2, "zero": 1, "recompute": "full"}),
    "cp 2, fully sharded": (2, "llama", "lm", {"cp": 2, "zero": 3, "recompute": "selective"}),
    "tp 2 x cp 2": (4, "qwen3", "lm", {"tp": 2, "cp": 2}),
    "tp 2 x cp 2, sequences cut": (
        4,
        "qwen3",
        "lm",
        {"tp": 2, "cp": 2, "engine": "torch-3d-sp", "zero": 1, "micro_batch": 6},
    ),
    "pp 2 x cp 2": (4, "qwen3", "lm", {"pp": 2, "cp": 2}),
    "cp 2 x dp 2, sharded states": (4, "qwen3", "lm", {"cp": 2, "zero": 1}),
    "ep 2": (2, "qwen3_moe", "lm", {"ep": 2}),
    "ep 2, sharded states": (2, "mixtral", "lm", {"ep": 2, "zero": 1, "recompute": "full"}),
    "ep 2, fully sharded": (2, "qwen3_moe", "lm", {"ep": 2, "zero": 3}),
    "ep 2 x tp 2": (4, "qwen3_moe", "lm", {"ep": 2, "tp": 2}),
    "ep 2 x pp 2": (4, "mixtral", "lm", {"ep": 2, "pp": 2}),
    "ep 2 x cp 2, sharded states": (4, "qwen3_moe", "lm", {"ep": 2, "cp": 2, "zero": 1}),
    "ep 2 of dp 4, sharded states": (4, "qwen3_moe", "lm", {"ep": 2, "zero": 1}),
    "ep 2 of dp 4, fully sharded": (4, "mixtral", "lm", {"ep": 2, "zero": 3}),
    "ep 2 x tp 2 x dp 4, sharded states": (8, "qwen3_moe", "lm", {"ep": 2, "tp": 2, "zero": 1}),
    "tp 2 x pp 2 x dp 2, sharded states": (8, "qwen3", "lm", {"tp": 2, "pp": 2, "zero": 1}),
    "pp 4 x dp 2": (8, "qwen3", "lm", {"pp": 4, "micro_batch": 1}),
}


def batch_of(head):
    """Return rows of many lengths, two of each prompt, the shares of updates one after another."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(1, TINY.vocab_size, (ROWS * UPDATES, WIDTH), generator=generator)
    parts = torch.full(tokens.shape, 1, dtype=torch.int8)
    parts[:, 5:] = 2
    for row in range(len(tokens)):
        tokens[row, :5] = tokens[row // 2 * 2, :5]
        parts[row, : row // 2 % 4] = 0
        parts[row, WIDTH - row % 5 :] = 0
    names = ("log_probs", "advantages") if head == "lm" else ("values", "returns")
    numbers = {name: torch.randn(tokens.shape, generator=generator) * 0.3 for name in names}
    if head == "lm":
        numbers["log_probs"] -= 5.5
    return {"tokens": tokens, "parts": parts, "response_mask": parts == 2, **numbers}


def share_of(batch, dp, ranks):
    """Return a rank's rows of every mini-batch."""
    width = ROWS // ranks
    rows = [update * ROWS + dp * width + row for update in range(UPDATES) for row in range(width)]
    return {name: column[rows] for name, column in batch.items()}


def shard_of(rank, ranks, case, *, precision="fp32", learning_rate=1e-3, adapter=None):
    """Return the shard of a case's model on a rank, to be trained in its layout."""
    _, model, head, settings = case
    layout = TaskPlan(pool="p0", **{"micro_batch": 3, **settings})
    mesh = make_mesh(task_positions(layout, ranks), rank, torch.device("cpu"), layout.ep)
    role = "actor" if head == "lm" else "critic"
    return build_shard(
        MODELS[model], head, mesh, role=role, seed=1, precision=precision,
        learning_rate=learning_rate, layout=layout, adapter=adapter,
    )  # fmt: skip


def train(rank, ranks, case, precision="fp32"):
    """Return what a rank has after updates: metrics, outputs before them, and weights."""
    _, _, head, settings = case
    shard = shard_of(rank, ranks, case, precision=precision)
    mesh, micro_batch = shard.mesh, settings.get("micro_batch", 3)
    share = share_of(batch_of(head), mesh.dp, mesh.dp_size)
    outputs = infer(
        shard,
        share["tokens"],
        share["parts"],
        "log_probs" if head == "lm" else "values",
        micro_batch=micro_batch,
        temperature=0.7,
    )
    metrics = update_model(
        shard,
        share,
        "ppo_policy" if head == "lm" else "value",
        Hyperparameters(temperature=0.7, max_gradient_norm=0.5, clip_ratio=0.2),
        updates=UPDATES,
        epochs=1,
        micro_batch=micro_batch,
    )
    moments = shard.trainer.whole_moments()
    shard.trainer.write_moments(moments, shard.trainer.steps)
    again = shard.trainer.whole_moments()
    assert all(torch.equal(again[name], moments[name]) for name in ("exp_avg", "exp_avg_sq"))
    values = shard.flat.whole_values().clone()
    weights = {
        prefix + e.name: (flat[e.start : e.stop].view(e.shape).numpy(), e.first, e.dimension)
        for e in shard.flat.entries
        for prefix, flat in (("", values), ("moment of ", moments["exp_avg"]))
    }
    place = (mesh.dp, mesh.leads)
    return place, metrics, None if outputs is None else outputs.numpy(), weights


@cache
def on_one_process(model, head):
    return train(0, 1, (1, model, head, {}))


@pytest.fixture(scope="module")
def results(worker_pool):
    """Return what the ranks of the case of a name have; each case is run once."""
    return cache(
        lambda name: worker_pool.on_ranks(CASES[name][0], partial(train, case=CASES[name]))
    )


# How sizes work together, each with each but for contexts in stages.
TOGETHER = (
    "tp 2 x pp 2",
    "ep 2 x tp 2",
    "pp 2 x dp 2, fully sharded",
    "ep 2 x cp 2, sharded states",
)
ALONE = chosen_by_default(
    {
        name: (ranks, sizes, ("experts",) if MODELS[model].num_experts else ())
        for name, (ranks, model, _, sizes) in CASES.items()
    }
)
NAMES = only({*ALONE, *TOGETHER}, CASES)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_are_those_of_one_process(results, name):
    _, model, head, _ = CASES[name]
    _, expected, _, _ = on_one_process(model, head)
    leaders = [metrics for (_, leads), metrics, _, _ in results(name) if leads]
    loss = "policy_loss" if head == "lm" else "value_loss"
    assert abs(expected[loss]) > 1e-3
    assert sum(metrics[loss] for metrics in leaders) == pytest.approx(expected[loss], abs=1e-5)
    for _, metrics, _, _ in results(name):
        norm = metrics["gradient_norm_mean"]
        assert norm == pytest.approx(expected["gradient_norm_mean"], rel=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_weights_and_states_after_updates_are_those_of_one_process(results, name):
    _, model, head, _ = CASES[name]
    trained = {key: value for key, (value, _, _) in on_one_process(model, head)[3].items()}
    seen = set()
    for _, _, _, weights in results(name):
        for key, (values, first, dimension) in weights.items():
            tied = key.endswith("head.weight") and key not in trained
            name = key.replace("head", "backbone.embed_tokens") if tied else key
            expected = trained[name]
            if dimension is not None:
                size = values.shape[dimension]
                expected = expected.take(range(first, first + size), axis=dimension)
            np.testing.assert_allclose(values, expected, atol=3e-5, err_msg=key)
            seen.add(key)
    assert seen >= set(trained)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_model_says_is_the_same(results, name):
    _, model, head, _ = CASES[name]
    expected = on_one_process(model, head)[2]
    assert np.abs(expected).max() > (1 if head == "lm" else -1)
    leaders = {dp: outputs for (dp, leads), _, outputs, _ in results(name) if leads}
    for dp, outputs in leaders.items():
        share = share_of({"outputs": torch.from_numpy(expected)}, dp, len(leaders))["outputs"]
        np.testing.assert_allclose(outputs, share.numpy(), atol=1e-5)
    assert sum(outputs is not None for _, _, outputs, _ in results(name)) >= len(leaders)


def test_updates_move_the_weights():
    before = build_shard(
        LLAMA,
        "lm",
        make_mesh(train_positions(1, 1), 0, torch.device("cpu")),
        role="actor",
        seed=1,
        precision="fp32",
    )
    after = on_one_process("llama", "lm")[3]
    moved = [
        np.abs(before.flat.values[e.start : e.stop].view(e.shape).numpy() - after[e.name][0]).max()
        for e in before.flat.entries
    ]
    assert min(moved) > 1e-3


def infer_off_loaded(rank, ranks):
    """Return what a fully sharded model that is not trained computes, off-loaded between uses."""
    shard = build_shard(
        QWEN3,
        "lm",
        make_mesh(train_positions(1, ranks), rank, torch.device("cpu")),
        role="reference",
        seed=1,
        precision="fp32",
        layout=TaskPlan(pool="p0", zero=3 if ranks > 1 else 0),
    )
    shard.offload()
    share = share_of(batch_of("lm"), rank, ranks)
    for _ in range(2):
        with shard.weights_on_device():
            outputs = infer(
                shard,
                share["tokens"],
                share["parts"],
                "log_probs",
                micro_batch=3,
                temperature=1.0,
            )
        held = sum(part.untyped_storage().nbytes() for part in shard.flat.stored())
    return outputs.numpy(), held


def test_a_fully_sharded_model_that_is_not_trained_computes_the_same(worker_pool):
    expected, _ = infer_off_loaded(0, 1)
    for rank, (outputs, held) in enumerate(worker_pool.on_ranks(2, infer_off_loaded)):
        share = share_of({"outputs": torch.from_numpy(expected)}, rank, 2)["outputs"]
        np.testing.assert_allclose(outputs, share.numpy(), atol=1e-5)
        assert held == 0


BF16_CASES = {
    "pp 2": (2, "qwen3", "lm", {"pp": 2}),
    "tp 2, sequences cut": (2, "qwen3", "lm", {"tp": 2, "engine": "torch-3d-sp"}),
    "fully sharded": (2, "qwen3", "lm", {"zero": 3, "recompute": "full"}),
    "cp 2": (2, "qwen3", "lm", {"cp": 2}),
    "ep 2": (2, "qwen3_moe", "lm", {"ep": 2}),
}


def train_in_bf16(rank, ranks):
    return [train(rank, ranks, case, "bf16")[:2] for case in BF16_CASES.values()]


@pytest.mark.full
def test_products_in_bf16_run_in_every_way_of_cutting(worker_pool):
    models = [model for _, model, _, _ in BF16_CASES.values()]
    alone = {model: train(0, 1, (1, model, "lm", {}), "bf16")[1] for model in set(models)}
    for model, case in zip(
        models, zip(*worker_pool.on_ranks(2, train_in_bf16), strict=True), strict=True
    ):
        expected = alone[model]
        loss = sum(metrics["policy_loss"] for (_, leads), metrics in case if leads)
        # bf16 has 8 bits: a relative error of 0.4 % in each product.
        assert loss == pytest.approx(expected["policy_loss"], abs=5e-3)
        for _, metrics in case:
            norm = metrics["gradient_norm_mean"]
            assert norm == pytest.approx(expected["gradient_norm_mean"], rel=0.03)
