"""vLLM inside Ray's workers: replicas, tensor parallelism, and whole runs of a plan."""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.execute import execute
from rlplan.executor.workers.processes.ray_session import running_ray
from tests.executor.harness import WorkerPool
from tests.executor.plans import make_job, make_plan
from tests.vllm.engine_alone import MODEL, both, generate, scale, setup_of, shard_of
from tests.vllm.workers import VllmWorker

ROLES = ("actor", "reference")


@pytest.fixture(scope="module", autouse=True)
def ray_slots():
    # Four for the shared workers, one for the run that starts its own.
    with running_ray(devices=5, hosts=2):
        yield


@pytest.fixture(scope="module")
def worker_pool(ray_slots):
    """Keep the workers of all plans: vLLM is imported once in each, not once for each plan."""
    worker_pool = WorkerPool(VllmWorker)
    yield worker_pool
    worker_pool.stop()


def left_on_disk():
    """Return what vLLM could leave behind: segments of shared memory, sockets, configs."""
    memory, temporary = Path("/dev/shm"), Path(tempfile.gettempdir())
    return {
        *memory.glob("*psm_*"),
        *memory.glob("*vllm*"),
        *(path for path in temporary.iterdir() if path.is_socket()),
        *temporary.glob("rlplan-vllm-*"),
    }


def compared(tp, rank, ranks):
    """Return both engines' greedy tokens and log-probabilities on a rank, before and after an update."""
    shard = shard_of(MODEL, rank, ranks, tp)
    vllm, own = both(shard, setup_of(MODEL, ranks=ranks, tp=tp))
    found = []
    for factor in (1.0, 0.8):
        scale(shard, factor)
        vllm.load_weights()
        found.append([generate(engine, greedy=True) for engine in (vllm, own)])
    return [[(made.tokens.tolist(), made.log_probs.tolist()) for made in pair] for pair in found]


@pytest.mark.parametrize(("ranks", "tp"), [(2, 1), (2, 2), (4, 2)])
def test_every_rank_generates_what_the_torch_engine_does(worker_pool, ranks, tp):
    by_rank = worker_pool.on_ranks(ranks, partial(compared, tp))
    for found in by_rank:
        assert found == by_rank[0]
        for (tokens, log_probs), (expected, expected_log_probs) in found:
            assert tokens == expected
            for said, known in zip(log_probs, expected_log_probs, strict=True):
                assert said == pytest.approx(known, abs=1e-4)
        assert found[0] != found[1]


def engine_on_disk(rank, ranks):
    """Return what an engine adds to the disk that other processes would see, while it lives."""
    before = left_on_disk()
    shard = shard_of(MODEL, rank, ranks, ranks)
    engines = both(shard, setup_of(MODEL, ranks=ranks, tp=ranks))
    generate(engines[0])
    return sorted(map(str, left_on_disk() - before))


def test_a_tensor_parallel_engine_leaves_nothing_that_outlives_its_workers(worker_pool):
    assert worker_pool.on_ranks(2, engine_on_disk) == [[], []]


def vllm_plan(algorithm, ranks, **sizes):
    """Return a plan on one pool whose actor generates with vLLM."""
    job = make_job(algorithm, model=MODEL, samples_per_prompt=2 if algorithm == "grpo" else 1)
    plan = make_plan(job, {"p0": (ranks, ROLES)}, **sizes)
    layout = replace(plan.tasks["actor.generate"], engine="vllm")
    return replace(plan, tasks=plan.tasks.with_item("actor.generate", layout))


def check_metrics(rows):
    """Check that what vLLM said of its tokens is what the actor says."""
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    # The reference is the actor of the first iteration, with log-probabilities of its own.
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-4)
    for row in rows:
        assert 1 <= row["response_tokens"] <= 5  # a drawn end token ends a response


@pytest.mark.parametrize(
    ("algorithm", "sizes"),
    [("remax", {"tp": 2}), ("grpo", {"tp": 2, "tp_gen": 1})],
    ids=["tensor parallel", "tensor parallel to replicas"],
)
def test_a_plan_runs_and_what_vllm_said_is_what_the_actor_says(worker_pool, algorithm, sizes):
    record = worker_pool.run(vllm_plan(algorithm, 2, **sizes), iterations=3)
    check_metrics([{"iteration": at} | row for at, row in enumerate(record.metrics)])


def test_a_whole_run_generates_with_vllm_and_leaves_nothing_behind(tmp_path):
    before = left_on_disk()
    execute(vllm_plan("grpo", 1), tmp_path, iterations=3, seed=1)
    check_metrics(read_metrics(tmp_path))
    assert left_on_disk() <= before
