"""Weights that are gathered all at once for an engine: where TRL merges adapters, and where verl collects them."""

from dataclasses import replace

import pytest

from rlplan.parts import num_parameters
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.importing import imported
from rlplan.planner.configs.proposing.changes import what_breaks
from rlplan.profiles.facts import load_facts
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.stages import task_memory
from rlplan.simulator.timeline.pool_memory import host_terms, memory_moments
from tests.planner.configs.test_importing import VERL
from tests.planner.configs.test_keys_of_trl import LAUNCH, OPTIONS, WORK
from tests.planner.configs.test_rules import FIXED
from tests.planner.configs.test_versions import verl

ROLLOUT = "actor_rollout_ref.rollout"
ZERO_3 = "--use_deepspeed --zero_stage 3"
SYNC_TERMS = {"actor weights for generation", "weights under way"}


def transition_bytes(launch, more):
    """Return what the sync of weights takes of a GPU that trains, and the model's weights, in bytes."""
    words = f"{LAUNCH} --num_processes 8 {launch} {WORK} --use_vllm {more}".split()
    found = imported("trl", words, OPTIONS)
    facts = load_facts(found.resolved)
    placed = PlacedPlan(complete(found.draft, found.resolved, facts, "there"), facts)
    moment = memory_moments(placed, placed.plan.pool("train"))["transition"]
    of_sync = sum(size for term, size in moment.items() if term in SYNC_TERMS)
    return of_sync, 2 * placed.tasks["actor.update"].parameters


@pytest.mark.parametrize("mode", ["--vllm_mode colocate", "--vllm_mode server"])
def test_merging_adapters_has_the_whole_model_on_every_gpu(mode):
    whole, weights = transition_bytes(ZERO_3, f"{mode} --use_peft")
    one_by_one, _ = transition_bytes(ZERO_3, mode)
    copied, _ = transition_bytes("--use_deepspeed --zero_stage 2", f"{mode} --use_peft")
    assert whole > one_by_one + 0.8 * weights
    assert whole > copied + 0.8 * weights


@pytest.mark.parametrize(
    ("more", "whole"),
    [
        ("", True),
        (f"{ROLLOUT}.layered_summon=True", False),
        ("actor_rollout_ref.actor.strategy=fsdp2", False),
        ("actor_rollout_ref.model.lora.merge=True", False),
        ("model_engine=megatron", False),
    ],
)
def test_fsdp_1_has_the_whole_model_on_every_gpu_to_collect_adapters(more, whole):
    found = verl("actor_rollout_ref.model.lora_rank=32", *more.split())
    assert (found.job.weight_sync.shared_pool == "verl-naive-at-once") == whole
    assert (
        any("layered_summon=True gathers layer by layer" in note for note in found.notes) == whole
    )
    assert verl().job.weight_sync.shared_pool is None


@pytest.mark.parametrize(
    ("more", "apart"),
    [
        ("", True),
        ("actor_rollout_ref.actor.strategy=fsdp2", False),
        ("model_engine=megatron", False),
        ("actor_rollout_ref.model.lora_rank=0", False),
    ],
)
def test_fsdp_1_gathers_adapters_matrix_by_matrix(more, apart):
    found = verl("actor_rollout_ref.model.lora_rank=32", *more.split())
    assert found.job.trainer("actor").adapters_apart == apart


def test_the_whole_model_is_in_the_trainers_own_format():
    sizes = {}
    for layered in (True, False):
        found = verl("actor_rollout_ref.model.lora_rank=32", f"{ROLLOUT}.layered_summon={layered}")
        facts = load_facts(found.resolved)
        placed = PlacedPlan(complete(found.draft, found.resolved, facts, "there"), facts)
        moment = memory_moments(placed, placed.plan.pool("train"))["transition"]
        sizes[layered] = moment.get("weights under way", 0)
    fp32 = 4 * placed.tasks["actor.update"].parameters
    assert sizes == {True: 0, False: pytest.approx(fp32, rel=0.01)}


WHOLE_ON_HOST = "whole model for the first sync of adapters"


@pytest.mark.parametrize(
    ("more", "empty"),
    [
        ("", True),
        (f"{ROLLOUT}.load_format=dummy_dtensor", True),
        ("actor_rollout_ref.actor.strategy=fsdp2", True),
        (f"{ROLLOUT}.load_format=safetensors", False),
        ("actor_rollout_ref.model.lora.merge=True", False),
        ("model_engine=megatron", False),
    ],
)
def test_an_engine_without_weights_gets_them_from_every_ranks_host(more, empty):
    """7.6 billion parameters of 4 bytes on each of eight ranks, where the first sync is the fullest moment."""
    found = verl("actor_rollout_ref.model.lora_rank=32", *more.split())
    adapter = found.resolved.adapter("actor")
    assert adapter.whole_first == empty
    facts = load_facts(found.resolved)
    placed = PlacedPlan(complete(found.draft, found.resolved, facts, "there"), facts)
    tasks = [(task, task_memory(task)) for task in placed.tasks_on(placed.plan.pools[0])]
    terms = host_terms(tasks)
    assert (WHOLE_ON_HOST in terms) == empty
    if empty:
        model = placed.tasks["actor.update"].model
        assert terms[WHOLE_ON_HOST] == 4 * num_parameters(model, "lm")


@pytest.mark.parametrize(
    ("more", "stops"),
    [
        ("", False),
        (f"{ROLLOUT}.layered_summon=True", True),
        (f"{ROLLOUT}.layered_summon=True {ROLLOUT}.load_format=safetensors", False),
        (f"{ROLLOUT}.layered_summon=True actor_rollout_ref.model.lora.merge=True", False),
        (f"{ROLLOUT}.layered_summon=True model_engine=megatron", False),
    ],
)
def test_layers_are_summoned_only_beside_an_engine_that_has_weights(more, stops):
    settings = verl("actor_rollout_ref.model.lora_rank=32", *more.split()).settings
    found = what_breaks(settings)
    assert any("layers-are-summoned" in each for each in found) == stops


def test_an_engine_that_reads_the_model_is_named_where_hosts_have_too_little():
    """Eight ranks of 7.6 billion parameters, whose node has 41 GB for each."""
    options = replace(OPTIONS, host_memory_bytes=330 * 10**9)
    adapted = (*VERL, *FIXED, "actor_rollout_ref.model.lora_rank=32")
    checked = check_config("verl", adapted, options)
    assert checked.verdict == "does not fit"
    named = f"with an engine that reads the model itself ({ROLLOUT}.load_format) it takes at most"
    assert any(each.startswith(named) for each in checked.remarks)
