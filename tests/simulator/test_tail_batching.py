"""Tail batching: what short rounds put off, and the means over short and long rounds."""

from dataclasses import replace

import numpy as np
import pytest

from rlplan.errors import CapabilityError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.profiles.facts import load_facts
from rlplan.simulator.generation.generating import begun
from rlplan.simulator.generation.over_provisioning import put_off
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import simulate
from rlplan.simulator.tail_batching import simulate_rounds
from rlplan.simulator.timeline.agenda import enough_learnt, learnt_plan
from rlplan.workload import Empirical, mean_length
from tests.cases import only
from tests.simulator.test_streaming_plans import apart


def in_rounds(over=1.25, samples=1.0):
    """Return a synchronous plan whose iterations drop what is late."""
    plan = apart("sync", over=over, staleness=0.0)
    work = replace(plan.job.workload, over_sampling=samples)
    return replace(plan, job=replace(plan.job, workload=work))


def generates(plan):
    return PlacedPlan(plan, load_facts(plan.job)).tasks["actor.generate"]


def test_more_prompts_and_samples_are_begun_and_rounded_up():
    plan = in_rounds(1.25, 1.25)
    found = begun(generates(plan)).workload
    work = plan.job.workload
    assert (found.prompts, found.samples_per_prompt) == (
        -(-5 * work.prompts // 4),
        -(-5 * work.samples_per_prompt // 4),
    )
    assert not found.drops_responses


@pytest.mark.parametrize(
    ("over", "samples"), only([(1.25, 1.25)], [(1.5, 1.0), (1.25, 1.25), (1.0, 1.5)])
)
def test_what_is_learnt_from_and_what_is_put_off_are_apart(over, samples):
    plan = in_rounds(over, samples)
    placed = PlacedPlan(plan, load_facts(plan.job))
    found, whole = enough_learnt(placed), begun(generates(plan)).workload
    work = plan.job.workload
    share = work.sequences / whole.sequences
    assert len(found.responses) == pytest.approx(
        share * whole.sequences, abs=whole.samples_per_prompt
    )
    late = whole.prompts - work.prompts
    assert len(found.dropped) == late * whole.samples_per_prompt
    if late:
        assert np.mean(found.dropped) > np.mean(found.responses)
        assert put_off(work, found).response_tokens == Empirical(values=found.dropped)
    assert 0 < found.time_fraction <= 1


def test_samples_begun_beyond_those_learnt_from_shorten_what_is_learnt_from():
    means = [
        mean_length(
            learnt_plan(PlacedPlan(plan, load_facts(plan.job))).plan.job.workload.response_tokens
        )
        for plan in (in_rounds(1.25), in_rounds(1.25, 1.5))
    ]
    assert means[1] < means[0] < mean_length(in_rounds().job.workload.response_tokens)


@pytest.mark.parametrize(("over", "shorts"), [(1.25, 4), (1.5, 2)])
def test_figures_are_the_means_of_short_rounds_and_a_long_one(over, shorts):
    plan = in_rounds(over)
    facts = load_facts(plan.job)
    found, short = simulate_rounds(plan, facts), simulate(plan, facts)
    lengths = [each.seconds for each in found.iterations]
    assert lengths[:-1] == pytest.approx([short.iteration_seconds] * shorts)
    assert lengths[-1] > lengths[0]
    assert found.iteration_seconds == pytest.approx(sum(lengths) / (shorts + 1))
    assert sum(found.stage_seconds.values()) <= found.iteration_seconds * (1 + 1e-9)
    for cost in found.costs:
        assert sum(cost.parts.values()) == pytest.approx(cost.seconds)
    low, high = found.iteration_seconds_interval
    assert low <= found.iteration_seconds <= high
    assert {span.iteration for span in found.tasks} == set(range(shorts + 1))
    assert "long ones" in found.warnings[0]


def test_more_samples_are_refused_where_nothing_plays_them():
    plan = in_rounds(1.0, 1.5)
    with pytest.raises(CapabilityError, match="over_sampling"):
        simulate(replace(plan, mode="streaming"), load_facts(plan.job))
    with pytest.raises(CapabilityError, match="more responses begun"):
        check_runnable(replace(plan, job=replace(plan.job, framework="rlplan")))
