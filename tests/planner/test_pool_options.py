from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.job import Engines
from rlplan.plan import TaskPlan
from rlplan.planner.layouts.layout_space import LayoutSpace
from rlplan.planner.layouts.option_table import OptionTable, sharding_of
from rlplan.planner.layouts.pool_rows import PoolTable
from rlplan.planner.layouts.settings import PoolCuts
from rlplan.planner.placements.allocations import ideal_site, shares_of
from rlplan.profiles.catalog import load_device
from rlplan.simulator.placed import PlacedPlan, site_at
from rlplan.simulator.timeline.pool_memory import BESIDE, memory_moments
from tests.planner.brute_force import PLENTY_BYTES, facts_with, small_jobs
from tests.simulator.cost_jobs import job_of
from tests.simulator.test_memory import colocated


def table_of(job, memory_bytes):
    algorithm = load_algorithm(job.algorithm)
    facts = facts_with(job, memory_bytes)
    return PoolTable(
        OptionTable(LayoutSpace(job, job, algorithm, tasks_of(algorithm, job), facts, {}))
    )


def site_of(job):
    group = job.cluster[0]
    return site_at(job, group.gpu, 0, group.gpus)


@given(small_jobs())
def test_every_sharding_of_the_actor_keeps_an_option_since_generation_may_suit_it(job):
    table, site = table_of(job, PLENTY_BYTES), site_of(job)
    engine = table.options.space.facts.engine(job.engines.train)
    model = job.architecture("actor")
    cuts = PoolCuts(model, engine, job, site.gpus, site.gpus_per_node).train()
    shardings = {
        sharding_of(
            TaskPlan(
                pool="",
                tp=c.tp,
                pp=c.pp,
                cp=c.cp,
                ep=c.ep,
                expert_tp=c.expert_tp or None,
                zero=c.zero,
            )
        )
        for c in cuts
    }
    assert {option.sharding for option in table.options.role_options("actor", site)} == shardings


def told(options, close=float):
    """Return what options say, their layouts written out, and their seconds made comparable by `close`."""
    return [
        (
            each.layouts,
            close(each.preparation_seconds),
            close(each.training_seconds),
            each.resident_bytes,
            each.transient_bytes,
            each.met_bytes,
            each.sharding,
        )
        for each in options
    ]


@given(small_jobs(), st.sampled_from([PLENTY_BYTES, 2**28]))
def test_sites_that_are_costed_together_have_the_options_that_each_has_alone(job, memory_bytes):
    group = job.cluster[0]
    cluster = (replace(group, nodes=4 * group.nodes),)  # several sites of several nodes
    job = replace(job, cluster=cluster)
    sites = [ideal_site(job, share) for share in shares_of(job)]
    together, alone = (table_of(job, memory_bytes).options for _ in range(2))
    for role in job.models:
        together.prepare(role, sites)
        for site in sites:
            # A table of one row sums its seconds in another order.
            expected = told(alone.role_options(role, site), partial(pytest.approx, rel=1e-12))
            assert told(together.role_options(role, site)) == expected
            assert together.least_bytes(role, site) == alone.least_bytes(role, site)
    assert together.tally == alone.tally


@pytest.mark.full
@given(small_jobs())
def test_quick_rows_are_among_what_exact_rows_match_or_beat(job):
    capacity_bytes = load_device(job.cluster[0].gpu).memory_bytes // 8
    table, site = table_of(job, capacity_bytes), site_of(job)
    members = tuple(job.models)
    quick, exact = table.quick(members, site), table.exact(members, site, np.inf)
    assert bool(len(quick)) == bool(len(exact))
    for row in range(len(quick)):
        assert quick.peak[row] <= capacity_bytes
        alike = [
            h
            for h, sharding in enumerate(exact.shardings)
            if sharding == quick.shardings[quick.sharding[row]]
        ]
        beaten = (
            (exact.prepare <= quick.prepare[row])
            & (exact.train <= quick.train[row])
            & (exact.staying <= quick.staying[row])
            & np.isin(exact.sharding, alike)
        )
        assert beaten.any()


@pytest.mark.full
@given(small_jobs())
def test_no_row_is_faster_than_the_least_of_its_stages(job):
    table, site = table_of(job, PLENTY_BYTES), site_of(job)
    members = tuple(job.models)
    least, rows = table.least(members, site), table.exact(members, site, np.inf)
    assert np.all(rows.prepare >= least.prepare_seconds * (1 - 1e-12))
    assert np.all(rows.train >= least.train_seconds * (1 - 1e-12))


@pytest.mark.parametrize(
    "framework", ["verl-megatron", "skyrl-megatron", "areal", "nemo-rl-megatron", "slime"]
)
def test_what_rows_need_is_what_a_plan_of_their_layouts_holds(framework):
    """Where each role is a process, its context and buffers, and blocks that it keeps while its states stay are known to the search."""
    engines = Engines(train="megatron-core", generate="vllm")
    job = replace(job_of(nodes=1), framework=framework, engines=engines)
    table, site = table_of(job, PLENTY_BYTES), site_of(job)
    rows = table.quick(tuple(job.models), site)
    assert len(rows)
    for row in range(0, len(rows), 3):
        layouts = {name: replace(each, pool="p0") for name, each in rows.layouts(row).items()}
        placed = PlacedPlan(colocated(job, **layouts), table.options.space.facts)
        moments = memory_moments(placed, placed.plan.pools[0])
        held = [
            sum(size for term, size in terms.items() if term != BESIDE)
            for name, terms in moments.items()
            if name in layouts
        ]
        assert rows.peak[row] == max(held)
