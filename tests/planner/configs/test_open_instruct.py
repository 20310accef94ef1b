"""open-instruct's configurations: what launches them, learners and engines, packs, steps ahead, and its log."""

import json

import pytest

from rlplan.errors import FileError
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.measured.logs import read_log
from rlplan.profiles.frameworks import DATA_PARTS
from rlplan_cli.config_options import framework_of
from tests.planner.configs.test_keys_of_open_instruct import BASES, OPTIONS

SCRIPT = r"""
python mason.py \
    --cluster ai2/jupiter \
    --image "${BEAKER_IMAGE}" \
    --num_nodes 4 \
    --env RAY_CGRAPH_get_timeout=300 \
    --gpus 8 -- source configs/beaker_configs/ray_node_setup.sh \&\& python open_instruct/grpo_fast.py \
    --beta 0.0 --num_samples_per_prompt_rollout 8 --num_unique_prompts_rollout 64 --num_mini_batches 1 \
    --max_prompt_token_length 2048 --response_length 32768 --pack_length 35840 \
    --model_name_or_path allenai/Olmo-3-7B-Think-DPO --deepspeed_stage 3 --num_learners_per_node 8 8 \
    --vllm_num_engines 16 --vllm_tensor_parallel_size 1 --gradient_checkpointing --with_tracking
"""


def oi(base, more=""):
    return imported("open-instruct", [*BASES[base], *more.split()], OPTIONS)


def test_an_adapter_is_made_by_no_grpo_of_it_and_all_weights_are_trained():
    plain = check_config("open-instruct", BASES["learners"], OPTIONS)
    found = check_config("open-instruct", BASES["an adapter"], OPTIONS)
    assert found.imported.job.adapters is None
    assert found.forecast.memory == plain.forecast.memory
    assert any(note.startswith("use_peft has no effect") for note in found.imported.notes)


def test_it_has_every_part_but_an_export():
    assert "open-instruct" in frameworks_with(*DATA_PARTS, "reading", "rules")


def test_a_line_of_mason_launches_learners_and_engines(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT, encoding="utf-8")
    assert framework_of([str(path)])[0] == "open-instruct"
    found = imported("open-instruct", [str(path)], OPTIONS)
    assert found.keys.unknown == ()
    assert {each.name: each.gpus for each in found.draft.pools} == {"train": 16, "rollout": 16}
    (group,) = found.job.cluster
    assert (group.gpus_per_node, group.nodes) == (8, 4)
    work, update = found.job.workload, found.draft.tasks["actor.update"]
    assert (work.prompts, work.samples_per_prompt, work.updates) == (64, 8, 1)
    assert (update.zero, update.token_budget, update.recompute) == (3, 35840, "full")
    assert (found.draft.mode, found.draft.staleness, found.draft.in_flight) == (
        "async",
        8.0,
        "keep",
    )
    assert (
        "reference.compute_log_prob" in found.draft.tasks
    )  # whose weight is 0, and which is passed over


@pytest.mark.parametrize(
    ("more", "staleness", "in_flight"),
    [("", 8.0, "keep"), ("--async_steps 2 --inflight_updates false", 2.0, "drain")],
)
def test_steps_ahead_are_staleness(more, staleness, in_flight):
    draft = oi("learners", more).draft
    assert (draft.mode, draft.staleness, draft.in_flight) == ("async", staleness, in_flight)


def test_one_gpu_generates_and_trains_by_turns():
    found = oi("one GPU")
    (pool,) = found.draft.pools
    assert (pool.gpus, found.draft.mode, found.job.engines.sleeps) == (1, "sync", False)
    assert "single_gpu_mode" in found.keys.changes_work


def test_old_log_probs_are_passed_over_where_a_step_has_several_updates():
    assert oi("learners").job.old_log_prob == "engine"
    assert oi("updates").job.old_log_prob == "trainer"
    sampled = "--use_vllm_logprobs true --use_rho_correction false"
    assert oi("updates", sampled).job.old_log_prob == "engine"


@pytest.mark.parametrize(
    ("base", "more", "algorithm"),
    [
        ("learners", "", "grpo"),
        ("without a reference", "", "grpo"),
        ("groups again", "", "dapo"),
        ("without a reference", "--loss_fn cispo", "cispo"),
    ],
)
def test_algorithms_are_told_by_their_words(base, more, algorithm):
    found = oi(base, more)
    assert found.job.algorithm == algorithm
    assert not any("is taken for it" in note for note in found.notes)
    assert (found.job.dynamic_sampling is not None) == (algorithm == "dapo")


def test_sequences_are_cut_over_learners():
    update = oi("learners", "--sequence_parallel_size 4").draft.tasks["actor.update"]
    assert (update.cp, update.dp) == (4, 2)


def test_olmo_core_shards_over_a_part_of_the_learners():
    found = oi("OLMo-core", "--fsdp_shard_degree 4 --activation_memory_budget 0.5")
    update = found.draft.tasks["actor.update"]
    assert (update.engine, update.shard_ranks, update.recompute) == ("fsdp2-compiled", 4, "full")
    assert oi("OLMo-core", "--fsdp_num_replicas 2").draft.tasks["actor.update"].shard_ranks == 4


def test_turns_with_tools_are_named():
    found = oi("tools")
    assert (found.run.work.turns, found.keys.changes_work["tools"]) == (5, "turns with tools")


def test_turns_in_environments_of_the_data_and_a_value_model_are_named_and_earlier_names_known():
    played = oi("learners", "--max_steps 20")
    assert played.run.work.turns == 20
    assert "max_steps" in played.keys.changes_work
    assert oi("learners").run.work.turns == 1
    valued = oi("learners", "--use_value_model --vf_clip_range 0.2")
    assert "use_value_model" in valued.keys.changes_work
    earlier = oi("learners", "--active_fill_completions --no_resample_solve_rate 0.9")
    assert not {*valued.keys.unknown, *earlier.keys.unknown}
    assert {"active_sampling", "no_resampling_pass_rate"} <= earlier.keys.changes_work.keys()


def test_no_learner_and_no_engine_are_refused():
    with pytest.raises(FileError, match="leaves no GPU to training"):
        oi("learners", "--num_learners_per_node 0")
    with pytest.raises(FileError, match="leaves no GPU to generation"):
        oi("learners", "--vllm_num_engines 0")


def test_other_trainings_are_refused_by_name():
    words = "python open_instruct/finetune.py --model_name_or_path Qwen/Qwen2.5-7B".split()
    with pytest.raises(FileError, match="trains on texts"):
        imported("open-instruct", words, OPTIONS)


def test_a_launcher_of_an_earlier_loop_is_refused_as_that_itself(tmp_path):
    script = tmp_path / "run.sh"
    earlier = SCRIPT.replace(
        "open_instruct/grpo_fast.py", "open_instruct/grpo_vllm_thread_ray_gtrl.py"
    )
    script.write_text(earlier, encoding="utf-8")
    with pytest.raises(FileError, match="a GRPO of earlier versions"):
        imported("open-instruct", [str(script)], OPTIONS)


def test_its_log_has_a_step_and_its_training(tmp_path):
    row = {"time/total": 100.0, "time/training": 70.0, "time/group_generation_max": 90.0}
    path = tmp_path / "history.jsonl"
    path.write_text("\n".join(json.dumps(row) for _ in range(3)), encoding="utf-8")
    log = read_log(path)
    assert (log.sheet.name, log.step_seconds) == ("open-instruct", 100.0)
    assert log.stage_seconds == {"update_actor": 70.0}


@pytest.mark.parametrize(
    ("more", "project", "flow"),
    [
        ("", "", (8.0, "keep")),
        ("--truncated_importance_sampling_ratio_cap 2.0", "", (1.0, "drain")),
        ("", 'name = "open-instruct"\nversion = "0.1.0"\n', (1.0, "drain")),
        ("--async_steps 4 --inflight_updates", 'name = "open-instruct"\nversion = "0.1.0"\n', (4.0, "keep")),
    ],
)  # fmt: skip
def test_batches_ahead_are_as_many_as_the_version_has_by_itself(tmp_path, more, project, flow):
    (tmp_path / "pyproject.toml").write_text(f"[project]\n{project}", encoding="utf-8")
    command = " ".join(BASES["learners"])
    (tmp_path / "run.sh").write_text(f"{command} {more}\n", encoding="utf-8")
    draft = imported("open-instruct", [str(tmp_path / "run.sh")], OPTIONS).draft
    assert (draft.staleness, draft.in_flight) == flow


def test_nodes_have_the_gpus_that_the_script_tells_ray(tmp_path):
    script = tmp_path / "grpo.sbatch"
    command = (
        "python open_instruct/grpo_fast.py --num_samples_per_prompt_rollout 8 --num_unique_prompts_rollout 64 --pack_length 10240 "
        "--response_length 8192 --model_name_or_path Qwen/Qwen3-8B --deepspeed_stage 3 --num_learners_per_node 1 "
        "--vllm_num_engines 7"
    )
    script.write_text(f"ray start --head --num-gpus=4 --num-cpus=32\n{command}\n", encoding="utf-8")
    options = ImportOptions(gpu="gh200", mean_response=300, mean_prompt=100, environment={})
    (group,) = imported("open-instruct", [str(script)], options).job.cluster
    assert (group.gpus_per_node, group.nodes) == (4, 2)


def test_the_engine_is_the_one_that_its_checkout_pins(tmp_path):
    project = (
        '[project]\nname = "open-instruct"\nversion = "0.1.0"\ndependencies = ["vllm==0.11.0"]\n'
    )
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    (tmp_path / "run.sh").write_text(f"{' '.join(BASES['learners'])}\n", encoding="utf-8")
    draft = imported("open-instruct", [str(tmp_path / "run.sh")], OPTIONS).draft
    assert draft.tasks["actor.generate"].engine == "vllm-0.11"
    assert oi("learners").draft.tasks["actor.generate"].engine == "vllm-0.15"


def test_nodes_that_are_booked_beside_learners_and_engines_are_named():
    assert any(
        each.startswith("num_nodes=9 books") for each in oi("learners", "--num_nodes 9").notes
    )
    assert not any("num_nodes" in each for each in oi("learners", "--num_nodes 1").notes)


def test_a_validation_before_the_first_step_is_read():
    more = "--dataset_mixer_eval_list a 32 --local_eval_every 10 --eval_on_step_0 {}"
    assert oi("learners", more.format("True")).job.evaluation.before_first
    assert not oi("learners", more.format("False")).job.evaluation.before_first
