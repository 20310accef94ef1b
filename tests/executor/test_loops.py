"""Controller loops: which groups are trained on, and how rows are cut."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.algorithms import load_algorithm
from rlplan.executor.control.dispatcher import Batch
from rlplan.executor.control.feeds.whole_batches import (
    chosen_groups,
    groups_of_unequal_rewards,
    learn_and_generate_next,
    one_batch,
    sampled_again,
)
from rlplan.executor.data.batches import (
    ROUND_STRIDE,
    Piece,
    count_rows,
    rows_at,
    shifted,
    split_rows,
    whole_blocks,
)
from rlplan.job import DynamicSampling, Rewards
from tests.executor.plans import make_job

PLAIN, PAIRS = Rewards(), make_job("dapo", samples_per_prompt=2)


class Table:
    """An iteration whose scores are written down, by number of the batch of prompts."""

    def __init__(self, iteration, scores):
        self.iteration, self.scores = iteration, scores
        self.tasks = load_algorithm("dapo").tasks
        self.ran = []

    def prompts(self, number):
        count = len(next(iter(self.scores.values())))
        rows = ((0, count),)
        return Batch(number=number, rows=rows, pieces={"prompts": (Piece(rows, number),)})

    def send(self, tasks, batch):
        self.ran.append(([task.name for task in tasks], batch.number, batch.rows))

    def fetch(self, batch, keys):
        assert keys == ("scores", "rule_scores")
        return {"rule_scores": np.array(self.scores[batch.number], dtype=np.float32)}


SAMPLE = ["actor.generate", "reward.compute_reward", "rule.compute_reward"]


def test_one_batch_runs_every_task_once():
    run = Table(3, {3: [0, 1]})
    one_batch(run)
    assert run.ran == [([*SAMPLE, "actor.update"], 3, ((0, 2),))]


def test_the_next_batch_is_generated_before_the_batch_at_hand_is_learnt_from():
    run = Table(3, {3: [0, 1]})
    _, *left = run.tasks
    judging = left[0]
    batch = run.prompts(3)
    learn_and_generate_next(
        run, batch, tuple(left), (judging,), lambda: run.ran.append("the next batch")
    )
    rest = [task.name for task in left[1:]]
    assert run.ran == [([judging.name], 3, ((0, 2),)), "the next batch", (rest, 3, ((0, 2),))]


def test_a_round_in_which_all_groups_tell_apart_is_enough():
    run = Table(5, {5: [0, 1, 2, 1]})
    sampled_again(run, PAIRS)
    assert run.ran == [(SAMPLE, 5, ((0, 4),)), (["actor.update"], 5, ((0, 4),))]


def test_groups_of_equal_rewards_are_replaced_by_those_of_later_rounds():
    scores = {
        0: [0, 1, 2, 2, 1, 1],
        ROUND_STRIDE: [3, 3, 0, 2, 4, 4],
        2 * ROUND_STRIDE: [0, 1, 0, 1, 0, 1],
    }
    run = Table(0, scores)
    batch = sampled_again(run, PAIRS)
    assert [number for _, number, _ in run.ran] == [0, ROUND_STRIDE, 2 * ROUND_STRIDE, 0]
    # Group 0 of the first round, 1 of the second (rows from 6 on), 0 of the third (from 12 on).
    assert run.ran[-1] == (["actor.update"], 0, ((0, 2), (8, 10), (12, 14)))
    assert [piece.rows for piece in batch.pieces["prompts"]] == [
        ((0, 6),),
        ((6, 12),),
        ((12, 18),),
    ]


def test_when_the_rounds_are_used_up_equal_groups_fill_the_batch():
    run = Table(0, {0: [1, 1, 0, 2], ROUND_STRIDE: [5, 5, 5, 5]})
    sampled_again(run, replace(PAIRS, dynamic_sampling=DynamicSampling(max_rounds=2)))
    assert run.ran[-1] == (["actor.update"], 0, ((0, 4),))


def test_rewards_are_weighed_before_they_are_compared():
    scores = {"scores": np.array([1.0, 2.0]), "rule_scores": np.array([0.5, 0.0])}
    assert groups_of_unequal_rewards(scores, PLAIN, 2) == [True]
    assert groups_of_unequal_rewards(scores, Rewards(model_weight=0.5), 2) == [False]


@given(st.lists(st.booleans(), min_size=3, max_size=12))
def test_chosen_groups_are_as_many_as_wanted_and_leave_no_better_one_out(told_apart):
    told_apart = told_apart[: len(told_apart) // 3 * 3]
    rows = ((0, 6),)
    batches = [Batch(number=n, rows=rows, pieces={}) for n in range(len(told_apart) // 3)]
    chosen = chosen_groups(batches, told_apart, 2)
    assert count_rows(chosen.rows) == 6
    groups = [row // 2 for start, stop in chosen.rows for row in range(start, stop, 2)]
    assert sum(told_apart[group] for group in groups) == min(3, sum(told_apart))


ranges = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=5)


@given(ranges, st.integers(1, 4), st.integers(1, 3))
def test_shares_of_ranges_hold_every_row_once_update_by_update(gaps, parts, updates):
    rows, at = [], 0
    for gap, length in gaps:
        rows.append((at + gap, at + gap + length * updates))
        at += gap + length * updates
    shares = split_rows(tuple(rows), parts, block=1, updates=updates)
    flat = [n for start, stop in rows for n in range(start, stop)]
    held = [n for share in shares for start, stop in share for n in range(start, stop)]
    assert sorted(held) == flat
    size = len(flat) // updates
    for share in shares:
        mine = [n for start, stop in share for n in range(start, stop)]
        assert [flat.index(n) // size for n in mine] == sorted(flat.index(n) // size for n in mine)


def test_rows_at_positions_count_through_the_ranges():
    rows = ((2, 5), (8, 9), (20, 30))
    assert rows_at(rows, 0, 3) == ((2, 5),)
    assert rows_at(rows, 1, 6) == ((3, 5), (8, 9), (20, 22))
    assert rows_at(rows, 4, 4) == ()
    assert shifted(rows, 10) == ((12, 15), (18, 19), (30, 40))
    assert whole_blocks([0, 1, 4], 3) == ((0, 6), (12, 15))


@pytest.mark.parametrize("name", ["ppo", "grpo", "remax"])
def test_only_algorithms_that_say_so_sample_again(name):
    assert not load_algorithm(name).resamples
