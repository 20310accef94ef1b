"""In what formats trainers keep states, and when they reduce gradients, as configurations of one version or another say it."""

from dataclasses import replace

import pytest

from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import imported
from rlplan.planner.configs.writing.exporting import exported
from rlplan.profiles.facts import load_facts
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.pool_memory import memory_moments
from tests.planner.configs.test_areal import areal
from tests.planner.configs.test_keys_of_nemo_rl import GRPO
from tests.planner.configs.test_keys_of_nemo_rl import OPTIONS as NEMO
from tests.planner.configs.test_skyrl import skyrl
from tests.planner.configs.test_versions import OPTIONS, verl

DEFERS = "fsdp_config.use_no_sync_for_gradient_accumulation=True"
ACTOR = "actor_rollout_ref.actor"
REFERENCE = "actor_rollout_ref.ref.fsdp_config"
FIRST, SECOND = f"{ACTOR}.strategy=fsdp", f"{ACTOR}.strategy=fsdp2"
CHUNKED = f"{ACTOR}.entropy_from_logits_with_chunking=True"
CHECKPOINTED = f"{ACTOR}.entropy_checkpointing=True"
PLAIN = f"{ACTOR}.use_torch_compile=False"


def of_actor(found):
    return found.job.trainer("actor")


@pytest.mark.parametrize(
    ("version", "more", "waits"),
    [
        (None, (SECOND,), None),
        (None, (SECOND, f"{ACTOR}.{DEFERS}"), "fp32"),
        (None, (FIRST, f"{ACTOR}.{DEFERS}"), "bf16"),
        (None, ("model_engine=megatron", f"{ACTOR}.{DEFERS}"), None),
        # 0.9.0 does so, and has no key for it; before it none does.
        ("0.9.0", (SECOND,), "fp32"),
        ("0.9.0", (FIRST,), "bf16"),
        ("0.8", (SECOND,), None),
    ],
)
def test_verls_fsdp_reduces_gradients_once_an_update_where_it_defers_that(version, more, waits):
    found = verl(*more, options=replace(OPTIONS, version=version))
    assert of_actor(found).waiting_gradients == waits
    assert found.job.trainer("reference").waiting_gradients is None


@pytest.mark.parametrize(
    ("version", "more", "away"),
    [
        (None, (), True),
        ("0.2", (), True),
        ("0.1", (), False),
        (None, (f"{REFERENCE}.param_offload=False",), True),
        (None, ("model_engine=megatron",), False),
        (None, (f"{ACTOR}.strategy=fsdp_turbo",), False),
    ],
)
def test_weights_of_verls_reference_are_on_the_host_under_fsdp_whatever_a_key_says(
    version, more, away
):
    compares = f"{ACTOR}.use_kl_loss=True"
    found = verl(compares, *more, options=replace(OPTIONS, version=version))
    assert found.draft.tasks["reference.compute_log_prob"].offload == away
    key = f"{REFERENCE}.param_offload"
    assert any(f"{key} has no effect" in note for note in found.notes) == (f"{key}=False" in more)


@pytest.mark.parametrize(
    ("version", "strategy", "unpinned"),
    [
        ("0.5", SECOND, False),
        ("0.6", SECOND, True),
        ("0.9.0", SECOND, True),
        ("0.9.0", FIRST, False),
        (None, SECOND, False),
    ],
)
def test_weights_of_verls_fsdp2_leave_for_memory_that_is_not_pinned_from_0_6_to_0_9_0(
    version, strategy, unpinned
):
    found = verl(strategy, options=replace(OPTIONS, version=version))
    assert of_actor(found).unpinned_weights == unpinned
    assert not found.job.trainer("reference").unpinned_weights


@pytest.mark.parametrize(
    ("version", "rank", "kept"),
    [("0.8", 32, True), ("0.8", 0, False), ("0.7.1", 32, False), (None, 32, False)],
)
def test_verl_0_8_lets_no_graph_of_an_adapter_go(version, rank, kept):
    key = f"actor_rollout_ref.model.lora_rank={rank}"
    found = verl(SECOND, key, options=replace(OPTIONS, version=version))
    assert of_actor(found).keeps_embedded == kept


@pytest.mark.parametrize("strategy", [FIRST, SECOND])
def test_a_plan_whose_gradients_wait_is_told_to_verl_again(strategy, tmp_path):
    found = verl(strategy, f"{ACTOR}.{DEFERS}")
    facts = load_facts(found.resolved)
    plan = complete(found.draft, found.resolved, facts, "there")
    again = tmp_path / "run.sh"
    again.write_text(exported(plan, "verl", facts=facts).text, encoding="utf-8")
    read = of_actor(imported("verl", [str(again)], OPTIONS))
    assert read.waiting_gradients == of_actor(found).waiting_gradients


@pytest.mark.parametrize(
    ("more", "way"),
    [
        ((PLAIN, CHUNKED), "old-entropy-chunked"),
        ((PLAIN, CHUNKED, CHECKPOINTED), "old-entropy-chunked"),
        ((PLAIN, CHUNKED, f"{ACTOR}.entropy_coeff=0.01"), "entropy-chunked"),
        ((PLAIN, CHUNKED, CHECKPOINTED, f"{ACTOR}.calculate_entropy=True"), "entropy-checkpointed"),
        # Logits that are padded are worked on whole.
        ((CHUNKED, "actor_rollout_ref.model.use_remove_padding=False"), "old-entropy-eager"),
    ],
)
def test_an_update_without_entropies_has_none_in_pieces_either(more, way):
    assert of_actor(verl(*more)).logits == way


FUSED = "policy.optimizer.kwargs.master_weights=true"
NARROW = " ".join(
    f"policy.optimizer.kwargs.{name}=torch.bfloat16"
    for name in ("exp_avg_dtype", "exp_avg_sq_dtype")
)
EXPERTS = "policy.model_name=Qwen/Qwen3-30B-A3B policy.dtensor_cfg.expert_parallel_size=4"


@pytest.mark.parametrize(
    ("version", "more", "weights", "optimizer"),
    [
        (None, "", None, "adam"),
        (None, EXPERTS, None, "adam"),
        (None, f"{EXPERTS} {FUSED}", "bf16", "remainders"),
        (None, f"{EXPERTS} {FUSED} {NARROW}", "bf16", "remainders-bf16"),
        (None, f"{FUSED} policy.optimizer.kwargs.store_param_remainders=false", "bf16", "masters"),
        # Automodel of before 0.6 makes experts of its own in bf16, and all else in fp32, beside which a master is whole.
        ("0.7", EXPERTS, "bf16", "adam"),
        ("0.7", f"{EXPERTS} {FUSED} {NARROW}", "bf16", "remainders-bf16"),
        ("0.7", f"{FUSED} {NARROW}", None, "masters-bf16"),
    ],
)
def test_nemo_rls_fused_adam_has_masters_beside_weights_in_16_bits(
    version, more, weights, optimizer, tmp_path
):
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text(GRPO, encoding="utf-8")
    options = replace(NEMO, version=version)
    found = imported("nemo-rl", [str(recipe), *more.split()], options)
    kept = of_actor(found)
    assert (kept.weights, kept.optimizer) == (weights, optimizer)
    if version is None:
        facts = load_facts(found.resolved)
        plan = complete(found.draft, found.resolved, facts, "there")
        again = tmp_path / "again.yaml"
        again.write_text(exported(plan, "nemo-rl", facts=facts).text, encoding="utf-8")
        read = of_actor(imported("nemo-rl", [str(again)], options))
        assert (read.weights, read.optimizer) == (weights, optimizer)


V4 = (
    "actor_rollout_ref.model.path=deepseek-ai/DeepSeek-V4-Flash", "model_engine=megatron", "trainer.nnodes=8",
    f"{ACTOR}.megatron.pipeline_model_parallel_size=8", f"{ACTOR}.megatron.expert_model_parallel_size=8",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1", "actor_rollout_ref.rollout.data_parallel_size=4",
    "actor_rollout_ref.rollout.expert_parallel_size=4",
)  # fmt: skip
SERVED = "actor_rollout_ref.rollout.quantization"


def test_a_checkpoint_of_four_bits_is_served_as_it_is_published_unless_a_key_says_otherwise(
    tmp_path,
):
    found = verl(*V4)
    assert found.job.rollout_precision == "mxfp4"
    assert any("weights in mxfp4" in each and SERVED in each for each in found.notes)
    said = verl(*V4, f"{SERVED}=fp8")
    assert said.job.rollout_precision == "fp8"
    assert not any("as its checkpoint is published" in each for each in said.notes)
    facts = load_facts(found.resolved)
    plan = complete(found.draft, found.resolved, facts, "there", misfits=True)
    written = exported(plan, "verl", facts=facts).text
    assert SERVED not in written  # verl knows no such word: the checkpoint says it
    again = tmp_path / "run.sh"
    again.write_text(written, encoding="utf-8")
    assert imported("verl", [str(again)], OPTIONS).job.rollout_precision == "mxfp4"


MOE = (
    "actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B", "model_engine=megatron", "trainer.nnodes=2",
    f"{ACTOR}.megatron.expert_model_parallel_size=8", "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
)  # fmt: skip
CONFIG = f"{ACTOR}.megatron.override_transformer_config"
SELECTIVE = f"+{CONFIG}.recompute_granularity=selective"


@pytest.mark.parametrize(
    ("modules", "recompute"),
    [((), "attention"), ("[core_attn]", "attention"), ("[moe,layernorm]", "experts")],
)  # fmt: skip
def test_experts_are_computed_again_where_megatrons_modules_name_them(modules, recompute, tmp_path):
    more = (f"+{CONFIG}.recompute_modules={modules}",) if modules else ()
    found = verl(*MOE, SELECTIVE, *more)
    facts = load_facts(found.resolved)
    plan = complete(found.draft, found.resolved, facts, "there", misfits=True)
    assert plan.tasks["actor.update"].recompute == recompute
    again = tmp_path / "run.sh"
    again.write_text(exported(plan, "verl", facts=facts).text, encoding="utf-8")
    read = imported("verl", [str(again)], OPTIONS)
    assert read.draft.tasks["actor.update"].recompute == recompute


@pytest.mark.parametrize(
    ("modules", "is_counted"),
    [("[core_attn,moe]", True), ("['moe']", True), ("[]", True), ("null", True), ("[moe,layernorm]", False), ("mlp", False)],
)  # fmt: skip
def test_modules_that_are_not_counted_are_named(modules, is_counted):
    found = verl(*MOE, SELECTIVE, f"+{CONFIG}.recompute_modules={modules}")
    assert (f"{CONFIG}.recompute_modules" not in found.keys.not_modelled) == is_counted


@pytest.mark.parametrize(
    ("read", "config"),
    [
        (skyrl, "trainer.policy.megatron_config.transformer_config_kwargs"),
        (areal, "actor.megatron"),
    ],
)
def test_frameworks_that_hand_megatron_its_modules_are_read_alike(read, config):
    on = ("actor.gradient_checkpointing=true",) if read is areal else ()
    for modules, recompute, is_counted in (
        ("null", "attention", True),
        ("[moe]", "experts", True),
        ("[layernorm]", "selective", False),
    ):
        words = (
            f"{config}.recompute_granularity=selective",
            f"{config}.recompute_modules={modules}",
        )
        found = read("Megatron", *on, *words)
        assert found.draft.tasks["actor.update"].recompute == recompute
        assert (f"{config}.recompute_modules" not in found.keys.not_modelled) == is_counted


def test_layers_keep_of_experts_that_are_computed_again_their_input_alone():
    plans = []
    for modules in ("[layernorm]", "[moe]"):
        found = verl(*MOE, SELECTIVE, f"+{CONFIG}.recompute_modules={modules}")
        facts = load_facts(found.resolved)
        plans.append(complete(found.draft, found.resolved, facts, "there", misfits=True))
    kept, less = (
        memory_moments(PlacedPlan(plan, facts), plan.pool_of("actor.update"))["actor.update"][
            "activations"
        ]
        for plan in plans
    )
    assert less < 0.7 * kept
    seconds, more = (
        next(each.seconds for each in simulate(plan, facts).costs if each.name == "actor.update")
        for plan in plans
    )
    assert more > seconds
