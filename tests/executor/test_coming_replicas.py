"""Replicas that come and go: what is learnt is what a run whose replicas stay learns, and every sample is learnt from once."""

from dataclasses import replace
from pathlib import Path

import pytest
import ray

from rlplan.errors import CapabilityError, FileError, WorkerLostError
from rlplan.executor.control.capabilities import check_coming, check_runnable
from rlplan.executor.control.checkpoints import find_checkpoint
from rlplan.executor.control.controller import Controller
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.run import Saving
from rlplan.executor.control.start import ComingReplicas, prepare_groups, started_replicas
from rlplan.executor.control.summary import iteration_metrics
from rlplan.executor.data.workload import PromptBatches
from rlplan.executor.execute import execute
from rlplan.executor.workers.pools import start_group
from rlplan.executor.workers.processes.ray_session import DEVICE
from rlplan.job import Rewards
from rlplan.plan import Lending
from rlplan.replicas import read_schedule
from rlplan.workload import Lognormal, Uniform
from tests.executor.harness import ReusedWorker, collected
from tests.executor.plans import make_job, make_plan
from tests.executor.test_checkpoints import assert_same, stored_weights
from tests.executor.test_episodes import without_host
from tests.executor.test_streamed_episodes import GUESS
from tests.executor.test_streaming import same

APART = {"p0": (1, ("actor", "reference")), "generator": (4, ("actor",))}
LENGTHS = Lognormal(mean=8.0, std=8.0, max=40)


# One response at a time, so that the numbers of none depend on which others there are.
def plan_of(mode="streaming", *, response_tokens=LENGTHS, **settings):
    job = make_job("grpo", samples_per_prompt=2, response_tokens=response_tokens, updates=2)
    job = replace(job, rewards=Rewards(function="digits"))
    plan = make_plan(job, APART, transition="two-copies", micro_batch=2, max_running=1)
    return replace(plan, mode=mode, **settings)


class Elastic:
    """Run iterations of a plan on replicas of their own, which come and go as a schedule says."""

    def __init__(self, worker_pool, plan, schedule):
        self.tasks = check_runnable(plan)
        generate = plan.tasks["actor.generate"]
        self.plan, self.groups = plan, worker_pool.groups_of(plan)
        self.prompts = PromptBatches(plan.job, Path())
        self.replicas = self.groups["generator"] = started_replicas(
            plan,
            ComingReplicas(schedule=read_schedule(schedule), iteration=0),
            lambda: start_group(ReusedWorker, generate.tp, DEVICE),
        )
        prepare_groups(plan, self.tasks, self.prompts, 1, self.groups)
        self.controller = Controller(plan, self.tasks, self.groups, self.prompts.columns)
        self.records, self.tokens, self.said = [], [], []

    @property
    def feed(self):
        return self.controller.feed

    def carry_out(self, iterations, *, before=lambda _: None, during=lambda _: None):
        """Run iterations; a function is called before each, and one when its calls are sent.

        Whatever is to join has started when an iteration ends: processes take longer than such short ones.
        """
        for iteration in range(iterations):
            before(iteration)
            running = self.controller.send(iteration, is_last=iteration + 1 == iterations)
            during(iteration)
            while self.feed._members.is_starting:
                self.feed._events.wait()
                self.feed._go_on()
            self.records.append(self.controller.finish(running))
            if self.plan.learns_in_order:
                self.tokens.append(collected(running, "sequences", "tokens"))
            self.said += [change.words for change in self.records[-1].changes]
        return self

    @property
    def metrics(self):
        return [iteration_metrics(self.plan, self.tasks, each) for each in self.records]

    def actor(self):
        return self.groups["p0"].call("weights", "actor")

    def stop(self):
        self.controller.stop()
        self.replicas.stop()


@pytest.fixture(scope="module")
def sync(worker_pool):
    """Return a synchronous run of the same job on all replicas."""
    return worker_pool.run(plan_of("sync"), iterations=4)


@pytest.fixture
def elastic(worker_pool):
    """Start runs whose replicas come and go, and end them."""
    started = []

    def start(plan, schedule):
        started.append(Elastic(worker_pool, plan, schedule))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.mark.ray
def test_a_run_whose_replicas_come_and_go_learns_what_a_synchronous_one_learns(elastic, sync):
    run = elastic(plan_of(), "0:1,1:3,3:2").carry_out(4)
    assert [each["replicas"] for each in run.metrics] == [1, 3, 3, 2]
    for found, expected in zip(run.tokens, sync.tokens, strict=True):
        assert sorted(found.tolist()) == sorted(expected.tolist())
    assert same(run.actor(), sync.actor)
    assert [words.split(":")[0] for words in run.said] == [
        "replica 1 has joined",
        "replica 2 has joined",
        "replica 2 has left",
    ]


def killed(replicas, number):
    """Kill the first process of a replica, without a word."""
    ray.kill(replicas.members[number].actors[0])


@pytest.mark.ray
def test_a_replica_that_is_lost_is_replaced_and_changes_nothing_that_is_learnt(elastic, sync):
    run = elastic(plan_of(), "2")
    run.carry_out(4, during=lambda at: killed(run.replicas, 1) if at == 1 else None)
    assert [each["lost_replicas"] for each in run.metrics] == [0, 1, 0, 0]
    assert [each["replicas"] for each in run.metrics] == [2, 1, 1, 2]
    for found, expected in zip(run.tokens, sync.tokens, strict=True):
        assert sorted(found.tolist()) == sorted(expected.tolist())
    assert same(run.actor(), sync.actor)
    assert "begin again: 1 replica generates" in run.said[0]


def killed_as_it_answers(run, answers):
    """Kill replica 1 once as its answers of the second iteration come back: the first one, or the one with its last response."""
    rollouts, share = run.feed._rollouts, run.plan.job.workload.sequences // 2
    before, ended = rollouts.came_back, []

    def came_back(each, rolled):
        found = before(each, rolled)
        if each.ranks[0] == 1 and run.feed._synced == 1:
            ended.extend(found)
            if not run.killed and len(ended) >= {"first": 0, "last": share}[answers]:
                run.killed.append(1)
                killed(run.replicas, 1)
        return found

    rollouts.came_back = came_back


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("moment", ["begun", "first", "last", "between", "twice"])
def test_a_replica_that_is_killed_while_it_generates_loses_no_sample_and_repeats_none(
    elastic, sync, moment
):
    run, learnt = elastic(plan_of(), "2"), []
    run.killed = []
    if moment in {"first", "last"}:
        killed_as_it_answers(run, moment)
    note = run.feed.samples.note_learnt
    run.feed.samples.note_learnt = lambda samples: (learnt.extend(samples), note(samples))

    def kill(at, replica, moments, iteration):
        if moment in moments and at == iteration:
            killed(run.replicas, replica)

    run.carry_out(
        4,
        before=lambda at: kill(at, 1, {"between"}, 2),
        during=lambda at: (
            kill(at, 1, {"begun", "twice"}, 1),
            kill(at, 0, {"twice"}, 3),
        ),
    )
    assert len(learnt) == len(set(learnt)) == 4 * 16
    assert same(run.actor(), sync.actor)
    lost = [each for record in run.records for each in record.changes if each.event == "lost"]
    assert [each.replica for each in lost] == [1, 0][: 1 + (moment == "twice")]
    assert [each.generate for each in lost] == [1] * len(lost)
    assert sum(each["lost_replicas"] for each in run.metrics) == len(lost)


@pytest.mark.ray
def test_the_loss_of_the_last_replica_ends_the_attempt(elastic):
    run = elastic(plan_of(), "1")
    with pytest.raises(WorkerLostError, match="it was the last one"):
        run.carry_out(3, during=lambda at: killed(run.replicas, 0) if at == 1 else None)


# Where a replica is killed that joins: between which of its calls, and when it has just begun to generate.
PHASES = ("_meet", "_prepare", "_is_ready", "_join", "weights")


def killed_at(run, monkeypatch, phase):
    """Kill the first replica that joins, at a phase of its start, once."""
    members, killed = run.feed._members, []
    method = "_join" if phase == "weights" else phase
    before = getattr(members, method)

    def kill(number):
        killed.append(number)
        group = {**run.replicas.starting, **run.replicas.members}[number]
        ray.kill(group.actors[0])

    def call(number, *given):
        if not killed and phase != "weights":
            kill(number)
        before(number, *given)
        if not killed:
            kill(number)

    monkeypatch.setattr(members, method, call)
    return killed


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("phase", PHASES)
def test_a_replica_that_is_killed_as_it_joins_changes_nothing_that_is_learnt(
    elastic, sync, monkeypatch, phase
):
    run = elastic(plan_of(), "0:1,1:2")
    killed = killed_at(run, monkeypatch, phase)
    run.carry_out(4)
    assert killed == [1]
    assert run.metrics[-1]["replicas"] == 2
    for found, expected in zip(run.tokens, sync.tokens, strict=True):
        assert sorted(found.tolist()) == sorted(expected.tolist())
    assert same(run.actor(), sync.actor)


@pytest.mark.full
@pytest.mark.ray
def test_a_replica_that_never_starts_is_given_up_and_the_run_goes_on(elastic, monkeypatch):
    run = elastic(plan_of(), "0:1,1:2")
    members = run.feed._members
    monkeypatch.setattr(members, "_then", failing_at_once(members, members._then))
    run.carry_out(5)
    assert [words for words in run.said if "did not start" in words] == [
        "replica 1 did not start",
        "replica 1 did not start",
        "replica 1 did not start; none is started any more",
    ]
    assert [each["replicas"] for each in run.metrics] == [1] * 5


@pytest.mark.full
@pytest.mark.ray
def test_three_that_do_not_start_at_once_are_not_given_up(elastic, monkeypatch):
    """As where the node is lost on which all of them start."""
    run = elastic(plan_of(), "0:1,1:4")
    members = run.feed._members
    then, failing = members._then, failing_at_once(members, members._then)

    def first_fails(number, calls, following):
        (then if run.records else failing)(number, calls, following)

    monkeypatch.setattr(members, "_then", first_fails)
    run.carry_out(4)
    assert sum("did not start" in words for words in run.said) == 3
    assert not any("none is started" in words for words in run.said)
    assert run.metrics[-1]["replicas"] == 4


@pytest.mark.full
@pytest.mark.ray
def test_as_many_as_are_missing_are_said_to_have_no_place_and_each_once(elastic):
    """Of replicas 1 to 3, which are all tried, the last one alone has a place."""
    run = elastic(plan_of(), "0:1,1:2,3:3")
    start = run.replicas._begin
    run.replicas._begin = lambda number: start(number) if number == 3 else None
    run.carry_out(6)
    placeless = [words for words in run.said if "no free node" in words]
    assert [words.split(" is ")[0] for words in placeless] == ["replica 1"]
    assert [each["replicas"] for each in run.metrics] == [1, 2, 2, 2, 2, 2]


def failing_at_once(members, then):
    """Let a start fail behind its first call."""

    def call(number, calls, following):
        del following
        then(number, calls, lambda _: members._failed(number))

    return call


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("in_flight", ["drain", "keep", "recompute"])
def test_an_endless_stream_learns_from_every_sample_once_whatever_comes_and_goes(
    elastic, in_flight
):
    plan = plan_of("async", staleness=2, in_flight=in_flight)
    plan = plan.with_layout("actor.generate", replace(plan.tasks["actor.generate"], max_running=6))
    run, learnt = elastic(plan, "0:2,2:1,4:3"), []
    note = run.feed.samples.note_learnt
    run.feed.samples.note_learnt = lambda samples: (learnt.extend(samples), note(samples))
    run.carry_out(6, during=lambda at: killed(run.replicas, 0) if at == 1 else None)
    assert run.metrics[-1]["replicas"] == 3
    assert sum(each["lost_replicas"] for each in run.metrics) == 1
    assert len(learnt) == len(set(learnt)) == 6 * 16
    assert max(each["staleness_max"] for each in run.metrics) <= 2
    following, left = run.controller.position(5)
    begun = {sample // 2 for sample in learnt} | set(left)
    assert begun == set(range(following))


@pytest.mark.full
@pytest.mark.ray
def test_a_replica_of_several_ranks_ends_with_any_of_them(elastic, sync):
    generate = plan_of().tasks["actor.generate"]
    plan = plan_of().with_layout("actor.generate", replace(generate, tp=2, dp=2))
    run = elastic(plan, "2")

    def kill(at):
        if at == 1:
            ray.kill(run.replicas.members[1].actors[1])

    run.carry_out(4, during=kill)
    assert [each["lost_replicas"] for each in run.metrics] == [0, 1, 0, 0]
    assert run.metrics[-1]["replicas"] == 2
    for found, expected in zip(run.tokens, sync.tokens, strict=True):
        assert sorted(found.tolist()) == sorted(expected.tolist())


@pytest.mark.full
@pytest.mark.ray
def test_replicas_that_play_episodes_come_go_and_are_lost_and_change_nothing_that_is_learnt(
    elastic, worker_pool
):
    """Nine instances of an environment on four replicas are two each, whoever is there."""
    lengths, played = Uniform(low=4, high=12), replace(GUESS, instances=9)
    job = make_job(
        "grpo", samples_per_prompt=2, response_tokens=lengths, environments=(played,), updates=2
    )
    job = replace(job, rewards=None)
    plan = without_host(
        make_plan(job, APART, transition="two-copies", micro_batch=2, max_running=1)
    )
    run = elastic(replace(plan, mode="streaming"), "0:1,1:3")
    assert run.replicas.setup.plan.job.environments[0].instances == 2
    run.carry_out(4, during=lambda at: killed(run.replicas, 1) if at == 1 else None)
    assert [each["replicas"] for each in run.metrics] == [1, 2, 2, 3]
    sync = worker_pool.run(plan, iterations=4)
    for found, expected in zip(run.tokens, sync.tokens, strict=True):
        assert sorted(found.tolist()) == sorted(expected.tolist())
    assert same(run.actor(), sync.actor)


@pytest.mark.parametrize(
    ("plan", "schedule", "words"),
    [
        (plan_of("sync"), "2", "mode"),
        (plan_of(), "5", "at most 4"),
        (replace(plan_of(), lending=Lending()), "2", "lending"),
    ],
)
def test_what_has_no_replicas_that_come_and_go_is_refused(plan, schedule, words):
    with pytest.raises(FileError, match=words):
        check_coming(read_schedule(schedule), plan)


def test_vllm_is_refused_beside_replicas_that_come_and_go_with_what_is_to_be_done_instead():
    generate = plan_of().tasks["actor.generate"]
    plan = plan_of().with_layout("actor.generate", replace(generate, engine="vllm"))
    with pytest.raises(CapabilityError, match=r"replicas that come and go.*torch-static"):
        check_coming(read_schedule("2"), plan)


@pytest.mark.full
@pytest.mark.ray
def test_a_resumed_run_begins_with_the_replicas_of_its_iteration_and_ends_alike(
    shared_workers, ray_slots, tmp_path
):
    schedule = read_schedule("0:1,2:2")

    def carried_out(out, iterations, resume=None):
        saving = Saving(every=1, resume=resume)
        return execute(
            plan_of(),
            out,
            iterations=iterations,
            seed=1,
            warmup=0,
            saving=saving,
            schedule=schedule,
        )

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    carried_out(whole, 4)
    carried_out(parts, 2)
    assert carried_out(parts, 4, resume=parts).replicas == (2, 2)
    assert [row["replicas"] for row in read_metrics(parts)][2:] == [2, 2]
    found, expected = find_checkpoint(parts), find_checkpoint(whole)
    assert found.state == expected.state
    assert_same(stored_weights(found), stored_weights(expected))
