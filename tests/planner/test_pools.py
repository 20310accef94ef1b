from hypothesis import given

from planner.layouts import train_sizes
from planner.options import OptionTable
from planner.pools import PoolOption, PoolTable
from profiles.catalog import load_device
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from simulator.site import site_at
from tests.planner.brute_force import PLENTY_BYTES, facts_with, small_jobs
from tests.planner.test_generations import MOVE
from tests.simulator.cost_jobs import job_of


def table_of(job, memory_bytes):
    algorithm = load_algorithm(job.algorithm)
    facts = facts_with(job, memory_bytes)
    return PoolTable(OptionTable(job, algorithm, tasks_of(algorithm, job), facts))


def site_of(job):
    group = job.cluster[0]
    return site_at(job, group.gpu, 0, group.gpus)


@given(small_jobs())
def test_every_cut_of_the_actor_keeps_an_option_since_generation_may_suit_it(job):
    table, site = table_of(job, PLENTY_BYTES), site_of(job)
    engine = table.options.facts.engine(job.engines.train)
    algorithm, model = load_algorithm(job.algorithm), job.architecture("actor")
    cuts = set(train_sizes(model, engine, job, algorithm, site.gpus, site.gpus_per_node))
    assert {option.kind for option in table.options.role_options("actor", site)} == cuts


@given(small_jobs())
def test_pool_options_are_within_the_memory_of_their_gpus(job):
    capacity_bytes = load_device(job.cluster[0].gpu).memory_bytes // 8
    table, site = table_of(job, capacity_bytes), site_of(job)
    roles = tuple(job.models)
    for option in table.pool_options(roles, site):
        assert option.resident_bytes < capacity_bytes
        assert option.generation is not None
        assert option.generation.kv_bytes >= option.generation.move.least_bytes


def test_an_option_that_fills_the_cache_survives_a_faster_one_that_does_not():
    table, site = table_of(job_of(), 1000), site_of(job_of())
    fast = PoolOption(preparation_seconds=1.0, resident_bytes=600)
    roomy = PoolOption(preparation_seconds=2.0, resident_bytes=200)
    wasteful = PoolOption(preparation_seconds=2.0, resident_bytes=700)
    too_large = PoolOption(preparation_seconds=0.5, resident_bytes=950)
    kept = table._roomiest([fast, roomy, wasteful, too_large], MOVE, site)
    assert [option.generation.kv_bytes for option in kept] == [400, 512]
    assert [option.is_exact for option in kept] == [False, True]
    assert table.options.tally.pruned == {
        "no room for the KV cache of one sequence": 1,
        "another layout of the pool is better": 1,
    }
