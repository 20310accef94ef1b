"""What replicas answer is waited for without those that have ended; one that fails is not waited for."""

import time

import pytest
import ray

from rlplan.errors import RlplanError
from rlplan.executor.workers import replicas
from rlplan.executor.workers.pools import WorkerGroup
from rlplan.executor.workers.protocols import registered
from rlplan.executor.workers.replicas import ReplicaGroup
from rlplan.replicas import read_schedule

pytestmark = [pytest.mark.full, pytest.mark.ray]


class Rank:
    """Answer, fail, or hang as in a collective whose other rank has failed."""

    def answer(self, number):
        return number

    def fail(self, number):
        raise RlplanError(f"rank {number} met something")

    def hang(self, _):
        time.sleep(600)

    @registered("one-to-all")
    def peak(self, _=None):
        return 0


@pytest.fixture
def group(ray_slots, monkeypatch):
    """Return two replicas of two ranks."""
    monkeypatch.setattr(replicas, "LOSS_SHOWS_SECONDS", 1.0)
    made = ReplicaGroup(Rank, lambda _: None, read_schedule("2"), replicas=2, ranks_each=2)
    remote = ray.remote(num_cpus=0)(Rank)
    for number in range(2):
        made.members[number] = WorkerGroup(Rank, [remote.remote() for _ in range(2)])
    yield made
    made.end()


def asked(group, *methods):
    return {
        rank: getattr(actor, method).remote(rank)
        for rank, (actor, method) in enumerate(zip(group.actors, methods, strict=True))
    }


def test_all_answer(group):
    methods = ("answer",) * 4
    assert group.answers(asked(group, *methods)) == {0: 0, 1: 1, 2: 2, 3: 3}


def test_a_rank_that_fails_ends_the_wait_for_the_one_that_hangs_with_it(group):
    begun = time.monotonic()
    with pytest.raises(RlplanError, match="rank 2 met something"):
        group.answers(asked(group, "answer", "answer", "fail", "hang"))
    assert time.monotonic() - begun < 60  # and not until what hangs is done


@pytest.mark.parametrize("beside", ["hang", "fail"])
def test_a_replica_one_of_whose_ranks_has_ended_is_left_out(group, beside):
    ray.kill(group.actors[3])
    found = group.answers(asked(group, "answer", "answer", beside, "answer"))
    assert found == {0: 0, 1: 1}


def test_where_all_have_ended_it_is_an_error(group):
    for actor in group.actors:
        ray.kill(actor)
    with pytest.raises(RlplanError, match="all replicas"):
        group.answers(asked(group, *("answer",) * 4))
