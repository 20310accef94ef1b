"""Runs whose lengths grow as their job says: what a move gains over the iterations that are left, and when it comes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.planner.adapting.proposing import (
    ENDS,
    Proposal,
    Request,
    _later,
    better_after,
    mean_gain,
    proposals,
)
from rlplan.planner.adapting.window import Window
from rlplan.planner.measured.gains import gain_of
from rlplan.planner.measured.measured_lengths import at_lengths, at_run_lengths
from rlplan.results.advice import Gain
from rlplan.simulator.simulate import simulate
from rlplan.workload import Lognormal, mean_length
from tests.planner.adapting.test_adapting import (
    DECIDED,
    LEFT,
    SECONDS,
    START,
    Found,
    adapter_of,
    apart,  # noqa: F401 -- a fixture
    done,
    facts,  # noqa: F401 -- a fixture
    follow,
    job,  # noqa: F401 -- a fixture
    ledger_of,
    measured_run,
    together,  # noqa: F401 -- a fixture
)

GROWS = Lognormal(mean=8.0, std=2.0, max=40, training_means=(4.0, 12.0))


def gain(low, width=1.0):
    return Gain(p10_seconds=low, p50_seconds=low + width, p90_seconds=low + 2 * width)


def proposal(plan, now, left):
    return Proposal(plan=plan, seconds=SECONDS - now.p50_seconds, gain=now, gain_left=left)


@pytest.mark.parametrize(
    ("now", "left", "answer", "moves"),
    [
        (gain(0.1), gain(START / LEFT * 1.01), "change", True),
        (gain(-0.5), gain(START / LEFT * 1.01), "change", True),
        (gain(-1.5), gain(START / LEFT * 1.01), "keep", False),
        (gain(6.0), gain(START / LEFT * 0.99), "too late", False),
    ],
    ids=["both", "unsure now", "longer now", "less over what is left"],
)
def test_a_run_moves_by_what_is_left_as_soon_as_waiting_gains_nothing(
    facts,  # noqa: F811
    together,  # noqa: F811
    apart,  # noqa: F811
    tmp_path,
    now,
    left,
    answer,
    moves,
):
    adapter = adapter_of(facts, tmp_path, Found(proposal(apart, now, left)))
    adapter.begun(together, 0, START)
    found = follow(adapter, together, range(DECIDED + 1))
    (line,) = ledger_of(tmp_path)
    assert (line.answer, line.gain, line.gain_left) == (answer, now, left)
    assert (found is not None) == moves
    waits = "it pays once responses are longer: now an iteration would be 500.0 ms longer"
    assert (waits in line.notes) == (answer == "keep")


@pytest.fixture
def growing(together):  # noqa: F811
    """Return a plan whose responses grow threefold over a hundred iterations."""
    work = replace(together.job.workload, response_tokens=GROWS)
    return replace(together, job=replace(together.job, workload=work, iterations=100))


def request_of(plan, facts, **more):  # noqa: F811
    window = measured_run(plan, facts)
    return Request(
        measured=window.measured(), step_seconds=window.step_seconds, staleness=1, **more
    )


def test_gains_are_of_the_lengths_that_are_left(growing, facts):  # noqa: F811
    found = proposals(request_of(growing, facts, iterations=100), facts)
    best = found.plans[0]
    assert best.gain != best.gain_left
    stays = replace(
        growing,
        job=replace(
            growing.job,
            workload=replace(
                growing.job.workload, response_tokens=replace(GROWS, training_means=None)
            ),
        ),
    )
    still = proposals(request_of(stays, facts, iterations=100), facts)
    assert all(each.gain == each.gain_left for each in still.plans)


def test_lengths_beyond_what_the_job_allows_are_not_looked_at(growing, facts):  # noqa: F811
    short = replace(GROWS, max=13, mean=8.0)
    plan = replace(
        growing,
        job=replace(growing.job, workload=replace(growing.job.workload, response_tokens=short)),
    )
    # Measured are 5 tokens where the job has 4.3: at the end these would be 14.
    found = proposals(request_of(plan, facts, iterations=100), facts)
    assert found.plans
    assert all(each.gain == each.gain_left for each in found.plans)
    (note,) = found.notes
    assert note.startswith(
        "gains are of the present lengths alone: responses would have a mean of 14 tokens"
    )


@pytest.mark.parametrize(
    ("means", "mean", "longest", "expected"),
    [
        # Of 100 iterations, 41 to 45 are measured; left are 55, of which the middle one is the 72nd or 73rd, and the last.
        ((4.0, 12.0), 7.4, 9.0, ((9.68, 12), (11.96, 15))),
        # Twice as long as the job has them, so all the way; no longer than it allows.
        ((4.0, 12.0), 14.8, 18.0, ((19.36, 24), (23.92, 30))),
        ((4.0, 12.0), 14.8, 30.0, ((19.36, 40), (23.92, 40))),
        ((12.0, 4.0), 8.6, 12.0, ((6.32, 9), (4.04, 6))),
        # Where responses are cut already, they stay so.
        ((12.0, 4.0), 8.6, 40.0, ((6.32, 40), (4.04, 40))),
    ],
    ids=["grows", "twice as long", "up to the job's longest", "shrinks", "cut"],
)
def test_lengths_of_iterations_that_are_left(growing, facts, means, mean, longest, expected):  # noqa: F811
    lengths = replace(GROWS, training_means=means)
    work = replace(growing.job.workload, response_tokens=lengths)
    plan = replace(growing, job=replace(growing.job, workload=work))
    rows = {"response_tokens_std": 1.0, "longest_response": longest}
    measured = [done(plan, number, tokens=mean) for number in range(40, 45)]
    window = Window(20, 0)
    for each in measured:
        window.note(replace(each, metrics={**each.metrics, **rows}))
    request = Request(measured=window.measured(), step_seconds=SECONDS, iterations=100, staleness=1)
    later = _later(request, at_run_lengths(plan, request.measured))
    found = [each.job.workload.response_tokens for each in later]
    for lengths, (tokens, most) in zip(found, expected, strict=True):
        assert mean_length(lengths) == pytest.approx(tokens, rel=0.01)
        assert lengths.max == most


def test_the_mean_of_gains_that_grow_evenly_is_the_middle_one():
    even = mean_gain([gain(-1.0), gain(2.0), gain(5.0)])
    assert [getattr(even, name) for name in ENDS] == pytest.approx([2.0, 3.0, 4.0])
    # A parabola's mean over [0, 2], 4 / 3, by its values at 0, 1 and 2.
    lows = mean_gain([gain(0.0), gain(1.0), gain(4.0)])
    assert lows.p10_seconds == pytest.approx(4 / 3)


@given(lows=st.lists(st.floats(-5, 5), min_size=3, max_size=3))
def test_the_mean_of_gains_lies_between_them(lows):
    found = mean_gain([gain(low) for low in lows])
    for at, name in enumerate(ENDS):
        assert min(lows) - 1e-9 <= getattr(found, name) - at <= max(lows) + 1e-9


def test_gains_on_a_profiled_machine_are_surer_than_at_a_site(together, apart, facts):  # noqa: F811
    pair = (together, simulate(together, facts)), (apart, simulate(apart, facts))
    site, machine = (gain_of(*pair, within_site=within) for within in (0.12, 0.063))
    assert site.p50_seconds == machine.p50_seconds
    assert site.p10_seconds < machine.p10_seconds < machine.p90_seconds < site.p90_seconds


def test_a_move_is_judged_by_what_it_was_to_gain_at_the_lengths_since(
    facts,  # noqa: F811
    growing,
    apart,  # noqa: F811
    tmp_path,
):
    other = replace(apart, job=growing.job)
    adapter = adapter_of(facts, tmp_path, Found(proposal(other, gain(5.0), gain(5.0))))
    adapter.begun(growing, 0, START)
    number, _ = follow(adapter, growing, range(9))
    adapter.begun(other, number + 1, START)
    for step in range(number + 1, number + 9):
        adapter.after(done(other, step, 4.0, tokens=10.0))
    decision, outcome = ledger_of(tmp_path)
    # What forecasts say at 5 and at 10 tokens, by the pace of what was measured at 5.
    before, after = (
        [
            simulate(at_lengths(plan, None, tokens), facts).iteration_seconds
            for plan in (growing, other)
        ]
        for tokens in (5.0, 10.0)
    )
    pace = SECONDS / before[0]
    assert outcome.before_seconds == pytest.approx(pace * after[0])
    shift = pace * ((after[0] - after[1]) - (before[0] - before[1]))
    assert shift != 0
    assert outcome.gain.p50_seconds == pytest.approx(decision.gain.p50_seconds + shift)


def test_a_move_is_judged_with_the_chance_of_few_iterations_where_lengths_stay(
    facts,  # noqa: F811
    growing,
    apart,  # noqa: F811
    tmp_path,
):
    other = replace(apart, job=growing.job)
    adapter = adapter_of(facts, tmp_path, Found(proposal(other, gain(5.0), gain(5.0))))
    adapter.begun(growing, 0, START)
    number, _ = follow(adapter, growing, range(9))
    adapter.begun(other, number + 1, START)
    for step in range(number + 1, number + 9):
        adapter.after(done(other, step, 4.0, tokens=5.0))
    decision, outcome = ledger_of(tmp_path)
    assert outcome.before_seconds == decision.measured_seconds
    assert outcome.gain.p50_seconds == pytest.approx(decision.gain.p50_seconds)
    assert outcome.gain.p10_seconds < decision.gain.p10_seconds - 1e-6
    assert outcome.gain.p90_seconds > decision.gain.p90_seconds + 1e-6


def middles(*values):
    """Return gains with these middles; where a plan begins to be better, their ends do not count."""
    return [Gain(p10_seconds=each - 9, p50_seconds=each, p90_seconds=each + 9) for each in values]


@pytest.mark.parametrize(
    ("gains", "after"),
    [
        # Of 100 iterations 20 are done: between two of the three gains lie 40.
        (middles(-1.0, 1.0, 3.0), 40),
        (middles(-1.0, -1.0, 3.0), 70),
        (middles(-1.0, 0.0, 2.0), 60),
        (middles(-2.0, 1.0, -1.0), 47),  # 20 + 40 * 2 / 3, up to a whole one
        (middles(0.5, 1.0, 2.0), None),
        (middles(-3.0, -2.0, -1.0), None),
        (middles(-1.0), None),
    ],
    ids=["early", "late", "from the middle on", "for a while", "now", "never", "lengths stay"],
)
def test_a_plan_that_is_better_later_is_known_to_be(gains, after):
    assert better_after(gains, 20, 100) == after


@given(
    first=st.floats(-5, -0.01),
    slope=st.floats(0.001, 1),
    done_before=st.integers(0, 90),
)
def test_of_gains_that_grow_evenly_the_first_iteration_that_gains_is_found(
    first, slope, done_before
):
    left = 100 - done_before
    found = better_after(
        middles(first, first + slope * left / 2, first + slope * left), done_before, 100
    )
    if first + slope * left <= 1e-6:
        return
    assert found is not None
    assert first + slope * (found - done_before) >= -1e-6 or found == 100
    assert first + slope * (found - 1 - done_before) <= 1e-6


def test_the_ledger_says_from_when_on_another_plan_is_better(facts, together, apart, tmp_path):  # noqa: F811
    later = replace(proposal(apart, gain(-1.5), gain(-1.5)), better_after=61)
    adapter = adapter_of(facts, tmp_path, Found(later))
    adapter.begun(together, 0, START)
    assert follow(adapter, together, range(DECIDED + 1)) is None
    (line,) = ledger_of(tmp_path)
    assert line.answer == "keep"
    assert (
        f"by {apart.placement} in mode one-step-off, iterations are forecast to be shorter once 61 are done, by the lengths that "
        "the job plans" in line.notes
    )


@pytest.mark.parametrize("mode", ["together", "apart"])
def test_chance_in_lengths_averages_out_over_iterations(growing, apart, facts, mode):  # noqa: F811
    plan = growing if mode == "together" else replace(apart, job=growing.job)
    one, many = (simulate(plan, facts, mean_of=mean_of) for mean_of in (1, 10_000))
    assert one == simulate(plan, facts)
    assert many.iteration_seconds == one.iteration_seconds
    widths = [
        each.interval_seconds[1] - each.seconds
        for forecast in (one, many)
        for each in forecast.costs
        if each.name == "actor.generate"
    ]
    assert widths[1] < widths[0]
    # What is not chance stays: work without responses in it is as well known as before.
    updates = [each for forecast in (one, many) for each in forecast.costs if "update" in each.name]
    assert updates[: len(updates) // 2] == updates[len(updates) // 2 :]


@pytest.mark.parametrize("mean_of", [1, 2, 7, 500])
def test_a_mean_over_more_iterations_is_known_no_worse(growing, facts, mean_of):  # noqa: F811
    fewer, more = (
        simulate(growing, facts, mean_of=each).iteration_seconds_interval
        for each in (mean_of, 2 * mean_of)
    )
    assert fewer[0] <= more[0] * (1 + 1e-9)
    assert more[1] <= fewer[1] * (1 + 1e-9)


def test_a_move_is_judged_with_the_chance_of_what_was_measured(
    facts,  # noqa: F811
    growing,
    apart,  # noqa: F811
    tmp_path,
):
    """Iterations behind the move that take 3, 4 and 5 s by turns: the error of the median of three is 1.25 s / sqrt(3), and its p90 1.886 times that (Student's distribution)."""
    other, outcomes = replace(apart, job=growing.job), []
    for name, behind in {"even": (4.0,) * 8, "uneven": (4.0, 3.0, 4.0, 5.0) * 2}.items():
        folder = tmp_path / name
        folder.mkdir()
        adapter = adapter_of(facts, folder, Found(proposal(other, gain(5.0), gain(5.0))))
        adapter.begun(growing, 0, START)
        number, _ = follow(adapter, growing, range(9))
        adapter.begun(other, number + 1, START)
        for step, seconds in enumerate(behind, number + 1):
            adapter.after(done(other, step, seconds, tokens=5.0))
        outcomes.append(ledger_of(folder)[-1])
    even, uneven = (each.gain for each in outcomes)
    assert even.p50_seconds == uneven.p50_seconds
    error = 1.886 * 1.2533 / 3**0.5
    for name in ("p10_seconds", "p90_seconds"):
        widths = [abs(getattr(each, name) - each.p50_seconds) for each in (even, uneven)]
        assert widths[1] ** 2 == pytest.approx(widths[0] ** 2 + error**2, rel=1e-2)
