"""`rlplan import` and `rlplan check` on configurations, jobs and plans."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlplan_cli.commands.check import _print_better
from rlplan_cli.config_options import framework_of
from tests.planner.configs.test_importing import NEMO, OPENRLHF, VERL
from tests.planner.configs.test_improving import PADS, micro_batches

GPU = ("--gpu", "h100-80gb-sxm", "--mean-response", "300")


@pytest.fixture
def script(project):
    words = " ".join(f"'{word}'" for word in VERL)
    Path("run.sh").write_text(f'set -x\npython3 {words} made.up.key=1 "$@"\n')
    return "run.sh"


def test_an_import_writes_a_job_and_a_plan_that_are_read_again(script, rlplan):
    answer = rlplan(
        "import", "verl", script, *GPU, "--out", "my/job.yaml", "--plan", "my/plan.yaml"
    )
    assert answer.code == 0
    assert "not understood: made.up.key=1 (run.sh:2)" in answer.err
    assert "written: my/job.yaml" in answer.err
    simulated = rlplan("simulate", "my/plan.yaml")
    assert simulated.code == 0
    assert simulated.out.startswith("fits: ")


def test_an_import_as_json_has_every_key(script, rlplan):
    found = json.loads(rlplan("import", "verl", script, *GPU, "--json").out)
    assert found["keys"]["mapped"]["data.train_batch_size"] == 256
    assert found["keys"]["not_understood"] == {"made.up.key": "run.sh:2"}
    assert found["plan"]["tasks"]["actor.generate"]["tp"] == 2
    assert found["job"]["models"]["actor"] == "qwen3-8b"


def test_a_check_says_whether_it_runs_and_its_code_does_too(script, rlplan):
    sound = rlplan("check", "verl", script, *GPU)
    assert sound.code == 0
    assert sound.out.startswith("run.sh: runs; memory: fits\n")
    assert "What would be faster" in sound.out
    broken = rlplan("check", script, "actor_rollout_ref.rollout.tensor_model_parallel_size=3", *GPU)
    assert broken.code == 1
    assert broken.out.startswith("run.sh: will not run")
    assert "[replicas-divide-the-gpus]" in broken.out


def test_a_framework_s_file_with_a_key_job_of_its_user_s_is_no_plan(tmp_path):
    path = tmp_path / "run.yaml"
    of_verl = {"job": {"name": "mine"}, "actor_rollout_ref": {"rollout": {"n": 8}}}
    path.write_text(json.dumps({**of_verl, "data": {"train_batch_size": 256}}))
    assert framework_of([str(path)])[0] == "verl"
    for keys in (
        {"job": {}, "pools": []},
        {"workload": {}, "actor": {}, "critic": {}},
    ):
        path.write_text(json.dumps(keys))
        assert framework_of([str(path)])[0] is None


def test_settings_that_would_be_faster_are_whole_on_a_narrow_terminal(monkeypatch, capsys):
    """They are there to be pasted; what a setting makes of the memory stands below."""
    setting = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=61440"
    faster = SimpleNamespace(words=setting, seconds=152.0, gain=0.06, memory_fraction=0.96)
    monkeypatch.setenv("COLUMNS", "80")
    checked: Any = SimpleNamespace(better=[faster])
    forecast: Any = SimpleNamespace(feasible=True)
    _print_better(checked, forecast)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [setting, "2", "min", "32", "s", "\u22126%"] in lines
    assert [setting, "96", "%"] in lines


def test_changes_of_a_recipe_are_typed_behind_it_and_flags_that_are_no_options_say_where_they_go(
    project, rlplan
):
    Path("grpo.yaml").write_text(NEMO)
    known = rlplan("check", "grpo.yaml", "policy.dtensor_cfg.tensor_parallel_size=3", *GPU)
    assert (known.code, "[model-ranks-divide-the-gpus]" in known.out) == (1, True)
    unknown = rlplan("check", "grpo.yaml", "--micro_train_batch_size", "2", *GPU).err
    assert "a framework's own flags stand behind --" in unknown
    assert "behind --" not in rlplan("simulate", "grpo.yaml", "--mirco", "2").err
    assert "behind --" not in rlplan("fit-environment", "rollouts.jsonl", "--mirco", "2").err


@pytest.mark.full
def test_a_check_names_first_what_makes_it_doubtful(script, rlplan):
    """Then what was assumed of the work, and what is not understood."""
    key = "actor_rollout_ref.rollout.over_sample_rate"
    lines = rlplan("check", "verl", script, f"{key}=0.1", *GPU).out.splitlines()
    assert lines[0] == "run.sh: runs; memory: fits"
    assert lines[1].startswith(f"doubtful: {key}=0.1 changes the amount of work (")
    assert lines[2].startswith("assumed: prompts of 256 tokens on average")
    assert lines[3] == "not understood, and not counted: made.up.key=1 (run.sh:2)"
    told = rlplan("check", "verl", script, f"{key}=0.1", *GPU, "--json")
    assert json.loads(told.out)["doubtful"] == [lines[1].removeprefix("doubtful: ")]


SLIME = """
CKPT_ARGS=(
   --hf-checkpoint /models/Qwen3-8B
   --ref-load /models/Qwen3-8B_torch_dist
   --save /models/Qwen3-8B_slime/
)
PERF_ARGS=(--tensor-model-parallel-size 2 --sequence-parallel --recompute-granularity full --recompute-method uniform
   --recompute-num-layers 1 --use-dynamic-batch-size --max-tokens-per-gpu 9216)
ray job submit -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate ${CKPT_ARGS[@]} \\
   --num-rollout 100 --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 4096 \\
   --global-batch-size 256 ${PERF_ARGS[@]} --rollout-num-gpus-per-engine {engine} --sglang-mem-fraction-static 0.6 \\
   --attention-dropout 0.0 --hidden-dropout 0.0 --use-kl-loss --rollout-batchsize 64
"""


@pytest.mark.usefixtures("project")
def test_a_script_of_slime_s_is_told_by_its_flags_checked_and_written_again(rlplan):
    Path("run-slime.sh").write_text(SLIME.replace("{engine}", "2"))
    sound = rlplan("check", "run-slime.sh", *GPU)
    assert sound.code == 0, sound.err
    lines = sound.out.splitlines()
    assert lines[0] == "run-slime.sh: runs; memory: fits"
    assert lines[1].startswith("assumed: prompts of at most 2,048 tokens")
    assert lines[3] == "not understood, and not counted: rollout-batchsize=64 (run-slime.sh:12)"
    written = ("--out", "job.yaml", "--plan", "plan.yaml")
    assert rlplan("import", "slime", "run-slime.sh", *GPU, *written).code == 0
    assert rlplan("export", "plan.yaml", "--to", "slime", "--out", "again.sh").code == 0
    assert "--rollout-num-gpus-per-engine 2" in Path("again.sh").read_text()
    Path("broken.sh").write_text(SLIME.replace("{engine}", "3"))
    broken = rlplan("check", "broken.sh", *GPU)
    assert broken.code == 1
    assert "[engines-divide-the-gpus]" in broken.out


def test_a_check_as_json(script, rlplan):
    found = json.loads(rlplan("check", script, *GPU, "--json").out)
    assert found["will_run"] is True
    assert found["memory"] == "fits"
    assert found["step_seconds"] > 0
    assert len(found["better"]) <= 3


def test_command_lines_and_yaml_files_are_checked(project, rlplan):
    Path("grpo.yaml").write_text(NEMO)
    assert rlplan("check", "grpo.yaml", *GPU).code == 0
    assert rlplan("import", "openrlhf", *GPU, "--", *OPENRLHF).code == 0


def test_a_job_and_a_plan_are_checked(script, rlplan):
    rlplan("import", "verl", script, *GPU, "--plan", "plan.yaml")
    assert rlplan("check", "plan.yaml").out.startswith("plan.yaml: runs; memory: fits\n")


def test_a_script_is_run_only_where_that_is_asked_for(project, rlplan):
    words = " ".join(f"'{word}'" for word in VERL)
    Path("run.sh").write_text(f"touch ran\nN=$(cat nodes)\npython3 {words} trainer.nnodes=$N\n")
    Path("nodes").write_text("2\n")
    refused = rlplan("import", "verl", "run.sh", *GPU)
    assert refused.code == 2
    assert "trainer.nnodes: cannot be evaluated: line 2" in refused.err
    assert not Path("ran").exists()
    assert rlplan("import", "verl", "run.sh", *GPU, "--run").code == 0
    assert Path("ran").exists()


@pytest.mark.full
def test_a_start_that_nothing_reveals_is_named(project, rlplan):
    keys = [word for word in VERL[2:] if not word.startswith("actor_rollout_ref")]
    Path("run.sh").write_text(f"python3 -m my_trainer.run {' '.join(keys)}\n")
    given = ("run.sh", *GPU, "--model", "qwen2.5-7b")
    refused = rlplan("check", "verl", *given)
    assert refused.code == 2
    assert "nothing tells that this is one: my_trainer.run (line 1)" in refused.err
    for words in (("verl", *given, "--as", "my_trainer.run"), (*given, "--as", "verl")):
        answer = rlplan("check", *words)
        assert answer.out.startswith("run.sh: runs")
        assert "my_trainer.run is taken as verl's verl.trainer.main_ppo" in answer.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("import", "verl", "run.sh", "--gpu", "h100"), "--mean-response: is missing"),
        (("import", "verl", "run.sh", "--mean-response", "300"), "--gpu: is missing"),
        (("import", "vrel", "run.sh", *GPU), "did you mean 'verl'"),
        (("check", "run.sh", "--gpu", "h10", "--mean-response", "300"), "did you mean 'h100"),
        (
            ("check", "run.sh", "--gpu", "2x8xh100", "--mean-response", "300"),
            "--gpu: says how many GPUs, which the configuration itself does; found '2x8xh100'; allowed: their type: --gpu h100",
        ),
        (("import", "verl", "gone.sh", *GPU), "no such file"),
        (("check", "gone.yaml"), "gone.yaml"),
        (("check", "gone.sh", *GPU), "gone.sh: no such file"),
        (("check", "some", "words", *GPU), "name it first"),
        (("import", "nemo-rl", "run.sh", *GPU), "starts no RL training"),
        (("search", "job.yaml", "--for", "vrel"), "unknown framework 'vrel'; known: "),
        (("import", "verl", "run.sh", "--gpu", "h100", "--mean-response", "9000"), "at most 4,096"),
    ],
)
def test_wrong_words_get_one_complaint(script, rlplan, words, complaint):
    answer = rlplan(*words)
    assert answer.code == 2
    assert complaint in answer.err
    assert len(answer.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("import", "bare-rl", "run.sh", *GPU),
        ("check", "bare-rl", "run.sh", *GPU),
        ("export", "plan.yaml", "--to", "bare-rl"),
        ("search", "job.yaml", "--for", "bare-rl"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.usefixtures("bare_rl")
def test_what_is_not_known_of_a_framework_is_said_by_its_name(script, rlplan, words):
    answer = rlplan(*words)
    assert answer.code == 2
    told = (
        "no keys of bare-rl are known: its configurations are neither read nor written; known of: "
    )
    assert answer.err.startswith(f"rlplan: {told}")
    assert "openrlhf, " in answer.err
    assert len(answer.err.strip().splitlines()) == 1


@pytest.mark.full
def test_a_check_names_what_runs_out_first_and_what_to_type(script, rlplan):
    crowded = (*micro_batches(64, 16, 1), PADS)
    answer = rlplan("check", "verl", script, *crowded, *GPU)
    first, fullest = (
        answer.out.index("runs out first during"),
        answer.out.index("during actor.update"),
    )
    assert answer.out[first:].startswith(
        "runs out first during actor.compute_log_prob on pool train: "
    )
    assert fullest < first
    found = json.loads(rlplan("check", "verl", script, *crowded, *GPU, "--json").out)
    assert found["runs_out_first"]["during"] == "actor.compute_log_prob"
    assert found["better"]
    for each in found["better"]:
        again = json.loads(
            rlplan("check", "verl", script, *crowded, *each["arguments"], *GPU, "--json").out
        )
        assert again["forecast"]["feasible"]
        assert again["step_seconds"] == pytest.approx(each["seconds"], rel=1e-9)


@pytest.mark.full
def test_a_check_says_where_no_few_changes_make_it_fit(script, rlplan):
    large = (
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-72B",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=4",
    )
    answer = rlplan("check", "verl", script, *large, *GPU)
    assert answer.code == 1
    assert "no change of up to three settings that was tried makes it fit" in answer.err


def test_memory_is_told_beside_a_rule_of_batches_that_is_broken(script, rlplan):
    answer = rlplan("check", "verl", script, "actor_rollout_ref.actor.ppo_mini_batch_size=7", *GPU)
    assert answer.code == 1
    assert answer.out.startswith("run.sh: will not run; memory: fits\n")
    assert "ppo_mini_batch_size=7 changes the amount of work" in answer.out
    assert (
        "x rollout.n = 56 samples do not divide over the actor's 16 data-parallel ranks"
        in answer.out
    )


def test_a_nodes_host_memory_is_what_is_said_of_it(script, rlplan):
    job = json.loads(
        rlplan("import", "verl", script, *GPU, "--host-memory-gb", "512", "--json").out
    )
    assert job["job"]["cluster"][0]["host_memory_bytes"] == 512 * 10**9
    small = rlplan("check", "verl", script, *GPU, "--host-memory-gb", "60")
    assert (small.code, "memory: does not fit" in small.out) == (1, True)
    assert "Host memory" in small.out


@pytest.mark.parametrize("given", ["lots", "0", "inf"])
def test_a_host_memory_that_is_none_is_told(script, rlplan, given):
    answer = rlplan("check", "verl", script, *GPU, "--host-memory-gb", given)
    assert answer.code == 2
    assert f"found '{given}'" in answer.err
    assert "allowed: GB, 1 or more" in answer.err


def test_what_only_starts_processes_is_no_job(project, rlplan):
    Path("zero3.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n"
    )
    answer = rlplan("check", "zero3.yaml")
    assert answer.code != 0
    assert "says how accelerate starts processes" in answer.err
    assert "--config_file" in answer.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("student_train: {model_args: {}}\npretrain: x\n", "distils from a teacher"),
        ("sft_train: {model_args: {}}\npretrain: x\n", "trains on texts (SFT)"),
    ],
)
def test_a_file_that_trains_otherwise_is_not_taken_for_a_job(project, rlplan, text, told):
    Path("other.yaml").write_text(text, encoding="utf-8")
    for command in ("check", "search"):
        answer = rlplan(command, "other.yaml", *GPU)
        assert answer.code == 2
        assert told in answer.err
        assert "(ROLL); rlplan reads training with RL" in answer.err


def test_a_teacher_that_an_engine_serves_has_its_pool(script, rlplan):
    teacher = "distillation.teacher_models.teacher_model"
    words = (
        "distillation.enabled=True", "distillation.nnodes=1", "distillation.n_gpus_per_node=8",
        f"{teacher}.model_path=Qwen/Qwen3-32B", "distillation.distillation_loss.loss_mode=forward_kl_topk",
        "distillation.distillation_loss.use_task_rewards=False", "actor_rollout_ref.actor.use_kl_loss=False",
        f"{teacher}.inference.gpu_memory_utilization=0.9",
    )  # fmt: skip
    found = json.loads(rlplan("import", "verl", script, *words, *GPU, "--json").out)
    assert found["job"]["algorithm"] == "on-policy-distillation"
    assert found["job"]["teacher"] == {
        "top_tokens": 32, "engine": "vllm-0.15-server-eager", "max_running": 1024, "memory_fraction": 0.9,
    }  # fmt: skip
    assert found["plan"]["tasks"]["teacher.compute_log_prob"]["pool"] == "teacher"


def test_a_refusal_s_command_line_is_answered_as_it_is_typed(project, rlplan):
    Path("own.py").write_text(
        "GRPOTrainer(load(), args=GRPOConfig('o', max_completion_length=size()))\n",
        encoding="utf-8",
    )
    refused = rlplan("import", "trl", "own.py")
    assert refused.code == 2
    _, _, typed = refused.err.strip().partition("; as in: rlplan ")
    assert {"--gpu", "--model", "--set", "--mean-response"} <= {*shlex.split(typed)}
    answer = rlplan(*shlex.split(typed))
    assert answer.code == 0, answer.err
    wrong = rlplan("import", "trl", "own.py", "--set", "max_completion_length", "--gpu", "h100")
    assert "--set: says no value" in wrong.err


def test_a_script_tells_its_framework_and_a_name_before_it_has_to_be_one(project, rlplan):
    start = "trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B --num_generations 4 --num_processes 1"
    Path("own.sh").write_text(f"{start} --per_device_train_batch_size 4\n", encoding="utf-8")
    options = ("--gpu", "h100", "--mean-response", "100", "--json")
    named = rlplan("import", "trl", "own.sh", *options)
    assert named.code == 0, named.err
    assert rlplan("import", "own.sh", *options).json == named.json
    assert "unknown framework 'trll'" in rlplan("import", "trll", "own.sh", *options).err
    assert "trl: is given no file" in rlplan("import", "trl", *options).err
    assert "is of no framework by its keys" in rlplan("import", "job.yaml", *options).err
    asked = rlplan("search", "own.sh")
    assert asked.code == 2
    assert "rlplan search --gpu h100-80gb-sxm --mean-response 256 own.sh" in asked.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "torchrun -m verl.trainer.sft_trainer model.path=Qwen/Qwen2.5-0.5B",
            "trains on texts (SFT)",
        ),
        (
            'echo "Usage: run_gemma.sh <GPUs>"\ntorchrun -m verl.trainer.sft_trainer model.path=x',
            "trains on texts (SFT)",
        ),
        ("uv run sft @ configs/sft.toml", "trains on texts (SFT)"),
        ("swift sft --model Qwen/Qwen2.5-7B --dataset x", "trains on texts (SFT)"),
        ("trl sft --model_name_or_path Qwen/Qwen2.5-0.5B", "trains on texts (SFT)"),
        ("python train_ppo.py --model Qwen/Qwen2.5-0.5B", "is of no framework that is known"),
        ("python train.py --model Qwen/Qwen2.5-0.5B", "is of no framework that is known"),
        ("python my_rl.py --init sft --format pt", "is of no framework that is known"),
        ("python prepare_sft_data.py\npython my_rl.py", "is of no framework that is known"),
        ("bash train_rl.sh\npython tools/eval.py", "is of no framework that is known"),
    ],
)
def test_a_script_that_trains_otherwise_is_told_so_without_a_framework_s_name(
    project, rlplan, text, told
):
    Path("own.sh").write_text(f"{text}\n", encoding="utf-8")
    assert told in rlplan("import", "own.sh", "--gpu", "h100", "--mean-response", "100").err
