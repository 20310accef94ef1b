"""Systems of the field: every file keeps the contract, and each runs a job as its documentation has it."""

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from rlplan.errors import UnknownNameError
from rlplan.evals.settings.hybridflow_systems import system_forecast
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Rewards, Specs
from rlplan.planner.search import search
from rlplan.planner.systems.baselines import baseline_names, load_baseline
from rlplan.planner.systems.comparing import compare_systems
from rlplan.planner.systems.system_plans import (
    batch_by_weights,
    batch_by_width,
    job_tasks,
    local_batch,
)
from rlplan.profiles.catalog import ENGINES, load_model, resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.reports.pages.systems import verdict
from rlplan.rules import check_plan
from rlplan.workload import Environment, Workload

PPO = ("actor", "critic", "reference", "reward")


def job_of(model="llama-2-7b", gpus=16, algorithm="ppo", roles=PPO, prompts=256, **more):
    job = Job(
        algorithm=algorithm,
        models=FrozenDict(dict.fromkeys(roles, load_model(model))),
        workload=Workload(
            prompts=prompts,
            samples_per_prompt=4 if algorithm == "grpo" else 1,
            prompt_tokens=512,
            response_tokens=512,
            updates=2,
        ),
        cluster=(NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=min(8, gpus), nodes=max(1, gpus // 8), inter_node_gbps=200.0),),
        engines=Engines(train="megatron-core", generate="vllm"),
        precision="bf16",
        **more,
    )  # fmt: skip
    return resolve_job(job, Path())


def episodes_on(gpus, model="qwen2.5-0.5b"):
    """Return a job whose responses are episodes of four turns with a tool."""
    job = job_of(
        model,
        gpus=gpus,
        algorithm="grpo",
        roles=("actor", "reference"),
        prompts=16,  # searches play every response; more of them tell nothing new
        rewards=Rewards(function="digits", function_seconds_per_sample=1e-4),
    )
    tool = Environment(name="tool", turns=4, observation_tokens=64, step_seconds=0.5)
    return replace(job, workload=replace(job.workload, environments=(tool,)))


JOBS = {
    "ppo 7B on 16": job_of(),
    "ppo 0.5B on 2": job_of("qwen2.5-0.5b", 2),
    "grpo 7B on 8": job_of(gpus=8, algorithm="grpo", roles=("actor", "reference", "reward")),
    "a rule for a reward": job_of(
        "qwen2.5-0.5b",
        gpus=2,
        algorithm="grpo",
        roles=("actor", "reference"),
        rewards=Rewards(function="digits", function_seconds_per_sample=1e-4),
    ),
    "70B on 8": job_of("llama-2-70b", 8),
    "episodes of 0.5B on 4": episodes_on(4),
    "a batch that nothing divides": job_of(prompts=14),
}


def best_plan(name, job):
    return load_baseline(name).best_plan(job, load_facts(job))


@cache
def found_plan(name, kind):
    """Return what a system makes of a kind of job, which several tests look at."""
    return best_plan(name, JOBS[kind])


def test_an_unknown_system_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"did you mean 'openrlhf-0\.2'"):
        load_baseline("openrlhf-0.3")


ANSWERS = list(product(baseline_names(), JOBS))


@pytest.mark.full
@pytest.mark.parametrize(("name", "kind"), ANSWERS)
def test_every_system_answers_with_a_sound_plan_or_a_reason(name, kind):
    found = found_plan(name, kind)
    assert found.name == name
    assert found.about
    if found.plan is None:
        assert found.forecast is None
        assert any(word in found.reason for word in ("fit", "divide", "environments"))
        return
    assert found.reason is None
    assert found.plan.made_by == name
    check_plan(found.plan, ENGINES)
    assert found.forecast.feasible
    assert found.seconds > 0


@pytest.mark.full
@pytest.mark.parametrize("name", baseline_names())
def test_a_system_gives_the_same_plan_twice(name):
    kind = "ppo 0.5B on 2"
    assert found_plan(name, kind).plan == best_plan(name, JOBS[kind]).plan


@pytest.mark.parametrize("name", baseline_names())
def test_a_model_that_is_too_large_is_refused_with_how_much_is_missing(name):
    found = found_plan(name, "70B on 8")
    assert found.plan is None or name in {"openrlhf", "verl"}
    if found.plan is None:
        assert any(word in found.reason for word in ("GiB", "divide", "environments"))


def layouts(name):
    plan = found_plan(name, "ppo 7B on 16").plan
    return plan, plan.tasks["actor.generate"], plan.tasks["actor.update"]


def test_deepspeed_chat_shares_all_gpus_and_shards_fully():
    plan, generate, update = layouts("deepspeed-chat")
    assert [(pool.gpus, pool.roles) for pool in plan.pools] == [(16, PPO)]
    assert (update.zero, update.tp, update.dp, update.engine) == (3, 1, 16, "deepspeed-zero3")
    assert generate.engine.startswith("deepspeed-hybrid")
    assert plan.transition == "all-gather"
    assert generate.max_running == 4 * generate.tp


@pytest.mark.full
def test_openrlhf_of_2024_gives_every_model_gpus_of_its_own_and_keeps_two_actors():
    plan, generate, update = layouts("openrlhf-0.2")
    assert [pool.roles for pool in plan.pools] == [(role,) for role in PPO] + [("actor",)]
    assert sum(pool.gpus for pool in plan.pools) == 16
    assert generate.pool != update.pool
    assert plan.transition == "two-copies"
    assert generate.dp <= update.dp, "no more engines than actor ranks that call them"


@pytest.mark.full
def test_openrlhf_of_2024_steps_34b_on_the_hosts_where_eight_gpus_a_trainer_cannot_hold_its_states():
    found = system_forecast("openrlhf-0.2", "ppo", "34B", 32)
    assert {role: each.host_optimizer for role, each in found.plan.job.trainers.items()} == {
        "actor": 1.0,
        "critic": 1.0,
    }
    assert found.seconds == pytest.approx(1526, rel=0.1), "HybridFlow, Figure 9"
    assert system_forecast("openrlhf-0.2", "ppo", "34B", 64).plan.job.trainers is None


@pytest.mark.full
def test_nemo_aligner_splits_the_gpus_and_generates_in_the_layout_of_training():
    plan, generate, update = layouts("nemo-aligner-0.2")
    sets = [(pool.gpus, frozenset(pool.roles)) for pool in plan.pools]
    assert sets == [(8, frozenset({"actor", "reference"})), (8, frozenset({"critic", "reward"}))]
    assert (generate.tp, generate.pp, generate.dp) == (update.tp, update.pp, update.dp)
    assert (generate.max_running, plan.transition) == (8, "none")


def test_the_heuristic_has_tp_in_a_node_and_pp_over_the_nodes():
    _, generate, update = layouts("megatron-heuristic")
    assert {(each.tp, each.pp, each.dp) for each in (generate, update)} == {(8, 2, 1)}


@pytest.mark.full
def test_verl_and_todays_openrlhf_colocate_and_run_vllm():
    for name in ("verl", "openrlhf"):
        plan, generate, _ = layouts(name)
        assert len(plan.pools) == 1
        assert generate.engine == "vllm"


def test_reward_and_cost_models_may_share_a_server_where_gpus_are_few():
    roles = (*PPO, "cost")
    plan = best_plan("openrlhf-0.2", job_of(gpus=8, algorithm="safe-rlhf", roles=roles)).plan
    assert frozenset({"reward", "cost"}) in {frozenset(pool.roles) for pool in plan.pools}


def test_batches_shrink_with_the_model_as_published_scripts_have_them():
    tasks = {task.name: task for task in job_tasks(JOBS["ppo 7B on 16"])}
    generate = tasks["actor.generate"]
    sizes = ("llama-2-7b", "llama-2-13b", "codellama-34b", "llama-2-70b")
    jobs = [job_of(size, prompts=128) for size in sizes]
    assert [batch_by_weights(4, job, generate) for job in jobs] == [4, 2, 1, 1]
    assert [batch_by_width(16, job, generate) for job in jobs] == [16, 16, 8, 8]


def test_a_rank_gets_no_batch_where_sequences_do_not_divide():
    tasks = {task.name: task for task in job_tasks(JOBS["ppo 7B on 16"])}
    job = JOBS["ppo 7B on 16"]
    assert local_batch(job, tasks["actor.generate"], 16) == 16
    assert local_batch(job, tasks["actor.update"], 16) == 8
    assert local_batch(job, tasks["actor.update"], 3) == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "limit", "mode", "staleness"),
    [("areal", None, "async", 4), ("areal", 0, "streaming", 0), ("asyncflow", 2, "async", 1)],
)
def test_frameworks_that_overlap_are_run_as_their_authors_run_them(name, limit, mode, staleness):
    job = replace(JOBS["a rule for a reward"], specs=Specs(staleness=limit))
    (found,) = compare_systems(job, load_facts(job), [name]).systems
    assert found.plan is not None
    check_plan(found.plan)
    assert (found.plan.mode, found.plan.staleness) == (mode, staleness)
    assert found.plan.job.framework == name
    assert found.forecast is not None
    assert found.forecast.iteration_seconds > 0


def test_ours_has_a_systems_engines_where_those_of_the_jobs_framework_are_slower():
    rule = replace(JOBS["a rule for a reward"], framework="verl-fsdp", engines=Engines(), rewards=Rewards(function="digits"))  # fmt: skip
    job = resolve_job(rule, Path())
    found = compare_systems(job, load_facts(job), ["verl"])
    own = search(job, load_facts(job), placements=1).plans[0]
    assert found.systems[0].seconds < own.forecast.iteration_seconds
    assert found.ours.seconds <= found.systems[0].seconds
    assert found.ours.plan.tasks["actor.update"].engine == "megatron-core"
    assert "as verl does" in found.note
    assert found.note in verdict(found)


def test_ours_has_the_jobs_own_engines_where_no_system_is_faster():
    job = JOBS["a rule for a reward"]
    found = compare_systems(job, load_facts(job), ["verl"])
    assert found.ours.seconds <= found.systems[0].seconds
    assert found.note == ""
    assert found.ours.plan.job.engines == job.engines


@pytest.mark.full
def test_srl_has_whole_models_on_gpus_that_only_train_or_only_answer():
    found = found_plan("srl", "episodes of 0.5B on 4")
    plan = found.plan
    assert (plan.mode, plan.in_flight, plan.sync_every) == ("async", "recompute", 1)
    assert plan.staleness == 16, "its trainers take from a buffer of 16 batches"
    assert all((each.tp, each.pp, each.cp) == (1, 1, 1) for each in plan.tasks.values())
    assert plan.tasks["actor.update"].zero == 0
    assert plan.tasks["actor.generate"].pool != plan.tasks["actor.update"].pool
    (environment,) = plan.job.workload.environments
    assert environment.inference == "remote", "one answer at a time is slower here"


@pytest.mark.full
def test_srl_keeps_the_jobs_limit_of_staleness_and_says_what_it_cannot_do():
    job = episodes_on(4)
    fresher = best_plan("srl", replace(job, specs=Specs(staleness=2)))
    assert fresher.plan.staleness == 2
    assert "staleness is 0" in best_plan("srl", replace(job, specs=Specs(staleness=0))).reason
    assert "environments has none" in found_plan("srl", "ppo 0.5B on 2").reason
    assert "GiB" in best_plan("srl", episodes_on(4, "llama-2-13b")).reason
