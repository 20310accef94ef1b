"""`rlplan export --patch`: a user's own script, changed in what a plan has otherwise and nowhere else."""

import difflib
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import FileError
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import imported
from rlplan.planner.configs.writing.exporting import exported
from rlplan.planner.configs.writing.patching import patched
from rlplan.profiles.facts import load_facts
from rlplan.results.stored import write_plan
from tests.planner.configs.test_importing import OPTIONS, VERL
from tests.planner.configs.test_patched_flags import APART, TOGETHER

HEAD = "#!/bin/bash\n# ours\nset -x\nulimit -n 65536\n"
SCRIPT = (
    HEAD + "python3 " + " \\\n    ".join(map(shlex.quote, VERL)) + ' \\\n    "$@"\n# behind it\n'
)
UTILISATION = "actor_rollout_ref.rollout.gpu_memory_utilization"


@pytest.fixture(scope="module")
def plan():
    found = imported("verl", VERL, OPTIONS)
    return complete(found.draft, found.resolved, load_facts(found.resolved))


def with_field(plan, task, **fields):
    return replace(plan, tasks={**plan.tasks, task: replace(plan.tasks[task], **fields)})


def patch(tmp_path, plan, text=SCRIPT):
    script = tmp_path / "run.sh"
    script.write_text(text)
    return patched(script, "verl", plan, exported(plan, "verl").decided)


def lines_that_differ(before, after):
    return [
        line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"
    ]


def test_a_script_that_runs_the_plan_stays_as_it_is(plan, tmp_path):
    found = patch(tmp_path, plan)
    assert (found.text, found.changes) == (SCRIPT, ())


def test_a_key_is_changed_where_it_stands_and_a_new_one_is_added_before_what_is_handed_on(
    plan, tmp_path
):
    other = with_field(plan, "actor.update", token_budget=32768)
    other = with_field(other, "actor.generate", memory_fraction=0.7)
    found = patch(tmp_path, other)
    budget = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    told = {each.key: (each.before, each.after) for each in found.changes}
    assert told[budget] == (16384, 32768)
    assert told[UTILISATION] == (None, 0.7)
    differs = lines_that_differ(SCRIPT, found.text)
    assert f"-     {budget}=16384 \\" in differs
    assert f"+     {budget}=32768 \\" in differs
    assert f"+     {UTILISATION}=0.7 \\" in differs
    assert found.text.startswith(HEAD)
    assert found.text.endswith(' \\\n    "$@"\n# behind it\n')


def test_a_new_key_is_added_beside_words_that_stand_before_what_is_handed_on(plan, tmp_path):
    text = SCRIPT.replace(' \\\n    "$@"', " $@").replace("# ours", '# ours, with "$@"')
    found = patch(tmp_path, with_field(plan, "actor.generate", memory_fraction=0.7), text)
    assert found.text == text.replace(" $@", f" {UTILISATION}=0.7 $@")


def test_the_model_stays_the_users_and_a_plan_of_another_is_refused(plan, tmp_path):
    (given,) = (word for word in VERL if word.startswith("actor_rollout_ref.model.path="))
    found = patch(tmp_path, plan, SCRIPT.replace(given, given + "-Base"))
    assert found.changes == ()
    other = SCRIPT.replace(given, "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B")
    with pytest.raises(FileError, match="has another model as actor than the plan"):
        patch(tmp_path, plan, other)


def test_a_script_that_is_no_text_is_refused(plan, tmp_path):
    (tmp_path / "run.sh").write_bytes(b"\x80\x81")
    with pytest.raises(FileError, match="UTF-8"):
        patched(tmp_path / "run.sh", "verl", plan, {})


def test_a_value_that_is_quoted_or_a_variable_is_replaced_too(plan, tmp_path):
    text = SCRIPT.replace("ppo_max_token_len_per_gpu=16384", 'ppo_max_token_len_per_gpu="$BUDGET"')
    text = text.replace(HEAD, HEAD + "BUDGET=16384\n")
    found = patch(tmp_path, with_field(plan, "actor.update", token_budget=32768), text)
    assert "ppo_max_token_len_per_gpu=32768 \\" in found.text
    assert "BUDGET=16384\n" in found.text


def test_folders_that_a_script_names_by_its_own_place_stay_in_its_words(plan, tmp_path):
    """It is read in another place, where its own folder is another one: that is no change of what the script says."""
    here = 'HERE="$(cd "$(dirname "$0")" && pwd)"\n'
    text = SCRIPT.replace(HEAD, HEAD + here)
    text = text.replace('"$@"', 'trainer.default_local_dir="$HERE/checkpoints" \\\n    "$@"')
    found = patch(tmp_path, with_field(plan, "actor.generate", memory_fraction=0.7), text)
    assert [each.key for each in found.changes] == [UTILISATION]
    assert 'trainer.default_local_dir="$HERE/checkpoints"' in found.text


BUDGET = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
OF_PASSES = [
    f"actor_rollout_ref.{each}.log_prob_max_token_len_per_gpu=16384" for each in ("rollout", "ref")
]
# The key is the last word of the command.
COMMAND = " ".join(
    [
        "python3",
        *(each for each in VERL if not each.startswith(BUDGET)),
        *OF_PASSES,
        f"{BUDGET}=VALUE",
    ]
)


@pytest.mark.parametrize(
    "around",
    [
        'ray job submit -- bash -c "cd /x && COMMAND" 2>&1 | tee "log.txt"',
        "bash -c 'COMMAND' 2>&1 | tee 'log.txt'",
        "COMMAND; echo ended",
        "COMMAND|tee log.txt",
        "COMMAND>log.txt 2>&1 &",
        f"# {BUDGET}=1024 was slow\nCOMMAND\npython3 evaluate.py {BUDGET}=16384 'a b'",
    ],
)
def test_what_stands_around_a_value_and_other_commands_stay(plan, tmp_path, around):
    text = HEAD + around.replace("COMMAND", COMMAND) + "\n"
    wanted = with_field(plan, "actor.update", token_budget=32768)
    found = patch(tmp_path, wanted, text.replace("VALUE", "16384"))
    assert found.text == text.replace("VALUE", "32768")


@pytest.mark.parametrize("value", ["$(( (4096 + N) * 2 ))", '"$((N * 4))"', "${BUDGET:-16384}"])
def test_what_a_shell_works_out_is_replaced_whole(plan, tmp_path, value):
    text = f"{HEAD}N=4096\n{COMMAND}\n"
    wanted = with_field(plan, "actor.update", token_budget=32768)
    found = patch(tmp_path, wanted, text.replace("VALUE", value))
    assert found.text == text.replace("VALUE", "32768")


def test_words_that_are_quoted_whole_have_others_behind_them(plan, tmp_path):
    text = HEAD + " ".join(f"'{each}'" for each in COMMAND.split()) + "\n"
    wanted = with_field(plan, "actor.generate", memory_fraction=0.7)
    found = patch(tmp_path, wanted, text.replace("VALUE", "16384"))
    assert f"' \\\n    {UTILISATION}=0.7" in found.text
    assert re.sub(rf" \\\n    {UTILISATION}=0.7", "", found.text) == text.replace("VALUE", "16384")


def test_lines_end_as_they_did(plan, tmp_path):
    text = f"{HEAD}{COMMAND}\n".replace("\n", "\r\n")
    (tmp_path / "run.sh").write_bytes(text.replace("VALUE", "16384").encode())
    wanted = with_field(plan, "actor.update", token_budget=32768)
    found = patched(tmp_path / "run.sh", "verl", wanted, exported(wanted, "verl").decided)
    assert found.text == text.replace("VALUE", "32768")


def test_a_new_key_is_added_beside_its_relatives_where_nothing_is_handed_on(plan, tmp_path):
    text = SCRIPT.replace(' \\\n    "$@"', "")
    found = patch(tmp_path, with_field(plan, "actor.generate", memory_fraction=0.7), text)
    (line,) = (each for each in found.text.splitlines() if UTILISATION in each)
    assert line == f"    {UTILISATION}=0.7 \\"
    before = found.text.splitlines()[found.text.splitlines().index(line) - 1]
    assert before.strip().startswith("actor_rollout_ref.rollout.")
    assert found.text.replace(line + "\n", "") == text


def test_what_a_script_says_of_stages_is_left_out_where_the_plan_says_nothing_of_them(tmp_path):
    base = [each for each in VERL if "strategy" not in each]
    words = [*base, "actor_rollout_ref.actor.strategy=megatron",
             "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=4",
             "+actor_rollout_ref.actor.megatron.override_transformer_config.num_layers_in_last_pipeline_stage=6"]  # fmt: skip
    text = HEAD + "python3 " + " \\\n    ".join(map(shlex.quote, words)) + "\n"
    found = imported("verl", words, OPTIONS)
    own = complete(found.draft, found.resolved, load_facts(found.resolved))
    even = own
    for task in ("actor.update", "actor.compute_log_prob", "reference.compute_log_prob"):
        even = with_field(even, task, last_stage_layers=None)
    patched_script = patch(tmp_path, even, text)
    assert "num_layers_in_last_pipeline_stage" not in patched_script.text
    (gone,) = (each for each in patched_script.changes if each.after is None)
    assert gone.before == 6


def test_a_script_whose_text_says_a_key_nowhere_is_refused(plan, tmp_path):
    (tmp_path / "words.txt").write_text(" ".join(VERL[1:]))
    other = with_field(plan, "actor.update", token_budget=32768)
    with pytest.raises(FileError):
        patch(tmp_path, other, f"{HEAD}python3 {VERL[0]} $(cat words.txt)\n")


def test_the_command_writes_another_file_and_says_what_changed(plan, tmp_path, monkeypatch, rlplan):
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(SCRIPT)
    write_plan(Path("best.yaml"), with_field(plan, "actor.update", token_budget=32768))
    answer = rlplan(
        "export", "best.yaml", "--to", "verl", "--patch", "run.sh", "--out", "faster.sh"
    )
    assert answer.code == 0, answer.err
    assert "ppo_max_token_len_per_gpu=32768 (was 16384)" in answer.err
    assert Path("run.sh").read_text() == SCRIPT
    assert "ppo_max_token_len_per_gpu=32768" in Path("faster.sh").read_text()
    onto = rlplan("export", "best.yaml", "--to", "verl", "--patch", "run.sh", "--out", "run.sh")
    assert onto.code == 2


RECIPE = """\
max_steps = 10
seq_len = 4096

[deployment]
num_train_gpus = 4
num_infer_gpus = 4

[model]
name = "Qwen/Qwen3-4B"

[trainer.model]
reshard_after_forward = true  # as usual
optim_cpu_offload = true

[orchestrator]
batch_size = 512
group_size = 16

[inference.vllm]
max_num_seqs = 64
"""


def plan_of(path, framework):
    found = imported(framework, [str(path)], OPTIONS)
    return complete(found.draft, found.resolved, load_facts(found.resolved))


def test_switches_of_toml_are_turned_off_and_what_else_differs_is_changed_too(tmp_path):
    recipe = tmp_path / "rl.toml"
    recipe.write_text(RECIPE)
    plan = plan_of(recipe, "prime-rl")
    other = with_field(plan, "actor.update", zero=2, offload=False, recompute="none")
    other = with_field(other, "actor.generate", max_running=128)
    found = patched(recipe, "prime-rl", other, exported(other, "prime-rl").decided)
    recipe.write_text(found.text)
    own = plan_of(recipe, "prime-rl").tasks
    assert own["actor.update"].zero == 2
    assert not own["actor.update"].offload
    assert own["actor.update"].recompute == "none"
    assert own["actor.generate"].max_running == 128
    assert "reshard_after_forward = false  # as usual\noptim_cpu_offload = false\n" in found.text


def test_a_table_of_toml_gives_way_to_its_switch(tmp_path):
    recipe = tmp_path / "rl.toml"
    recipe.write_text(RECIPE + "\n[trainer.model.ac]\nfreq = 1\n")
    plan = plan_of(recipe, "prime-rl")
    other = with_field(plan, "actor.update", recompute="none")
    found = patched(recipe, "prime-rl", other, exported(other, "prime-rl").decided)
    recipe.write_text(found.text)
    assert plan_of(recipe, "prime-rl").tasks["actor.update"].recompute == "none"
    assert "freq" not in found.text


TRL = """\
model_name_or_path: Qwen/Qwen2.5-1.5B
per_device_train_batch_size: 8
gradient_accumulation_steps: 4
num_generations: 8
max_completion_length: 1024
bf16: true
use_vllm: true
vllm_mode: colocate
deepspeed: zero2.json
"""


def test_what_a_launcher_reads_is_told_beside_a_recipe_and_not_written_into_it(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(TRL.replace("deepspeed: zero2.json\n", ""))
    other = with_field(
        plan_of(recipe, "trl"), "actor.update", zero=1, engine="deepspeed-hf-padded-to-batch"
    )
    found = patched(recipe, "trl", other, exported(other, "trl").decided)
    (words,) = found.front.values()
    assert found.text == recipe.read_text()
    assert "--zero_stage 1" in " ".join(words)
    assert "--num_processes 8" in " ".join(words)
    (recipe.parent / "start.sh").write_text(
        f"accelerate launch {' '.join(words)} -m trl.scripts.grpo --config recipe.yaml\n"
    )
    assert plan_of(recipe.parent / "start.sh", "trl").tasks["actor.update"].zero == 1


LAUNCHED = """\
trl vllm-serve --model Qwen/Qwen2.5-1.5B &  # serves
accelerate launch --num_processes 4 --use_deepspeed --zero_stage 2 \\
    -m trl.scripts.grpo --model_name_or_path Qwen/Qwen2.5-1.5B --num_generations 8 \\
    --max_completion_length 1024 --per_device_train_batch_size 8 --gradient_accumulation_steps 4 \\
    --use_vllm --vllm_mode server --bf16
"""


def test_flags_of_a_launcher_and_of_a_server_are_put_behind_their_own_words(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(LAUNCHED)
    plan = plan_of(script, "trl")
    other = with_field(plan, "actor.update", zero=3)
    other = with_field(other, "actor.compute_log_prob", zero=3)
    other = with_field(other, "actor.generate", memory_fraction=0.7)
    found = patched(script, "trl", other, exported(other, "trl").decided)
    assert found.front == {}
    assert "--zero_stage 3 " in found.text
    assert (
        "trl vllm-serve --gpu_memory_utilization 0.7 --model Qwen/Qwen2.5-1.5B &  # serves"
        in found.text
    )
    script.write_text(found.text)
    own = plan_of(script, "trl").tasks
    assert (own["actor.update"].zero, own["actor.generate"].memory_fraction) == (3, 0.7)


PROGRAM = '''\
"""A program of one's own."""
from trl import GRPOConfig, GRPOTrainer

BATCH = 8  # of each GPU
args = GRPOConfig(
    per_device_train_batch_size=BATCH,
    gradient_accumulation_steps=4,  # ä
    num_generations=8, max_completion_length=1024,
    bf16=True,
)
trainer = GRPOTrainer("Qwen/Qwen2.5-0.5B-Instruct", args=args)
trainer.train()
'''


def test_literals_of_a_python_program_are_changed_and_all_else_of_it_stays(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    plan = plan_of(program, "trl")
    other = with_field(plan, "actor.update", micro_batch=4, recompute="none")
    values = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 8,
        "gradient_checkpointing": False,
    }
    found = patched(program, "trl", other, values)
    wanted = PROGRAM.replace("BATCH = 8  #", "BATCH = 4  #").replace("steps=4,  #", "steps=8,  #")
    wanted = wanted.replace("    bf16=True,", "    bf16=True,\n    gradient_checkpointing=False,")
    assert found.text == wanted
    program.write_text(found.text)
    update = plan_of(program, "trl").tasks["actor.update"]
    assert (update.micro_batch, update.recompute) == (4, "none")


def test_keys_that_a_program_has_no_place_for_are_all_named(tmp_path):
    program = tmp_path / "train.ipynb"
    cells = [{"cell_type": "code", "source": PROGRAM}]
    program.write_text(json.dumps({"cells": cells}))
    plan = plan_of(program, "trl")
    other = with_field(plan, "actor.update", micro_batch=4)
    values = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8}
    named = "per_device_train_batch_size=4, gradient_accumulation_steps=8"
    with pytest.raises(FileError, match=re.escape(named)):
        patched(program, "trl", other, values)


EARLIER = (
    "python -m skyrl_train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen2.5-1.5B trainer.train_batch_size=64 "
    "trainer.policy_mini_batch_size=64 generator.n_samples_per_prompt=4 trainer.placement.policy_num_gpus_per_node=8 "
    "trainer.placement.ref_num_gpus_per_node=8 trainer.strategy=fsdp2 trainer.micro_train_batch_size_per_gpu=4 "
    "generator.sampling_params.max_generate_length=500 trainer.algorithm.use_kl_loss=false "
    "generator.num_inference_engines=8 generator.inference_engine_tensor_parallel_size=1\n"
)


def test_keys_of_an_earlier_version_are_written_by_its_own_names(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(EARLIER)
    plan = plan_of(script, "skyrl")
    other = with_field(plan, "actor.generate", memory_fraction=0.6)
    values = exported(other, "skyrl").decided
    assert "generator.inference_engine.gpu_memory_utilization" in values
    found = patched(script, "skyrl", other, values)
    assert [each.key for each in found.changes] == ["generator.gpu_memory_utilization"]
    assert "generator.inference_engine." not in found.text


ENDLESS = (
    "# examples.train.fully_async.main_fully_async\n"
    "uv run -m examples.train.fully_async.main_fully_async trainer.policy.model.path=Qwen/Qwen2.5-1.5B trainer.train_batch_size=64 "
    "trainer.policy_mini_batch_size=64 generator.n_samples_per_prompt=4 trainer.placement.policy_num_gpus_per_node=4 "
    "trainer.placement.ref_num_gpus_per_node=4 trainer.placement.colocate_all=false trainer.strategy=fsdp2 "
    "trainer.fully_async.enabled=true trainer.fully_async.max_staleness_steps=2 trainer.algorithm.policy_loss_type=rollout_is "
    "trainer.micro_train_batch_size_per_gpu=4 trainer.algorithm.use_kl_loss=false "
    "generator.sampling_params.max_generate_length=500 generator.inference_engine.num_engines=4\n"
)


def test_a_run_without_an_end_is_started_by_another_program_where_the_plan_waits_for_each_batch(
    tmp_path, monkeypatch, rlplan
):
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(ENDLESS)
    beside = ["--gpu", "h100-80gb-sxm", "--mean-response", "300"]
    waits = ENDLESS.replace(
        "\nuv run -m examples.train.fully_async.main_fully_async",
        "\nuv run -m skyrl.train.entrypoints.main_base",
    )
    waits = waits.replace("colocate_all=false", "colocate_all=true").replace(
        "rollout_is", "regular"
    )
    Path("waits.sh").write_text(waits.replace(" trainer.fully_async.enabled=true", ""))
    assert (
        rlplan(
            "import", *beside, "--plan", "plan.yaml", "--out", "job.yaml", "skyrl", "waits.sh"
        ).code
        == 0
    )
    told = rlplan("export", "plan.yaml", "--to", "skyrl", "--patch", "run.sh", "--out", "new.sh")
    assert told.code == 0, told.err
    assert "what is started=skyrl.train.entrypoints.main_base" in told.err
    text = Path("new.sh").read_text()
    assert text.startswith(
        "# examples.train.fully_async.main_fully_async\nuv run -m skyrl.train.entrypoints.main_base "
    )
    assert "trainer.placement.colocate_all=true" in text


def test_a_plan_that_is_the_scripts_own_is_the_script_whatever_exports_know(
    tmp_path, monkeypatch, rlplan
):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)  # by DDP, which no export writes
    beside = ["--gpu", "h100-80gb-sxm", "--mean-response", "300"]
    assert (
        rlplan(
            "import", *beside, "--plan", "plan.yaml", "--out", "job.yaml", "trl", "train.py"
        ).code
        == 0
    )
    assert rlplan("export", "plan.yaml", "--to", "trl").code == 2
    told = rlplan("export", "plan.yaml", "--to", "trl", "--patch", "train.py")
    assert (told.code, told.out) == (0, PROGRAM)
    assert "train.py runs this plan as it is" in told.err
    typed = rlplan("export", "plan.yaml", "--to", "trl", "--patch", "train.py", "--json")
    assert json.loads(typed.out)["text"] == PROGRAM
    Path("train.py").write_bytes(PROGRAM.replace("\n", "\r\n").encode("utf-16"))
    rlplan("export", "plan.yaml", "--to", "trl", "--patch", "train.py", "--out", "same.py")
    assert Path("same.py").read_bytes() == Path("train.py").read_bytes()
    other = rlplan("export", "plan.yaml", "--to", "trl", "--patch", "train.py", "--version", "0.1")
    assert other.code == 2
    assert "--version" in other.err


def test_a_model_that_a_recipe_leaves_open_is_named_as_its_message_says(
    tmp_path, monkeypatch, rlplan
):
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(TRL.partition("\n")[2])
    beside = ["--framework", "trl", "--gpu", "h100-80gb-sxm", "--mean-response", "300"]
    refused = rlplan("search", "recipe.yaml", *beside)
    assert "rlplan search --model Qwen/Qwen2.5-7B-Instruct recipe.yaml" in refused.err
    assert rlplan("search", "--model", "Qwen/Qwen2.5-1.5B", "recipe.yaml", *beside).code == 0


def test_values_beside_a_search_are_taken_beside_its_export_too(tmp_path, monkeypatch, rlplan):
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(TRL.replace("deepspeed: zero2.json\n", ""))
    beside = ["--gpu", "h100-80gb-sxm", "--mean-response", "300", "--set", "num_processes=4"]
    found = rlplan("search", "recipe.yaml", "--framework", "trl", *beside, "--out", "best.yaml")
    assert found.code == 0, found.err
    patch = ["export", "best.yaml", "--to", "trl", "--patch", "recipe.yaml"]
    assert rlplan(*patch).code == 2  # of eight processes, of which nothing is said
    told = rlplan(*patch, "--set", "num_processes=4")
    assert told.code == 0, told.err
    assert "to be given to accelerate launch: --num_processes" in told.err
    assert "--patch" in rlplan("export", "best.yaml", "--to", "trl", "--set", "num_processes=4").err


def test_what_was_said_beside_a_search_is_asked_for_by_its_key(tmp_path, monkeypatch, rlplan):
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(TRL.replace("deepspeed: zero2.json\n", ""))
    beside = ["--gpu", "h100-80gb-sxm", "--mean-response", "300", "--set", "num_generations=16"]
    found = rlplan("search", "recipe.yaml", "--framework", "trl", *beside, "--out", "best.yaml")
    assert found.code == 0, found.err
    refused = rlplan("export", "best.yaml", "--to", "trl", "--patch", "recipe.yaml")
    assert refused.code == 2
    assert "of the plan is" in refused.err
    assert "--set num_generations=16" in refused.err
    assert "beside the script when the plan was found" in refused.err


def test_what_would_not_fit_as_written_is_refused_though_its_layouts_are_the_plans(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(TRL)
    plan = plan_of(recipe, "trl")
    values = exported(plan, "trl").decided
    patched(recipe, "trl", plan, values)
    recipe.write_text(TRL.replace("use_vllm", "vllm_enable_sleep_mode: true\nuse_vllm"))
    asleep = with_field(plan_of(recipe, "trl"), "actor.generate", memory_fraction=0.85)
    recipe.write_text(TRL.replace("vllm_mode", "vllm_gpu_memory_utilization: 0.85\nvllm_mode"))
    kept = {key: each for key, each in values.items() if "memory" not in key and "sleep" not in key}
    with pytest.raises(FileError, match="would not fit into the GPUs' memory"):
        patched(recipe, "trl", asleep, kept)


EPISODES = (
    "python -m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen2.5-1.5B trainer.train_batch_size=64 "
    "trainer.policy_mini_batch_size=64 generator.n_samples_per_prompt=4 trainer.placement.policy_num_gpus_per_node=8 "
    "trainer.placement.ref_num_gpus_per_node=8 generator.max_turns=4 trainer.max_prompt_length=2048 "
    "generator.max_input_length=4096 generator.sampling_params.max_generate_length=500 "
    "generator.inference_engine.num_engines=8 generator.inference_engine.tensor_parallel_size=1\n"
)


def test_limits_of_episodes_stay_a_scripts_and_a_broken_rule_is_named_in_words(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(EPISODES)
    plan = plan_of(script, "skyrl")
    other = with_field(plan, "actor.generate", max_running=64)
    values = exported(other, "skyrl").decided
    text = patched(script, "skyrl", other, values).text
    assert "generator.max_input_length=4096" in text
    assert "generator.inference_engine.max_num_seqs=64" in text
    broken = {"trainer.policy_mini_batch_size": 48}
    with pytest.raises(FileError, match=r"would not run the plan: .*policy_mini_batch_size=48 "):
        patched(script, "skyrl", plan, broken)


def test_a_key_that_tells_the_version_stays_and_a_script_that_runs_the_plan_is_not_touched_again(
    tmp_path, monkeypatch, rlplan
):
    def written(name, text):
        Path(name).write_text(text)
        return imported("slime", [name], OPTIONS)

    monkeypatch.chdir(tmp_path)
    early = "--use-slime-router --colocate"
    job = written("run.sh", TOGETHER.replace("--colocate", early)).resolved
    apart = APART.replace("--num-gpus-per-node 8", "--use-slime-router").replace(
        "--optimizer-cpu-offload", ""
    )
    plan = complete(written("apart.sh", apart).draft, job, load_facts(job))
    write_plan(Path("best.yaml"), plan)
    to = ("export", "best.yaml", "--to", "slime", "--patch")
    said = rlplan(*to, "run.sh", "--out", "new.sh")
    assert (said.code, "left out: colocate" in said.err) == (0, True), said.err
    assert "--use-slime-router" in Path("new.sh").read_text()
    again = rlplan(*to, "new.sh")
    assert again.out == Path("new.sh").read_text()
    assert "new.sh runs this plan as it is" in again.err
