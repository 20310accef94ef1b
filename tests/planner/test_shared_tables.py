"""What searches of one process share: a job that is searched after others has the answer that it has alone."""

import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from rlplan.calibration import Calibration
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Rewards, Specs
from rlplan.planner.exact import space as tables
from rlplan.planner.exact.generations import GenerationTable, WeightMoves
from rlplan.planner.exact.space import Space
from rlplan.planner.layouts.option_table import OptionTable
from rlplan.planner.layouts.settings import PoolCuts
from rlplan.planner.placements.allocations import shares_of
from rlplan.planner.requests.pinned import Pinned
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.profiles.facts import DeviceFacts, Facts, load_facts
from rlplan.workload import Workload
from tests.cases import draws
from tests.effort import calls_of

A100 = "a100-80gb-sxm"
CHANGES = draws(4, 24)
JOB = Job(
    algorithm="grpo",
    models=FrozenDict(dict.fromkeys(("actor", "reference"), load_model("qwen2.5-1.5b"))),
    workload=Workload(prompts=16, samples_per_prompt=4, prompt_tokens=256, response_tokens=400),
    cluster=(NodeGroup(gpu=A100, gpus_per_node=4, cpu_cores=8, inter_node_gbps=200.0),),
    engines=Engines(train="megatron-core", generate="vllm"),
    precision="bf16",
    rewards=Rewards(function="digits"),
)


def priced(job, usd):
    return replace(job, cluster=tuple(replace(each, usd_per_gpu_hour=usd) for each in job.cluster))


def lengthened(job, tokens):
    return replace(job, workload=replace(job.workload, response_tokens=tokens))


def on_nodes(job, nodes, **changes):
    return replace(job, cluster=(replace(job.cluster[0], nodes=nodes, **changes),))


# What is asked: a change of the job, and what is asked of the search beside it.
ASKED: dict[str, tuple[Callable[[Job], Job], dict[str, Any]]] = {
    "as it is": (lambda job: job, {}),
    "another name": (lambda job: replace(job, name="other"), {}),
    "another price": (lambda job: priced(job, 1.0), {}),
    "cost": (lambda job: priced(job, 3.0), {"objective": "cost"}),
    "so much an hour": (lambda job: priced(job, 1.0), {"specs": Specs(usd_per_hour=3.5)}),
    "so much an hour at another price": (
        lambda job: priced(job, 1.5),
        {"specs": Specs(usd_per_hour=3.5)},
    ),
    "so much a step": (lambda job: priced(job, 1.0), {"specs": Specs(cost_usd=0.004)}),
    "so much a step at another price": (
        lambda job: priced(job, 1.1),
        {"specs": Specs(cost_usd=0.004)},
    ),
    "fewer GPUs": (lambda job: job, {"specs": Specs(gpus=2)}),
    "more room": (lambda job: job, {"specs": Specs(memory_headroom_fraction=0.3)}),
    "staleness": (lambda job: job, {"specs": Specs(staleness=1)}),
    "longer": (lambda job: lengthened(job, 700), {}),
    "two nodes": (lambda job: on_nodes(job, 2), {}),
    "three nodes": (lambda job: on_nodes(job, 3), {}),
    "three nodes, for cost": (lambda job: priced(on_nodes(job, 3), 2.0), {"objective": "cost"}),
    "fewer cores": (lambda job: on_nodes(job, 1, cpu_cores=2), {}),
    "another network": (lambda job: on_nodes(job, 2, inter_node_gbps=50.0), {}),
    "one step off": (
        lambda job: job,
        {"pinned": Pinned(asked=AskedSchedules(modes=("one-step-off",)))},
    ),
}


def answer(name):
    """Return what a search in this process says, by facts of its own."""
    change, asked = ASKED[name]
    job = change(JOB)
    found = search(job, load_facts(job), **asked)
    return found.plans, found.gap, found.bound_seconds, found.infeasible


@cache
def alone(name):
    """Return an answer before which nothing was asked; it forgets what was."""
    tables.forget()
    return answer(name)


@pytest.mark.full
def test_what_was_searched_before_changes_no_answer():
    generator, expected = random.Random(8), {name: alone(name) for name in ASKED}
    tables.forget()
    for _ in range(CHANGES):
        name = generator.choice(tuple(ASKED))
        assert answer(name) == expected[name], name


def test_what_a_price_does_not_change_is_kept():
    tables.forget()
    answer("longer")  # what every search of the process loads
    tables.forget()
    first, kept = calls_of(lambda: answer("as it is")), calls_of(lambda: answer("another price"))
    assert kept < 0.2 * first


def test_what_operations_take_is_not_asked_again_of_a_job_with_other_lengths():
    answer("longer")
    tables.forget()
    alone = calls_of(lambda: answer("as it is"))
    tables.forget()
    answer("longer")
    assert calls_of(lambda: answer("as it is")) < 0.9 * alone


def test_what_roles_take_on_a_share_is_kept_where_there_are_other_numbers_of_nodes():
    job, fewer = on_nodes(JOB, 4), on_nodes(JOB, 2)

    def searched(job):
        return calls_of(lambda: search(job, load_facts(job)))

    searched(job)
    tables.forget()
    alone = searched(fewer)
    tables.forget()
    searched(job)
    assert searched(fewer) < 0.6 * alone


def test_tables_of_one_node_hold_on_the_sites_of_four():
    job = on_nodes(JOB, 4)
    space = Space(job, load_facts(job), {}, "throughput", job.specs)
    shared, generations = space.options, space.generations
    assert shared.space.job.cluster[0].nodes == 1
    own = OptionTable(replace(shared.space, job=job, priced=job))
    own_generations = GenerationTable(own, WeightMoves(own.space))
    for site in map(space.site, space.shares):
        for role in ("actor", "reference"):
            mine, theirs = own.role_options(role, site), shared.role_options(role, site)
            assert [each.layouts for each in mine] == [each.layouts for each in theirs]
            numbers = ([replace(each, chosen=()) for each in some] for some in (mine, theirs))
            assert next(numbers) == next(numbers)
        every = own_generations.replicas(site), generations.replicas(site)
        assert every[0] == every[1]
        bounds = zip(*every, strict=True)
        for one, other in bounds:
            assert own_generations.least_bound(one) == generations.least_bound(other)


EXPERTS = replace(load_model("qwen2.5-1.5b"), num_experts=8, experts_per_token=2, moe_ffn_size=512)


@pytest.mark.parametrize(
    ("change", "shares"),
    [
        (lambda job: job, True),
        (lambda job: replace(job, models=job.models.with_item("actor", EXPERTS)), False),
        (lambda job: replace(job, workload=replace(job.workload, over_sampling=1.5)), False),
    ],
)
def test_clusters_share_tables_unless_their_size_decides_something(change, shares):
    one, other = (tables.job_of_tables(change(on_nodes(JOB, nodes))) for nodes in (2, 4))
    assert (one == other) is shares


@pytest.mark.parametrize("engine", ["fsdp2", "megatron-core"])
def test_tables_of_a_cluster_list_the_layouts_that_its_own_job_has_on_every_site(engine):
    """Three nodes of two GPUs have six copies on all of them, four nodes have none on six of their eight."""
    sheet = load_engine(engine)
    for per_node, nodes, more in itertools.product((1, 2, 3, 4, 6), range(1, 7), (None, 1, 2)):
        groups = [NodeGroup(gpu=A100, gpus_per_node=per_node, nodes=nodes)]
        groups += [] if more is None else [replace(groups[0], nodes=more, inter_node_gbps=50.0)]
        job = replace(JOB, cluster=tuple(groups))
        shared = tables.job_of_tables(job)
        for share in shares_of(job):
            place = (share.gpus, per_node)
            own, listed = (
                list(PoolCuts(job.architecture("actor"), sheet, each, *place).train())
                for each in (job, shared)
            )
            assert own == listed


def test_facts_answer_so_many_jobs_before_others_take_their_place():
    tables.forget()
    jobs = [lengthened(JOB, 100 + number) for number in range(2 * tables.JOBS_OF_FACTS)]
    spaces = [Space(job, load_facts(job), {}, "throughput", job.specs) for job in jobs]
    known = [id(each.asked_before) for each in spaces]
    first, second = known[0], known[-1]
    assert first != second
    assert known == [first] * tables.JOBS_OF_FACTS + [second] * tables.JOBS_OF_FACTS


def test_facts_forget_what_was_asked_once_nothing_that_is_kept_rests_on_them():
    tables.forget()
    jobs = [lengthened(JOB, 100 + number) for number in range(2 * tables.JOBS_OF_FACTS)]
    every = [(job, load_facts(job)) for job in jobs]
    first = every[0][1]
    alone = search(jobs[0], first).plans
    asked = answers_of(first)
    assert asked > 100
    for job, facts in every[1:-1]:
        Space(job, facts, {}, "throughput", job.specs).options  # noqa: B018 -- tables of another job
    assert answers_of(first) == asked  # the last of its jobs still has its tables
    Space(*every[-1], {}, "throughput", JOB.specs).options  # noqa: B018
    assert answers_of(first) == 0
    assert len(tables._adopted) <= 2
    assert search(jobs[0], load_facts(jobs[0])).plans == alone


def answers_of(facts):
    """Return how many answers are kept with the facts of a device, and with what was worked out from them."""
    kept = vars(facts.device(A100)).values()
    counts = [each.cache_info().currsize for each in kept if hasattr(each, "cache_info")]
    counts += [
        len(each) for name, each in vars(facts.device(A100)).items() if name.startswith("rlplan.")
    ]
    return sum(counts)


def test_a_search_counts_the_generations_that_it_plays_itself():
    tables.forget()
    first, second = (search(JOB, load_facts(JOB)).considered for _ in range(2))
    assert first["generations played"] > 0
    assert second["generations played"] == 0


@pytest.mark.parametrize(
    ("objective", "specs", "decides"),
    [
        ("throughput", Specs(), False),
        ("throughput", Specs(gpus=2), False),
        ("energy", Specs(), False),
        ("cost", Specs(), True),
        ("throughput", Specs(cost_usd=1.0), True),
        ("throughput", Specs(usd_per_hour=9.0), True),
    ],
)
def test_a_price_decides_where_money_is_minimised_or_limited(objective, specs, decides):
    facts = load_facts(JOB)
    one, other = (
        Space(priced(JOB, usd), facts, {}, objective, specs).weighed for usd in (1.0, 2.0)
    )
    assert (one != other) == decides


def test_an_ending_that_does_not_hold_is_searched_anew():
    tables.forget()
    found = search(JOB, load_facts(JOB))
    space = Space(JOB, load_facts(JOB), {}, JOB.objective, JOB.specs)
    asked = (space.weighed, None)
    ending = space.known.endings.get(asked)
    wrong = replace(ending.chosen[0], value=2 * ending.chosen[0].value)
    space.known.endings.keep(asked, replace(ending, chosen=(wrong, *ending.chosen[1:])))
    assert search(JOB, load_facts(JOB)).plans == found.plans
    assert space.known.endings.get(asked) == ending


def test_what_is_known_does_not_grow_with_what_is_pinned():
    tables.forget()
    facts = load_facts(JOB)
    pins = [Pinned(asked=AskedSchedules(staleness=1.0 + number)) for number in range(20)]
    spaces = [Space(JOB, facts, {}, "throughput", JOB.specs, pinned=each) for each in pins]
    first = [each.known for each in spaces]
    (kept,) = tables._remembered.values()
    assert kept.known.values() == first[-tables.REMEMBERED_PINS :]
    again = Space(JOB, facts, {}, "throughput", JOB.specs, pinned=pins[-1])
    assert again.known is first[-1]


def test_facts_of_equal_content_are_those_that_answer_alike():
    one, other = load_facts(JOB), load_facts(JOB)
    assert one is not other
    assert one.content == other.content
    assert one.with_memory(2.0).content != one.content
    assert one.with_calibration(Calibration(site="here", rests_on=one.label)).content != one.content


def test_facts_that_answer_otherwise_are_like_no_others():
    class Slow(DeviceFacts):
        """Stands for what a test or a trial answers by itself."""

    sheet = load_device(A100)
    own, other = (Facts({A100: Slow(sheet)}, "datasheet") for _ in range(2))
    assert own.content != other.content


def test_threads_that_search_at_once_share_no_tables_and_answer_as_one_alone():
    """Tables fill as they are asked: those of a thread are its own, those of its next search the same again."""
    expected = alone("as it is")
    tables.forget()
    ready = threading.Barrier(3)

    def searched():
        ready.wait()
        spaces = [Space(JOB, load_facts(JOB), {}, "throughput", JOB.specs) for _ in range(2)]
        held = [each._tables for each in spaces]
        return held, answer("as it is")

    with ThreadPoolExecutor(3) as pool:
        found = [each.result() for each in [pool.submit(searched) for _ in range(3)]]
    assert all(first is second for (first, second), _ in found)
    assert len({id(first) for (first, _), _ in found}) == 3
    assert [each for _, each in found] == [expected] * 3
