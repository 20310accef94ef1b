from dataclasses import replace

import pytest

from rlplan.errors import PlanError
from rlplan.files.frozen import FrozenDict
from rlplan.results.forecast import Forecast, TaskForecast
from rlplan.results.measurement import MeasuredRun
from rlplan.simulator.validation import (
    by_replicas,
    compare,
    replica_rows,
    tokens_by_replicas,
    with_usual_replicas,
)
from rlplan.trace import IterationSpan, Span, Trace, sorted_spans
from rlplan.workload import mean_length
from tests.simulator.plans import split_plan


def forecast_task(name, seconds, *, activity="task", source="measured"):
    return TaskForecast(
        name=name,
        pool="p0",
        activity=activity,
        stage="generation",
        seconds=seconds,
        interval_seconds=(seconds, seconds),
        source=source,
        outside_range=False,
        parts=FrozenDict({"all": seconds}),
    )


def forecast(*tasks, iteration_seconds=10.0):
    return Forecast(
        iteration_seconds=iteration_seconds,
        iteration_seconds_interval=(iteration_seconds, iteration_seconds),
        tokens_per_second=1.0,
        stage_seconds=FrozenDict(),
        tasks=(),
        iterations=(),
        costs=tasks,
        memory=(),
        feasible=True,
        infeasible_reasons=(),
        idle_seconds=FrozenDict(),
        cost_usd=0.0,
        energy_joules=0.0,
        warnings=(),
        profile="test",
    )


def run(lengths, *, warmup=1):
    """Return a run whose spans take, by name, the seconds given for each iteration."""
    count = len(next(iter(lengths.values())))
    spans, iterations, start = [], [], 0.0
    for iteration in range(count):
        begin = start
        for name, seconds in lengths.items():
            end = start + seconds[iteration]
            spans.append(
                Span(
                    name=name,
                    pool="p0",
                    iteration=iteration,
                    start_seconds=start,
                    end_seconds=end,
                )
            )
            start = end
        iterations.append(
            IterationSpan(iteration=iteration, start_seconds=begin, end_seconds=start)
        )
    trace = Trace(origin="measured", spans=sorted_spans(spans), iterations=tuple(iterations))
    return MeasuredRun(
        plan=split_plan(),
        trace=trace,
        warmup_iterations=warmup,
        memory_peak_bytes=FrozenDict(),
        machine=FrozenDict(),
    )


def test_tasks_are_compared_with_the_median_after_the_warm_up():
    measured = run({"actor.generate": [100.0, 4.0, 8.0, 5.0]})
    table = compare(forecast(forecast_task("actor.generate", 6.0)), measured)
    row = table.rows[0]
    assert (row.name, row.forecast_seconds, row.measured_median_seconds) == (
        "actor.generate",
        6.0,
        5.0,
    )
    assert row.error_fraction == pytest.approx(0.2)
    assert row.measured_interval_seconds == pytest.approx((4.2, 7.4))
    assert (table.warmup_iterations, table.compared_iterations) == (1, 3)


def test_a_task_is_compared_with_what_its_workers_took_and_the_iteration_with_the_calls():
    task = replace(
        forecast_task("rule.compute_reward", 5.5),
        parts=FrozenDict({"reward function": 0.5, "call overhead": 5.0}),
    )
    expected = forecast(task, iteration_seconds=5.5)
    table = compare(expected, run({"rule.compute_reward": [9.0, 0.5]}), as_run=expected)
    assert (table.rows[0].forecast_seconds, table.rows[0].as_run_seconds) == (0.5, 0.5)
    assert table.rows[0].error_fraction == 0
    assert (table.iteration.forecast_seconds, table.iteration.as_run_seconds) == (5.5, 5.5)


def test_the_iteration_is_the_last_row_with_the_weakest_source():
    tasks = (forecast_task("a", 1.0), forecast_task("b", 1.0, source="datasheet"))
    table = compare(forecast(*tasks), run({"a": [1.0, 4.0], "b": [1.0, 4.0]}))
    assert table.iteration.measured_median_seconds == 8.0
    assert table.iteration.error_fraction == pytest.approx(0.25)
    assert table.iteration.source == "datasheet"


def test_spans_of_one_task_in_one_iteration_add_up():
    measured = run({"a": [1.0, 2.0]})
    twice = (*measured.trace.spans, measured.trace.spans[-1])
    measured = replace(measured, trace=replace(measured.trace, spans=twice))
    assert compare(forecast(forecast_task("a", 4.0)), measured).rows[0].error_fraction == 0


def test_a_transfer_that_was_not_measured_on_its_own_has_no_row():
    tasks = (forecast_task("a", 1.0), forecast_task("transfer:x", 1.0, activity="transfer"))
    assert [row.name for row in compare(forecast(*tasks), run({"a": [1.0, 1.0]})).rows] == ["a"]


def test_a_transition_lasts_from_the_first_send_to_the_last_receipt():
    def half(pool, start, end):
        return Span(
            name="transition",
            pool=pool,
            iteration=1,
            start_seconds=start,
            end_seconds=end,
            activity="transition",
        )

    measured = run({"a": [1.0, 1.0]})
    spans = (*measured.trace.spans, half("p1", 1.0, 2.0), half("p0", 1.5, 5.0))
    measured = replace(measured, trace=replace(measured.trace, spans=sorted_spans(list(spans))))
    tasks = (forecast_task("transition", 2.0, activity="transition"), forecast_task("a", 1.0))
    rows = compare(forecast(*tasks), measured).rows
    assert [(row.name, row.pool, row.measured_median_seconds) for row in rows] == [
        ("transition", "p0", 4.0),
        ("a", "p0", 1.0),
    ]


def test_what_was_measured_and_not_forecast_is_shown():
    table = compare(
        forecast(forecast_task("a", 1.0)), run({"a": [1.0, 1.0], "transition": [1.0, 0.5]})
    )
    row = table.rows[1]
    assert (row.name, row.source, row.error_fraction) == ("transition", "not forecast", -1)


def test_a_run_of_another_plan_is_refused():
    with pytest.raises(PlanError, match=r"no measurement of critic\.update on p0"):
        compare(forecast(forecast_task("critic.update", 1.0)), run({"a": [1.0, 1.0]}))


def test_what_only_the_warm_up_had_to_do_has_no_row():
    """A streamed run that goes on for two iterations may have generated all of them in the first one."""
    whole = run({"generate": [5.0, 1.0], "update": [2.0, 2.0]})
    late = tuple(
        span for span in whole.trace.spans if (span.name, span.iteration) != ("generate", 1)
    )
    shown = compare(
        forecast(forecast_task("generate", 5.0), forecast_task("update", 2.0)),
        replace(whole, trace=replace(whole.trace, spans=late)),
    )
    assert [row.name for row in shown.rows] == ["update"]


def test_a_run_that_ended_in_its_warm_up_is_refused():
    with pytest.raises(PlanError, match="nothing is left to compare"):
        compare(forecast(forecast_task("a", 1.0)), run({"a": [1.0]}))


def test_the_lengths_of_responses_stand_beside_the_errors():
    measured = run({"actor.generate": [4.0, 8.0]})
    made = forecast(forecast_task("actor.generate", 6.0))
    assert compare(made, measured).response_tokens is None
    noted = replace(measured, response_tokens=12.5)
    expected = mean_length(measured.plan.job.workload.response_tokens)
    assert compare(made, noted).response_tokens == (expected, 12.5)


def test_a_run_is_also_compared_at_its_lengths_and_on_its_machine():
    planned = replace(forecast(forecast_task("a", 6.0), iteration_seconds=6.0),
                      loop_flops_per_second=3e10)  # fmt: skip
    as_run = forecast(forecast_task("a", 5.0), iteration_seconds=5.0)
    measured = replace(
        run({"a": [1.0, 7.5]}),
        response_tokens=20.0,
        loop_flops_per_second=(2e10, 2e10),
    )
    table = compare(planned, measured, as_run)
    assert table.machine_slowdown == pytest.approx(1.5)
    assert table.as_run_response_tokens == 20.0
    for row in (*table.rows, table.iteration):
        assert row.error_fraction == pytest.approx(-0.2)
        assert row.error_at() == pytest.approx(5 / 7.5 - 1)
        assert row.error_at(table.machine_slowdown) == pytest.approx(0)


def test_a_run_that_notes_no_rate_tells_nothing_of_its_machine():
    table = compare(forecast(forecast_task("a", 6.0)), run({"a": [1.0, 7.5]}))
    assert table.machine_slowdown is None
    assert table.iteration.as_run_seconds is None


def test_replicas_that_come_and_go_are_compared_by_their_number():
    """Iterations count where as many replicas generate as in the one before: 3 and 4 s with one, 2, 2 and 3 s with two."""
    seconds = [9.0, 3.0, 4.0, 7.0, 2.0, 2.0, 3.0, 8.0]
    replicas = (1, 1, 1, 2, 2, 2, 2, 1)
    measured = replace(run({"actor.generate": seconds}), replicas=replicas)
    found = {
        count: [each.iteration for each in spans] for count, spans in by_replicas(measured).items()
    }
    assert found == {1: [1, 2], 2: [4, 5, 6]}
    forecasts = {
        count: forecast(forecast_task("actor.generate", each), iteration_seconds=each)
        for count, each in ((1, 4.2), (2, 2.5))
    }
    one, two = replica_rows(measured, forecasts)
    assert (one.replicas, one.iterations, one.measured_median_seconds) == (1, 2, 3.5)
    assert (two.replicas, two.iterations, two.measured_median_seconds) == (2, 3, 2.0)
    assert (one.error_fraction, two.error_fraction) == pytest.approx((0.2, 0.25))
    usual = with_usual_replicas(measured)
    assert usual.plan.tasks["actor.generate"].dp == 2
    assert with_usual_replicas(measured, {1}).plan.tasks["actor.generate"].dp == 1
    assert [row.replicas for row in replica_rows(measured, {1: forecasts[1]})] == [1]
    lengths = replace(measured, replica_tokens=(9.0, 10.0, 12.0, 9.0, 20.0, 20.0, 26.0, 9.0))
    assert tokens_by_replicas(lengths) == {1: 11.0, 2: 22.0}
    assert with_usual_replicas(lengths).mean_response_tokens == 22.0
    one, two = replica_rows(lengths, forecasts, {2: forecasts[1]})
    assert (one.response_tokens, one.as_run_seconds, one.measured_seconds) == (11.0, None, 7.0)
    assert (two.response_tokens, two.as_run_seconds, two.measured_seconds) == (22.0, 4.2, 7.0)
    table = compare(forecasts[2], usual)
    assert (table.compared_iterations, table.iteration.measured_median_seconds) == (3, 2.0)


def test_a_run_whose_replicas_change_in_every_iteration_is_compared_with_nothing():
    measured = replace(run({"actor.generate": [9.0, 3.0, 4.0]}), replicas=(1, 2, 1))
    with pytest.raises(PlanError, match="changes in every iteration"):
        with_usual_replicas(measured)
