"""Layouts that run in production are valid, and what is not says which rule, with both numbers."""

from dataclasses import replace
from pathlib import Path

from planner.search import search
from profiles.catalog import ENGINES, load_job, load_model
from profiles.facts import load_facts
from rlplan.files.frozen import FrozenDict
from rlplan.job import NodeGroup
from rlplan.rules import check_plan, refusals
from simulator.simulate import simulate
from tests.planner.sound_plans import plan_on

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
H100 = "h100-80gb-sxm"


def grpo(model, nodes, **work):
    """Return GRPO with one model in both roles on nodes of eight H100."""
    job = load_job(EXAMPLES / "grpo-qwen2.5-7b-8xh100.yaml")
    return replace(
        job,
        models=FrozenDict(dict.fromkeys(job.models, load_model(model))),
        workload=replace(job.workload, **work),
        cluster=(NodeGroup(gpu=H100, gpus_per_node=8, nodes=nodes, inter_node_gbps=3200),),
    )


def colocated(job, train, generate):
    """Return a plan of all roles on all GPUs."""
    infer = {name: size for name, size in train.items() if name not in ("zero", "recompute")}
    return plan_on(
        job,
        {"p0": (job.gpus, ("actor", "reference")), "host": (16, ("rule",))},
        {
            "actor.generate": ("p0", generate),
            "reference.compute_log_prob": ("p0", infer),
            "rule.compute_reward": ("host", {"dp": 16}),
            "actor.update": ("p0", train),
        },
        device=H100,
        transition="all-gather",
    )


def refused(plan):
    """Return what the rules refuse of a plan, in words."""
    return [f"{each.field}: {each.problem.words}" for each in refusals(plan, plan.job, ENGINES)]


def test_sixteen_prompts_of_32_samples_are_shared_out_to_32_ranks():
    work = {"prompts": 16, "samples_per_prompt": 32, "updates": 1}
    job = grpo("qwen3-30b-a3b", 4, **work)
    train = {"dp": 32, "ep": 8, "zero": 1, "recompute": "full"}
    plan = colocated(job, train, {"tp": 2, "dp": 16})
    check_plan(plan, ENGINES)
    forecast = simulate(plan, load_facts(job))
    assert forecast.iteration_seconds > 0
    one_more = replace(job, workload=replace(job.workload, prompts=17))
    assert simulate(replace(plan, job=one_more), load_facts(job)).iteration_seconds > (
        forecast.iteration_seconds
    )


def test_generation_crosses_nodes_where_its_engine_does_and_training_does_not():
    job = grpo("llama-2-7b", 4, prompts=64, samples_per_prompt=8, updates=1)
    train = {"tp": 4, "dp": 8, "zero": 1, "recompute": "full"}
    plan = colocated(job, train, {"tp": 32})
    assert not refused(plan)
    beyond = colocated(job, train | {"tp": 32, "dp": 1}, {"tp": 32})
    words = ["actor.update", "reference.compute_log_prob"]
    assert sorted(refused(beyond)) == [f"tasks.{name}.tp: leaves the node" for name in words]


def test_more_ranks_than_kv_heads_hold_copies_of_them():
    job = grpo("llama-3.1-70b", 2, prompts=64, samples_per_prompt=8, updates=1)
    train = {"tp": 8, "pp": 2, "zero": 1, "recompute": "full"}
    plan = colocated(job, train, {"tp": 16})
    assert not refused(plan)
    generate = plan.tasks["actor.generate"]
    three = plan.tasks.with_item("actor.generate", replace(generate, tp=12))
    assert refused(replace(plan, tasks=three))[0] == (
        "tasks.actor.generate.tp: does not divide the 64 heads and 8 KV heads of llama-3.1-70b"
    )


def test_a_batch_that_does_not_divide_is_about_as_fast_as_the_next_that_does():
    seconds = [
        search(job, load_facts(job)).plans[0].forecast.iteration_seconds
        for job in (grpo("qwen2.5-0.5b", 1, prompts=count, updates=1) for count in (125, 128))
    ]
    assert seconds[0] <= seconds[1]
