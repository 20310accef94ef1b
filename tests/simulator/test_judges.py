"""Reward models that generate: their task is a generation of its own lengths, in time and memory, alone and in tables."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import FileError
from rlplan.files.decoding import decode
from rlplan.files.frozen import FrozenDict
from rlplan.job import JudgeModel, Rewards
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.results.forecast import CALL
from rlplan.simulator.memory.task_memory import KV_CACHE
from rlplan.simulator.placed import PlacedPlan, PlacedTasks, columns_of
from rlplan.simulator.simulate import simulate
from rlplan.simulator.stages import task_cost
from rlplan.simulator.stages.infer import layout_seconds
from rlplan.simulator.timeline.pool_memory import memory_moments
from rlplan.workload import longest
from tests.simulator.plans import priced_plan

TASK = "reward.compute_reward"
JUDGE = JudgeModel(response_tokens=64, engine="vllm", instruction_tokens=8)


def judged(said=JUDGE, **work):
    """Return the split plan with a reward model that generates."""
    plan = priced_plan()
    job = replace(plan.job, workload=replace(plan.job.workload, prompts=32, **work))
    return replace(plan, job=replace(job, rewards=said and Rewards(judge=said)))


@pytest.fixture(scope="module")
def facts():
    return load_facts(priced_plan().job)


def cost(plan, facts, name=TASK):
    return next(each for each in simulate(plan, facts).costs if each.name == name)


@pytest.mark.parametrize("engine", ["vllm", "vllm-0.11-eager"])  # the second waits for its host
def test_a_judge_takes_what_an_actor_of_its_size_takes_to_write_as_much_about_as_much(
    engine, facts
):
    plan = judged(None, prompt_tokens=40, response_tokens=64)
    generate = replace(plan.tasks["actor.generate"], engine=engine, max_running=256)
    tasks = plan.tasks.with_item("actor.generate", generate)
    alike = cost(replace(plan, tasks=tasks), facts, "actor.generate").parts
    found = cost(
        judged(replace(JUDGE, engine=engine)), facts
    ).parts  # 16 tokens of a prompt, 16 of a response, 8 beside
    assert set(found) >= {"prefill", "decode", CALL}
    for part in ("prefill", "decode"):
        assert found[part] == pytest.approx(alike[part])


def test_judgements_take_longer_than_a_pass_and_the_longer_the_more_there_is_to_write(facts):
    one_pass, short, long, twice = (
        cost(judged(said), facts).seconds
        for said in (None, JUDGE, replace(JUDGE, response_tokens=128), replace(JUDGE, samples=2))
    )
    assert one_pass < short < long
    assert short < twice < long


def test_its_engine_holds_weights_and_a_cache(facts):
    moments = memory_moments(PlacedPlan(judged(), facts), judged().pools[1])
    assert moments[TASK][KV_CACHE] > 0
    assert moments[TASK]["reward weights"] > 0
    assert KV_CACHE not in memory_moments(PlacedPlan(judged(None), facts), judged().pools[1])[TASK]


def test_tables_of_layouts_say_what_single_ones_do(facts):
    placed = PlacedPlan(judged(), facts).tasks[TASK]
    layouts = [replace(placed.layout, tp=tp, dp=dp) for tp, dp in ((1, 2), (2, 1), (1, 1))]
    table = PlacedTasks(columns_of(placed.layout.engine, layouts), placed)
    alone = [task_cost(placed.laid_out(layout)).total.seconds for layout in layouts]
    assert layout_seconds(table).tolist() == pytest.approx(alone)


def test_lengths_of_judgements_are_resolved_and_a_judge_needs_a_model():
    job = judged().job
    lengths = {"distribution": "logged", "mean": 300, "max": 1024}
    asked = decode(JudgeModel, {"response_tokens": lengths}, "judge")
    found = resolve_job(replace(job, rewards=Rewards(judge=asked)), Path())
    assert longest(found.rewards.judge.response_tokens) == 1024
    assert resolve_job(found, Path()) == found
    nobody = FrozenDict({role: model for role, model in job.models.items() if role != "reward"})
    without = replace(job, models=nobody, rewards=Rewards(function="exact_match", judge=JUDGE))
    with pytest.raises(FileError, match=r"rewards\.judge"):
        resolve_job(without, Path())
