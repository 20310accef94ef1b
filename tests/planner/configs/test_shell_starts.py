"""What a script starts: frameworks' own starts and forks', through launchers, other scripts and quotes."""

from dataclasses import replace

import pytest

from rlplan.errors import FileError
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.importing import ImportOptions, imported

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={"HOME": "~"})
KEYS = (
    "algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B data.train_batch_size=64 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=4 data.max_prompt_length=512 "
    "data.max_response_length=1024 actor_rollout_ref.actor.use_dynamic_bsz=True trainer.n_gpus_per_node=8"
)
FLAGS = (
    "--pretrain meta-llama/Llama-3.1-8B --actor_num_nodes 1 --actor_num_gpus_per_node 4 --ref_num_gpus_per_node 4 "
    "--critic_num_gpus_per_node 4 --vllm_num_engines 2 --train_batch_size 128 --rollout_batch_size 256 "
    "--remote_rm_url http://localhost:5000"
)


def read(tmp_path, text, *arguments, framework="verl", options=OPTIONS, name="run.sh"):
    path = tmp_path / name
    path.write_text(text)
    return imported(framework, [str(path), *arguments], options)


def value(found, key):
    return found.settings.flat[key].value


FORKS = {
    "a module": f"python3 -m my_tool.trainer.main_ppo {KEYS} my_tool.agents=3",
    "a script": f"python train.py {KEYS} my_tool.agents=3",
    "of a launcher": f"ray job submit --address=http://h:8265 -- python3 -m agents.run {KEYS} my_tool.agents=3",
    "torchrun": f"torchrun --nnodes 1 -m agents.run {KEYS} my_tool.agents=3 2>&1 | tee log",
    "accelerate": f"accelerate launch --config_file a.yaml --num_processes 8 agents/run.py {KEYS} my_tool.agents=3",
    "uv with a script": f"uv run --extra vllm agents/run.py {KEYS} my_tool.agents=3",
    "an array": f'C=(python3 -m agents.run {KEYS})\nrun() {{ "$@" 2>&1 | tee log; }}\nrun "${{C[@]}}" my_tool.agents=3',
    "a condition": f"cd $(dirname $0) || exit 1\nif ! python -m agents.run {KEYS} my_tool.agents=3; then exit 1; fi",
    "a loop": f"for S in 1 2; do\n  python -m agents.run {KEYS} my_tool.agents=3 && break || sleep 9\ndone",
    "uv": f"uv run --isolated -m agents.run {KEYS} my_tool.agents=3",
    "exec with variables": f"exec env A=1 PYTHONPATH=. nohup python -u -m agents.run {KEYS} my_tool.agents=3 &",
    "in quotes": f'srun -N 1 bash -c "cd /x && A=1 python -m agents.run {KEYS} my_tool.agents=3"',
    "in quotes in quotes": f"ssh node 'bash -c \"python -m agents.run {KEYS} my_tool.agents=3\"'",
    "typed into a terminal": f'tmux send-keys -t s "python -m agents.run {KEYS} my_tool.agents=3" C-m',
    "submitted": f'export COMMAND="python -m agents.run {KEYS} my_tool.agents=3"\nsbatch --nodes=1 ray.sub',
    "a heredoc": f"ssh node <<EOF\ncd /x\npython -m agents.run {KEYS} my_tool.agents=3\nEOF",
    "a text of statements": f"T=$(cat <<EOF\nset -x\npython -m agents.run {KEYS} my_tool.agents=3\nEOF\n)\nbash -c \"$T\"",
    "read by a shell elsewhere": f"T=$(cat <<EOF\nset -x\necho $UNKNOWN\npython -m agents.run {KEYS} my_tool.agents=3\nEOF\n)\necho \"$T\" | tr -d '\\r' | kubectl exec -i $POD -c head -- /bin/bash",
}  # fmt: skip


@pytest.mark.parametrize("name", FORKS)
def test_a_forks_start_is_told_by_its_keys_and_what_it_adds_is_named(tmp_path, name):
    found = read(tmp_path, FORKS[name] + "\n")
    assert (found.job.workload.prompts, found.job.workload.samples_per_prompt) == (64, 4)
    assert found.keys.unknown == ("my_tool.agents",)
    note = next(each for each in found.notes if "is taken as verl's verl.trainer.main_ppo" in each)
    assert note.endswith("its own loop is not known, nor what it does with my_tool.agents")


def test_a_forks_start_of_openrlhf_is_told_by_its_flags(tmp_path):
    found = read(tmp_path, f"python -m rag.cli.train {FLAGS} --depth 2\n", framework="openrlhf")
    assert found.job.workload.prompts == 256
    assert found.keys.unknown == ("depth",)
    assert found.notes[0].startswith("rag.cli.train is taken as OpenRLHF's")


def test_a_frameworks_own_start_is_no_forks(tmp_path):
    found = read(tmp_path, f"python3 -m verl.trainer.main_ppo {KEYS}\n")
    assert not [note for note in found.notes if "is taken as" in note]


NONE = {
    "another framework's": "python -m other.main trainer.policy.model.path=x trainer.epochs=3",
    "data": "python examples/data_preprocess/gsm8k.py --local_dir data",
    "one key alone": "python -m serve actor_rollout_ref.model.path=x",
}


@pytest.mark.parametrize("name", NONE)
def test_a_program_without_the_frameworks_keys_starts_nothing_and_is_named(tmp_path, name):
    program = NONE[name].split()[2 if " -m " in NONE[name] else 1]
    with pytest.raises(FileError, match=rf"starts no RL training of verl.*{program} \(line 2\)"):
        read(tmp_path, f"echo\n{NONE[name]}\n")


OTHERWISE = {
    f"python -m my_tool.main_eval {KEYS}": "only evaluates",
    f"python -m my_tool.trainer.main_ppo {KEYS} trainer.val_only=True": "only evaluates",
    f"python -m verl.trainer.main_generation {KEYS}": "only generates",
    f"torchrun -m verl.trainer.fsdp_sft_trainer {KEYS}": "trains on texts",
}


@pytest.mark.parametrize("command", OTHERWISE)
def test_what_does_otherwise_is_refused_for_what_it_does(tmp_path, command):
    with pytest.raises(FileError, match=OTHERWISE[command]):
        read(tmp_path, f"{command}\n")


def test_a_training_is_found_before_an_evaluation_behind_it(tmp_path):
    text = (
        f"python3 -m verl.trainer.main_ppo {KEYS}\npython3 -m verl.trainer.main_eval data.path=x\n"
    )
    assert read(tmp_path, text).job.workload.prompts == 64


def test_of_several_trainings_the_last_is_read_and_that_is_said(tmp_path):
    text = "".join(
        f"python3 -m verl.trainer.main_ppo {KEYS} trainer.nnodes={n}\n" for n in (1, 2, 4)
    )
    found = read(tmp_path, text)
    assert found.job.cluster[0].nodes == 4
    assert "the script starts 3 trainings; this is the last, of line 3" in found.notes


@pytest.mark.parametrize("taken_as", ["my_trainer.run", "verl"])
def test_a_start_that_nothing_reveals_is_named(tmp_path, taken_as):
    keys = KEYS.replace("actor_rollout_ref.", "+x=1 actor_rollout_ref.", 1)
    plain = " ".join(each for each in keys.split() if not each.startswith("actor_rollout_ref"))
    text = (
        f"python prepare.py --out x\npython -m my_trainer.run {plain}\npython convert.py --in x\n"
    )
    with pytest.raises(FileError, match="or --as MODULE"):
        read(tmp_path, text)
    options = replace(OPTIONS, taken_as=taken_as, model="qwen2.5-7b")
    found = read(tmp_path, text, options=options)
    assert found.settings.start == "my_trainer.run"
    assert found.job.workload.prompts == 64


@pytest.mark.parametrize("left_out", ["algorithm.adv_estimator", "actor_rollout_ref.model.path"])
def test_what_a_fork_leaves_to_defaults_of_its_own_is_not_guessed(tmp_path, left_out):
    keys = " ".join(each for each in KEYS.split() if not each.startswith(left_out))
    with pytest.raises(FileError, match=r"agents\.run takes then is not known") as caught:
        read(tmp_path, f"python -m agents.run {keys}\n")
    assert caught.value.field == left_out


def test_a_forks_configuration_is_read_from_beside_its_module(tmp_path):
    folder = tmp_path / "agents" / "config"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("trainer: {nnodes: 3}\ndata: {max_prompt_length: 99}\n")
    text = f"python -m agents.run --config-name NAME {KEYS}\n"
    found = read(tmp_path, text.replace("NAME", "mine"))
    assert found.job.cluster[0].nodes == 3
    assert value(found, "data.max_prompt_length") == 512
    with pytest.raises(FileError, match="not at hand") as caught:
        read(tmp_path, text.replace("NAME", "other"))
    assert caught.value.field == "--config-name"


def test_a_word_of_a_fork_is_taken_for_the_known_one_in_it(tmp_path):
    keys = KEYS.replace("=grpo", "=turn_grpo")
    found = read(tmp_path, f"python -m agents.run {keys}\n")
    assert found.job.algorithm == read(tmp_path, f"python -m agents.run {KEYS}\n").job.algorithm
    assert [
        note
        for note in found.notes
        if "adv_estimator=turn_grpo" in note and "taken as grpo" in note
    ]


def test_what_breaks_a_rule_of_a_forks_start_is_to_be_looked_at(tmp_path):
    script = tmp_path / "run.sh"
    keys = KEYS.replace("ppo_mini_batch_size=64", "ppo_mini_batch_size=128")
    for start, stops in (("verl.trainer.main_ppo", True), ("agents.run", False)):
        script.write_text(f"python -m {start} {keys}\n")
        findings = check_config("verl", [str(script)], OPTIONS).findings
        above = [each for each in findings if "is above data.train_batch_size" in each.problem]
        assert [each.stops for each in above] == [stops]


def test_words_behind_a_script_that_hands_none_on_are_refused(tmp_path):
    text = f"python3 -m verl.trainer.main_ppo {KEYS}\n"
    with pytest.raises(
        FileError, match=r"hands no arguments on: `trainer\.nnodes=2` would have no effect"
    ):
        read(tmp_path, text, "trainer.nnodes=2")
    for handed in ('"$@"', "$*", '"${@:1}"', "$1"):
        found = read(tmp_path, text.replace("\n", f" {handed}\n"), "trainer.nnodes=2")
        assert found.job.cluster[0].nodes == 2


def test_one_word_that_is_handed_on_takes_no_other_with_it(tmp_path):
    text = f"NODES=$1\npython3 -m verl.trainer.main_ppo {KEYS} trainer.nnodes=$NODES\n"
    assert read(tmp_path, text, "3").job.cluster[0].nodes == 3
    with pytest.raises(FileError, match=r"hands no such argument on: `data\.train_batch_size=32`"):
        read(tmp_path, text, "3", "data.train_batch_size=32")


def test_a_key_that_the_script_gives_again_or_drops_has_no_effect(tmp_path):
    text = f'python3 -m verl.trainer.main_ppo {KEYS} "$@" trainer.nnodes=4\n'
    with pytest.raises(FileError, match=r"is given again at .*run\.sh:1"):
        read(tmp_path, text, "trainer.nnodes=2")
    dropped = f'for word in "$@"; do echo $word; done\npython3 -m verl.trainer.main_ppo {KEYS}\n'
    with pytest.raises(FileError, match="reaches no training"):
        read(tmp_path, dropped, "trainer.nnodes=2")


ENDS = {
    "# trainer.nnodes=3 \\": "5, a comment",
    "trainer.logger=console \\ # to the screen": "5, where a comment stands behind the backslash",
    "": "5, which is empty",
    "trainer.logger=console \\ ": "5, where a space stands behind the backslash",
}


@pytest.mark.full
@pytest.mark.parametrize("line", ENDS)
def test_what_ends_a_continued_command_is_said_with_the_keys_below_it(tmp_path, line):
    keys = KEYS.split()
    parts = ["#!/bin/bash", "python3 -m verl.trainer.main_ppo \\", f"  {keys[0]} \\"]
    parts += [
        f"  {' '.join(keys[1:])} \\",
        f"  {line}",
        "  trainer.nnodes=2 \\",
        "  trainer.save_freq=5",
    ]
    found = read(tmp_path, "\n".join(parts) + "\n")
    assert found.job.cluster[0].nodes == 1
    note = next(each for each in found.notes if "is no part" in each or "are no part" in each)
    assert note.startswith(f"the command of line 2 ends at line {ENDS[line]}")
    assert "trainer.nnodes=2, trainer.save_freq=5 below it" in note
    findings = check_config("verl", [str(tmp_path / "run.sh")], OPTIONS).findings
    (said,) = (each for each in findings if each.rule == "the-command-goes-on")
    assert (said.key, said.where, said.stops) == (
        "trainer.nnodes",
        f"{tmp_path / 'run.sh'}:6",
        False,
    )


def test_a_file_beside_a_script_is_read_into_it(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "env.sh").write_text("NODES=3\nbatch() { echo $((NODES * 32)); }\n")
    text = (
        'HERE=$( cd -- "$( dirname -- "${BASH_SOURCE[0]}" )" &> /dev/null && pwd )\n'
        'source ~/.bashrc\nif [ -f "$HERE/lib/env.sh" ]; then source "$HERE/lib/env.sh"; fi\n'
        f'python3 -m verl.trainer.main_ppo {KEYS} trainer.nnodes=$NODES data.train_batch_size=$(batch) "$@"\n'
    )
    found = read(tmp_path, text)
    assert (found.job.cluster[0].nodes, found.job.workload.prompts) == (3, 96)
    (tmp_path / "lib" / "env.sh").unlink()
    with pytest.raises(FileError, match="NODES is not set") as caught:
        read(tmp_path, text)
    assert caught.value.field == "trainer.nnodes"


def test_a_file_that_is_not_beside_a_script_is_named(tmp_path):
    text = f"set -e\n. config.env\npython3 -m verl.trainer.main_ppo {KEYS} trainer.nnodes=${{NODES:-1}}\n"
    assert (
        ". config.env (line 2) is not at hand: what it sets is not known"
        in read(tmp_path, text).notes
    )


def test_what_a_job_asks_slurm_for_is_what_it_gets(tmp_path):
    head = "#!/bin/bash\n#SBATCH --nodes=4 --gpus-per-node=8\n#SBATCH -J name-2\n"
    text = f"{head}python3 -m verl.trainer.main_ppo {KEYS} trainer.nnodes=$SLURM_NNODES\n"
    assert read(tmp_path, text).job.cluster[0].nodes == 4
    given = replace(OPTIONS, environment={"SLURM_NNODES": "2"})
    assert read(tmp_path, text, options=given).job.cluster[0].nodes == 2


UNKNOWN = {
    "$(nvidia-smi --list-gpus | wc -l)": "what nvidia-smi prints is known where it runs",
    "$(nproc)": "what nproc prints is known where it runs",
    "$GPUS": "GPUS is not set",
    "$2": "argument 2 is not given",
    "${#ALL[@]}": "what nvidia-smi prints is known where it runs",
}


@pytest.mark.parametrize("written", UNKNOWN)
def test_what_only_the_machine_knows_is_refused_for_that(tmp_path, written):
    text = "ALL=($(nvidia-smi --list-gpus))\npython3 -m verl.trainer.main_ppo"
    with pytest.raises(FileError, match="cannot be evaluated") as caught:
        read(tmp_path, f"{text} {KEYS} trainer.n_gpus_per_node={written}\n")
    assert caught.value.field == "trainer.n_gpus_per_node"
    assert UNKNOWN[written] in caught.value.problem


def test_a_script_that_asks_for_a_variable_is_read_on_with_a_model_that_is_named(tmp_path):
    keys = KEYS.replace("Qwen/Qwen2.5-7B", "$MODEL critic.model.path=$MODEL").replace(
        "=grpo", "=gae"
    )
    text = (
        'MODEL=${MODEL:-}\nif [ -z "$MODEL" ]; then\n  echo "set MODEL"\n  exit 1\nfi\n'
        f"python3 -m verl.trainer.main_ppo {keys} critic.ppo_micro_batch_size_per_gpu=2\n"
    )
    with pytest.raises(FileError, match="MODEL is not set"):
        read(tmp_path, text)
    found = read(tmp_path, text, options=replace(OPTIONS, model="qwen3-8b"))
    assert dict(found.job.models) == {"actor": "qwen3-8b", "critic": "qwen3-8b"}


def test_a_part_that_is_no_shells_is_named(tmp_path):
    text = f"if true; then\necho ${{A:-$(\nfi\npython3 -m verl.trainer.main_ppo {KEYS}\n"
    with pytest.raises(FileError, match=r"line 1: .*is not understood"):
        read(tmp_path, text)


def test_a_training_that_two_branches_start_alike_is_read(tmp_path):
    start = f"python3 -m verl.trainer.main_ppo {KEYS}"
    text = "if command -v stdbuf >/dev/null; then\n  stdbuf -oL {} | tee log\nelse\n  {} | tee log\nfi\n"
    found = read(tmp_path, text.format(start, start))
    assert value(found, "data.train_batch_size") == 64
    with pytest.raises(FileError, match="starts no RL training"):
        read(tmp_path, text.format(start, f"{start} data.train_batch_size=8"))


def test_files_of_another_machine_are_looked_for_by_the_ends_of_their_paths(tmp_path):
    folder = tmp_path / "project" / "examples" / "one"
    folder.mkdir(parents=True)
    (tmp_path / "project" / "models").mkdir()
    (tmp_path / "project" / "models" / "sizes.sh").write_text("BATCH=32\n")
    inner = folder.parent / "start.sh"
    inner.write_text(
        "source /mnt/project/models/sizes.sh\n"
        f"python3 -m verl.trainer.main_ppo {KEYS} data.train_batch_size=$BATCH\n"
    )
    script = folder / "run.sh"
    script.write_text("bash /mnt/other/project/examples/start.sh\n")
    found = imported("verl", [str(script)], OPTIONS)
    assert value(found, "data.train_batch_size") == 32
    inner.write_text(inner.read_text().replace("/models/", "/other/"))
    with pytest.raises(FileError, match=r"data\.train_batch_size"):
        imported("verl", [str(script)], OPTIONS)


def test_no_folder_above_a_repository_is_looked_into(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/train.sh").write_text(f"python3 -m verl.trainer.main_ppo {KEYS}\n")
    script = tmp_path / "project/scripts/run.sh"
    script.parent.mkdir(parents=True)
    script.write_text("bash tools/train.sh\n")
    assert imported("verl", [str(script)], OPTIONS).job.workload.prompts == 64
    (tmp_path / "project/.git").mkdir()
    with pytest.raises(FileError, match=r"not at hand: tools/train\.sh"):
        imported("verl", [str(script)], OPTIONS)


def test_a_script_of_another_machine_is_not_found_by_its_name_alone(tmp_path):
    (tmp_path / "train.sh").write_text(f"python3 -m verl.trainer.main_ppo {KEYS}\n")
    script = tmp_path / "scripts/run.sh"
    script.parent.mkdir()
    script.write_text("bash /nowhere/job/train.sh\n")
    with pytest.raises(FileError, match=r"not at hand: /nowhere/job/train\.sh"):
        imported("verl", [str(script)], OPTIONS)


def test_a_program_that_only_speaks_of_training_hides_no_script_that_starts_one(tmp_path):
    (tmp_path / "inner.sh").write_text(f"python3 -m verl.trainer.main_ppo {KEYS}\n")
    (tmp_path / "convert.py").write_text('"""Convert what train.py saves."""\nprint("done")\n')
    script = tmp_path / "run.sh"
    script.write_text("bash inner.sh\npython3 convert.py\n")
    assert imported("verl", [str(script)], OPTIONS).job.workload.prompts == 64
    script.write_text("python3 convert.py\n")
    with pytest.raises(FileError, match="is not seen to start a training"):
        imported("verl", [str(script)], OPTIONS)


@pytest.mark.parametrize(
    "around",
    [
        'if [ "$(hostname)" = "$MASTER" ]; then\n  {}\nelse\n  sleep 5\nfi\n',
        "if some_check; then\n  echo no\nelse\n  {}\nfi\n",
        "for i in 0 1; do\n  if [ $i -eq $RANK ]; then {}; fi\ndone\n",
    ],
)
@pytest.mark.parametrize("start", ["bash train.sh", 'bash -c "bash train.sh"'])
def test_a_branch_that_starts_another_script_is_followed_in_quotes_too(tmp_path, around, start):
    """What is asked is known to no one here; the branch that trains is the one that is meant."""
    (tmp_path / "train.sh").write_text(f"python3 -m verl.trainer.main_ppo {KEYS}\n")
    found = read(tmp_path, around.format(start))
    assert value(found, "trainer.n_gpus_per_node") == 8


RECIPE = """
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
ray job submit --address=http://127.0.0.1:8265 --working-dir "${HERE}/launcher" -- bash grpo_launch.sh --colocate --rollout-batch-size 16
"""
LAUNCH = """
cd /opt/slime
source "scripts/models/${MODEL_SCRIPT:-qwen3-4B.sh}"
if [[ "${#MODEL_ARGS[@]}" -eq 0 ]]; then
    echo "no arguments" >&2
    exit 1
fi
exec python3 train.py "${MODEL_ARGS[@]}" --hf-checkpoint Qwen/Qwen3-4B --rollout-max-response-len 4096 --actor-num-gpus-per-node 8 "$@"
"""


@pytest.mark.parametrize("count", ['"${#MODEL_ARGS[@]}" -eq 0', "${#MODEL_ARGS[@]} == 0"])
def test_a_job_starts_a_script_of_the_folder_that_it_takes_along(tmp_path, count):
    (tmp_path / "launcher").mkdir()
    (tmp_path / "run.sh").write_text(RECIPE)
    launch = LAUNCH.replace('"${#MODEL_ARGS[@]}" -eq 0', count)
    (tmp_path / "launcher" / "grpo_launch.sh").write_text(launch)
    options = ImportOptions(gpu="h200", mean_response=1000, environment={})
    found = imported("slime", [str(tmp_path / "run.sh")], options)
    assert found.resolved.workload.prompts == 16
    assert found.resolved.models["actor"].name == "qwen3-4b"


def test_a_pipeline_above_one_that_is_redirected_ends_with_its_line(tmp_path):
    script = tmp_path / "run.sh"
    command = (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \\\n"
        "  data.train_batch_size=96 2>&1 | tee run.log\n"
    )
    kill = "\nps aux | grep ray | awk '{print $2}' | xargs kill -9\n"
    script.write_text(kill + command, encoding="utf-8")
    to_fill_in = f"{kill}{command.replace('run.log', 'run.log <your_root>')}"
    (tmp_path / "other.sh").write_text(to_fill_in, encoding="utf-8")
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={})
    for path in (script, tmp_path / "other.sh"):
        assert imported("verl", [str(path)], options).job.workload.prompts == 96
