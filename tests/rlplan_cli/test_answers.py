"""What `search` and `simulate` print first: whether it fits, how long it takes, how each task runs."""

import re
from pathlib import Path

import pytest

from rlplan.planner.answers.completion import load_plan
from rlplan.planner.requests.drafts import load_request
from rlplan.results.stored import plan_text
from rlplan.simulator.timeline.expenses import forward_flops
from tests.house.tree import ROOT
from tests.rlplan_cli.conftest import JOB, change, dump

PPO = ROOT / "examples" / "ppo-7b-16xa100.plan.yaml"


def test_simulate_begins_with_the_verdict_and_the_figures_of_a_step(rlplan):
    answer = rlplan("simulate", PPO)
    fits, training, step, rate, mfu, cost = answer.out.splitlines()[:6]
    assert re.fullmatch(
        r"fits: \d+\.\d of 80\.0 GiB \(\d\d %\), during actor\.(generate|update)", fits
    )
    assert re.fullmatch(
        r" {6}training at most: .+ GiB \(\d\d %\), during (actor|critic)\.update", training
    )
    assert re.fullmatch(r"step: .+ \(p10 to p90: .+ to .+\)", step)
    assert re.fullmatch(r"rate: [\d,]+ tokens/s/GPU on 16 \u00d7 a100-80gb-sxm", rate)
    assert re.fullmatch(r"MFU:  \d\d % in actor\.update and \d\d % in critic\.update", mfu)
    assert re.fullmatch(r"cost: \d+\.\d\d USD and \d+ kJ a step", cost)
    assert "assumed: 8 x a100-80gb-sxm a node" in answer.err
    assert "may be off: most of all actor.generate: " in answer.err


APART = (
    "python3 train_async.py --hf-checkpoint Qwen/Qwen3-8B --ref-load /ref --advantage-estimator grpo --use-kl-loss --actor-num-nodes 1 "
    "--actor-num-gpus-per-node 4 --rollout-num-gpus 4 --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256 "
    "--rollout-max-response-len 4096 --tensor-model-parallel-size 2 --use-dynamic-batch-size --max-tokens-per-gpu 9216 "
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --num-rollout 100"
)


def test_training_is_told_beside_an_engine_that_fills_more_on_gpus_of_its_own(project, rlplan):
    Path("run.sh").write_text(f"{APART}\n", encoding="utf-8")
    answer = rlplan("check", "slime", "run.sh", "--gpu", "h100", "--mean-response", 1500)
    assert answer.code == 0, answer.err
    fits, training = (line for line in answer.out.splitlines() if " GiB " in line)
    assert fits.endswith("on pool rollout")
    assert training.startswith("      training at most: ")


@pytest.mark.full
def test_every_task_has_a_row_with_its_layout(project, rlplan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    assert rlplan("simulate", PPO, "--out-plan", "ppo.yaml").code == 0
    change("ppo.yaml", "tasks", "actor.update", "token_budget", to=16384)
    lines = rlplan("simulate", "ppo.yaml").out.splitlines()
    (head,) = [line for line in lines if line.startswith("Task ")]
    assert head.split()[:8] == "Task Pool GPUs TP PP DP CP EP".split()
    (row,) = [line for line in lines if line.startswith("actor.update ")]
    assert row.split()[1:10] == ["p0", "16", "8", "1", "2", "1", "1", "16,384", "tokens"]


@pytest.mark.full
def test_a_search_shows_its_best_plan_and_the_five_best_placements(project, rlplan):
    few, every = rlplan("search", "job.yaml"), rlplan("search", "job.yaml", "--all")
    for answer in (few, every):
        assert answer.out.startswith("fits: ")
        assert "\nactor.generate " in answer.out
    assert "The 5 best of " in few.out
    assert len(re.findall(r"^ *\d+  {", few.out, re.MULTILINE)) == 5
    assert len(re.findall(r"^ *\d+  {", every.out, re.MULTILINE)) > 5


@pytest.mark.full
@pytest.mark.parametrize("change_of", [{}, {"mode": "one-step-off"}])
def test_a_plans_file_holds_what_was_decided_first_and_is_read_as_the_same_plan(
    project, rlplan, change_of
):
    Path("wide.yaml").write_text(
        dump(JOB | {"cluster": [{"gpu": "cpu", "gpus_per_node": 2, "nodes": 2}]})
    )
    Path("part.yaml").write_text(dump({"job": "wide.yaml"} | change_of))
    if change_of:
        change("wide.yaml", "specs", to={"staleness": 1})
    assert rlplan("search", "part.yaml", "--out", "best.yaml").code == 0
    plan, _ = load_plan(Path("best.yaml"))
    text = Path("best.yaml").read_text()
    assert plan_text(plan) == text
    assert text.index("\ntasks:") < text.index("\njob:")
    assert len(text[: text.index("\njob:")].splitlines()) < 40
    assert "cp: 1" not in text
    _, pinned = load_request(Path("best.yaml"))
    assert all(
        pinned.tasks[name].recompute is not None for name in pinned.tasks if "rule" not in name
    )


def test_a_job_in_place_of_a_plan_is_told_what_to_do(project, rlplan):
    (line,) = rlplan("simulate", "job.yaml").lines
    assert "job.yaml: is a job, not a plan" in line
    assert "`rlplan search job.yaml --out plan.yaml`" in line


def test_a_misspelt_key_comes_before_the_key_that_it_was_meant_to_be(project, rlplan):
    change("job.yaml", "cluster", to=[{"gpu": "cpu", "gpu_per_node": 2}])
    (line,) = rlplan("search", "job.yaml").lines
    assert "cluster.0.gpu_per_node: unknown key" in line
    assert "did you mean 'gpus_per_node'?" in line


def test_placements_are_read_as_they_are_shown(project, rlplan):
    pools = [{"roles": ["generation"]}, {"roles": ["actor", "critic", "reference", "reward"]}]
    Path("part.yaml").write_text(dump({"job": "job.yaml", "pools": pools}))
    answer = rlplan("search", "part.yaml", "--json")
    assert answer.code == 0, answer.err
    plan = answer.json["plans"][0]["plan"]
    assert plan["tasks"]["actor.generate"]["pool"] != plan["tasks"]["actor.update"]["pool"]
    assert "{generation} {actor, critic, reference, reward}" in rlplan("search", "part.yaml").out


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"pools": [{"roles": ["generation"]}]}, "one pool with generation, and one with actor"),
        (
            {
                "pools": [
                    {"name": "a", "roles": ["generation"]},
                    {"name": "b", "roles": ["actor"]},
                ],
                "tasks": {"actor.generate": {"pool": "b"}},
            },
            "tasks.actor.generate.pool: is another pool",
        ),
    ],
)
def test_a_pool_that_generates_needs_another_that_trains(project, rlplan, parts, said):
    Path("part.yaml").write_text(dump({"job": "job.yaml"} | parts))
    answer = rlplan("search", "part.yaml")
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert said in answer.err


def test_a_forward_pass_has_two_flops_for_each_weight_and_token():
    """And attention: Chowdhery et al. 2022 (PaLM), appendix B; causal, so half of its 2 x 2 L s h a token."""
    plan, _ = load_plan(PPO)
    model, tokens = plan.job.architecture("actor"), 2048
    weights = 6.607e9  # Llama-2-7B's 6.738e9 without the embedding, which is looked up
    attention = 4 * model.num_layers * tokens * model.hidden_size / 2
    expected = plan.job.workload.sequences * tokens * (2 * weights + attention)
    assert forward_flops(model, plan.job, "lm") == pytest.approx(expected, rel=0.002)


@pytest.mark.full
def test_plans_whose_steps_overlap_say_their_mode_and_age_and_why_they_win_or_lose(
    project, rlplan, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    answer = rlplan("search", "job.yaml", "--mode", "one-step-off", "--all")
    assert answer.code == 0, answer.err
    (row, *_) = (line for line in answer.out.splitlines() if "one-step-off" in line)
    assert re.search(r"} one-step-off, weights up to 1 update old, .+ to .+", row)
    assert re.search(
        r"^one-step-off (wins|loses): the best plan .+, \{.+\}, takes .+, [+\u2212]\d+\.\d %",
        answer.err,
        re.MULTILINE,
    )
