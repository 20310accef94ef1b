import pytest

from rlplan.estimate import Estimate, Source
from rlplan.files.frozen import FrozenDict
from rlplan.job import NodeGroup
from rlplan.profiles.facts import load_facts
from rlplan.results.forecast import MemoryForecast
from rlplan.simulator.costs.taskcost import TaskCost
from rlplan.simulator.simulate import play
from rlplan.simulator.timeline.agenda import Entry
from rlplan.simulator.timeline.assemble import assemble
from rlplan.simulator.timeline.engine import Work
from tests.simulator.plans import split_plan

GIB = 1024**3


def entry(name, pool, stage, seconds, *after, spread=0.0, **changes):
    work = {"key": name, "name": name, "pool": pool, "holds": (pool,), "after": after}
    cost = TaskCost((("work", Estimate(seconds, spread, **changes)),))
    return Entry(Work(**work), stage, cost)


AGENDA = (
    entry("actor.generate", "p0", "generation", 10.0, spread=1.0),
    entry("critic.compute_values", "p1", "preparation", 2.0, "actor.generate", spread=0.5),
    entry("reward.compute_reward", "p1", "preparation", 4.0, "actor.generate"),
    entry("reference.compute_log_prob", "p0", "preparation", 3.0, "actor.generate", spread=9.0),
    entry(
        "actor.update", "p0", "training", 5.0,
        "critic.compute_values", "reward.compute_reward", "reference.compute_log_prob",
        source=Source.FITTED,
    ),
)  # fmt: skip


def memory(peak_bytes):
    return MemoryForecast(
        pool="p0",
        gpu_peak_bytes=peak_bytes,
        capacity_bytes=80 * GIB,
        terms=FrozenDict({"actor weights": 20 * GIB, "activations": peak_bytes - 20 * GIB}),
        peak_task="actor.update",
    )


def forecast(*, agenda=AGENDA, peaks=(), iterations=1, plan=None):
    plan = plan or split_plan()
    facts = load_facts(plan.job, None)
    seconds = {each.work.key: each.cost.total.seconds for each in agenda}
    trace = play([each.work for each in agenda], seconds, plan.order, iterations=iterations)
    return assemble(plan, facts, agenda, trace, [memory(peak) for peak in peaks])


def test_stages_are_those_of_the_critical_path_and_fill_the_iteration():
    done = forecast()
    assert done.iteration_seconds == 21
    assert done.stage_seconds == {
        "generation": 10, "preparation": 6, "training": 5, "transition": 0,
    }  # fmt: skip


def test_the_iterations_interval_takes_the_spreads_of_the_critical_path_only():
    low, high = forecast().iteration_seconds_interval
    assert (low, high) == pytest.approx((21 - 1.2816 * 1.5, 21 + 1.2816 * 1.5), abs=1e-4)


def test_tasks_say_their_parts_source_and_interval():
    update = forecast().costs[-1]
    assert (update.name, update.seconds, update.source) == ("actor.update", 5.0, "fitted")
    assert update.parts == {"work": 5.0}
    generate = forecast().costs[0]
    assert generate.interval_seconds == pytest.approx((8.7184, 11.2816), abs=1e-4)


def test_tokens_money_and_energy_follow_from_the_iteration():
    done = forecast()
    sheet = load_facts(split_plan().job, None).device("a100-80gb-sxm").sheet
    assert done.tokens_per_second == 8 * (16 + 16) / 21
    assert done.cost_usd == pytest.approx(4 * sheet.usd_per_hour * 21 / 3600)
    idle = 4 * sheet.idle_watts * 21
    moving = 2 * (0.5 * sheet.power_watts - sheet.idle_watts) * 10  # generation, on p0
    computing = 2 * (0.76 * sheet.power_watts - sheet.idle_watts) * (8 + 6)  # p0, p1
    assert done.energy_joules == pytest.approx(idle + moving + computing)


def test_idle_time_has_a_cause():
    assert forecast().idle_seconds == {
        "waiting in preparation": 3,
        "waiting in generation": 10,
        "no work left in training": 5,
    }


def test_figures_are_those_of_one_iteration_however_many_are_shown():
    once, thrice = forecast(), forecast(iterations=3)
    assert len(thrice.trace.iterations) == 3
    assert thrice.iteration_seconds == once.iteration_seconds
    assert thrice.idle_seconds == once.idle_seconds
    assert thrice.cost_usd == once.cost_usd


def test_a_pool_without_room_says_which_task_and_term_and_by_how_much():
    done = forecast(peaks=[90 * GIB])
    assert not done.feasible
    assert done.infeasible_reasons == (
        (
            "pool p0 (2 x a100-80gb-sxm): its fullest GPU needs 90.0 GiB of 80.0 GiB in actor.update, "
            "10.0 GiB too many; largest term: activations, 70.0 GiB"
        ),
    )
    assert forecast(peaks=[70 * GIB]).feasible


def test_warnings_name_tight_memory_datasheet_sources_and_left_ranges():
    agenda = (
        entry("actor.generate", "p0", "generation", 1.0, source=Source.DATASHEET),
        entry("actor.update", "p0", "training", 1.0, "actor.generate", outside_range=True),
    )
    warnings = forecast(agenda=agenda, peaks=[79 * GIB]).warnings
    assert "not measured, from datasheets: actor.generate (work)" in warnings
    assert "outside the measured range, taken from its nearest edge: actor.update" in warnings
    assert any("fills 99% of its memory in actor.update" in warning for warning in warnings)


def test_warnings_name_gpus_that_no_pool_uses():
    plan = split_plan()
    job = type(plan.job)(
        **{
            **{name: getattr(plan.job, name) for name in plan.job.__slots__},
            "cluster": (NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=8, inter_node_gbps=200.0),),
        }
    )
    warnings = forecast(plan=split_plan(job=job)).warnings
    assert "4 of the cluster's 8 GPUs are in no pool" in warnings
