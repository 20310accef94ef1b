"""The transfer queue: every sample goes to every task once, whatever is slow, small or lost."""

import contextlib
import random

import numpy as np
import pytest
import ray
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import RayActorError

from rlplan.executor.data.batches import joined_columns
from rlplan.executor.queue.ledger import Ledger, Reader
from rlplan.executor.queue.transfer_queue import (
    HeldPiece,
    PaddedRead,
    SampleSize,
    Storage,
    StoredRows,
    TransferQueue,
    is_lost,
    ranges_of,
)

# A task that generates, two that make columns, one of them from the other's, and two that update weights.
READERS = {
    "judge": Reader(keys=frozenset({"sequences"}), has_effects=False),
    "value": Reader(keys=frozenset({"sequences", "scores"}), has_effects=False),
    "actor": Reader(keys=frozenset({"sequences", "scores", "values"}), has_effects=True),
    "critic": Reader(keys=frozenset({"sequences", "values"}), has_effects=True),
}
MAKES = {"judge": "scores", "value": "values"}
UNITS, ROW_BYTES = 3, 10


MOST_SAMPLES = 20


class Shop:
    """Workers of random speed around a ledger, and storage units that die."""

    def __init__(self, seed, samples, capacity_rows, losses, drops=0):
        self.random = random.Random(seed)
        self.ledger = Ledger(READERS, UNITS, capacity_rows * ROW_BYTES)
        self.waiting, self.making, self.leases = list(range(samples)), [], []
        self.trained = {"actor": [], "critic": []}
        self.consumed = {task: [] for task in MAKES}
        self.losses, self.most_bytes = losses, 0
        self.drops, self.dropped = drops, []

    def run(self):
        for _ in range(10_000):
            steps = [self.begin, self.generate, *[self.take] * 2, *[self.end] * 2, self.read]
            if self.losses:
                steps.append(self.lose)
            if self.drops:
                steps.append(self.drop)
            self.random.choice(steps)()
            self.most_bytes = max(self.most_bytes, self.ledger.reserved_bytes)
            if not self.waiting and not self.making and not self.ledger.reserved_bytes:
                return
        raise AssertionError("it never ends")

    def begin(self):
        count = min(len(self.waiting), self.random.randint(1, 3))
        chosen = self.waiting[:count]
        if chosen and self.ledger.admit(chosen, [ROW_BYTES] * count):
            del self.waiting[:count]
            self.making += chosen

    def generate(self):
        if self.making:
            sample = self.making.pop(self.random.randrange(len(self.making)))
            place = self.ledger.place(sample)
            if place is not None:
                assert self.ledger.put(sample, place[1], "sequences")

    def take(self):
        task = self.random.choice(list(READERS))
        ready = self.ledger.ready(task)[: self.random.randint(1, 4)]
        if ready:
            self.leases.append([self.ledger.take(task, ready), False])

    def read(self):
        if self.leases:
            held = self.random.choice(self.leases)
            # As the executor does: a lease of which a row is lost is given back.
            if not held[1] and self.whole(held[0]):
                self.ledger.secure(held[0])
                held[1] = True
            elif not held[1]:
                self.leases.remove(held)
                self.making += self.ledger.give_back(held[0])

    def whole(self, lease):
        return all(
            self.ledger.place(sample) == (unit, attempt)
            for sample, unit, attempt in zip(
                lease.samples, lease.units, lease.attempts, strict=True
            )
        )

    def end(self):
        read = [held for held in self.leases if held[1]]
        if not read:
            return
        held = self.random.choice(read)
        self.leases.remove(held)
        lease = held[0]
        if self.random.random() < 0.2:
            self.making += self.ledger.give_back(lease)
            return
        if lease.task in MAKES:
            for sample, attempt in zip(lease.samples, lease.attempts, strict=True):
                if self.ledger.put(sample, attempt, MAKES[lease.task]):
                    self.consumed[lease.task].append((sample, attempt))
        else:
            self.trained[lease.task] += lease.samples
        self.ledger.finish(lease)

    def drop(self):
        """Drop a sample, under way or not, that no training task has or had."""
        free = [
            sample
            for sample in range(MOST_SAMPLES)
            if all(self.ledger.wants(task, sample) for task in self.trained)
        ]
        if free:
            self.drops -= 1
            self.dropped.append(self.random.choice(free))
            self.ledger.drop(self.dropped[-1:])

    def lose(self):
        if self.random.random() < 0.1:
            self.losses -= 1
            self.making += self.ledger.lose(self.random.randrange(UNITS))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    samples=st.integers(1, MOST_SAMPLES),
    capacity_rows=st.integers(3, 12),
    losses=st.integers(0, 6),
    drops=st.integers(0, 4),
)
def test_every_sample_is_learnt_from_once_by_every_task_or_dropped_within_the_memory(
    seed, samples, capacity_rows, losses, drops
):
    shop = Shop(seed, samples, capacity_rows, losses, drops)
    shop.run()
    assert len(set(shop.dropped)) == len(shop.dropped)
    for task, trained in shop.trained.items():
        assert sorted([*trained, *shop.dropped]) == list(range(samples)), task
    for task, consumed in shop.consumed.items():
        assert len(set(consumed)) == len(consumed), task
    if not losses:
        judged = {sample for sample, _ in shop.consumed["judge"]}
        assert judged | {*shop.dropped} == set(range(samples))
    assert shop.most_bytes <= capacity_rows * ROW_BYTES


def test_a_sample_that_does_not_fit_waits_until_another_one_is_released():
    ledger = Ledger({"actor": Reader(keys=frozenset({"s"}), has_effects=True)}, 1, 25)
    assert ledger.admit([0, 1], [10, 10])
    assert not ledger.admit([2], [10])
    ledger.put(0, 0, "s")
    lease = ledger.take("actor", ledger.ready("actor"))
    assert not ledger.ready("actor")
    assert ledger.finish(lease) == [0]
    assert ledger.admit([2], [10])


def test_rows_are_kept_without_padding_and_read_with_any():
    storage, width = Storage(), 4
    tokens = np.array([[0, 1, 2, 3, 4, 0], [5, 6, 7, 8, 9, 10]])
    rows = [StoredRows(piece=0, prompt_width=width, rows=((7, 0, 3, 1), (9, 1, 4, 2)))]
    assert storage.write({"sequences": rows}, {"tokens": tokens}) == 10 * tokens.itemsize
    storage.write({"scores": rows}, {"scores": np.array([0.5, 0.25], dtype=np.float32)})
    wanted = PaddedRead(
        samples=[9, 7], keys=["sequences", "scores"], prompt_width=5, response_width=2
    )
    sequences, scores, count = storage.read(wanted)
    assert isinstance(sequences, dict)
    assert isinstance(scores, dict)
    assert sequences["tokens"].tolist() == [[0, 5, 6, 7, 8, 9, 10], [0, 0, 1, 2, 3, 4, 0]]
    assert scores["scores"].tolist() == [0.25, 0.5]
    assert count == 2
    storage.drop([7, 9])
    assert not storage._rows


@given(st.sets(st.integers(0, 40)))
def test_ranges_hold_just_their_rows(numbers):
    ranges = ranges_of(sorted(numbers))
    assert [row for start, stop in ranges for row in range(start, stop)] == sorted(numbers)


def kill_and_wait(actor):
    """Kill an actor and return once it is dead: Ray may let it answer a few calls more."""
    ray.kill(actor)
    with contextlib.suppress(RayActorError):
        while True:
            ray.get(actor.drop.remote([]))


def batches_of(queue, make_more):
    """Yield what a task learns from, up to four samples at a time; what is lost unread comes again."""
    while True:
        ready = queue.ledger.ready("actor")[:4]
        if len(ready) < 4 and make_more():
            continue
        if not ready:
            return
        lease = queue.ledger.take("actor", ready)
        read = queue.read(lease, 1, 3)
        lost = [place for place, reference in read.done.items() if is_lost(reference)]
        for unit, life in lost:
            queue.replace(unit, life)
        if lost:
            queue.ledger.give_back(lease)
            continue
        queue.ledger.secure(lease)
        pieces = read.pieces["sequences"]
        columns = [ray.get(piece.reference) for piece in pieces]
        held = {"sequences": [piece.rows for piece in pieces]}
        yield lease.samples, joined_columns(held, ((0, len(lease.samples)),), columns)["tokens"]
        queue.finish(lease)


@pytest.mark.full
@pytest.mark.ray
def test_samples_of_a_storage_actor_that_is_killed_come_again_and_none_comes_twice(ray_slots):
    readers = {"actor": Reader(keys=frozenset({"sequences"}), has_effects=True)}
    queue = TransferQueue(readers, 2, 10**6)
    waiting, made = list(range(12)), []

    def make_one():
        lost = [sample for sample in range(12) if sample in queue.ledger and is_waiting(sample)]
        if not waiting and not lost:
            return False
        sample = lost[0] if lost else waiting.pop(0)
        if sample not in queue.ledger:
            assert queue.ledger.admit([sample], [100])
        made.append(sample)
        queue.sizes[sample] = SampleSize(1, 1 + sample % 3)
        width = 2 + queue.sizes[sample].response_tokens
        column = np.full((1, width), sample)
        piece = HeldPiece(samples=[sample], prompt_width=2, reference=ray.put({"tokens": column}))
        for write in queue.write({"sequences": [piece]}, {sample: queue.ledger.place(sample)[1]}):
            ray.get(write.done)
            queue.note(write)
        return True

    def is_waiting(sample):
        return not queue.ledger.is_ready("actor", sample) and sample not in taken

    taken, seen = set(), []
    try:
        for number, (samples, rows) in enumerate(batches_of(queue, make_one)):
            taken.update(samples)
            seen += samples
            for sample, tokens in zip(samples, rows, strict=True):
                assert set(tokens.tolist()) <= {0, sample}
                assert (tokens == sample).sum() >= 2 or sample == 0
            if number == 0:
                while waiting:
                    make_one()
                kill_and_wait(queue._actors[0])
        assert sorted(seen) == list(range(12))
        assert len(made) > 12
        assert queue.ledger.reserved_bytes == 0
    finally:
        queue.stop()
