"""TRL's configurations as jobs and plans: batches of completions, who generates, what wraps the model, where keys stand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.importing import ImportOptions, imported, settings_of
from rlplan.planner.configs.trl_family import Processes
from rlplan.planner.configs.writing.exporting import exported
from rlplan.planner.frameworks.trl.batches import batches_of
from rlplan.profiles.facts import load_facts
from tests.house.tree import ROOT

PUBLISHED = ROOT.parent / "shared" / "data" / "configs-new" / "trl"
OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=200, mean_prompt=100, environment={"HOME": "~"}
)
RECIPE = """
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
bf16: true
use_vllm: true
vllm_mode: {mode}
num_generations: 8
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
max_completion_length: 1024
"""
ZERO = """
compute_environment: LOCAL_MACHINE
deepspeed_config:
  offload_optimizer_device: {device}
  offload_param_device: none
  zero_stage: {stage}
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
GRPO = "accelerate launch --num_processes 8 -m trl.scripts.grpo --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct"
VLLM = f"{GRPO} --use_vllm --num_generations 8 --per_device_train_batch_size 4 --gradient_accumulation_steps 4"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder, where the tests are, with a recipe and files of accelerate."""
    monkeypatch.chdir(tmp_path)
    Path("colocate.yaml").write_text(RECIPE.format(mode="colocate"), encoding="utf-8")
    Path("server.yaml").write_text(RECIPE.format(mode="server"), encoding="utf-8")
    for stage in (2, 3):
        Path(f"zero{stage}.yaml").write_text(
            ZERO.format(stage=stage, device="none"), encoding="utf-8"
        )
    return tmp_path


def read(*words, version=None, **options):
    """Return what a file, or the words of a command line, amount to."""
    given = words if len(words) > 1 or Path(words[0]).is_file() else words[0].split()
    changed = ImportOptions(
        gpu=OPTIONS.gpu, mean_response=200, mean_prompt=100, environment={"HOME": "~"},
        version=version, **options,
    )  # fmt: skip
    return imported("trl", list(given), changed)


def layouts(found):
    """Return the plan's layouts by task."""
    return dict(found.draft.tasks)


def test_batches_count_completions_of_all_processes_until_an_update():
    work = read(VLLM).job.workload
    assert (work.prompts, work.samples_per_prompt, work.updates, work.epochs) == (16, 8, 1, 1)


@pytest.mark.parametrize(
    ("version", "prompts", "samples"),
    [("0.14", 128, 8), ("0.15", 16, 8), ("0.17", 16, 8), ("0.18", 16, 8), ("1.16", 16, 8)],
)
def test_the_first_version_counted_prompts(version, prompts, samples):
    work = read(VLLM, version=version).job.workload
    assert (work.prompts, work.samples_per_prompt) == (prompts, samples)


@pytest.mark.parametrize(
    ("more", "prompts", "updates", "epochs", "doubted"),
    [
        ("--steps_per_generation 8", 32, 2, 1, ()),
        ("--generation_batch_size 512", 64, 4, 1, ()),
        ("--num_iterations 3", 16, 1, 3, ()),
        ("--steps_per_generation 8 --num_iterations 2", 32, 2, 2, ()),
        ("--steps_per_generation 2", 16, 1, 1, ()),
        ("--steps_per_generation 2 --num_iterations 2", 8, 1, 2,
         ("steps_per_generation", "num_iterations")),
    ],
)  # fmt: skip
def test_what_is_generated_serves_several_updates(more, prompts, updates, epochs, doubted):
    found = read(f"{VLLM} {more}")
    work = found.job.workload
    assert (work.prompts, work.updates, work.epochs) == (prompts, updates, epochs)
    assert set(doubted) <= set(found.keys.changes_work)
    assert bool(doubted) == bool(found.keys.changes_work)


def test_generations_before_one_update_have_their_own_completions_running_alone():
    """32 completions a micro-batch of all ranks, four before an update: up to 0.16 each call returns with its longest."""
    new = read(f"{VLLM} --steps_per_generation 2")
    (guess,) = [each for each in new.guesses if "one after" in each]
    assert guess.startswith("2 generations of 64 completions")
    generate = new.draft.tasks["actor.generate"]
    assert generate.max_running * generate.dp == 64
    old = read(VLLM, version="0.16")
    assert not any("one after" in each for each in old.guesses)
    generate = old.draft.tasks["actor.generate"]
    assert (generate.engine, generate.max_running * generate.dp) == ("vllm-0.6-in-parts", 32)


def test_up_to_016_all_micro_batches_of_an_update_are_learnt_from_again():
    found = read(f"{VLLM} --num_iterations 2", version="0.16")
    work = found.job.workload
    assert (work.prompts, work.updates, work.epochs) == (16, 1, 2)
    assert not found.keys.changes_work


@given(
    batch=st.integers(1, 8), accumulation=st.integers(1, 12), steps=st.integers(1, 12),
    epochs=st.integers(1, 4), count=st.sampled_from([1, 2, 4, 7, 8]),
)  # fmt: skip
def test_as_many_completions_are_learnt_from_as_are_generated(
    batch, accumulation, steps, epochs, count
):
    """However generation and updates interlock, both begin anew together, and no completion is lost."""
    words = (
        f"{GRPO} --per_device_train_batch_size {batch} --gradient_accumulation_steps {accumulation} "
        f"--steps_per_generation {steps} --num_iterations {epochs}"
    )
    settings = settings_of("trl", words.split(), OPTIONS)
    found = batches_of(settings, Processes(count=count, nodes=1, engine_gpus=0, said=True))
    assert found.completions == found.parts * steps * batch * count
    if found.divides:
        assert found.updates * found.epochs * accumulation == found.parts * steps * epochs


def test_old_log_probabilities_are_computed_where_they_are_needed():
    def again(more="", version=None):
        return "actor.compute_log_prob" in layouts(read(f"{VLLM} {more}", version=version))

    assert again()  # vLLM's own are corrected for
    assert not again("--vllm_importance_sampling_correction false")
    assert not again(version="0.22")
    assert again("--num_iterations 2", version="0.22")
    assert again("--steps_per_generation 8", version="0.19")
    rloo = VLLM.replace("scripts.grpo", "scripts.rloo")
    assert "actor.compute_log_prob" in layouts(read(rloo, version="0.23"))


def test_without_vllm_transformers_generates_each_part_as_a_batch_of_its_own():
    found = read(f"{GRPO} --gradient_accumulation_steps 4")
    generate = layouts(found)["actor.generate"]
    assert (generate.engine, generate.max_running, generate.pool) == (
        "transformers-static",
        32,
        "train",
    )
    assert found.job.framework == "trl-transformers"
    words = GRPO.replace("-m trl", "--use_deepspeed --zero_stage 3 -m trl")
    words += " --ds3_gather_for_generation false"
    assert layouts(read(words))["actor.generate"].engine == "transformers-static-gathering"
    gathered = read(words.replace("--ds3_gather_for_generation false", ""))
    assert gathered.job.framework == "trl-transformers-sharded"


def test_a_colocated_engine_shares_the_trainers_gpus(folder):
    found = read("colocate.yaml", "--num_processes", "8", "--vllm_tensor_parallel_size", "2")
    generate = layouts(found)["actor.generate"]
    assert (generate.pool, generate.tp, generate.dp, generate.memory_fraction) == (
        "train",
        2,
        4,
        0.3,
    )
    assert found.job.engines.sleeps is False
    sleeping = read("colocate.yaml", "--num_processes", "8", "--vllm_enable_sleep_mode", "true")
    assert sleeping.job.engines.sleeps


def test_a_server_has_gpus_of_its_own(folder):
    words = ("--num_processes", "6", "--vllm_serve.tensor_parallel_size", "2")
    found = read("server.yaml", *words)
    assert {pool.name: pool.gpus for pool in found.draft.pools} == {"train": 6, "rollout": 2}
    assert [(each.gpus_per_node, each.nodes) for each in found.job.cluster] == [(8, 1)]
    larger = read("server.yaml", "--num_processes", "8", "--vllm_serve.data_parallel_size", "8")
    assert [(each.gpus_per_node, each.nodes) for each in larger.job.cluster] == [(8, 2)]


def test_who_generates_where_nothing_says_it_changed_with_versions():
    def pools(version):
        return {pool.name for pool in read(VLLM, version=version).draft.pools}

    assert pools("0.15") == {"train", "rollout"}  # a GPU beside the trainers'
    assert pools("0.18") == {"train", "rollout"}
    assert pools("1.0") == {"train"}


@pytest.mark.parametrize(
    ("words", "trainer", "zero"),
    [
        ("", "ddp-hf-padded-to-batch", 0),
        ("--use_deepspeed", "deepspeed-hf-padded-to-batch", 2),
        ("--use_deepspeed --zero_stage 3", "deepspeed-hf-padded-to-batch", 3),
        ("--use_fsdp", "fsdp2-hf-padded-to-batch", 3),
        ("--use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP", "fsdp2-hf-padded-to-batch", 2),
    ],
)
def test_what_wraps_the_model_is_what_accelerate_is_told(words, trainer, zero):
    update = layouts(read(GRPO.replace("-m trl", f"{words} -m trl")))["actor.update"]
    assert (update.engine, update.zero, update.dp) == (trainer, zero, 8)


def test_files_of_accelerate_and_deepspeed_count_below_flags(folder):
    by_file = layouts(read("colocate.yaml", "--config_file", "zero3.yaml"))["actor.update"]
    assert (by_file.zero, by_file.dp) == (3, 8)
    both = read("colocate.yaml", "--config_file", "zero3.yaml", "--num_processes", "4")
    assert layouts(both)["actor.update"].dp == 4
    stage = {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
             "train_batch_size": "auto"}  # fmt: skip
    Path("ds.json").write_text(json.dumps(stage, indent="\t"), encoding="utf-8")
    found = read("colocate.yaml", "--deepspeed", "ds.json", "--num_processes", "4")
    update = layouts(found)["actor.update"]
    assert (update.zero, update.offload) == (1, True)
    assert found.job.trainers["actor"].host_optimizer == 1.0
    assert not found.keys.unknown


def test_a_file_that_is_not_at_hand_is_taken_by_its_name_or_said_to_be_missing(folder):
    found = read(
        "colocate.yaml", "--config_file", "configs/deepspeed_zero2.yaml", "--num_processes", "4"
    )
    assert layouts(found)["actor.update"].zero == 2
    assert (
        "config_file=configs/deepspeed_zero2.yaml is not at hand, and taken by its name"
        in found.notes
    )
    other = read("colocate.yaml", "--config_file", "my.yaml", "--num_processes", "4")
    assert "config_file=my.yaml is not at hand: its values are not known" in other.notes
    assert "config_file" in other.keys.unevaluated


def test_a_file_of_accelerate_alone_is_refused_for_what_it_is(folder):
    with pytest.raises(FileError, match=r"zero2.yaml:2: compute_environment: is of accelerate's"):
        read("zero2.yaml", "--bf16", "true")


def test_without_a_number_of_processes_a_node_is_assumed_and_said(folder):
    def assumed(*words):
        found = read(*words)
        (guess,) = [each for each in found.guesses if "train" in each and "process" in each]
        return found.draft.pools[0].gpus, guess

    assert assumed("colocate.yaml", "--bf16", "true")[0] == 8
    gpus, guess = assumed("server.yaml", "--bf16", "true")
    assert (gpus, guess[:17]) == (7, "7 processes train")
    assert (
        assumed("server.yaml", "--num_generations", "14", "--gradient_accumulation_steps", "7")[0]
        == 7
    )


SCRIPT = """
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5
CUDA_VISIBLE_DEVICES=6,7 trl vllm-serve --model Qwen/Qwen2.5-1.5B-Instruct --tensor-parallel-size 2 &
LAUNCHER="ACCELERATE_LOG_LEVEL=info accelerate launch --config_file zero2.yaml --num_processes 6"
srun bash -c "$LAUNCHER {program} --config server.yaml $MORE"
"""


def test_a_script_says_the_server_the_launcher_and_the_recipe(folder):
    Path("run.sh").write_text(SCRIPT.format(program="src/open_r1/grpo.py"), encoding="utf-8")
    found = imported("trl", ["run.sh"], OPTIONS)
    assert {pool.name: pool.gpus for pool in found.draft.pools} == {"train": 6, "rollout": 2}
    assert layouts(found)["actor.generate"].tp == 2
    assert layouts(found)["actor.update"].zero == 2
    assert found.keys.unknown == ("$MORE",)


def test_open_r1_s_keys_say_its_version_of_trl(folder):
    Path("r1.yaml").write_text(
        RECIPE.format(mode="server") + "dataset_prompt_column: problem\n", encoding="utf-8"
    )
    found = read("r1.yaml", "--num_processes", "8")
    assert found.settings.sheet.version == "0.18"
    assert found.job.hyperparameters.kl_coefficient == 0.04
    assert "reference" in found.job.models


def test_tools_and_environments_are_doubted(folder):
    text = 'GRPOTrainer("Qwen/Qwen3-8B", args=GRPOConfig(), tools=[add], environment_factory=Game)'
    Path("train.py").write_text(text, encoding="utf-8")
    found = read("train.py", "--num_processes", "8")
    assert set(found.keys.changes_work) == {"trainer.tools", "trainer.environment_factory"}
    assert found.run.work.turns is None


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--loss_type dr_grpo", "dr-grpo"),
        ("--loss_type cispo", "cispo"),
        ("--importance_sampling_level sequence --loss_type grpo", "gspo"),
        ("", "grpo"),
    ],
)
def test_losses_are_named_as_their_algorithms(words, found):
    assert read(f"{GRPO} {words}").job.algorithm == found


def test_rloo_has_its_own_defaults():
    found = read(VLLM.replace("scripts.grpo", "scripts.rloo").replace("--num_generations 8", ""))
    assert (found.job.algorithm, found.job.workload.samples_per_prompt) == ("rloo", 2)
    assert found.job.hyperparameters.kl_in == "reward"
    assert found.job.hyperparameters.kl_coefficient == 0.05


def test_an_adapter_s_reference_is_the_model_itself():
    found = read(f"{VLLM} --beta 0.01 --use_peft --lora_r 8")
    assert set(found.job.models) == {"actor"}
    assert layouts(found)["reference.compute_log_prob"].pool == "train"


def test_a_misspelt_key_is_answered_with_the_nearest():
    (unknown,) = read(f"{GRPO} --num_generatons 4").unknown()
    assert unknown == "num_generatons=4 (the command line); did you mean num_generations?"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--num_generations 3", r"num_generations: does not divide the 64 completions"),
        ("--use_vllm --vllm_mode remote", r"vllm_mode: is not known.*colocate, server"),
        (
            "--use_vllm --vllm_tensor_parallel_size 3",
            r"vllm_tensor_parallel_size: the sizes take 3 GPUs",
        ),
        ("--gradient_accumulation_steps 0", "gradient_accumulation_steps: is no possible count"),
        ("--per_device_train_batch_size 0", "per_device_train_batch_size: is no possible count"),
        ("--num_machines 3", "num_processes: does not divide over 3 machines"),
        ("--max_completion_length null", "max_completion_length: leaves responses without a limit"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(words, problem):
    with pytest.raises(FileError, match=problem):
        read(f"{GRPO} {words}")


# What breaks a rule, by the rule's name: words, version.
BREAKS = {
    "one-size-of-generation-is-given": ("--steps_per_generation 4 --generation_batch_size 128", None),
    "generation-batches-are-whole": ("--generation_batch_size 100", None),
    "groups-fill-what-is-generated": ("--num_generations 24", None),
    "groups-have-samples": ("--num_generations 1", None),
    "evaluation-has-whole-groups": ("--eval_strategy steps --per_device_eval_batch_size 3 --num_generations_eval 5", None),
    "engines-divide-the-processes": ("--vllm_tensor_parallel_size 3", None),
    "an-engine-has-the-next-gpu": ("--vllm_device auto", "0.15"),
    "processes-have-gpus": ("--gpu_ids 0,1,2,3", None),
    "a-reference-follows-only-where-there-is-one": ("--sync_ref_model true", None),
    "completions-are-logged-before-they-are-sent": ("--log_completions_hub_repo me/logs", None),
    "batches-are-not-sought": ("--auto_find_batch_size true", None),
    "sequences-are-not-cut": ("--parallelism_config_cp_size 2", None),
    "ligers-loss-has-what-is-asked": ("--use_liger_kernel true --top_entropy_quantile 0.2", None),
    "every-reward-has-a-weight": ("--reward_funcs a b --reward_weights 1.0 0.5 0.5", None),
    "corrections-have-a-range": ("--vllm_importance_sampling_clip_min 4.0", None),
    "vespo-corrects-token-by-token": ("--loss_type vespo", None),
    "engines-take-no-8-bits": ("--load_in_8bit true", None),
    "one-format-is-mixed": ("--bf16 true --fp16 true", None),
    "sleeping-engines-get-the-weights": ("--vllm_enable_sleep_mode true", "1.9"),
    "sequences-fit-the-engine": ("--vllm_max_model_length 512 --max_completion_length 1024", None),
    "sequences-fit-the-model": ("--max_completion_length 40000", None),
}  # fmt: skip


def broken(words, version=None):
    """Return the names of the rules that words break."""
    settings = settings_of(
        "trl", words.split(), ImportOptions(gpu="h100-80gb-sxm", version=version)
    )
    return {rule.name for rule in rules_of("trl") if rule.broken(settings)}


def test_each_rule_has_a_configuration_that_breaks_it():
    assert set(BREAKS) == {rule.name for rule in rules_of("trl")}


@pytest.mark.parametrize("name", BREAKS)
def test_rules_are_found_broken(name):
    words, version = BREAKS[name]
    assert name in broken(f"{VLLM} {words}", version)


def test_a_configuration_that_runs_breaks_none_and_older_versions_lack_some():
    assert not broken(VLLM)
    assert "sleeping-engines-get-the-weights" not in broken(
        f"{VLLM} --vllm_enable_sleep_mode true", "1.16"
    )
    assert "sleeping-engines-get-the-weights" not in broken(
        f"{VLLM} --vllm_enable_sleep_mode true", "0.26"
    )
    assert "one-size-of-generation-is-given" not in broken(
        f"{VLLM} --steps_per_generation 4 --generation_batch_size 128", "0.17"
    )


def test_checking_says_what_stops_and_what_only_goes_wrong():
    stopped = check_config("trl", f"{VLLM} --num_generations 24".split(), OPTIONS)
    assert not stopped.will_run
    warned = check_config("trl", f"{VLLM} --vllm_enable_sleep_mode true".split(), OPTIONS_1_9)
    assert warned.will_run
    assert [each.rule for each in warned.findings] == ["sleeping-engines-get-the-weights"]


OPTIONS_1_9 = ImportOptions(
    gpu="h100-80gb-sxm",
    mean_response=200,
    mean_prompt=100,
    environment={"HOME": "~"},
    version="1.9",
)


def test_better_settings_keep_the_batch():
    """A smaller micro-batch comes with more of them: a step that does less is no faster one."""
    words = VLLM.replace("-m trl", "--use_deepspeed -m trl")
    for better in check_config("trl", words.split(), OPTIONS).better:
        if "per_device_train_batch_size" in better.words:
            assert "gradient_accumulation_steps" in better.words
        again = imported("trl", [*words.split(), *better.arguments], OPTIONS)
        assert again.job.workload.sequences == 128


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_an_exported_plan_is_the_same_again(folder, mode):
    serve = (
        ""
        if mode == "colocate"
        else "--vllm_mode server --vllm_serve.data_parallel_size 2 --vllm_serve.max_model_len 3000"
    )
    words = VLLM.replace("-m trl", "--use_deepspeed --zero_stage 3 -m trl")
    found = read(f"{words} {serve} --vllm_enable_sleep_mode true", version="1.16")
    facts = load_facts(found.resolved)
    plan = complete(found.draft, found.resolved, facts, "plan")
    Path("again.sh").write_text(exported(plan, "trl").text, encoding="utf-8")
    again = imported("trl", ["again.sh"], OPTIONS)
    assert again.draft == found.draft
    assert not again.keys.unknown
    assert again.job.workload.sequences == found.job.workload.sequences


def test_trl_has_all_parts():
    assert "trl" in frameworks_with("steps", "sync", "log", "keys", "reading", "writing", "rules")


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the frameworks' examples are not here")
def test_published_configurations_are_answered():
    recipe = PUBLISHED / "recipes__Qwen2.5-1.5B-Instruct__grpo__config_demo.yaml"
    found = imported("trl", [str(recipe), "--num_processes", "7"], OPTIONS)
    keys = found.keys
    assert (keys.unknown, keys.changes_work, keys.not_modelled) == ((), {}, {})
    assert (found.job.workload.prompts, found.job.workload.samples_per_prompt) == (28, 16)
    for stage in (2, 3):
        config = PUBLISHED / f"recipes__accelerate_configs__zero{stage}.yaml"
        with pytest.raises(FileError, match="says how processes start and not what they train"):
            imported("trl", [str(config)], OPTIONS)
        both = imported("trl", [str(recipe), "--config_file", str(config)], OPTIONS)
        assert both.draft.tasks["actor.update"].zero == stage


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the frameworks' examples are not here")
def test_open_r1_s_slurm_script_trains_on_all_nodes_but_the_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = (PUBLISHED / "slurm__train.slurm").read_text(encoding="utf-8")
    names = {
        "slurm/train.slurm": script,
        "recipes/Qwen2.5-1.5B-Instruct/grpo/config_demo.yaml": (
            PUBLISHED / "recipes__Qwen2.5-1.5B-Instruct__grpo__config_demo.yaml"
        ).read_text(encoding="utf-8"),
        "recipes/accelerate_configs/zero2.yaml": (
            PUBLISHED / "recipes__accelerate_configs__zero2.yaml"
        ).read_text(encoding="utf-8"),
    }
    for name, text in names.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    words = "--model Qwen2.5-1.5B-Instruct --task grpo --config demo --accelerator zero2 --dp 4 --tp 2".split()

    def started(nodes):
        options = ImportOptions(
            gpu="h100-80gb-sxm", mean_response=200, environment={"SLURM_NNODES": f"{nodes}"}
        )
        return imported("trl", ["slurm/train.slurm", *words], options)

    found = started(3)
    assert {pool.name: pool.gpus for pool in found.draft.pools} == {"train": 16, "rollout": 8}
    assert [(each.gpus_per_node, each.nodes) for each in found.job.cluster] == [(8, 3)]
    generate = found.draft.tasks["actor.generate"]
    assert (generate.tp, generate.dp, found.draft.tasks["actor.update"].zero) == (2, 4, 2)
    with pytest.raises(FileError, match="num_machines: is no possible count"):
        started(1)


def test_steps_of_a_training_are_counted_in_iterations():
    """TRL counts optimizer steps, of which an iteration may have several."""
    checked = check_config(
        "trl", f"{VLLM} --steps_per_generation 8 --max_steps 100".split(), OPTIONS
    )
    assert checked.steps == 50


def test_a_launcher_s_accumulation_is_not_the_trainer_s():
    """accelerate's flag of that name goes to its environment; the trainer has its own, 1 unless it is given."""
    words = GRPO.replace("-m trl", "--gradient_accumulation_steps 4 -m trl")
    assert read(words).job.workload.sequences == read(GRPO).job.workload.sequences == 64


@pytest.mark.parametrize(
    ("kind", "nearest"),
    [("GOLD", "GKD"), ("Distillation", "GKD"), ("MiniLLM", "top_tokens: all")],
)
def test_distillation_by_other_loops_is_refused_with_the_nearest_that_is_read(
    folder, kind, nearest
):
    """Flags that GRPO has too make no GRPO of it."""
    Path("distil.py").write_text(
        f"args = {kind}Config(lmbda=0.5)\n{kind}Trainer(model='a', teacher_model='b', args=args)\n",
        encoding="utf-8",
    )
    Path("run.sh").write_text(
        "accelerate launch distil.py --use_vllm --max_completion_length 64 --num_generations 4\n",
        encoding="utf-8",
    )
    for words in (["distil.py"], ["run.sh"]):
        with pytest.raises(FileError, match=rf"distil\.py: distils (by|from).*{nearest}"):
            imported("trl", words, OPTIONS)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("trl sft --config a.yaml", "trains on texts"),
        ("accelerate launch src/open_r1/sft.py --config a.yaml", "trains on texts"),
        ("trl vllm-serve --model Qwen/Qwen3-8B", "only serves generation"),
        ("python async_grpo.py --config a.yaml", "trains by AsyncGRPO"),
    ],
)
def test_what_is_no_training_with_rl_of_trl_s_is_refused_for_what_it_is(folder, words, problem):
    Path("run.sh").write_text(f"{words}\n", encoding="utf-8")
    with pytest.raises(FileError, match=problem):
        imported("trl", ["run.sh"], OPTIONS)


@pytest.mark.parametrize(
    ("version", "batch", "accumulation", "prompts", "micro"),
    [
        ("0.24", 1, 4, 4, 8),  # 1 is no multiple of 8: four micro-batches of 8
        ("0.24", 16, 1, 2, 16),
        ("0.25", 1, 8, 1, 1),  # eight of 1 are a prompt's completions
        ("0.25", 1, 4, 4, 8),
    ],
)
def test_unsloth_raises_micro_batches_to_a_prompt_s_completions(
    folder, version, batch, accumulation, prompts, micro
):
    Path("own.py").write_text(
        "model, tokenizer = FastLanguageModel.from_pretrained('unsloth/Qwen2.5-0.5B')\n"
        f"args = GRPOConfig('o', per_device_train_batch_size={batch}, num_generations=8,\n"
        f"  gradient_accumulation_steps={accumulation}, max_completion_length=512)\n"
        "GRPOTrainer(model, args=args)\n",
        encoding="utf-8",
    )
    found = imported("trl", ["own.py"], replace(OPTIONS, version=version))
    assert (found.job.workload.prompts, found.job.workload.samples_per_prompt) == (prompts, 8)
    assert found.run.trainers["actor"].micro_batch == micro
    raised = any(
        "to which Unsloth raises per_device_train_batch_size" in each for each in found.notes
    )
    assert raised == (micro != batch)


def test_keys_in_a_section_of_a_file_of_ones_own_are_not_taken_for_the_defaults(tmp_path):
    own = tmp_path / "grpo_en.yaml"
    own.write_text("condition: en\ngrpo:\n  num_generations: 6\n  max_completion_length: 3584\n")
    with pytest.raises(FileError, match="stands in a section of its own"):
        imported("trl", [str(own)], replace(OPTIONS, model="Qwen/Qwen2.5-7B-Instruct"))
    own.write_text(
        "model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nnum_generations: 6\ngrpo:\n  num_generations: 8\n  use_vllm: true\n"
    )
    assert imported("trl", [str(own)], OPTIONS).job.workload.samples_per_prompt == 6
