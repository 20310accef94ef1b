"""`rlplan export --patch` of slime's and miles' starts: launchers in Python, and engines that get GPUs of their own."""

from dataclasses import replace

import pytest

from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import imported
from rlplan.planner.configs.proposing.changes import argument
from rlplan.planner.configs.writing.exporting import exported
from rlplan.planner.configs.writing.patching import patched
from rlplan.planner.configs.writing.texts import texts_with
from rlplan.profiles.facts import load_facts
from tests.planner.configs.test_importing import OPENRLHF
from tests.planner.configs.test_python_launchers import LAUNCHER, OPTIONS

FLAGS = """python3 slime/train.py --actor-num-nodes 1 --actor-num-gpus-per-node {gpus} \\
    {pools} \\
    --hf-checkpoint Qwen/Qwen3-4B --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 4096 \\
    --global-batch-size 256 --rollout-num-gpus-per-engine 2 --tensor-model-parallel-size 2 \\
    --optimizer-cpu-offload --use-dynamic-batch-size --max-tokens-per-gpu 9216
"""
TOGETHER = FLAGS.format(gpus=8, pools="--colocate")
APART = FLAGS.format(gpus=4, pools="--rollout-num-gpus 4 --num-gpus-per-node 8")


def found_in(path, text, framework):
    path.write_text(text)
    return imported(framework, [str(path)], OPTIONS)


def plan_of(draft, job):
    return complete(draft, job, load_facts(job), "plan")


def with_fields(plan, task, **fields):
    return replace(plan, tasks={**plan.tasks, task: replace(plan.tasks[task], **fields)})


@pytest.mark.parametrize("budget", ["9216", "{9216 if args.hardware == 'H100' else 4096}"])
def test_a_launcher_in_python_is_changed_in_the_strings_of_its_command(tmp_path, budget):
    text = LAUNCHER.replace(
        'perf_args = "--use-dynamic-batch-size --max-tokens-per-gpu 9216 "',
        f'perf_args = f"--use-dynamic-batch-size --max-tokens-per-gpu {budget} "',
    )
    path = tmp_path / "run.py"
    found = found_in(path, text, "miles")
    plan = plan_of(found.draft, found.resolved)
    # another value in its place, and a flag that the program does not have
    plan = with_fields(plan, "actor.update", token_budget=16384)
    for task in ("actor.compute_log_prob", "reference.compute_log_prob"):
        plan = with_fields(plan, task, token_budget=16384)
    plan = with_fields(plan, "actor.generate", memory_fraction=0.7)
    new = patched(path, "miles", plan, exported(plan, "miles").decided)
    assert "--max-tokens-per-gpu 16384 " in new.text
    assert "--sglang-mem-fraction-static 0.7" in new.text
    assert {each.key for each in new.changes} == {
        "max-tokens-per-gpu",
        "sglang-mem-fraction-static",
    }
    again = found_in(path, new.text, "miles")
    assert plan_of(again.draft, again.resolved).tasks == plan.tasks


def test_engines_get_gpus_of_their_own_beside_a_trainer_whose_optimizer_is_on_the_host(tmp_path):
    job = found_in(tmp_path / "run.sh", TOGETHER, "slime").resolved
    draft = found_in(tmp_path / "apart.sh", APART, "slime").draft
    stays = {
        name: replace(each, offload=False) if name == "actor.update" else each
        for name, each in draft.tasks.items()
    }
    plan = plan_of(replace(draft, tasks=stays), job)
    new = patched(tmp_path / "run.sh", "slime", plan, exported(plan, "slime").decided)
    told = {each.key: each.after for each in new.changes}
    assert (told["colocate"], told["rollout-num-gpus"]) == (None, 4)
    assert "--colocate" not in new.text


def test_what_meant_nothing_beside_colocate_is_told_where_that_goes(tmp_path):
    """Beside --colocate it makes no difference on how many GPUs engines are said to be: without it they would stay on eight."""
    text = TOGETHER.replace("--colocate", "--colocate --rollout-num-gpus 8")
    text = text.replace("--optimizer-cpu-offload", "")
    apart = APART.replace("--optimizer-cpu-offload", "")
    job = found_in(tmp_path / "run.sh", text, "miles").resolved
    plan = plan_of(found_in(tmp_path / "apart.sh", apart, "miles").draft, job)
    new = patched(tmp_path / "run.sh", "miles", plan, exported(plan, "miles").decided)
    told = {each.key: each.after for each in new.changes}
    assert (told["colocate"], told["rollout-num-gpus"]) == (None, 4)
    again = found_in(tmp_path / "new.sh", new.text, "miles").draft
    assert [pool.gpus for pool in again.pools] == [4, 4]


def test_engines_that_come_to_the_trainers_gpus_are_told_to_be_on_all_of_them(tmp_path):
    """From June 2026 on slime starts engines on no more of them than a script says."""
    job = found_in(tmp_path / "run.sh", APART, "slime").resolved
    plan = plan_of(found_in(tmp_path / "together.sh", TOGETHER, "slime").draft, job)
    new = patched(tmp_path / "run.sh", "slime", plan, exported(plan, "slime").decided)
    told = {each.key: each.after for each in new.changes}
    assert told["colocate"] is True
    assert f"--rollout-num-gpus {plan.pool_of('actor.update').gpus}" in " ".join(new.text.split())
    assert not found_in(tmp_path / "run.sh", new.text, "slime").settings.doubts


def test_a_switch_that_is_on_by_itself_is_turned_off_by_a_word_where_the_program_takes_one(
    tmp_path,
):
    """TRL's parser reads `--gradient_checkpointing False`; what launches a program has no such word, and slime's flags none."""
    text = (
        "accelerate launch --num_processes 2 --use_deepspeed --zero_stage 2 grpo.py --model_name_or_path Qwen/Qwen2.5-0.5B \\\n"
        "    --max_completion_length 2048 --per_device_train_batch_size 4 --num_generations 4 --use_vllm --vllm_mode colocate\n"
    )
    path = tmp_path / "run.sh"
    found = found_in(path, text, "trl")
    plan = plan_of(found.draft, found.resolved)
    assert plan.tasks["actor.update"].recompute == "full"
    wanted = with_fields(plan, "actor.update", recompute="none")
    new = patched(path, "trl", wanted, exported(wanted, "trl", into="").decided)
    assert {each.key: each.after for each in new.changes} == {"gradient_checkpointing": False}
    again = found_in(path, new.text, "trl")
    assert plan_of(again.draft, again.resolved).tasks == wanted.tasks
    settings = again.settings
    assert argument(settings, "use_deepspeed", value=False) is None
    flags = found_in(path, TOGETHER, "slime").settings
    assert argument(flags, "colocate", value=False) is None


def test_a_script_whose_model_no_sheet_is_of_has_that_of_the_plan(tmp_path):
    text = TOGETHER.replace("Qwen/Qwen3-4B", "/ckpt/ours/checkpoint-1800")
    path = tmp_path / "run.sh"
    path.write_text(text)
    found = imported("slime", [str(path)], replace(OPTIONS, model="Qwen/Qwen3-4B"))
    plan = with_fields(plan_of(found.draft, found.resolved), "actor.generate", memory_fraction=0.7)
    new = patched(path, "slime", plan, exported(plan, "slime").decided)
    assert "hf-checkpoint" not in {each.key for each in new.changes}
    assert "--sglang-mem-fraction-static 0.7" in new.text
    assert "--hf-checkpoint /ckpt/ours/checkpoint-1800" in new.text


def test_a_flag_of_two_values_keeps_them_or_is_changed_whole(tmp_path):
    pair = "--actor.eps_clip_low_high 0.2 0.28"
    text = " \\\n  ".join((*OPENRLHF, pair, "--vllm.enforce_eager", '"$@"\n'))
    found = found_in(tmp_path / "run.sh", text, "openrlhf")
    plan = plan_of(found.draft, found.resolved)
    for task in ("actor.update", "critic.update"):
        plan = with_fields(plan, task, micro_batch=2)
    values = exported(plan, "openrlhf").decided
    assert pair in patched(tmp_path / "run.sh", "openrlhf", plan, values).text
    key = "actor.eps_clip_low_high"
    first = next(texts_with(text, tmp_path / "run.sh", found.settings, (key, (0.1, 0.3))))
    assert first == text.replace(pair, "--actor.eps_clip_low_high 0.1 0.3")
