"""The same seeds give the same tokens, losses and weights, wherever and however a plan runs them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.cases import first, only
from tests.executor.plans import ALL_ROLES, TINY, make_job, make_plan
from tests.executor.weights import whole

pytestmark = pytest.mark.ray

# An embedding is 33,280 bytes: it is cut, and no bucket is full to the last byte.
BUCKET_BYTES = 20_000
LOSSES = ("policy_loss", "value_loss")
SAME = ("mean_reward", "rule_reward", "model_score", "kl", "response_tokens")


def ppo_plans():
    job = make_job()
    alone = {role: (1, (role,)) for role in ALL_ROLES}
    return {
        "one process": make_plan(job, {"p0": (1, ALL_ROLES)}),
        "tp 2": make_plan(job, {"p0": (2, ALL_ROLES)}, tp=2),
        "dp 2": make_plan(job, {"p0": (2, ALL_ROLES)}),
        "tp 2 x dp 2": make_plan(job, {"p0": (4, ALL_ROLES)}, tp=2, zero=1),
        "fully sharded": make_plan(
            job, {"p0": (2, ALL_ROLES)}, zero=3, recompute="full", offload=True
        ),
        "pp 2": make_plan(job, {"p0": (2, ALL_ROLES)}, pp=2, micro_batch=2),
        "tp 2 x pp 2": make_plan(job, {"p0": (4, ALL_ROLES)}, tp=2, pp=2, micro_batch=3),
        "tp 2 x pp 2 x dp 2": make_plan(
            job, {"p0": (8, ALL_ROLES)}, tp=2, pp=2, pp_gen=1, micro_batch=2
        ),
        "tp 2 to tp 1": make_plan(job, {"p0": (2, ALL_ROLES)}, tp=2, tp_gen=1),
        "tp 2 x cp 2": make_plan(job, {"p0": (4, ALL_ROLES)}, tp=2, cp=2, micro_batch=3),
        "cp 2 x dp 2": make_plan(job, {"p0": (4, ALL_ROLES)}, cp=2, zero=1),
        "cp 2, two copies": make_plan(
            job, {"p0": (2, ALL_ROLES), "generator": (1, ("actor",))}, cp=2, transition="two-copies"
        ),
        "split": make_plan(
            job, {"p0": (1, ("actor", "reference")), "p1": (1, ("critic", "reward"))}
        ),
        "standalone": make_plan(job, alone),
        "two copies": replace(
            make_plan(
                job,
                {"p0": (2, ALL_ROLES), "generator": (2, ("actor",))},
                tp=2,
                tp_gen=1,
                transition="two-copies",
            ),
            bucket_bytes=BUCKET_BYTES,
        ),
    }


@pytest.fixture
def runs(worker_pool):
    """Return what the plan of a name does."""
    return lambda name: worker_pool.run(ppo_plans()[name])


# Tensor parallelism is slow on CPUs: combined with more it is tried by default on single updates
# (test_parallel_models.py).
COMBINED = ("tp 2 x dp 2", "tp 2 x pp 2", "tp 2 x pp 2 x dp 2", "tp 2 x cp 2")
BY_DEFAULT = [name for name in ppo_plans() if name not in COMBINED]
PLANS = only(BY_DEFAULT, ppo_plans())
OTHERS = only(BY_DEFAULT, [name for name in ppo_plans() if name != "one process"])


@pytest.mark.parametrize("name", OTHERS)
def test_generated_tokens_are_identical(runs, name):
    for tokens, expected in zip(runs(name).tokens, runs("one process").tokens, strict=True):
        assert np.array_equal(tokens, expected)


@pytest.mark.parametrize("name", OTHERS)
def test_losses_agree_over_updates(runs, name):
    for metrics, expected in zip(runs(name).metrics, runs("one process").metrics, strict=True):
        for loss in LOSSES:
            assert metrics[loss] == pytest.approx(expected[loss], abs=1e-4)


@pytest.mark.parametrize("name", OTHERS)
def test_rewards_and_gradients_agree(runs, name):
    for metrics, expected in zip(runs(name).metrics, runs("one process").metrics, strict=True):
        for key in SAME:
            assert metrics[key] == pytest.approx(expected[key], abs=1e-4)
        for role in ("actor", "critic"):
            key = f"{role}_gradient_norm"
            assert metrics[key] == pytest.approx(expected[key], rel=1e-3)


def test_training_moves_the_losses(runs):
    first, *_, last = runs("one process").metrics
    assert abs(first["value_loss"] - last["value_loss"]) > 1e-3


@pytest.mark.parametrize("name", ["tp 2 to tp 1", "two copies"])
def test_weights_after_a_transition_equal_the_trained_ones_bit_for_bit(runs, name):
    trained = whole(runs(name).actor, tp=2)
    for rank in runs(name).generator:
        assert sorted(rank) == sorted(trained)
        for key, weights in rank.items():
            assert np.array_equal(weights, trained[key]), key


def test_shared_weights_are_the_very_same(runs):
    for rank, generator in zip(runs("tp 2").actor, runs("tp 2").generator, strict=True):
        assert all(np.array_equal(rank[key], generator[key]) for key in rank)


@pytest.mark.parametrize("name", PLANS)
def test_spans_of_a_pool_do_not_overlap(runs, name):
    spans = [span for record in runs(name).finished for span in record.spans]
    for pool in {span.pool for span in spans}:
        there = sorted((s.start_seconds, s.end_seconds) for s in spans if s.pool == pool)
        for (_, end), (start, _) in pairwise(there):
            assert end <= start


@pytest.mark.parametrize("name", PLANS)
def test_every_task_is_measured_inside_its_iteration(runs, name):
    expected = set(ppo_plans()[name].tasks)
    for record in runs(name).finished:
        assert {s.name for s in record.spans if s.activity == "task"} == expected
        for span in record.spans:
            assert record.span.start_seconds <= span.start_seconds <= span.end_seconds
            assert span.end_seconds <= record.span.end_seconds


def test_no_task_starts_before_its_parents_end(runs):
    for record in runs("standalone").finished:
        times = {span.name: span for span in record.spans}
        generated = times["actor.generate"].end_seconds
        for name in (
            "critic.compute_values",
            "reference.compute_log_prob",
            "reward.compute_reward",
        ):
            assert times[name].start_seconds >= generated
            assert times["actor.update"].start_seconds >= times[name].end_seconds


def test_transitions_run_only_where_layouts_differ(runs):
    def transitions(name):
        return [s for s in runs(name).finished[0].spans if s.activity == "transition"]

    assert transitions("dp 2") == []
    assert [span.pool for span in transitions("tp 2 to tp 1")] == ["p0"]
    assert [span.pool for span in transitions("two copies")] == ["generator"]


def test_bytes_that_a_transition_moves_are_metrics(runs):
    whole_bytes = sum(weights.nbytes for weights in runs("one process").actor[0].values())
    held = sum(weights.nbytes for weights in runs("tp 2").actor[0].values())
    for name, redundant in (("tp 2 to tp 1", 0.0), ("fully sharded", whole_bytes / 2)):
        metrics = runs(name).metrics[-1]
        assert metrics["transition_redundant_bytes"] == redundant
        received = whole_bytes - held if redundant == 0 else whole_bytes / 2
        assert metrics["transition_received_bytes"] == received
    assert runs("two copies").metrics[0]["transition_received_bytes"] == whole_bytes
    for metrics in runs("two copies").metrics:
        assert 0 < metrics["transition_buffer_bytes"] <= BUCKET_BYTES < whole_bytes
    assert "transition_received_bytes" not in runs("dp 2").metrics[0]


@pytest.fixture
def expert_runs(worker_pool):
    """Return what the plan of a name does."""
    mixtral = replace(TINY, family="mixtral", num_experts=4, experts_per_token=2, moe_ffn_size=16)
    job = make_job(model=mixtral)
    pool = {"p0": (2, ALL_ROLES)}
    plans = {
        "one process": make_plan(job, {"p0": (1, ALL_ROLES)}),
        "ep 2": make_plan(job, pool, ep=2, micro_batch=3),
        "ep 2, two copies": make_plan(
            job, pool | {"generator": (1, ("actor",))}, ep=2, transition="two-copies"
        ),
    }
    return lambda name: worker_pool.run(plans[name])


@pytest.mark.full
@pytest.mark.parametrize("name", ["ep 2", "ep 2, two copies"])
def test_experts_on_several_ranks_learn_the_same(expert_runs, name):
    alone = expert_runs("one process")
    for index, expected in enumerate(alone.metrics):
        assert np.array_equal(expert_runs(name).tokens[index], alone.tokens[index])
        for loss in LOSSES:
            assert expert_runs(name).metrics[index][loss] == pytest.approx(expected[loss], abs=1e-4)
    for rank in expert_runs(name).generator:
        for key, weights in alone.actor[0].items():
            np.testing.assert_allclose(rank[key], weights, atol=3e-5, err_msg=key)
            assert np.array_equal(rank[key], expert_runs(name).actor[0][key]), key


@pytest.fixture
def grpo_runs(worker_pool):
    """Return what the plan of a name does."""
    qwen = replace(
        TINY, family="qwen3", qk_norm=True, tied_embeddings=True, num_kv_heads=2, head_dim=8
    )
    job = make_job("grpo", model=qwen, prompts=4, samples_per_prompt=4, updates=2, epochs=2)
    roles = ("actor", "reference")
    plans = {
        "one process": make_plan(job, {"p0": (1, roles)}, max_running=3),
        "tp 2": make_plan(job, {"p0": (2, roles)}, tp=2, micro_batch=2),
        "dp 2": make_plan(job, {"p0": (2, roles)}),
    }
    return lambda name: worker_pool.run(plans[name])


@pytest.mark.parametrize("name", first(1, ["dp 2", "tp 2"]))
def test_groups_tied_embeddings_and_head_norms_agree_too(grpo_runs, name):
    """Waves, micro-batches, epochs and mini-batches differ; tokens and losses do not."""
    for index, expected in enumerate(grpo_runs("one process").metrics):
        assert np.array_equal(grpo_runs(name).tokens[index], grpo_runs("one process").tokens[index])
        metrics = grpo_runs(name).metrics[index]
        assert metrics["policy_loss"] == pytest.approx(expected["policy_loss"], abs=1e-4)
        assert metrics["actor_gradient_norm"] == pytest.approx(
            expected["actor_gradient_norm"], rel=1e-3
        )
