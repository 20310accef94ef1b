"""What is off-loaded lies in host memory, which is a limit like the GPU's."""

from dataclasses import replace

import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.framework import HostUse
from rlplan.parts import num_parameters
from rlplan.plan import Plan, TaskPlan
from rlplan.profiles.catalog import load_model
from rlplan.profiles.sheets import load_framework
from rlplan.results.forecast import MemoryForecast
from rlplan.simulator.placed import PlacedPlan, PlacedTask
from rlplan.simulator.stages import task_memory
from rlplan.simulator.timeline.assemble import memory_shortage
from rlplan.simulator.timeline.pool_memory import host_capacity_bytes, host_terms, pool_memory
from rlplan.trainers import TrainerOptions
from tests.simulator.cost_jobs import A100, PPO, facts_of, job_of, site_of
from tests.simulator.test_memory import FACTS, JOB, colocated, memory_of

GPUS = JOB.cluster[0].gpus_per_node


def off_loading(host_memory_bytes: int) -> Plan:
    """Return a plan whose optimizer states lie in host memory between updates."""
    plan = colocated()
    tasks = {
        name: replace(layout, offload=name.endswith("update"))
        for name, layout in plan.tasks.items()
    }
    cluster = tuple(replace(g, host_memory_bytes=host_memory_bytes) for g in plan.job.cluster)
    return replace(plan, job=replace(plan.job, cluster=cluster), tasks=FrozenDict(tasks))


def memory_forecast(plan: Plan) -> MemoryForecast:
    return pool_memory(PlacedPlan(plan, FACTS), plan.pools[0])


def test_off_loaded_states_take_host_memory():
    plan = off_loading(2**41)
    found = memory_forecast(plan)
    states = memory_of("actor.update", replace(plan.tasks["actor.update"])).transient
    assert found.host_terms["actor optimizer states"] == states["actor optimizer states"] > 0
    assert found.host_peak_bytes == sum(found.host_terms.values())
    assert found.host_capacity_bytes == 2**41 // GPUS
    assert found.fits_host


def test_a_host_that_is_too_small_is_said_with_both_numbers():
    plan = off_loading(2**33)
    found = memory_forecast(plan)
    assert found.fits_device
    assert not found.fits
    said = memory_shortage(plan.pools[0], found)
    assert "of the 1.0 GiB of host memory that a GPU's share of its node is" in said
    assert "optimizer states" in said


def test_a_plan_that_off_loads_nothing_asks_nothing_of_the_host():
    assert not memory_forecast(colocated()).host_terms


GIGA = 10**9


def host_of(framework, model, *, zero, sleeps=True, tasks=("actor.generate", "actor.update")):
    """Return what lies in host memory for one of eight GPUs, by a framework's ways."""
    base = job_of(model=model, nodes=1)
    engines = replace(base.engines, sleeps=sleeps)
    job = replace(base, framework=framework, engines=engines)
    layouts = {
        "generate": TaskPlan(pool="p0", engine="vllm", dp=8),
        "update": TaskPlan(pool="p0", engine="fsdp2-hf", dp=8, zero=zero),
        "compute_log_prob": TaskPlan(pool="p0", engine="fsdp2-hf", dp=8, zero=zero),
    }
    placed = [
        PlacedTask(PPO[name], layouts[name.split(".")[1]], site_of(job, 8), job, facts_of(job))
        for name in tasks
    ]
    return host_terms([(each, task_memory(each)) for each in placed])


def test_openrlhf_reads_whole_models_on_every_rank_beside_a_sleeping_engine():
    """A process of 11 GB and a model of 2 bytes a parameter for each role, unless ZeRO stage 3 reads parts."""
    roles = ("actor.generate", "actor.update", "reference.compute_log_prob")
    parameters = num_parameters(load_model("qwen2.5-7b"))
    asleep = host_of("openrlhf", "qwen2.5-7b", zero=1, tasks=roles)
    lasting = {"trainers' processes": 22 * GIGA, "engines' processes": 13_500_000_000}
    read = {"models that are being loaded": 2 * 2 * parameters}
    held = {"weights of the sleeping engine": round(1.4 * 2 * parameters)}
    assert asleep == lasting | read | held
    assert 85 * GIGA < sum(asleep.values()) < 90 * GIGA
    awake = host_of("openrlhf", "qwen2.5-7b", zero=1, sleeps=False, tasks=roles)
    assert {term: size for term, size in awake.items() if size} == lasting | read
    parts = host_of("openrlhf", "qwen2.5-7b", zero=3, tasks=roles)
    assert parts["models that are being loaded"] == pytest.approx(2 * 2 * parameters / 8, rel=1e-6)


def test_verl_reads_models_with_tied_embeddings_on_every_rank_and_others_on_one():
    tied, single = load_model("qwen2.5-1.5b"), load_model("qwen2.5-7b")
    assert tied.tied_embeddings
    assert not single.tied_embeddings
    loading = "models that are being loaded"
    assert host_of("verl-fsdp", "qwen2.5-1.5b", zero=3)[loading] == 4 * num_parameters(tied)
    assert host_of("verl-fsdp", "qwen2.5-7b", zero=3)[loading] == -(
        -4 * num_parameters(single) // 8
    )


def test_an_engine_of_gpus_of_its_own_does_not_sleep():
    alone = host_of("openrlhf", "qwen2.5-7b", zero=1, tasks=("actor.generate",))
    assert "weights of the sleeping engine" not in alone
    assert alone["engines' processes"] == 13_500_000_000


def test_a_gpus_share_of_the_host_is_of_what_processes_may_take():
    group = replace(JOB.cluster[0], host_memory_bytes=2**40)
    job = replace(JOB, cluster=(group,))
    assert host_capacity_bytes(job, A100, HostUse(usable_fraction=0.75)) == 3 * 2**38 // 8
    assert host_capacity_bytes(JOB, A100, HostUse()) == 0


def test_states_that_slime_pauses_have_gradients_among_them_and_the_actors_weights_a_copy():
    """Qwen3-30B-A3B, TP 4, EP 8 on 8 GPUs, its optimizer on the host: what a trainer holds there, counted by hand.

    An eighth of the experts is 3.62 billion parameters, a quarter of what is no expert 0.39 billion. Weights take 2
    bytes of each, twice, and gradients 4; the optimizer, whose states two ranks share but for experts, 16 bytes. With 8.0
    of the reference that is 101 GB, where 102.5 GB were seen (slime issue 1851).
    """
    model = load_model("qwen3-30b-a3b")
    job = replace(
        job_of(model="qwen3-30b-a3b", nodes=1),
        framework="slime",
        trainers=FrozenDict({"actor": TrainerOptions(host_optimizer=1.0)}),
    )
    layout = TaskPlan(
        pool="p0",
        engine="megatron-core-2025",
        tp=4,
        dp=2,
        ep=8,
        expert_tp=1,
        zero=1,
        micro_batch=1,
        recompute="full",
        offload=True,
    )
    task = PlacedTask(PPO["actor.update"], layout, site_of(job, 8), job, facts_of(job))
    experts = 48 * 128 * 3 * 2048 * 768
    rest = num_parameters(model) - experts
    own = experts / 8 + rest / 4
    found = host_terms([(task, task_memory(task))])
    assert found["actor weights"] == pytest.approx(2 * own, rel=0.01)
    assert found["copy of the actor's weights"] == found["actor weights"]
    assert found["actor gradients"] == pytest.approx(4 * own, rel=0.01)
    stepped = experts / 8 + rest / 4 / 2
    assert found["actor optimizer on the host"] == pytest.approx(16 * stepped, rel=0.01)


@pytest.mark.parametrize(
    "framework", ["skyrl-fsdp", "roll-fsdp", "roll-megatron", "skyrl-megatron"]
)
def test_frameworks_of_an_actor_for_each_role_have_a_process_for_each(framework):
    """Two processes of 11 GB and an engine's of 13.5; Ray ends what goes beyond 95 % of a node."""
    roles = ("actor.generate", "actor.update", "reference.compute_log_prob")
    found = host_of(framework, "qwen2.5-1.5b", zero=3, tasks=roles)
    processes = {"trainers' processes": 22 * GIGA, "engines' processes": 13_500_000_000}
    assert {name: found[name] for name in processes} == processes
    read = {"skyrl-fsdp": 4, "roll-fsdp": 2}.get(framework, 0)
    whole = num_parameters(load_model("qwen2.5-1.5b"))
    assert (
        found.get("models that are being loaded", 0) == 2 * read * whole
    )  # tied: read by every rank


@pytest.mark.parametrize("framework", ["areal", "prime-rl"])
def test_frameworks_without_ray_may_fill_a_node(framework):
    alone = host_of(framework, "qwen2.5-7b", zero=3, tasks=("actor.update",))
    assert alone == {"trainers' processes": 11 * GIGA, "engines' processes": 0}
    use = load_framework(framework).host
    group = replace(JOB.cluster[0], host_memory_bytes=2**40)
    assert host_capacity_bytes(replace(JOB, cluster=(group,)), A100, use) == 2**40 // 8
