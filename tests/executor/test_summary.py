"""An iteration's metrics and its line, from spans and sums that are written down."""

import pytest

from rlplan.algorithms import algorithm_names, load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.executor.control.controller import MeasuredIteration
from rlplan.executor.control.summary import VERL_NAMES, iteration_metrics, progress_line
from rlplan.trace import IterationSpan, Span
from tests.executor.plans import make_job, make_plan


def span(name, start, end, activity="task"):
    return Span(
        name=name,
        pool="p0",
        iteration=4,
        start_seconds=start,
        end_seconds=end,
        activity=activity,
    )


def safe_rlhf():
    """Return the plan, the tasks and what was measured of 8 responses of 5 tokens."""
    job = make_job("safe-rlhf")
    plan = make_plan(job, {"p0": (1, ("actor", "critic", "reference"))})
    tasks = tasks_of(load_algorithm("safe-rlhf"), job)
    spans = (
        span("transition", 10.0, 10.5, "transition"),
        span("actor.generate", 10.5, 12.0),
        span("critic.compute_values", 12.0, 12.25),
        span("reference.compute_log_prob", 12.25, 12.5),
        span("rule.compute_reward", 12.0, 12.125),
        span("actor.update", 12.5, 13.5),
        span("critic.update", 13.5, 14.0),
    )
    metrics = {
        "actor.generate": {
            "response_tokens": 40.0,
            "response_tokens_squared": 232.0,
            "longest_response_max": 9.0,
            "tokens": 80.0,
        },
        "critic.compute_values": {},
        "reference.compute_log_prob": {},
        "rule.compute_reward": {},
        "actor.update": {
            "reward_sum": 4.0,
            "rule_scores_sum": 4.0,
            "cost_sum": 2.0,
            "kl_sum": 1.0,
            "policy_loss": 0.5,
            "gradient_norm_mean": 3.0,
        },
        "critic.update": {"value_loss": 0.25, "gradient_norm_mean": 2.0},
    }
    iteration = IterationSpan(iteration=4, start_seconds=10.0, end_seconds=14.0)
    record = MeasuredIteration(
        span=iteration, spans=spans, metrics=metrics, state={"lagrange_multiplier": 1.5}
    )
    return plan, tasks, record


def test_sums_become_means_and_spans_become_seconds_under_both_names():
    plan, tasks, record = safe_rlhf()
    found = iteration_metrics(plan, tasks, record)
    expected = {
        "seconds": 4.0,
        "mean_reward": 0.5,
        "rule_reward": 0.5,
        "mean_cost": 0.25,
        "kl": 0.025,
        "response_tokens": 5.0,
        "tokens_per_second": 20.0,
        "lagrange_multiplier": 1.5,
        "policy_loss": 0.5,
        "actor_gradient_norm": 3.0,
        "value_loss": 0.25,
        "critic_gradient_norm": 2.0,
        "stage_seconds/transition": 0.5,
        "stage_seconds/generation": 1.5,
        "stage_seconds/preparation": 0.5,
        "stage_seconds/training": 1.5,
        "task_seconds/actor.update": 1.0,
        "timing_s/step": 4.0,
        "timing_s/gen": 1.5,
        "timing_s/values": 0.25,
        "timing_s/ref": 0.25,
        "timing_s/reward": 0.125,
        "timing_s/update_actor": 1.0,
        "timing_s/update_critic": 0.5,
        "timing_s/update_weights": 0.5,
    }
    assert (found["response_tokens"], found["longest_response"]) == (5.0, 9.0)
    assert found["response_tokens_std"] == 2.0
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_an_iteration_is_told_in_one_line():
    plan, tasks, record = safe_rlhf()
    line = progress_line(4, iteration_metrics(plan, tasks, record))
    assert line == (
        "iteration 4: reward 0.5, cost 0.25, multiplier 1.5, KL 0.025, 5.0 tokens a response,"
        " 20 tokens/s, 4.00 s (transition 0.50, generation 1.50, preparation 0.50, training 1.50)"
    )


def test_a_line_says_how_many_responses_are_in_groups_of_equal_rewards():
    plan, tasks, record = safe_rlhf()
    metrics = iteration_metrics(plan, tasks, record)
    assert "KL 0.025, 75% in groups of equal rewards, 5.0" in progress_line(
        4, metrics | {"equal_rewards": 0.75}
    )
    assert "equal" not in progress_line(4, metrics | {"equal_rewards": 0.0})


def test_responses_of_all_rounds_count_in_the_mean_length():
    job = make_job("dapo", samples_per_prompt=2, prompts=4)
    plan = make_plan(job, {"p0": (1, ("actor",))})
    tasks = tasks_of(load_algorithm("dapo"), job)
    spans = (
        span("actor.generate", 0.0, 1.0),
        span("rule.compute_reward", 1.0, 1.5),
        span("actor.generate", 1.5, 2.5),
        span("rule.compute_reward", 2.5, 3.0),
        span("actor.update", 3.0, 4.0),
    )
    metrics = {
        "actor.generate": {"response_tokens": 80.0, "tokens": 160.0},
        "rule.compute_reward": {},
        "actor.update": {"reward_sum": 8.0, "gradient_norm_mean": 1.0},
    }
    iteration = IterationSpan(iteration=0, start_seconds=0.0, end_seconds=4.0)
    found = iteration_metrics(
        plan, tasks, MeasuredIteration(span=iteration, spans=spans, metrics=metrics)
    )
    assert found["rounds"] == 2
    assert found["response_tokens"] == 5.0
    assert found["timing_s/gen"] == 2.0
    assert "2 rounds" in progress_line(0, found)


@pytest.mark.parametrize("name", algorithm_names())
def test_every_task_has_a_name_in_verls_words(name):
    assert {task.name for task in load_algorithm(name).tasks} <= set(VERL_NAMES)
