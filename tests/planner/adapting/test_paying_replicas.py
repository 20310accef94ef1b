"""Replicas that pay: the fewest of which more would bring less than a hundredth, at each length."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rlplan.errors import InfeasibleError
from rlplan.job import NodeGroup
from rlplan.planner.adapting import replicas
from rlplan.planner.adapting.replicas import LEAST_GAIN, replica_table
from rlplan.profiles.facts import load_facts
from rlplan.replicas import ReplicaRange, with_replicas
from rlplan.workload import Environment, Lognormal, Uniform, longest, mean_length
from tests.executor.plans import make_job, make_plan
from tests.planner.adapting.test_adapting import (
    job,  # noqa: F401 -- a fixture
    with_engines,
)

APART = {"p0": (1, ("actor", "reference")), "generator": (4, ("actor",))}
GROWS = Lognormal(mean=20.0, std=8.0, max=400, training_means=(10.0, 40.0))


def plan_of(lengths=GROWS, objective="throughput"):
    made = make_job("grpo", samples_per_prompt=2, response_tokens=lengths, updates=2)
    plan = make_plan(
        replace(made, objective=objective), APART, transition="two-copies", micro_batch=2
    )
    return replace(plan, mode="streaming")


class Canned:
    """Stand for a forecast: training takes a second, a replica generates twenty tokens a second."""

    spot, feasible = None, True

    def __init__(self, count, tokens):
        self.iteration_seconds = max(1.0, tokens / 20 / count)
        self.cost_usd = (1 + count) * self.iteration_seconds


def canned(monkeypatch, fits=lambda *_: True):
    def forecast(plan, facts, count, tokens):
        found = Canned(count, tokens)
        found.feasible = fits(count, tokens)
        return found

    monkeypatch.setattr(replicas, "_forecast", forecast)


def test_as_many_pay_as_keep_up_with_training(monkeypatch):
    """From 5 to 80 tokens in eight steps of the square root of two: with n replicas up to 20 n tokens are generated in a second."""
    canned(monkeypatch)
    table = replica_table(plan_of(), None, ReplicaRange(least=1, most=4))
    lengths = [5 * 2 ** (step / 2) for step in range(9)]
    assert [row.tokens for row in table.rows] == pytest.approx(lengths)
    assert [row.replicas for row in table.rows] == [1, 1, 1, 1, 1, 2, 2, 3, 4]
    assert [row.above_tokens for row in table.rows] == pytest.approx(
        [0.0, *(each / 2**0.25 for each in lengths[1:])]
    )
    assert (table.begins, table.most) == (10.0, 4)
    assert "; 2 from 24 tokens a response on (of 28 tokens an iteration takes" in table.words


def test_by_money_fewer_pay_where_gpus_would_wait(monkeypatch):
    """With n replicas (1 + n) max(1, tokens / 20 / n): of 80 tokens 8, 6, 5.33 and 5 with one to four."""
    canned(monkeypatch)
    table = replica_table(plan_of(objective="cost"), None, ReplicaRange(least=1, most=4))
    assert [row.replicas for row in table.rows][-3:] == [2, 3, 4]
    assert [row.replicas for row in table.rows][:5] == [1] * 5


def test_losses_of_spot_nodes_count(monkeypatch):
    """Where each replica's node is lost so often that an iteration takes a tenth longer for each, a fourth costs time at 56 tokens.

    Without losses 2.83, 1.41 and 1 s with one to three; with them 3.11, 1.70, 1.30 and, with four, 1.40.
    """

    def forecast(plan, facts, count, tokens):
        found = Canned(count, tokens)
        lost = found.iteration_seconds * (1 + count / 10)
        found.spot = SimpleNamespace(iteration_seconds=lost, cost_usd=None)
        return found

    monkeypatch.setattr(replicas, "_forecast", forecast)
    table = replica_table(plan_of(), None, ReplicaRange(least=1, most=4))
    row = table.row_of(56.0)
    assert row.replicas == 3
    assert [round(row.seconds[count], 2) for count in range(1, 5)] == [3.11, 1.7, 1.3, 1.4]


def test_numbers_with_which_losses_leave_nothing_are_left_out(monkeypatch):
    def forecast(plan, facts, count, tokens):
        found = Canned(count, tokens)
        lost = found.iteration_seconds if count > 1 else None
        found.spot = SimpleNamespace(iteration_seconds=lost, cost_usd=None)
        return found

    monkeypatch.setattr(replicas, "_forecast", forecast)
    table = replica_table(plan_of(), None, ReplicaRange(least=1, most=4))
    assert {count for row in table.rows for count in row.seconds} == {2, 3, 4}
    assert table.words
    with pytest.raises(InfeasibleError, match="would not get on"):
        replica_table(plan_of(), None, ReplicaRange(least=1, most=1))


def test_numbers_that_do_not_fit_are_left_out_and_none_is_an_error(monkeypatch):
    canned(monkeypatch, fits=lambda count, _: count > 2)
    table = replica_table(plan_of(), None, ReplicaRange(least=1, most=4))
    assert {row.replicas for row in table.rows} == {3, 4}
    with pytest.raises(InfeasibleError, match="none of 1 to 2 replicas fits"):
        replica_table(plan_of(), None, ReplicaRange(least=1, most=2))


def test_longer_responses_than_are_planned_that_fit_nowhere_stop_no_run(monkeypatch):
    """Planned are 10 to 40 tokens; with none that fits at 56 and 80 the row of 40 is the last."""
    canned(monkeypatch, fits=lambda _, tokens: tokens < 50)
    table = replica_table(plan_of(), None, ReplicaRange(least=1, most=4))
    assert table.rows[-1].tokens == pytest.approx(40)
    assert table.row_of(80.0) is table.rows[-1]
    canned(monkeypatch, fits=lambda _, tokens: tokens < 30)
    with pytest.raises(InfeasibleError, match="none of 1 to 4 replicas fits at 40 tokens"):
        replica_table(plan_of(), None, ReplicaRange(least=1, most=4))


@pytest.mark.parametrize("lengths", [64, Uniform(low=16, high=48)])
def test_no_longer_means_are_forecast_than_the_longest_response(monkeypatch, lengths):
    canned(monkeypatch)
    table = replica_table(plan_of(lengths), None, ReplicaRange(least=1, most=4))
    mean, most = mean_length(lengths), longest(lengths)
    expected = [mean * 2 ** (step / 2) for step in range(-2, 3)]
    assert [row.tokens for row in table.rows] == pytest.approx(
        [each for each in expected if each < most + 1e-6]
    )


@pytest.mark.full
def test_by_real_forecasts_one_more_brings_less_than_a_hundredth_and_one_fewer_costs_more(job):  # noqa: F811
    work = replace(job.workload, response_tokens=Lognormal(mean=20.0, std=8.0, max=60))
    cores = NodeGroup(gpu="cpu", gpus_per_node=8, cpu_cores=8, inter_node_gbps=200.0)
    own = replace(job, workload=work, cluster=(cores,))
    plan = make_plan(own, APART, transition="two-copies", micro_batch=2)
    plan = replace(with_engines(plan), mode="streaming")
    table = replica_table(plan, load_facts(plan.job), ReplicaRange(least=1, most=4))
    for row in table.rows:
        assert [*row.seconds] == [1, 2, 4]  # of 8 prompts
        best = min(row.seconds.values())
        enough = best * (1 + LEAST_GAIN)
        assert row.seconds[row.replicas] <= enough
        fewer = [seconds for count, seconds in row.seconds.items() if count < row.replicas]
        assert all(seconds > enough for seconds in fewer)


def test_each_replica_has_the_instances_that_it_had():
    environment = Environment(name="letters", source="guess", step_seconds=0.001, instances=9)
    made = make_job("grpo", samples_per_prompt=2, environments=(environment,))
    plan = replace(make_plan(made, APART, transition="two-copies"), mode="streaming")
    found = [
        with_replicas(plan, count).job.workload.environments[0].instances for count in (1, 2, 4)
    ]
    assert found == [2, 4, 8]
