"""A teacher's log-probabilities: what they add to advantages, and what a student learns from them."""

from dataclasses import replace
from statistics import mean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplan.algorithms import load_algorithm
from rlplan.errors import CapabilityError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.learning.experience import make_experience, teacher_advantages
from rlplan.job import Rewards, Service, Teacher
from tests.executor.plans import TINY, make_job, make_plan

DISTILLATION = "on-policy-distillation"
# Prompt, prompt, response, response, padding.
PARTS = torch.tensor([[1, 1, 2, 2, 0]])


def columns(**others):
    """Return one row with log-probabilities of the student, -1 and -2, and of the teacher, -0.5 and -3."""
    student = torch.tensor([[0.0, -9.0, -1.0, -2.0, -9.0]])
    teacher = torch.tensor([[0.0, -9.0, -0.5, -3.0, 0.0]])
    row = {"tokens": PARTS, "parts": PARTS, "log_probs": student, "teacher_log_probs": teacher}
    return row | others


def learnt(algorithm, coefficient=1.0, **others):
    job = make_job(algorithm, prompts=1, samples_per_prompt=1)
    settings = replace(job.hyperparameters, teacher_coefficient=coefficient)
    job = replace(
        job, hyperparameters=settings, models=job.models.with_item("teacher", TINY), rewards=None
    )
    rows, sums = make_experience(
        job, load_algorithm(algorithm), columns(**others), {}, lambda each: each
    )
    return rows["advantages"].tolist(), sums


def test_a_token_s_advantage_is_how_much_likelier_it_is_to_the_teacher():
    advantages, sums = learnt(DISTILLATION, coefficient=2.0)
    assert advantages == [[0.0, 0.0, 1.0, -2.0, 0.0]]
    assert sums["teacher_kl_sum"] == pytest.approx(-0.5 + 1.0)
    assert sums["reward_sum"] == 0


def test_rewards_are_watched_where_a_teacher_alone_is_learnt_from():
    advantages, sums = learnt(DISTILLATION, rule_scores=torch.tensor([3.0]))
    assert advantages == [[0.0, 0.0, 0.5, -1.0, 0.0]]
    assert sums["reward_sum"] == 3


def test_to_other_algorithms_advantages_a_teacher_is_added():
    advantages, _ = learnt("ppo", values=torch.zeros(1, 5), reference_log_probs=torch.zeros(1, 5))
    alone, _ = learnt(
        "ppo",
        values=torch.zeros(1, 5),
        reference_log_probs=torch.zeros(1, 5),
        teacher_log_probs=columns()["log_probs"],
    )
    added = torch.tensor(advantages) - torch.tensor(alone)
    torch.testing.assert_close(added, torch.tensor([[0.0, 0.0, 0.5, -1.0, 0.0]]))


@given(st.lists(st.floats(-20, 0, width=32), min_size=5, max_size=5), st.floats(0.1, 10))
def test_who_agrees_with_the_teacher_has_nothing_to_learn(said, coefficient):
    batch = columns(log_probs=torch.tensor([said]), teacher_log_probs=torch.tensor([said]))
    batch["response_mask"] = PARTS == 2
    assert not teacher_advantages(batch, coefficient).any()


def test_a_teacher_needs_the_student_s_tokens():
    job = make_job(DISTILLATION)
    job = replace(job, models=job.models.with_item("teacher", replace(TINY, vocab_size=200)))
    with pytest.raises(CapabilityError, match=r"vocab_size.*200.*tokens up to 259"):
        check_runnable(make_plan(job, {"p0": (1, ("actor", "teacher"))}))


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"teacher": Teacher(top_tokens=8)}, r"job\.teacher\.top_tokens"),
        ({"teacher": Teacher(engine="vllm")}, r"job\.teacher\.engine"),
        (
            {"rewards": Rewards(service=Service(seconds_per_call=1.0, concurrency=8))},
            r"job\.rewards\.service",
        ),
    ],
)
def test_what_is_only_forecast_of_teachers_is_refused(changes, refused):
    plan = make_plan(make_job(DISTILLATION), {"p0": (1, ("actor", "teacher"))})
    with pytest.raises(CapabilityError, match=refused):
        check_runnable(replace(plan, job=replace(plan.job, **changes)))


@pytest.mark.full
@pytest.mark.ray
def test_a_student_comes_nearer_to_its_teacher(worker_pool):
    job = make_job(DISTILLATION, prompts=64, response_tokens=8, updates=4)
    job = replace(
        job,
        # Their random weights give near to equal logits: of these the student is sharper than its teacher.
        hyperparameters=replace(job.hyperparameters, learning_rate=3e-3, temperature=0.1),
    )
    plan = make_plan(job, {"p0": (1, ("actor",)), "p1": (1, ("teacher",))})
    metrics = worker_pool.run(plan, iterations=12).metrics
    first, *_ = divergences = [each["teacher_kl"] for each in metrics]
    assert first > 1
    assert mean(divergences[-3:]) < 0.8 * first
    assert all("mean_reward" in each for each in metrics)
