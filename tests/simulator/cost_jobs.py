"""Jobs, tasks and sites that cost tests share: a small A100 cluster, named by its sheet."""

from functools import cache

from rlplan.algorithms import load_algorithm
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup
from rlplan.profiles.catalog import load_model
from rlplan.profiles.facts import load_facts
from rlplan.simulator.placed import site_at
from rlplan.workload import Workload

A100 = "a100-80gb-sxm"
PPO = {task.name: task for task in load_algorithm("ppo").tasks}
GRPO = {task.name: task for task in load_algorithm("grpo").tasks}


@cache
def job_of(model="llama-2-7b", nodes=2, algorithm="ppo", **workload):
    """Return a job of four equal models on nodes of eight A100."""
    architecture = load_model(model)
    roles = ("actor", "critic", "reference", "reward")
    if algorithm == "grpo":
        roles = ("actor", "reference", "reward")
    fields = {"prompts": 128, "prompt_tokens": 512, "response_tokens": 512, "updates": 2}
    return Job(
        algorithm=algorithm,
        models=FrozenDict(dict.fromkeys(roles, architecture)),
        workload=Workload(**(fields | workload)),
        cluster=(NodeGroup(gpu=A100, gpus_per_node=8, nodes=nodes, inter_node_gbps=200.0),),
        precision="bf16",
    )


@cache
def facts_of(job):
    """Return the facts of a job's devices, without a profile."""
    return load_facts(job, None)


def site_of(job, gpus):
    """Return the site of the first GPUs of the cluster."""
    site = site_at(job, A100, 0, gpus)
    assert site is not None
    return site
