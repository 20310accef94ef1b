"""Replicas that come and go on the nodes of a cluster: one is lost with its node, and starts on another one that comes."""

import json
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ObjectLostError

from rlplan.errors import PlanError
from rlplan.executor.control.checkpoints import find_checkpoint
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.workers.cluster import nodes
from rlplan.executor.workers.cluster.nodes import (
    SETTLE_SECONDS,
    RayNode,
    parts_of,
    placed_workers,
    plan_nodes,
)
from rlplan.job import NodeGroup, Rewards
from rlplan.results.stored import write_plan
from tests.executor.plans import make_job, make_plan
from tests.executor.test_checkpoints import assert_same, stored_weights
from tests.executor.test_coming_replicas import elastic, plan_of, sync  # noqa: F401 -- fixtures
from tests.executor.test_joined_cluster import (
    COMMAND,
    SECOND,
    SEED,
    THIRD,
    WAITING_RULE,
    answer,
    program,
    wait_for,
)
from tests.executor.test_streaming import same

ITERATIONS = 40
# Responses behind the 40th take their time until the replica that was on a lost node is back.
SLOWER = """\
    if len(CALLS) > 40 and not (HERE / "joined").exists():
        time.sleep(0.2)
"""
RULE = WAITING_RULE.replace("    return", f"{SLOWER}    return")


def on_nodes(*groups, trains=1, replicas=2, tp=1):
    """Return a plan that streams, on nodes of so many cores: its trainer first, then its replicas."""
    nodes = tuple(
        NodeGroup(gpu="cpu", gpus_per_node=cores, nodes=count, inter_node_gbps=200.0, cpu_cores=4)
        for cores, count in groups
    )
    job = make_job("grpo", samples_per_prompt=2)
    job = replace(job, cluster=nodes, rewards=Rewards(function="rule.py:judge"))
    pools = {
        "p0": (trains, ("actor", "reference")),
        "generator": (replicas * tp, ("actor",)),
    }
    plan = make_plan(job, pools, tp_gen=tp, transition="two-copies", micro_batch=2, max_running=1)
    return replace(plan, mode="streaming")


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 2), st.integers(1, 4), st.data())
def test_nodes_with_fewer_replicas_have_all_else_and_are_those_of_the_whole_plan(
    trains, replicas, tp, cores, data
):
    plan = on_nodes((cores, 16), trains=trains, replicas=replicas, tp=tp)
    there = data.draw(st.integers(1, replicas))
    nodes, whole = plan_nodes(plan, there), plan_nodes(plan)
    every = {worker for node in whole for worker in node.workers}
    gone = {("generator", rank) for rank in range(there * tp, replicas * tp)}
    assert {worker for node in nodes for worker in node.workers} == every - gone
    assert sorted(worker for node in nodes for worker in node.hosts) == [("host", 0)]
    # A function of a reward is on no node that only replicas are on, which may be lost.
    assert all(any(pool == "p0" for pool, _ in node.workers) for node in nodes if node.hosts)
    for node in nodes:
        parts = dict(parts_of(plan, node, apart=True))
        assert sorted(worker for part in parts.values() for worker in part.workers) == sorted(
            node.workers
        )
        assert all(
            {rank // tp for _, rank in part.workers} == {number} and not part.hosts
            for number, part in parts.items()
            if number is not None
        )
        assert parts.get(None, node).hosts == node.hosts
        assert list(parts_of(plan, node, apart=False)) == [(None, node)]


class Ready:
    """Stand for a placement group that is there at once."""

    def wait(self, _):
        return True


@pytest.mark.parametrize(("settles", "begins_with"), [(True, [0, 1]), (False, [0])])
def test_what_was_just_given_back_counts_before_a_run_begins_with_fewer_replicas(
    monkeypatch, settles, begins_with
):
    """The second node is in use for a second, or by others, who keep it."""
    plan, looks, seconds = on_nodes((2, 1), (1, 1)), [], [0.0]
    first = RayNode(id="ab" * 28, address="127.0.0.2", total={"CPU": 2.0}, free={"CPU": 2.0})

    def ray_nodes():
        looks.append(seconds[0])
        free = {"CPU": 1.0} if settles and seconds[0] > 1 else {}
        return first, RayNode(id="cd" * 28, address="127.0.0.3", total={"CPU": 1.0}, free=free)

    monkeypatch.setattr(nodes, "ray_nodes", ray_nodes)
    monkeypatch.setattr(nodes, "placement_group", lambda *_, **__: Ready())
    monkeypatch.setattr(ray.util, "remove_placement_group", lambda _: None)
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(time, "sleep", lambda each: seconds.append(seconds.pop() + each))
    with placed_workers(plan, 0.0, pytest.fail, lambda _: {}, 2) as placed:
        assert placed.replicas.placed == begins_with
    assert looks[-1] <= SETTLE_SECONDS


def test_a_run_begins_without_the_replica_of_a_node_that_turns_out_to_be_lost(monkeypatch):
    """Ray counts a lost node as there for a while: a retry, or a move, soon behind the loss asks it for workers."""
    plan, there = on_nodes((2, 1), (1, 1)), []
    for name, cores in (("ab", 2.0), ("cd", 1.0)):
        total = {"CPU": cores}
        there.append(RayNode(id=name * 28, address="127.0.0.2", total=total, free=total))
    lost = there[1]

    class OnNode:
        def __init__(self, labels):
            self._node = labels[0][nodes.NODE_ID]

        def wait(self, _):
            if self._node == lost.id:
                there[:] = [each for each in there if each is not lost]
            return self._node != lost.id

    monkeypatch.setattr(nodes, "ray_nodes", lambda: tuple(there))
    monkeypatch.setattr(
        nodes,
        "placement_group",
        lambda *_, bundle_label_selector, **__: OnNode(bundle_label_selector),
    )
    monkeypatch.setattr(ray.util, "remove_placement_group", lambda _: None)
    monkeypatch.setattr(nodes, "SETTLE_SECONDS", 0.0)
    with placed_workers(plan, 0.0, pytest.fail, lambda _: {}, 2) as placed:
        assert placed.replicas.placed == [0]


def test_a_node_that_is_in_use_is_not_lost():
    """Groups that were just given back count as used for a while: without them fewer replicas would do at once, again and again."""
    plan = on_nodes((2, 1), (1, 1))
    choices = [plan_nodes(plan, each) for each in (2, 1)]
    first = RayNode(id="ab" * 28, address="127.0.0.2", total={"CPU": 2.0}, free={"CPU": 2.0})
    used = RayNode(id="cd" * 28, address="127.0.0.3", total={"CPU": 1.0}, free={})
    assert not nodes._fewer_do(choices[0], choices, (first, used))
    assert nodes._fewer_do(choices[0], choices, (first,))
    assert not nodes._fewer_do(choices[0], choices, ())


def test_a_node_that_did_not_do_for_a_replica_is_not_taken_by_a_retry_either(monkeypatch):
    plan, refused, said = on_nodes((2, 1), (1, 1)), set(), []
    there = [
        RayNode(id="ab" * 28, address="127.0.0.2", total={"CPU": 2.0}, free={"CPU": 2.0}),
        RayNode(id="cd" * 28, address="127.0.0.3", total={"CPU": 1.0}, free={}),
    ]

    def check(_):
        raise PlanError("has another torch")

    monkeypatch.setattr(nodes, "ray_nodes", lambda: tuple(there))
    monkeypatch.setattr(nodes, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(nodes, "placement_group", lambda *_, **__: Ready())
    monkeypatch.setattr(ray.util, "remove_placement_group", lambda _: None)
    with placed_workers(plan, 0.0, said.append, check, 2, refused) as placed:
        there[:] = (
            replace(node, free=free) for node, free in zip(there, ({}, {"CPU": 1.0}), strict=True)
        )
        assert placed.replicas.find(1) is None
    assert refused == {there[1].id}
    assert said == ["no replica starts there: has another torch"]
    there[0] = replace(there[0], free={"CPU": 2.0})
    with placed_workers(plan, 0.0, said.append, check, 2, refused) as placed:
        assert placed.replicas.placed == [0]


# Asks for places on two nodes of two cores, the first ones for a trainer and replica 0.
PLACES = """
import json, logging, sys, time, ray
from ray._private.state import actors
from rlplan.executor.queue.transfer_queue import TransferQueue
from rlplan.executor.workers.cluster.nodes import placed_workers
from tests.executor.test_replicas_on_nodes import on_nodes

ray.init(address=sys.argv[1], logging_level=logging.ERROR, log_to_driver=False)
given = (on_nodes((2, 1), (1, 3), replicas=4), 0.0, print, lambda nodes: {})
begun = []
for _ in range(5):  # at once after the places before were given back
    with placed_workers(*given, 2) as placed:
        begun.append(placed.replicas.placed)
with placed_workers(*given, 2) as placed:
    later = [placed.replicas.find(number) is not None for number in (2, 3)]
    placed.replicas.give_back(2)
    end = time.monotonic() + 30
    while placed.replicas.find(3) is None:  # Ray hears of it a little later
        assert time.monotonic() < end
        time.sleep(0.1)
queue = TransferQueue({}, 8, 100)
ray.get([actor.drop.remote([]) for actor in queue._actors])
nodes = {each["Address"]["NodeID"] for each in actors().values() if each["State"] == "ALIVE"}
print(json.dumps([begun, later, nodes == {ray.get_runtime_context().get_node_id()}]))
"""


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.slow
def test_places_are_given_once_and_those_that_were_just_given_back_count(raylets):
    code, printed, said = answer(PLACES, raylets.address)
    assert code == 0, said[-3000:]
    assert json.loads(printed.splitlines()[-1]) == [[[0, 1]] * 5, [True, False], True]


@ray.remote
def lost_on_its_way():
    raise ObjectLostError("ab" * 28, b"", "")


@pytest.mark.full
@pytest.mark.ray
def test_what_was_generated_and_is_lost_with_its_node_is_generated_again(elastic, sync):  # noqa: F811
    """Small outputs never lie on a replica's node: here a write says that what it was given is gone."""
    run, learnt = elastic(plan_of(), "2"), []
    queue, note = run.feed.samples.queue, run.feed.samples.note_learnt
    run.feed.samples.note_learnt = lambda samples: (learnt.extend(samples), note(samples))
    send, lost = queue._send_rows, []

    def send_rows(unit, outputs, wanted):
        if "sequences" in outputs and len(lost) < 2:
            lost.append(sorted(wanted))
            return lost_on_its_way.remote()
        return send(unit, outputs, wanted)

    queue._send_rows = send_rows
    run.carry_out(4)
    assert len(lost) == 2
    assert len(learnt) == len(set(learnt)) == 4 * 16
    assert same(run.actor(), sync.actor)


def joined(folder, process):
    """Wait until a replica has joined, and say so."""
    file = folder / "out" / "replicas.jsonl"
    while process.poll() is None:
        if file.exists() and '"joined"' in file.read_text():
            (folder / "joined").write_text("")
            return
        time.sleep(0.1)


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="takes addresses of Linux")
def test_a_replica_that_is_lost_with_its_node_starts_on_one_that_comes_and_nothing_is_done_again(
    raylets, tmp_path
):
    """On the first node are the trainer and a replica, on the second the other one."""
    plan = on_nodes((2, 1), (1, 1))
    (tmp_path / "rule.py").write_text(RULE)
    write_plan(tmp_path / "plan.yaml", plan)
    options = ("--warmup", 0, "--seed", SEED, "--iterations", ITERATIONS)
    options = (*options, "--checkpoint-every", ITERATIONS, "--replicas", 2)
    given = ("execute", tmp_path / "plan.yaml", *options, "--out")
    run = program(COMMAND, *given, tmp_path / "out", "--address", raylets.address, cwd=tmp_path)
    wait_for(tmp_path / "waits", run)
    raylets.kill(SECOND)
    (tmp_path / "killed").write_text("")
    time.sleep(2.0)
    raylets.add(THIRD, 2)
    watching = threading.Thread(target=joined, args=(tmp_path, run))
    watching.start()
    try:
        _, said = run.communicate(timeout=500)
    finally:
        run.kill()
        watching.join()
        raylets.kill(THIRD)
        raylets.add(SECOND, 2, "big")
    assert run.returncode == 0, said[-3000:]
    assert "retry" not in said
    lines = (tmp_path / "out" / "replicas.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert events[0] == "lost"
    assert events[-1] == "joined"
    rows = read_metrics(tmp_path / "out")
    assert [row["iteration"] for row in rows] == list(range(ITERATIONS))
    assert sum(row["lost_replicas"] for row in rows) == 1
    assert (rows[0]["replicas"], rows[-1]["replicas"]) == (2, 2)
    code, _, calm = answer(COMMAND, *given, tmp_path / "calm", "--simulate-nodes", cwd=tmp_path)
    assert code == 0, calm[-3000:]
    last, other = (find_checkpoint(tmp_path / name) for name in ("out", "calm"))
    assert_same(stored_weights(last), stored_weights(other))
    assert re.search("replica 1 ended: killed, .*; .* begin again: 1 replica generates", said), said
