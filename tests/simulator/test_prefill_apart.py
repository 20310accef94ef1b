"""Replicas that read prompts for others: when caches come, what is read again, and what generation takes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.errors import CapabilityError, FileError, MissingFactError
from rlplan.job import CacheOffload, PrefillApart
from rlplan.planner.search import search
from rlplan.profiles.facts import load_facts
from rlplan.profiles.jobs.resolve import resolve_job
from rlplan.reports.tables.plans import prefill_line
from rlplan.simulator.generation.episodes import one_turn_episodes
from rlplan.simulator.generation.replica import Prefillers
from rlplan.simulator.simulate import simulate
from tests.cases import draws
from tests.simulator.golden.plans import PLANS
from tests.simulator.test_environment_needs import SANDBOX, forecast_of
from tests.simulator.test_episodes import episode, flat, play

ONE_EACH = Prefillers(share=1.0, blocks=1000, token_seconds=0.1)


def apart(**changes):
    """Return a replica that writes 1 token a second, and reads its last prompt token; others read 1 a second for it."""
    return flat(prefillers=ONE_EACH._replace(**changes))


def test_a_prompt_is_read_elsewhere_and_its_cache_moved_before_its_response_begins():
    found = play(apart(), episode((5, 0.0, 0)))
    # 10 tokens are read in 10 s and moved in 1 s; the first token comes with the last prompt token, 4 more follow.
    assert found.seconds == pytest.approx(10 + 1 + 1 + 4)
    assert found.handed_seconds == pytest.approx(11)
    assert (found.prefill_seconds, found.decode_seconds) == pytest.approx((1, 4))


def test_an_engine_whose_prompts_hold_up_what_decodes_computes_nothing_of_what_is_handed_on():
    one = replace(apart(), batching="continuous")
    found = play(one, episode((5, 0.0, 0)))
    # As above, but that the first token comes with the cache: no step is launched for it.
    assert found.seconds == pytest.approx(10 + 1 + 4)
    assert (found.prefill_seconds, found.decode_seconds) == pytest.approx((0, 4))


def test_samples_of_a_prompt_are_read_once_and_moved_each():
    found = play(apart(), *(episode((5, 0.0, 0)) for _ in range(2)))
    # The second reads its last token in its share of a full pass, from 10 s on, and comes at 12 s, when the first has its
    # first token; reading its last prompt token here lengthens that step to 2 s.
    assert found.finish_seconds == pytest.approx((12 + 2 + 3, 12 + 2 + 4))
    assert found.handed_seconds == pytest.approx(11)


def test_a_later_turn_is_read_behind_what_was_read_before_and_moved_whole():
    found = play(apart(), episode((5, 7.0, 3), (2, 1.0, 0)))
    first = 10 + 1 + 1 + 4
    # 18 tokens of context, 10 of which were read: the 5 that were written elsewhere and 3 of the environment are left.
    assert found.seconds == pytest.approx(first + 7 + 8 + 1.8 + 1 + 1 + 1)


def test_what_found_no_room_is_read_again():
    turns = episode((5, 7.0, 3), (2, 1.0, 0))
    roomy, small = (
        play(apart(), turns),
        play(apart(blocks=5), turns, episode((1, 0.0, 0), prompt=1)),
    )
    # Another prompt came in between and took the room of the first turn's.
    assert small.finish_seconds[0] > roomy.finish_seconds[0] + 9


@settings(max_examples=draws(20, 100))
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 25)), min_size=1, max_size=8),
    st.floats(0.2, 3),
    st.floats(1, 4),
    st.floats(0, 2),
)
def test_more_that_read_and_faster_links_never_take_longer(sequences, share, more, token_seconds):
    prompts, responses = zip(*sequences, strict=True)
    episodes = one_turn_episodes((prompts, responses), 1).episodes
    seconds = [
        play(apart(share=part, token_seconds=moved), *episodes).seconds
        for part, moved in (
            (share, token_seconds),
            (share * more, token_seconds),
            (share, token_seconds / 2),
        )
    ]
    # A sequence that comes sooner may lengthen a step of the others, by its one token.
    assert max(seconds[1:]) <= seconds[0] + len(sequences)


def test_a_forecast_says_what_it_does_beside_the_same_plan_without(tmp_path):
    found = forecast_of(tmp_path, SANDBOX, prefill=PrefillApart(replicas=1), sizes={"tp": 1})
    without = forecast_of(tmp_path, SANDBOX, sizes={"tp": 1})
    assert (found.prefill.reading, found.prefill.writing) == (1, 1)
    assert found.prefill.without_seconds == pytest.approx(
        without.stage_seconds["generation"], rel=0.1
    )
    line = prefill_line(found)
    assert line.startswith("prefill apart: 1 of 2 replicas read prompts")
    assert prefill_line(without) == ""


def test_a_layout_that_leaves_none_to_write_is_refused_with_what_to_change(tmp_path):
    with pytest.raises(MissingFactError, match="none is left to write: fewer of them"):
        forecast_of(tmp_path, SANDBOX, prefill=PrefillApart(replicas=2), sizes={"tp": 1})


def test_what_is_not_simulated_is_refused_by_name(tmp_path):
    plan = PLANS["grpo 7b, long answers on 8 h100"]()
    job = replace(plan.job, prefill=PrefillApart(replicas=1))
    with pytest.raises(FileError, match=r"prefill\.replicas: is forecast for a plan at hand"):
        search(job, load_facts(job))
    streamed = replace(plan, job=job, mode="async")
    with pytest.raises((CapabilityError, FileError)):
        simulate(streamed, load_facts(job))
    more = replace(job.workload, over_provisioning=1.5)
    with pytest.raises(FileError, match="more is begun than is learnt from"):
        resolve_job(replace(job, workload=more), tmp_path)
    played = replace(job.workload, environments=(SANDBOX,))
    kept = replace(job, workload=played, kv_offload=CacheOffload(cache_ratio=2.0))
    with pytest.raises(FileError, match=r"prefill: is not simulated where host memory keeps"):
        resolve_job(kept, tmp_path)
