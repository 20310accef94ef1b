"""verl's on-policy distillation: one teacher on an engine of its own is a job's teacher, with its pool and what it tells."""

import pytest

from rlplan.errors import FileError
from rlplan.job import Teacher
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from tests.planner.configs.test_importing import VERL

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={})
D = "distillation"
TEACHER, LOSS = f"{D}.teacher_models.teacher_model", f"{D}.distillation_loss"
# The sizes of examples/on_policy_distillation_trainer/run_qwen3_8b_fsdp.sh, of August 2026.
TAUGHT = (
    f"{D}.enabled=True", f"{D}.n_gpus_per_node=4", f"{D}.nnodes=1", f"{TEACHER}.model_path=Qwen/Qwen3-32B",
    f"{TEACHER}.inference.tensor_model_parallel_size=2", f"{TEACHER}.inference.name=vllm",
    f"{TEACHER}.inference.gpu_memory_utilization=0.9", f"{TEACHER}.inference.max_model_len=5121",
    "actor_rollout_ref.actor.use_kl_loss=False", "trainer.nnodes=1",
)  # fmt: skip
LIKELIEST = (f"{LOSS}.loss_mode=forward_kl_topk", f"{LOSS}.topk=64")
ALONE = f"{LOSS}.use_task_rewards=False"


def taught(*words):
    return imported("verl", [*VERL, *TAUGHT, *words], OPTIONS)


def test_a_teacher_has_a_pool_and_an_engine_of_its_own():
    found = taught(*LIKELIEST, ALONE)
    assert found.job.algorithm == "on-policy-distillation"
    assert dict(found.job.models) == {"actor": "qwen3-8b", "teacher": "qwen3-32b"}
    assert found.job.teacher == Teacher(
        top_tokens=64, engine="vllm-0.15-eager", max_running=1024, memory_fraction=0.9
    )
    pools = [(pool.name, pool.gpus, pool.roles) for pool in found.draft.pools]
    assert pools == [("train", 8, ("actor",)), ("teacher", 4, ("teacher",))]
    layout = found.draft.tasks["teacher.compute_log_prob"]
    assert (layout.tp, layout.dp) == (2, 2)
    assert found.keys.unknown == ()
    assert not found.keys.changes_work
    assert any("as soon as it has ended" in note for note in found.notes)


def test_it_is_forecast_with_the_engines_memory_beside_the_pass():
    found = taught(*LIKELIEST, ALONE)
    facts = load_facts(found.resolved)
    forecast = simulate(complete(found.draft, found.resolved, facts), facts)
    cost = next(each for each in forecast.costs if each.name == "teacher.compute_log_prob")
    assert forecast.feasible
    assert {"prefill", "prompt log-probabilities"} <= set(cost.parts)
    assert cost.seconds > 0.5 * forecast.stage_seconds["generation"]


@pytest.mark.parametrize(
    ("words", "algorithm", "coefficient"),
    [
        ((), "grpo", 1.0),
        ((f"{LOSS}.distillation_loss_coef=0.3",), "grpo", 0.3),
        ((f"{LOSS}.distillation_loss_coef=0",), "grpo", 0.0),
        ((ALONE, f"{LOSS}.distillation_loss_coef=0.3"), "on-policy-distillation", 1.0),
        ((ALONE, "actor_rollout_ref.actor.use_kl_loss=True"), "grpo", 1.0),
    ],
)
def test_rewards_beside_a_teacher_keep_their_algorithm(words, algorithm, coefficient):
    job = taught(*words).job
    assert (job.algorithm, job.hyperparameters.teacher_coefficient) == (algorithm, coefficient)
    assert job.teacher.top_tokens is None


def test_teachers_that_share_out_prompts_are_doubtful():
    others = [f"+{D}.teacher_models.{name}.model_path=Qwen/Qwen3-32B" for name in ("one", "two")]
    found = taught(*others)
    assert found.job.teacher is None
    assert "teacher" not in found.job.models
    assert f"{D}.enabled" in found.keys.changes_work


@pytest.mark.parametrize(
    "words", [(f"{LOSS}.distillation_loss_coef=-1",), (ALONE, f"{LOSS}.distillation_loss_coef=0")]
)
def test_weights_that_learn_nothing_or_the_opposite_are_refused_by_their_key(words):
    with pytest.raises(FileError, match="distillation_loss_coef: is no weight of a teacher"):
        taught(*words)
