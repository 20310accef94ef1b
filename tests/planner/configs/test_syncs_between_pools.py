"""What a check says of GPUs that only generate while weights come to them from others."""

from dataclasses import replace

import pytest

from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.writing.exporting import exported
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.pool_memory import memory_moments
from rlplan.units import GIB, MIB
from rlplan_cli.configured import Configured
from tests.planner.configs.test_uncounted_models import LEARNERS

# 0.5B on 8 L20, half of them generating, as verl's own test has it (tests/special_e2e/run_fully_async_policy.sh).
APART = (
    "data.max_prompt_length=1024 data.max_response_length=2048 data.train_batch_size=0 data.gen_batch_size=1 "
    "actor_rollout_ref.rollout.n=16 actor_rollout_ref.rollout.calculate_log_probs=True algorithm.adv_estimator=grpo "
    "actor_rollout_ref.hybrid_engine=False actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct "
    "actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.rollout.mode=async "
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2 trainer.nnodes=1 trainer.n_gpus_per_node=4 "
    "rollout.nnodes=1 rollout.n_gpus_per_node=4 rollout.total_rollout_steps=128 trainer.total_epochs=2 "
    "async_training.staleness_threshold=0.5 async_training.trigger_parameter_sync_step=4 "
    "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.rollout.gpu_memory_utilization=0.8"
).split()
START = "verl.experimental.fully_async_policy.fully_async_main"
BUCKETS = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
OPTIONS = ImportOptions(
    gpu="l20", mean_response=300, mean_prompt=100, environment={}, taken_as=START
)


def coming(*more):
    """Return what lies on a GPU that generates while weights come, and while it generates."""
    checked = check_config("verl", [*APART, *more], OPTIONS)
    there = PlacedPlan(checked.plan, checked.facts)
    moments = memory_moments(there, there.plan.pool("rollout"))
    return moments["transition"], moments["actor.generate"]


def test_vllm_keeps_its_cache_beside_three_buckets_of_the_size_that_a_key_says():
    """A share of 0.8 less what it works in, three buckets, and what a process of its own and its groups take."""
    syncs, generates = coming("actor_rollout_ref.rollout.name=vllm", f"{BUCKETS}=1024")
    assert syncs["weights under way"] == 3 * 1024 * MIB
    assert syncs["KV cache"] == generates["KV cache"]
    worked_in = sum(generates[term] for term in ("activations", "logits", "fragmentation margin"))
    weights = syncs["actor weights for generation"]
    assert weights + syncs["KV cache"] == pytest.approx(0.8 * 45 * GIB - worked_in, rel=0.01)
    assert sum(syncs.values()) - sum(generates.values()) == (
        3 * 1024 * MIB + syncs["communicator of the weight sync"] - worked_in
    )


def test_sglang_gives_its_cache_back_meanwhile():
    syncs, generates = coming("actor_rollout_ref.rollout.name=sglang", f"{BUCKETS}=1024")
    assert "KV cache" not in syncs
    assert generates["KV cache"] > 0


def test_the_context_of_an_engine_alone_on_its_gpus_lies_beside_its_share():
    """open-instruct's engines take weights in themselves; a process of verl's beside an engine has a context of its own."""
    handed = coming("actor_rollout_ref.rollout.name=vllm")
    assert [each["context and libraries"] for each in handed] == [GIB, GIB]
    options = ImportOptions(gpu="l20", mean_response=300, mean_prompt=100, environment={})
    checked = check_config("open-instruct", LEARNERS.split(), options)
    there = PlacedPlan(checked.plan, checked.facts)
    moments = memory_moments(there, there.plan.pool("rollout"))
    alone = moments["transition"], moments["actor.generate"]
    assert not any("context and libraries" in each for each in alone)
    assert all(each["generation engine beside its share"] for each in alone)


def test_a_search_has_the_buckets_of_its_script_and_none_are_written_of_a_plan_without():
    found = imported("verl", [*APART, f"{BUCKETS}=1024"], OPTIONS)
    assert Configured(found).pinned.bucket_bytes == 1024 * MIB
    plan = check_config("verl", [*APART, f"{BUCKETS}=1024"], OPTIONS).plan
    said = exported(plan, "verl", into="").values
    unsaid = exported(replace(plan, bucket_bytes=None), "verl", into="").values
    assert said[BUCKETS] == 1024
    assert {**unsaid, BUCKETS: 1024} == said
    assert BUCKETS not in unsaid


@pytest.mark.parametrize(
    ("backend", "apart", "size"),
    [("vllm", False, 4 * GIB), ("vllm", True, None), ("sglang", True, 4 * GIB)],
)
def test_nemo_rl_sends_its_buckets_to_engines_that_take_them_so(tmp_path, backend, apart, size):
    """vLLM on GPUs of its own gets weights packed otherwise, whatever the buffer is."""
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text(
        f"""
policy:
  model_name: Qwen/Qwen2.5-1.5B
  refit_buffer_size_gb: 4
  train_global_batch_size: 512
  generation:
    backend: {backend}
    colocated: {{enabled: {str(not apart).lower()}, resources: {{gpus_per_node: 4, num_nodes: null}}}}
grpo: {{num_prompts_per_step: 32, num_generations_per_prompt: 16}}
cluster: {{gpus_per_node: 8, num_nodes: 1}}
"""
    )
    options = ImportOptions(gpu="h100", mean_response=300, mean_prompt=100, environment={})
    assert imported("nemo-rl", [str(recipe)], options).draft.bucket_bytes == size
