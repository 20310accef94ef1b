"""Distillation from texts at hand beside generated responses, and losses that compare whole distributions."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import CapabilityError, FileError, MissingFactError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.files.frozen import FrozenDict
from rlplan.job import Rewards, Teacher
from rlplan.plan import ResourcePool, TaskPlan
from rlplan.planner.placements.partitions import all_placements
from rlplan.planner.search import check_searched, search
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.rules import refusals
from rlplan.simulator.costs.taskcost import data_bytes
from rlplan.simulator.costs.teaching import taught_bytes
from rlplan.simulator.memory.task_memory import LOGITS, fullest_micro_batch
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.pool_memory import memory_moments
from rlplan.simulator.workload import (
    MIXED_LENGTHS,
    fullest_tokens,
    learnt_work,
    micro_batch_of,
    statistics_of,
    widest_row,
)
from rlplan.workload import Texts, Workload
from tests.simulator.plans import TINY, priced_plan

GENERATE, TASK, UPDATE = "actor.generate", "teacher.compute_log_prob", "actor.update"
WIDE = replace(TINY, vocab_size=32_000)
ALL = Teacher(top_tokens="all")
ENGINE = "deepspeed-hf-padded"


def together(teacher=ALL, *, texts=None, engine=ENGINE, **changes):
    """Return a plan of on-policy distillation on one pool of 2 GPUs: 32 responses of 16 tokens behind prompts of 16."""
    plan = priced_plan()
    work = replace(plan.job.workload, prompts=32, texts=texts)
    models = FrozenDict(actor=WIDE, teacher=WIDE)
    job = replace(
        plan.job, algorithm="on-policy-distillation", models=models, workload=work, teacher=teacher,
        **changes,
    )  # fmt: skip
    tasks = (GENERATE, TASK, UPDATE)
    pool = ResourcePool(name="p0", device="a100-80gb-sxm", gpus=2, roles=("actor", "teacher"))
    layouts = {
        name: TaskPlan(pool="p0", dp=2, engine="vllm" if name == GENERATE else engine)
        for name in tasks
    }
    return replace(
        plan, job=job, pools=(pool,), tasks=FrozenDict(layouts), order=FrozenDict(p0=tasks)
    )


@pytest.fixture(scope="module")
def facts():
    return load_facts(priced_plan().job)


def seconds(plan, facts):
    return {cost.name: cost.seconds for cost in simulate(plan, facts).costs}


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_batches_of_texts_take_no_generation_and_all_else(facts, share):
    """Of texts as long as responses nothing else changes, and generation takes its share of the batches."""
    whole, part = (seconds(together(texts=each), facts) for each in (None, Texts(share=share)))
    assert part[GENERATE] == pytest.approx((1 - share) * whole[GENERATE])
    assert (part[TASK], part[UPDATE]) == (whole[TASK], whole[UPDATE])


def test_texts_have_lengths_of_their_own():
    """A quarter of 48 tokens beside responses of 16: 24 on average, 64 with their prompts at most."""
    work = Workload(
        prompts=8,
        prompt_tokens=16,
        response_tokens=16,
        texts=Texts(share=0.25, response_tokens=48),
    )
    mixed = learnt_work(work)
    assert statistics_of(mixed).response_tokens == 24
    assert mixed.longest_sequence_tokens == 64
    assert work.longest_sequence_tokens == 32
    assert learnt_work(mixed) is mixed
    alike = replace(work, texts=Texts(share=0.25))
    assert learnt_work(alike) is alike


@given(
    share=st.floats(0.01, 0.99), own=st.integers(1, 1000), other=st.integers(1, 1000)
)  # fmt: skip
@settings(max_examples=25)
def test_the_mean_of_both_lies_between_them_by_their_share(share, own, other):
    texts = Texts(share=share, response_tokens=other)
    work = Workload(prompts=8, prompt_tokens=16, response_tokens=own, texts=texts)
    mean = statistics_of(learnt_work(work)).response_tokens
    rounding = abs(own - other) / MIXED_LENGTHS * 2
    assert mean == pytest.approx((1 - share) * own + share * other, abs=rounding + 1e-6)


def test_a_micro_batch_is_all_texts_or_all_responses():
    """Three of four are padded to 32 tokens and one to 64, however many sequences they have: 40, and 42 as attention costs."""
    texts = Texts(share=0.25, response_tokens=48)
    work = Workload(prompts=8, prompt_tokens=16, response_tokens=16, texts=texts)
    mixed = statistics_of(learnt_work(work))
    for padding in ("micro_batch", "batch"):
        batch = micro_batch_of(mixed, 8, padding)
        assert (batch.tokens, batch.sequence_tokens) == (8 * 40, 42)
    assert mixed.longest_of(8) == (40, pytest.approx(math.sqrt(3) * 8))
    shared = statistics_of(learnt_work(replace(work, samples_per_prompt=4)))
    assert widest_row(shared, 4, 4) == 0.75 * (16 + 4 * 16) + 0.25 * (16 + 4 * 48)
    assert fullest_tokens(mixed, 64) == 64 * 64  # packed, all may be texts


def test_longer_texts_lengthen_what_learns_and_not_what_generates(facts):
    short, long = (
        seconds(together(texts=Texts(share=0.5, response_tokens=each)), facts)
        for each in (None, 4096)
    )
    assert short[GENERATE] == long[GENERATE]
    assert short[TASK] < long[TASK]
    assert short[UPDATE] < long[UPDATE]


def test_longer_texts_are_what_a_micro_batch_is_sized_for(facts):
    """Of 2 sequences a micro-batch: 2 x 32 tokens, and 2 x 4,112 where texts may have 4,096."""
    found = []
    for texts in (None, Texts(share=0.5, response_tokens=4096)):
        placed = PlacedPlan(together(texts=texts), facts)
        sequences, tokens = fullest_micro_batch(placed.tasks[UPDATE])
        held = memory_moments(placed, placed.plan.pools[0])[UPDATE][LOGITS]
        assert held == sequences * tokens * WIDE.vocab_size * 34
        found.append(tokens)
    assert found == [32, 4112]


def test_whole_distributions_stay_where_they_are_made():
    job = together().job
    tasks = {task.name: task for task in tasks_of(load_algorithm(job.algorithm), job)}
    assert tasks[TASK].outputs == ("teacher_distributions",)
    assert tasks[UPDATE].inputs == ("sequences", "log_probs", "teacher_distributions")
    assert data_bytes(["teacher_distributions"], job.workload) == 0
    assert job.top_tokens == 0


@pytest.mark.parametrize(
    ("way", "forward", "backward"),
    [(None, 86, 104), ("forward-kl", 34, 28), ("reverse-kl", 34, 42), ("rows", 0, 0)],
)
def test_comparing_them_moves_what_its_way_says_for_every_logit(facts, way, forward, backward):
    """100 tokens of 32,000 entries each, by the Jensen-Shannon divergence where nothing else is said."""
    plan = together()
    options = {"actor": replace(plan.job.trainer("actor"), logits=way)}
    plan = replace(plan, job=replace(plan.job, trainers=FrozenDict(options)))
    placed = PlacedPlan(plan, facts).tasks
    assert taught_bytes(placed[UPDATE], 100) == (3_200_000 * forward, 3_200_000 * backward)
    assert taught_bytes(placed[TASK], 100) == (0, 0)


def test_an_engine_whose_sheet_knows_no_such_loss_says_so(facts):
    with pytest.raises(MissingFactError, match="megatron-core has no way 'jensen-shannon'"):
        simulate(together(engine="megatron-core"), facts)


def test_both_models_logits_of_a_token_lie_on_one_gpu():
    """A teacher elsewhere, or either model cut, would hand on a vocabulary for each token."""
    plan = together()
    assert not list(refusals(plan, plan.job))
    apart = tuple(replace(plan.pools[0], name=name, roles=(role,)) for name, role in
                  (("p0", "actor"), ("p1", "teacher")))  # fmt: skip
    elsewhere = replace(
        plan,
        pools=apart,
        tasks=plan.tasks.with_item(TASK, replace(plan.tasks[TASK], pool="p1")),
        order=FrozenDict(p0=(GENERATE, UPDATE), p1=(TASK,)),
    )
    cut = replace(plan, tasks=plan.tasks.with_item(UPDATE, replace(plan.tasks[UPDATE], tp=2, dp=1)))
    for broken, field in ((elsewhere, f"tasks.{TASK}.pool"), (cut, f"tasks.{UPDATE}.tp")):
        assert field in [each.field for each in refusals(broken, broken.job)]
        sampled = replace(broken.job, teacher=None)
        assert not list(refusals(replace(broken, job=sampled), sampled))


def test_searched_plans_have_the_teacher_with_what_trains(facts, tmp_path):
    job = replace(together(texts=Texts(share=0.5)).job, framework="trl-transformers")
    job = replace(job, engines=replace(job.engines, train=ENGINE))
    assert all(
        any({"actor", "teacher"} <= set(members) for members in placement)
        for placement in all_placements(job)
    )
    best = search(resolve_job(job, tmp_path), facts, seconds=20).plans[0].plan
    assert best.pool_of(TASK) == best.pool_of(UPDATE)
    assert {best.tasks[name].tp for name in (TASK, UPDATE)} == {1}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"models": FrozenDict(actor=WIDE, teacher=TINY)}, "teacher.top_tokens"),
        ({"teacher": Teacher(top_tokens="all", engine="vllm")}, "teacher.engine"),
        ({"algorithm": "reinforce-plus-plus", "rewards": Rewards(function="exact_match"),
          "models": FrozenDict(actor=WIDE, teacher=WIDE, reference=WIDE)}, "teacher.top_tokens"),
    ],
)  # fmt: skip
def test_distributions_that_no_loss_compares_are_refused(changes, field, tmp_path):
    with pytest.raises(FileError) as caught:
        resolve_job(replace(together().job, **changes), tmp_path)
    assert caught.value.field == field


def test_texts_are_for_what_learns_from_a_teacher_alone(tmp_path):
    job = together(texts=Texts(share=0.5)).job
    learnt = replace(
        job, algorithm="grpo", teacher=None, rewards=Rewards(function="exact_match"),
        models=FrozenDict(actor=WIDE, reference=WIDE),
    )  # fmt: skip
    more = replace(job, workload=replace(job.workload, over_provisioning=1.5))
    for wrong, field in ((learnt, "workload.texts"), (more, "workload.over_provisioning")):
        with pytest.raises(FileError) as caught:
            resolve_job(wrong, tmp_path)
        assert caught.value.field == field


def test_texts_between_responses_that_stream_are_not_played(facts):
    job = together(Teacher(), texts=Texts(share=0.5)).job
    with pytest.raises(FileError, match="mode async"):
        check_searched(job, modes=("async",))
    check_searched(job, modes=("sync", "one-step-off"))
    plan = together(Teacher(), texts=Texts(share=0.5), engine="megatron-core")
    pools = (replace(plan.pools[0], name="p1", roles=("actor",)), plan.pools[0])
    layouts = plan.tasks.with_item(GENERATE, replace(plan.tasks[GENERATE], pool="p1"))
    order = FrozenDict(p1=(GENERATE,), p0=(TASK, UPDATE))
    streamed = replace(
        plan,
        pools=pools,
        tasks=layouts,
        order=order,
        mode="streaming",
        staleness=0,
        transition="two-copies",
    )
    with pytest.raises(CapabilityError, match="texts at hand"):
        simulate(streamed, facts)


def test_this_executor_generates_all_responses_and_says_so():
    plan = together(Teacher(), texts=Texts(share=0.5), engine="torch-tp-dp")
    with pytest.raises(CapabilityError, match="texts at hand"):
        check_runnable(plan)
