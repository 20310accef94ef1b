"""What the age of samples costs: pairs of runs as they were published and run, the fit on them, and the page that says how it does."""

import json
from pathlib import Path
from statistics import mean

import pytest

from benchmarks.sample_ages import PAGE, fits, page
from rlplan.evals.sample_ages import (
    Observed,
    StaleRun,
    judged_pairs,
    load_pairs,
    observed_pairs,
    slopes,
)
from rlplan.profiles.analytic.efficiencies import load_age_costs

RUNS = Path(__file__).parents[2] / "reports" / "published" / "asynchronous.json"


def steps_to_half(curve, level):
    """Return when a mean reward reaches a level, in iterations, between the two that it lies between."""
    after = next(place for place, reward in enumerate(curve) if reward >= level)
    return after - 1 + (level - curve[after - 1]) / (curve[after] - curve[after - 1])


def mean_rewards(runs):
    return [mean(each) for each in zip(*(run["rewards"] for run in runs), strict=True)]


@pytest.mark.parametrize("setting", ["tiny", "wider"])
def test_pairs_of_our_own_runs_are_those_that_were_run(setting):
    runs = json.loads(RUNS.read_text())[setting]
    fresh = mean_rewards(runs["sync"])
    level = (fresh[0] + mean(fresh[-5:])) / 2
    pairs = next(each for each in load_pairs() if each.setting == setting)
    assert pairs.fresh == pytest.approx(steps_to_half(fresh, level), abs=0.06)
    for row in pairs.rows:
        steps = steps_to_half(mean_rewards(runs[row.note]), level)
        assert row.stale == pytest.approx(steps, abs=0.06)
        ages = [run["staleness_mean"] for run in runs[row.note]]
        assert row.age == pytest.approx(mean(ages), abs=0.01)


def test_the_constants_are_the_fit_on_all_pairs():
    costs = load_age_costs()
    for name, (median, most) in fits().items():
        held = getattr(costs, name)
        assert (held.median.value, held.most.value) == pytest.approx((median, most), rel=0.005)
    assert costs.oldest.value == max(each.age for pairs in load_pairs() for each in pairs.rows)


def test_the_published_page_is_what_the_pairs_say():
    assert PAGE.read_text() == page()


def test_a_pair_without_its_first_score_is_missed_only_where_age_cannot_be_why():
    missed = [
        each.observed
        for each in judged_pairs()
        if not each.observed.is_fitted and not each.is_within
    ]
    assert all(each.needed < 1 or each.run.age == 0 for each in missed)


def test_three_in_four_pairs_are_within_a_fit_without_their_group():
    fitted = [each for each in judged_pairs() if each.observed.is_fitted]
    assert sum(each.is_within for each in fitted) >= 0.7 * len(fitted)


def test_a_gain_of_half_as_much_needs_twice_as_many_steps():
    areal = next(each for each in load_pairs() if each.setting == "AIME 24")
    found = next(
        each for each in observed_pairs() if each.setting == "AIME 24" and each.run.age == 8
    )
    assert (areal.start, areal.fresh, found.run.stale) == (28.8, 42.0, 35.7)
    assert found.needed == pytest.approx(13.2 / 6.9)
    assert found.slope == pytest.approx((13.2 / 6.9 - 1) / 8)
    # p10 to p90 of 42.0 and 35.7 % of 960 answers: 1.2816 sqrt(0.42 0.58 + 0.357 0.643) / sqrt(960) is 2.8 points
    assert found.interval == pytest.approx((13.2 / 9.74, 13.2 / 4.06), rel=0.01)


def pair(group, age, needed):
    run = StaleRun(correction="none", age=age, age_is="mean", stale=0.0)
    return Observed(
        group=group,
        setting="",
        run=run,
        needed=needed,
        interval=(needed, needed),
        is_fitted=True,
    )


def test_groups_weigh_the_same_and_runs_that_collapsed_are_no_largest_cost():
    # One group has four rows that cost 0.1 each, the others one row each: 0.5 and 0.7. Half the weight lies below 0.5.
    cheap = [pair("a", 1, 1.1)] * 4
    assert slopes([*cheap, pair("b", 2, 2.0), pair("c", 1, 1.7)]) == pytest.approx((0.5, 0.7))
    collapsed = pair("c", 1, float("inf"))
    assert slopes([*cheap, pair("b", 2, 2.0), collapsed]) == pytest.approx((0.5, 0.5))
    better = pair("a", 1, 0.8)
    assert slopes([better]) == (0.0, 0.0)
