"""Forecasts of jobs with environments: their parts, their memory, and what holds them up."""

from dataclasses import replace

import pytest

from rlplan.job import NodeGroup
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from rlplan.simulator.workload import LengthStatistics
from rlplan.workload import Environment, LognormalSeconds, Uniform, Workload
from tests.simulator.plans import priced_plan

# ReTool's code sandbox: mean and longest call of a run of verl; 7.78 messages are 3.9 turns.
SANDBOX = Environment(
    name="sandbox",
    turns=Uniform(low=1, high=7),
    observation_tokens=64,
    step_seconds=LognormalSeconds(mean=1.61, std=6.0, max=150.5),
    final_step_seconds=0.0,
)


def forecast(*environments, mode="sync", **fields):
    cluster = (
        NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=4, inter_node_gbps=200.0, cpu_cores=64),
    )
    work = Workload(
        prompts=64, prompt_tokens=64, response_tokens=140, environments=environments, **fields
    )
    plan = priced_plan()
    plan = replace(plan, job=replace(plan.job, workload=work, cluster=cluster), mode=mode)
    return simulate(plan, load_facts(plan.job))


def generation(found):
    return next(each for each in found.costs if each.name == "actor.generate")


def test_the_longest_call_is_waited_for_and_shown():
    alone, found = generation(forecast()), generation(forecast(SANDBOX))
    assert "environment" not in alone.parts
    assert 10 < found.parts["environment"] < 150.5
    assert found.seconds == pytest.approx(sum(found.parts.values()))
    assert found.parts["prefill"] > alone.parts["prefill"]


def test_observations_are_in_the_context_and_in_what_is_learnt_from():
    found, alone = forecast(SANDBOX), forecast()
    assert found.tokens_per_second * found.iteration_seconds == pytest.approx(64 * (64 + 140 + 192))
    update = {each.name: each.seconds for each in found.costs}["actor.update"]
    assert update > {each.name: each.seconds for each in alone.costs}["actor.update"]
    work = Workload(prompts=8, prompt_tokens=64, response_tokens=140, environments=(SANDBOX,))
    known = LengthStatistics(work)
    assert known.mean_tokens == pytest.approx(64 + 140 + 3 * 64)
    assert known.longest_tokens == 64 + 140 + 6 * 64


def test_fewer_workers_make_steps_wait():
    slow = replace(SANDBOX, step_seconds=2.0)
    seconds = [
        generation(forecast(replace(slow, workers=workers))).seconds for workers in (64, 16, 4)
    ]
    assert seconds == sorted(seconds)
    # 192 calls of 2 s on four workers.
    assert seconds[-1] >= 192 * 2 / 4
    one_each = generation(forecast(replace(slow, cpu_cores=16))).seconds
    assert one_each == pytest.approx(seconds[-1])


def test_limits_and_shares_bound_what_environments_take():
    limited = generation(forecast(replace(SANDBOX, step_limit_seconds=5.0)))
    assert limited.parts["environment"] < 7 * 5
    quick = replace(SANDBOX, name="quick", step_seconds=0.001, share=0.5)
    mixed = generation(forecast(replace(SANDBOX, share=0.5), quick))
    assert mixed.seconds <= generation(forecast(SANDBOX)).seconds


def test_inline_each_episode_is_played_alone():
    remote, inline = (
        generation(forecast(replace(SANDBOX, step_seconds=0.1, inference=where)))
        for where in ("remote", "inline")
    )
    # 32 episodes of a replica, of 3 steps that take time in the mean.
    assert inline.parts["environment"] == pytest.approx(32 * 3 * 0.1, rel=0.15)
    assert inline.parts["decode"] > 5 * remote.parts["decode"]


def test_the_interval_holds_the_luck_of_the_longest_call():
    def width(found):
        low, high = generation(found).interval_seconds
        return high - low

    steady = forecast(replace(SANDBOX, step_seconds=20.0))
    lucky = forecast(replace(SANDBOX, step_seconds=LognormalSeconds(mean=20.0, std=60.0, max=600)))
    assert width(lucky) > 5 * width(steady)


def test_what_a_job_leaves_to_the_cores_is_said():
    found = forecast(replace(SANDBOX, cpu_cores=2.0))
    assert "environment sandbox: up to 32 steps at a time, 2 of all nodes' 64 cores each" in (
        found.assumptions
    )
    assert not any(
        "environment" in each for each in forecast(replace(SANDBOX, workers=4)).assumptions
    )
