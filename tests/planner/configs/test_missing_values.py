"""Values that nothing at hand says: all are told at once, and the command that is proposed is answered."""

import shlex
from dataclasses import replace

import pytest

from rlplan.errors import FileError, MissingValueError, MissingValuesError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Role
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.reading.sheet import load_config_sheet

PROGRAM = """
import argparse
from trl import GRPOConfig, GRPOTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--length", type=int)
args = parser.parse_args()
config = GRPOConfig(
    "out", per_device_train_batch_size=batch(), num_generations=4, max_completion_length=args.length,
    gradient_accumulation_steps=3)
trainer = GRPOTrainer(args.model, args=config)
"""
OPTIONS = (
    "--set", "per_device_train_batch_size=8", "--set", "max_completion_length=512", "--model", "Qwen/Qwen2.5-7B-Instruct",
    "--mean-response", "256",
)  # fmt: skip


def of(tmp_path, text, framework="trl", **options):
    """Return what a program is imported as."""
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    given = ImportOptions(gpu="h100-80gb-sxm", environment={}, **options)
    return imported(framework, [str(path)], given)


def said(options):
    """Return the options of an import that words of a command line say."""
    pairs = list(zip(options[::2], options[1::2], strict=True))
    values = dict(word.split("=", 1) for flag, word in pairs if flag == "--set")
    by_flag = dict(pairs)
    return {
        "model": by_flag.get("--model"),
        "values": FrozenDict(values),
        "mean_response": float(by_flag.get("--mean-response", 128)),
    }


def test_all_missing_values_are_told_at_once_with_options_that_are_answered(tmp_path):
    with pytest.raises(MissingValuesError) as caught:
        of(tmp_path, PROGRAM)
    error = caught.value
    assert {*zip(error.options[::2], error.options[1::2], strict=True)} == {
        *zip(OPTIONS[::2], OPTIONS[1::2], strict=True)
    }
    assert f"{shlex.join(error.options)}, with your values" in str(error)
    assert "train.py:9: cannot be evaluated: line 9: batch(): is what a call returns" in str(error)
    found = of(tmp_path, PROGRAM, **said(error.options))
    work = found.job.workload
    assert (work.prompts, work.samples_per_prompt) == (6, 4)


def test_one_that_is_missing_alone_keeps_its_own_words(tmp_path):
    text = PROGRAM.replace("batch()", "4").replace("args.length", "512")
    with pytest.raises(MissingValueError, match=r"trainer\.model: cannot be evaluated") as caught:
        of(tmp_path, text, mean_response=128.0)
    assert caught.value.options == ("--model", "Qwen/Qwen2.5-7B-Instruct")
    assert of(tmp_path, text, **said(caught.value.options)).run.models["actor"].startswith("Qwen")


def test_an_example_goes_with_what_is_said(tmp_path):
    text = PROGRAM.replace("batch()", "1").replace("num_generations=4", "num_generations=args.n")
    text = text.replace("args.length", "512").replace("args.model, args", "'Qwen/Qwen3-8B', args")
    with pytest.raises(MissingValueError) as caught:
        of(tmp_path, text, mean_response=128.0, values=FrozenDict({"num_processes": "2"}))
    assert caught.value.options == ("--set", "num_generations=2")  # of 6 completions, not 8 or 4
    values = FrozenDict({"num_processes": "2", "num_generations": "2"})
    assert of(tmp_path, text, mean_response=128.0, values=values).job.workload.prompts == 3


def test_a_model_that_nobody_knows_is_one_more_missing_value(tmp_path):
    text = PROGRAM.replace("args.model, args", "'outputs/sft', args").replace("batch()", "4")
    with pytest.raises(MissingValuesError) as caught:
        of(tmp_path, text, mean_response=128.0)
    assert caught.value.options == (
        "--set", "max_completion_length=512", "--model", "Qwen/Qwen2.5-7B-Instruct",
    )  # fmt: skip
    of(tmp_path, text, **said(caught.value.options))


def test_an_example_of_a_length_leaves_room_for_a_response(tmp_path):
    text = PROGRAM.replace("batch()", "4").replace("args.length", "512")
    text = text.replace("args.model, args", "'Qwen/Qwen3-8B', args")
    text = text.replace("steps=3", "steps=3, use_vllm=True, vllm_max_model_length=args.length")
    with pytest.raises(MissingValueError) as caught:
        of(tmp_path, text, mean_response=128.0)
    assert caught.value.options == ("--set", "vllm_max_model_length=4096")
    found = of(tmp_path, text, **said(caught.value.options))
    assert found.job.workload.max_total_tokens == 4096


def test_an_option_that_says_several_values_is_asked_for_first(tmp_path):
    text = PROGRAM.replace("batch()", "args.size").replace("=4", "=args.size")
    text = text.replace("args = parser", 'parser.add_argument("--size", type=int)\nargs = parser')
    with pytest.raises(MissingValuesError) as caught:
        of(tmp_path, text, mean_response=128.0)
    begins = "--size is not given, which says 2 values: put it behind the program, after --, as -- --size ..."
    assert begins in str(caught.value)
    assert caught.value.lead.startswith(begins)


def test_what_is_set_counts_before_what_the_program_says(tmp_path):
    text = (
        "from trl import *\nGRPOTrainer('Qwen/Qwen3-8B', args=GRPOConfig('o', num_generations=4))"
    )
    values = FrozenDict({"num_generations": "8", "num_processes": "4"})
    found = of(tmp_path, text, mean_response=128.0, values=values)
    assert (found.job.workload.samples_per_prompt, found.run.pools[0].gpus) == (8, 4)
    with pytest.raises(FileError, match=r"num_generation.*did you mean 'num_generations'"):
        of(tmp_path, text, mean_response=128.0, values=FrozenDict({"num_generation": "8"}))


TASK = """resources:
  accelerators: {accelerators}
num_nodes: 2
envs:
  MODEL: Qwen/Qwen3-8B
  SECRET:
setup: |
  pip install trl
run: |
  accelerate launch --num_processes $((SKYPILOT_NUM_GPUS_PER_NODE * SKYPILOT_NUM_NODES)) \\
    --num_machines $SKYPILOT_NUM_NODES -m trl.scripts.grpo --num_generations 8 \\
    --model_name_or_path $MODEL
"""


@pytest.mark.parametrize(
    "accelerators",
    [
        "H100:4",
        "{H100: 4}",
        "[H100:4, H200:4]",
        "null\n  any_of: [{accelerators: 'B200:4', cloud: lambda}, {accelerators: 'H200:4'}]",
    ],
)
def test_a_task_of_skypilot_is_the_script_that_it_runs(tmp_path, accelerators):
    path = tmp_path / "task.yaml"
    path.write_text(TASK.format(accelerators=accelerators), encoding="utf-8")
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=128.0, environment={})
    found = imported("trl", [str(path)], options)
    assert (found.run.pools[0].gpus, found.run.models["actor"]) == (8, "Qwen/Qwen3-8B")
    line = 11 + accelerators.count("\n")
    assert found.settings.flat["num_generations"].where == f"{path}:{line}"
    other = ImportOptions(
        gpu="h100-80gb-sxm", mean_response=128.0, environment={"MODEL": "Qwen/Qwen3-4B"}
    )
    assert imported("trl", [str(path)], other).run.models["actor"] == "Qwen/Qwen3-4B"


def test_machines_of_unlike_sizes_leave_a_task_of_skypilots_gpus_open(tmp_path):
    path = tmp_path / "task.yaml"
    path.write_text(TASK.format(accelerators="[H100:4, H200:8]"), encoding="utf-8")
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=128.0, environment={})
    with pytest.raises(FileError, match="num_processes: leaves no GPU to training"):
        imported("trl", [str(path)], options)


def test_a_setting_that_a_framework_has_no_key_for_is_not_given():
    sheet = load_config_sheet("slime")
    assert not Settings(sheet, {}, "run.sh").is_given("validation_first")


ZERO = (
    "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: {stage}\n"
)


def test_a_file_that_is_set_stands_in_the_place_of_the_one_before(tmp_path):
    for stage in (2, 3):
        path = tmp_path / f"stage{stage}.yaml"
        path.write_text(ZERO.format(stage=stage), encoding="utf-8")
    script = "accelerate launch --config_file stage3.yaml --num_processes 4 -m trl.scripts.grpo --model_name_or_path Qwen/Qwen3-8B"
    path = tmp_path / "run.sh"
    path.write_text(script, encoding="utf-8")
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=128.0, environment={})
    for said, stage in (({}, 3), ({"config_file": "stage2.yaml"}, 2)):
        given = replace(options, values=FrozenDict(said))
        found = imported("trl", [str(path)], given)
        assert (found.run.trainers["actor"].zero_stage, found.run.pools[0].gpus) == (stage, 4)


def test_a_preset_that_is_set_stands_in_the_place_of_the_one_before(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SWIFT, encoding="utf-8")
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=128.0, environment={})
    for word, stage in (("zero2", 2), ("zero1", 1)):
        given = replace(options, values=FrozenDict(deepspeed=word))
        assert imported("ms-swift", [str(path)], given).run.trainers["actor"].zero_stage == stage


SWIFT = (
    "NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --train_type full --deepspeed zero3 "
    "--num_generations 8 --per_device_train_batch_size 8"
)


def test_a_key_is_set_by_the_name_that_the_configuration_has(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SWIFT, encoding="utf-8")
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=128.0, environment={})
    assert imported("ms-swift", [str(path)], options).run.adapter is None
    for name in ("train_type", "tuner_type"):
        given = replace(options, values=FrozenDict({name: "lora"}))
        assert imported("ms-swift", [str(path)], given).run.adapter is not None


@pytest.mark.parametrize(
    ("framework", "key"), [("trl", "config"), ("verl", "defaults"), ("verl", "--config-name")]
)
def test_a_file_of_all_keys_cannot_be_set_behind_them(tmp_path, framework, key):
    path = tmp_path / "run.sh"
    path.write_text(STARTS[framework], encoding="utf-8")
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=128.0, environment={})
    imported(framework, [str(path)], options)
    with pytest.raises(FileError, match="names a file of keys, which are read before"):
        imported(framework, [str(path)], replace(options, values=FrozenDict({key: "x.yaml"})))


STARTS = {
    "trl": "trl grpo --model_name_or_path Qwen/Qwen3-8B",
    "verl": "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B trainer.n_gpus_per_node=8 "
    "algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 actor_rollout_ref.actor.use_dynamic_bsz=True",
}


VERL = """
python3 -m {start} algorithm.adv_estimator={estimator} trainer.n_gpus_per_node=8 trainer.nnodes={nodes} \\
  actor_rollout_ref.model.path={model} actor_rollout_ref.rollout.n=8 data.train_batch_size={batch} \\
  actor_rollout_ref.actor.ppo_mini_batch_size=64 data.max_response_length=4096 data.max_prompt_length={prompt} \\
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=131072 actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.use_kl_loss=True
"""
SAID = {
    "start": "verl.trainer.main_ppo", "estimator": "grpo", "nodes": 1, "model": "Qwen/Qwen3-8B", "batch": 256, "prompt": 1024,
}  # fmt: skip


def checked(tmp_path, mean=300.0, values=(), model=None, **said):
    """Return what is said of a script of verl's."""
    path = tmp_path / "run.sh"
    path.write_text(VERL.format(**{**SAID, **said}), encoding="utf-8")
    options = ImportOptions(
        gpu="h100-80gb-sxm",
        environment={},
        mean_response=mean,
        values=FrozenDict(values),
        model=model,
    )
    return check_config("verl", [str(path)], options)


def test_a_check_tells_models_and_means_beside_the_values_that_nothing_says(tmp_path):
    with pytest.raises(MissingValuesError) as caught:
        checked(tmp_path, mean=None, nodes="$NODES", model="/models/mine")
    assert caught.value.options == (
        "--set", "trainer.nnodes=1", "--model", "Qwen/Qwen2.5-7B-Instruct", "--mean-response", "256",
    )  # fmt: skip


def test_a_value_that_nothing_says_is_no_reason_for_a_run_to_stop(tmp_path):
    # A fork's own loop may take a batch that is smaller than an update: that alone stops nothing.
    fork = {"start": "my.main_ppo", "batch": 32}
    with pytest.raises(MissingValueError) as caught:
        checked(tmp_path, nodes="$NODES", **fork)
    assert caught.value.options == ("--set", "trainer.nnodes=1")
    # What stops whatever the value is still does.
    findings = checked(tmp_path, nodes="$NODES", batch=32).findings
    assert [each.rule for each in findings if each.stops] == ["batches-hold-a-mini-batch", "import"]


def test_an_estimator_of_ones_own_is_refused_with_one_that_would_be_taken(tmp_path):
    with pytest.raises(MissingValueError, match="is not known; found 'lead'") as caught:
        checked(tmp_path, estimator="lead")
    assert caught.value.options == ("--set", "algorithm.adv_estimator=grpo")
    values = [caught.value.options[1].split("=")]
    found = checked(tmp_path, estimator="lead", values=values).imported
    assert found.job.algorithm == "grpo"


def test_an_example_of_a_model_has_positions_for_the_longest_sequence(tmp_path):
    with pytest.raises(MissingValueError) as caught:
        checked(tmp_path, model="/models/mine", prompt=65536)
    assert caught.value.options == ("--model", "Qwen/Qwen3-4B-Instruct-2507")
    found = checked(tmp_path, model=caught.value.options[1], prompt=65536).imported
    assert found.job.models["actor"] == "qwen3-4b-2507"


def test_a_model_of_two_roles_is_told_for_both():
    words = (
        "-m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-8B --reward.model_name_or_path mine/RM "
        "--vllm.num_engines 8 --train.colocate_all"
    ).split()
    options = ImportOptions(gpu="h100-80gb-sxm", environment={}, mean_response=300.0)
    with pytest.raises(MissingValueError) as caught:
        imported("openrlhf", words, options)
    given = caught.value.options[1::2]
    assert given == ("critic=Qwen/Qwen2.5-7B-Instruct", "reward=Qwen/Qwen2.5-7B-Instruct")
    models: FrozenDict[Role, str] = FrozenDict(
        critic="Qwen/Qwen2.5-7B-Instruct", reward="Qwen/Qwen2.5-7B-Instruct"
    )
    found = imported("openrlhf", words, replace(options, models=models))
    assert found.job.models["reward"] == found.job.models["critic"] == "qwen2.5-7b"


def test_a_flag_with_nothing_behind_it_is_told_with_the_option_that_gives_its_number(tmp_path):
    text = (
        "ENGINES=\npython open_instruct/grpo_fast.py --model_name_or_path Qwen/Qwen3-4B --num_learners_per_node 2 "
        "--vllm_num_engines $ENGINES --vllm_tensor_parallel_size 1\n"
    )
    path = tmp_path / "run.sh"
    path.write_text(text, encoding="utf-8")
    given = ImportOptions(gpu="h100-80gb-sxm", environment={}, mean_response=100)
    with pytest.raises(MissingValueError, match="is given no number") as refused:
        imported("open-instruct", [str(path)], given)
    assert refused.value.options == ("--set", "vllm_num_engines=1")


def test_what_a_lost_backslash_keeps_from_a_command_is_said_where_it_is_missing(tmp_path):
    """As in scripts/run-kimi-k2-Instruct.sh of slime: the line before its arrays has no backslash."""
    script = tmp_path / "run.sh"
    script.write_text(
        "ROLLOUT=(--rollout-batch-size 8 --hf-checkpoint Qwen/Qwen3-4B)\n"
        "python3 slime/train.py --colocate --rollout-max-response-len 4096 \\\n"
        "   --update-weight-buffer-size 536870912\n"
        "   ${ROLLOUT[@]} --num-rollout 3\n"
    )
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={})
    with pytest.raises(FileError, match="hf-checkpoint") as caught:
        imported("slime", [str(script)], options)
    assert "6 words below the end of the command of line 2, at line 3, are no part of it" in str(
        caught.value
    )
