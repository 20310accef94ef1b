"""Actor, policy and trainer workers: rates in closed form, and where inference is better kept."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.evals.reproductions.srl import (
    PolicyWorkers,
    WorkerSystem,
    play_workers,
    rollout_rate,
)
from tests.cases import draws

INLINE = WorkerSystem(
    actors=64,
    step_seconds=0.01,
    step_spread=0.0,
    inline_seconds=0.03,
    trainers=2,
    sample_frames=100,
    train_frames=5000,
    train_seconds=0.5,
)
POLICIES = PolicyWorkers(
    workers=4, batch_seconds=0.002, observation_seconds=1e-5, travel_seconds=0.008
)
REMOTE = replace(INLINE, ring_size=8, policies=POLICIES)


def rate(system):
    return rollout_rate(system) * system.groups


def test_inline_actors_step_and_infer_in_turn():
    assert rate(INLINE) == pytest.approx(64 / 0.04)


@settings(max_examples=draws(10, 50))
@given(st.integers(1, 12), st.floats(0.5, 10))
def test_a_ring_hides_answers_as_far_as_it_reaches(ring, steps):
    policies = PolicyWorkers(
        workers=1, batch_seconds=0, observation_seconds=0, travel_seconds=steps
    )
    alone = replace(INLINE, actors=1, step_seconds=1.0, policies=policies, ring_size=ring)
    assert rate(alone) == pytest.approx(min(1.0, ring / (1 + steps)), rel=0.03)


def test_remote_actors_never_wait_behind_rings_and_quick_policy_workers():
    assert rate(REMOTE) == pytest.approx(64 / 0.01, rel=0.02)


def test_policy_workers_that_are_too_few_decide_the_rate():
    slow = replace(POLICIES, workers=1, observation_seconds=1e-3, batch_seconds=0.0)
    assert rate(replace(REMOTE, policies=slow)) == pytest.approx(1000, rel=0.02)


@pytest.mark.full
def test_inference_belongs_where_it_holds_up_less():
    light = replace(INLINE, inline_seconds=1e-4)
    one_by_one = replace(POLICIES, workers=1, max_batch=1)
    assert rate(REMOTE) > 3 * rate(INLINE)  # a heavy policy: batches on policy workers
    assert rate(light) > 5 * rate(replace(REMOTE, policies=one_by_one))  # a light one: on the actor
    assert rate(replace(REMOTE, ring_size=1)) < rate(
        light
    )  # an answer is far, and nothing hides it


def test_the_slower_side_sets_the_pace():
    by_actors = play_workers(replace(INLINE, train_seconds=0.1), 50)
    assert by_actors.frames_per_second == pytest.approx(64 / 0.04, rel=0.05)
    assert by_actors.trainer_waits_fraction > 0.8
    by_trainers = play_workers(replace(INLINE, train_seconds=20.0), 20)
    assert by_trainers.frames_per_second == pytest.approx(2 * 5000 / 20, rel=0.05)
    assert by_trainers.trainer_waits_fraction == pytest.approx(0.0, abs=1e-9)


@pytest.mark.full
def test_fifteen_thousand_workers_and_32_trainers_are_played_in_seconds():
    system = replace(INLINE, actors=15_360, trainers=32, train_frames=20_000, train_seconds=1.0)
    begun = time.process_time()
    found = play_workers(system, 100)
    assert time.process_time() - begun < 10
    assert found == play_workers(system, 100)
