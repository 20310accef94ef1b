"""SRL's evaluation: what is forecast of it, and which claims hold."""

from itertools import pairwise

import pytest

from rlplan.evals.reproductions import load_reproduction
from rlplan.evals.reproductions.srl import ring_speed_up


@pytest.fixture(scope="module")
def found():
    return load_reproduction("srl").reproduce()


@pytest.mark.full
def test_every_claim_is_marked_and_holds(found):
    assert len(found.claims) == 7
    failing = [claim.text for claim in found.claims if not claim.holds]
    assert not failing


@pytest.mark.full
def test_published_rates_are_forecast_within_a_quarter(found):
    errors = [point.error_fraction for point in found.points if point.error_fraction is not None]
    assert len(errors) == 1  # a step's seconds are those of the other row
    assert max(map(abs, errors)) < 0.25


@pytest.mark.full
def test_worker_counts_are_those_published(found):
    largest = [point.plan for point in found.points if point.gpus == 32]
    assert [plan.partition(" ")[0] for plan in largest] == ["7,680", "15,360", "3,840"]


@pytest.mark.parametrize("steps", [0.5, 2.7, 7.3])
def test_rings_gain_until_answers_are_hidden(steps):
    speeds = [ring_speed_up(ring, steps) for ring in (1, 2, 4, 8, 16, 32)]
    assert all(later > 0.95 * earlier for earlier, later in pairwise(speeds))
    assert speeds[-1] == pytest.approx(1 + steps, rel=0.05)
