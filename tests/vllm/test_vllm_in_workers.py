"""vLLM inside Ray's workers: replicas, tensor parallelism, and whole runs of a plan."""

from dataclasses import replace
from functools import partial

import pytest

from executor.execute import execute
from executor.metrics import read_metrics
from executor.pools import DEVICE, running_ray, start_group
from executor.start import join_all
from tests.executor.harness import ReusedWorker
from tests.executor.plans import make_job, make_plan
from tests.vllm.engine_alone import MODEL, both, generate, scale, setup_of, shard_of


@pytest.fixture(scope="module", autouse=True)
def ray_slots():
    with running_ray(devices=6, hosts=1):
        yield


def compared(tp, rank, ranks):
    """Return both engines' greedy tokens and log-probabilities on a rank, before and after an update."""
    shard = shard_of(MODEL, rank, ranks, tp)
    vllm, own = both(shard, setup_of(MODEL, ranks=ranks, tp=tp))
    found = []
    for factor in (1.0, 0.8):
        scale(shard, factor)
        vllm.take_weights()
        found.append([generate(engine, greedy=True) for engine in (vllm, own)])
    return [[(made.tokens.tolist(), made.log_probs.tolist()) for made in pair] for pair in found]


@pytest.mark.parametrize(("ranks", "tp"), [(2, 1), (2, 2), (4, 2)])
def test_every_rank_generates_what_the_torch_engine_does(ranks, tp):
    group = start_group(ReusedWorker, ranks, DEVICE)
    try:
        join_all({group: "cpu"})
        by_rank = group.call("apply", partial(compared, tp))
    finally:
        group.stop()
    for found in by_rank:
        assert found == by_rank[0]
        for (tokens, log_probs), (expected, expected_log_probs) in found:
            assert tokens == expected
            for said, known in zip(log_probs, expected_log_probs, strict=True):
                assert said == pytest.approx(known, abs=1e-4)
        assert found[0] != found[1]


@pytest.mark.parametrize(
    ("algorithm", "ranks", "sizes"),
    [
        ("grpo", 1, {}),
        ("remax", 2, {"tp": 2}),
        ("grpo", 2, {"tp": 2, "tp_gen": 1}),
    ],
    ids=["one process", "tensor parallel", "tensor parallel to replicas"],
)
def test_a_plan_runs_and_what_vllm_said_is_what_the_actor_says(tmp_path, algorithm, ranks, sizes):
    job = make_job(algorithm, model=MODEL, samples_per_prompt=2 if algorithm == "grpo" else 1)
    plan = make_plan(job, {"p0": (ranks, ("actor", "reference"))}, **sizes)
    layout = replace(plan.tasks["actor.generate"], engine="vllm")
    plan = replace(plan, tasks=plan.tasks.with_item("actor.generate", layout))
    execute(plan, tmp_path, iterations=3, seed=1)
    rows = read_metrics(tmp_path)
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    # The reference is the actor of the first iteration, with log-probabilities of its own.
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-4)
    for row in rows:
        assert 1 <= row["response_tokens"] <= 5  # a drawn end token ends a response
