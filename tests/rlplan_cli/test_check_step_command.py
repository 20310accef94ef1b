"""`rlplan check-step`: logs and runs beside their forecast, in text and JSON."""

import shlex
from pathlib import Path

import pytest

from rlplan.planner.answers.completion import load_plan
from rlplan.simulator.simulate import simulate
from tests.planner.configs.test_importing import VERL
from tests.rlplan_cli.conftest import change


def write_log(times):
    """Write a log of verl in which generation takes so many times its forecast."""
    forecast = simulate(*load_plan(Path("plan.yaml")))
    seconds = {cost.name: cost.seconds for cost in forecast.costs}
    figures = {
        "timing_s/gen": times * seconds["actor.generate"],
        "timing_s/ref": seconds["reference.compute_log_prob"],
        "timing_s/values": seconds["critic.compute_values"],
        "timing_s/update_critic": seconds["critic.update"],
        "timing_s/update_actor": seconds["actor.update"],
        "response_length/mean": 8.0,
        "prompt_length/mean": 8.0,
    }
    whole = sum(value for key, value in figures.items() if key.startswith("timing"))
    figures["timing_s/step"] = whole
    line = " - ".join(f"{key}:{value:.9f}" for key, value in figures.items())
    Path("train.log").write_text("".join(f"step:{step} - {line}\n" for step in range(1, 5)))


def test_a_normal_step_is_called_normal(project, rlplan):
    write_log(1.0)
    answer = rlplan("check-step", "train.log", "--plan", "plan.yaml")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("3 steps of verl: 8 prompt and 8 response tokens on average\n")
    assert answer.out.rstrip().endswith("normal: every stage takes what is to be expected")


def test_a_slow_stage_is_named_with_a_cause_in_text_and_json(project, rlplan):
    write_log(9.0)
    text = rlplan("check-step", "train.log", "--plan", "plan.yaml").out
    assert "slow: generation takes 9.00 times its forecast" in text
    assert "  likely: " in text
    found = rlplan("check-step", "train.log", "--plan", "plan.yaml", "--json").json
    slow = [each["name"] for each in found["stages"] if each["verdict"] == "slow"]
    assert (found["verdict"], slow) == ("slow", ["generation"])


def test_a_page_shows_stages_on_their_normal_range(project, rlplan):
    write_log(9.0)
    answer = rlplan("check-step", "train.log", "--plan", "plan.yaml", "--report", "page")
    assert "written: page/check-step.html" in answer.err
    page = Path("page/check-step.html").read_text()
    assert '<strong class="verdict-slow">slow</strong>' in page
    assert "What is not normal, likely causes, and what to try" in page


def test_what_may_be_tried_is_said_in_the_keys_of_the_script_that_ran(project, rlplan):
    few = "actor_rollout_ref.rollout.max_num_seqs"
    Path("run.sh").write_text(f'python3 {shlex.join([*VERL, f"{few}=16"])} "$@"\n')
    times = "timing_s/step:1400.0 - timing_s/gen:1300.0 - timing_s/ref:50.0 - response_length/mean:800 - prompt_length/mean:300"
    Path("train.log").write_text("".join(f"step:{step} - {times}\n" for step in range(1, 4)))
    found = rlplan("check-step", "train.log", "--plan", "run.sh", "--gpu", "h100", "--json").json
    tries = {
        each["name"]: [try_.partition(" (")[0] for try_ in each["tries"]]
        for each in found["stages"]
    }
    assert tries["generation"] == [f"actor.generate: {few}=64", f"actor.generate: {few}=32"]
    budget = "actor_rollout_ref.ref.ppo_max_token_len_per_gpu=65536"
    assert tries["reference"][0] == f"reference.compute_log_prob: {budget}"


def test_the_script_that_ran_stands_in_place_of_a_plan(project, rlplan):
    Path("run.sh").write_text(f'python3 {shlex.join(VERL)} "$@"\n')
    times = (
        "timing_s/step:90.0 - timing_s/gen:60.0 - response_length/mean:800 - prompt_length/mean:300"
    )
    Path("train.log").write_text("".join(f"step:{step} - {times}\n" for step in range(1, 4)))
    answer = rlplan("check-step", "train.log", "--plan", "run.sh", "--gpu", "h100")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("2 steps of verl: 300 prompt and 800 response tokens on average")
    own = ("--gpu", "h100", "--set", "trainer.no_such_key=1")
    assert "trainer.no_such_key" in rlplan("check-step", "train.log", "--plan", "run.sh", *own).err
    untold = rlplan("check-step", "train.log", "--plan", "run.sh")
    assert (untold.code, "--gpu" in untold.err) == (2, True)
    twice = rlplan("check-step", "train.log", "--plan", "plan.yaml", "--gpu", "h100")
    assert (twice.code, "is a job or a plan" in twice.err) == (2, True)


@pytest.mark.full
def test_without_a_plan_the_jobs_best_one_is_compared_with(project, rlplan):
    write_log(1.0)
    answer = rlplan("check-step", "train.log", "--job", "job.yaml")
    assert answer.code == 0, answer.err
    assert "no --plan was given" in answer.err
    answer = rlplan("check-step", "train.log")
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert "with --job, and --plan" in answer.err


def test_a_run_of_our_own_is_compared_at_the_lengths_that_it_had(project, rlplan):
    Path("run/tensorboard").mkdir()  # as a run leaves it: it is no log of a framework
    Path("run/tensorboard/events.out.tfevents.1").touch()
    found = rlplan("check-step", "run", "--json").json
    assert (found["source"], found["verdict"]) == ("rlplan", "normal")
    change("run/measured.json", "response_tokens", to=4.0)
    found = rlplan("check-step", "run", "--json").json
    (generation,) = [each for each in found["stages"] if each["name"] == "actor.generate"]
    assert generation["measured_seconds"] > 1.5 * generation["forecast_seconds"]
    assert any("the log of 4" in each for each in found["notes"])


@pytest.mark.parametrize(("framework", "named"), [("bare-rl", True), ("verl-fsdp", False)])
@pytest.mark.usefixtures("bare_rl")
def test_a_framework_without_a_known_log_is_named(project, rlplan, framework, named):
    plan = Path("plan.yaml")
    change(plan, "job", "framework", to=framework)
    Path("train.log").write_text("step one\nstep two\n")
    answer = rlplan("check-step", "train.log", "--plan", "plan.yaml")
    assert answer.code == 2
    assert "holds no steps of a framework whose log is known" in answer.err
    assert ("no log of bare-rl is known: its logs are not read" in answer.err) is named


def test_a_script_of_slime_or_of_its_fork_is_told_by_as(project, rlplan):
    Path("run.sh").write_text(
        "python3 train.py --colocate --actor-num-nodes 1 --actor-num-gpus-per-node 1 --hf-checkpoint Qwen/Qwen3-0.6B "
        "--rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 512 --global-batch-size 256 "
        "--advantage-estimator grpo --use-dynamic-batch-size --max-tokens-per-gpu 9216 --rollout-num-gpus-per-engine 1\n"
    )
    lines = (
        "perf {0}: {{'perf/rollout_time': 8.0}}\n"
        "rollout {0}: {{'rollout/response_lengths': 120.0, 'rollout/total_lengths': 220.0}}\n"
        "perf {0}: {{'perf/step_time': 20.0, 'perf/actor_train_time': 4.0, 'perf/update_weights_time': 2.0}}\n"
    )
    Path("slime.log").write_text("".join(lines.format(step) for step in range(2)))
    untold = rlplan("check-step", "slime.log", "--plan", "run.sh", "--gpu", "l40s")
    assert "may be of miles or of slime by its words; name it first, or by --as" in untold.err
    answer = rlplan("check-step", "slime.log", "--plan", "run.sh", "--gpu", "l40s", "--as", "slime")
    assert "1 step of slime" in answer.out
