"""Batches of prompts: each is made once, and the next iteration's before it is asked for."""

import numpy as np
import pytest
import ray

from rlplan.executor.control.dispatcher import PromptPieces
from rlplan.executor.data.batches import ROUND_STRIDE

pytestmark = pytest.mark.ray


@pytest.fixture
def asked(ray_slots):
    return []


@pytest.fixture
def given(asked):
    def prompts(number):
        asked.append(number)
        numbers = np.full((4, 2), number)
        return {"prompt_tokens": numbers, "pretrain_tokens": -numbers}

    return PromptPieces(prompts, 4)


def test_the_next_batch_is_made_before_it_is_asked_for_and_only_once(given, asked):
    given.make_next()
    assert asked == []
    given.batch(3)
    given.make_next()
    given.make_next()
    assert asked == [3, 4]
    (piece,) = given.batch(4).pieces["prompts"]
    assert asked == [3, 4]
    assert piece.rows == ((0, 4),)
    assert ray.get(piece.reference)["prompt_tokens"].tolist() == [[4, 4]] * 4


def test_a_batch_that_was_not_foreseen_is_made_when_it_is_asked_for(given, asked):
    given.batch(0)
    given.make_next()
    assert given.batch(7).number == 7
    assert asked == [0, 1, 7]


def test_a_batch_that_replaces_another_leaves_the_next_iteration_what_it_is(given, asked):
    given.batch(0)
    given.batch(ROUND_STRIDE)
    given.make_next()
    assert asked == [0, ROUND_STRIDE, 1]


def test_texts_that_are_mixed_in_are_pieces_of_their_own(given):
    pieces = given.batch(1).pieces
    assert pieces.keys() == {"prompts", "pretrain"}
    (piece,) = pieces["pretrain"]
    assert ray.get(piece.reference).keys() == {"pretrain_tokens"}
