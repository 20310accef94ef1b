"""NeMo-RL's teachers: nodes that they take from training and generation, and a student that learns from one alone."""

import pytest

from rlplan.errors import FileError
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.importing import ImportOptions, imported, settings_of
from rlplan.planner.frameworks.nemo_rl.reading import nodes_of_policy
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from tests.planner.configs.test_importing import NEMO

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={})
D = "on_policy_distillation"
T, C = f"{D}.teacher_model_by_agent_name", f"{D}.non_colocated_teachers"
APART = (f"{D}.enabled=true", f"{C}.enabled=true", "cluster.num_nodes=16")


@pytest.mark.parametrize(
    ("words", "nodes"),
    [
        ([], 16),
        ([f"{T}.a=one", f"{T}.b=two"], 14),
        ([f"{T}.a=one", f"{T}.b=one"], 15),
        ([f"{T}.a=one", f"{T}.b=one", f"{D}.deduplicate_shared_teacher_checkpoints=false"], 14),
        ([f"{T}.a=one", f"{C}.default_teacher_cfg.num_nodes=4"], 12),
        ([f"{T}.a=one", f"{T}.b=two", f"{C}.teacher_overrides.b.num_nodes=3"], 12),
        ([f"{T}.a=one", f"{C}.enabled=false"], 16),
    ],
)
def test_teachers_take_their_nodes_off_the_cluster(tmp_path, words, nodes):
    path = tmp_path / "recipe.yaml"
    path.write_text(NEMO)
    settings = settings_of("nemo-rl", [str(path), *APART, *words], OPTIONS)
    assert nodes_of_policy(settings) == nodes


# As examples/configs/distillation_math.yaml of August 2026 has them, a teacher of 32B in place of its 4B.
DISTILLED = """
distillation: {num_prompts_per_step: 32, num_generations_per_prompt: 1, max_num_steps: 20, topk_logits_k: 64}
loss_fn: {kl_type: reverse}
policy: &policy
  model_name: Qwen/Qwen3-1.7B-Base
  train_global_batch_size: 32
  train_micro_batch_size: 1
  logprob_batch_size: 1
  max_total_sequence_length: 8192
  precision: bfloat16
  dtensor_cfg: {enabled: true, tensor_parallel_size: 1, activation_checkpointing: true}
  megatron_cfg: {enabled: false, tensor_model_parallel_size: 8, pipeline_model_parallel_size: 1}
  generation: {backend: vllm, vllm_cfg: {tensor_parallel_size: 1, gpu_memory_utilization: 0.6}}
teacher:
  <<: *policy
  model_name: Qwen/Qwen3-32B
  dtensor_cfg: {enabled: true, tensor_parallel_size: 4}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""


def distilled(tmp_path, *words):
    path = tmp_path / "distillation.yaml"
    path.write_text(DISTILLED)
    return [str(path), *words]


def test_a_student_learns_of_its_teachers_likeliest_tokens(tmp_path):
    found = imported("nemo-rl", distilled(tmp_path), OPTIONS)
    job, tasks = found.job, found.draft.tasks
    assert (job.algorithm, job.old_log_prob) == ("on-policy-distillation", "engine")
    assert dict(job.models) == {"actor": "qwen3-1.7b", "teacher": "qwen3-32b"}
    assert (job.teacher.top_tokens, job.teacher.engine) == (64, None)
    assert set(tasks) == {"actor.generate", "teacher.compute_log_prob", "actor.update"}
    layout = tasks["teacher.compute_log_prob"]
    assert (layout.pool, layout.tp, layout.dp, layout.offload) == ("train", 4, 2, True)
    assert tasks["actor.update"].tp == 1
    assert (found.keys.unknown, found.keys.changes_work) == ((), {})


def test_its_passes_are_forecast_between_generation_and_training(tmp_path):
    found = imported("nemo-rl", distilled(tmp_path), OPTIONS)
    facts = load_facts(found.resolved)
    forecast = simulate(complete(found.draft, found.resolved, facts), facts)
    assert forecast.feasible
    # 32 sequences of a 32B model, on eight GPUs that all pass over it once.
    assert forecast.stage_seconds["preparation"] == pytest.approx(2.0, abs=1.5)


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (
            ["teacher.sequence_packing.enabled=true", "teacher.dtensor_cfg.sequence_parallel=true"],
            "teachers-pack-without-sequence-parallelism",
        ),
        (["teacher.model_name=meta-llama/Llama-3.1-8B"], "students-have-their-teachers-vocabulary"),
    ],
)
def test_what_distillation_does_not_run_with_is_found(tmp_path, words, rule):
    settings = settings_of("nemo-rl", distilled(tmp_path, *words), OPTIONS)
    broken = {each.name for each in rules_of("nemo-rl") if each.broken(settings)}
    assert rule in broken
    sound = settings_of("nemo-rl", distilled(tmp_path), OPTIONS)
    assert rule not in {each.name for each in rules_of("nemo-rl") if each.broken(sound)}


def test_texts_that_are_there_and_teachers_of_other_tokens_are_refused(tmp_path):
    with pytest.raises(FileError, match="teachers of other tokens"):
        imported("nemo-rl", distilled(tmp_path, "loss_fn.gold_loss=false"), OPTIONS)
