"""Episodes that go on one by one: one row each, in time, and where nothing is stale those of a synchronous run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray

from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.environments import Step
from rlplan.executor.workers.episodes import EpisodeStart, RemoteHosts
from rlplan.files.decoding import read_json
from rlplan.results.measurement import MeasuredRun
from rlplan.workload import Environment, Uniform
from rlplan_cli.main import run as run_cli
from tests.executor.plans import make_job, make_plan
from tests.executor.test_episodes import without_host
from tests.executor.test_streaming import learnt_beside_a_killed_storage_actor

pytestmark = pytest.mark.ray

GUESS = Environment(
    name="letters",
    source="guess",
    turns=Uniform(low=1, high=4),
    observation_tokens=8,
    step_seconds=0.001,
    workers=2,
)
APART = {"p0": (1, ("actor", "reference")), "generator": (1, ("actor",))}


# Says how often it was asked; its process ends once, at a step in the middle of an episode.
COUNTING = """
import os
from pathlib import Path

DYING = Path({folder!r})

class Counting:
    def reset(self, prompt, row):
        self.steps = 0
        return "begin"

    def step(self, response):
        self.steps += 1
        if self.steps == 2 and DYING.exists():
            DYING.unlink()
            os._exit(1)
        return f"{{self.steps}} {{len(response)}}", float(self.steps), False
"""


def plan_of(mode, inference="remote", environment=GUESS, **settings):
    """Return a plan whose passes are of one prompt each, so that no row's numbers depend on which others there are."""
    environment = replace(environment, inference=inference)
    lengths = Uniform(low=4, high=12)
    job = make_job(
        "grpo", samples_per_prompt=2, response_tokens=lengths, environments=(environment,)
    )
    plan = make_plan(
        replace(job, rewards=None), APART, transition="two-copies", micro_batch=2, max_running=6
    )
    return replace(without_host(plan), mode=mode, **settings)


def same(found, expected):
    return all(
        np.array_equal(one[name], other[name])
        for one, other in zip(found, expected, strict=True)
        for name in other
    )


@pytest.mark.full
@pytest.mark.parametrize("inference", ["remote", "inline"])
def test_streaming_learns_what_a_synchronous_run_learns_to_the_last_bit(worker_pool, inference):
    sync = worker_pool.run(plan_of("sync", inference), iterations=3)
    streaming = worker_pool.run(plan_of("streaming", inference), iterations=3)
    for one, other in zip(streaming.tokens, sync.tokens, strict=True):
        assert sorted(one.tolist()) == sorted(other.tolist())
    assert same(streaming.actor, sync.actor)
    for found, expected in zip(streaming.metrics, sync.metrics, strict=True):
        for name in ("policy_loss", "mean_reward", "response_tokens", "turns"):
            assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-7), name
        assert found["environment_seconds"] > 0


@pytest.mark.full
@pytest.mark.parametrize("mode", ["streaming", "async"])
def test_few_instances_play_all_episodes(worker_pool, mode):
    few = replace(GUESS, instances=3)
    found = worker_pool.run(plan_of(mode, environment=few, staleness=float(mode == "async")))
    assert all(len(record.ages) == 16 for record in found.finished)
    if mode == "streaming":
        sync = worker_pool.run(plan_of("sync"))
        assert sorted(found.tokens[0].tolist()) == sorted(sync.tokens[0].tolist())


CASES = [
    ("remote", "recompute"),
    ("inline", "keep"),
    ("remote", "keep"),
    ("remote", "drain"),
    ("inline", "drain"),
    ("inline", "recompute"),
]


@pytest.mark.full
@pytest.mark.parametrize(("inference", "in_flight"), CASES)
def test_no_episode_is_older_than_the_bound_allows(worker_pool, inference, in_flight):
    plan = plan_of("async", inference, staleness=2, sync_every=2, in_flight=in_flight)
    found = worker_pool.run(plan, iterations=5)
    assert all(len(record.ages) == 16 for record in found.finished)
    assert max(metrics["staleness_max"] for metrics in found.metrics) <= 2
    assert all(np.isfinite(metrics["policy_loss"]) for metrics in found.metrics)
    assert all(1 <= metrics["turns"] <= 4 for metrics in found.metrics)


@pytest.mark.full
def test_an_environment_process_that_ends_plays_its_episodes_again(worker_pool, tmp_path):
    dying = tmp_path / "dying"
    (tmp_path / "mine.py").write_text(COUNTING.format(folder=str(dying)), encoding="utf-8")
    own = replace(GUESS, source=f"{tmp_path / 'mine.py'}:Counting", turns=3, workers=1)
    expected = worker_pool.carry_out(plan_of("sync", environment=own))
    dying.touch()
    found = worker_pool.carry_out(plan_of("streaming", environment=own))
    assert not dying.exists()
    for one, other in zip(found.tokens, expected.tokens, strict=True):
        assert sorted(one.tolist()) == sorted(other.tolist())
    assert same(found.actor, expected.actor)
    assert [m["mean_reward"] for m in found.metrics] == [6.0, 6.0]
    dying.touch()
    stale = worker_pool.carry_out(plan_of("async", environment=own, staleness=1.0))
    assert not dying.exists()
    assert [m["mean_reward"] for m in stale.metrics] == [6.0, 6.0]


@pytest.mark.full
@pytest.mark.parametrize("inference", ["remote", "inline"])
def test_a_storage_actor_that_is_killed_changes_nothing_that_is_learnt(worker_pool, inference):
    sync = worker_pool.run(plan_of("sync", inference), iterations=3)
    learnt, tokens = learnt_beside_a_killed_storage_actor(
        worker_pool, plan_of("streaming", inference)
    )
    for found, expected in zip(tokens, sync.tokens, strict=False):
        assert sorted(found.tolist()) == sorted(expected.tolist())
    assert [len(record.ages) for record in learnt] == [16, 16]


@pytest.mark.full
def test_what_a_lost_process_was_asked_is_asked_again_of_another(ray_slots, tmp_path):
    hosts = RemoteHosts((replace(GUESS, workers=1),), tmp_path, 1)
    assert hosts.answered(None) == {}
    for number, letter in enumerate("ma"):
        hosts.ask(number, EpisodeStart(number, 0, letter, {}))
    assert answers_of(hosts, 2) == {0: "", 1: ""}
    hosts.ask(0, "a")
    assert answers_of(hosts, 1) == {0: Step("later\n")}
    ray.kill(hosts._hosts[0])
    hosts.ask(0, "m")
    hosts.ask(1, "a")
    assert answers_of(hosts, 2) == {0: Step(reward=0.5, ends=True), 1: Step(reward=1.0, ends=True)}


def answers_of(hosts, count):
    found = {}
    while len(found) < count:
        found |= hosts.answered(0.1)
    return found


@pytest.mark.full
def test_an_asynchronous_job_of_episodes_is_searched_run_and_taken_up_again(
    shared_workers, tmp_path
):
    example = Path(__file__).parents[2] / "examples" / "turns"
    text = (example / "job.yaml").read_text(encoding="utf-8")
    text = text.replace("gpus_per_node: 1", "gpus_per_node: 2, cpu_cores: 4")
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "prompts.jsonl").write_bytes((example / "prompts.jsonl").read_bytes())
    plan, out = tmp_path / "plan.yaml", tmp_path / "run"
    asked = ["--mode", "async", "--spec", "staleness=2", "--out", str(plan)]
    assert run_cli(["search", str(tmp_path / "job.yaml"), *asked]) == 0
    command = ["execute", str(plan), "--out", str(out), "--warmup", "0", "--checkpoint-every", "1"]
    assert run_cli([*command, "--iterations", "2"]) == 0
    assert run_cli([*command, "--iterations", "4", "--resume", str(out)]) == 0
    rows = read_metrics(out)
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3]
    assert all(row["staleness_max"] <= 2 for row in rows)
    assert all(1 <= row["turns"] <= 4 for row in rows)
    assert read_json(MeasuredRun, out / "measured.json").plan.mode == "async"
