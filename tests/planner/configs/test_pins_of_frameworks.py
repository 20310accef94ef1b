"""What is pinned of a plan that a framework runs leaves that plan, whichever of the framework's trainers has it."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Hyperparameters, Job, NodeGroup, Rewards, Role
from rlplan.models import Adapter, ModelArchitecture
from rlplan.plan import TaskDraft
from rlplan.planner.configs.proposing.searching import plans_of
from rlplan.planner.configs.proposing.ways import ways_of
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.planner.configs.writing.exporting import exported
from rlplan.planner.configs.writing.patching import seconds_as_written
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.search import search
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.workload import Logged, Lognormal, Workload
from tests.cases import first

LENGTHS = Lognormal(mean=400, std=300, max=2048)
JOB = resolve_job(
    Job(
        algorithm="grpo",
        models=FrozenDict(actor="qwen2.5-0.5b"),
        workload=Workload(
            prompts=64, samples_per_prompt=8, prompt_tokens=100, response_tokens=LENGTHS
        ),
        cluster=(NodeGroup(gpu="h100-80gb-sxm", gpus_per_node=2),),
        hyperparameters=Hyperparameters(kl_coefficient=0, kl_in="none"),
        rewards=Rewards(function="exact_match"),
    ),
    Path(),
)
PASSES = {"update": "actor.update", "reference": "reference.compute_log_prob"}
FIELDS = ("tp", "pp", "dp", "cp", "micro_batch", "recompute")


@pytest.mark.parametrize("target", first(1, ["skyrl", "verl"]))
def test_the_sizes_of_the_best_plan_leave_it_the_best(target):
    """A micro-batch that is pinned leaves budgets of as many sequences, in which they are packed."""
    free = plans_of(JOB, load_facts, target=target).plans[0]
    own = {
        name: TaskDraft(**{field: getattr(layout, field) for field in FIELDS})
        for name, layout in free.plan.tasks.items()
        if name == "actor.update"
    }
    assert free.plan.tasks["actor.update"].token_budget is not None
    kept = plans_of(JOB, load_facts, target=target, pinned=Pinned(tasks=FrozenDict(own)))
    assert kept.plans[0].forecast == free.forecast


@pytest.mark.parametrize("target", first(1, ["openrlhf", "skyrl", "verl"]))
def test_what_is_searched_for_a_framework_takes_as_long_as_what_is_written_for_it(target):
    """Its newest version, which an export writes, generates with another engine than the sheet of its steps has."""
    lengths = Logged(mean=400, max=2048)
    work = replace(JOB.workload, prompt_tokens=Logged(mean=100, max=512), response_tokens=lengths)
    job = resolve_job(replace(JOB, workload=work), Path())
    found = plans_of(job, load_facts, target=target).plans[0]
    text = exported(found.plan, target, file="plan", facts=load_facts(found.plan.job)).text
    written = seconds_as_written(target, "run.sh", text, found.plan)
    assert written == pytest.approx(found.forecast.iteration_seconds)


@pytest.mark.parametrize(
    ("targets", "said", "sent"),
    [
        (("nemo-rl", "openrlhf", "trl"), "adapter", "merged"),
        (("areal", "easyr1"), "merged", "adapter"),
        (("skyrl", "verl"), "merged", "merged"),  # they have a key for it
    ],
)
def test_frameworks_that_send_adapters_in_one_way_alone_are_searched_so(targets, said, sent):
    job = replace(JOB, adapters=FrozenDict(actor=Adapter(rank=8, sync=said)))
    for target in targets:
        ways = list(ways_of(load_config_sheet(target), job, NOTHING_PINNED))
        assert ways
        assert {each.job.adapter("actor").sync for each in ways} == {sent}


def pinned_update(**sizes):
    return Pinned(tasks=FrozenDict({"actor.update": TaskDraft(**sizes)}))


def test_a_size_that_one_trainer_lacks_is_left_to_another():
    """FSDP of verl has no tensor parallelism, Megatron has."""
    found = plans_of(JOB, load_facts, target="verl", pinned=pinned_update(tp=2))
    assert found.plans[0].plan.job.framework == "verl-megatron"
    assert found.plans[0].plan.tasks["actor.update"].tp == 2


def test_a_size_that_no_trainer_has_is_refused_by_its_field():
    with pytest.raises(FileError, match=r"tasks\.actor\.update\.tp.*found 2; allowed: 1"):
        plans_of(JOB, load_facts, target="easyr1", pinned=pinned_update(tp=2))


def in_common(**pins):
    """Return what is searched for miles, whose trainers' tasks have one flag each for tensor parallelism and micro-batches."""
    models: FrozenDict[Role, str | ModelArchitecture] = FrozenDict(
        actor="qwen2.5-0.5b", reference="qwen2.5-0.5b"
    )
    job = resolve_job(replace(JOB, models=models, hyperparameters=Hyperparameters()), Path())
    drafts = {name: TaskDraft(**pins[key]) for key, name in PASSES.items() if key in pins}
    pinned = Pinned(tasks=FrozenDict(drafts))
    return [each.pinned.tasks for each in ways_of(load_config_sheet("miles"), job, pinned)]


def test_what_is_pinned_of_one_task_holds_for_all_that_have_it_in_common():
    found = in_common(reference={"micro_batch": 3, "tp": 2})
    sizes = {
        (tasks[name].micro_batch, tasks[name].tp) for tasks in found for name in PASSES.values()
    }
    assert sizes == {(3, 2)}


def test_other_values_of_what_tasks_have_in_common_are_refused_by_both_names():
    words = r"actor\.update\.micro_batch.*reference\.compute_log_prob too; found 2; allowed: 3"
    with pytest.raises(FileError, match=words):
        in_common(reference={"micro_batch": 3}, update={"micro_batch": 2})


@pytest.mark.parametrize(
    ("target", "nodes"), [("nemo-rl", {1, 2}), ("prime-rl", {1, 2}), ("slime", {2})]
)
def test_pools_of_whole_nodes_may_share_one_node_of_several(target, nodes):
    """Of NeMo-RL and prime-rl; else a job of one node would lose its best plan by a second node."""
    cluster = (replace(JOB.cluster[0], nodes=2),)
    ways = ways_of(load_config_sheet(target), replace(JOB, cluster=cluster), NOTHING_PINNED)
    apart = [way for way in ways if way.pinned.arranged.arrangement.apart]
    assert {sum(group.nodes for group in way.job.cluster) for way in apart} == nodes


def test_nodes_that_the_plan_on_one_of_them_leaves_out_are_told():
    cluster = (replace(JOB.cluster[0], nodes=2),)
    job = replace(JOB, cluster=cluster, objective="cost")
    told = "of the job's 4 GPUs are on nodes that the plan leaves out"
    found = plans_of(job, load_facts, target="prime-rl").plans
    assert {each.plan.job.gpus for each in found} == {2}
    assert all(f"2 {told}" in each.forecast.warnings for each in found)


def test_a_single_node_is_of_any_price_that_nodes_of_a_cluster_have():
    group = replace(JOB.cluster[0], usd_per_gpu_hour=2.0)
    cluster = (group, replace(group, nodes=2), replace(group, usd_per_gpu_hour=3.0))
    ways = ways_of(load_config_sheet("nemo-rl"), replace(JOB, cluster=cluster), NOTHING_PINNED)
    single = {way.job.cluster for way in ways if len(way.job.cluster) == 1}
    assert {(node.nodes, node.usd_per_gpu_hour) for (node,) in single} == {(1, 2.0), (1, 3.0)}


def test_a_role_that_trains_on_one_rank_keeps_the_stage_that_is_pinned_of_its_update():
    """What passes without an update has stage 0, as plans are written out; its update has stage 1."""
    pins = {"actor.compute_log_prob": TaskDraft(zero=0), "actor.update": TaskDraft(zero=1)}
    job = replace(JOB, cluster=(replace(JOB.cluster[0], gpus_per_node=1),), old_log_prob="trainer")
    pinned = Pinned(tasks=FrozenDict(pins))
    found, free = (
        search(job, load_facts(job), pinned=each).plans[0] for each in (pinned, NOTHING_PINNED)
    )
    assert found.plan.tasks["actor.update"].zero == 1
    assert found.forecast.iteration_seconds == free.forecast.iteration_seconds


def test_a_stage_that_is_pinned_on_one_rank_is_no_better_than_the_free_answer():
    """Sharded over one rank, layers are cast to bf16 a few at a time: the cache and the passes have more room."""
    job = resolve_job(
        replace(
            JOB,
            models=FrozenDict(actor="qwen3-0.6b"),
            workload=Workload(
                prompts=2, samples_per_prompt=8, prompt_tokens=300, response_tokens=6000
            ),
            cluster=(NodeGroup(gpu="l40s", gpus_per_node=1),),
        ),
        Path(),
    )
    pinned = Pinned(tasks=FrozenDict({"actor.compute_log_prob": TaskDraft(zero=3)}))
    free, kept = (
        plans_of(job, load_facts, target="easyr1", pinned=each) for each in (NOTHING_PINNED, pinned)
    )
    assert free.gap == 0
    assert free.plans[0].plan.tasks["actor.update"].zero == 3
    assert free.plans[0].forecast == kept.plans[0].forecast
