"""In which format gradients lie on the GPUs, as configurations say it, what they take there, and which states stay there."""

import pytest

from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.writing.exporting import exported
from rlplan.profiles.facts import load_facts
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.pool_memory import memory_moments

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={"HOME": "~"})
# Megatron cuts Qwen3-8B in two; eight ranks of two GPUs each share optimizer states.
RECIPE = """
grpo: {{num_prompts_per_step: 32, num_generations_per_prompt: 16}}
loss_fn: {{reference_policy_kl_penalty: 0.01}}
policy:
  model_name: Qwen/Qwen3-8B
  train_global_batch_size: 512
  train_micro_batch_size: 4
  logprob_batch_size: 4
  max_total_sequence_length: 1024
  precision: bfloat16
  dtensor_cfg: {{enabled: false}}
  megatron_cfg:
    enabled: true
    tensor_model_parallel_size: 2
    optimizer: {{use_distributed_optimizer: true, use_precision_aware_optimizer: {aware}}}
    distributed_data_parallel_config: {{grad_reduce_in_fp32: {reduces}}}
  generation: {{backend: vllm, vllm_cfg: {{tensor_parallel_size: 1, gpu_memory_utilization: 0.5}}}}
cluster: {{gpus_per_node: 8, num_nodes: 1}}
"""


def planned(path):
    found = imported("nemo-rl", [str(path)], OPTIONS)
    facts = load_facts(found.resolved)
    return complete(found.draft, found.resolved, facts, str(path)), facts


@pytest.mark.parametrize(
    ("reduces", "aware", "gradients"),
    [
        ("false", "true", "bf16"),  # NeMo-RL's own default
        ("true", "true", None),
        # Another optimizer copies what it steps to fp32.
        ("false", "false", None),
        ("null", "true", None),
    ],
)
def test_megatron_keeps_gradients_as_they_are_reduced_where_its_optimizer_reads_them_so(
    tmp_path, reduces, aware, gradients
):
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text(RECIPE.format(aware=aware, reduces=reduces), encoding="utf-8")
    plan, facts = planned(recipe)
    assert plan.job.trainer("actor").gradients == gradients
    assert plan.job.trainer("reference").gradients is None
    (memory,) = simulate(plan, facts).memory
    # Of Qwen3-8B's 8,190,735,360 parameters each of two ranks has half; norms are whole on both.
    size = memory.terms["actor gradients"] / (8_190_735_360 / 2)
    assert size == pytest.approx(2 if gradients else 4, rel=1e-3)


def test_an_exported_recipe_has_them_too(tmp_path):
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text(RECIPE.format(aware="true", reduces="false"), encoding="utf-8")
    plan, _ = planned(recipe)
    # What products make in fp32 is reduced in it.
    whole = imported("nemo-rl", [str(recipe), "policy.precision=float32"], OPTIONS)
    assert whole.job.trainers is None or whole.job.trainers["actor"].gradients is None
    again = tmp_path / "exported.yaml"
    again.write_text(exported(plan, "nemo-rl").text, encoding="utf-8")
    assert planned(again)[0].job.trainer("actor").gradients == "bf16"


@pytest.mark.parametrize(("aware", "stays"), [("true", False), ("false", True)])
def test_master_weights_stay_beside_the_engine_unless_the_optimizer_has_them_among_its_states(
    tmp_path, aware, stays
):
    """NeMo-RL moves what is in the state of Megatron's optimizer: moments, and FusedAdam's master weights."""
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text(RECIPE.format(aware=aware, reduces="true"), encoding="utf-8")
    plan, facts = planned(recipe)
    moments = memory_moments(PlacedPlan(plan, facts), plan.pools[0])
    shard = 8_190_735_360 / 8
    left = moments["actor.generate"].get("actor master weights", 0)
    assert left == pytest.approx(4 * shard if stays else 0, rel=1e-3)
    assert "actor optimizer states" not in moments["actor.generate"]
    updated = moments["actor.update"]
    states = updated["actor optimizer states"] + updated.get("actor master weights", 0)
    assert states == pytest.approx(12 * shard, rel=1e-3)
    again = tmp_path / "exported.yaml"
    again.write_text(exported(plan, "nemo-rl").text, encoding="utf-8")
    assert planned(again)[0].job.trainer("actor").masters_stay == stays
