"""The staleness bound: whatever ends when, every sample is learnt from in time, and nothing waits for ever."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.control.feeds.samples import LivePrompt, StalenessBound


@given(
    seed=st.integers(0, 2**20),
    prompts=st.integers(1, 5),
    updates=st.integers(1, 3),
    sync_every=st.integers(1, 4),
    ahead=st.sampled_from([0.0, 0.3, 0.5, 1.0, 2.0, 3.5]),
    more=st.sampled_from([0, 0, 1, 3]),
)
def test_no_prompt_is_older_than_the_bound_and_the_run_goes_on(
    seed, prompts, updates, sync_every, ahead, more
):
    """Prompts that are begun beyond those learnt from are dropped when they are due."""
    draws, staleness = random.Random(seed), sync_every - 1 + ahead
    bound = StalenessBound(prompts=prompts * updates + more, staleness=staleness)
    versions, ready, learnt = {}, set(), set()
    iteration = synced = begun = update = 0
    for _ in range(4000):
        while begun < bound.most_begun(synced) and draws.random() < 0.9:
            versions[begun] = synced
            begun += 1
        if versions:
            ready.add(draws.choice(sorted(versions)))
        live = [
            LivePrompt(number=number, version=version, is_ready=number in ready)
            for number, version in versions.items()
        ]
        chosen = bound.chosen(live, prompts, gone=begun - len(live))
        if chosen is None:
            continue
        assert len(chosen) == prompts
        for each in chosen:
            assert each.is_ready
            assert iteration - each.version <= math.ceil(staleness)
            assert each.number not in learnt
            learnt.add(each.number)
            del versions[each.number]
        update = (update + 1) % updates
        if update:
            continue
        due = [each for each, version in versions.items() if bound.is_due(version, iteration)]
        assert more or not due
        for number in due:
            del versions[number]
        iteration += 1
        if iteration % sync_every == 0:
            synced = iteration
        if iteration == 12:
            return
    raise AssertionError("it waits for ever")


def test_what_may_be_begun_is_as_verl_counts_it():
    # Four batches between two syncs and half of that ahead: staleness 3 + 0.5 x 4.
    assert StalenessBound(prompts=8, staleness=5).most_begun(0) == 6 * 8
    assert StalenessBound(prompts=8, staleness=0).most_begun(3) == 4 * 8
    assert StalenessBound(prompts=8, staleness=0.3).most_begun(0) == 10


def test_an_iteration_waits_for_what_would_be_too_old_in_the_next_one():
    bound = StalenessBound(prompts=2, staleness=1)
    old = LivePrompt(number=0, version=0, is_ready=False)
    young = [LivePrompt(number=n, version=1, is_ready=True) for n in (1, 2, 3)]
    assert bound.chosen([old, *young], 2, gone=2) is None
    assert bound.chosen([old, *young], 2, gone=0) == young[:2]
    # One of two updates may go ahead where the other one can still take the old prompt.
    assert bound.chosen([old, *young], 1, gone=2) == young[:1]
