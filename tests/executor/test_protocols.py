"""Transfer protocols and travelling rows: what is spread out and passed back comes back whole."""

import os
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.control.pending_calls import reduce_metrics
from rlplan.executor.data.batches import (
    Piece,
    assemble,
    count_rows,
    joined_columns,
    overlapping,
    split_rows,
)
from rlplan.executor.parallel.positions import generate_positions, train_positions
from rlplan.executor.workers import protocols
from rlplan.executor.workers.host_worker import HostWorker
from rlplan.executor.workers.pools import WorkerGroup, fetched
from rlplan.executor.workers.protocols import PROTOCOLS, protocol_of, registered
from rlplan.executor.workers.stages import STAGES
from rlplan.layout import GenerateLayout, TrainLayout
from tests.executor.harness import ReusedWorker

sizes = st.sampled_from([1, 2, 4])


def split_list(items, parts):
    size = -(-len(items) // parts)
    return [items[part * size : (part + 1) * size] for part in range(parts)]


def joined(lists):
    return [item for part in lists for item in part]


@given(tp=sizes, pp=sizes, cp=sizes, dp=sizes, items=st.lists(st.integers(), max_size=20))
@pytest.mark.parametrize("protocol", ["three-d", "micro-dp", "dp"])
def test_what_is_distributed_and_returned_is_collected_whole(protocol, tp, pp, cp, dp, items):
    protocol = PROTOCOLS.load(protocol)
    positions = train_positions(tp, tp * pp * cp * dp, pp, cp)
    by_rank = protocol.distribute(positions, items, split_list)
    assert sorted(by_rank) == list(range(tp * pp * cp * dp))
    assert protocol.collect(positions, by_rank, joined) == items


def test_ranks_that_share_sequences_stand_between_pipelines_and_data():
    positions = train_positions(tp=2, ranks=8, pp=1, cp=2)
    assert positions.tp == (0, 1, 0, 1, 0, 1, 0, 1)
    assert positions.cp == (0, 0, 1, 1, 0, 0, 1, 1)
    assert positions.dp == (0, 0, 0, 0, 1, 1, 1, 1)
    assert positions.copies == (0, 0, 1, 1, 2, 2, 3, 3)
    assert positions.leaders() == (0, 4)


@st.composite
def generate_layouts(draw):
    pp, tp = draw(sizes), draw(sizes)
    train = TrainLayout(pp=pp * draw(sizes), tp=tp * draw(sizes), dp=draw(sizes))
    return GenerateLayout(train=train, pp=pp, tp=tp)


@given(layout=generate_layouts(), items=st.lists(st.integers(), max_size=20))
def test_micro_groups_collect_whole_too(layout, items):
    positions = generate_positions(layout)
    by_rank = PROTOCOLS.load("micro-dp").distribute(positions, items, split_list)
    assert PROTOCOLS.load("micro-dp").collect(positions, by_rank, joined) == items


def test_generation_positions_are_those_of_the_zero_redundancy_groups():
    train = TrainLayout(pp=1, tp=4, dp=2)
    positions = generate_positions(GenerateLayout(train=train, pp=1, tp=2))
    assert positions.groups() == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_tensor_parallel_ranks_get_the_same_rows_and_only_their_first_is_heard():
    positions = train_positions(2, 4)
    assert PROTOCOLS.load("three-d").distribute(positions, [1, 2, 3, 4], split_list) == {
        0: [1, 2],
        1: [1, 2],
        2: [3, 4],
        3: [3, 4],
    }
    assert PROTOCOLS.load("three-d").collect(positions, {0: "a", 1: "b", 2: "c", 3: "d"}, list) == [
        "a",
        "c",
    ]


def test_the_last_stage_of_a_pipeline_is_heard_and_every_stage_where_all_are_asked():
    positions = train_positions(2, 8, 2)
    assert positions.groups() == ((0, 1, 2, 3), (4, 5, 6, 7))
    results = dict(enumerate("abcdefgh"))
    assert PROTOCOLS.load("three-d").collect(positions, results, list) == ["c", "g"]
    assert PROTOCOLS.load("micro-dp").collect(positions, results, list) == ["a", "e"]
    assert PROTOCOLS.load("pp-only").distribute(positions, "x", split_list) == dict.fromkeys(
        range(8), "x"
    )
    assert PROTOCOLS.load("pp-only").collect(positions, results, list) == ["a", "c"]


def test_all_ranks_get_one_argument_and_all_are_heard():
    positions = train_positions(1, 3)
    assert PROTOCOLS.load("one-to-all").distribute(positions, "x", split_list) == {
        0: "x",
        1: "x",
        2: "x",
    }
    assert PROTOCOLS.load("one-to-all").collect(positions, {2: "c", 0: "a", 1: "b"}, list) == [
        "a",
        "b",
        "c",
    ]


def test_each_rank_gets_its_own_argument():
    positions = train_positions(1, 2)
    assert PROTOCOLS.load("all-to-all").distribute(positions, ["a", "b"], split_list) == {
        0: "a",
        1: "b",
    }


def test_only_the_first_rank_is_called():
    positions = train_positions(1, 3)
    assert PROTOCOLS.load("rank-zero").distribute(positions, "x", split_list) == {0: "x"}
    assert PROTOCOLS.load("rank-zero").collect(positions, {0: "y"}, list) == "y"


def test_metrics_are_reduced_by_the_last_word_of_their_names():
    parts = {
        0: {"loss": 1.0, "norm_mean": 2.0, "peak_max": 5.0},
        1: {"loss": 9.0, "norm_mean": 9.0, "peak_max": 9.0},
        2: {"loss": 0.5, "norm_mean": 4.0, "peak_max": 3.0},
        3: {"loss": 9.0, "norm_mean": 9.0, "peak_max": 9.0},
    }
    reduced = PROTOCOLS.load("dp-metric").collect(train_positions(2, 4), parts, reduce_metrics)
    assert reduced == {"loss": 1.5, "norm_mean": 3.0, "peak_max": 5.0}


def test_a_method_declares_its_protocol():
    @registered("dp")
    def method():
        return None

    assert protocol_of(method) is PROTOCOLS.load("dp")
    assert protocol_of(HostWorker.prepare) is PROTOCOLS.load("one-to-all")


@pytest.mark.parametrize("kind", STAGES.names())
def test_every_stage_names_a_protocol(kind):
    assert STAGES.load(kind).PROTOCOL in PROTOCOLS.names()


def test_rows_are_split_within_every_mini_batch():
    assert split_rows(((0, 16),), 2, block=2, updates=2) == (
        ((0, 4), (8, 12)),
        ((4, 8), (12, 16)),
    )


def test_samples_of_a_prompt_stay_together_where_prompts_do_not_divide():
    assert split_rows(((0, 9),), 2, block=3) == (((0, 6),), ((6, 9),))


@given(blocks=st.integers(1, 5), block=sizes, parts=st.integers(1, 5), updates=st.integers(1, 3))
def test_a_split_holds_every_row_once(blocks, block, parts, updates):
    rows = ((0, blocks * block * updates),)
    shares = split_rows(rows, parts, block=block, updates=updates)
    held = sorted(row for share in shares for a, b in share for row in range(a, b))
    assert held == list(range(rows[0][1]))
    assert sum(map(count_rows, shares)) == rows[0][1]


@given(
    blocks=st.integers(1, 4),
    makers=st.integers(1, 4),
    takers=st.integers(1, 4),
    updates=st.integers(1, 3),
)
def test_rows_fetched_from_pieces_are_the_rows_asked_for(blocks, makers, takers, updates):
    total = blocks * updates
    column = np.arange(total) * 10
    pieces = []
    for rows in split_rows(((0, total),), makers, block=1):
        held = np.concatenate([column[a:b] for a, b in rows] or [column[:0]])
        pieces.append(Piece(rows, {"x": held}))
    for rows in split_rows(((0, total),), takers, block=1, updates=updates):
        if not rows:
            continue
        held = overlapping(pieces, rows)
        found = joined_columns({"key": [p.rows for p in held]}, rows, [p.reference for p in held])
        expected = np.concatenate([column[a:b] for a, b in rows])
        assert found["x"].tolist() == expected.tolist()


def test_only_pieces_that_overlap_are_fetched():
    pieces = [Piece(((0, 4),), "a"), Piece(((4, 8),), "b")]
    assert overlapping(pieces, ((4, 6),)) == (pieces[1],)


def test_rows_of_one_piece_are_passed_on_without_a_copy():
    held = {"x": np.arange(8)}
    found = assemble(((2, 6),), [(((0, 8),), held)])
    assert np.shares_memory(found["x"], held["x"])


LARGEST_OF_STAGES = """
def distribute(positions, argument, _):
    return {rank: argument for rank in range(positions.ranks) if positions.tp[rank] == 0}

def collect(_, results, __):
    return max(results.values())
"""


def test_a_protocol_of_ones_own_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "largest_of_stages.py").write_text(LARGEST_OF_STAGES)
    monkeypatch.setattr(protocols, "__path__", [*protocols.__path__, str(tmp_path)])
    monkeypatch.setattr(PROTOCOLS, "_path", protocols.__path__)

    class Scorer:
        @registered("largest-of-stages")
        def score(self, offset):
            return offset

    positions, protocol = train_positions(2, 8, 2), protocol_of(Scorer.score)
    asked = protocol.distribute(positions, 3, split_list)
    assert asked == {0: 3, 2: 3, 4: 3, 6: 3}
    answers = {rank: Scorer().score(offset + rank) for rank, offset in asked.items()}
    assert protocol.collect(positions, answers, list) == 9


LAWS = {
    "one-to-all": lambda positions, item: [item] * positions.ranks,
    "pp-only": lambda positions, item: [item] * positions.pp_size,
    "dp-metric": lambda positions, item: [item] * positions.dp_size,
    "rank-zero": lambda _, item: item,
}


@given(tp=sizes, pp=sizes, dp=sizes, item=st.integers())
@pytest.mark.parametrize("protocol", LAWS)
def test_what_is_passed_back_unchanged_comes_once_from_each_who_is_heard(
    protocol, tp, pp, dp, item
):
    positions = train_positions(tp, tp * pp * dp, pp)
    named = PROTOCOLS.load(protocol)
    by_rank = named.distribute(positions, item, lambda whole, parts: [whole] * parts)
    assert named.collect(positions, by_rank, list) == LAWS[protocol](positions, item)


@given(tp=sizes, pp=sizes, dp=sizes)
def test_arguments_of_their_own_come_back_in_the_order_of_ranks(tp, pp, dp):
    positions = train_positions(tp, tp * pp * dp, pp)
    items = list(range(positions.ranks))
    by_rank = PROTOCOLS.load("all-to-all").distribute(positions, items, split_list)
    assert PROTOCOLS.load("all-to-all").collect(positions, by_rank, list) == items


# A gigabyte in all; RLPLAN_TEST_PAYLOADS says another count.
PAYLOAD_BYTES, PAYLOADS = 20_000_000, int(os.environ.get("RLPLAN_TEST_PAYLOADS", "50"))


@pytest.mark.ray
@pytest.mark.full
def test_the_controller_stays_small_while_payloads_go_from_worker_to_worker(worker_pool):
    group = WorkerGroup(ReusedWorker, worker_pool.workers(2)[:2])
    before = resident_bytes()
    peak = before
    for _ in range(PAYLOADS):
        (holder,) = fetched(group.send("put_payload", {0: (PAYLOAD_BYTES,)})).values()
        # As an argument, like a task's inputs; what comes of it, as large, goes back.
        values, _ = group.send("forward_payload", {1: (holder[0],)}, num_returns=2)[1]
        _, report = group.send("forward_payload", {0: (values,)}, num_returns=2)[0]
        fetched({"report": report})
        peak = max(peak, resident_bytes())
    assert peak - before < PAYLOAD_BYTES


def resident_bytes():
    """Return what this process holds in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
