"""ROLL's configurations: device mappings, trainers of each role, episodes, what is generated ahead, and its log."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.importing import imported, settings_of
from rlplan.planner.frameworks.roll.devices import placement_of
from rlplan.planner.measured.logs import read_log
from rlplan.profiles.catalog import load_engine
from rlplan.profiles.frameworks import DATA_PARTS
from rlplan_cli.config_options import framework_of
from tests.planner.configs.test_keys_of_roll import BASES, CONFIG, OPTIONS, G, R, T

ENVIRONMENTS = """
max_actions_per_traj: 12
custom_env:
  FrozenLake: {env_type: frozen_lake, max_steps: "${max_actions_per_traj}"}
"""
FILE = """
defaults: [../config/traj_envs@_here_]
pretrain: Qwen/Qwen2.5-0.5B-Instruct
rollout_batch_size: 1024
sequence_length: 8192
adv_estimator: grpo
init_kl_coef: 0.0
async_generation_ratio: 1
actor_train:
  training_args: {per_device_train_batch_size: 2, gradient_accumulation_steps: 64}
  strategy_args:
    strategy_name: megatron_train
    strategy_config: {tensor_model_parallel_size: 1, use_distributed_optimizer: true, recompute_granularity: full}
  device_mapping: list(range(0,4))
actor_infer:
  strategy_args: {strategy_name: vllm, strategy_config: {gpu_memory_utilization: 0.8}}
  device_mapping: list(range(4,8))
train_env_manager: {group_size: 8, num_env_groups: 128, tags: [FrozenLake], num_groups_partition: [128]}
custom_envs:
  FrozenLake:
    ${custom_env.FrozenLake}
"""
SCRIPT = """#!/bin/bash
CONFIG_PATH=$(basename $(dirname $0))
python examples/start_agentic_pipeline.py --config_path $CONFIG_PATH --config_name lake
"""


def roll(base, more=""):
    return imported("roll", [*BASES[base], *more.split()], OPTIONS)


@pytest.fixture
def examples(tmp_path):
    """Return a folder of configurations as ROLL's checkout has them."""
    for folder, name, text in (
        ("config", "traj_envs.yaml", ENVIRONMENTS),
        ("mine", "lake.yaml", FILE),
        ("mine", "run.sh", SCRIPT),
    ):
        (tmp_path / "examples" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "examples" / folder / name).write_text(text, encoding="utf-8")
    return tmp_path / "examples" / "mine"


def test_it_has_every_part_but_an_export():
    assert "roll" in frameworks_with(*DATA_PARTS, "reading", "rules")


@pytest.mark.parametrize("name", ["lake.yaml", "run.sh"])
def test_a_file_and_the_script_that_names_it(examples, name):
    found = imported("roll", [str(examples / name)], OPTIONS)
    assert found.keys.unknown == ()
    assert {each.name: each.gpus for each in found.draft.pools} == {"train": 4, "rollout": 4}
    work = found.job.workload
    assert (work.prompts, work.samples_per_prompt, work.updates) == (128, 8, 2)
    assert (work.max_total_tokens, found.run.work.turns) == (8192, 12)
    assert (found.draft.mode, found.draft.staleness) == ("async", 1.0)
    assert found.job.old_log_prob == "trainer"  # since a step has two updates


def test_a_path_is_looked_for_beside_the_program_that_a_script_elsewhere_starts(examples):
    script = examples.parent.parent / "scripts" / "slurm" / "run.sh"
    script.parent.mkdir(parents=True)
    (examples.parent.parent / ".git").mkdir()
    start = "python examples/start_agentic_pipeline.py --config_path mine --config_name lake"
    script.write_text(f"cd /scratch/me/ROLL\n{start} rollout_batch_size=512\n", encoding="utf-8")
    found = imported("roll", [str(script)], OPTIONS)
    assert found.job.workload.prompts == 64


def test_groups_of_the_first_version_are_read_by_their_names_there(examples):
    text = FILE.replace("num_env_groups", "env_groups").replace("num_groups_partition", "n_groups")
    more = "val_batch_size: 100\nval_env_manager: {group_size: 1, env_groups: 64, tags: [FrozenLake], n_groups: [64]}\n"
    (examples / "lake.yaml").write_text(text + more, encoding="utf-8")
    found = imported("roll", [str(examples / "lake.yaml")], OPTIONS)
    assert (found.settings.sheet.version, found.keys.unknown) == ("0.1.1", ())
    assert found.settings.whole("env_groups") == 128
    # No key left the pass for old log-probabilities out then, whatever an iteration updates.
    assert found.job.old_log_prob == "trainer"
    assert found.job.engines.generate == "vllm-0.8"
    rule = "evaluated-episodes-fill-their-environments"
    assert rule not in {
        each.rule for each in check_config("roll", [str(examples / "lake.yaml")], OPTIONS).findings
    }


@pytest.mark.parametrize(
    ("more", "version"),
    [
        # examples/qwen2.5-7B-rlvr_megatron/rlvr_config_dynamic_batching.yaml of v0.3.0
        ("reward_norm: null\nreward_shift: false\nreward_scale: false\n", "0.3.0"),
        # fields of roll/configs since v0.1.3, beside a trainer that v0.2.1 has last
        (
            "critic: {use_sequence_packing: true, strategy_args: {strategy_name: deepspeed_train}}\n",
            "0.2.1",
        ),
    ],
)
def test_keys_that_examples_of_all_releases_have_tell_no_version(examples, more, version):
    (examples / "lake.yaml").write_text(FILE + more, encoding="utf-8")
    found = settings_of("roll", [str(examples / "lake.yaml")], OPTIONS)
    assert found.sheet.version == version


def test_it_is_told_by_its_start(examples):
    assert framework_of([str(examples / "run.sh")])[0] == "roll"


@pytest.mark.parametrize(
    ("more", "pools"),
    [
        ("", {"train": (8, ("actor", "reference"))}),
        (f"{R}.device_mapping=list(range(8,12))", {"reference": (4, ("reference",)), "train": (8, ("actor",))}),
        (f"{G}.device_mapping=[8,9,10,11]", {"train": (8, ("actor", "reference")), "rollout": (4, ("actor",))}),
        (f"{G}.device_mapping=list(range(8,10))+list(range(12,14))", {"train": (8, ("actor", "reference")), "rollout": (4, ("actor",))}),
    ],
)  # fmt: skip
def test_devices_are_pools(more, pools):
    found = roll("together", more).draft.pools
    assert {each.name: (each.gpus, each.roles) for each in found} == pools


def test_engines_on_a_part_of_the_gpus_are_named():
    found = roll("together", f"{G}.device_mapping=list(range(0,6))")
    doubt = found.keys.changes_work[f"{G}.device_mapping"]
    assert doubt == "generation on 6 of the 8 GPUs that train, forecast on all of them"


def test_devices_that_no_pool_holds_are_refused():
    with pytest.raises(FileError, match="which no pool holds"):
        roll("together", f"{G}.device_mapping=list(range(4,12))")
    with pytest.raises(FileError, match="is not understood"):
        roll("together", f"{G}.device_mapping=every_gpu()")


def test_a_reference_has_its_own_trainer():
    tasks = roll("FSDP", f"{R}.strategy_args.strategy_name=hf_infer").draft.tasks
    reference, update = tasks["reference.compute_log_prob"], tasks["actor.update"]
    assert (reference.engine, reference.dp, reference.zero) == ("ddp-hf-padded-to-limits", 8, 0)
    assert (update.engine, update.zero) == ("fsdp2-hf-padded-to-limits", 3)
    of_megatron = roll("FSDP", f"{R}.strategy_args.strategy_name=megatron_infer").draft
    assert of_megatron.tasks["reference.compute_log_prob"].engine.startswith("megatron-core")


def test_rows_are_padded_unless_they_are_packed():
    padded, packed = roll("together").draft, roll("packs").draft
    assert padded.tasks["actor.update"].engine == "megatron-core-2025-padded-to-limits"
    update = packed.tasks["actor.update"]
    assert (update.engine, update.token_budget) == ("megatron-core-2025", 8192)
    assert roll("by tokens").draft.tasks["actor.update"].token_budget == 8192


def test_old_log_probs_are_passed_over_where_they_are_needed():
    assert roll("together").job.old_log_prob == "trainer"  # a penalty in rewards
    assert roll("no penalty").job.old_log_prob == "trainer"  # 512 rows, updates of 64
    whole = f"{T}.training_args.gradient_accumulation_steps=64"
    assert roll("no penalty", whole).job.old_log_prob == "engine"
    never = "force_disable_old_logprobs_recompute=true"
    assert roll("together", never).job.old_log_prob == "engine"


@pytest.mark.parametrize(
    ("base", "more", "algorithm", "kl"),
    [
        ("together", "", "grpo", "loss"),
        ("no penalty", "importance_sampling=seq", "gspo", "none"),
        ("together", "adv_estimator=reinforce add_token_level_kl=true", "reinforce-plus-plus", "reward"),
        ("a penalty in the loss", "", "grpo", "loss"),
        ("a critic", "", "ppo", "loss"),
    ],
)  # fmt: skip
def test_algorithms_are_told_by_their_words(base, more, algorithm, kl):
    job = roll(base, more).job
    assert (job.algorithm, job.hyperparameters.kl_in) == (algorithm, kl)


def test_engines_have_as_many_requests_as_their_router_hands_out():
    assert roll("together").draft.tasks["actor.generate"].max_running == 128
    more = roll("together", "max_running_requests=2000").draft.tasks["actor.generate"]
    assert more.max_running == 1024
    assert roll("SGLang").draft.tasks["actor.generate"].tp == 2


def test_rows_that_fill_no_update_of_episodes_are_copied_or_left_out():
    key = f"{T}.training_args.gradient_accumulation_steps"
    rows = roll("episodes").job.workload.prompts * 8
    for steps, more, said in (
        (rows // 2, "", f"which {rows} copies fill up beside a step's {rows}"),
        (rows // 2, "batch_adjust_mode=delete", f"which {rows} copies fill up"),
        (rows // 4, "", None),
        (3, "", "copies fill up beside"),
        (3, "batch_adjust_mode=delete", f"that do not divide a step's {rows} rows"),
    ):
        words = f"{T}.training_args.per_device_train_batch_size=1 {key}={steps} {more}"
        doubt = roll("episodes", words).keys.changes_work.get(key)
        assert doubt is None if said is None else said in doubt, (steps, more, doubt)


def test_judges_and_filters_are_named():
    more = "rewards.judge.device_mapping=list(range(8,10)) rewards.math.query_filter_config.type=std_filter"
    doubts = roll("together", more).keys.changes_work
    assert doubts["rewards.judge.device_mapping"] == "rewards by a model"
    assert doubts["rewards.math.query_filter_config.type"] == "groups that a filter drops"
    (group,) = roll("together", more).job.cluster
    assert (group.gpus_per_node, group.nodes) == (8, 2)
    served = roll("together", "rewards.math.judge_api_url=http://judge rewards.math.prm_model=m")
    assert served.keys.changes_work["rewards.math.judge_api_url"] == (
        "rewards by a model that a server has"
    )
    assert served.keys.unknown == ("rewards.math.prm_model",)


@pytest.mark.parametrize("key", ["student_train.device_mapping", "sft_train.device_mapping"])
def test_other_trainings_are_refused_by_name(key):
    with pytest.raises(FileError, match=r"distils from a teacher|trains on texts"):
        roll("together", f"{key}=list(range(0,8))")


def test_what_only_generates_is_refused():
    with pytest.raises(FileError, match="trains on no GPU"):
        roll("together", f"{T}.device_mapping=null")


RECOMPUTES = "class BaseConfig:\n    enable_old_logprobs_recompute: bool = False\n"


@pytest.mark.parametrize(
    ("code", "number", "wanted", "passes"),
    [
        (
            "class BaseConfig:\n",
            None,
            "0.1.1",
            "trainer",
        ),  # October 2025; with a reference, whatever its penalty is
        (RECOMPUTES, None, "0.2.1", "engine"),  # December 2025
        (RECOMPUTES, "0.1.0", "0.2.1", "engine"),  # February 2026
        (RECOMPUTES, "0.3.0", "0.3.0", "engine"),
    ],
)
def test_the_code_of_a_checkout_tells_its_version(examples, code, number, wanted, passes):
    root = examples.parent.parent
    (root / "roll" / "configs").mkdir(parents=True)
    (root / "roll" / "configs" / "base_config.py").write_text(code, encoding="utf-8")
    if number is not None:
        (root / "setup.py").write_text(
            f'setup(name="roll", version="{number}")\n', encoding="utf-8"
        )
    once = FILE.replace("gradient_accumulation_steps: 64", "gradient_accumulation_steps: 128")
    (examples / "lake.yaml").write_text(once, encoding="utf-8")
    found = imported("roll", [str(examples / "lake.yaml")], OPTIONS)
    assert (found.settings.sheet.version, found.job.old_log_prob) == (wanted, passes)
    assert ("reference" in found.job.models) == (wanted == "0.1.1")


def test_deepspeed_is_of_earlier_versions():
    words = (
        f"{T}.strategy_args.strategy_name=deepspeed_train {T}.{CONFIG}.zero_optimization.stage=2"
    )
    found = roll("FSDP", words)
    update = found.draft.tasks["actor.update"]
    assert (update.engine, update.zero) == ("deepspeed-hf-padded-to-limits", 2)
    assert found.settings.sheet.version == "0.2.1"


def test_a_strategy_that_refers_to_a_mapping_has_what_that_says(examples):
    """Older examples of ROLL name DeepSpeed's stage by `strategy_config: ${deepspeed_zero2}`."""
    (examples.parent / "config" / "zero2.yaml").write_text(
        "deepspeed_zero2: {bf16: {enabled: true}, zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}}\n"
    )
    text = FILE.replace("[../config", "[../config/zero2@_here_, ../config").replace(
        "megatron_train", "deepspeed_train"
    )
    text = text.replace(
        "{tensor_model_parallel_size: 1, use_distributed_optimizer: true, recompute_granularity: full}",
        "${deepspeed_zero2}",
    )
    (examples / "lake.yaml").write_text(text, encoding="utf-8")
    found = imported("roll", [str(examples / "lake.yaml")], OPTIONS)
    assert found.draft.tasks["actor.update"].zero == 2
    assert found.job.trainer("actor").host_optimizer == 1.0
    assert found.keys.unknown == ()


def test_a_mapping_of_its_own_whose_file_is_not_there_has_the_stage_of_its_name():
    words = (
        f"{T}.strategy_args.strategy_name=deepspeed_train {T}.{CONFIG}=${{deepspeed_zero2}}",
        f"{T}.strategy_args.strategy_name=deepspeed_train {T}.{CONFIG}=${{deepspeed_zero3_cpuoffload}}",
    )
    two, three = (roll("FSDP", each) for each in words)
    assert (two.draft.tasks["actor.update"].zero, two.job.trainer("actor").host_optimizer) == (
        2,
        0.0,
    )
    assert (three.draft.tasks["actor.update"].zero, three.job.trainer("actor").host_optimizer) == (
        3,
        1.0,
    )
    assert any("refers to ${deepspeed_zero2}" in each for each in two.notes)


def test_its_log_has_a_json_object_a_step(tmp_path):
    row = {
        "time/step_total": 100.0, "time/step_generate": 60.0, "time/step_train": 30.0, "time/old_log_probs": 4.0,
        "time/ref_log_probs_values": 3.0, "time/step_model_update": 2.0,
    }  # fmt: skip
    path = tmp_path / "roll.log"
    path.write_text("\n".join(json.dumps(row) for _ in range(3)), encoding="utf-8")
    log = read_log(path)
    assert (log.sheet.name, log.step_seconds, log.stage_seconds["update_actor"]) == (
        "roll",
        100.0,
        30.0,
    )


def test_stages_of_unlike_layers_are_named_and_not_interleaved():
    more = (
        f"pretrain=Qwen/Qwen3-235B-A22B {T}.{CONFIG}.tensor_model_parallel_size=1 {T}.{CONFIG}.pipeline_model_parallel_size=4 "
        f"{T}.{CONFIG}.virtual_pipeline_model_parallel_size=6 {T}.{CONFIG}.account_for_loss_in_pipeline_split=true"
    )
    found = roll("together", more)
    assert found.draft.tasks["actor.update"].chunks == 1
    left = {key.rpartition(".")[2] for key in found.keys.not_modelled}
    assert left == {"virtual_pipeline_model_parallel_size", "account_for_loss_in_pipeline_split"}


@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 8))
def test_pools_of_workers_apart_have_all_of_the_devices(trains, generates, reference):
    ends = (trains, trains + generates, trains + generates + reference)
    more = (
        f"{T}.device_mapping=list(range(0,{ends[0]})) {G}.device_mapping=list(range({ends[0]},{ends[1]})) "
        f"{R}.device_mapping=list(range({ends[1]},{ends[2]}))"
    )
    settings = settings_of("roll", [*BASES["together"], *more.split()], OPTIONS)
    placement = placement_of(settings, ("actor", "reference"))
    assert [pool.gpus for pool in placement.pools] == [trains, reference, generates]
    assert (placement.gpus, placement.apart, placement.doubts) == (ends[2], True, {})


def test_entropies_are_made_where_they_are_learnt_from():
    assert roll("together").job.trainer("actor").logits is None
    assert roll("together", "entropy_loss_coef=0.01").job.trainer("actor").logits == "entropy"
    apart = roll("FSDP", "entropy_loss_coef=0.01")
    assert apart.job.trainer("actor").logits == "whole-entropy"


@pytest.mark.parametrize("engine", ["fsdp2-hf-padded-to-limits", "deepspeed-hf-padded-to-limits"])
def test_trainers_beside_megatron_make_whole_logits_in_fp32(engine):
    """By roll/utils/functionals.py: 2 bytes of 16-bit logits beside log-softmax and two gradients of 4 each.

    A pass holds the copy, softmax and product of an entropy; one that is learnt from keeps copy and softmax for its
    gradient: 2 + 3 x 4 = 14 and 14 + 2 x 4 = 22 bytes a logit. Of 2 x 1,024 tokens of 151,936 entries:
    """
    ways = load_engine(engine).memory.logit_ways
    tokens, entries = 2 * 1_024, 151_936
    whole, learnt = ways["whole"], ways["whole-entropy"]
    assert whole.logits_bytes(tokens, entries, trains=True) == 311_164_928 * 14
    assert whole.logits_bytes(tokens, entries, trains=False) == 311_164_928 * 14
    assert learnt.logits_bytes(tokens, entries, trains=True) == 311_164_928 * 22


def test_a_file_of_a_program_of_ones_own_is_not_taken_for_its_own(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text(
        "defaults: [_self_]\nexperiment: {seed: 1}\nmodel: {name: x}\nreward: {type: r2}\ntraining: {grpo: {beta: 0.1}}\n"
    )
    assert framework_of([str(path)])[0] is None


def test_variables_of_processes_that_may_change_what_a_copy_does_are_named():
    named = roll("together", "system_envs.SKIP_OLD_LOG_PROBS=True system_envs.USE_MODELSCOPE=1")
    assert "system_envs.SKIP_OLD_LOG_PROBS" in named.keys.not_modelled
    assert "system_envs.USE_MODELSCOPE" in named.keys.without_influence
