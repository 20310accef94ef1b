"""What trainers keep on GPUs on which an engine wakes: frozen weights, narrow copies, and what may lie there beside tensors."""

import pytest

from rlplan.planner.answers.completion import complete
from rlplan.planner.answers.verdicts import UNSURE
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.margins import (
    LEFT_BESIDE_ENGINE,
    idle_bytes,
    lingering_bytes,
    sure_share,
)
from rlplan.profiles.facts import load_facts
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.pool_memory import memory_moments
from rlplan.units import GIB

RECIPE = """
grpo: {{num_prompts_per_step: 32, num_generations_per_prompt: 16}}
loss_fn: {{reference_policy_kl_penalty: 0.0}}
policy:
  model_name: Qwen/Qwen3-8B
  train_global_batch_size: 512
  train_micro_batch_size: 1
  logprob_batch_size: 1
  max_total_sequence_length: 1024
  precision: bfloat16
  dtensor_cfg: {{enabled: {dtensor}, lora_cfg: {{enabled: {lora}, dim: 16}}}}
  megatron_cfg:
    enabled: {megatron}
    activation_checkpointing: true
    fp8_cfg: {{enabled: {fp8}, fp8_recipe: blockwise}}
    peft: {{enabled: {peft}, dim: 16}}
    optimizer: {{use_distributed_optimizer: true, use_precision_aware_optimizer: true}}
  generation: {{backend: vllm, vllm_cfg: {{tensor_parallel_size: 1, gpu_memory_utilization: {share}}}}}
cluster: {{gpus_per_node: {gpus}, num_nodes: 1}}
"""
USUAL = {
    "dtensor": "false", "lora": "false", "megatron": "true", "fp8": "false", "peft": "false",
    "share": 0.5, "gpus": 8,
}  # fmt: skip
H100, GB200 = "h100-80gb-sxm", "gb200"


def recipe_in(folder, **changed):
    path = folder / "grpo.yaml"
    path.write_text(RECIPE.format(**(USUAL | changed)), encoding="utf-8")
    return path


def options_of(gpu=H100, version=None):
    return ImportOptions(gpu=gpu, mean_response=300, environment={"HOME": "~"}, version=version)


def placed_of(path, options):
    found = imported("nemo-rl", [str(path)], options)
    facts = load_facts(found.resolved)
    return PlacedPlan(complete(found.draft, found.resolved, facts, str(path), misfits=True), facts)


def moments_of(folder, **changed):
    placed = placed_of(recipe_in(folder, **changed), options_of())
    return memory_moments(placed, placed.plan.pools[0])


def test_frozen_weights_stay_beside_megatrons_adapters_and_leave_beside_those_of_fsdp(tmp_path):
    weights = pytest.approx(2 * 8_190_735_360, rel=1e-3)
    megatron = moments_of(tmp_path, peft="true")
    fsdp = moments_of(tmp_path, dtensor="true", lora="true", megatron="false")
    whole = moments_of(tmp_path)
    assert megatron["actor.generate"]["actor weights"] == weights
    assert "actor weights" not in fsdp["actor.generate"]
    assert "actor weights" not in whole["actor.generate"]
    assert megatron["actor.update"]["actor weights"] == weights


def test_narrow_copies_of_weights_stay_while_the_engine_generates(tmp_path):
    narrow, wide = moments_of(tmp_path, fp8="true"), moments_of(tmp_path)
    copies = narrow["actor.generate"]["actor quantised copies"]
    inside = 8_190_735_360 - 2 * 151_936 * 4096  # of layers: embedding and head have none
    assert copies == pytest.approx(2 * inside, rel=1e-2)
    assert {each.get("actor quantised copies", 0) for each in narrow.values()} == {copies}
    assert "actor quantised copies" not in wide["actor.generate"]


@pytest.mark.parametrize("trainer", ["megatron", "dtensor"])
def test_a_reference_lies_in_place_of_the_actor_while_it_scores(tmp_path, trainer):
    own = {"megatron": "false", "dtensor": "false", trainer: "true"}
    text = RECIPE.format(**(USUAL | own | {"fp8": own["megatron"]}))
    text = text.replace("_kl_penalty: 0.0", "_kl_penalty: 0.01").replace(
        "{backend: vllm,",
        "{backend: vllm, colocated: {enabled: false, resources: {gpus_per_node: 4, num_nodes: 1}},",
    )
    path = tmp_path / "grpo.yaml"
    path.write_text(text, encoding="utf-8")
    placed = placed_of(path, options_of())
    moments = memory_moments(placed, placed.plan.pool("train"))
    scores, trains = moments["reference.compute_log_prob"], moments["actor.update"]
    assert scores["actor weights"] == trains["actor weights"]
    assert not {"reference weights", "quantised weights"} & set(scores)
    assert scores.get("actor quantised copies") == trains.get("actor quantised copies")


@pytest.mark.parametrize(("gpu", "version", "linger"), [
    (GB200, "0.6", True), (GB200, "0.7", False), (H100, "0.6", False),
])  # fmt: skip
def test_states_may_linger_where_a_gpus_memory_is_its_hosts_and_nothing_binds_it(
    tmp_path, gpu, version, linger
):
    gpus = 4 if gpu == GB200 else 8
    placed = placed_of(recipe_in(tmp_path, gpus=gpus), options_of(gpu, version))
    pool = placed.plan.pools[0]
    states = memory_moments(placed, pool)["actor.update"]["actor optimizer states"]
    assert lingering_bytes(placed, pool) == (states if linger else 0)


def test_blocks_beside_tensors_are_those_that_were_measured_in_a_trainers_format(tmp_path):
    found = {}
    for fp8 in ("true", "false"):
        placed = placed_of(recipe_in(tmp_path, fp8=fp8), options_of())
        found[fp8] = idle_bytes(placed, placed.plan.pools[0])
    assert found == {"true": 17_100_000_000, "false": 4_700_000_000}


def test_what_may_lie_beside_an_engine_that_wakes_is_left_free_and_no_less_than_a_tenth():
    trains, alone = {"actor.generate", "actor.update"}, {"actor.generate"}
    assert sure_share("actor.generate", trains, 0.2) == pytest.approx(0.8 - UNSURE)
    assert sure_share("actor.generate", trains, 0.01) == 1 - LEFT_BESIDE_ENGINE
    assert sure_share("actor.generate", alone, 0.2) == 1 - UNSURE
    synced = {"transition", *trains}
    assert sure_share("transition", synced, 0.2) == pytest.approx(0.8 - UNSURE)
    assert sure_share("transition", {"transition", "actor.update"}, 0.2) == 1 - UNSURE
    assert sure_share("actor.update", trains, 0.2) == 1 - UNSURE


@pytest.mark.parametrize(("share", "verdict"), [(0.4, "fits"), (0.7, "may not fit")])
def test_a_share_that_measured_blocks_would_not_leave_is_doubted_with_the_reason(
    tmp_path, share, verdict
):
    path = recipe_in(tmp_path, fp8="true", share=share)
    path.write_text(path.read_text().replace("Qwen3-8B", "Qwen3-4B"))  # an update far from full
    checked = check_config("nemo-rl", [str(path)], options_of())
    assert checked.verdict == verdict
    said = f"{17_100_000_000 / GIB:.1f} GiB of blocks that its allocator does not give back"
    assert any(said in each for each in checked.remarks) == (verdict == "may not fit")
