"""Configurations of frameworks as jobs and plans: own small ones, and the published ones where they are at hand."""

import re
from dataclasses import replace

import pytest

from rlplan.errors import FileError, UserError
from rlplan.files.frozen import FrozenDict
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.models import model_of
from rlplan.planner.configs.reading.composed import read_inherited
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.profiles.facts import load_facts
from rlplan.profiles.sheets import load_engine, load_framework, sheet_names
from rlplan.simulator.simulate import simulate
from rlplan.workload import Logged
from tests.house.tree import ROOT

PUBLISHED = ROOT.parent / "shared" / "data" / "configs"
OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={"HOME": "~"})
VERL = (
    "-m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8 trainer.nnodes=2 "
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 "
    "data.train_batch_size=256 actor_rollout_ref.actor.ppo_mini_batch_size=64 data.max_prompt_length=1024 "
    "data.max_response_length=4096 actor_rollout_ref.actor.use_dynamic_bsz=True "
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 actor_rollout_ref.rollout.tensor_model_parallel_size=2 "
    "actor_rollout_ref.actor.use_kl_loss=True trainer.logger=[console] trainer.save_freq=20"
).split()
NEMO = """
grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16, max_num_steps: 10}
loss_fn: {reference_policy_kl_penalty: 0.01}
policy:
  model_name: Qwen/Qwen2.5-1.5B
  train_global_batch_size: 256
  train_micro_batch_size: 4
  logprob_batch_size: ${policy.train_micro_batch_size}
  max_total_sequence_length: 1024
  precision: bfloat16
  dtensor_cfg: {enabled: true, tensor_parallel_size: 2}
  sequence_packing:
    enabled: true
    train_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}
  generation: {backend: vllm, vllm_cfg: {tensor_parallel_size: 1, gpu_memory_utilization: 0.6}}
cluster: {gpus_per_node: 8, num_nodes: 1}
logger: {wandb_enabled: false}
"""
OPENRLHF = (
    "-m openrlhf.cli.train_ppo_ray --actor.model_name_or_path meta-llama/Llama-3.1-8B --actor.num_gpus_per_node 4 "
    "--ref.num_gpus_per_node 2 --critic.num_gpus_per_node 4 --vllm.num_engines 3 --vllm.tensor_parallel_size 2 "
    "--reward.remote_url http://localhost:5000 --ds.zero_stage 3 --ds.packing_samples --train.batch_size 128 "
    "--rollout.batch_size 256 --data.max_len 2048 --actor.gradient_checkpointing_enable --ckpt.path x"
).split()


def verl(*more):
    return imported("verl", [*VERL, *more], OPTIONS)


def test_a_verl_command_line_is_a_job_and_a_plan():
    found = verl()
    job, tasks = found.job, found.draft.tasks
    assert (job.algorithm, job.framework) == ("grpo", "verl-fsdp")
    assert dict(job.models) == {"actor": "qwen3-8b", "reference": "qwen3-8b"}
    work = job.workload
    assert (work.prompts, work.samples_per_prompt, work.updates) == (256, 8, 4)
    assert work.response_tokens == Logged(mean=300, max=4096)
    assert (job.cluster[0].gpus_per_node, job.cluster[0].nodes) == (8, 2)
    update, generate = tasks["actor.update"], tasks["actor.generate"]
    assert (update.tp, update.dp, update.token_budget, update.recompute) == (1, 16, 16384, "full")
    assert (generate.tp, generate.dp, generate.memory_fraction) == (2, 8, 0.5)
    assert found.keys.unknown == ()
    assert "trainer.logger" in found.keys.without_influence
    assert "data.train_batch_size" in found.keys.mapped
    assert any("--mean-prompt" in note for note in found.notes)


def test_an_imported_plan_is_complete_and_simulated():
    found = verl()
    plan = complete(found.draft, found.resolved, load_facts(found.resolved))
    forecast = simulate(plan, load_facts(found.resolved))
    assert forecast.feasible
    assert plan.tasks["reference.compute_log_prob"].token_budget == 16384


def test_context_parallel_ranks_share_a_larger_budget():
    update = verl("actor_rollout_ref.actor.ulysses_sequence_parallel_size=2").draft.tasks[
        "actor.update"
    ]
    assert (update.cp, update.dp, update.token_budget) == (2, 8, 32768)


def test_generation_on_nodes_of_its_own_is_asynchronous():
    more = (
        "trainer.v1.trainer_mode=separate_async", "actor_rollout_ref.rollout.nnodes=1",
        "trainer.v1.separate_async.parameter_sync_step=4", "trainer.v1.sampler.max_off_policy_threshold=4",
    )  # fmt: skip
    found = verl(*more)
    assert [(pool.name, pool.gpus) for pool in found.draft.pools] == [("train", 16), ("rollout", 8)]
    assert (found.draft.mode, found.draft.sync_every, found.draft.staleness) == ("async", 4, 4)
    assert found.job.workload.prompts == 64


def test_a_nemo_rl_file_with_inheritance_and_references(tmp_path):
    (tmp_path / "base.yaml").write_text(NEMO)
    child = tmp_path / "child.yaml"
    child.write_text(
        "defaults: base.yaml\ncluster: {num_nodes: 2}\nloss_fn: {force_on_policy_ratio: true}\n"
    )
    found = imported("nemo-rl", [str(child)], OPTIONS)
    assert found.job.cluster[0].nodes == 2
    assert found.job.old_log_prob == "engine"
    assert found.job.workload.updates == 2
    assert found.job.workload.max_total_tokens == 1024
    update = found.draft.tasks["actor.update"]
    assert (update.tp, update.dp, update.token_budget) == (2, 8, 4096)
    assert found.settings.flat["cluster.num_nodes"].where == f"{child}:2"


@pytest.mark.parametrize(("gpu", "domain"), [("gb200", 64), ("h100-80gb-sxm", None)])
def test_nodes_that_nemo_rl_places_by_domain_are_linked(tmp_path, gpu, domain):
    path = tmp_path / "grpo.yaml"
    path.write_text(NEMO)
    words = [str(path), "cluster.gpus_per_node=4", "cluster.num_nodes=32"]
    options = replace(OPTIONS, gpu=gpu)
    together = imported("nemo-rl", [*words, "cluster.segment_size=16"], options)
    assert together.job.cluster[0].nvlink_domain_gpus == domain
    scattered = imported("nemo-rl", words, options)
    assert scattered.job.cluster[0].linked_gpus == 4


@pytest.mark.parametrize(
    ("version", "word", "engine"),
    [
        ("0.7", "true", None),
        ("0.7", "false", "megatron-core-2026-unfused"),
        ("0.6", "false", "megatron-core-2026-unfused"),
        ("0.5", "false", "megatron-core-2025-unfused"),
        ("0.3", "false", "megatron-core-2025-unfused"),
    ],
)
def test_megatron_permutes_tokens_as_the_configuration_says(tmp_path, version, word, engine):
    path = tmp_path / "grpo.yaml"
    path.write_text(NEMO)
    words = [
        "policy.dtensor_cfg.enabled=false",
        "policy.megatron_cfg.enabled=true",
        f"policy.megatron_cfg.moe_permute_fusion={word}",
    ]
    options = replace(OPTIONS, version=version)
    assert imported("nemo-rl", [str(path), *words], options).job.engines.train == engine


def test_overrides_behind_a_yaml_file_count(tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text(NEMO)
    found = imported(
        "nemo-rl",
        [str(path), "policy.dtensor_cfg.tensor_parallel_size=4", "++cluster.num_nodes=4"],
        OPTIONS,
    )
    assert found.draft.tasks["actor.update"].tp == 4
    assert found.job.cluster[0].nodes == 4


def test_a_name_in_braces_is_a_flags_word_and_no_mapping():
    keys = imported("openrlhf", [*OPENRLHF, "--logger.wandb.key", "{wandb_token}"], OPTIONS).keys
    assert keys.unknown == ()


def test_an_openrlhf_command_line_has_pools_of_its_own():
    found = imported("openrlhf", OPENRLHF, OPTIONS)
    pools = {pool.name: (pool.gpus, pool.roles) for pool in found.draft.pools}
    assert pools["train"] == (4, ("actor",))
    assert pools["reference"] == (2, ("reference",))
    assert pools["critic"] == (4, ("critic",))
    assert pools["rollout"] == (6, ("actor",))
    assert found.job.workload.updates == 2
    assert found.job.algorithm == "ppo"


def test_a_script_gives_lines_and_takes_arguments(tmp_path):
    script = tmp_path / "run.sh"
    words = " \\\n    ".join(VERL)
    script.write_text(f'NNODES=${{NNODES:-4}}\npython3 {words} \\\n trainer.nnodes=$NNODES "$@"\n')
    found = imported("verl", [str(script), "actor_rollout_ref.rollout.n=4", "made.up=1"], OPTIONS)
    assert found.job.cluster[0].nodes == 4
    assert found.job.workload.samples_per_prompt == 4
    assert found.keys.unknown == ("made.up",)
    assert found.settings.flat["data.train_batch_size"].where.startswith(f"{script}:")


WRONG = {
    "actor_rollout_ref.rollout.tensor_model_parallel_size=3": "do not divide the pool's 16",
    "algorithm.adv_estimator=grop": "did you mean 'grpo'",
    "actor_rollout_ref.model.path=nobody/nothing-7b-made": "name a known one by --model",
    "data.train_batch_size=many": "is no whole number",
    "model_engine=metagron": "did you mean 'megatron'",
}


@pytest.mark.parametrize("override", WRONG)
def test_what_cannot_be_imported_is_named_by_its_key(override):
    with pytest.raises(FileError, match=WRONG[override]) as caught:
        verl(override)
    assert caught.value.field == override.split("=")[0]


WITHOUT_REFERENCE = "actor_rollout_ref.actor.use_kl_loss=False"
GSPO = "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"


@pytest.mark.parametrize(
    ("framework", "words", "algorithm", "loss_mean"),
    [
        ("verl", [*VERL, WITHOUT_REFERENCE, GSPO], "gspo", "sequence"),
        ("verl", [*VERL, GSPO], "grpo", "token"),
        ("verl", [*VERL, WITHOUT_REFERENCE, GSPO, "actor_rollout_ref.rollout.n=1"], "reinforce-plus-plus", "token"),
        ("verl", [*VERL, WITHOUT_REFERENCE, "actor_rollout_ref.actor.policy_loss.loss_mode=cispo"], "cispo", "token"),
        (
            "verl",
            [
                *VERL, WITHOUT_REFERENCE, "algorithm.norm_adv_by_std_in_grpo=False",
                "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",
            ],
            "dr-grpo",
            "token-sum-norm",
        ),
        ("verl", [*VERL, "algorithm.adv_estimator=reinforce_plus_plus_baseline"], "reinforce-plus-plus-baseline", "token"),
        ("verl", [*VERL, "algorithm.filter_groups.enable=True"], "grpo", "token"),
        (
            "openrlhf",
            [*OPENRLHF, *"--algo.advantage.estimator reinforce_baseline --rollout.n_samples_per_prompt 4".split()],
            "reinforce-plus-plus-baseline",
            "token",
        ),
    ],
)  # fmt: skip
def test_algorithms_are_told_by_all_their_words(framework, words, algorithm, loss_mean):
    found = imported(framework, words, OPTIONS)
    assert found.job.algorithm == algorithm
    assert found.job.hyperparameters.loss_mean == loss_mean


def test_what_precedes_a_known_part_of_a_path_may_be_unknown():
    found = imported(
        "verl", [*VERL, "actor_rollout_ref.model.path=$PWD/made/qwen-2.5-7b/global_step_9"], OPTIONS
    )
    assert found.job.models["actor"] == "qwen2.5-7b"


def test_formats_and_rotations_of_megatron_are_imported():
    config = "actor_rollout_ref.actor.megatron.override_transformer_config"
    scaling = "actor_rollout_ref.model.override_config.rope_scaling"
    found = verl(
        "model_engine=megatron", f"+{config}.fp8=hybrid", f"+{config}.fp8_recipe=blockwise",
        f"+{scaling}.factor=4.0", f"+{scaling}.original_max_position_embeddings=32768",
    )  # fmt: skip
    assert found.job.precision == "fp8"
    assert found.resolved.architecture("actor").max_positions == 131_072
    assert not found.keys.unknown


def test_an_unknown_mean_response_is_asked_for():
    with pytest.raises(FileError, match="--mean-response: is missing"):
        imported("verl", VERL, ImportOptions(gpu="h100-80gb-sxm", environment={}))


def test_other_training_is_refused():
    with pytest.raises(FileError, match="trains on texts"):
        imported("openrlhf", ["-m", "openrlhf.cli.train_sft", "--x", "1"], OPTIONS)


def test_models_are_known_by_id_by_path_and_by_the_words_that_lead_their_name():
    assert model_of("Qwen/Qwen3-8B") == "qwen3-8b"
    assert model_of("/data/models/Qwen3-30B-A3B-Base") == "qwen3-30b-a3b"
    assert model_of("OpenRLHF/Llama-3-8b-sft-mixture") == "llama-3-8b"
    assert model_of("~/gpt-oss-20b-bf16") == "gpt-oss-20b"
    assert model_of("checkpoint/multiturn-sft-qwen-2.5-7b-instruct/global_step_372") == "qwen2.5-7b"
    assert model_of("out/Qwen2.5-32B/global_step_10/actor/huggingface") == "qwen2.5-32b"
    assert model_of("nobody/nothing-7b-made") is None


def test_a_recipe_without_the_one_that_it_builds_on_is_doubtful(tmp_path):
    (tmp_path / "own.yaml").write_text(f"defaults: base.yaml\n{NEMO}")
    found = imported("nemo-rl", [str(tmp_path / "own.yaml")], OPTIONS)
    (doubt,) = found.doubts()
    assert doubt.startswith("defaults: base.yaml changes the amount of work (its file is not found")
    assert not found.keys.unknown
    (tmp_path / "base.yaml").write_text("cluster: {num_nodes: 2}\n")
    assert not list(imported("nemo-rl", [str(tmp_path / "own.yaml")], OPTIONS).doubts())


def test_a_file_that_inherits_from_itself_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("defaults: b.yaml\n")
    (tmp_path / "b.yaml").write_text("defaults: a.yaml\n")
    with pytest.raises(FileError, match="inherits from itself"):
        read_inherited(tmp_path / "a.yaml")


@pytest.mark.parametrize("name", frameworks_with("keys"))
def test_every_sheet_of_keys_names_sheets_that_there_are(name):
    sheet = load_config_sheet(name)
    assert sheet.name == name
    for trainer in sheet.trainers.values():
        assert load_framework(trainer.framework)
        assert trainer.engine is None or load_engine(trainer.engine)
    follows = [each.follows for each in sheet.settings.values() if each.follows]
    assert set(follows) <= set(sheet.settings)
    assert all(model in sheet_names("models") for model in sheet.models.values())


@pytest.mark.full
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the frameworks' examples are not here")
@pytest.mark.parametrize("framework", ["verl", "nemo-rl", "openrlhf"])
def test_published_configurations_are_imported(framework):
    files = sorted((PUBLISHED / framework).rglob("*.sh")) + sorted(
        (PUBLISHED / framework).rglob("*.yaml")
    )
    refused = {}
    for path in files[:: 1 if len(files) < 20 else 9]:
        try:
            found = imported(framework, [str(path)], OPTIONS)
        except UserError as error:
            refused[path.name] = str(error)
        else:
            assert len(found.keys.unknown) <= 8, path.name
    others = [
        name for name, why in refused.items() if "trains " not in why and "distils" not in why
    ]
    assert len(others) <= 0.12 * len(files), refused


def test_models_of_other_roles_and_missing_ones_can_be_named():
    more = (
        "algorithm.adv_estimator=gae", "reward_model.enable=True", "reward_model.model.path=private/scorer",
        "actor_rollout_ref.model.path=$MODEL", "critic.model.path=Qwen/Qwen3-8B",
    )  # fmt: skip
    options = replace(OPTIONS, model="qwen3-8b", models=FrozenDict({"reward": "llama-3-8b"}))
    found = imported("verl", [*VERL, *more], options)
    assert dict(found.job.models)["actor"] == "qwen3-8b"
    assert dict(found.job.models)["reward"] == "llama-3-8b"
    with pytest.raises(FileError, match=r"no role.*found .rule.; allowed: critic, reward"):
        imported("verl", [*VERL, *more], replace(options, models=FrozenDict({"rule": "x"})))


def test_generation_stays_with_training_where_a_reward_model_has_a_pool():
    more = (
        "reward.reward_model.enable=True", "reward.reward_model.model_path=meta-llama/Meta-Llama-3-8B",
        "reward.reward_model.enable_resource_pool=True", "reward.reward_model.nnodes=1",
    )  # fmt: skip
    tasks = verl(*more).draft.tasks
    assert tasks["actor.generate"].pool == tasks["actor.update"].pool == "train"
    assert tasks["reward.compute_reward"].pool == "reward"


def test_blanks_of_a_template_do_not_stop_a_script(tmp_path):
    path = tmp_path / "run.sh"
    command = " ".join(VERL)
    path.write_text(
        "ROOT=<YOUR_PATH>\nVERSION=2.12.0\n"
        f'bash -c "pip install ray==$VERSION $UNKNOWN && python3 {command}"\n'
    )
    found = imported("verl", [str(path)], OPTIONS)
    assert found.job.workload.prompts == 256


def test_replicas_of_an_engine_that_get_no_sequence_stand_still():
    few = (
        "data.train_batch_size=4", "actor_rollout_ref.rollout.n=1", "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size=4",
    )  # fmt: skip
    seconds = []
    for tp in (2, 4):  # eight replicas for four sequences, and four
        found = verl(*few, f"actor_rollout_ref.rollout.tensor_model_parallel_size={tp}")
        facts = load_facts(found.resolved)
        plan = complete(found.draft, found.resolved, facts)
        assert plan.tasks["actor.generate"].dp == 16 // tp
        seconds.append(simulate(plan, facts).stage_seconds["generation"])
    assert seconds[1] < seconds[0]


def test_a_script_that_starts_another_one_is_followed(tmp_path):
    (tmp_path / "inner.sh").write_text(
        f'python3 {" ".join(VERL)} trainer.nnodes=${{NODES:-1}} data.train_batch_size=${{BATCH:-32}} "$@"\n'
    )
    outer = tmp_path / "outer.sh"
    outer.write_text(
        'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n'
        "export NODES=4\nBATCH=512\nmore=(actor_rollout_ref.rollout.n=4)\n"
        'bash prepare.sh\nPROJECT=x BATCH=128 exec bash -x "$HERE/inner.sh" "${more[@]}" "$@"\n'
    )
    found = imported("verl", [str(outer), "data.max_prompt_length=512"], OPTIONS)
    work = found.job.workload
    assert (found.job.cluster[0].nodes, work.prompts, work.samples_per_prompt) == (4, 128, 4)
    assert found.settings.flat["data.max_prompt_length"].value == 512
    assert found.settings.flat["trainer.nnodes"].where.startswith(str(tmp_path / "inner.sh"))


def test_scripts_that_start_each_other_start_no_training(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.sh").write_text(f"bash {other}.sh\n")
    with pytest.raises(FileError, match="starts no RL training"):
        imported("verl", [str(tmp_path / "a.sh")], OPTIONS)


@pytest.mark.parametrize(("norm", "read"), [("2", 2.0), ("0.5", 0.5), ("0", 1.0)])
def test_a_norm_of_gradients_may_be_a_whole_number(norm, read):
    found = imported("verl", [*VERL, f"actor_rollout_ref.actor.grad_clip={norm}"], OPTIONS)
    assert found.job.hyperparameters.max_gradient_norm == read


def test_images_are_never_left_out_in_silence():
    path = "actor_rollout_ref.model.path"
    frozen = "actor_rollout_ref.actor.freeze_vision_tower"
    vision = verl(f"{path}=Qwen/Qwen3-VL-8B-Instruct", f"{frozen}=True")
    assert vision.job.workload.images is None
    told = [each for each in vision.guesses if "passes of the tower are not counted" in each]
    assert len(told) == 1
    assert "qwen3-vl-8b reads images" in told[0]
    assert "workload.images" in told[0]
    # 0.8 and later have the key, and nothing that reads it; 0.6 and 0.7 do.
    without = [each for each in vision.notes if "has no effect" in each]
    assert not vision.job.trainer("actor").freezes_tower
    assert without == [
        f"{frozen} has no effect in verl 0.9.1: no trainer of that reads it, and the tower learns"
    ]
    older = replace(OPTIONS, version="0.7.1")
    words = [*VERL, f"{path}=Qwen/Qwen3-VL-8B-Instruct", f"{frozen}=True"]
    assert imported("verl", words, older).job.trainer("actor").freezes_tower
    assert not any("images" in each for each in verl().guesses)


@pytest.mark.parametrize("model", ["gemma-3n-e2b", "gemma-4-e4b", "internvl3-8b"])
def test_a_tower_that_is_not_called_visual_is_not_frozen(model):
    key = "actor_rollout_ref.actor.freeze_vision_tower"
    words = [*VERL, f"actor_rollout_ref.model.path={model}", f"{key}=True"]
    found = imported("verl", words, replace(OPTIONS, version="0.7.1"))
    assert not found.job.trainer("actor").freezes_tower
    (told,) = (each for each in found.notes if each.startswith(f"{key} has no effect"))
    assert f"it freezes what a model calls visual, and {model} has no such part" in told


GROUPED = (
    "actor_rollout_ref.actor.use_prefix_grouper=True",
    "actor_rollout_ref.model.use_remove_padding=False",
    "actor_rollout_ref.actor.use_dynamic_bsz=False",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
)


@pytest.mark.parametrize(
    ("version", "more", "why"),
    [
        ("0.7.1", (), None),
        ("0.7.1", ("actor_rollout_ref.model.use_remove_padding=True",), "use_remove_padding keeps it from that"),
        (
            "0.7.1",
            ("actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.model.use_fused_kernels=True"),
            "use_dynamic_bsz and actor_rollout_ref.model.use_fused_kernels keep it from that",
        ),
        ("0.7.1", ("trainer.use_legacy_worker_impl=disable",), "no trainer reads it"),
        ("0.9.1", (), "no trainer reads it"),
    ],
)  # fmt: skip
def test_prompts_are_grouped_where_verl_does_so_and_else_it_is_said_why_not(version, more, why):
    words = [*VERL, *GROUPED, *more]
    found = imported("verl", words, replace(OPTIONS, version=version))
    shared = [found.job.trainer(role).shares_prompts for role in ("actor", "reference")]
    told = [each for each in found.notes if "use_prefix_grouper has no effect" in each]
    assert shared == [why is None] * 2
    assert len(told) == (why is not None)
    assert all(why in each for each in told)


def test_stages_with_the_embedding_or_the_head_are_even_ones_without_interleaving():
    """94 layers, the embedding and the head are eight stages of twelve, each of two chunks of six."""
    actor = "actor_rollout_ref.actor.megatron"
    own = f"+{actor}.override_transformer_config.account_for"
    words = [
        *VERL, "model_engine=megatron", "actor_rollout_ref.model.path=Qwen/Qwen3-235B-A22B", "trainer.nnodes=16",
        f"{actor}.pipeline_model_parallel_size=8", f"{actor}.virtual_pipeline_model_parallel_size=2",
        f"{own}_embedding_in_pipeline_split=True", f"{own}_loss_in_pipeline_split=True",
    ]  # fmt: skip
    found = imported("verl", words, OPTIONS)
    assert found.draft.tasks["actor.update"].chunks == 1
    left = {
        key.rpartition(".")[2] for key, why in found.keys.not_modelled.items() if "unlike" in why
    }
    assert left == {
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
        "virtual_pipeline_model_parallel_size",
    }


def test_a_note_of_the_mean_prompt_says_that_of_the_job(tmp_path):
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text(NEMO.replace("length: 1024", "length: 512"), encoding="utf-8")
    found = imported("nemo-rl", [str(recipe)], OPTIONS)
    assert found.job.workload.prompt_tokens == Logged(mean=106, max=212)  # of what 300 leave
    assert "prompts of 106 tokens on average, as in mathematics; say --mean-prompt" in found.guesses


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actor_rollout_ref.rollout.n", "0"),
        ("actor_rollout_ref.rollout.n", "-2"),
        ("trainer.nnodes", "0"),
        ("data.train_batch_size", "1e30"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "-1"),
        ("data.max_prompt_length", "-5"),
        ("data.max_response_length", "0"),
        ("actor_rollout_ref.rollout.max_num_seqs", "-1"),
    ],
)
def test_numbers_of_nothing_and_beyond_all_reason_are_refused_by_their_key(key, value):
    with pytest.raises(FileError, match=re.escape(key)):
        imported("verl", [*VERL, f"{key}={value}"], OPTIONS)
