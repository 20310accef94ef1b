"""An engine that does not sleep keeps weights and cache on its GPUs while others work there: searches leave room for both."""

from dataclasses import replace

import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines
from rlplan.plan import TaskDraft
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_model
from rlplan.profiles.facts import load_facts
from tests.cases import first
from tests.planner.test_shared_tables import JOB

WORK = replace(JOB.workload, prompts=64, prompt_tokens=512, response_tokens=3000)
HALF = Pinned(tasks=FrozenDict({"actor.generate": TaskDraft(memory_fraction=0.5)}))
SPLIT = Pinned(tasks=FrozenDict({"actor.generate": TaskDraft(memory_fraction=0.7)}))


def found(engine, pinned, *, sleeps=False):
    """Return what a search finds for a job whose trainers have little room beside an engine."""
    engines = Engines(train="fsdp2", generate=engine, sleeps=sleeps)
    job = replace(
        JOB,
        models=FrozenDict(dict.fromkeys(JOB.models, load_model("qwen2.5-7b"))),
        workload=WORK,
        engines=engines,
    )
    return search(job, load_facts(job), pinned=pinned)


@pytest.mark.parametrize("engine", first(2, ["vllm", "sglang-0.4", "vllm-0.6"]))
def test_no_plan_is_simulated_that_an_awake_engine_leaves_no_room_for(engine):
    result = found(engine, HALF)
    assert "simulated memory does not fit" not in result.pruned
    assert result.gap == 0
    assert result.considered["simulated plans"] <= 5


def test_layouts_that_need_less_at_a_time_are_found_beside_an_awake_engine():
    awake, asleep = (found("vllm", HALF, sleeps=sleeps).plans[0] for sleeps in (False, True))
    assert awake.plan.placement == asleep.plan.placement == "{actor, reference}"
    # Micro-batches are smaller, or more is computed again: slower, but not by as much as pools of their own.
    assert 1 < awake.forecast.iteration_seconds / asleep.forecast.iteration_seconds < 1.3


def test_a_share_that_nobody_says_leaves_trainers_their_room():
    chosen, half = found("vllm", NOTHING_PINNED), found("vllm", HALF)
    best = chosen.plans[0]
    assert chosen.gap == 0
    assert best.plan.placement == "{actor, reference}"
    assert best.plan.tasks["actor.generate"].memory_fraction < 0.5
    assert best.forecast.iteration_seconds < half.plans[0].forecast.iteration_seconds


def test_where_nothing_fits_beside_an_awake_engine_it_has_gpus_of_its_own():
    assert "{generation" in found("vllm", SPLIT).plans[0].plan.placement


def test_what_an_engine_found_when_it_started_is_not_held_against_a_plan():
    result = found(
        "vllm-0.8", HALF
    )  # its share is less than what lay there, which layouts do not tell
    assert result.plans[0].plan.placement == "{actor, reference}"
    assert 0 < result.gap < 0.06


def test_what_an_engine_found_when_it_started_leaves_a_larger_share_its_plans():
    """Weights that lay there go off the cache: with 0.7 of a GPU it fits beside the layouts with which 0.6 does."""
    some, more = (
        Pinned(tasks=FrozenDict({"actor.generate": TaskDraft(memory_fraction=share)}))
        for share in (0.6, 0.7)
    )
    best, same = (found("vllm-0.8", each, sleeps=True).plans[0] for each in (some, more))
    assert same.plan.tasks["actor.generate"].memory_fraction == 0.7
    assert same.forecast.iteration_seconds == best.forecast.iteration_seconds
