"""verl's on-policy distillation: one teacher on an engine of its own is a job's teacher, with its pool and what it tells."""

import pytest

from rlplan.errors import FileError
from rlplan.job import Teacher
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.frameworks.verl import teaching
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
        top_tokens=64, engine="vllm-0.15-server-eager", max_running=1024, memory_fraction=0.9
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


def named(name, path, *, tp=2, replicas=1):
    """Return the words of a teacher for some prompts, as verl's example of several has them."""
    own = f"+{D}.teacher_models.{name}"
    return [
        f"{own}.key=of/{name}", f"{own}.model_path={path}", f"{own}.num_replicas={replicas}",
        f"{own}.inference.name=vllm", f"{own}.inference.tensor_model_parallel_size={tp}",
        f"{own}.inference.gpu_memory_utilization=0.4", f"{own}.inference.max_model_len=5121",
    ]  # fmt: skip


def test_several_teachers_of_one_layout_are_one_on_all_of_their_gpus():
    """The largest stands for all; what its default entry has, verl drops where others are named."""
    found = taught(ALONE, *named("small", "Qwen/Qwen3-8B"), *named("large", "Qwen/Qwen3-32B"))
    assert found.job.models["teacher"] == "qwen3-32b"
    assert (found.job.teacher.engine, found.job.teacher.memory_fraction) == (
        "vllm-0.15-server-eager",
        0.4,
    )
    layout = found.draft.tasks["teacher.compute_log_prob"]
    assert (layout.tp, layout.dp) == (2, 2)
    assert any("teachers large, small each answer" in guess for guess in found.guesses)
    assert found.keys.unknown == ()
    assert not found.keys.changes_work


@pytest.mark.parametrize(
    "other",
    [named("large", "Qwen/Qwen3-32B", tp=4), named("large", "me/a-model-that-nobody-knows")],
)
def test_teachers_of_unlike_layouts_or_unknown_models_stay_doubtful(other):
    found = taught(*named("small", "Qwen/Qwen3-8B"), *other)
    assert found.job.teacher is None
    assert "teacher" not in found.job.models
    assert f"{D}.enabled" in found.keys.changes_work


def test_replicas_of_several_teachers_fill_their_pool():
    """verl sums num_replicas x GPUs of a replica, and raises an error where the pool has others: 4 here."""

    def broken(replicas):
        words = [*named("one", "Qwen/Qwen3-8B", replicas=replicas), *named("two", "Qwen/Qwen3-8B")]
        settings = taught(*words).settings
        return [each for rule in teaching.RULES for each in rule.broken(settings)]

    assert not broken(1)
    (found,) = broken(3)
    assert (found.key, found.allowed) == (f"{D}.n_gpus_per_node", "8")


@pytest.mark.parametrize(
    "words", [(f"{LOSS}.distillation_loss_coef=-1",), (ALONE, f"{LOSS}.distillation_loss_coef=0")]
)
def test_weights_that_learn_nothing_or_the_opposite_are_refused_by_their_key(words):
    with pytest.raises(FileError, match="distillation_loss_coef: is no weight of a teacher"):
        taught(*words)
