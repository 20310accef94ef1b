"""The jobs and plans that `asynchronous.py` and `episodes.py` run in every mode, on two pools of a core each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.models import ModelArchitecture
from rlplan.plan import HOST_DEVICE, Plan, ResourcePool, TaskPlan
from rlplan.profiles.catalog import load_job
from rlplan.workload import Lognormal

DEMO = Path(__file__).parents[1] / "rlplan_cli" / "demo_job" / "job.yaml"
SAMPLES, PROMPTS, MAX_RUNNING = 4, 16, 32
ENGINES = {"generate": "torch-static", "rule": "python"}
RUNS: dict[str, dict[str, Any]] = {
    "sync": {},
    "streaming": {"mode": "streaming"},
    "one-step-off": {"mode": "one-step-off", "staleness": 1},
    "async, staleness 1": {"mode": "async", "staleness": 1, "in_flight": "recompute"},
    "async, staleness 4": {"mode": "async", "staleness": 4, "in_flight": "recompute"},
    "async, staleness 1, decoupled": {"mode": "async", "staleness": 1, "in_flight": "recompute"},
    "async, staleness 4, decoupled": {"mode": "async", "staleness": 4, "in_flight": "recompute"},
}
# Most that a token is weighed with in decoupled PPO.
IMPORTANCE_CAP = 2.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Hold what one of the jobs is.

    Attributes:
        sizes: Of the actor and the reference, where they are not the demo's.
        lengths: Of responses. Most are short, and one in thirty three times as long as the mean: the tail of
            published runs.
        warmup_share: Of the iterations, which are not timed. The tiny model's policy ends responses before their
            length until it says nothing but digits.
    """

    sizes: Mapping[str, int]
    lengths: Lognormal
    updates: int
    iterations: int
    warmup_share: float
    words: str


SETTINGS = {
    "tiny": Setting(
        sizes={},
        lengths=Lognormal(mean=24.0, std=24.0, max=128),
        updates=2,
        iterations=80,
        warmup_share=0.5,
        words="the demo's model (2 layers of width 64)",
    ),
    "wider": Setting(
        sizes={
            "hidden_size": 192,
            "num_layers": 4,
            "num_heads": 6,
            "num_kv_heads": 2,
            "head_dim": 32,
            "ffn_size": 512,
        },
        lengths=Lognormal(mean=48.0, std=48.0, max=192),
        updates=4,
        iterations=20,
        warmup_share=0.25,
        words="a model of 4 layers of width 192",
    ),
}


def small_job(setting: Setting) -> Job:
    """Return the demo's job with GRPO, fewer prompts and long-tailed lengths."""
    job = load_job(DEMO)
    assert job.rewards is not None
    work = replace(
        job.workload,
        prompts=PROMPTS,
        samples_per_prompt=SAMPLES,
        response_tokens=setting.lengths,
        updates=setting.updates,
    )
    tiny = job.models["actor"]
    assert isinstance(tiny, ModelArchitecture)
    actor = replace(tiny, **setting.sizes)
    return replace(
        job,
        name="modes",
        algorithm="grpo",
        workload=work,
        models=FrozenDict({"actor": actor, "reference": actor}),
        rewards=replace(job.rewards, function="digits"),
    )


def plan_of(setting: Setting, name: str, seed: int = 0) -> Plan:
    """Return a run's plan, with a seed of prompts and lengths: one core generates, one trains, a process judges."""
    job = replace(small_job(setting), seed=seed)
    if name.endswith("decoupled"):
        settings = replace(job.hyperparameters, importance_cap=IMPORTANCE_CAP)
        job = replace(job, old_log_prob="trainer", hyperparameters=settings)
    pools = (
        ResourcePool(name="train", device="cpu", gpus=1, roles=("actor", "reference")),
        ResourcePool(name="generate", device="cpu", gpus=1, roles=("actor",)),
        ResourcePool(name="judge", device=HOST_DEVICE, gpus=1, roles=("rule",)),
    )
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    where = {"generate": "generate", "rule": "judge"}
    layouts = {
        task.name: TaskPlan(
            pool=where.get(task.kind, "train"),
            micro_batch=16,
            max_running=MAX_RUNNING,
            engine=ENGINES.get(task.kind, "torch-3d"),
        )
        for task in tasks
    }
    order = {
        pool.name: tuple(task.name for task in tasks if layouts[task.name].pool == pool.name)
        for pool in pools
    }
    plan = Plan(
        job=job,
        pools=pools,
        tasks=FrozenDict(layouts),
        order=FrozenDict(order),
        transition="two-copies",
    )
    return replace(plan, **RUNS[name])
