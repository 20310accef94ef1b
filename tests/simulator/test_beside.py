"""What a run does beside its iterations: validation and checkpoints, by how often they come."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.files.decoding import decode
from rlplan.files.frozen import FrozenDict
from rlplan.job import Checkpoints, Job
from rlplan.models import Adapter
from rlplan.plan import PlanDraft
from rlplan.planner.answers.completion import complete
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.reports.tables.plans import step_lines
from rlplan.simulator.simulate import simulate
from rlplan.workload import Evaluation, longest

# Parameters of Qwen2.5-1.5B, its tied head once (config.json).
PARAMETERS = 1_543_714_304
TASKS = ("actor.update", "actor.compute_log_prob", "reference.compute_log_prob")


@pytest.fixture(scope="module")
def known():
    """Return a small GRPO job of verl on two nodes of eight H100, its plan and facts."""
    job = decode(
        Job,
        {
            "algorithm": "grpo",
            "framework": "verl-fsdp",
            "models": dict.fromkeys(("actor", "reference"), "qwen2.5-1.5b"),
            "workload": {
                "prompts": 64,
                "samples_per_prompt": 8,
                "prompt_tokens": 155,
                "response_tokens": 600,
            },
            "cluster": [{"gpu": "h100", "gpus_per_node": 8, "nodes": 2}],
            "rewards": {"function": "exact_match", "function_seconds_per_sample": 1e-4},
        },
        "job",
    )
    job = resolve_job(job, Path())
    facts = load_facts(job)
    pools = [{"gpus": 16, "roles": ["actor", "reference"]}]
    sizes = {"tp": 1, "pp": 1, "cp": 1, "dp": 16}
    tasks = {name: {**sizes, "micro_batch": 4, "zero": 3} for name in TASKS}
    tasks["actor.generate"] = {"tp": 1, "dp": 16, "max_running": 64}
    plan = complete(
        decode(PlanDraft, {"job": "job.yaml", "pools": pools, "tasks": tasks}, "plan"), job, facts
    )
    return plan, facts


def forecast(known, **fields):
    plan, facts = known
    return simulate(replace(plan, job=replace(plan.job, **fields)), facts)


def test_iterations_keep_their_own_seconds(known):
    without = forecast(known)
    found = forecast(
        known,
        evaluation=Evaluation(prompts=100, every=5),
        checkpoints=Checkpoints(every=20, node_bytes_per_second=1e9),
        iterations=100,
    )
    assert without.beside is None
    assert replace(found, beside=None) == without
    beside = found.beside
    # Before the first, after every fifth; the last is the hundredth. Twenty-one and five in a hundred iterations.
    assert beside.per_iteration_seconds["validation"] == pytest.approx(
        0.21 * beside.each_seconds["validation"]
    )
    assert beside.per_iteration_seconds["checkpoints"] == pytest.approx(
        0.05 * beside.each_seconds["checkpoints"]
    )
    whole = 100 * (without.iteration_seconds + sum(beside.per_iteration_seconds.values()))
    assert beside.run_seconds == pytest.approx(whole)
    assert beside.run_usd == pytest.approx(without.cost_usd * whole / without.iteration_seconds)


def test_a_validation_of_an_iterations_prompts_takes_what_generation_and_rewards_do(known):
    found = forecast(known, evaluation=Evaluation(prompts=64, samples_per_prompt=8, every=10))
    seconds = {cost.name: cost.seconds for cost in found.costs}
    own = seconds["actor.generate"] + seconds["rule.compute_reward"]
    assert found.beside.each_seconds["validation"] == pytest.approx(own, rel=0.01)


def test_batches_of_a_validation_wait_for_each_other(known):
    asked = Evaluation(prompts=100, every=5)
    together, apart, rest = (
        forecast(known, evaluation=each).beside.each_seconds["validation"]
        for each in (asked, replace(asked, prompts_at_a_time=40), replace(asked, prompts=20))
    )
    once = forecast(known, evaluation=replace(asked, prompts=40)).beside.each_seconds["validation"]
    assert apart == pytest.approx(2 * once + rest)
    assert apart > together


def test_longer_responses_of_a_validation_take_longer(known):
    asked = Evaluation(prompts=64, every=5)
    usual, longer = (
        forecast(known, evaluation=each).beside.each_seconds["validation"]
        for each in (asked, replace(asked, response_tokens=1200))
    )
    assert longer > 1.6 * usual


def test_a_checkpoint_is_what_trainers_keep_over_the_rate_of_the_nodes(known):
    asked = Checkpoints(every=10, node_bytes_per_second=2e9)
    beside = forecast(known, checkpoints=asked).beside
    # FSDP in fp32: a weight and both moments, four bytes each (verl's checkpoint manager saves them as they are kept).
    assert beside.checkpoint_bytes == PARAMETERS * 12
    assert beside.each_seconds["checkpoints"] == pytest.approx(
        PARAMETERS * 12 / 4e9
    )  # of two nodes
    weights = forecast(known, checkpoints=replace(asked, states=("weights",))).beside
    assert weights.checkpoint_bytes == PARAMETERS * 4
    shared = forecast(known, checkpoints=replace(asked, total_bytes_per_second=1e9)).beside
    assert shared.each_seconds["checkpoints"] == pytest.approx(PARAMETERS * 12 / 1e9)


def test_with_adapters_frozen_weights_are_written_and_only_theirs_are_stepped(known):
    plan, facts = known
    job = replace(
        plan.job,
        adapters=FrozenDict({"actor": Adapter(rank=16, shares_reference=False)}),
        checkpoints=Checkpoints(every=1),
    )
    size = simulate(replace(plan, job=job), facts).beside.checkpoint_bytes
    assert PARAMETERS * 4 < size < PARAMETERS * 4 * 1.05


def test_in_the_background_training_waits_for_the_copy_and_for_a_write_that_is_not_done(known):
    asked = Checkpoints(every=1, node_bytes_per_second=2e9, in_background=True)
    seconds = forecast(known).iteration_seconds
    quick = forecast(known, checkpoints=asked).beside
    assert 0 < quick.each_seconds["checkpoints"] < 0.2
    assert not quick.notes
    slow = forecast(known, checkpoints=replace(asked, node_bytes_per_second=2e7)).beside
    written = PARAMETERS * 12 / 4e7
    late = slow.each_seconds["checkpoints"] - quick.each_seconds["checkpoints"]
    assert late == pytest.approx(written - seconds)
    assert "waits for it" in slow.notes[0]


def test_what_is_not_known_is_named_and_not_counted(known):
    plan, _ = known
    found = forecast(
        known, evaluation=Evaluation(every=5), checkpoints=Checkpoints(every=20), iterations=10
    )
    beside = found.beside
    assert not beside.each_seconds
    assert beside.run_seconds == pytest.approx(10 * found.iteration_seconds)
    text = "\n".join(step_lines(plan, found, {}))
    assert (
        "beside: validation every 5 steps, not counted: it is not known how many prompts it has (evaluation.prompts)"
        in text
    )
    assert "checkpoints of 17.3 GiB every 20 steps, not counted" in text
    assert "validation and checkpoints not counted" in text


@settings(max_examples=30)
@given(
    iterations=st.integers(1, 300),
    every=st.none() | st.integers(1, 50),
    first=st.booleans(),
    last=st.booleans(),
)
def test_evaluations_and_checkpoints_of_a_run_are_those_that_are_due(
    iterations, every, first, last
):
    asked = Evaluation(every=every, before_first=first, after_last=last)
    after = [done for done in range(1, iterations + 1) if every and done % every == 0]
    expected = first + len(set(after) | ({iterations} if last else set()))
    assert asked.due(iterations) == expected
    assert Checkpoints(every=every).due(iterations) == math.ceil(iterations / (every or iterations))


def test_lengths_of_an_evaluation_are_resolved_as_those_of_the_workload(known):
    plan, _ = known
    logged = {"distribution": "logged", "mean": 900, "max": 4096}
    asked = decode(Evaluation, {"prompts": 10, "response_tokens": logged}, "evaluation")
    found = resolve_job(replace(plan.job, evaluation=asked), Path())
    assert longest(found.evaluation.response_tokens) == 4096
    assert resolve_job(found, Path()) == found
    wrong = decode(Evaluation, {"response_tokens": {**logged, "mean": 5000}}, "evaluation")
    with pytest.raises(FileError, match=r"evaluation\.response_tokens\.mean"):
        resolve_job(replace(plan.job, evaluation=wrong), Path())
