import itertools
import math
import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlplan.errors import InfeasibleError, UnfinishedError, UnknownNameError
from rlplan.files.decoding import decode
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, NodeGroup, Specs, Teacher, WeightSync
from rlplan.models import Adapter
from rlplan.plan import TaskDraft
from rlplan.planner.exact import space
from rlplan.planner.exact.best_first import PlacementSearch
from rlplan.planner.exact.space import Space
from rlplan.planner.objectives import limited_objectives, load_objective, objective_names
from rlplan.planner.placements.allocations import Share, sites_for
from rlplan.planner.placements.partitions import (
    GENERATION,
    Placement,
    all_placements,
    placed_roles,
    show_placement,
)
from rlplan.planner.placements.strategies import place, strategy_names
from rlplan.planner.requests.pinned import Pinned, PinnedPool
from rlplan.planner.search import search
from rlplan.profiles.catalog import ENGINES, load_job, load_model
from rlplan.profiles.facts import load_facts
from rlplan.profiles.sheets import load_framework
from rlplan.rules import check_plan
from rlplan.simulator.simulate import simulate
from rlplan.workload import Texts, Uniform, Workload
from tests.cases import draws, first
from tests.hybrids import HYBRIDS, NEWER
from tests.planner.brute_force import (
    every_order,
    facts_with,
    placed,
    random_space,
    sets_of,
    small_jobs,
    with_every_figure,
)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ROUNDING = 1e-9
EXPERTS = replace(
    load_model("qwen2.5-0.5b"),
    family="qwen3_moe",
    num_experts=8,
    experts_per_token=2,
    moe_ffn_size=512,
)
# Jobs of one seed.
JOBS = draws(4, 12)

some = settings(max_examples=settings().max_examples // 4, suppress_health_check=list(HealthCheck))


def found_by(job, facts, **wanted):
    """Return the search's result, None if nothing fits."""
    try:
        return search(job, facts, **wanted)
    except InfeasibleError:
        return None


def check_against(forecasts, job, facts, name, **wanted):
    """Hold a search by one objective to all plans that fit, by placement; return its excess."""
    objective = load_objective(name)
    result = found_by(job, facts, objective=name, **wanted)
    if result is None:
        assert not forecasts
        return 0.0
    best = {
        sets: min(objective.figure(forecast) for forecast in some)
        for sets, some in forecasts.items()
    }
    assert {placed(each.plan) for each in result.plans} == set(best)
    least, value = min(best.values()), objective.figure(result.plans[0].forecast)
    assert value * (1 - result.gap) <= least * (1 + ROUNDING)
    assert value >= least * (1 - ROUNDING)
    for each in result.plans:
        own, reached = best[placed(each.plan)], objective.figure(each.forecast)
        assert reached * (1 - each.gap) <= own * (1 + ROUNDING)
        assert reached >= own * (1 - ROUNDING)
    return value / least - 1


def check_space(generator, drafts=FrozenDict(), most_plans=100, engine_share=None, **changes):
    """Hold a search by every objective, and under a random limit, to all plans of a random job of few."""
    job, plans, facts = random_space(generator, most_plans, drafts, engine_share, **changes)
    if engine_share is not None:
        drafts = drafts.with_item("actor.generate", TaskDraft(memory_fraction=engine_share))
    pinned, forecasts = Pinned(tasks=drafts), {}
    for plan in itertools.chain.from_iterable(map(every_order, plans)):
        forecast = simulate(with_every_figure(plan), facts)
        if forecast.feasible:
            forecasts.setdefault(placed(plan), []).append(forecast)
    for name in objective_names():
        assert check_against(forecasts, job, facts, name, pinned=pinned) <= ROUNDING
    every = [forecast for some in forecasts.values() for forecast in some]
    if not every:
        return
    spec, name = generator.choice(sorted(limited_objectives().items()))
    limit = load_objective(name).figure(generator.choice(every))
    kept = {
        sets: found
        for sets, some in forecasts.items()
        if (found := [each for each in some if load_objective(name).figure(each) <= limit])
    }
    specs = decode(Specs, {spec: limit}, "specs")
    for each in objective_names():
        assert check_against(kept, job, facts, each, pinned=pinned, specs=specs) <= ROUNDING


@pytest.mark.full
def test_the_best_plan_is_the_best_of_all_plans_by_every_objective_with_adapters():
    generator = random.Random(1)
    kinds = (Adapter(), Adapter(sync="merged"), Adapter(shares_reference=False))
    for adapter in kinds:
        check_space(generator, adapters=FrozenDict({"actor": adapter}))


@pytest.mark.full
@pytest.mark.parametrize("top_tokens", [None, "all"])
def test_the_best_plan_is_the_best_of_all_plans_with_texts_at_hand(top_tokens):
    """A quarter of the batches is generated; whole distributions keep the teacher with what trains."""
    generator, model = random.Random(3), load_model("qwen2.5-0.5b")
    texts = Texts(share=0.75, response_tokens=700)
    changes = {
        "algorithm": "on-policy-distillation",
        "models": FrozenDict(actor=model, teacher=model),
        "workload": Workload(prompts=4, prompt_tokens=300, response_tokens=200, texts=texts),
        "rewards": None,
    }
    if top_tokens:
        changes |= {
            "teacher": Teacher(top_tokens=top_tokens),
            "engines": Engines(train="ddp-hf-padded", generate="vllm"),
            "framework": "trl",
            "cluster": (NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=2, inter_node_gbps=200.0),),
            "precision": "bf16",
        }
    drafts = {
        "actor.update": TaskDraft(recompute="none", offload=False, micro_batch=1),
        "teacher.compute_log_prob": TaskDraft(offload=False, micro_batch=1),
    }
    for _ in range(2):
        check_space(generator, FrozenDict(drafts) if top_tokens else FrozenDict(), **changes)


# What plans of frameworks have in common where there would be too many: states that stay, or that leave.
STAYS = FrozenDict(
    {
        "actor.update": TaskDraft(recompute="none", offload=False),
        "actor.compute_log_prob": TaskDraft(offload=False),
        "reference.compute_log_prob": TaskDraft(offload=False),
    }
)
LEAVES = FrozenDict(
    {
        "actor.update": TaskDraft(recompute="full", micro_batch=1),
        "actor.compute_log_prob": TaskDraft(micro_batch=1),
        "reference.compute_log_prob": TaskDraft(micro_batch=1),
    }
)


@pytest.mark.full
@pytest.mark.parametrize("drafts", [STAYS, LEAVES], ids=["stays", "leaves"])
@pytest.mark.parametrize("framework", ["nemo-rl-megatron", "verl-fsdp", "roll-megatron"])
def test_the_best_plan_is_the_best_of_all_plans_of_a_framework(framework, drafts):
    """Token budgets are among them where states stay, and off-loading of passes where they leave."""
    generator = random.Random(framework)
    engines = load_framework(framework).engines
    group = NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=1, cpu_cores=2, inter_node_gbps=200.0)
    for _ in range(draws(1, 4)):
        changes = {
            "algorithm": "grpo",
            "precision": "bf16",
            "engines": engines,
            "cluster": (group,),
        }
        models = FrozenDict(dict.fromkeys(("actor", "reference"), load_model("qwen2.5-0.5b")))
        check_space(
            generator,
            drafts,
            300,
            framework=framework,
            old_log_prob="trainer",
            models=models,
            **changes,
        )


@pytest.mark.full
@pytest.mark.parametrize(
    ("sync", "train", "generate"),
    [
        ("verl-nixl", "fsdp2", "vllm"),
        ("verl-nccl", "megatron-core-2025", "vllm"),
        ("slime-nccl", "megatron-core-2025", "sglang-0.5"),
        ("open-instruct-nccl", "megatron-core-2025", "vllm-0.11"),
    ],
)
def test_the_best_plan_is_the_best_of_all_plans_where_weights_go_to_other_gpus(
    sync, train, generate
):
    """Buckets lie beside what trains and beside the engine's cache; the context of an engine alone on its GPUs does not."""
    generator, model = random.Random(sync), load_model("qwen2.5-0.5b")
    group = NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=1, nodes=3, cpu_cores=2, inter_node_gbps=200.0)  # fmt: skip
    alone = {
        "actor.update": TaskDraft(recompute="none", offload=False, micro_batch=1),
        "reference.compute_log_prob": TaskDraft(offload=False, micro_batch=1),
    }
    for length in (150, 600, 9000):
        check_space(
            generator,
            FrozenDict(alone),
            400,
            algorithm="grpo",
            models=FrozenDict(actor=model, reference=model),
            workload=Workload(
                prompts=12, samples_per_prompt=2, prompt_tokens=300, response_tokens=length
            ),
            weight_sync=WeightSync(between_pools=sync),
            cluster=(group,),
            engines=Engines(train=train, generate=generate),
            precision="bf16",
        )


LONG = Workload(prompts=2, samples_per_prompt=2, prompt_tokens=4000, response_tokens=6000)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_the_best_plan_is_the_best_of_all_plans_where_context_is_parallel(seed):
    drafts = LEAVES
    group = NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=2, cpu_cores=2, inter_node_gbps=200.0)
    models = FrozenDict(dict.fromkeys(("actor", "reference"), load_model("qwen2.5-1.5b")))
    engines = Engines(train="megatron-core", generate="vllm")
    check_space(
        random.Random(seed), drafts, 1000, cluster=(group,), models=models, workload=LONG, engines=engines,
        algorithm="grpo", precision="bf16",
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_the_best_plan_is_the_best_of_all_plans_where_experts_are_spread_out(seed):
    small = TaskDraft(micro_batch=1, recompute="full", offload=False)
    drafts = LEAVES.with_item("actor.update", small)
    group = NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=2, cpu_cores=2, inter_node_gbps=200.0)
    models = FrozenDict(dict.fromkeys(("actor", "reference"), EXPERTS))
    work = replace(LONG, prompt_tokens=50, response_tokens=200)
    check_space(
        random.Random(seed), drafts, 2000, cluster=(group,), models=models, workload=work, algorithm="grpo",
        precision="bf16", engines=Engines(train="megatron-core", generate="vllm"),
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("engine", ["vllm-0.6", "vllm-0.8", "sglang-0.4"])
def test_the_best_plan_is_the_best_of_all_plans_however_an_engine_counts_its_share(engine):
    generator = random.Random(engine)
    for train in ("fsdp2", "megatron-core"):
        check_space(generator, engines=Engines(train=train, generate=engine))


@pytest.mark.full
@pytest.mark.parametrize("sleeps", [True, False])
@pytest.mark.parametrize("engine", ["sglang-0.4", "vllm", "vllm-0.8"])
def test_the_best_plan_is_the_best_of_all_plans_where_a_share_is_said(engine, sleeps):
    generator = random.Random(f"{engine}{sleeps}")
    for share in (0.3, 0.5, 0.7, 0.9):
        engines = Engines(train="fsdp2", generate=engine, sleeps=sleeps)
        check_space(generator, most_plans=120, engine_share=share, engines=engines)


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize("engine", ["sglang-0.4", "vllm", "vllm-0.8"])
def test_the_best_plan_is_the_best_of_all_plans_where_an_engine_is_awake_beside_others(
    engine, seed
):
    generator = random.Random(f"{engine}{seed}")
    check_space(generator, engines=Engines(train="megatron-core", generate=engine, sleeps=False))


@pytest.mark.full
@pytest.mark.parametrize("kind", HYBRIDS | NEWER)
def test_the_best_plan_is_the_best_of_all_plans_for_layers_of_unlike_kinds(kind):
    generator = random.Random(kind)
    models = FrozenDict(dict.fromkeys(("actor", "reference"), (HYBRIDS | NEWER)[kind]))
    workload = Workload(
        prompts=4, samples_per_prompt=2, prompt_tokens=50, response_tokens=Uniform(low=20, high=900)
    )
    check_space(generator, algorithm="grpo", models=models, workload=workload)


@pytest.mark.full
@pytest.mark.parametrize(("seed", "nodes"), [(0, 4), (7, 3)])
def test_the_best_plan_is_the_best_of_all_plans_where_a_fast_link_joins_two_nodes(seed, nodes):
    group = NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=1, nodes=nodes, nvlink_domain_gpus=2)
    group = replace(group, inter_node_gbps=50.0, cpu_cores=2)
    check_space(random.Random(seed), cluster=(group,))


@pytest.mark.parametrize("seed", first(1, range(16)))
def test_the_best_plan_is_the_best_of_all_plans_by_every_objective(seed):
    generator = random.Random(seed)
    for _ in range(JOBS):
        check_space(generator)


@pytest.mark.parametrize(
    "seed", [3, *(pytest.param(seed, marks=pytest.mark.full) for seed in (0, 1, 2, 4, 5))]
)
def test_the_best_plan_is_the_best_of_all_plans_where_pools_straddle_nodes(seed):
    """Pools of two GPUs on two nodes of three: where the second straddles them, no TP of two is possible there."""
    generator = random.Random(seed)
    gpu, precision = generator.choice([("cpu", "fp32"), ("a100-80gb-sxm", "bf16")])
    nodes = NodeGroup(gpu=gpu, gpus_per_node=3, nodes=2, cpu_cores=2, inter_node_gbps=200.0)
    check_space(generator, most_plans=250, cluster=(nodes,), precision=precision)


@some
@given(small_jobs(), st.sampled_from([2**28, 2**30, 2**40]))
def test_every_plan_found_is_sound_feasible_and_in_order(job, memory_bytes):
    facts = facts_with(job, memory_bytes)
    result = found_by(job, facts)
    if result is None:
        return
    for each in result.plans:
        check_plan(each.plan, ENGINES)
        assert simulate(each.plan, facts) == each.forecast
        assert each.forecast.feasible
    seconds = [each.forecast.iteration_seconds for each in result.plans]
    assert seconds == sorted(seconds)
    assert [each.loses_seconds for each in result.plans] == [s - seconds[0] for s in seconds]


@pytest.mark.full
@some
@given(small_jobs(), st.sampled_from([2**26, 2**28, 2**40]))
def test_every_placement_has_a_best_plan_or_a_reason(job, memory_bytes):
    result = found_by(job, facts_with(job, memory_bytes))
    if result is None:
        return
    every = {show_placement(placement) for placement in all_placements(job)}
    feasible = {placed(each.plan) for each in result.plans}
    infeasible = {each.placement for each in result.infeasible}
    assert infeasible < every
    assert len(feasible) == len(result.plans)
    assert len(feasible) + len(infeasible) == len(every)
    assert all(each.reason for each in result.infeasible)


@pytest.mark.full
@some
@given(small_jobs())
def test_the_certificate_holds_and_the_same_job_gives_the_same_plans(job):
    facts = facts_with(job, 2**40)
    answers = []
    for _ in range(2):
        space.forget()  # else the second plays no generation itself, and counts none
        answers.append(found_by(job, facts))
    result, again = answers
    if result is None or again is None:
        assert result is again
        return
    best_seconds = result.plans[0].forecast.iteration_seconds
    assert 0 <= result.gap < 1
    assert result.bound_seconds == best_seconds * (1 - result.gap)
    assert replace(result, search_seconds=0) == replace(again, search_seconds=0)


@pytest.fixture(scope="module")
def example():
    """Return the example of GRPO on eight H100, with its facts and its search."""
    job = load_job(EXAMPLES / "grpo-qwen2.5-7b-8xh100.yaml")
    facts = load_facts(job)
    return job, facts, search(job, facts)


@pytest.mark.full
def test_what_was_searched_before_changes_no_plan(example):
    job, facts, first = example
    again = search(job, facts)
    assert again.plans == first.plans
    assert (again.gap, again.bound_seconds) == (first.gap, first.bound_seconds)


@pytest.mark.full
def test_no_named_strategy_does_better(example):
    job, _, result = example
    by_sets = {}
    for each in result.plans:
        by_sets.setdefault(sets_of(each.plan), each.forecast.iteration_seconds)
    for name in strategy_names():
        sets = frozenset(map(frozenset, place(name, placed_roles(job))))
        assert result.plans[0].forecast.iteration_seconds <= by_sets[sets]


def test_a_search_that_is_cut_short_says_how_far_off_it_may_be(example):
    job, facts, result = example
    best_seconds = result.plans[0].forecast.iteration_seconds
    hasty = search(job, facts, seconds=0)
    found_seconds = hasty.plans[0].forecast.iteration_seconds
    assert hasty.bound_seconds <= best_seconds <= found_seconds


def test_a_search_that_is_cut_short_calls_nothing_unfit_that_it_had_no_time_for(example):
    job, facts, result = example
    assert result.unseen == ()
    hasty = search(job, facts, seconds=0)
    assert hasty.unseen
    unfit = {each.placement for each in result.infeasible}
    assert {each.placement for each in hasty.infeasible} <= unfit


def test_a_placement_whose_proof_there_was_no_time_for_is_not_called_unfit(example, monkeypatch):
    job, facts, _ = example
    quick, missed = PlacementSearch.quick, []

    def miss_the_first(self):
        """Find nothing in the first placement that is looked at, though it has plans."""
        if missed:
            quick(self)
        else:
            missed.append(show_placement(self.placement))

    monkeypatch.setattr(PlacementSearch, "quick", miss_the_first)
    hasty = search(job, facts, seconds=0)
    assert missed[0] in hasty.unseen
    assert missed[0] not in {each.placement for each in hasty.infeasible}


def test_pools_that_straddle_nodes_are_not_looked_through_behind_the_deadline(example):
    """Two pools of 4 GPUs on two nodes of 6: the second takes two GPUs of each."""
    nodes = replace(example[0].cluster[0], gpus_per_node=6, nvlink_domain_gpus=6, nodes=2)
    job = replace(example[0], cluster=(nodes,))
    placement: Placement = (("actor",), ("reference",))
    shares = tuple(Share(0, gpus) for gpus in (4, 4))
    sites = sites_for(job, shares)

    def straddling(deadline, cutoff):
        space = Space(job, example[1], {}, "throughput", job.specs)
        search = PlacementSearch(space, placement, deadline=deadline)
        bound = search.straddling(shares, sites, cutoff)
        return bound, search.found.plan, space.tally.considered.get("simulated plans", 0)

    bound, plan, simulated = straddling(math.inf, math.inf)
    seconds = bound
    assert plan is not None
    assert simulated > 0
    late, none, simulated = straddling(-math.inf, 2 * seconds)
    assert (none, simulated) == (None, 0)
    assert late <= seconds  # nothing is said to be slower than it may be
    _, some, _ = straddling(-math.inf, math.inf)
    assert some is not None  # before any plan is known, one is found however late


def test_a_search_that_is_cut_short_does_not_say_that_nothing_fits():
    job = load_job(EXAMPLES / "safe-rlhf-7b-16xa100.yaml")
    facts = load_facts(job)
    hasty = search(job, facts, seconds=0).plans[0].forecast.iteration_seconds
    best = search(job, facts, placements=1).plans[0].forecast.iteration_seconds
    assert best < hasty
    limit = Specs(iteration_seconds=(best + hasty) / 2)
    assert search(job, facts, specs=limit, placements=1).plans
    with pytest.raises(UnfinishedError, match="not looked at to the end; allow more seconds"):
        search(job, facts, specs=limit, seconds=0)


def test_limits_are_kept(example):
    job, facts, result = example
    four = search(job, facts, specs=Specs(gpus=4))
    assert sum(pool.gpus for pool in four.plans[0].plan.pools if not pool.is_host) <= 4
    assert four.plans[0].forecast.iteration_seconds > result.plans[0].forecast.iteration_seconds
    seconds = result.plans[0].forecast.iteration_seconds
    with pytest.raises(InfeasibleError):
        search(job, facts, specs=Specs(iteration_seconds=seconds * 0.99))


def test_progress_runs_from_the_first_placement_to_all_of_them(example):
    job, facts, _ = example
    seen = []
    # With a time limit: without one, the answer of the same search before would be taken.
    search(
        job,
        facts,
        progress=lambda done, total, what: seen.append((done, total, what)),
        seconds=3600,
    )
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]
    assert all(one[0] <= other[0] for one, other in pairwise(seen))


def test_a_job_that_fits_nowhere_is_refused_with_the_nearest_miss(example):
    job, _, _ = example
    with pytest.raises(InfeasibleError, match=r"\{actor, reference\} on 8 x h100.* needs at least"):
        search(job, facts_with(job, 2**31))


def test_pools_that_no_placement_has_are_named_with_what_they_do_not_go_with(example):
    """A transition of one pool brings no weights to another."""
    job, facts, _ = example
    pinned = Pinned(pools=(PinnedPool(members=(GENERATION,)),), transition="hybridflow")
    said = "keeps what is pinned: {generation} in mode sync with the transition hybridflow"
    with pytest.raises(InfeasibleError, match=re.escape(said)):
        search(job, facts, pinned=pinned)


def test_an_unknown_searcher_is_named(example):
    job, facts, _ = example
    with pytest.raises(UnknownNameError, match="did you mean 'exact'"):
        search(job, facts, searcher="exat")
