"""Environments in a job: distributions of seconds, what they add to a sequence, and what is refused."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import FileError
from rlplan.files.decoding import decode
from rlplan.job import Job, Rewards
from rlplan.profiles.jobs.resolve import resolve_job
from rlplan.workload import Environment, PercentileSeconds, log_normal_of

SANDBOX: dict[str, Any] = {
    "name": "sandbox",
    "turns": {"distribution": "uniform", "low": 2, "high": 6},
    "observation_tokens": 100,
    "step_seconds": 1.5,
}

JOB: dict[str, Any] = {
    "algorithm": "grpo",
    "models": {"actor": "qwen2.5-0.5b", "reference": "qwen2.5-0.5b"},
    "workload": {
        "prompts": 16,
        "samples_per_prompt": 4,
        "prompt_tokens": 200,
        "response_tokens": {"distribution": "uniform", "low": 100, "high": 300},
        "environments": [SANDBOX],
    },
    "cluster": [{"gpu": "H100", "gpus_per_node": 8, "cpu_cores": 32}],
}


def job_with(*environments, **workload):
    data = {**JOB, "workload": {**JOB["workload"], **workload, "environments": list(environments)}}
    return resolve_job(decode(Job, data, "job.yaml"), Path(), file="job.yaml")


def test_seconds_by_percentiles_are_log_normal_with_these():
    centre, width = log_normal_of(PercentileSeconds(p50=2.0, p99=30.0))
    drawn = NormalDist(centre, width)
    assert math.exp(drawn.inv_cdf(0.5)) == pytest.approx(2.0)
    assert math.exp(drawn.inv_cdf(0.99)) == pytest.approx(30.0, rel=1e-3)


def test_observations_lengthen_sequences_up_to_the_limit():
    job = job_with(SANDBOX)
    assert job.workload.longest_sequence_tokens == 200 + 300 + 5 * 100
    assert job.workload.mean_observations_tokens == 300
    assert job_with(SANDBOX, max_total_tokens=600).workload.longest_sequence_tokens == 600


def test_an_environment_gives_the_rewards_unless_a_rule_does():
    job = job_with(SANDBOX)
    generate, *_ = tasks_of(load_algorithm("grpo"), job)
    assert "rule_scores" in generate.outputs
    judged = replace(job, rewards=Rewards(function="digits"))
    tasks = {task.name: task.outputs for task in tasks_of(load_algorithm("grpo"), judged)}
    assert "rule_scores" not in tasks["actor.generate"]
    assert tasks["rule.compute_reward"] == ("rule_scores",)


def test_a_resolved_job_with_environments_resolves_to_itself():
    job = job_with(SANDBOX)
    assert resolve_job(job, Path()) == job
    assert job.environments == (
        Environment(
            name="sandbox",
            turns=job.environments[0].turns,
            observation_tokens=100,
            step_seconds=1.5,
        ),
    )


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"observation_tokens": None}, "0.observation_tokens", "up to 6 turns"),
        ({"share": 0.5}, "0.share", "sum to 0.5"),
        ({"turns": 400}, "0.turns", "at most 300"),
        ({"cpu_cores": 64}, "0.cpu_cores", "at most 32"),
        ({"cpu_cores": 2, "workers": 20}, "0.workers", "at most 16"),
        ({"step_seconds": {"distribution": "percentiles", "p50": 3, "p99": 1}}, "0.step_seconds.p99", "at least 3"),
        ({"step_seconds": {"distribution": "lognormal", "mean": 3, "std": 1, "max": 1}}, "0.step_seconds.max", "at least 3"),
        ({"step_seconds": {"mean": 3}}, "0.step_seconds", "percentiles"),
        ({"reset_seconds": {"distribution": "uniform", "low": 3, "high": 1}}, "0.reset_seconds.low", "at most 1"),
        ({"turns": {"distribution": "logged", "mean": 3}}, "0.turns", "logs do not say"),
        ({"source": "missing.py:Tool"}, "0.source", "no such file"),
        ({"turn": 3}, "0.turn", "turns"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(changes, field, said):
    with pytest.raises(FileError) as caught:
        job_with(SANDBOX | changes)
    assert f"workload.environments.{field}" in str(caught.value)
    assert said in str(caught.value)


def test_two_environments_have_two_names_and_algorithms_with_a_greedy_baseline_have_none():
    with pytest.raises(FileError, match="two of this name"):
        job_with(SANDBOX | {"share": 0.5}, SANDBOX | {"share": 0.5})
    other = SANDBOX | {"name": "other", "inference": "inline", "share": 0.5}
    with pytest.raises(FileError, match="in one way"):
        job_with(SANDBOX | {"share": 0.5}, other)
    data = {**JOB, "algorithm": "remax", "workload": {**JOB["workload"], "samples_per_prompt": 1}}
    with pytest.raises(FileError, match="greedy response"):
        resolve_job(decode(Job, data, "job.yaml"), Path(), file="job.yaml")
