"""Every algorithm of the folder is planned and simulated, and its forecast keeps the laws."""

from dataclasses import replace
from itertools import pairwise

import pytest

from rlplan.algorithms import algorithm_names, load_algorithm
from rlplan.dataflow import parents_of, tasks_of
from rlplan.files.decoding import decode
from rlplan.files.frozen import FrozenDict
from rlplan.job import DynamicSampling, Job, Pretrain, Rewards
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.planner.search import search
from rlplan.profiles.catalog import ENGINES, resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.rules import check_plan
from rlplan.simulator.simulate import simulate
from rlplan.workload import Evaluation

RULE = Rewards(function="digits", function_seconds_per_sample=0.001)


def job_of(name, tmp_path, roles=None, **more):
    """Return the resolved job of an algorithm: all its models, `tiny`, and both kinds of rewards."""
    algorithm = load_algorithm(name)
    roles = roles or [*algorithm.required_roles, *algorithm.optional_roles]
    data = {
        "algorithm": name,
        "models": {role: "tiny" for role in roles if role != "rule"},
        "workload": {
            "prompts": 8,
            "samples_per_prompt": 2 if algorithm.groups else 1,
            "prompt_tokens": 16,
            "response_tokens": 16,
            "updates": 2,
        },
        "cluster": [{"gpu": "cpu", "gpus_per_node": 2}],
    }
    job = replace(decode(Job, data, "job.yaml"), rewards=RULE, **more)
    return resolve_job(job, tmp_path)


def colocated(job):
    """Return a plan of two devices on which all models share one pool."""
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    layouts = {
        task.name: TaskPlan(pool="host", dp=1, engine="python")
        if task.kind == "rule"
        else TaskPlan(
            pool="p0", dp=2, engine="torch-static" if task.kind == "generate" else "torch-tp-dp"
        )
        for task in tasks
    }
    pools = (
        ResourcePool(name="p0", device="cpu", gpus=2, roles=tuple(job.models)),
        ResourcePool(name="host", device="host", gpus=1, roles=("rule",)),
    )
    return Plan(
        job=job,
        pools=pools,
        tasks=FrozenDict(layouts),
        order=FrozenDict(
            {p.name: tuple(n for n in layouts if layouts[n].pool == p.name) for p in pools}
        ),
        transition="none",
    )


@pytest.mark.parametrize("name", algorithm_names())
def test_a_simulated_iteration_runs_each_task_once_after_its_parents_and_alone_on_its_pool(
    name, tmp_path
):
    job = job_of(name, tmp_path)
    tasks = tasks_of(load_algorithm(name), job)
    plan = colocated(job)
    check_plan(plan, ENGINES)
    forecast = simulate(plan, load_facts(job))
    spans = {span.name: span for span in forecast.tasks if span.activity == "task"}
    assert sorted(spans) == sorted(task.name for task in tasks)
    for task in tasks:
        assert spans[task.name].seconds > 0
        for parent in parents_of(task, tasks):
            assert spans[task.name].start_seconds >= spans[parent.name].end_seconds
    on_pool = sorted((s.start_seconds, s.end_seconds) for s in spans.values() if s.pool == "p0")
    assert all(a[1] <= b[0] for a, b in pairwise(on_pool))
    assert forecast.feasible
    pool = next(each for each in forecast.memory if each.pool == "p0")
    assert {f"{role} weights" for role in job.models} <= set(pool.terms)


@pytest.mark.full
@pytest.mark.parametrize("name", algorithm_names())
def test_the_search_finds_a_plan_that_no_simulated_colocation_beats(name, tmp_path):
    algorithm = load_algorithm(name)
    roles = [*algorithm.required_roles, *(["cost"] if algorithm.constrained else [])]
    job = job_of(name, tmp_path, roles)
    facts = load_facts(job)
    result = search(job, facts)
    winner = result.plans[0]
    check_plan(winner.plan, ENGINES)
    assert 0 <= result.gap < 1
    assert result.bound_seconds <= winner.forecast.iteration_seconds
    assert winner.forecast.iteration_seconds <= simulate(colocated(job), facts).iteration_seconds


def seconds_of(job):
    forecast = simulate(colocated(job), load_facts(job))
    return {span.name: span.seconds for span in forecast.tasks}


def test_remax_generates_and_infers_twice_what_reinforce_plus_plus_does(tmp_path):
    twice = seconds_of(job_of("remax", tmp_path))
    once = seconds_of(job_of("reinforce-plus-plus", tmp_path))
    for name in ("actor.generate", "reference.compute_log_prob", "reward.compute_reward"):
        assert 1.9 <= twice[name] / once[name] <= 2.1, name
    assert twice["actor.update"] == pytest.approx(once["actor.update"], rel=0.01)


def test_dapo_generates_as_many_rounds_as_the_job_expects(tmp_path):
    job = job_of("dapo", tmp_path)
    once = replace(job, dynamic_sampling=DynamicSampling(expected_rounds=1.0))
    thrice = replace(job, dynamic_sampling=DynamicSampling(expected_rounds=3.0))
    few, many = seconds_of(once), seconds_of(thrice)
    assert many["actor.generate"] == pytest.approx(3 * few["actor.generate"])
    assert many["reward.compute_reward"] == pytest.approx(3 * few["reward.compute_reward"])
    assert many["actor.update"] == pytest.approx(few["actor.update"])


def sampled(rounds, at_once=1.0, *, together=None):
    return DynamicSampling(expected_rounds=rounds, batches_at_once=at_once, together=together)


@pytest.mark.parametrize(
    ("rounds", "at_once", "calls"), [(3.0, 3.0, 1), (6.0, 3.0, 2), (1.0, 0.5, 2)]
)
def test_what_a_call_generates_is_waited_for_together(rounds, at_once, calls, tmp_path):
    """A call of several global batches takes what a job of as many prompts takes, and is made as often as needed."""
    job = job_of("dapo", tmp_path)
    asked = seconds_of(replace(job, dynamic_sampling=sampled(rounds, at_once)))
    whole = replace(job.workload, prompts=round(job.workload.prompts * at_once))
    alone = seconds_of(replace(job, workload=whole, dynamic_sampling=sampled(1.0)))
    apart = seconds_of(replace(job, dynamic_sampling=sampled(rounds)))
    assert asked["actor.generate"] == pytest.approx(calls * alone["actor.generate"])
    assert asked["reward.compute_reward"] == pytest.approx(apart["reward.compute_reward"])
    assert asked["actor.update"] == pytest.approx(apart["actor.update"])


def test_all_that_a_call_generates_is_judged_though_fewer_rounds_are_expected(tmp_path):
    job = job_of("dapo", tmp_path)
    few, enough = (
        seconds_of(replace(job, dynamic_sampling=sampled(rounds, 2.0))) for rounds in (1.5, 2.0)
    )
    assert few == enough


@pytest.mark.parametrize(("rounds", "at_once"), [(4.0, 2.0), (1.0, 0.5)])
def test_what_is_generated_together_is_asked_for_in_no_batches(rounds, at_once, tmp_path):
    job = job_of("dapo", tmp_path)
    alone, both = (
        seconds_of(replace(job, dynamic_sampling=sampled(rounds, each, together=True)))
        for each in (1.0, at_once)
    )
    assert alone == both


@pytest.mark.parametrize("at_once", [0.5, 3.0])
def test_a_search_says_what_its_plan_takes_where_calls_generate_other_batches(at_once, tmp_path):
    job = replace(job_of("dapo", tmp_path), dynamic_sampling=sampled(3.0, at_once))
    result = search(job, load_facts(job))
    best = result.plans[0]
    assert best.forecast.iteration_seconds == simulate(best.plan, load_facts(job)).iteration_seconds
    assert result.bound_seconds <= best.forecast.iteration_seconds


def test_a_search_lets_all_run_at_a_time_that_a_call_generates(tmp_path):
    data = {
        "algorithm": "dapo",
        "framework": "verl",
        "models": {"actor": "qwen3-4b"},
        "dynamic_sampling": {"expected_rounds": 3.0, "batches_at_once": 3.0},
        "workload": {
            "prompts": 64,
            "samples_per_prompt": 8,
            "prompt_tokens": 512,
            "response_tokens": {"distribution": "lognormal", "mean": 900, "std": 500, "max": 4096},
        },
        "cluster": [{"gpu": "h100-80gb-sxm", "gpus_per_node": 8}],
    }
    job = resolve_job(replace(decode(Job, data, "job.yaml"), rewards=RULE), tmp_path)
    result = search(job, load_facts(job))
    best = result.plans[0]
    layout = best.plan.tasks["actor.generate"]
    assert layout.max_running * layout.dp == 3 * 64 * 8
    few = layout.max_running // 3
    tasks = best.plan.tasks.with_item("actor.generate", replace(layout, max_running=few))
    waiting = simulate(replace(best.plan, tasks=tasks), load_facts(job))
    assert best.forecast.iteration_seconds < waiting.iteration_seconds
    assert result.bound_seconds <= best.forecast.iteration_seconds


def test_a_validation_asks_for_its_own_prompts_whatever_rounds_generate_at_once(tmp_path):
    rewards = replace(RULE, function_seconds_per_sample=0.5, streamed=True)
    asked = Evaluation(prompts=4, every=5)
    job = replace(job_of("dapo", tmp_path), evaluation=asked, rewards=rewards)
    ways = (None, sampled(3.0, 3.0), sampled(3.0, together=True))
    found = [replace(job, dynamic_sampling=way) for way in ways]
    seconds = [
        simulate(colocated(each), load_facts(each)).beside.each_seconds["validation"]
        for each in found
    ]
    assert seconds[0] == seconds[1] == seconds[2] > 0


def test_dapo_brings_the_weights_to_the_generate_layout_in_each_round(tmp_path):
    job = job_of("dapo", tmp_path)
    plan = colocated(job)
    layouts = plan.tasks | {
        "actor.generate": replace(plan.tasks["actor.generate"], tp=1, dp=2),
        "actor.update": replace(plan.tasks["actor.update"], tp=2, dp=1),
    }
    plan = replace(plan, tasks=FrozenDict(layouts), transition="hybridflow")
    seconds = []
    for rounds in (1.0, 3.0):
        sampling = DynamicSampling(expected_rounds=rounds)
        each = replace(plan, job=replace(job, dynamic_sampling=sampling))
        forecast = simulate(each, load_facts(each.job))
        seconds.append(forecast.stage_seconds["transition"])
    assert seconds[0] > 0
    assert seconds[1] == pytest.approx(3 * seconds[0])


def test_mixed_in_texts_double_the_passes_of_an_update_but_not_its_optimizer_step(tmp_path):
    job = job_of("safe-rlhf", tmp_path)
    plain, mixed = (
        simulate(colocated(each), load_facts(each))
        for each in (job, replace(job, pretrain=Pretrain()))
    )
    parts = [
        next(cost.parts for cost in forecast.costs if cost.name == "actor.update")
        for forecast in (plain, mixed)
    ]
    assert parts[1]["forward"] == pytest.approx(2 * parts[0]["forward"])
    assert parts[1]["optimizer"] == parts[0]["optimizer"]


def test_safe_rlhf_keeps_a_critic_of_the_cost_in_memory_where_the_job_names_one(tmp_path):
    roles = ["actor", "critic", "reference", "cost"]
    without = simulate(colocated(job := job_of("safe-rlhf", tmp_path, roles)), load_facts(job))
    job = job_of("safe-rlhf", tmp_path, [*roles, "cost_critic"])
    with_critic = simulate(colocated(job), load_facts(job))
    terms = {"cost_critic weights", "cost_critic optimizer states"}
    assert not terms & set(without.memory[0].terms)
    assert terms <= set(with_critic.memory[0].terms)
