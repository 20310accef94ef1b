"""Runs whose model answers environments turn by turn, on Ray."""

from dataclasses import replace

import pytest
import ray

from rlplan.errors import CapabilityError, UserError, WorkerLostError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.workers.episodes import EpisodeStart, RemoteHosts
from rlplan.files.frozen import FrozenDict
from rlplan.workload import Environment
from tests.executor.plans import make_job, make_plan

GUESS = Environment(
    name="letters",
    source="guess",
    turns=3,
    observation_tokens=8,
    step_seconds=0.001,
    workers=2,
)


def episodes_plan(*, algorithm="grpo", gpus=1, environment=GUESS, **changes):
    job = make_job(algorithm, samples_per_prompt=2, response_tokens=9, environments=(environment,))
    plan = make_plan(replace(job, rewards=None), {"p0": (gpus, ("actor", "reference"))}, **changes)
    return without_host(plan)


def without_host(plan):
    order = FrozenDict({name: tasks for name, tasks in plan.order.items() if name != "host"})
    return replace(plan, pools=plan.pools[:-1], order=order)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (
            episodes_plan(environment=replace(GUESS, source=None)),
            "environments.0.source is not given: this executor cannot: .* it plays .*: calculator, guess",
        ),
        (
            episodes_plan(gpus=2, environment=replace(GUESS, instances=1)),
            "environments.0.instances is 1: .* each of 2 replicas has some of its own: 2 or more",
        ),
        (episodes_plan(gpus=2, tp=2), "tp x pp is 2: .* a rank plays episodes alone: 1"),
        (episodes_plan(algorithm="remax"), "a greedy baseline would play every episode twice"),
    ],
)
def test_what_this_executor_does_not_play_is_refused_by_name(plan, said):
    with pytest.raises(CapabilityError, match=said):
        check_runnable(plan)


@pytest.mark.full
@pytest.mark.ray
def test_remote_and_inline_inference_play_the_same_episodes(worker_pool):
    remote = worker_pool.run(episodes_plan())
    inline = worker_pool.run(episodes_plan(environment=replace(GUESS, inference="inline")))
    for one, other in zip(remote.tokens, inline.tokens, strict=True):
        assert (one == other).all()
    for metrics in (*remote.metrics, *inline.metrics):
        assert 1 <= metrics["turns"] <= 3
        assert metrics["response_tokens"] <= 9
        assert metrics["environment_seconds"] > 0
        assert 0 <= metrics["mean_reward"] <= 1
    assert [m["mean_reward"] for m in remote.metrics] == [m["mean_reward"] for m in inline.metrics]


@pytest.mark.full
@pytest.mark.ray
def test_few_instances_play_the_same_episodes_in_rounds(worker_pool):
    """Each of the sixteen has random numbers of its own, whichever others are played with it."""
    all_at_once = worker_pool.run(episodes_plan())
    few = worker_pool.run(episodes_plan(environment=replace(GUESS, instances=3)))
    assert (few.tokens[0] == all_at_once.tokens[0]).all()


@pytest.mark.ray
@pytest.mark.full
def test_replicas_play_the_same_episodes_as_one(worker_pool):
    one, two = worker_pool.run(episodes_plan()), worker_pool.run(episodes_plan(gpus=2))
    assert (one.tokens[0] == two.tokens[0]).all()


def answered(hosts, *questions):
    """Return what is answered to questions of episodes 0, 1, and so on."""
    for episode, question in enumerate(questions):
        hosts.ask(episode, question)
    found = {}
    while len(found) < len(questions):
        found |= hosts.answered(None)
    return [found[episode] for episode in range(len(questions))]


@pytest.mark.full
@pytest.mark.ray
def test_a_lost_process_plays_its_episodes_again_up_to_where_they_were(ray_slots, tmp_path):
    hosts = RemoteHosts((replace(GUESS, workers=1),), tmp_path, 1)
    answered(hosts, EpisodeStart(0, 0, "m?", {}), EpisodeStart(1, 0, "a?", {}))
    assert [each.observation for each in answered(hosts, "a", "z")] == ["later\n", "earlier\n"]
    ray.kill(hosts._hosts[0])
    after = answered(hosts, "m", "a")
    assert [(each.reward, each.ends) for each in after] == [(0.5, True), (0.5, True)]


@pytest.mark.full
@pytest.mark.ray
def test_a_failing_environment_of_the_users_is_one_message(ray_slots, tmp_path):
    text = "def play(prompt, responses, row):\n    return row['missing']\n"
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    hosts = RemoteHosts((replace(GUESS, source="mine.py:play"),), tmp_path, 1)
    answered(hosts, EpisodeStart(0, 0, "p", {}))
    with pytest.raises(UserError, match=r"^environment mine\.py:play: step fails: KeyError"):
        answered(hosts, "x")


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("ends_at", [1, 2])
def test_an_environment_that_ends_its_process_again_and_again_is_a_lost_worker(
    ray_slots, tmp_path, ends_at
):
    """So that a run with checkpoints goes on from the last one, as after any other loss."""
    text = (
        "import os\ndef play(prompt, responses, row):\n"
        f"    if len(responses) == {ends_at} or 'dead' in os.listdir(row['folder']):\n"
        "        open(row['folder'] + '/dead', 'w').close()\n        os._exit(1)\n"
        "    return 'go on', 0.0, False\n"
    )
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    hosts = RemoteHosts((replace(GUESS, source="mine.py:play"),), tmp_path, 1)
    answered(hosts, EpisodeStart(0, 0, "p", {"folder": str(tmp_path)}))
    if ends_at == 2:  # then it ends where it plays the first step again
        answered(hosts, "x")
    with pytest.raises(WorkerLostError, match="a process that plays environments ended twice"):
        answered(hosts, "y")
