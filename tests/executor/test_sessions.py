"""Sessions: responses that are generated over many calls are those of one call, and know their weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlplan.executor.parallel.meshes import make_mesh
from rlplan.executor.parallel.positions import train_positions
from rlplan.executor.rollout.engines.torch_static import TorchStaticEngine
from rlplan.executor.rollout.sampling import GenerateSettings
from rlplan.executor.rollout.sessions import Response, WaveSession, WholeSession, padded_responses
from rlplan.executor.weights.shard import build_shard
from tests.executor.plans import TINY

LENGTHS = [3, 9, 1, 7, 5, 9]
SETTINGS = GenerateSettings(max_running=4, temperature=1.0, seed=5, iteration=1, end_ids=())
PROMPTS = [[97, 98, 99], [100], [101, 102], [97, 98, 99], [103, 104], [105]]


def shard_of(seed=2):
    mesh = make_mesh(train_positions(1, 1), 0, torch.device("cpu"))
    return build_shard(TINY, "lm", mesh, role="actor", seed=seed, precision="fp32")


def responses():
    return [
        Response(batch=1, row=row, prompt=np.array(prompt), most_tokens=most)
        for row, (prompt, most) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]


@pytest.fixture(scope="module")
def whole():
    """Return what one call generates: tokens and log-probabilities by row."""
    width = max(map(len, PROMPTS))
    prompts = torch.tensor([[0] * (width - len(p)) + p for p in PROMPTS])
    present = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in PROMPTS])
    made = TorchStaticEngine(shard_of()).generate(
        prompts, present, torch.tensor(LENGTHS), torch.arange(6), 9, SETTINGS
    )
    return [
        (made.tokens[row, width : width + most].tolist(), made.log_probs[row, width : width + most])
        for row, most in enumerate(LENGTHS)
    ]


def ended(session, given, steps, *, late=()):
    """Return all responses by row, and after which call each came."""
    session.begin(given)
    found, calls = {}, {}
    for call in range(40):
        for response in session.advance(steps, call):
            assert response.row not in found
            found[response.row], calls[response.row] = response, call
        if late and call == 1:
            session.begin(late)
        if not session.running:
            return [found[row] for row in sorted(found)], calls
    raise AssertionError("it never ends")


def test_waves_of_a_streamed_batch_are_those_of_a_synchronous_one_to_the_last_bit(whole):
    found, calls = ended(WaveSession(shard_of(), SETTINGS, "streaming", "drain"), responses(), 2)
    for response, (tokens, log_probs) in zip(found, whole, strict=True):
        assert response.tokens == tokens
        assert response.log_probs == log_probs.tolist()
    assert calls[2] == 0  # the shortest is handed over while its wave goes on
    assert calls[4] > calls[1]  # the next wave begins when that has ended


def test_a_response_ends_at_each_of_several_tokens(whole):
    ends = (whole[1][0][4], whole[3][0][2])
    settings = replace(SETTINGS, end_ids=ends)
    found, _ = ended(WaveSession(shard_of(), settings, "streaming", "drain"), responses(), 2)
    for response, (tokens, _) in zip(found, whole, strict=True):
        first = next((at for at, token in enumerate(tokens) if token in ends), len(tokens) - 1)
        assert response.tokens == tokens[: first + 1]
    assert len(found[1].tokens) < len(whole[1][0])


@pytest.mark.parametrize("in_flight", ["drain", "keep", "recompute"])
def test_responses_that_join_others_say_what_they_say_alone(whole, in_flight):
    given = responses()
    session = WaveSession(shard_of(), SETTINGS, "async", in_flight)
    found, _ = ended(session, given[:3], 2, late=given[3:])
    for response, (tokens, log_probs) in zip(found, whole, strict=True):
        assert response.tokens == tokens
        assert response.log_probs == pytest.approx(log_probs.tolist(), abs=1e-4)


@pytest.mark.parametrize("in_flight", ["keep", "recompute"])
def test_a_response_that_new_weights_interrupt_goes_on_from_what_was_said(whole, in_flight):
    shard = shard_of()
    session = WaveSession(shard, SETTINGS, "async", in_flight)
    session.begin(responses()[:2])
    session.advance(3, 0)
    with torch.no_grad():
        shard.flat.whole_values().mul_(1.5)
    session.take_weights()
    (response,) = session.advance(20, 1)
    tokens, log_probs = whole[1]
    assert response.versions == [0] * 3 + [1] * 6
    assert response.tokens[:3] == tokens[:3]
    assert response.log_probs[:3] == pytest.approx(log_probs[:3].tolist(), abs=1e-5)
    assert response.log_probs[3:] != pytest.approx(log_probs[3:].tolist(), abs=1e-4)


@pytest.mark.parametrize("in_flight", ["recompute", "keep"])
def test_responses_that_are_withdrawn_leave_the_others_as_they_are(whole, in_flight):
    session = WaveSession(shard_of(), replace(SETTINGS, max_running=4), "async", in_flight)
    session.begin(responses())
    found = session.advance(2, 0)
    session.withdraw(
        {(1, 1), (1, 5), (2, 0)}
    )  # one that runs, one that waits, one of another replica
    assert session.running == 6 - len(found) - 2
    while session.running:
        found += session.advance(2, 0)
    assert sorted(each.row for each in found) == [0, 2, 3, 4]
    for each in found:
        assert each.tokens == whole[each.row][0]


def test_an_engine_of_whole_calls_hands_over_all_that_it_was_given(whole):
    shard = shard_of()
    session = WholeSession(TorchStaticEngine(shard), shard, SETTINGS)
    found, calls = ended(session, responses(), 2)
    assert [response.tokens for response in found] == [tokens for tokens, _ in whole]
    assert set(calls.values()) == {0}


def test_responses_stand_padded_beside_their_prompts():
    response = Response(
        batch=0,
        row=0,
        prompt=np.array([5]),
        most_tokens=2,
        tokens=[6, 7],
        log_probs=[-1, -2],
        versions=[3, 4],
    )
    longer = Response(
        batch=0,
        row=1,
        prompt=np.array([8, 9]),
        most_tokens=1,
        tokens=[1],
        log_probs=[-3],
        versions=[3],
    )
    columns = padded_responses([response, longer])
    assert columns["tokens"].tolist() == [[0, 5, 6, 7], [8, 9, 1, 0]]
    assert columns["parts"].tolist() == [[0, 1, 2, 2], [1, 1, 2, 0]]
    assert columns["log_probs"].tolist() == [[0, 0, -1, -2], [0, 0, -3, 0]]
    assert columns["versions"].tolist() == [[0, 0, 3, 4], [0, 0, 3, 0]]


def test_a_streaming_session_is_between_waves_once_all_that_may_run_have_ended():
    session = WaveSession(shard_of(), SETTINGS, "streaming", "drain")
    session.begin(responses())
    seen = []
    while session.running:
        session.advance(3, 0)
        seen.append((session.running, session.is_between_waves))
    # Four may run, of 3, 9, 1 and 7 tokens; then those of 5 and 9.
    assert seen == [(4, False), (4, False), (2, True), (2, False), (1, False), (0, True)]
