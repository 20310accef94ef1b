"""What environments ask of host and cache, beside the seconds of their episodes."""

import re
from dataclasses import replace

import pytest

from rlplan.errors import InfeasibleError
from rlplan.files.frozen import FrozenDict
from rlplan.job import CacheOffload, Engines, Job, NodeGroup
from rlplan.plan import PlanDraft, PoolDraft, TaskDraft
from rlplan.planner.answers.completion import complete
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.generation_needs import held_seconds
from rlplan.workload import EmpiricalSeconds, Environment, Workload

SANDBOX = Environment(
    name="sandbox",
    turns=4,
    observation_tokens=100,
    step_seconds=2.0,
    final_step_seconds=0.5,
    reset_seconds=1.0,
    cpu_cores=2.0,
)


def forecast_of(tmp_path, *environments, sizes=None, **changes):
    job = Job(
        name="episodes",
        algorithm="grpo",
        models=FrozenDict(dict.fromkeys(("actor", "reference"), "tiny")),
        workload=Workload(
            prompts=8,
            samples_per_prompt=4,
            prompt_tokens=16,
            response_tokens=64,
            environments=environments,
        ),
        **({"cluster": (NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=2, cpu_cores=64),)} | changes),
    )
    resolved = resolve_job(job, tmp_path)
    draft = PlanDraft(
        job="job.yaml",
        pools=(PoolDraft(name="p0", gpus=2, roles=("actor", "reference")),),
        tasks=FrozenDict({"actor.generate": TaskDraft(**(sizes or {}))}),
    )
    facts = load_facts(resolved)
    return simulate(complete(draft, resolved, facts), facts)


def test_cores_sandboxes_and_contexts_are_counted(tmp_path):
    (found,) = forecast_of(tmp_path, SANDBOX).environments
    assert held_seconds(SANDBOX) == 1.0 + 3 * 2.0 + 0.5
    assert found.episodes == 32
    assert found.under_way == 32
    assert found.core_seconds == pytest.approx(32 * 7.5 * 2)
    assert found.most_cores == 64, "32 episodes, 2 cores each"
    assert found.mean_cores <= 64
    assert found.context_tokens == 16 + 64 + 3 * 100
    assert found.resident > 0


def test_instances_and_workers_bound_what_is_held_at_a_time(tmp_path):
    few = replace(SANDBOX, instances=8, workers=4)
    (found,) = forecast_of(tmp_path, few).environments
    assert found.under_way == 8
    assert found.most_cores == 8, "4 workers, 2 cores each"
    assert found.episodes_each * 2 >= 4


def test_steps_are_broken_off_at_their_limit():
    slow = replace(
        SANDBOX, step_seconds=EmpiricalSeconds(values=(1.0, 9.0)), step_limit_seconds=3.0
    )
    assert held_seconds(slow) == pytest.approx(1.0 + 3 * 2.0 + 0.5)


def test_contexts_that_the_gpus_hold_are_not_read_from_host_memory(tmp_path):
    """Two of 16 episodes run at a time; the cache has room for the contexts of all, however few run."""
    found = forecast_of(
        tmp_path,
        SANDBOX,
        sizes={"max_running": 2},
        engines=Engines(generate="vllm-0.15"),
        kv_offload=CacheOffload(replica_bytes=2.0**28),
    )
    assert found.environments[0].resident >= 16
    assert found.host_cache.generation_seconds == found.host_cache.without_seconds


def test_a_host_that_cannot_hold_the_cache_is_named_with_the_key_and_both_sizes(tmp_path):
    """1 TiB a replica of at most 2 GPUs is 512 GiB a GPU at least, whose share of its node is 64 GiB."""
    group = NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=2, cpu_cores=64, host_memory_bytes=2**37)
    told = {"engines": Engines(generate="vllm-0.15"), "cluster": (group,)}
    lacks = r"lacks host memory for kv_offload\.replica_bytes: that is at least \S+ [TG]iB a GPU, and a GPU's share"
    with pytest.raises(InfeasibleError, match=lacks):
        forecast_of(tmp_path, SANDBOX, kv_offload=CacheOffload(replica_bytes=2.0**40), **told)
    found = forecast_of(tmp_path, SANDBOX, kv_offload=CacheOffload(replica_bytes=2.0**30), **told)
    assert found.feasible


def test_a_host_that_cannot_hold_so_many_times_the_cache_is_named_with_a_ratio_that_it_holds(
    tmp_path,
):
    """A GPU's share of its node is 64 GiB; of its own 80 GiB the tiny model leaves the cache 72."""
    group = NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=2, cpu_cores=64, host_memory_bytes=2**37)
    told = {"engines": Engines(generate="vllm-0.15"), "cluster": (group,)}
    lacks = (
        r"lacks host memory for kv_offload\.cache_ratio 2: beside the leanest layouts the cache has 72\.0 GiB a GPU, of "
        r"which that is 144\.0 GiB, and a GPU's share of its node is 64.0 GiB; a ratio of (0\.\d+) fits there"
    )
    with pytest.raises(InfeasibleError, match=lacks) as error:
        forecast_of(tmp_path, SANDBOX, kv_offload=CacheOffload(cache_ratio=2.0), **told)
    named = float(re.search(lacks, str(error.value))[1])
    found = forecast_of(tmp_path, SANDBOX, kv_offload=CacheOffload(cache_ratio=named), **told)
    assert found.feasible
