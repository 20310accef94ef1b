"""What the difference of two steps is made of: stages that sum to it, whatever the forecasts are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.files.frozen import FrozenDict
from rlplan.results.differences import (
    GENERATION,
    HOST,
    OVERLAP,
    PASSES,
    STEP_STAGES,
    SYNC,
    TAIL,
    UPDATE,
    WAITING,
    step_difference,
    step_parts,
)
from rlplan.results.forecast import Forecast, TaskForecast

STAGES = {
    "actor.generate": "generation",
    "actor.compute_log_prob": "preparation",
    "reward.compute_reward": "preparation",
    "transfer:sequences": "preparation",
    "actor.update": "training",
    "transition": "transition",
}
CAUSES = ["decode", "call overhead", "forward", "environment", "host work of a step", "software"]
seconds = st.floats(0, 1e4, allow_subnormal=False)


def cost(name, **parts):
    """Return what a task costs, by parts named with underscores for spaces."""
    named = {cause.replace("_", " "): each for cause, each in parts.items()}
    return TaskForecast(
        name=name,
        pool="p0",
        activity="transfer" if name.startswith("transfer") else "task",
        stage=STAGES[name],
        seconds=sum(named.values()),
        interval_seconds=(0.0, 1.0),
        source="fitted",
        outside_range=False,
        parts=FrozenDict(named),
    )


def forecast(iteration_seconds, *costs, spread=0.1):
    return Forecast(
        iteration_seconds=iteration_seconds,
        iteration_seconds_interval=(
            iteration_seconds * (1 - spread),
            iteration_seconds * (1 + spread),
        ),
        tokens_per_second=1.0,
        stage_seconds=FrozenDict(),
        tasks=(),
        iterations=(),
        costs=costs,
        memory=(),
        feasible=True,
        infeasible_reasons=(),
        idle_seconds=FrozenDict(),
        cost_usd=0.0,
        energy_joules=0.0,
        warnings=(),
        profile="data sheets",
    )


@st.composite
def forecasts(draw):
    """Draw a forecast whose tasks take any time, in turns, side by side or with gaps."""
    names = draw(st.lists(st.sampled_from(sorted(STAGES)), unique=True))
    costs = (
        cost(name, **draw(st.dictionaries(st.sampled_from(CAUSES), seconds, max_size=4)))
        for name in names
    )
    return forecast(draw(st.floats(1e-3, 1e5)), *costs)


@given(own=forecasts(), base=forecasts(), tails_seconds=st.tuples(seconds, seconds))
def test_stages_sum_to_the_difference_and_parts_to_the_stages(own, base, tails_seconds):
    found = step_difference(own, base, "the other", {}, tails_seconds)
    largest = max(
        1.0, *(max(abs(each.seconds), abs(each.base_seconds)) for each in found.stages), 1.0
    )
    close = pytest.approx(found.seconds, abs=1e-9 * largest)
    assert sum(each.difference_seconds for each in found.stages) == close
    assert sum(each.seconds for each in found.stages) == pytest.approx(
        own.iteration_seconds, abs=1e-9 * largest
    )
    for each in found.stages:
        assert sum(each.parts.values()) == pytest.approx(
            each.difference_seconds, abs=1e-9 * largest
        )
        assert each.seconds >= 0 or each.stage == OVERLAP
    assert [each.stage for each in found.stages] == [
        stage for stage in STEP_STAGES if stage in {each.stage for each in found.stages}
    ]


@given(own=forecasts(), base=forecasts())
def test_the_other_way_round_every_difference_has_the_other_sign(own, base):
    there, back = (step_difference(*pair, "x", {}) for pair in ((own, base), (base, own)))
    for one, other in zip(there.stages, back.stages, strict=True):
        assert one.difference_seconds == -other.difference_seconds
    assert there.may_be_nothing == back.may_be_nothing


def test_parts_stand_in_the_stage_that_they_are_of():
    found = step_parts(
        forecast(
            20.0,
            cost("actor.generate", decode=8.0, call_overhead=1.0),
            cost("actor.compute_log_prob", forward=3.0),
            cost("reward.compute_reward", forward=1.0),
            cost("actor.update", forward=2.0, host_work_of_a_step=0.5),
            cost("transition", weight_gather=1.5),
        ),
        tail_seconds=2.0,
    )
    told = {stage: sum(parts.values()) for stage, parts in found.items() if parts}
    assert told == {
        GENERATION: 6.0,
        TAIL: 2.0,
        PASSES: 3.0,
        "rewards": 1.0,
        UPDATE: 2.0,
        SYNC: 1.5,
        HOST: 1.5,
        WAITING: 3.0,
    }


def test_what_runs_side_by_side_is_taken_off_as_overlap():
    found = step_parts(
        forecast(8.0, cost("actor.generate", decode=8.0), cost("actor.update", forward=5.0))
    )
    assert sum(found[OVERLAP].values()) == -5.0
    assert not found[WAITING]


@pytest.mark.parametrize(("spread", "may_be_nothing"), [(0.1, False), (0.4, True)])
def test_steps_whose_intervals_overlap_may_not_differ_at_all(spread, may_be_nothing):
    own, base = (forecast(each, spread=spread) for each in (10.0, 20.0))
    assert step_difference(own, base, "the other", {}).may_be_nothing is may_be_nothing
