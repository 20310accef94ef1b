"""When a run that adapts searches: not by chance, not where nothing could pay, and for a small share of its seconds."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.planner.adapting.pacing import (
    ANEW_CHANGE,
    FIRST_CPU_SECONDS,
    GAIN_SHARE,
    RUN_SHARE,
    Look,
    Pace,
)
from rlplan.planner.adapting.proposing import AGAIN, Proposals, Request, proposals
from rlplan.planner.adapting.window import Level, Window, level_of
from rlplan.results.advice import Gain
from rlplan.workload import Lognormal
from tests.planner.adapting.test_adapting import (
    DECIDED,
    SECONDS,
    START,
    Found,
    adapter_of,
    apart,  # noqa: F401 -- a fixture
    done,
    facts,  # noqa: F401 -- a fixture
    job,  # noqa: F401 -- a fixture
    ledger_of,
    measured_run,
    proposal,
    together,  # noqa: F401 -- a fixture
)

SEQUENCES = 8


def test_a_median_has_the_error_of_normal_values():
    level = level_of([1.0, 2.0, 3.0, 4.0, 10.0])
    # A mean of 4 and squares of 9 + 4 + 1 + 0 + 36 = 50: a standard deviation of sqrt(12.5) = 3.5355, times sqrt(pi / 2 / 5) = 0.5605.
    assert level.median == 3.0
    assert level.error == pytest.approx(3.5355 * 0.5605, rel=1e-3)


@pytest.mark.parametrize(
    ("before", "after", "error", "change"),
    [
        (10.0, 12.0, 0.0, 0.2),
        (12.0, 10.0, 0.0, 0.2),
        (10.0, 10.5, 0.0, 0.0),
        (10.0, 12.0, 1.0, 0.0),
    ],
    ids=["longer", "shorter", "less than counts", "by chance"],
)
def test_levels_change_by_more_than_counts_and_chance(before, after, error, change):
    first, second = (Level(median=each, error=error) for each in (before, after))
    assert first.change(second, 0.06) == pytest.approx(change)


def done_at(plan, number, seconds, **more):
    """Return an iteration of a run whose iterations follow each other, each as long."""
    each, end = done(plan, number, seconds, **more), (number + 1) * seconds
    return replace(each, span=replace(each.span, start_seconds=end - seconds, end_seconds=end))


def test_lengths_that_only_waver_cause_no_search(facts, together, tmp_path):  # noqa: F811
    """Mean lengths of eight responses of log standard deviation 0.64, and seconds that follow them by a half."""
    draw = random.Random(1)
    searches = []
    for run in range(20):
        searching = Found()
        folder = tmp_path / str(run)
        folder.mkdir()
        adapter = adapter_of(facts, folder, searching)
        adapter.begun(together, 0, START)
        for number in range(400):
            tokens = sum(50 * draw.lognormvariate(0, 0.64) for _ in range(SEQUENCES)) / SEQUENCES
            seconds = SECONDS * (0.5 + tokens / 120) * draw.uniform(0.98, 1.02)
            adapter.after(done(together, number, seconds, iterations=400, tokens=tokens))
        searches.append(len(searching.asked))
    assert min(searches) == 1
    assert sum(searches) <= 25  # of the 38 looks that each run may have


def test_lengths_that_grow_cause_one(facts, together, tmp_path):  # noqa: F811
    searching = Found()
    adapter = adapter_of(facts, tmp_path, searching)
    adapter.begun(together, 0, START)
    for number in range(60):
        adapter.after(done(together, number, tokens=50.0 if number < 30 else 60.0))
    assert len(searching.asked) == 2


def test_the_ledger_says_why_nothing_is_searched_when_the_reason_changes(
    facts,  # noqa: F811
    together,  # noqa: F811
    tmp_path,
):
    adapter = adapter_of(facts, tmp_path, Found())
    adapter.begun(together, 0, START)
    for number in range(60):
        adapter.after(done(together, number, iterations=60))
    (line,) = ledger_of(tmp_path, held=True)
    assert (line.held, line.step) == ("steady", DECIDED - 1 + 10)
    assert line.reason == "lengths and seconds are those of the last search, within 6% and chance"


def test_lengths_that_are_planned_to_grow_are_looked_at_as_they_do(facts, together, tmp_path):  # noqa: F811
    """From 4 to 12 tokens over 100 iterations: by 6 % and more first after 10 iterations, and before the end after some more."""
    lengths = Lognormal(mean=8.0, std=2.0, max=40, training_means=(4.0, 12.0))
    work = replace(together.job.workload, response_tokens=lengths)
    plan = replace(together, job=replace(together.job, workload=work, iterations=100))
    searching, asked = Found(), []
    adapter = adapter_of(facts, tmp_path, searching)
    adapter.begun(plan, 0, START)
    for number in range(100):
        tokens = 8.0 * (1 + 0.5 * (-1) ** number)  # too uneven to tell
        adapter.after(done(plan, number, tokens=tokens))
        asked += [number] * (len(searching.asked) - len(asked))
    means = [4.0 + 8.0 * (number + 0.5) / 100 for number in asked]
    assert asked[:2] == [DECIDED - 1, DECIDED + 9]
    for earlier, later in pairwise(means):
        assert later > 1.06 * earlier


class Bounded(Found):
    """Find a plan, a bound, and what that took."""

    def __init__(self, *proposed, share=1.0, cpu_seconds=0.0):
        super().__init__(*proposed)
        self._share, self._cpu_seconds = share, cpu_seconds

    def answer(self):
        found = super().answer()
        if found is None:
            return None
        known = tuple(each.plan for each in found.plans) or found.request.known
        return replace(found, most_share=self._share, cpu_seconds=self._cpu_seconds, known=known)


@pytest.mark.parametrize(("share", "searches"), [(0.0, 1), (0.5, 2)])
def test_nothing_is_searched_where_no_plan_could_repay_a_move(
    facts,  # noqa: F811
    together,  # noqa: F811
    tmp_path,
    share,
    searches,
):
    """Lengths that are a tenth longer change what may be gained by no more than a tenth: 90 iterations of 10 s by 82 s, less than 90."""
    searching = Bounded(share=share)
    adapter = adapter_of(facts, tmp_path, searching)
    adapter.begun(together, 0, 90.0)
    for number in range(30):
        adapter.after(done(together, number, tokens=50.0 if number < 12 else 55.0))
    assert len(searching.asked) == searches
    held = ledger_of(tmp_path, held=True)
    assert any(each.held == "cannot pay" for each in held) == (share == 0.0)


def test_searches_take_a_small_share_of_the_run(facts, together, tmp_path):  # noqa: F811
    """Each takes 6 s of a core: after 600 s a second one may come, after 1,200 s a third."""
    searching = Bounded(cpu_seconds=6.0)
    adapter = adapter_of(facts, tmp_path, searching)
    adapter.begun(together, 0, START)
    asked = []
    for number in range(300):
        tokens = 50 * 1.01**number
        adapter.after(done_at(together, number, SECONDS, iterations=300, tokens=tokens))
        asked += [number] * (len(searching.asked) - len(asked))
        assert 6.0 * len(asked) <= 6.0 + RUN_SHARE * (number + 1) * SECONDS
    assert len(asked) >= 4
    assert "spent" in {each.held for each in ledger_of(tmp_path, held=True)}


def test_a_run_too_short_for_a_search_has_none(facts, together, tmp_path):  # noqa: F811
    searching = Found()
    adapter = adapter_of(facts, tmp_path, searching)
    adapter.begun(together, 0, 0.1)
    seconds = 0.9 * FIRST_CPU_SECONDS / RUN_SHARE / 100
    for number in range(100):
        adapter.after(done_at(together, number, seconds))
    assert not searching.asked
    assert ledger_of(tmp_path, held=True)[0].held == "spent"


class Silent(Found):
    """Answer nothing until a number of questions have been asked of it."""

    def __init__(self, after):
        super().__init__()
        self._left = after

    def answer(self):
        self._left -= 1
        return super().answer() if self._left < 0 else None


@pytest.mark.parametrize("after", [5, 25, 1_000])
def test_the_ledger_says_once_that_a_search_has_not_answered(facts, together, tmp_path, after):  # noqa: F811
    """Asked for after iteration 3, it is silent for as long as lies between two searches: after iteration 13 the ledger says so."""
    adapter = adapter_of(facts, tmp_path, Silent(after))
    adapter.begun(together, 0, START)
    for number in range(40):
        adapter.after(done_at(together, number, SECONDS, iterations=40))
    held = ledger_of(tmp_path, held=True)
    silent = [each for each in held if each.held == "no answer"]
    if after < 10:
        assert not silent
        assert held[0].held == "steady"
        return
    (line,) = silent
    assert line.step == DECIDED - 1 + 10
    assert line.reason.startswith(
        f"the search that began after step {DECIDED - 1} has not answered in {10 * SECONDS:.2f} s"
    )
    assert line.reason.endswith("other work keeps this machine's cores busy")
    assert len(ledger_of(tmp_path)) == (after < 1_000)


def test_a_run_that_ends_before_a_search_answers_says_so(facts, together, tmp_path):  # noqa: F811
    adapter = adapter_of(facts, tmp_path, Silent(1_000))
    adapter.begun(together, 0, START)
    for number in range(8):
        adapter.after(done_at(together, number, SECONDS, iterations=8))
    (line,) = ledger_of(tmp_path, held=True)
    assert (line.step, line.held) == (7, "no answer")
    # Asked for a few iterations before the end, it had no time: nothing is said of its size, or of the machine.
    assert line.reason.endswith("the run ends before it does")


def test_what_may_be_gained_pays_for_more_looks(together):  # noqa: F811
    """A search of 2 s, then looks of 3 s each at lengths that grow: the run of 400 s pays for the one, and what is to be gained for the others."""
    pace, window, looks = Pace(10), Window(20, 1), 0
    gain = Gain(p10_seconds=0.0, p50_seconds=2.0, p90_seconds=4.0)
    proposed = replace(proposal(together, 0.0), gain_left=gain)
    for number in range(60):
        each = done_at(together, number, 2.0, iterations=200, tokens=50 * 1.0065**number)
        window.note(each)
        look = pace.after(window, each, lambda: START) if window.is_enough else None
        if not isinstance(look, Look):
            continue
        looks += 1
        request = Request(
            measured=window.measured(),
            step_seconds=2.0,
            iterations=200,
            staleness=1,
            known=look.known,
        )
        took = 3.0 if look.known else 2.0
        found = Proposals(request=request, plans=(proposed,), known=(together,), cpu_seconds=took)
        pace.note(found, is_present=True)
        of_run, of_gain = pace._shares(window, each, START)
        # 200 iterations of 2 s less those done, each 2 s shorter, for a move of 30 s.
        assert of_run == pytest.approx(RUN_SHARE * each.span.end_seconds)
        assert of_gain == pytest.approx(GAIN_SHARE * (2 * each.left - START))
    assert pace._spent_seconds == 2.0
    assert pace._spent_on_gain_seconds == 3.0 * (looks - 1)
    assert looks >= 4


def test_plans_that_are_known_are_forecast_again_until_much_has_changed(
    facts,  # noqa: F811
    together,  # noqa: F811
    apart,  # noqa: F811
    tmp_path,
):
    searching = Bounded(*(proposal(apart, -1.0) for _ in range(20)))
    adapter = adapter_of(facts, tmp_path, searching)
    adapter.begun(together, 0, START)
    for number in range(90):
        tokens = 50.0 if number < 20 else 60.0 if number < 50 else 50.0 * (1.01 + ANEW_CHANGE)
        adapter.after(done(together, number, tokens=tokens))
    known = [each.known for each in searching.asked]
    assert known[:2] == [(), (apart,)]
    assert known[-1] == ()


def test_a_look_at_known_plans_says_what_a_search_says_of_them(facts, together):  # noqa: F811
    window = measured_run(together, facts)
    request = Request(
        measured=window.measured(), step_seconds=window.step_seconds, iterations=100, staleness=1
    )
    searched = proposals(request, facts)
    again = proposals(replace(request, known=searched.known), facts)
    assert again.plans[:1] == searched.plans[:1]
    assert {each.plan.made_by for each in again.plans} <= {each.made_by for each in searched.known}
    assert again.notes == (*searched.notes, AGAIN)
    assert searched.cpu_seconds > 0


def test_no_plan_that_is_found_gains_more_than_the_bound_says(facts, together):  # noqa: F811
    window = measured_run(together, facts)
    request = Request(
        measured=window.measured(), step_seconds=window.step_seconds, iterations=100, staleness=1
    )
    found = proposals(request, facts)
    most = found.most_share * request.step_seconds
    gains = [each.gain_left.p50_seconds for each in found.plans]
    assert 0 < max(gains) <= most * (1 + 1e-9) < request.step_seconds


def test_of_other_objectives_a_bound_on_seconds_is_not_known(facts, together):  # noqa: F811
    priced = replace(together, job=replace(together.job, objective="energy"))
    window = measured_run(together, facts)
    measured = replace(window.measured(), plan=priced)
    request = Request(
        measured=measured, step_seconds=window.step_seconds, iterations=100, staleness=1
    )
    assert proposals(request, facts).most_share == 1.0


@given(share=st.floats(0, 1), changed=st.floats(0, 3), more=st.floats(0, 3))
def test_the_most_that_plans_may_gain_grows_with_what_has_changed(share, changed, more):
    pace = Pace(10)
    pace._most_share = share
    found = pace._share_after(changed)
    assert share - 1e-12 <= found <= 1
    assert pace._share_after(changed + more) >= found - 1e-12


@given(
    seconds=st.floats(0.01, 100),
    cpu_seconds=st.floats(0.01, 10),
    growth=st.floats(0.9, 1.1),
)
def test_searches_never_take_more_than_their_share_and_one_of_them(
    together,  # noqa: F811
    seconds,
    cpu_seconds,
    growth,
):
    """Of whatever run, where nothing is to be gained: but for the first, which the whole run has to be long enough for."""
    pace, window, spent = Pace(10), Window(20, 1), 0.0
    for number in range(120):
        end = (number + 1) * seconds
        each = done_at(together, number, seconds, iterations=120, tokens=50 * growth**number)
        window.note(each)
        if not window.is_enough or not isinstance(pace.after(window, each, lambda: 0.0), Look):
            continue
        assert spent == 0 or spent + cpu_seconds <= RUN_SHARE * end * (1 + 1e-9)
        spent += cpu_seconds
        request = Request(
            measured=window.measured(), step_seconds=seconds, iterations=120, staleness=1
        )
        pace.note(Proposals(request=request, cpu_seconds=cpu_seconds), is_present=True)
    assert spent <= cpu_seconds or spent <= RUN_SHARE * 120 * seconds * (1 + 1e-9)
    if spent:
        assert RUN_SHARE * 120 * seconds * (1 + 1e-9) >= FIRST_CPU_SECONDS


def looks_of(pace, plan, answers, *, iterations=200, growth=1.004, seconds=2.0):
    """Return after how many iterations plans are looked at, with those that are known, where looks answer one after another."""
    window, looks = Window(20, 1), []
    for number in range(iterations):
        each = done_at(plan, number, seconds, iterations=iterations, tokens=50 * growth**number)
        window.note(each)
        look = pace.after(window, each, lambda: START) if window.is_enough else None
        if not isinstance(look, Look):
            continue
        looks.append((number + 1, look.known))
        request = Request(
            measured=window.measured(),
            step_seconds=seconds,
            iterations=iterations,
            staleness=1,
            known=look.known,
        )
        pace.note(replace(answers(number), request=request), is_present=True)
    return looks


def test_a_plan_that_is_better_later_is_looked_at_half_way_and_not_before(together, apart):  # noqa: F811
    """Better once 130 are done: the first look is after 7 iterations, then 7 + 123 // 2, half of the rest, and each tenth at least."""
    planned = replace(proposal(apart, 0.0), better_after=130)
    found = Proposals(request=None, plans=(planned,), known=(apart,), cpu_seconds=0.05)
    looks = looks_of(Pace(10), together, lambda _: found, growth=1.002)
    assert [at for at, _ in looks][:5] == [7, 68, 99, 114, 124]
    assert {known for _, known in looks[1:]} == {(apart,)}


def test_a_planned_look_is_on_account_of_the_whole_run(together, apart):  # noqa: F811
    """A search of 3 s and a look of 0.9 s: by iteration 68 1 % of a run of 400 s pays for both, that of the 136 s until then for neither."""
    planned = replace(
        proposal(apart, 0.0),
        gain_left=Gain(p10_seconds=-2.0, p50_seconds=0.0, p90_seconds=2.0),
        better_after=130,
    )
    pace = Pace(10)
    found = Proposals(
        request=None, plans=(planned,), known=(apart,), cpu_seconds=3.0, search_cpu_seconds=2.1
    )
    looks = looks_of(pace, together, lambda at: found if at < 10 else replace(found, plans=()))
    assert [at for at, _ in looks[:2]] == [7, 68]
    assert looks[1][1] == (apart,)


def test_known_plans_are_looked_at_where_a_search_would_take_more_than_its_share(together, apart):  # noqa: F811
    """After lengths have changed by half: a second search of 5 s is more than 1 % of the whole run of 600 s pays for beside the first; a look takes 0.1 s."""
    found = Proposals(request=None, known=(apart,), cpu_seconds=5.0, search_cpu_seconds=4.9)
    look = Proposals(request=None, known=(apart,), cpu_seconds=0.1)
    pace = Pace(10)
    looks = looks_of(
        pace, together, lambda at: found if at < 20 else look, iterations=300, growth=1.01
    )
    assert looks[0][1] == ()
    assert all(known == (apart,) for _, known in looks[1:])
    assert looks[-1][0] > 7 + 41  # by then responses are half as long again: 1.01 ** 41


def test_behind_a_move_known_plans_are_looked_at_without_a_search(together, apart):  # noqa: F811
    """A search of 5 s is more than 1 % of the run until its end pays for; a look at the plan before takes 0.1 s."""
    pace, window = Pace(10), Window(20, 1)
    searched = Proposals(request=a_request(together), cpu_seconds=5.0, search_cpu_seconds=4.9)
    pace.note(searched, is_present=True)
    pace.clear(30, (apart,))
    for number in range(30, 34):
        window.note(done_at(together, number, 2.0, iterations=300, tokens=50))
    pace.skip(window, 34)
    for number in range(34, 300):
        tokens = 50 * 1.005 ** (number - 34)
        each = done_at(together, number, 2.0, iterations=300, tokens=tokens)
        window.note(each)
        look = pace.after(window, each, lambda: START)
        if isinstance(look, Look):
            assert look.known == (apart,)
            break
    else:
        pytest.fail("nothing was looked at")


def a_request(plan):
    """Return a request of three iterations."""
    window = Window(20, 1)
    for number in range(4):
        window.note(done_at(plan, number, 2.0, iterations=300, tokens=50))
    return Request(measured=window.measured(), step_seconds=2.0, iterations=300, staleness=1)
