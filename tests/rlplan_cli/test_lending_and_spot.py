"""Plans that lend idle GPUs, and those on spot nodes, by the command line."""

import json
from dataclasses import replace
from pathlib import Path

from rlplan.job import Spot
from rlplan.plan import Lending
from rlplan.results.stored import write_plan
from tests.simulator.test_streaming_plans import apart


def plan_file():
    """Write a plan that streams, trains on nodes that stay, and lends its idle GPUs."""
    plan = apart("streaming", samples=2, updates=1)
    group = replace(plan.job.cluster[0], gpus_per_node=2, usd_per_gpu_hour=1.0)
    spot = Spot(loss_every_seconds=900.0, replacement_seconds=60.0, start_seconds=30.0)
    work = replace(plan.job.workload, prompts=256, response_tokens=3000)
    cluster = (group, replace(group, spot=spot))
    changed = replace(plan.job, workload=work, cluster=cluster, iterations=100)
    lending = Lending(until=1.0, memory_fraction=0.5)
    write_plan(Path("plan.yaml"), replace(plan, job=changed, lending=lending))


def test_a_plan_that_lends_on_spot_nodes_is_simulated_in_words_and_as_json(project, rlplan):
    plan_file()
    words = rlplan("simulate", "plan.yaml")
    assert words.code == 0, words.err
    assert "spot: pool g loses a node every 15 min" in words.out
    assert "lending: training's GPUs generate in" in words.out
    found = json.loads(rlplan("simulate", "plan.yaml", "--json").out)
    assert found["spot"]["pools"] == ["g"]
    assert found["spot"]["run_usd"] > 0
    assert 0 < found["overlap"]["lent_fraction"] < 1


def test_a_way_of_lending_is_not_searched_for_by_a_partial_plan(project, rlplan):
    plan_file()
    answer = rlplan("search", "plan.yaml")
    assert answer.code != 0
    assert "lending: is not searched for: `rlplan search --lend` tries it" in answer.err


def test_a_front_of_objectives_is_not_lent_for(project, rlplan):
    answer = rlplan("search", "job.yaml", "--lend", "--pareto", "cost,throughput")
    assert answer.code == 2
    assert "--lend: is for one objective" in answer.err


def test_a_deadline_needs_to_know_how_long_the_run_is(project, rlplan):
    text = Path("job.yaml").read_text()
    Path("job.yaml").write_text(text + "\nspecs: {run_seconds: 1000}\n")
    answer = rlplan("search", "job.yaml")
    assert answer.code != 0
    assert "iterations: is missing: specs.run_seconds limits a whole run" in answer.err
