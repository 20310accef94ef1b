"""Embeddings and heads that tensor-parallel ranks share out: each entry lies once, whatever the ranks' number is."""

from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rlplan.executor.model.building import EMBEDDING, HEAD
from rlplan.executor.parallel.meshes import make_mesh
from rlplan.executor.parallel.positions import task_positions, train_positions
from rlplan.executor.parallel.tensor_parallel import cut_vocabulary, span_of
from rlplan.executor.weights.shard import build_shard
from rlplan.layout import ModelCut
from rlplan.plan import TaskPlan
from rlplan.simulator.model import shard_parameters
from tests.executor.test_parallel_models import QWEN3

SIZES = st.integers(1, 300_000)
RANKS = 3


@given(whole=SIZES, ranks=st.integers(1, 64), times=st.integers(1, 8))
def test_spans_follow_one_another_hold_no_more_than_their_share_and_nest(whole, ranks, times):
    spans = [span_of(whole, ranks, position) for position in range(ranks)]
    assert (spans[0][0], spans[-1][1]) == (0, whole)
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert max(stop - first for first, stop in spans) <= -(-whole // ranks)
    for position, (first, stop) in enumerate(spans):
        inner = [span_of(whole, times * ranks, position * times + at) for at in range(times)]
        assert (inner[0][0], inner[-1][1]) == (first, stop)


class Stage(nn.Module):
    """Embed tokens and read them again, with nothing between."""

    def __init__(self, vocabulary, *, tied):
        super().__init__()
        torch.manual_seed(vocabulary)
        self.backbone: Any = nn.Module()
        self.backbone.embed_tokens = nn.Embedding(vocabulary, 6)
        self.head = nn.Linear(6, vocabulary, bias=False)
        if tied:
            self.head.weight = self.backbone.embed_tokens.weight

    def forward(self, tokens):
        return self.head(self.backbone.embed_tokens(tokens).tanh())


TOYS = list(product((9, 10, 11), (False, True), (False, True)))


def toy(case, mesh=None):
    """Return a stage's logits, and what its matrices learn of a loss over all entries."""
    vocabulary, tied, cuts_tokens = case
    stage = Stage(vocabulary, tied=tied)
    if mesh is not None:
        cut_vocabulary(stage, mesh, cuts_tokens=cuts_tokens)
    tokens = torch.arange(2 * 3 * RANKS).view(2, -1) * 7 % vocabulary
    logits = stage(tokens)
    loss = (logits.log_softmax(-1) * torch.arange(vocabulary)).sum()
    loss.backward()
    matrices = {"embedding": stage.backbone.embed_tokens.weight, "head": stage.head.weight}
    assert (matrices["embedding"] is matrices["head"]) == tied
    return logits.detach(), {
        name: (len(weight), weight.grad.clone()) for name, weight in matrices.items()
    }


def toys(rank, ranks):
    mesh = make_mesh(train_positions(ranks, ranks), rank, torch.device("cpu"))
    return [toy(case, mesh) for case in TOYS]


@pytest.mark.full
@pytest.mark.ray
def test_logits_and_gradients_are_those_of_whole_matrices(worker_pool):
    found = worker_pool.on_ranks(RANKS, toys)
    for at, case in enumerate(TOYS):
        expected, learnt = toy(case)
        for rank, cases in enumerate(found):
            logits, parts = cases[at]
            assert logits.shape == expected.shape, "there is no entry beside the vocabulary"
            torch.testing.assert_close(logits, expected)
            first, stop = span_of(case[0], RANKS, rank)
            for name, (rows, gradient) in parts.items():
                assert rows == stop - first
                torch.testing.assert_close(gradient, learnt[name][1][first:stop])


# With as many heads of keys and values as ranks share out.
WIDE = replace(QWEN3, num_kv_heads=4)
# By name: what a layout says; all of four ranks.
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp 4": {"tp": 4},
    "tp 4, sequences cut": {"tp": 4, "engine": "torch-3d-sp"},
    "tp 2 x pp 2": {"tp": 2, "pp": 2},
    "tp 2, sharded states": {"tp": 2, "zero": 1},
    "tp 2, sharded gradients": {"tp": 2, "zero": 2},
    "tp 2, fully sharded": {"tp": 2, "zero": 3},
}


def rows_held(rank, ranks, head):
    """Return, by layout, the rows that a rank holds of both matrices before others share them, and all it holds."""
    found = {}
    for name, sizes in LAYOUTS.items():
        layout = TaskPlan(pool="p0", **sizes)
        mesh = make_mesh(task_positions(layout, ranks), rank, torch.device("cpu"))
        role = "actor" if head == "lm" else "critic"
        shard = build_shard(
            WIDE, head, mesh, role=role, seed=1, precision="fp32", learning_rate=1e-3, layout=layout
        )
        rows = {
            entry.name: (mesh.tp, entry.shape[0])
            for entry in shard.flat.entries
            if entry.name in (EMBEDDING, HEAD)
        }
        found[name] = (mesh.pp, rows, shard.flat.entries[-1].stop)
    return found


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("head", ["lm", "scalar"])
def test_no_rank_holds_more_than_its_share_in_any_layout(head, worker_pool):
    ranks = worker_pool.on_ranks(4, partial(rows_held, head=head))
    for name, sizes in LAYOUTS.items():
        tp, pp = sizes["tp"], sizes.get("pp", 1)
        seen: dict[str, dict[int, int]] = {EMBEDDING: {}, HEAD: {}}
        for rank in ranks:
            for matrix, (position, rows) in rank[name][1].items():
                seen[matrix][position] = rows
        cut = {EMBEDDING, HEAD} if head == "lm" and pp > 1 else {EMBEDDING}
        for matrix in cut:
            assert sum(seen[matrix].values()) == WIDE.vocab_size
            assert max(seen[matrix].values()) == -(-WIDE.vocab_size // tp)
        # As many as are forecast, on the rank that holds most.
        for stage in range(pp):
            held = max(rank[name][2] for rank in ranks if rank[name][0] == stage)
            assert held == shard_parameters(WIDE, head, ModelCut(tp=tp, pp=pp), stage)
