"""A network between nodes that is slower than the job has it."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.calibration import STAGE_TASKS
from rlplan.files.decoding import decode
from rlplan.job import Job
from rlplan.plan import PlanDraft
from rlplan.planner.answers.completion import complete
from rlplan.planner.measured.checking import RunContext, check_steps
from rlplan.planner.measured.slow_network import slow_network_gbps
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.assemble import _of_shards_over_nodes
from tests.planner.measured.test_checking import KEYS, MEAN, write_console

TRAINING = ("update_actor", "old_log_prob", "reference")


@pytest.fixture(scope="module")
def ran():
    """Return a GRPO job of verl whose shards lie on two nodes, in micro-batches of one sequence."""
    job = decode(
        Job,
        {
            "algorithm": "grpo",
            "framework": "verl-fsdp",
            "models": dict.fromkeys(("actor", "reference"), "qwen2.5-32b"),
            "workload": {
                "prompts": 32,
                "samples_per_prompt": 4,
                "prompt_tokens": 155,
                "response_tokens": 600,
            },
            "cluster": [{"gpu": "h100", "gpus_per_node": 8, "nodes": 2}],
            "rewards": {"function": "exact_match"},
        },
        "job",
    )
    job = resolve_job(job, Path())
    facts = load_facts(job)
    draft = decode(
        PlanDraft,
        {"job": "job.yaml", "pools": [{"gpus": 16, "roles": ["actor", "reference"]}]},
        "plan",
    )
    return RunContext(plan=complete(draft, job, facts), facts=facts)


def at_rate(ran, gbps):
    cluster = tuple(replace(each, inter_node_gbps=gbps) for each in ran.plan.job.cluster)
    return simulate(replace(ran.plan, job=replace(ran.plan.job, cluster=cluster)), ran.facts)


def seconds_of(name, forecast):
    return sum(cost.seconds for cost in forecast.costs if cost.name in STAGE_TASKS[name])


def by_stage(forecast):
    return {name: seconds_of(name, forecast) for name in TRAINING}


def found_of(ran, measured):
    return slow_network_gbps(
        ran.plan, ran.facts, simulate(ran.plan, ran.facts), measured, seconds_of
    )


@pytest.mark.parametrize("gbps", [25.0, 60.0])
def test_the_network_with_which_all_of_training_is_slow_is_found(ran, gbps):
    assert found_of(ran, by_stage(at_rate(ran, gbps))) == pytest.approx(gbps, rel=0.25)


@pytest.mark.parametrize(
    ("update", "passes"),
    [
        (4.0, 1.0),  # passes are as fast as forecast
        (1.2, 1.2),  # no stage is slower than stages are known
        (1.6, 40.0),  # an update moves more than a pass does
        (4.0, None),  # one stage alone
        (2.0, 2.0),  # so is the reference, each of whose copies lies in one node
    ],
)
def test_no_network_is_named_where_one_rate_does_not_explain_all_stages(ran, update, passes):
    now = by_stage(simulate(ran.plan, ran.facts))
    times = {"update_actor": update, "old_log_prob": passes, "reference": passes}
    measured = {name: now[name] * each for name, each in times.items() if each is not None}
    assert found_of(ran, measured) is None


def test_shards_of_one_node_cross_no_network(ran):
    slow = by_stage(at_rate(ran, 25.0))
    cluster = tuple(replace(each, nodes=1, gpus_per_node=16) for each in ran.plan.job.cluster)
    plan = replace(ran.plan, job=replace(ran.plan.job, cluster=cluster))
    alone = replace(ran, plan=plan)
    assert found_of(alone, slow) is None


@pytest.mark.parametrize("gbps", [6.5, 25.0, 160.0])
def test_a_log_of_slow_sockets_is_told_to_look_at_the_network(ran, tmp_path, gbps):
    slow = simulate(ran.plan, ran.facts)
    own = {
        stage: sum(c.seconds for c in slow.costs if c.name in t) for stage, t in STAGE_TASKS.items()
    }
    measured = own | by_stage(at_rate(ran, gbps))
    keys = KEYS["verl"]
    rows = []
    for step in range(1, 6):
        row = {
            key: measured[name] * (1 + 0.02 * math.sin(step))
            for name, key in keys.items()
            if name in measured
        }
        row[keys["step"]] = sum(row.values())
        rows.append(row | {keys[name]: mean for name, mean in MEAN.items()})
    write_console(tmp_path / "log", "verl", rows)
    found = check_steps(tmp_path / "log", ran)
    causes = {
        each.name: each.causes
        for each in found.stages
        if any("network: " in c for c in each.causes)
    }
    (told,) = causes.values()  # once, beside the longest stage
    (words,) = (each for each in told if each.startswith("network: "))
    assert "NET/Socket" in words
    said = re.search(r"with ([\d.]+) Gbit/s a node between nodes, where 3,200 are taken", words)
    assert float(said[1]) == pytest.approx(gbps, rel=0.02)


@pytest.mark.parametrize(
    ("nodes", "gbps", "shard_ranks", "told"),
    [
        (2, None, None, True),
        (1, None, None, False),
        (2, 3200.0, None, True),
        (2, 400.0, None, False),
        (2, None, 8, False),
        (2, None, 4, False),
        (4, None, 4, False),
    ],
)
def test_a_forecast_says_what_a_network_that_nobody_named_may_cost(
    ran, nodes, gbps, shard_ranks, told
):
    """Ranks that spread weights inside a node alone, or a network that the job names, leave nothing to guess."""
    group = replace(ran.plan.job.cluster[0], nodes=nodes, gpus_per_node=16 // nodes)
    group = replace(group, inter_node_gbps=gbps or group.inter_node_gbps)
    tasks = ran.plan.tasks
    for name in ("actor.compute_log_prob", "actor.update"):
        tasks = tasks.with_item(name, replace(tasks[name], shard_ranks=shard_ranks))
    plan = replace(ran.plan, job=replace(ran.plan.job, cluster=(group,)), tasks=tasks)
    forecast = simulate(plan, ran.facts)
    assert (
        any("gathers weights over nodes by RDMA" in each for each in forecast.assumptions) == told
    )


def test_ranks_that_stand_apart_by_tensor_parallelism_gather_over_nodes_too(ran):
    """Eight ranks of TP 2 are sixteen GPUs, of which a node has eight; a network beside another pool's GPUs is not theirs."""
    group = replace(ran.plan.job.cluster[0], nodes=2, gpus_per_node=8)
    layout = replace(ran.plan.tasks["actor.update"], tp=2, dp=8, cp=1, shard_ranks=None)
    plan = replace(
        ran.plan,
        job=replace(ran.plan.job, cluster=(group,)),
        tasks=ran.plan.tasks.with_item("actor.update", layout),
    )
    assert list(_of_shards_over_nodes(plan, ran.facts))
    near = replace(group, gpu="h200", nodes=1)
    other = replace(plan, job=replace(plan.job, cluster=(group, near)))
    pools = tuple(replace(pool, device="h200") for pool in plan.pools)
    assert list(_of_shards_over_nodes(other, ran.facts))
    assert not list(_of_shards_over_nodes(replace(other, pools=pools), ran.facts))
