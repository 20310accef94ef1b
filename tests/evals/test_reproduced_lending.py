"""Lending as verl published it: the figures as stated, and claims that are marked by what is forecast."""

from dataclasses import replace

import pytest

from rlplan.evals.claims import judged
from rlplan.evals.reproductions import lending
from rlplan.planner.measured.framework_runs import job_of, plan_of
from rlplan.rules import check_plan


def test_gains_are_those_that_verl_states():
    assert (
        pytest.approx(lending.SWITCH_GAIN, abs=5e-4) == 1 - lending.SWITCH_ON / lending.SWITCH_OFF
    )
    later = 1 - lending.LATER_ON / lending.LATER_OFF
    assert pytest.approx(later, abs=5e-4) == lending.LATER_GAIN
    hours = (lending.EVEN_HOURS, lending.UNEVEN_HOURS)
    found = [1 - lending.DYNAMIC_HOURS / each for each in hours]
    assert found == pytest.approx([lending.GAIN_OVER_EVEN, lending.GAIN_OVER_UNEVEN], abs=5e-4)
    found = [gain.published for gain in lending.WORKERS]
    assert found == pytest.approx([0.133, 0.257, 0.35, 0.422], abs=5e-4)


@pytest.mark.parametrize(
    "run",
    [
        lending.V1,
        lending.V1_SWITCHING,
        lending.V1_EVEN,
        lending.EVEN,
        lending.UNEVEN,
        *(each.run for each in lending.WORKERS),
    ],
)
def test_the_runs_are_sound_plans_with_and_without_lending(run):
    plan = plan_of(run, job_of(run))
    check_plan(plan)
    check_plan(replace(plan, lending=lending.DYNAMIC))


@pytest.mark.parametrize(("gain", "holds"), [(0.12, True), (0.02, False)])
def test_sizes_hold_within_a_third_and_signs_above_what_reruns_differ_by(monkeypatch, gain, holds):
    def seconds(run, lends=None, site=lending.SHEETS):
        return 100.0 * (1 - gain) if lends else 100.0

    monkeypatch.setattr(lending, "seconds_of", seconds)
    claims = [lending._size(each, lending.FROM_SHEETS) for each in lending.GAINS]
    claims += [lending._sign(each) for each in lending.GAINS]
    found = list(judged(claims, None))
    assert [claim.holds for claim in found] == [holds] * 2 * len(lending.GAINS)
    assert {claim.evidence for claim in found} == {f"{100 * gain:.1f} %"}


@pytest.mark.full
def test_every_gain_has_the_right_sign_and_nothing_is_gained_where_training_never_waits():
    found = {claim.text: claim.holds for claim in judged(lending.CLAIMS, None)}
    signs = [holds for text, holds in found.items() if "lending pays (" in text]
    assert signs == [True] * len((*lending.GAINS, *lending.WORKERS))
    assert found["8 + 24 GPUs, whose trainer never waits: lending does not pay"]
