"""Moves of a run whose replicas come and go: gains over the replicas that will be there, and iterations that are laid beside each other."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import InfeasibleError, PlanError
from rlplan.files.frozen import FrozenDict
from rlplan.job import NodeGroup, Rewards
from rlplan.planner.adapting.coming import (
    Coming,
    expected_devices,
    generating_gpus,
    on_devices,
)
from rlplan.planner.adapting.proposing import (
    SIMPSON,
    Request,
    gains_of,
    in_layout_of,
    proposals,
    same_layout,
    searched_before,
    site_of,
    with_forecasts,
)
from rlplan.planner.adapting.window import Window
from rlplan.profiles.facts import load_facts
from rlplan.profiles.jobs.resolve import load_job
from rlplan.replicas import (
    LengthRow,
    ReplicaChoice,
    ReplicaDevices,
    ReplicaRange,
    ReplicaTable,
    devices_of,
    read_schedule,
    with_replicas,
)
from rlplan.results.advice import Decision
from rlplan.simulator.simulate import simulate
from rlplan.workload import Lognormal
from tests.executor.plans import make_job, make_plan
from tests.planner.adapting.test_adapting import (
    Found,
    adapter_of,
    done,
    ledger_of,
    proposal,
    with_engines,
)

SECONDS = 10.0


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Return the resolved job of a tiny model on five cores, whose weights may be an update old."""
    from rlplan.files.writing import write_yaml

    file = tmp_path_factory.mktemp("job") / "job.yaml"
    made = make_job("grpo", samples_per_prompt=2, prompts=4, response_tokens=8)
    group = NodeGroup(gpu="cpu", gpus_per_node=5, cpu_cores=6)
    rewards = Rewards(function="digits", function_seconds_per_sample=1e-4)
    specs = replace(made.specs, staleness=1)
    write_yaml(file, replace(made, cluster=(group,), rewards=rewards, specs=specs))
    return load_job(file)


@pytest.fixture(scope="module")
def facts(job):
    return load_facts(job)


def streams(job, *, tp=1, micro_batch=1, mode="streaming"):
    pools = {"p0": (1, ("actor", "reference")), "generator": (4, ("actor",))}
    plan = make_plan(
        job, pools, transition="two-copies", micro_batch=micro_batch, tp_gen=tp, max_running=1
    )
    layout = replace(plan.tasks["actor.generate"], dp=4 // tp)
    plan = with_engines(plan.with_layout("actor.generate", layout))
    return replace(plan, mode=mode, staleness=int(mode == "async"))


def coming_of(plan, words):
    return Coming(devices=devices_of(read_schedule(words), plan), plan=plan)


def forecast_run(plan, facts, replicas, number=9):
    """Return what a window measures of iterations that are as they are forecast."""
    window, there = Window(20, 0), with_replicas(plan, replicas)
    forecast = simulate(there, facts)
    spans = tuple(forecast.trace.of_iteration(forecast.iterations[-1].iteration))
    for each in range(number - 5, number + 1):
        own = tuple(replace(span, iteration=each) for span in spans)
        window.note(done(there, each, forecast.iteration_seconds, tokens=8.0, spans=own))
    return window


def request_of(plan, facts, replicas, words, *known, iterations=110):
    window = forecast_run(plan, facts, replicas)
    return Request(
        measured=window.measured(),
        step_seconds=window.step_seconds,
        iterations=iterations,
        staleness=1,
        known=known,
        coming=None if words is None else coming_of(plan, words),
    )


cuts = st.lists(st.integers(1, 99), unique=True, max_size=4).map(sorted)


@given(cuts, st.tuples(*[st.floats(-9, 9)] * 3))
def test_stretches_make_up_the_mean_over_all_iterations_whatever_gains_lengths_give(cut, gains):
    """With as many devices all the way it is Simpson's rule, and where they change the same parabola's parts."""
    counts = ((0, 1), *((each, 1 + number % 2) for number, each in enumerate(cut, 1)))
    devices = ReplicaDevices(
        schedule=read_schedule(",".join(f"{a}:{b}" for a, b in counts)), gpus_each=1, gpus=2
    )
    shares = Coming(devices=devices, plan=None).shares(0, 100)
    found = sum(w * g for _, weights in shares for w, g in zip(weights, gains, strict=True))
    assert found == pytest.approx(sum(w * g for w, g in zip(SIMPSON, gains, strict=True)), abs=1e-9)
    assert [sum(weights) for _, weights in shares] == pytest.approx(
        [(end - begin) / 100 for begin, end, _ in devices.spans(0, 100)], abs=1e-9
    )


def test_devices_that_hold_no_replica_have_no_plan(job):
    plan = streams(job, tp=2)
    assert generating_gpus(on_devices(plan, 3)) == 2
    assert generating_gpus(on_devices(plan, 9)) == 4
    assert (
        generating_gpus(on_devices(streams(job), 3)) == 2
    )  # three replicas do not divide four prompts
    with pytest.raises(PlanError, match="hold no replica"):
        on_devices(plan, 1)


def test_a_gain_is_of_the_replicas_that_will_be_there(job, facts):
    """Of a hundred iterations that are left thirty have one replica, as those that were measured, and seventy have four."""
    plan, other = streams(job), streams(job, micro_batch=8)

    def gains(replicas, words):
        (found,) = proposals(request_of(plan, facts, replicas, words, other), facts).plans
        return found

    one, both = gains(1, "1"), gains(1, "0:1,40:4")
    assert one.gain == one.gain_left == both.gain
    site, left = request_of(plan, facts, 1, "1"), 100
    fitted = facts.with_calibration(site_of(site.measured, facts))
    ways = [
        with_forecasts((with_replicas(each, count),), fitted, left)
        for count in (1, 4)
        for each in (plan, in_layout_of(plan, other))
    ]
    four_seconds = (
        site.step_seconds * ways[2][0][1].iteration_seconds / ways[0][0][1].iteration_seconds
    )
    (four,) = gains_of(ways[2], ways[3], four_seconds, fitted)
    assert four.p50_seconds != pytest.approx(one.gain.p50_seconds, rel=0.1)
    expected = 0.3 * one.gain.p50_seconds + 0.7 * four.p50_seconds
    assert both.gain_left.p50_seconds == pytest.approx(expected, rel=1e-9)
    assert same_layout(both.plan, other)


def test_a_plan_whose_replicas_some_iteration_has_no_devices_for_is_not_proposed(job, facts):
    plan, large = streams(job), streams(job, tp=2, micro_batch=8)
    assert proposals(request_of(plan, facts, 4, "0:4,50:1", large), facts).known == ()
    assert proposals(request_of(plan, facts, 4, "4", large), facts).known != ()


def test_a_search_keeps_pools_and_finds_plans_with_all_replicas(job, facts):
    plan = streams(job)
    found = proposals(request_of(plan, facts, 2, "0:2,40:3"), facts)
    assert found.known
    assert found.most_share == 1.0
    for each in found.known:
        assert {(pool.name, pool.gpus) for pool in each.pools if not pool.is_host} == {
            ("p0", 1),
            ("generator", 4),
        }
        assert each.flow.by_sample
        assert each.job == plan.job


@pytest.mark.full
def test_a_search_before_the_run_finds_plans_with_all_replicas_too(job, facts):
    plan = streams(job)
    before = searched_before(plan, facts, devices_of(read_schedule("2"), plan))
    assert before is not None
    assert all(generating_gpus(each) == 4 for each in before.plans)


def generated(plan, number, replicas, seconds=SECONDS):
    iteration = done(plan, number, seconds, tokens=8.0)
    return replace(iteration, metrics={**iteration.metrics, "replicas": float(replicas)})


def adapting(facts, job, folder, *plans, words="2"):
    plan = streams(job)
    found = Found(*plans)
    adapter = adapter_of(facts, folder, found)
    adapter._devices = devices_of(read_schedule(words), plan)
    adapter.begun(plan, 0, 0.0)
    return adapter, plan, found


def test_only_iterations_with_as_many_replicas_are_laid_beside_each_other(job, facts, tmp_path):
    """That in which the number changes is left out: it had another one for a part."""
    adapter, plan, found = adapting(facts, job, tmp_path)
    numbers = [2] * 4 + [1] * 30
    for number, replicas in enumerate(numbers):
        adapter.after(generated(plan, number, replicas, SECONDS if replicas == 2 else 20.0))
    assert found.asked
    for each in found.asked[1:]:
        assert each.measured.plan == with_replicas(plan, 1)
        assert each.step_seconds == 20.0
        assert each.measured.trace.iterations[0].iteration > 4
        assert each.running == plan


def test_an_answer_for_another_number_of_replicas_moves_nothing(job, facts, tmp_path):
    other = streams(job, micro_batch=8)
    adapter, plan, found = adapting(facts, job, tmp_path, proposal(other, 5.0))
    number = 0
    while not found.asked:
        assert adapter.after(generated(plan, number, 2)).plan is None
        number += 1
    for each in range(number, number + 6):
        assert adapter.after(generated(plan, each, 1)).plan is None
    assert not [line for line in ledger_of(tmp_path) if isinstance(line, Decision)]


def test_a_move_is_judged_by_the_replicas_that_generate_since(job, facts, tmp_path):
    """Where fewer generate behind a move, what the plan before took is taken longer by its forecasts with as few."""
    other = streams(job, micro_batch=8)
    adapter, plan, found = adapting(facts, job, tmp_path, proposal(other, 5.0), words="4")
    for number in range(40):
        answer = adapter.after(generated(plan, number, 4))
        if answer.plan is not None:
            break
    assert same_layout(answer.plan, other)
    adapter.begun(answer.plan, number + 1, 0.0)
    moved = in_layout_of(plan, other)
    for each in range(number + 1, number + 6):
        adapter.after(generated(moved, each, 1))
    decision, outcome, *_ = ledger_of(tmp_path)
    four, one = (simulate(with_replicas(plan, each), facts).iteration_seconds for each in (4, 1))
    assert decision.measured_seconds == SECONDS
    assert {each.key for each in decision.changes} >= {"tasks.actor.update.micro_batch"}
    site = found.asked[0]
    assert site.running == plan
    assert outcome.before_seconds == pytest.approx(SECONDS * one / four, rel=1e-6)


@pytest.mark.parametrize("fits", [True, False])
def test_where_forecasts_choose_a_plan_is_moved_to_only_where_they_have_a_number(
    job, facts, tmp_path, fits
):
    other, asked = streams(job, micro_batch=8), []
    adapter, plan, found = adapting(facts, job, tmp_path, *[proposal(other, 5.0)] * 2)

    def table(given, _):
        asked.append(given)
        if not fits and not same_layout(given, plan):
            raise InfeasibleError("--replicas: none of 1 to 4 replicas fits at 8 tokens a response")
        row = LengthRow(above_tokens=0.0, tokens=8.0, replicas=2, seconds=FrozenDict({2: 1.0}))
        return ReplicaTable(rows=(row,), begins=8.0)

    adapter._devices = ReplicaChoice(ReplicaRange(least=1, most=4), plan, table)
    moved = [adapter.after(generated(plan, each, 2)).plan for each in range(60)]
    decisions = [line for line in ledger_of(tmp_path) if isinstance(line, Decision)]
    assert (decisions[0].answer, any(moved)) == (("change", True) if fits else ("keep", False))
    assert any("none of 1 to 4 replicas fits" in each for each in decisions[0].notes) != fits
    assert found.asked[0].coming.devices.schedule.counts == ((0, 2),)
    assert sum(same_layout(each, other) for each in asked) == 1


def test_a_plan_is_filled_up_to_a_number_of_replicas_that_share_out_the_prompts(job):
    """Eight devices hold eight replicas of one, which four prompts have no equal parts for."""
    plan = streams(job)
    devices = ReplicaDevices(schedule=read_schedule("0:2,9:4"), gpus_each=2, gpus=8)
    assert devices.filled_by(plan).tasks["actor.generate"].dp == 8
    filled = Coming(devices=devices, plan=plan).filled(plan)
    assert filled.tasks["actor.generate"].dp == 4
    assert job.workload.prompts % 4 == 0 != job.workload.prompts % 8


@pytest.mark.parametrize(
    ("means", "counts"), [((4.0, 8.0), ((0, 2), (41, 3), (81, 4))), (None, ((0, 2),))]
)
def test_where_forecasts_choose_replicas_are_expected_as_lengths_that_are_planned_ask(
    means, counts
):
    """From 4 to 8 tokens in 101 iterations: 5.64 in iteration 41, 7.24 in 81. Two generate, where one would do."""
    lengths = Lognormal(mean=4.0, std=1.0, max=20, training_means=means)
    job = replace(make_job("grpo", response_tokens=lengths), iterations=101)
    pools = {"p0": (1, ("actor", "reference")), "generator": (4, ("actor",))}
    plan = make_plan(job, pools, transition="two-copies")
    rows = ((0.0, 1), (5.62, 3), (7.22, 4))
    table = ReplicaTable(
        rows=tuple(
            LengthRow(above_tokens=above, tokens=above, replicas=count, seconds=FrozenDict())
            for above, count in rows
        ),
        begins=4.0,
    )
    choice = ReplicaChoice(ReplicaRange(least=1, most=4), plan, lambda *_: table)
    devices = expected_devices(choice, plan, 2, 10, 101)
    assert devices.schedule.counts == counts
    assert (devices.gpus_each, devices.gpus) == (1, 4)
