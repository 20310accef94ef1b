"""Real transitions between ranks: weights bit for bit, bytes by count, the same tokens everywhere."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from rlplan.executor.model.building import EMBEDDING, HEAD
from rlplan.executor.parallel.meshes import make_mesh
from rlplan.executor.parallel.positions import (
    generation_positions,
    shares_weights,
    task_positions,
    uses_micro_groups,
)
from rlplan.executor.rollout.engines.torch_static import TorchStaticEngine
from rlplan.executor.rollout.sampling import GenerateSettings
from rlplan.executor.weights.flat import FlatParameters
from rlplan.executor.weights.shard import build_shard
from rlplan.executor.weights.transition import PoolTransition
from rlplan.profiles.facts import load_facts
from rlplan.simulator.costs.syncs import lacking_expert_bytes
from rlplan.simulator.placed import PlacedPlan
from tests.cases import only
from tests.executor.plans import TINY, chosen_by_default, make_job, make_plan

pytestmark = pytest.mark.ray

LLAMA = replace(TINY, num_layers=4)
# Tied, with a vocabulary that no size divides.
QWEN3 = replace(LLAMA, family="qwen3", qk_norm=True, tied_embeddings=True, vocab_size=263)
MIXTRAL = replace(
    LLAMA, family="mixtral", num_layers=2, num_experts=4, experts_per_token=2, moe_ffn_size=16
)
MODELS = {"llama": LLAMA, "qwen3": QWEN3, "mixtral": MIXTRAL}
BYTES = torch.float32.itemsize
# A row of the vocabulary's matrices is 128 bytes: seven rows for each of seven senders.
BUCKET_BYTES = 6272

# By name: ranks, model, and the plan's sizes.
CASES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "pp 2 to one": (2, "llama", {"pp": 2, "pp_gen": 1}),
    "pp 2 to tp 2": (2, "llama", {"pp": 2, "pp_gen": 1, "tp_gen": 2, "transition": "all-gather"}),
    "experts, tp 2 to one": (2, "mixtral", {"tp": 2, "tp_gen": 1}),
    "experts, tp 2 x pp 2 to tp 2": (4, "mixtral", {"tp": 2, "pp": 2, "pp_gen": 1}),
    "the same pipeline": (2, "qwen3", {"pp": 2}),
    "the same interleaved pipeline": (2, "llama", {"pp": 2, "chunks": 2}),
    "interleaved to one": (2, "qwen3", {"pp": 2, "chunks": 2, "pp_gen": 1}),
    "tp 2 x pp 2 to one": (4, "llama", {"tp": 2, "pp": 2, "tp_gen": 1, "pp_gen": 1}),
    "tp 2 x pp 2 to pp 2": (4, "qwen3", {"tp": 2, "pp": 2, "tp_gen": 1}),
    "tp 2 x pp 2 to tp 2": (4, "qwen3", {"tp": 2, "pp": 2, "pp_gen": 1}),
    "interleaved, tp 2 x pp 2 to pp 2": (
        4,
        "llama",
        {"tp": 2, "pp": 2, "chunks": 2, "tp_gen": 1},
    ),
    "vanilla groups": (
        4,
        "llama",
        {"tp": 2, "pp": 2, "tp_gen": 1, "pp_gen": 2, "transition": "hybridflow-v"},
    ),
    "fully sharded": (2, "llama", {"zero": 3}),
    "sharded gradients": (2, "llama", {"zero": 2}),
    "fully sharded, tp 2 to one": (4, "qwen3", {"tp": 2, "zero": 3, "tp_gen": 1}),
    "all-gather over all ranks": (
        4,
        "llama",
        {"tp": 2, "zero": 3, "tp_gen": 1, "transition": "all-gather"},
    ),
    "tp 2 x cp 2 to one": (4, "qwen3", {"tp": 2, "cp": 2, "tp_gen": 1}),
    "cp 2, fully sharded": (2, "llama", {"cp": 2, "zero": 3}),
    "experts on two ranks": (2, "mixtral", {"ep": 2}),
    "experts on two ranks, fully sharded": (4, "mixtral", {"ep": 2, "zero": 3}),
    "experts on two ranks, tp 2": (4, "mixtral", {"ep": 2, "tp": 2, "transition": "none"}),
    "experts on two ranks, tp 2 to one": (4, "mixtral", {"ep": 2, "tp": 2, "tp_gen": 1}),
    "tp 2 x pp 2 x dp 2 to tp 2": (8, "llama", {"tp": 2, "pp": 2, "pp_gen": 1}),
}


def plan_of(case):
    ranks, model, sizes = case
    job = make_job("grpo", model=MODELS[model], prompts=8, samples_per_prompt=2)
    plan = make_plan(job, {"p0": (ranks, ("actor", "reference"))}, **sizes)
    return replace(plan, bucket_bytes=BUCKET_BYTES)


def shard_on(plan, task, positions, rank, rate=None):
    return build_shard(
        plan.job.architecture("actor"),
        "lm",
        make_mesh(positions, rank, torch.device("cpu"), plan.tasks[task].ep),
        role="actor",
        seed=1,
        precision="fp32",
        learning_rate=rate,
        layout=plan.tasks[task],
    )


def parts_of(shard):
    values = shard.flat.whole_values().clone()
    return {
        e.name: (values[e.start : e.stop].view(e.shape).numpy(), e.first, e.dimension)
        for e in shard.flat.entries
    }


def greedy_tokens(shard):
    generator = torch.Generator().manual_seed(3)
    # Two prompts, with two and with four samples, of which the last one is in a wave of its own.
    prompts = torch.randint(1, TINY.vocab_size, (2, 6), generator=generator)[[0, 0, 1, 1, 1, 1]]
    present = torch.ones_like(prompts, dtype=torch.bool)
    present[2:, :3] = False
    made = TorchStaticEngine(shard).generate(
        prompts,
        present,
        torch.tensor([7, 3, 7, 5, 7, 6]),
        torch.arange(6),
        7,
        GenerateSettings(
            max_running=5, temperature=1.0, seed=1, iteration=0, end_ids=(), greedy=True
        ),
    )
    return made.tokens.numpy(), made.log_probs.numpy()


def transition(rank, ranks, case):
    """Return what a rank generates with and generates, and what the transition moved and kept."""
    plan = plan_of(case)
    train = plan.tasks["actor.update"]
    train_shard = shard_on(plan, "actor.update", task_positions(train, ranks), rank, 1e-3)
    if shares_weights(plan):
        return {"held": parts_of(train_shard), "tokens": greedy_tokens(train_shard), "moved": None}
    generator = shard_on(plan, "actor.generate", generation_positions(plan), rank)
    before = parts_of(train_shard)
    move = PoolTransition(plan, train_shard, generator)
    with torch.no_grad():
        generator.flat.values.fill_(float("nan"))
    move.release()
    storages = []
    for _ in range(2):
        move.run()
        held, tokens = parts_of(generator), greedy_tokens(generator)
        storages.append((stored_bytes(train_shard), stored_bytes(generator)))
        move.end()
    assert stored_bytes(generator) == 0
    after = parts_of(train_shard)
    return {
        "held": held,
        "tokens": tokens,
        "unharmed": all(np.array_equal(after[name][0], before[name][0]) for name in before),
        "train_names": {e.name: (e.stop - e.start) * BYTES for e in train_shard.flat.entries},
        "moved": (move.received_bytes, move.redundant_bytes, storages[-1]),
        "buffer": move.buffer_bytes,
        "shares_memory": not isinstance(generator.flat, FlatParameters),
        "gathered": getattr(train_shard.flat, "gathered_bytes", 0),
        "share": train_shard.flat.weight_bytes,
    }


def stored_bytes(shard):
    return sum(part.untyped_storage().nbytes() for part in shard.flat.stored())


@cache
def alone(model):
    plan = plan_of((1, model, {}))
    return transition(0, 1, (1, model, {})), plan


@pytest.fixture(scope="module")
def results(worker_pool):
    """Return what the ranks of the case of a name have; each case is run once."""
    return cache(
        lambda name: worker_pool.on_ranks(CASES[name][0], partial(transition, case=CASES[name]))
    )


CHOSEN = {
    *chosen_by_default({name: (ranks, sizes, ()) for name, (ranks, _, sizes) in CASES.items()}),
    # Whose bytes tests below count.
    "experts on two ranks",
    "all-gather over all ranks",
}
NAMES = only(CHOSEN, CASES)
MOVING = only(CHOSEN, [name for name in CASES if not shares_weights(plan_of(CASES[name]))])


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_weights_to_generate_with_are_the_trained_ones_bit_for_bit(results, name):
    trained = {key: value for key, (value, _, _) in alone(CASES[name][1])[0]["held"].items()}
    for rank in results(name):
        for key, (values, first, dimension) in rank["held"].items():
            tied = key == "head.weight" and key not in trained
            expected = trained["backbone.embed_tokens.weight" if tied else key]
            if dimension is not None:
                size = values.shape[dimension]
                expected = expected.take(range(first, first + size), axis=dimension)
            assert np.array_equal(values, expected), key


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_one_process(results, name):
    tokens, log_probs = alone(CASES[name][1])[0]["tokens"]
    for rank in results(name):
        assert np.array_equal(rank["tokens"][0], tokens)
        np.testing.assert_allclose(rank["tokens"][1], log_probs, atol=1e-5)


@pytest.mark.parametrize("name", MOVING)
def test_every_rank_receives_just_what_it_lacks(results, name):
    _, model, _ = CASES[name]
    whole = sum(values.nbytes for values, _, _ in alone(model)[0]["held"].values())
    for rank in results(name):
        held = {key: values.nbytes for key, (values, _, _) in rank["held"].items()}
        mine, received = rank["train_names"], rank["moved"][0]
        if rank["shares_memory"]:  # a tied head at the end of a pipeline is sent as the embedding
            named = {EMBEDDING if key == HEAD and HEAD not in held else key for key in mine}
            lacking = sum(held[key] for key in held.keys() - named)
        elif uses_micro_groups(plan_of(CASES[name])):
            lacking = sum(held.values()) - sum(mine[key] for key in held if key in mine)
        else:
            lacking = whole - sum(mine.values())
        assert received == lacking + rank["gathered"]


@pytest.mark.parametrize("name", MOVING)
def test_training_goes_on_with_the_same_weights(results, name):
    assert all(rank["unharmed"] for rank in results(name))


@pytest.mark.parametrize("name", MOVING)
def test_zero_redundancy_groups_hold_no_weight_twice_while_they_generate(results, name):
    _, _, sizes = CASES[name]
    for rank in results(name):
        generates_with = sum(values.nbytes for values, _, _ in rank["held"].values())
        _, redundant, (train_shard, own) = rank["moved"]
        if {"zero", "ep"} & set(sizes) or not uses_micro_groups(plan_of(CASES[name])):
            assert redundant == rank["share"] > 0
            assert own == generates_with
        else:
            assert redundant == 0
            assert train_shard + own == generates_with


@pytest.mark.parametrize("name", MOVING)
def test_the_train_shard_stays_in_place_where_both_layouts_cut_alike(results, name):
    _, _, sizes = CASES[name]
    alike = sizes.get("tp", 1) == sizes.get("tp_gen", sizes.get("tp", 1))
    groups = uses_micro_groups(plan_of(CASES[name])) and not {"zero", "ep"} & set(sizes)
    for rank in results(name):
        train_shard, _ = rank["moved"][2]
        assert rank["shares_memory"] == (alike and groups)
        if groups:
            assert train_shard == (rank["share"] if alike else 0)


@pytest.mark.parametrize("name", MOVING)
def test_no_more_than_a_bucket_is_under_way_to_a_rank(results, name):
    for rank in results(name):
        assert rank["buffer"] <= BUCKET_BYTES
        assert rank["buffer"] > 0 or rank["moved"][0] == rank["gathered"]


def test_experts_of_other_ranks_are_received_before_generation(results):
    held = alone("mixtral")[0]["held"]
    experts = sum(values.nbytes for key, (values, _, _) in held.items() if "experts" in key)
    plan = plan_of(CASES["experts on two ranks"])
    plan = replace(plan, job=replace(plan.job, precision="fp32"))
    placed = PlacedPlan(plan, load_facts(plan.job))
    forecast = lacking_expert_bytes(placed.transition_to(placed.tasks["actor.generate"]))
    for rank in results("experts on two ranks"):
        assert rank["moved"][0] == experts / 2 == forecast
        assert rank["share"] == sum(values.nbytes for values, _, _ in held.values()) - experts / 2


def test_an_all_gather_of_fully_sharded_weights_receives_all_but_a_ranks_share(results):
    name = "all-gather over all ranks"
    whole = sum(values.nbytes for values, _, _ in alone("llama")[0]["held"].values())
    # Norms are whole on both tensor-parallel ranks, and cut over the data-parallel ones.
    norms = sum(v.nbytes for key, (v, _, _) in alone("llama")[0]["held"].items() if "norm" in key)
    for rank in results(name):
        assert rank["moved"][0] == whole * 3 / 4 - norms / 4
