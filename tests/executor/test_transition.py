"""Transitions between tensor-parallel sizes: weights arrive bit for bit, and generate the same."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlplan.executor.parallel.tensor_parallel import span_of
from tests.cases import first
from tests.executor.plans import TINY, make_job, make_plan
from tests.executor.weights import cut_dimension, whole

WIDE = replace(TINY, num_kv_heads=4, vocab_size=263)  # which no rank has an equal share of
ROLES = ("actor", "reference")

CASES: dict[str, dict[str, Any]] = {
    "zero redundancy": {"tp": 4, "tp_gen": 2, "transition": "hybridflow"},
    "vanilla groups": {"tp": 4, "tp_gen": 2, "transition": "hybridflow-v"},
    "wider generation": {"tp": 2, "tp_gen": 4, "transition": "all-gather"},
}


@pytest.fixture
def runs(worker_pool):
    """Return what the plan of a name does."""
    job = make_job("grpo", model=WIDE, prompts=4, samples_per_prompt=2)
    plans = {name: make_plan(job, {"p0": (4, ROLES)}, **case) for name, case in CASES.items()}
    plans["one process"] = make_plan(job, {"p0": (1, ROLES)})
    return lambda name: worker_pool.run(plans[name])


@pytest.mark.ray
@pytest.mark.parametrize("name", first(1, CASES))
def test_weights_arrive_bit_for_bit(runs, name):
    tp, tp_gen = CASES[name]["tp"], CASES[name]["tp_gen"]
    trained = whole(runs(name).actor, tp)
    # Zero-redundancy groups take ranks at interval tp / tp_gen, the others consecutive ones.
    interval = tp // tp_gen if name == "zero redundancy" else 1
    for rank, held in enumerate(runs(name).generator):
        position = rank // interval % tp_gen
        for key, weights in held.items():
            dimension = cut_dimension(key)
            expected = trained[key]
            if weights.shape != expected.shape:
                span = span_of(expected.shape[dimension], tp_gen, position)
                expected = expected.take(range(*span), axis=dimension)
            assert np.array_equal(weights, expected), key


@pytest.mark.ray
@pytest.mark.parametrize("name", first(1, CASES))
def test_what_is_generated_is_the_same(runs, name):
    for tokens, expected in zip(runs(name).tokens, runs("one process").tokens, strict=True):
        assert np.array_equal(tokens, expected)


@pytest.mark.ray
@pytest.mark.parametrize("name", first(1, CASES))
def test_every_iteration_has_one_transition_before_generation(runs, name):
    for record in runs(name).finished:
        first, second = record.spans[:2]
        assert (first.name, first.activity, second.name) == (
            "transition",
            "transition",
            "actor.generate",
        )
