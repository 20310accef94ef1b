"""ms-swift's configurations: its two trainers, Ray, servers, batches that count completions, and its log."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.importing import imported, settings_of
from rlplan.planner.frameworks.ms_swift.batches import batches_of
from rlplan.planner.measured.logs import read_log
from rlplan.profiles.facts import load_facts
from rlplan.profiles.frameworks import DATA_PARTS
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.pool_memory import memory_moments
from rlplan_cli.config_options import framework_of
from tests.planner.configs.test_keys_of_ms_swift import BASES, OPTIONS

SCRIPT = """
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5 \\
NPROC_PER_NODE=6 \\
swift rlhf \\
    --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct --use_vllm true --vllm_mode server \\
    --vllm_server_host 127.0.0.1 --tuner_type full --torch_dtype bfloat16 --max_completion_length 2048 \\
    --per_device_train_batch_size 2 --gradient_accumulation_steps 2 --num_generations 8 --deepspeed zero2
"""
ROLLOUT = "CUDA_VISIBLE_DEVICES=6,7 swift rollout --model Qwen/Qwen2.5-7B-Instruct --vllm_data_parallel_size 2 &\n"
RAY = """
rlhf_type: grpo
model: Qwen/Qwen2.5-7B-Instruct
micro_batch_size: 2
global_batch_size: 16
num_generations: 8
steps_per_generation: 4
max_length: 4096
max_completion_length: 4096
padding_free: false
beta: 0
offload_model: true
offload_optimizer: true
sleep_level: 1
colocate_groups: [[train, rollout]]
train: {gpus: 4, tuner_type: lora, lora_rank: 16}
rollout: {gpus: 4, vllm_tensor_parallel_size: 2, vllm_gpu_memory_utilization: 0.4, vllm_max_model_len: 8000}
"""


def swift(base, more=""):
    return imported("ms-swift", [*BASES[base], *more.split()], OPTIONS)


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_scripts_of_3_12_train_what_they_say_by_the_name_that_it_had_then(tmp_path, tuner):
    script = SCRIPT.replace("--tuner_type full", f"--train_type {tuner} --num_infer_workers 1")
    found = imported("ms-swift", [written(tmp_path, "run.sh", script)], OPTIONS)
    assert (found.settings.sheet.version, found.keys.unknown) == ("3.12", ("num_infer_workers",))
    assert (found.job.adapters is None) == (tuner == "full")
    assert any("since train_type is usual up to 3.12" in note for note in found.notes)
    path = written(tmp_path, "run.yaml", f"{RAY.replace('train: {', 'x: {')}train_type: {tuner}\n")
    found = imported("ms-swift", [path], OPTIONS)
    assert (found.job.adapters is None) == (tuner == "full")


def test_what_a_server_plays_of_a_data_set_is_doubted():
    found = swift("a server", "--vllm_server_pass_dataset true")
    assert "vllm_server_pass_dataset" in found.keys.changes_work
    assert "vllm_server_pass_dataset" not in swift("a server").keys.changes_work


def test_checkpoints_come_as_often_as_megatron_scripts_of_3_12_say(tmp_path):
    older = BASES["Megatron"], "--train_type", "full", "--save_interval", "7"
    found = imported("ms-swift", [*older[0], *older[1:]], OPTIONS)
    assert found.job.checkpoints.every == 7


def test_it_has_every_part_but_an_export():
    assert "ms-swift" in frameworks_with(*DATA_PARTS, "reading", "rules")


def test_a_script_with_its_server(tmp_path):
    found = imported("ms-swift", [written(tmp_path, "run.sh", ROLLOUT + SCRIPT)], OPTIONS)
    pools = {each.name: (each.gpus, each.roles) for each in found.draft.pools}
    assert pools == {"train": (6, ("actor", "reference")), "rollout": (2, ("actor",))}
    work = found.job.workload
    assert (work.prompts, work.samples_per_prompt, work.updates) == (3, 8, 1)
    update = found.draft.tasks["actor.update"]
    assert (update.engine, update.zero, update.micro_batch) == ("deepspeed-hf-padded", 2, 2)
    assert (found.keys.unknown, found.job.old_log_prob) == ((), "trainer")
    assert not any("has one GPU" in guess for guess in found.guesses)


def test_a_server_that_no_command_starts_has_a_gpu_for_each_host(tmp_path):
    script = SCRIPT.replace("127.0.0.1", "10.0.0.1 10.0.0.2")
    found = imported("ms-swift", [written(tmp_path, "run.sh", script)], OPTIONS)
    assert found.draft.pools[-1].gpus == 2
    assert any("has one GPU" in guess for guess in found.guesses)


def test_rays_sections_are_roles(tmp_path):
    path = written(tmp_path, "ray.yaml", RAY)
    script = written(tmp_path, "run.sh", f"megatron rlhf --use_ray true --config {path}\n")
    for words in ([path], [script]):
        found = imported("ms-swift", words, OPTIONS)
        (pool,) = found.draft.pools
        assert (pool.gpus, found.keys.unknown) == (4, ())
        generate, update = found.draft.tasks["actor.generate"], found.draft.tasks["actor.update"]
        assert (generate.tp, generate.dp, generate.memory_fraction) == (2, 2, 0.4)
        assert (update.engine, update.offload) == ("megatron-core-2025-padded", True)
        assert (found.job.workload.prompts, found.job.workload.updates) == (8, 4)
        assert found.job.workload.max_total_tokens == 8000
        assert found.job.adapter("actor").rank == 16


def test_a_file_may_stand_first_with_its_variables(tmp_path):
    path = written(
        tmp_path, "run.yaml",
        "rlhf_type: grpo\nmodel: Qwen/Qwen3-8B\nnum_generations: 4\nper_device_train_batch_size: 4\nENV: {NPROC_PER_NODE: 8}\n",
    )  # fmt: skip
    found = imported("ms-swift", ["swift", "rlhf", path], OPTIONS)
    assert (found.draft.pools[0].gpus, found.job.workload.prompts) == (8, 8)


@pytest.mark.parametrize(
    ("more", "prompts", "updates"),
    [
        ("", 8, 1),
        ("--steps_per_generation 8", 32, 4),
        ("--generation_batch_size 128", 16, 2),
        ("--sequence_parallel_size 4", 8, 1),
        ("--steps_per_generation 1", 8, 1),
    ],
)
def test_batches_count_completions(more, prompts, updates):
    work = swift("together", more).job.workload
    assert (work.prompts, work.updates) == (prompts, updates)


def test_megatron_generates_whole_batches():
    work = swift("Megatron", "--steps_per_generation 4").job.workload
    assert (work.prompts, work.samples_per_prompt, work.updates) == (32, 8, 4)


def test_what_leaves_the_gpus_is_what_is_said():
    assert not swift("together").draft.tasks["actor.update"].offload
    weights = swift("together", "--offload_model true")
    assert weights.job.trainer("actor").offloads == ("weights", "gradients")
    assert weights.draft.tasks["reference.compute_log_prob"].offload
    states = swift("together", "--offload_optimizer true")
    assert states.job.trainer("actor").offloads == ("optimizer",)
    both = swift("together", "--offload_model true --offload_optimizer true")
    assert both.job.trainer("actor").offloads is None
    assert not swift("together", "--sleep_level 0").job.engines.sleeps
    host = swift("together", "--deepspeed zero3_offload").job.trainer("actor")
    assert (host.host_states, host.host_optimizer) == (True, 1.0)


@pytest.mark.parametrize(
    ("more", "frozen"),
    [
        ("--model Qwen/Qwen2.5-VL-7B-Instruct", True),  # arguments/tuner_args.py: freeze_vit is on
        ("--model Qwen/Qwen2.5-VL-7B-Instruct --freeze_vit false", False),
        ("--model Qwen/Qwen2.5-VL-7B-Instruct --tuner_type lora", False),  # an adapter learns alone
        ("--freeze_vit true", False),  # of a model that reads no images
    ],
)
def test_the_tower_of_images_does_not_learn_unless_it_is_said(more, frozen):
    assert swift("together", more).job.trainer("actor").freezes_tower == frozen


@pytest.mark.parametrize(
    ("more", "whole"),
    [
        ("--deepspeed zero3", True),
        ("--deepspeed zero3_offload", True),
        ("--deepspeed zero3 --tuner_type lora", True),
        ("--deepspeed zero3 --move_model_batches 8", False),
        ("--deepspeed zero2", False),
        ("--fsdp fsdp2 --deepspeed null", False),
    ],
)
def test_zero_3_has_all_weights_whole_on_a_gpu_while_they_go_to_the_engine(more, whole):
    found = swift("together", more)
    grouped = moved_bytes(swift("together", "--deepspeed zero3 --move_model_batches 8"))
    weights = 2 * placed(found).tasks["actor.update"].parameters
    assert (moved_bytes(found) > grouped + 0.8 * weights) == whole
    at_once = found.job.weight_sync.shared_pool == "ms-swift-colocate-at-once"
    assert at_once == whole


@pytest.mark.parametrize(
    ("more", "version", "whole"),
    [
        ("", "3.9", False),
        ("", "3.12", True),
        ("--tuner_type lora", "3.9", True),
        ("--move_model_batches 8 --tuner_type lora", "3.9", False),
    ],
)
def test_up_to_3_9_what_is_trained_whole_is_gathered_parameter_by_parameter(more, version, whole):
    words = [*BASES["together"], "--deepspeed", "zero3", *more.split()]
    found = imported("ms-swift", words, replace(OPTIONS, version=version))
    assert (found.job.weight_sync.shared_pool == "ms-swift-colocate-at-once") == whole


@pytest.mark.parametrize(
    ("more", "version", "source"),
    [
        ("--steps_per_generation 2", "3.10.3", "engine"),
        ("--steps_per_generation 4", "3.10.3", "trainer"),  # two updates of two micro-batches each
        ("--steps_per_generation 2 --num_iterations 2", "3.9", "trainer"),
        ("--steps_per_generation 2", "3.11", "trainer"),
        ("--steps_per_generation 2", "4.5", "trainer"),
    ],
)
def test_up_to_3_10_old_log_probabilities_are_those_of_the_update_where_it_is_one(
    tmp_path, more, version, source
):
    (tmp_path / "requirements.txt").write_text(f"ms-swift=={version}\n", encoding="utf-8")
    flags = f"--gradient_accumulation_steps 2 {more}"
    script = written(tmp_path, "run.sh", f"swift rlhf {' '.join(BASES['together'])} {flags}\n")
    assert imported("ms-swift", [script], OPTIONS).job.old_log_prob == source


def test_that_3_12_3_gathers_groups_of_layers_together_is_said(tmp_path):
    def told(more, version):
        words = [*BASES["together"], "--deepspeed", "zero3", *more.split()]
        found = imported("ms-swift", words, replace(OPTIONS, version=version))
        return any("issue 7986" in each for each in found.notes)

    assert told("--move_model_batches 8", "3.12")
    assert not told("--move_model_batches 8", "4.5")
    assert not told("", "3.12")


def placed(found):
    """Return an imported configuration's plan with its tasks in their places."""
    facts = load_facts(found.resolved)
    return PlacedPlan(complete(found.draft, found.resolved, facts, "there"), facts)


def moved_bytes(found):
    """Return what weights on their way take of a GPU of the only pool."""
    there = placed(found)
    (pool,) = [each for each in there.plan.pools if not each.is_host]
    terms = memory_moments(there, pool)["transition"]
    return terms["actor weights for generation"] + terms.get("weights under way", 0)


def test_a_check_says_what_groups_of_layers_take_where_all_weights_at_once_are_too_much():
    lora = (
        "--deepspeed zero3 --tuner_type lora --model Qwen/Qwen2.5-72B-Instruct "
        "--vllm_tensor_parallel_size 8 --vllm_gpu_memory_utilization 0.5"
    )
    told = [
        [
            each
            for each in check_config(
                "ms-swift", [*BASES["together"], *more.split()], OPTIONS
            ).remarks
            if "groups" in each
        ]
        for more in (lora, f"{lora} --move_model_batches 16", "--deepspeed zero3")
    ]
    assert [len(each) for each in told] == [1, 0, 0]
    assert "(move_model_batches) it takes at most" in told[0][0]


def test_a_server_gets_buckets_though_its_trainers_gather_all_weights():
    there = placed(swift("a server", "--deepspeed zero3"))
    sends, gets = (
        memory_moments(there, there.plan.pool(name))["transition"] for name in ("train", "rollout")
    )
    weights = 2 * there.tasks["actor.update"].parameters
    assert gets["weights under way"] < weights / 2 < weights <= sends["weights under way"]


def test_adapters_are_merged_unless_the_engine_takes_them():
    adapter = swift("an adapter").job.adapter("actor")
    assert (adapter.rank, adapter.alpha, adapter.sync) == (8, 32, "merged")
    apart = swift("an adapter", "--vllm_enable_lora true").job.adapter("actor")
    assert apart.sync == "adapter"
    dropped = swift("an adapter", "--vllm_enable_lora true --sleep_level 2")
    assert dropped.job.adapter("actor").sync == "merged"


@pytest.mark.parametrize(
    ("more", "algorithm", "kl"),
    [
        ("", "grpo", "loss"),
        ("--importance_sampling_level sequence --beta 0", "gspo", "none"),
        ("--advantage_estimator rloo", "rloo", "reward"),
        ("--advantage_estimator reinforce_plus_plus --kl_in_reward false", "reinforce-plus-plus-baseline", "loss"),
        ("--loss_type dr_grpo --beta 0", "dr-grpo", "none"),
        ("--loss_type cispo --beta 0", "cispo", "none"),
    ],
)  # fmt: skip
def test_algorithms_are_told_by_their_words(more, algorithm, kl):
    job = swift("together", more).job
    assert (job.algorithm, job.hyperparameters.kl_in) == (algorithm, kl)


def test_asynchronous_generation_is_a_batch_ahead():
    draft = swift("a server", "--async_generate true").draft
    assert (draft.mode, draft.staleness) == ("one-step-off", 1.0)


def test_engines_run_what_is_generated_together():
    assert swift("together").draft.tasks["actor.generate"].max_running == 8
    assert (
        swift("together", "--vllm_tensor_parallel_size 4").draft.tasks["actor.generate"].max_running
        == 32
    )
    assert swift("together", "--vllm_max_num_seqs 9").draft.tasks["actor.generate"].max_running == 9
    assert swift("Ray").draft.tasks["actor.generate"].max_running == 256


@pytest.mark.parametrize("kind", ["dpo", "gkd", "ppo", "rm"])
def test_what_trains_otherwise_is_refused_by_name(kind):
    with pytest.raises(FileError, match="rlplan reads ms-swift's GRPO"):
        swift("together", f"--rlhf_type {kind}")


def test_texts_are_refused_by_name(tmp_path):
    script = written(tmp_path, "sft.sh", "swift sft --model Qwen/Qwen3-8B --dataset x\n")
    with pytest.raises(FileError, match="trains on texts"):
        imported("ms-swift", [script], OPTIONS)


def test_teachers_turns_and_expert_texts_are_named():
    assert (
        "passes of a teacher" in swift("together", "--teacher_model x").keys.changes_work.values()
    )
    assert "multi_turn_scheduler" in swift("turns").keys.changes_work
    chord = swift("together", "--chord_sft_dataset x")
    assert "chord_sft_dataset" in chord.keys.changes_work


def test_turns_are_limited_by_the_engine():
    work = swift("turns").job.workload
    assert work.max_total_tokens == 8192


def test_it_is_told_by_its_words(tmp_path):
    assert framework_of([written(tmp_path, "run.sh", SCRIPT)])[0] == "ms-swift"


def test_its_log_says_seconds_of_all_steps_so_far(tmp_path):
    speeds = ((1, 40.0), (2, 30.0), (4, 25.0), (6, 24.0))
    lines = [
        f"{{'loss': 0.0, 'completions/mean_length': 300.0, 'global_step/max_steps': '{step}/9', 'train_speed(s/it)': {speed}}}"
        for step, speed in speeds
    ]
    log = read_log(tmp_path / written(tmp_path, "log.txt", "\n".join(lines)), warmup=1)
    assert (log.sheet.name, log.step_seconds, log.response_tokens) == ("ms-swift", 20.0, 300.0)
    rows = [
        {"global_step/max_steps": f"{step}/9", "train_speed(s/it)": speed, "loss": 0.0}
        for step, speed in speeds
    ]
    text = "\n".join(json.dumps(row) for row in rows)
    assert (
        read_log(tmp_path / written(tmp_path, "logging.jsonl", text), warmup=1).step_seconds == 20
    )


SIZES = st.integers(1, 6)


@given(batch=SIZES, accumulation=SIZES, steps=SIZES, epochs=st.integers(1, 3), processes=SIZES)
def test_optimizer_steps_learn_from_all_that_is_generated(
    batch, accumulation, steps, epochs, processes
):
    words = (
        f"swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --per_device_train_batch_size {batch} "
        f"--gradient_accumulation_steps {accumulation} --steps_per_generation {steps} --num_iterations {epochs}"
    )
    found = batches_of(settings_of("ms-swift", words.split(), OPTIONS), processes)
    assert found.completions == found.parts * steps * batch * processes
    if found.divides:  # an optimizer step takes so many micro-batches of every process, whatever is generated together
        assert found.completions * found.epochs == (
            found.updates * found.epochs * accumulation * batch * processes
        )


def test_servers_that_other_scripts_start_may_have_room_and_need_no_address(tmp_path):
    large = (
        SCRIPT.replace("2.5-7B", "2.5-72B").replace("zero2", "zero3").replace("size 2 ", "size 1 ")
    )
    large = large.replace("steps 2", "steps 4 --move_model_batches 16")
    script = large.replace("127.0.0.1", "$SERVER_OF_ANOTHER_SCRIPT").replace(" full ", " lora ")
    file = written(tmp_path, "run.sh", script)
    options = replace(OPTIONS, gpu="h200")
    checked = check_config("ms-swift", [file], options)
    assert checked.imported.run.assumed_pools == ("rollout",)
    assert checked.verdict == "may not fit"
    assert any("nothing at hand says" in each for each in checked.remarks)
    started = written(tmp_path, "all.sh", ROLLOUT + script)
    assert check_config("ms-swift", [started], options).verdict == "does not fit"
