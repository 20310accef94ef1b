"""SkyRL's configurations: old and new layout of its options, versions, modes, what shares GPUs, and its log."""

import json
from dataclasses import replace

import pytest

from rlplan.errors import FileError
from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.environments import GivenEnvironments
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.importing import imported, settings_of
from rlplan.planner.measured.logs import read_log
from rlplan.profiles.frameworks import DATA_PARTS
from rlplan.trainers import TrainerOptions
from rlplan_cli.config_options import framework_of
from tests.house.tree import ROOT
from tests.planner.configs.test_keys_of_skyrl import BASES, OPTIONS

PUBLISHED = ROOT.parent / "shared" / "data" / "configs-new" / "skyrl"
NEW = """
uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base \\
  trainer.policy.model.path=Qwen/Qwen2.5-7B-Instruct trainer.placement.policy_num_gpus_per_node=8 \\
  trainer.placement.ref_num_gpus_per_node=8 generator.inference_engine.num_engines=4 \\
  generator.inference_engine.tensor_parallel_size=2 generator.inference_engine.enforce_eager=true \\
  generator.n_samples_per_prompt=4 $@
"""
OLD = (
    NEW.replace("skyrl.train.entrypoints", "skyrl_train.entrypoints")
    .replace("inference_engine.num_engines", "num_inference_engines")
    .replace("inference_engine.tensor_parallel_size", "inference_engine_tensor_parallel_size")
    .replace("inference_engine.enforce_eager", "enforce_eager")
)


def skyrl(base, *more, options=OPTIONS):
    return imported("skyrl", [*BASES[base], *more], options)


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_it_has_every_part():
    assert "skyrl" in frameworks_with(*DATA_PARTS, "reading", "writing", "rules")


@pytest.mark.parametrize(
    ("number", "marked", "wanted", "engine"),
    [
        ("0.1.0", "", "train-0.1", "vllm-0.8"),
        ("0.3.1", "", "train-0.3", "vllm-0.11-eager"),
        ("0.3.1", "off_policy_correction: {}", "train-0.4", "vllm-0.11-eager"),
    ],
)
def test_a_checkout_of_skyrl_train_says_its_version(tmp_path, number, marked, wanted, engine):
    project = f'[project]\nname = "skyrl-train"\nversion = "{number}"\n'
    written(tmp_path, "pyproject.toml", project)
    (tmp_path / "skyrl_train" / "config").mkdir(parents=True)
    written(tmp_path / "skyrl_train" / "config", "ppo_base_config.yaml", marked)
    script = written(tmp_path, "run.sh", OLD.replace("generator.enforce_eager=true", ""))
    found = imported("skyrl", [script], OPTIONS)
    assert (found.settings.sheet.version, found.job.engines.generate) == (wanted, engine)


def test_a_program_in_its_place_shares_gpus_as_that_says_and_is_doubted(tmp_path):
    more = (
        "trainer.placement.colocate_all=false trainer.override_entrypoint=arctic_rl.entrypoint "
        "trainer.arctic_rl.colocate={}"
    )
    for word, pools in (("true", 1), ("false", 2)):
        text = NEW.replace("$@", more.format(word))
        found = imported("skyrl", [written(tmp_path, "run.sh", text)], OPTIONS)
        assert len(found.run.pools) == pools
        assert any("override_entrypoint" in each for each in found.doubts())


def test_both_layouts_of_its_options_are_read(tmp_path):
    new = imported("skyrl", [written(tmp_path, "run.sh", NEW)], OPTIONS)
    old = imported("skyrl", [written(tmp_path, "old.sh", OLD)], OPTIONS)
    assert (new.keys.unknown, old.keys.unknown) == ((), ())
    generate = new.draft.tasks["actor.generate"]
    assert (generate.tp, generate.dp, generate.engine) == (2, 4, "vllm-0.15-eager")
    assert old.draft.tasks["actor.generate"] == replace(generate, engine="vllm-0.11-eager")
    assert (new.settings.sheet.version, old.settings.sheet.version) == ("0.3.1", "train-0.4")
    assert "is a start of versions up to train-0.4" in old.settings.version_reason or (
        "is a key of versions up to" in old.settings.version_reason
    )


@pytest.mark.parametrize(
    ("number", "framework"),
    [
        ("train-0.4", "skyrl-megatron-0.0"),
        ("0.1", "skyrl-megatron-0.2"),
        ("0.2", "skyrl-megatron-0.2"),
        ("0.3", "skyrl-megatron"),
    ],
)
def test_versions_that_pad_logits_before_the_loss_have_a_sheet_of_their_own(number, framework):
    found = imported("skyrl", BASES["Megatron"], replace(OPTIONS, version=number))
    assert found.job.framework == framework


def test_defaults_are_of_the_version_that_is_asked_for(tmp_path):
    script = written(
        tmp_path, "old.sh", OLD.replace("trainer.placement.ref_num_gpus_per_node=8", "")
    )
    options = replace(OPTIONS, version="train-0.3")
    found = imported("skyrl", [script, "trainer.placement.ref_num_gpus_per_node=8"], options)
    assert found.settings.sheet.version == "train-0.3"
    engines = "generator.inference_engine.num_engines=2"  # of four GPUs each, as they were then
    megatron = imported("skyrl", [*BASES["Megatron"], engines], options)
    assert megatron.draft.tasks["actor.update"].recompute == "none"
    assert skyrl("Megatron").draft.tasks["actor.update"].recompute == "full"


def test_it_is_told_by_its_words(tmp_path):
    assert framework_of([written(tmp_path, "run.sh", NEW)])[0] == "skyrl"
    assert framework_of(BASES["apart"])[0] == "skyrl"


def test_a_program_of_another_name_is_taken_for_its_start(tmp_path):
    other = NEW.replace(
        "-m skyrl.train.entrypoints.main_base", "python examples/train/mine/entry.py"
    )
    found = imported("skyrl", [written(tmp_path, "run.sh", other)], OPTIONS)
    assert any(
        note.startswith("examples/train/mine/entry.py is taken as SkyRL's") for note in found.notes
    )


def test_a_program_of_another_name_has_to_name_the_model(tmp_path):
    script = tmp_path / "run.sh"
    words = "trainer.placement.policy_num_gpus_per_node=8 generator.num_inference_engines=8 trainer.train_batch_size=64"
    script.write_text(
        f"python3 -m hpc.launch --model_path Qwen/Qwen3-8B -S {words.replace(' ', ' -S ')}\n"
    )
    with pytest.raises(FileError, match=r"trainer\.policy\.model\.path: is not given.*--model"):
        imported("skyrl", [str(script)], OPTIONS)
    found = imported("skyrl", [str(script)], replace(OPTIONS, model="Qwen/Qwen3-8B"))
    assert found.job.models["actor"] == "qwen3-8b"


@pytest.mark.parametrize(
    ("more", "mode"),
    [("", "sync"), ("trainer.fully_async.max_staleness_steps=2", "async")],
)
def test_a_program_of_another_name_runs_without_an_end_where_its_keys_say_so(tmp_path, more, mode):
    script = tmp_path / "run.sh"
    placed = "trainer.placement.policy_num_gpus_per_node=4 trainer.placement.colocate_all=false trainer.strategy=fsdp2"
    sizes = "trainer.policy.model.path=Qwen/Qwen3-8B generator.num_inference_engines=4 trainer.train_batch_size=64"
    script.write_text(
        f"uv run -m src.train {placed} {sizes} trainer.policy_mini_batch_size=64 {more}\n"
    )
    found = imported("skyrl", [str(script)], OPTIONS)
    assert found.draft.mode == mode
    assert any("taken to run without an end" in note for note in found.notes) == (mode == "async")


def test_episodes_of_a_harness_are_limited_by_what_engine_and_losses_take(tmp_path):
    script = tmp_path / "run.sh"
    sizes = "trainer.policy.model.path=Qwen/Qwen3-8B generator.inference_engine.num_engines=1 trainer.train_batch_size=64"
    limit = "generator.inference_engine.engine_init_kwargs.max_model_len=32768 trainer.algorithm.max_seq_len=24000"
    script.write_text(
        f"uv run -m recipe.main_harbor {sizes} {limit} trainer.policy_mini_batch_size=64\n"
    )
    found = imported("skyrl", [str(script)], replace(OPTIONS, mean_response=20000))
    assert found.job.workload.max_total_tokens == 24000
    assert any("no key limits prompts and responses" in note for note in found.notes)
    script.write_text(f"{script.read_text().strip()} trainer.max_prompt_length=1024\n")
    with pytest.raises(FileError, match="--mean-response"):
        imported("skyrl", [str(script)], replace(OPTIONS, mean_response=20000))


def test_workers_that_hold_more_than_all_cores_run_as_many_as_fit():
    given = GivenEnvironments(turns=2.0, observation_tokens=50.0, tool_seconds=1.0)
    small = "trainer.placement.policy_num_gpus_per_node=1 generator.inference_engine.num_engines=1 generator.max_turns=4"
    words = ["-m", "skyrl.train.entrypoints.main_base", *small.split()]
    found = imported("skyrl", words, replace(OPTIONS, environments=given))
    assert found.job.environments[0].workers is None
    assert any("32 workers hold more than the nodes'" in note for note in found.notes)


def test_a_script_is_found_from_the_root_of_its_repository(tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "scripts").mkdir()
    task = tmp_path / "tasks" / "grpo.yaml"
    task.write_text("resources: {accelerators: H100:8}\nrun: |\n  bash scripts/run.sh\n")
    start = "python -m skyrl.train.entrypoints.main_base trainer.placement.policy_num_gpus_per_node=$SKYPILOT_NUM_GPUS_PER_NODE"
    more = "generator.inference_engine.num_engines=8 trainer.train_batch_size=512"
    (tmp_path / "scripts" / "run.sh").write_text(f"{start} {more}\n")
    found = imported("skyrl", [str(task)], OPTIONS)
    assert ([pool.gpus for pool in found.draft.pools], found.job.workload.prompts) == ([8], 512)


def test_turns_that_outgrow_the_model_are_refused_by_what_limits_them(tmp_path):
    turns = "generator.max_turns=9 generator.max_input_length=60000 generator.sampling_params.max_generate_length=2048"
    rope = "trainer.rope_scaling.factor=2.0 trainer.rope_scaling.original_max_position_embeddings=32768"
    path = written(tmp_path, "run.sh", NEW)
    with pytest.raises(FileError, match=r"generator\.max_input_length: .*62048 tokens together"):
        imported("skyrl", [path, *turns.split()], OPTIONS)
    scaled = imported("skyrl", [path, *turns.split(), *rope.split()], OPTIONS)
    assert scaled.job.models["actor"].max_positions == 65536


def test_flash_rls_formats_are_named(tmp_path):
    start = NEW.replace(
        "skyrl.train.entrypoints.main_base", "examples.train.flash_rl.main_dapo_flashrl"
    )
    found = imported("skyrl", [written(tmp_path, "run.sh", start)], OPTIONS)
    assert any("weights of eight bits" in note for note in found.notes)


@pytest.mark.parametrize(
    ("base", "more", "mode", "staleness", "in_flight"),
    [
        ("apart", (), "sync", None, None),
        ("without an end", (), "async", 4.0, "keep"),
        ("without an end", ("trainer.fully_async.max_staleness_steps=1",), "async", 1.0, "keep"),
        ("without an end", ("trainer.fully_async.clear_kv_cache_on_weight_sync=true",), "async", 4.0, "recompute"),
    ],
)  # fmt: skip
def test_modes_have_their_bound_of_staleness(base, more, mode, staleness, in_flight):
    draft = skyrl(base, *more).draft
    assert (draft.mode, draft.staleness, draft.in_flight) == (mode, staleness, in_flight)


def test_a_queue_of_one_batch_is_one_step_off():
    words = ["-m", "examples.train.async.main_async", *BASES["apart"][2:]]
    draft = imported("skyrl", words, OPTIONS).draft
    assert (draft.mode, draft.staleness) == ("one-step-off", 1.0)


def test_pools_are_those_that_it_places():
    pools = {each.name: (each.gpus, each.roles) for each in skyrl("apart").draft.pools}
    assert pools == {
        "train": (8, ("actor",)),
        "reference": (8, ("reference",)),
        "rollout": (8, ("actor",)),
    }
    beside = skyrl("apart", "trainer.placement.colocate_policy_ref=true").draft
    assert [each.roles for each in beside.pools] == [("actor", "reference"), ("actor",)]
    assert beside.tasks["reference.compute_log_prob"].offload
    (together,) = skyrl("a critic").draft.pools
    assert together.roles == ("actor", "reference", "critic")


def test_states_are_of_the_formats_that_it_loads():
    assert skyrl("together").job.trainer("actor") == TrainerOptions()
    assert skyrl("together").job.trainer("reference") == TrainerOptions(weights="bf16")
    stays = skyrl("together", "trainer.policy.optimizer_config.offload_after_step=false")
    assert stays.job.trainer("actor").offloads == ("weights", "gradients")
    kept = skyrl("together", "trainer.policy.fsdp_config.cpu_offload=true")
    assert kept.job.trainer("actor") == TrainerOptions(host_states=True)
    assert not kept.draft.tasks["actor.update"].offload


def test_the_policys_pass_is_left_out_where_only_sampled_log_probs_are_read():
    assert skyrl("without an end").job.old_log_prob == "engine"
    corrected = skyrl(
        "without an end", "trainer.algorithm.off_policy_correction.tis_ratio_type=token"
    )
    assert corrected.job.old_log_prob is None


def test_an_adapters_reference_is_a_model_of_its_own():
    adapter = skyrl("an adapter").job.adapter("actor")
    assert (adapter.rank, adapter.sync, adapter.shares_reference) == (32, "adapter", False)
    assert skyrl("Megatron's adapter").job.adapter("actor").sync == "merged"


def test_a_critic_has_an_adapter_of_its_own_rank():
    words = ("trainer.algorithm.advantage_estimator=gae", "trainer.critic.model.path=Qwen/Qwen3-8B")
    learns = skyrl("an adapter", *words, "trainer.critic.model.lora.rank=8")
    assert learns.job.adapter("critic").rank == 8
    assert skyrl("an adapter", *words).job.adapter("critic") is None


def test_turns_are_limited_by_what_they_read_and_one_response():
    work = skyrl("turns").job.workload
    assert work.max_total_tokens == 8192 + 4096


def test_padded_rows_are_as_long_as_the_longest_of_the_batch():
    padded = skyrl("together", "trainer.remove_microbatch_padding=false")
    assert padded.draft.tasks["actor.update"].engine == "fsdp2-hf-padded-to-batch"


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="public files are not here")
@pytest.mark.parametrize(
    ("name", "mode", "gpus"),
    [
        (
            "examples__train__algorithms__dapo__run_dapo_qwen3_30b_a3b_megatron_aime.sh",
            "sync",
            [16],
        ),
        ("examples__train__fully_async__fully_async_run_gsm8k.sh", "async", [2, 2]),
        ("examples__train__search__run_search.sh", "sync", [8]),
    ],
)
def test_published_scripts_are_read_whole(name, mode, gpus):
    found = imported("skyrl", [str(PUBLISHED / name)], OPTIONS)
    assert found.keys.unknown == ()
    assert (found.draft.mode, [pool.gpus for pool in found.draft.pools]) == (mode, gpus)


FIGURES = {
    "trainer/global_step": 7.0, "generate/avg_num_tokens": 251.5, "generate/max_num_tokens": 1024.0,
    "timing/step": 61.4, "timing/generate": 30.5, "timing/fwd_logprobs_values_reward": 9.25,
    "timing/train_critic_and_policy": 18.0, "timing/policy_train": 17.5, "timing/sync_weights": 2.5,
    "timing/convert_to_training_input": 0.5,
}  # fmt: skip
STAGES = {"generation": 30.5, "log_probs": 9.25, "update_actor": 17.5, "weight_sync": 2.5}


def console(steps):
    """Return what its console prints, figures and seconds of a step apart, as a run without an end does."""
    lines = ["2026-08-21 10:00:00.000 | INFO | main: {'trainer.seed': 42}"]
    for number, figures in enumerate(steps, 1):
        step = {**figures, "trainer/global_step": float(number)}
        parts = [{key: each for key, each in step.items() if key.startswith("timing/") is of_time}
                 for of_time in (False, True)]  # fmt: skip
        for part in parts:
            lines.append(
                f"(main pid=7) 2026-08-21 | INFO     | skyrl.tracking:log:189 - Step {number}: "
            )
            rows = [f" '{key}': '{each:.4f}'," for key, each in part.items()]
            rows[0], rows[-1] = "{" + rows[0].lstrip(), rows[-1].rstrip(",") + "}"
            lines += [f"(main pid=7) {row}" for row in rows]
        lines.append("(worker pid=8) {'timing/generate': '99.0'}")
    return "\n".join(lines) + "\n"


def test_its_console_is_read(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text(console([FIGURES] * 4), encoding="utf-8")
    log = read_log(path)
    assert (log.sheet.name, log.steps, log.step_seconds) == ("skyrl", 3, 61.4)
    assert dict(log.stage_seconds) == STAGES
    assert (log.response_tokens, log.longest_response) == (251.5, 1024.0)
    assert dict(log.other_seconds) == {"convert_to_training_input": 0.5}


def test_what_a_tracker_has_is_read(tmp_path):
    path = tmp_path / "history.jsonl"
    rows = ({**FIGURES, "trainer/global_step": number} for number in range(4))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    assert dict(read_log(path).stage_seconds) == STAGES


@pytest.mark.parametrize(("norm", "read"), [("2", 2.0), ("0.5", 0.5), ("0", 1.0)])
def test_a_norm_of_gradients_may_be_a_whole_number(norm, read):
    found = skyrl("together", f"trainer.policy.optimizer_config.max_grad_norm={norm}")
    assert found.job.hyperparameters.max_gradient_norm == read


def test_engines_that_do_not_fill_shared_gpus_are_refused_in_the_words_of_the_rule():
    words = [*BASES["together"], "generator.inference_engine.num_engines=4"]
    (rule,) = (each for each in rules_of("skyrl") if each.name == "engines-fill-the-policys-gpus")
    (broken,) = rule.broken(settings_of("skyrl", words, OPTIONS))
    with pytest.raises(FileError, match=broken.problem):
        imported("skyrl", words, OPTIONS)


@pytest.mark.parametrize(("word", "meant"), [("fp8", "fp8"), ("awq", None)])
def test_weights_of_an_engine_that_casts_them_are_read_and_others_named(word, meant):
    key = "generator.inference_engine.engine_init_kwargs.quantization"
    found = imported("skyrl", [*BASES["Megatron"], f"{key}={word}"], OPTIONS)
    assert found.job.rollout_precision == meant
    assert (key in found.keys.not_modelled) == (meant is None)


@pytest.mark.parametrize(
    ("version", "updates", "said"),
    [
        ("train-0.3", 20, "each takes 2: 20 updates"),
        ("0.2", 16, "filled up to 24"),
        ("0.1", 16, None),
    ],
)
def test_ranks_that_do_not_divide_an_update_lose_samples_stop_or_are_filled_up(
    version, updates, said
):
    """Workers of train-0.3 take 20 // 8 samples each; distributed/dispatch.py asserts that it divides from train-0.4 to 0.1, and pads since."""
    more = (
        "trainer.train_batch_size=64 trainer.policy_mini_batch_size=4 generator.n_samples_per_prompt=5 "
        "trainer.micro_train_batch_size_per_gpu=1 generator.inference_engine.tensor_parallel_size=1"
    ).split()
    options = replace(OPTIONS, version=version)
    found = skyrl("together", *more, options=options)
    assert found.job.workload.updates == updates
    if said:
        assert any(said in each for each in found.doubts())
    else:
        settings = settings_of("skyrl", [*BASES["together"], *more], options)
        rules = {rule.name for rule in rules_of("skyrl") if rule.broken(settings)}
        assert "updates-are-shared-out-evenly" in rules
        assert not any("filled up" in each for each in found.doubts())


def test_engines_serve_a_checkpoint_of_four_bits_beside_the_trainers_own():
    more = ("trainer.policy.model.path=casperhansen/Qwen3.6-35B-A3B-INT4-RTN",)
    trained = "trainer.policy.model.fake_int4_qat.bf16_base_path=Qwen/Qwen3.6-35B-A3B"
    served = skyrl("together", *more, trained)
    assert served.job.rollout_precision == "int4"
    assert skyrl("together", *more).job.rollout_precision is None


def test_timers_that_its_console_prints_one_by_one_are_a_step(tmp_path):
    pid = "(skyrl_entrypoint pid=8455) 2026-03-26 15:07:10.550 | INFO     | skyrl.train.trainer:train:227 - "
    names = {
        "generate": 78.47,
        "fwd_logprobs_values_reward": 377.36,
        "policy_train": 866.49,
        "train_critic_and_policy": 866.51,
    }
    ends = {"sync_weights": 7.04, "step": 1331.13}
    lines = [
        f"{pid}Finished: '{name}', time cost: {number}s" for name, number in (names | ends).items()
    ]
    lines.insert(2, f"{pid}avg_final_rewards: 0.13, avg_response_length: 273.68")
    # An error ends the timers around it too.
    broken = [
        f"{pid}Finished: '{name}', time cost: 1.00s"
        for name in ("generate", "policy_train", "step")
    ]
    log = tmp_path / "run.log"
    log.write_text("\n".join([*lines, *lines, *broken]), encoding="utf-8")
    steps = read_log(log)
    assert (steps.sheet.name, steps.steps) == ("skyrl", 1)
    assert steps.stage_seconds["update_actor"] == 866.49
    assert steps.response_tokens == 273.68
