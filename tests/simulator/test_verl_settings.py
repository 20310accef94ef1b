"""Settings that verl users run, written as plans: hybrid sharding, Ulysses, experts, pools of their own."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.job import NodeGroup
from rlplan.profiles.catalog import ENGINES, load_job, load_model
from rlplan.profiles.facts import load_facts
from rlplan.rules import check_plan
from rlplan.simulator.simulate import simulate
from rlplan.workload import Workload
from tests.planner.sound_plans import plan_on

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
H100 = "h100-80gb-sxm"


def job_of(example, model, nodes, train, **work):
    """Return an example's job with one model in all roles, on nodes of eight H100."""
    job = load_job(EXAMPLES / example)
    return replace(
        job,
        models=FrozenDict(dict.fromkeys(job.models, load_model(model))),
        workload=Workload(**work),
        engines=replace(job.engines, train=train),
        cluster=(NodeGroup(gpu=H100, gpus_per_node=8, nodes=nodes, inter_node_gbps=3200),),
    )


def grpo_plan(job, train, generate, *, apart=0, transition="all-gather"):
    """Return a plan of GRPO, with so many GPUs of generation's own."""
    infer = train | {"micro_batch": 8}
    infer.pop("recompute", None)
    if train.get("zero", 0) < 3:
        infer.pop("zero", None)
        infer.pop("shard_ranks", None)
    pools = {"p0": (job.gpus - apart, ("actor", "reference")), "host": (16, ("rule",))}
    if apart:
        pools["p1"] = (apart, ("actor",))
    return plan_on(
        job,
        pools,
        {
            "actor.generate": ("p1" if apart else "p0", generate),
            "reference.compute_log_prob": ("p0", infer | {"offload": not apart}),
            "rule.compute_reward": ("host", {"dp": 16}),
            "actor.update": ("p0", train | {"recompute": "full", "offload": not apart}),
        },
        device=H100,
        transition="two-copies" if apart else transition,
    )


def fsdp_in_groups_of_eight_with_ulysses_of_two():
    work = {"prompts": 256, "samples_per_prompt": 8, "prompt_tokens": 1024, "response_tokens": 4096}
    job = job_of("grpo-qwen2.5-7b-8xh100.yaml", "qwen2.5-7b", 4, "fsdp2", updates=4, **work)
    train = {"dp": 16, "cp": 2, "zero": 3, "shard_ranks": 8, "micro_batch": 2}
    return grpo_plan(job, train, {"tp": 2, "dp": 16, "memory_fraction": 0.6})


def megatron_with_whole_experts():
    work = {
        "prompts": 512,
        "samples_per_prompt": 16,
        "prompt_tokens": 2048,
        "response_tokens": 8192,
    }
    job = job_of(
        "grpo-qwen2.5-7b-8xh100.yaml", "qwen3-30b-a3b", 16, "megatron-core", updates=4, **work
    )
    train = {"tp": 2, "cp": 2, "dp": 32, "ep": 8, "expert_tp": 1, "zero": 1, "micro_batch": 2}
    return grpo_plan(job, train, {"tp": 4, "dp": 32, "memory_fraction": 0.5})


def ppo_with_a_reward_model_on_a_pool_of_its_own():
    work = {"prompts": 1024, "prompt_tokens": 512, "response_tokens": 512}
    job = job_of("ppo-7b-16xa100.yaml", "qwen2.5-7b", 3, "fsdp2", updates=4, **work)
    infer = {"dp": 16, "zero": 3, "shard_ranks": 8, "micro_batch": 8}
    train = infer | {"recompute": "full"}
    return plan_on(
        job,
        {"p0": (16, ("actor", "critic", "reference")), "p1": (8, ("reward",))},
        {
            "actor.generate": ("p0", {"tp": 2, "dp": 8, "memory_fraction": 0.6}),
            "critic.compute_values": ("p0", infer),
            "reference.compute_log_prob": ("p0", infer),
            "reward.compute_reward": ("p1", {"tp": 2, "dp": 4, "micro_batch": 8}),
            "actor.update": ("p0", train),
            "critic.update": ("p0", train),
        },
        device=H100,
        transition="all-gather",
    )


def generation_apart_and_one_update_ahead():
    work = {"prompts": 64, "samples_per_prompt": 8, "prompt_tokens": 1024, "response_tokens": 2048}
    job = job_of("grpo-qwen2.5-7b-8xh100.yaml", "qwen2.5-7b", 4, "fsdp2", updates=4, **work)
    train = {"dp": 16, "zero": 3, "micro_batch": 2}
    plan = grpo_plan(job, train, {"tp": 2, "dp": 8}, apart=16)
    return replace(plan, mode="one-step-off", staleness=1)


@pytest.mark.parametrize(
    "plan_of",
    [
        fsdp_in_groups_of_eight_with_ulysses_of_two,
        megatron_with_whole_experts,
        ppo_with_a_reward_model_on_a_pool_of_its_own,
        generation_apart_and_one_update_ahead,
    ],
)
def test_a_setting_is_valid_and_fits(plan_of):
    plan = plan_of()
    check_plan(plan, ENGINES)
    forecast = simulate(plan, load_facts(plan.job))
    assert forecast.iteration_seconds > 0
    assert forecast.feasible
