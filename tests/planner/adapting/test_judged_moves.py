"""Runs that are played: a machine unlike its sheets, lengths drawn anew for each iteration, and moves judged as in a run."""

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from rlplan.calibration import Calibration, Factor, WorkKind
from rlplan.files.frozen import FrozenDict
from rlplan.planner.adapting.proposing import in_layout_of, proposals
from rlplan.planner.adapting.window import planned_mean
from rlplan.planner.measured.measured_lengths import at_lengths
from rlplan.profiles.analytic.efficiencies import load_spreads
from rlplan.profiles.facts import Facts
from rlplan.results.advice import Outcome
from rlplan.simulator.simulate import simulate
from rlplan.workload import Lognormal
from tests.planner.adapting.test_adapting import (
    adapter_of,
    apart,  # noqa: F401 -- a fixture
    done,
    facts,  # noqa: F401 -- a fixture
    job,  # noqa: F401 -- a fixture
    ledger_of,
    together,  # noqa: F401 -- a fixture
)

MEAN, STD, LONGEST = 12.0, 7.0, 50
# What this machine takes of what its sheets say, and how far single iterations are off from that.
FACTORS: dict[WorkKind, float] = {"generation": 1.3, "training": 0.8}
NOISE = 0.03
SEEDS = 30
# Iterations over which lengths grow threefold.
GROWS_OVER = 100
# Of intervals from p10 to p90 four of five hold what they are of. That a run moves at all hangs on chance too: so many do.
WITHIN, LEAST_MOVES = 0.8, 8


class Known:
    """Look at one other plan at once, as a search beside a run looks at plans that it knows."""

    def __init__(self, other, known):
        self._other, self._facts, self._open = other, known, None

    def ask(self, request):
        self._open = proposals(replace(request, known=(self._other,)), self._facts)

    def answer(self):
        found, self._open = self._open, None
        return found


class Machine:
    """Play iterations of plans at lengths that are drawn.

    Args:
        within: Relative, one sigma: by which each plan is off by itself.
        iterations: Of the run, over which mean lengths grow as its job says.
    """

    def __init__(self, known, seed, within=0.0, iterations=1000):
        factors = {name: Factor(value=each) for name, each in FACTORS.items()}
        stages = FrozenDict[WorkKind, Factor](factors)
        self._facts = known.with_calibration(Calibration(site="machine", stages=stages))
        self._draw = np.random.default_rng(seed)
        self._within, self._own, self._iterations = within, dict[str, float](), iterations

    def iteration(self, plan, number):
        """Return an iteration whose works take what they take at its lengths, with noise."""
        mean = planned_mean(plan, number + 1, self._iterations) or MEAN
        spread = np.log(1 + (STD / MEAN) ** 2)
        count = plan.job.workload.sequences
        drawn = self._draw.lognormal(np.log(mean) - spread / 2, spread**0.5, count)
        lengths = np.clip(np.rint(drawn), 1, LONGEST)
        forecast = simulate(at_lengths(plan, None, lengths.mean()), self._facts)
        if plan.mode not in self._own:
            self._own[plan.mode] = np.exp(self._within * self._draw.standard_normal())
        times = self._own[plan.mode] * (1 + NOISE * self._draw.standard_normal())
        last = forecast.iterations[-1]
        spans = [
            replace(
                each,
                iteration=number,
                start_seconds=times * each.start_seconds,
                end_seconds=times * each.end_seconds,
            )
            for each in forecast.trace.of_iteration(last.iteration)
        ]
        seconds = times * forecast.iteration_seconds
        return done(
            plan, number, seconds, iterations=self._iterations, tokens=lengths.mean(), spans=spans
        )


def outcome_of(known, folder, before, after, machine, most=60):
    """Return what came of the first move of a run in its first iterations; None where it does not move."""
    folder.mkdir()
    adapter = adapter_of(known, folder, Known(after, known))
    plan = before
    adapter.begun(plan, 0, 0.001)
    for number in range(most):
        answer = adapter.after(machine.iteration(plan, number))
        if answer.plan is not None:
            plan = answer.plan
            adapter.begun(plan, number + 1, 0.001)
        outcomes = [each for each in ledger_of(folder) if isinstance(each, Outcome)]
        if outcomes:
            return outcomes[0]
    return None


@pytest.mark.full
def test_what_moves_gain_lies_within_their_intervals_and_on_neither_side_of_them(
    facts,  # noqa: F811
    together,  # noqa: F811
    apart,  # noqa: F811
    tmp_path,
):
    lengths = Lognormal(mean=MEAN, std=STD, max=LONGEST)
    workload = replace(together.job.workload, response_tokens=lengths)
    one = replace(together, job=replace(together.job, workload=workload))
    two = in_layout_of(one, apart)
    found = [
        outcome_of(facts, tmp_path / str(seed), one, two, Machine(facts, seed))
        for seed in range(SEEDS)
    ]
    moved = [each for each in found if each is not None]
    assert len(moved) >= LEAST_MOVES
    assert sum(each.as_forecast for each in moved) >= WITHIN * len(moved)
    gained = fmean(each.gained_seconds for each in moved)
    expected = fmean(each.gain.p50_seconds for each in moved)
    assert 0.7 * expected < gained < 1.3 * expected


@pytest.mark.full
def test_so_do_gains_where_lengths_grow_and_each_plan_is_off_by_as_much_as_forecasts_are(
    facts,  # noqa: F811
    together,  # noqa: F811
    apart,  # noqa: F811
    tmp_path,
):
    """Two plans that are each off by `within_machine`: a move may gain less than nothing, and its interval says so."""
    within, profiled = (
        load_spreads().within_machine.value,
        Facts({"cpu": facts.device("cpu")}, "a profile"),
    )
    lengths = Lognormal(mean=2 * MEAN, std=STD, max=LONGEST, training_means=(MEAN, 3 * MEAN))
    workload = replace(together.job.workload, response_tokens=lengths)
    one = replace(together, job=replace(together.job, workload=workload, iterations=GROWS_OVER))
    two = in_layout_of(one, apart)
    found = [
        outcome_of(
            profiled,
            tmp_path / str(seed),
            one,
            two,
            Machine(profiled, seed, within, GROWS_OVER),
            GROWS_OVER,
        )
        for seed in range(SEEDS)
    ]
    moved = [each for each in found if each is not None]
    assert len(moved) >= LEAST_MOVES
    assert sum(each.as_forecast for each in moved) >= WITHIN * len(moved)
    gained = fmean(each.gained_seconds for each in moved)
    assert 0.5 * fmean(each.gain.p50_seconds for each in moved) < gained
