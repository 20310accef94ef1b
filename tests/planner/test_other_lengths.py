"""A job with other lengths: what searches keep of the one before, and that they answer as if there had been none."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import InfeasibleError
from rlplan.files.frozen import FrozenDict
from rlplan.job import NO_SPECS
from rlplan.plan import TaskDraft
from rlplan.planner.exact import space as tables
from rlplan.planner.exact.space import Space
from rlplan.planner.layouts.listing import generations_of, listing_of
from rlplan.planner.search import search
from rlplan.profiles.facts import load_facts
from rlplan.simulator.placed import COLUMNS
from rlplan.workload import Uniform
from tests.cases import draws
from tests.planner.brute_force import small_job
from tests.planner.test_moves_of_any_lengths import HOSTED, JOBS

# Most are short for a rank of their own; so many tokens are shared by several ranks, and beyond the positions of some models.
LENGTHS = st.one_of(st.integers(1, 3000), st.integers(10_000, 60_000))
DRAFTS = {
    "open": FrozenDict(),
    "counted": FrozenDict({"actor.update": TaskDraft(tp=2, micro_batch=2)}),
    "a budget": FrozenDict({"actor.update": TaskDraft(token_budget=4096)}),
}
LISTED = ("megatron", "fsdp", "a framework's")
JOBS_AFTER_EACH_OTHER = draws(3, 60)


def with_lengths(job, prompt_tokens, response_tokens):
    work = replace(job.workload, prompt_tokens=prompt_tokens, response_tokens=response_tokens)
    return replace(job, workload=work)


def listed(job, drafts, kept):
    """Return what is listed of every role on all shares, and for generation on all GPUs, as plain values."""
    own = Space(job, load_facts(job), drafts, "throughput", NO_SPECS)
    space, sites = own.options.space, [own.site(each) for each in own.shares]
    found: list[Any] = [generations_of(space, sites[-1], kept)]
    for role in job.models:
        tasks = [task for task in space.tasks if task.role == role and task.has_model]
        listing = listing_of(space, [each for each in tasks if not each.generates], sites, kept)
        for name, each in listing.tasks.items():
            columns = [getattr(each.columns, column).tolist() for column in COLUMNS]
            found.append((name, columns, each.cut.tolist(), dict(each.dropped)))
        found.append(listing.cut_sites.tolist())
    return found


@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("name", LISTED)
@given(one=st.tuples(LENGTHS, LENGTHS), other=st.tuples(LENGTHS, LENGTHS))
def test_what_is_listed_after_other_lengths_is_what_is_listed_alone(name, drafts, one, other):
    job, kept = (JOBS | HOSTED)[name], {}
    listed(with_lengths(job, *one), DRAFTS[drafts], kept)
    job = with_lengths(job, *other)
    assert listed(job, DRAFTS[drafts], kept) == listed(job, DRAFTS[drafts], {})


@pytest.mark.parametrize(("name", "is_shared"), [("megatron", True), ("a framework's", False)])
def test_listings_are_kept_where_micro_batches_are_counted(name, is_shared):
    job, kept = (JOBS | HOSTED)[name], {}
    listed(with_lengths(job, 100, 200), DRAFTS["open"], kept)
    before = dict(kept)
    listed(with_lengths(job, 300, 150), DRAFTS["open"], kept)
    roles = {role for role in before if isinstance(role[1], tuple)}
    assert kept.keys() == before.keys()
    assert len(roles) == (len(job.models) if is_shared else 0)


def answer(job):
    """Return what a search says, by facts of its own: plans with their forecasts, and the proof."""
    try:
        found = search(job, load_facts(job), placements=2)
    except InfeasibleError as error:
        return str(error)
    return found.plans, found.gap, found.bound_seconds, found.infeasible, found.left_out


def test_lengths_asked_one_after_another_have_the_answers_that_each_has_alone():
    generator = random.Random(17)
    for _ in range(JOBS_AFTER_EACH_OTHER):
        job = small_job(generator)
        tokens = [generator.randint(1, 900) for _ in range(3)]
        several = [with_lengths(job, tokens[0], each) for each in tokens]
        several.append(with_lengths(job, tokens[1], Uniform(low=tokens[0], high=tokens[0] + 500)))
        alone = []
        for each in several:
            tables.forget()
            alone.append(answer(each))
        tables.forget()
        order = generator.sample(range(len(several)), len(several))
        assert [answer(several[place]) for place in order] == [alone[place] for place in order]
