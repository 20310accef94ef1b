"""Goodput under failures: the formula against a Monte-Carlo playing, its limits, and the best interval."""

import math
import random
from dataclasses import replace

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from rlplan.job import Failures
from rlplan.profiles.facts import load_facts
from rlplan.reports.tables.plans import step_lines
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.expenses import best_interval, goodput
from tests.simulator.plans import priced_plan

DAY = 86_400.0


def failures(checkpoint=30.0, restart=300.0, every=None, node_mtbf=1e6):
    return Failures(
        node_mtbf_seconds=node_mtbf,
        checkpoint_seconds=checkpoint,
        restart_seconds=restart,
        checkpoint_every=every,
    )


def played(settings, between, work, pieces, seed):
    """Return the same share by playing pieces of work and failures one by one."""
    environment, generator = simpy.Environment(), random.Random(seed)

    def fail(process):
        while True:
            yield environment.timeout(generator.expovariate(1 / between))
            if process.is_alive:
                process.interrupt()

    def run():
        done = 0
        while done < pieces:
            try:
                yield environment.timeout(work + settings.checkpoint_seconds)
                done += 1
            except simpy.Interrupt:
                yield from restart()

    def restart():
        while True:
            try:
                yield environment.timeout(settings.restart_seconds)
            except simpy.Interrupt:
                continue
            return

    main = environment.process(run())
    environment.process(fail(main))
    environment.run(until=main)
    return pieces * work / environment.now


@pytest.mark.parametrize(
    ("between", "work", "checkpoint", "restart"),
    [(3600, 600, 30, 300), (3600, 3600, 60, 600), (20_000, 900, 120, 60)],
)
def test_the_formula_is_the_mean_of_played_failures(between, work, checkpoint, restart):
    settings = failures(checkpoint, restart)
    found = played(settings, between, work, pieces=6000, seed=4)
    assert goodput(settings, between, work) == pytest.approx(found, rel=0.02)


@given(st.floats(1, 1e5), st.floats(0, 1e3), st.floats(0, 1e4))
def test_without_failures_only_checkpoints_take_time(work, checkpoint, restart):
    settings = failures(checkpoint, restart)
    assert goodput(settings, 1e15, work) == pytest.approx(work / (work + checkpoint), rel=1e-4)


@given(st.floats(100, 1e6), st.floats(0, 100), st.floats(1, 500))
def test_the_best_interval_is_no_worse_than_any_other(between, checkpoint, iteration):
    settings = failures(checkpoint)
    best = best_interval(settings, between, iteration)
    value = goodput(settings, between, best * iteration)
    for other in {max(1, best // 2), max(1, best - 1), best + 1, 2 * best}:
        assert value >= goodput(settings, between, other * iteration) * (1 - 1e-9)


def test_the_best_interval_is_youngs_where_failures_are_rare():
    between, checkpoint = 30 * DAY, 10.0
    young = math.sqrt(2 * checkpoint * between)
    assert best_interval(failures(checkpoint), between, 1.0) == pytest.approx(young, rel=0.01)


def test_a_forecast_speaks_of_failures_only_where_its_job_does():
    plan = priced_plan()
    assert simulate(plan, load_facts(plan.job)).goodput is None
    # Llama 3 (arXiv:2407.21783, section 3.3.4): 419 unexpected interruptions of 2,048 nodes in 54 days.
    llama = failures(node_mtbf=54 * DAY * 2048 / 419, every=100)
    plan = replace(plan, job=replace(plan.job, failures=llama))
    found = simulate(plan, load_facts(plan.job))
    assert found.goodput is not None
    assert found.goodput.failure_every_seconds == llama.node_mtbf_seconds  # one node
    assert found.goodput.checkpoint_every == 100
    assert found.goodput.iteration_seconds == pytest.approx(
        found.iteration_seconds / found.goodput.fraction
    )


@pytest.mark.parametrize("settings", [failures(1e4, node_mtbf=1.0), failures(node_mtbf=10.0)])
def test_a_run_that_does_not_get_on_has_no_number(settings):
    """Restarts of 300 s between failures of 10 s would take exp(30) times as long."""
    plan = priced_plan()
    plan = replace(plan, job=replace(plan.job, failures=settings))
    found = simulate(plan, load_facts(plan.job))
    assert found.goodput is not None
    assert (found.goodput.fraction, found.goodput.iteration_seconds) == (0.0, None)
    (line,) = (each for each in step_lines(plan, found, {}) if each.startswith("goodput"))
    assert line.startswith("goodput: none; with a failure every ")
    assert "would not get on" in line
